# cython: language_level=3
"""Which descriptors are ready: the face behind which a system's way of asking lies.

A descriptor is watched under a tag, which each of its events brings back. What is still ready is named again
(level-triggered). Workers use `pyx.io.epoll`; another one is a file of its own, and is given to `Reactor`.
"""
from libc.stdint cimport uint32_t


cdef enum:                      # the bits of poll(2) and epoll(7)
    READABLE = 0x01
    WRITABLE = 0x04
    FAILED = 0x08               # named whether it is asked for or not
    HUNG_UP = 0x10              # likewise


cdef struct Event:
    size_t tag
    uint32_t what


cdef class Poller:
    # All raise OSError, and NotImplementedError where a subclass lacks one.
    cdef int add(self, int fd, uint32_t what, size_t tag) except -1
    cdef int change(self, int fd, uint32_t what, size_t tag) except -1
    # nothing if it is not watched
    cdef int remove(self, int fd) except -1
    # how many of `most` there are; waits for the first one for so long, 0: not at all. A signal does not end it
    cdef int wait(self, Event* events, int most, int timeout_ms) except -1
