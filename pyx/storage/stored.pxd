# cython: language_level=3
"""Stored blocks and parts of indexes: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.protocol.message cimport Message
from pyx.storage.entries cimport Entry
from pyx.storage.records cimport Batch


cdef class Stored:
    """Stored messages, which are created on demand."""
    cdef bytes value
    cdef uint32_t* offsets          # of the beginning of each
    cdef list made                  # Message, or None: not created yet
    cdef readonly uint32_t count
    cdef readonly uint64_t held_bytes   # its size in memory, including created messages
    cdef object expiry_offset
    cdef object publisher           # of the message created last, and where its bytes are
    cdef const uint8_t* last_publisher
    cdef uint32_t last_length

    cdef int expiry_of(self, Entry* e) except -1
    cdef Message message(self, uint32_t i)


cdef class Gathering:
    """A Batch being built from the parts of an index."""
    cdef Batch batch
    cdef uint32_t cap
    cdef uint64_t bytes

    cdef int room(self, uint32_t n) except -1
