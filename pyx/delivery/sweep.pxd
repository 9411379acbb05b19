# cython: language_level=3
"""One index of the log that is being swept: see the .pyx."""
from libc.stdint cimport uint32_t, uint64_t

from pyx.storage.records cimport LogKey


cdef class Sweep:
    cdef LogKey key
    cdef list askers                # [(session, does it read the index)] that are still to be asked, the next one last
    cdef list subscribers           # where they are very many: those that are still to be looked at, the next one last
    cdef uint32_t* slots            # ... and which of its subscriptions each had then
    cdef uint64_t over              # whoever is before this position may have more than its bound
    cdef uint64_t lowest            # nobody wants what lies at or before this position
    cdef uint64_t open_from         # somebody wants all that lies behind this one
    cdef set spans                  # (from behind, up to) which somebody wants, before that
    cdef list runs                  # the same, each list sorted
    cdef object parts               # all of these, rising, as far as they are not looked at; None: not all were asked
    cdef uint64_t at                # up to here it is done
    cdef bint needed
    cdef bint is_old                # others may have come since it was begun
