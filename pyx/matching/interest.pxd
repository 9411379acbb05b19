# cython: language_level=3
"""All that a sibling wants, while it is told anew: until all of it is told, what was known before stays in force.

    begin -> named..., as the parts of a snapshot come, and deltas after them -> forget_some until it says no more

What a sibling wants too much costs a message that it matches in vain; what is missing costs one that somebody has been
promised. So nothing is forgotten before all of it is known, and then what has not been named is forgotten in pieces.
"""
cimport cython
from libc.stdint cimport uint32_t

from pyx.core.tables cimport Paging
from pyx.matching.filters cimport Filter, Group
from pyx.matching.subscriptions cimport Subscriptions


@cython.final
cdef class WholeInterest:
    cdef readonly int sibling
    cdef readonly uint32_t number       # of members that are named: see Member.told
    cdef set named                      # addresses of Filters and Groups: they live as long as the sibling wants them
    cdef bint told                      # all of it
    cdef Paging paging
    cdef bint groups                    # the Filters are done with

    cdef int name_filter(self, Filter* f) except -1
    cdef int name_group(self, Group* g) except -1
    # True: call it again
    cdef bint forget_some(self, Subscriptions subscriptions) except -1
    cdef int forget_filter(self, Subscriptions subscriptions, Filter* f) except -1
    cdef int forget_group(self, Subscriptions subscriptions, Group* g) except -1
