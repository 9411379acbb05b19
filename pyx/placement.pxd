# cython: language_level=3
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t

cdef int owner_of(const uint8_t* topic, size_t n, int workers) noexcept nogil
