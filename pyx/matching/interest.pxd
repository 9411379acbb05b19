# cython: language_level=3
"""A sibling's complete interest, sent as a snapshot: until all of it has arrived, the former interest stays in force.

    begin -> named..., as the parts of a snapshot and later deltas arrive -> forget_some until it returns false

Too much interest costs messages sent in vain; missing interest costs a message that some client was promised. So
nothing is forgotten before the snapshot is complete, and then everything not named in it is forgotten in pieces.
"""
cimport cython
from libc.stdint cimport uint32_t

from pyx.core.tables cimport Paging
from pyx.matching.filters cimport Filter, Group
from pyx.matching.subscriptions cimport Subscriptions


@cython.final
cdef class WholeInterest:
    cdef readonly int sibling
    cdef readonly uint32_t number       # of the members named: see Member.told
    cdef set named                      # addresses of Filters and Groups: they exist as long as the sibling wants them
    cdef bint told                      # it is complete
    cdef list forgotten                 # gets (filter, group or None) of what `forget_some` forgets; None: nobody asks
    cdef Paging paging
    cdef bint groups                    # the Filters are done

    cdef int name_filter(self, Filter* f) except -1
    cdef int name_group(self, Group* g) except -1
    # True: call it again
    cdef bint forget_some(self, Subscriptions subscriptions) except -1
    cdef int forget_filter(self, Subscriptions subscriptions, Filter* f) except -1
    cdef int forget_group(self, Subscriptions subscriptions, Group* g) except -1
