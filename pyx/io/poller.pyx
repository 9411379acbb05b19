"""Which descriptors are ready: see poller.pxd."""


cdef class Poller:
    """What a poller must have. `fileno`: readable when a `wait` would name something; -1: there is no such one."""

    def fileno(self):
        return -1

    cdef int add(self, int fd, uint32_t what, size_t tag) except -1:
        raise NotImplementedError

    cdef int change(self, int fd, uint32_t what, size_t tag) except -1:
        raise NotImplementedError

    cdef void remove(self, int fd) noexcept:
        pass

    cdef int wait(self, Event* events, int most, int timeout_ms) except -1:
        raise NotImplementedError
