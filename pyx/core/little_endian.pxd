# cython: language_level=3
"""Integers of the store and the mesh: little-endian, unchecked. The caller has checked that there is room."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef inline uint8_t* put16(uint8_t* p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t>v
    p[1] = <uint8_t>(v >> 8)
    return p + 2


cdef inline uint8_t* put32(uint8_t* p, uint32_t v) noexcept nogil:
    return put16(put16(p, v & 0xFFFF), v >> 16)


cdef inline uint8_t* put64(uint8_t* p, uint64_t v) noexcept nogil:
    return put32(put32(p, <uint32_t>v), <uint32_t>(v >> 32))


cdef inline uint32_t get16(const uint8_t* p) noexcept nogil:
    return p[0] | <uint32_t>p[1] << 8


cdef inline uint32_t get32(const uint8_t* p) noexcept nogil:
    return get16(p) | get16(p + 2) << 16


cdef inline uint64_t get64(const uint8_t* p) noexcept nogil:
    return get32(p) | <uint64_t>get32(p + 4) << 32
