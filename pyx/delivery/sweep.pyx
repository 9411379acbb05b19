"""The sweep of one index of the log for messages that are no longer needed (see pyx.delivery.sweeping)."""
cimport cython
from libc.stdlib cimport free


@cython.final
cdef class Sweep:
    """The sweep of one index for messages that are no longer needed: in slices, if it has many subscribers."""

    def __dealloc__(self):
        free(self.slots)
