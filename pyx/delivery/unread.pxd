# cython: language_level=3
"""What a session with many filters has not read: see the .pyx."""
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from pyx.storage.records cimport Batch, LogKey


cdef struct Waiting:
    uint64_t position
    uint64_t end                # running bytes up to and with it; while it is gathered: its own bytes
    PyObject* key               # strong: LogKey of an index that lists it


cdef class Unread:
    cdef Waiting* items
    cdef uint32_t head
    cdef uint32_t tail
    cdef uint32_t cap
    cdef uint64_t before        # running bytes before the first one
    cdef uint32_t grown         # messages since the session's bounds were looked at
    cdef uint64_t grown_bytes

    cdef uint32_t first_after(self, uint64_t position) noexcept
    cdef uint64_t bytes_after(self, uint32_t at) noexcept       # of those from place `at` on
    cdef int add(self, uint64_t position, uint64_t size, LogKey key) except -1      # behind all others
    cdef int room(self) except -1                               # for one more
    cdef int trim(self, uint64_t up_to) except -1               # forget what lies at or before this position
    cdef int drop(self, uint64_t after) except -1               # ... what lies behind it
    cdef bint lists(self, LogKey key) noexcept                  # does it find any of them in that index
    # of the first ones what can be read with so many looks into the store; the position up to which that is all
    cdef Batch read(self, object store, uint32_t looks, uint64_t bytes_max, uint64_t* reached)
    # what was gathered in any order, once for each position, in front of what `later` has
    cdef int gather(self, uint64_t position, uint64_t size, LogKey key) except -1
    cdef int settle(self, Unread later) except -1


cdef class Search:              # for what a session has not read, in the indexes of the log (pyx.delivery.bounding)
    cdef list places            # (LogKey, behind which position, up to which) that are still to be read, last first
    cdef Unread found
    cdef set positions          # of what it has found: a message stands in the index of each filter that matched it
    cdef uint64_t up_to         # behind this position its `Unread` has everything
    cdef bint anew              # it is to begin, or to begin again
