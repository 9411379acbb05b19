# cython: language_level=3
"""Arrangements of wildcards: see the .pyx."""
from libc.stdint cimport uint64_t

from pyx.core.hashing cimport HashKey
from pyx.core.tables cimport Table
from pyx.matching.filters cimport Filter


cdef struct Arrangement:        # which levels are +, number of levels, whether # is the last
    uint64_t hash
    uint64_t filters            # number of filters with this arrangement


cdef class Arrangements:
    cdef HashKey key
    cdef Table table

    cdef Arrangement* arrangement(self, uint64_t hash_) noexcept       # NULL: no filter has it
    cdef int arrange(self, const Filter* f) except -1           # adds a wildcard filter
    cdef void disarrange(self, const Filter* f) noexcept        # removes it
