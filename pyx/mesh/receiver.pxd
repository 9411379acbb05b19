# cython: language_level=3
"""What receives messages, and batches: see the .pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.rounds cimport RoundPart


cdef struct Part:                   # of a batch
    const uint8_t* data             # NULL: there is none
    size_t size
    void* owner                     # bytes that it lies in: alive during the call


cdef class Receiver:
    cdef uint64_t trusts            # how often `trust` was called

    cpdef trust(self)
    cpdef bint may_receive(self) except -1
    cpdef bint received(self, list frames) except -1


cdef class BatchReceiver(RoundPart):
    cdef int take_batch(self, uint32_t peer, const Part* volatile, const Part* sequenced, list payloads,
                        uint64_t sequence) except -1
    cpdef bint is_sated(self) except -1
    cpdef bint is_full(self) except -1


cdef class EventReceiver(BatchReceiver):
    cdef object events


# a memoryview that keeps the owner alive, or None
cdef object view_of(const Part* part)
