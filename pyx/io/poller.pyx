"""Which descriptors are ready: see poller.pxd."""


cdef class Poller:
    """What a poller must have; a subclass has all of it. `fileno`: readable when a `wait` would name something, -1:
    there is no such descriptor."""

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
