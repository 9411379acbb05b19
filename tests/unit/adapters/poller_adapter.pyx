# cython: language_level=3
"""A second poller, for the tests alone: poll(2), which has no descriptor of its own."""
from libc.stdint cimport uint32_t

from pyx.io.poller cimport Event, Poller

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* fds, unsigned long n, int timeout)

cdef enum:
    WATCHED_MAX = 1024


cdef class Poll(Poller):
    """So many descriptors at most; the one named first is named last in the next round."""

    cdef pollfd[WATCHED_MAX] fds
    cdef size_t[WATCHED_MAX] tags
    cdef int count
    cdef int first

    cdef int find(self, int fd) noexcept:
        cdef int i
        for i in range(self.count):
            if self.fds[i].fd == fd:
                return i
        return -1

    cdef int add(self, int fd, uint32_t what, size_t tag) except -1:
        if self.count == WATCHED_MAX:
            raise OSError("too many descriptors")
        self.fds[self.count].fd = fd
        self.count += 1
        return self.change(fd, what, tag)

    cdef int change(self, int fd, uint32_t what, size_t tag) except -1:
        cdef int i = self.find(fd)
        if i < 0:
            raise OSError("not watched")
        self.fds[i].events = <short>what
        self.tags[i] = tag
        return 0

    cdef int remove(self, int fd) except -1:
        cdef int i = self.find(fd)
        if i >= 0:
            self.count -= 1
            self.fds[i] = self.fds[self.count]
            self.tags[i] = self.tags[self.count]
        return 0

    cdef int wait(self, Event* events, int most, int timeout_ms) except -1:
        cdef int i, at, n = 0
        poll(self.fds, <unsigned long>self.count, timeout_ms)
        for i in range(self.count):
            at = (self.first + i) % self.count
            if self.fds[at].revents and n < most:
                events[n].tag = self.tags[at]
                events[n].what = <uint32_t>self.fds[at].revents
                n += 1
        if n:
            self.first = (self.first + 1) % self.count
        return n
