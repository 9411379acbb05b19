# cython: language_level=3
"""The sweep of one index of the log: see the .pyx."""
from libc.stdint cimport uint32_t, uint64_t

from pyx.storage.records cimport LogKey


cdef class Sweep:
    cdef LogKey key
    cdef list askers                # [(session, does it read the index)] still to be examined, the next one last
    cdef list subscribers           # if they are very many: those still to be considered, the next one last
    cdef uint32_t* slots            # ... and the slot of each in its session's subscriptions
    cdef uint64_t over              # a session with its cursor before this position may exceed its bound
    cdef uint64_t lowest            # no session needs messages at or before this position
    cdef uint64_t open_from         # a session needs all messages behind this one
    cdef set spans                  # (from behind, up to): needed before that
    cdef list runs                  # lists of such spans, each sorted
    cdef object parts               # iterator over all spans, rising; None: not all sessions were examined
    cdef uint64_t at                # done up to this position
    cdef bint needed
    cdef bint is_old                # subscribers may have been added since its begin
