# cython: language_level=3
"""Blocks and parts of indexes as a store keeps them: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.protocol.message cimport Message
from pyx.storage.entries cimport Entry
from pyx.storage.records cimport Batch


cdef class Stored:
    """Messages as a store has them, made when they are asked for."""
    cdef bytes value
    cdef uint32_t* offsets          # where each begins
    cdef list made                  # Message, or None: nobody has asked for it
    cdef readonly uint32_t count
    cdef readonly uint64_t held_bytes   # what it holds in memory, with what it has made
    cdef object expiry_offset
    cdef object publisher           # of the one made last, and where its bytes are
    cdef const uint8_t* last_publisher
    cdef uint32_t last_length

    cdef int expiry_of(self, Entry* e) except -1
    cdef Message message(self, uint32_t i)


cdef class Gathering:
    """A Batch in the making, from the parts of an index."""
    cdef Batch batch
    cdef uint32_t cap
    cdef uint64_t bytes

    cdef int room(self, uint32_t n) except -1
