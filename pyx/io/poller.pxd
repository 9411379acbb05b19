# cython: language_level=3
"""The poller interface: reports which descriptors are ready, however the operating system is asked.

A descriptor is watched under a tag, which each of its events carries. A descriptor that stays ready is reported again
(level-triggered). Workers use `pyx.io.epoll`; another poller is a file of its own, and is passed to `Reactor`.
"""
from libc.stdint cimport uint32_t


cdef enum:                      # the bits of poll(2) and epoll(7)
    READABLE = 0x01
    WRITABLE = 0x04
    FAILED = 0x08               # reported whether requested or not
    HUNG_UP = 0x10              # likewise


cdef struct Event:
    size_t tag
    uint32_t what


cdef class Poller:
    # All raise OSError; a method that a subclass lacks raises NotImplementedError.
    cdef int add(self, int fd, uint32_t what, size_t tag) except -1
    cdef int change(self, int fd, uint32_t what, size_t tag) except -1
    # no effect if it is not watched
    cdef int remove(self, int fd) except -1
    # stores up to `most` events, returns their number; waits timeout_ms for the first (0: not), also across signals
    cdef int wait(self, Event* events, int most, int timeout_ms) except -1
