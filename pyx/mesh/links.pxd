# cython: language_level=3
"""The links of one worker: see the .pyx."""
from libc.stdint cimport uint64_t

from pyx.mesh.link cimport Link


cdef class Links:
    cdef readonly dict by_peer
    cdef object publisher
    cdef object barrier
    cdef readonly list flushes          # of transports that gather what they send
    cdef public object is_busy
    cdef public object is_full
    cdef public object go_on            # of the transport: continue with messages that were left
    cdef readonly uint64_t drain_bytes_max
    cdef double now                     # of this round
    cdef uint64_t rounds
    cdef readonly bint stopped          # some messages were left in this round
    cdef bint heard                     # some were taken
    cdef readonly bint is_idle          # no link waits for its sibling, as of the last flush
    cdef readonly uint64_t greetings    # messages that were received
    cdef public uint64_t malformed

    cpdef bint begin(self, double now) except -1
    cpdef flush(self, double now)
    cpdef bint read(self) except -1
    cdef Link of(self, bytes first)
