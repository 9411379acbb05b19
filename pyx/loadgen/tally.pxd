# cython: language_level=3
"""Counts of finished requests: see the .pyx."""
from libc.stdint cimport uint32_t


cdef class Tally:
    cdef readonly str request_type
    cdef readonly str name
    cdef list _times
    cdef list _lengths

    cpdef add(self, ms, uint32_t length)
