"""One index of the log in which is looked for what nobody wants any more (pyx.delivery.bounding says how)."""
cimport cython
from libc.stdlib cimport free


@cython.final
cdef class Sweep:
    """An index in which is looked for what nobody wants any more: in slices, where those who might are many."""

    def __dealloc__(self):
        free(self.slots)
