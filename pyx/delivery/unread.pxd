# cython: language_level=3
"""The directory of unread messages of a session with many filters: see the .pyx."""
from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from pyx.storage.records cimport Batch, LogKey


cdef struct Waiting:
    uint64_t position
    uint64_t end                # running sum of bytes, including its own; while it is gathered: its own bytes
    PyObject* key               # strong: LogKey of an index that contains it


cdef class Unread:
    cdef Waiting* items
    cdef uint32_t head
    cdef uint32_t tail
    cdef uint32_t cap
    cdef uint64_t before        # running sum of bytes before the first one
    cdef uint32_t grown         # messages since the last check of the session's bounds
    cdef uint64_t grown_bytes

    cdef uint32_t first_after(self, uint64_t position) noexcept
    cdef uint64_t bytes_after(self, uint32_t at) noexcept       # bytes of the messages from place `at` on
    cdef int add(self, uint64_t position, uint64_t size, LogKey key) except -1      # append it
    cdef int room(self) except -1                               # make room for one more
    cdef int trim(self, uint64_t up_to) except -1               # forget messages at or before this position
    cdef int drop(self, uint64_t after) except -1               # forget messages behind this position
    cdef bint lists(self, LogKey key) noexcept                  # does any of its messages refer to that index?
    # read the first messages, with at most `looks` reads of the store; `reached`: position up to which all were read
    cdef Batch read(self, object store, uint32_t looks, uint64_t bytes_max, uint64_t* reached)
    # gather adds messages in any order; settle sorts them, once for each position, and appends those of `later`
    cdef int gather(self, uint64_t position, uint64_t size, LogKey key) except -1
    cdef int settle(self, Unread later) except -1


cdef class Search:              # for unread messages of a session, in the indexes of the log (pyx.delivery.bounding)
    cdef list places            # (LogKey, position to begin behind, last position) still to be read, last first
    cdef Unread found
    cdef set positions          # of the messages found: a message is in the index of each filter that matched it
    cdef uint64_t up_to         # behind this position the session's `Unread` has everything
    cdef bint anew              # it must begin, or begin again
