"""The poller interface: see poller.pxd."""


cdef class Poller:
    """The base class of pollers; a subclass implements every method. `fileno` is readable when `wait` would report an
    event; -1: there is no such descriptor."""

    def fileno(self):
        return -1

    cdef int add(self, int fd, uint32_t what, size_t tag) except -1:
        raise NotImplementedError

    cdef int change(self, int fd, uint32_t what, size_t tag) except -1:
        raise NotImplementedError

    cdef int remove(self, int fd) except -1:
        raise NotImplementedError

    cdef int wait(self, Event* events, int most, int timeout_ms) except -1:
        raise NotImplementedError
