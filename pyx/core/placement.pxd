# cython: language_level=3
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef int owner_of(const uint8_t* topic, size_t n, int workers) noexcept nogil
# the same in every process; never 0
cdef uint64_t fixed_hash(const uint8_t* p, size_t n) noexcept nogil


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    """The SplitMix64 finalizer."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu
    return x ^ x >> 31
