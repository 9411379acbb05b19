"""The poller of Linux: epoll(7)."""
cimport cython
from libc.stdint cimport uint32_t
from libc.string cimport memset

from pyx.core.kernel cimport (
    EINTR, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, close, epoll_create1, epoll_ctl, epoll_event,
    epoll_wait, errno,
)
from pyx.core.work cimport SYSTEM, work
from pyx.io.poller cimport Event, Poller

cdef enum:
    EVENTS = 512                # per epoll_wait


@cython.final
cdef class Epoll(Poller):
    """One epoll set; its descriptor is readable when something is ready."""

    cdef int descriptor

    def __cinit__(self):
        self.descriptor = epoll_create1(EPOLL_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(errno, "epoll_create1")

    def __dealloc__(self):
        if self.descriptor >= 0:
            close(self.descriptor)

    def fileno(self):
        return self.descriptor

    cdef int control(self, int how, int fd, uint32_t what, size_t tag) except -1:
        cdef epoll_event ev
        work(SYSTEM)
        memset(&ev, 0, sizeof(ev))
        ev.events = what
        ev.data.ptr = <void*>tag
        if epoll_ctl(self.descriptor, how, fd, &ev) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef int add(self, int fd, uint32_t what, size_t tag) except -1:
        return self.control(EPOLL_CTL_ADD, fd, what, tag)

    cdef int change(self, int fd, uint32_t what, size_t tag) except -1:
        return self.control(EPOLL_CTL_MOD, fd, what, tag)

    cdef int remove(self, int fd) except -1:
        epoll_ctl(self.descriptor, EPOLL_CTL_DEL, fd, NULL)     # no error if it is not watched
        return 0

    cdef int wait(self, Event* events, int most, int timeout_ms) except -1:
        cdef epoll_event[EVENTS] found
        cdef int n, i
        most = min(most, <int>EVENTS)
        if timeout_ms:
            with nogil:
                n = epoll_wait(self.descriptor, found, most, timeout_ms)
        else:
            n = epoll_wait(self.descriptor, found, most, 0)
        if n < 0:
            if errno == EINTR:      # waiting on would keep the loop from the signal, and from its timers
                return 0
            raise OSError(errno, "epoll_wait")
        for i in range(n):
            events[i].tag = <size_t>found[i].data.ptr
            events[i].what = found[i].events
        return n
