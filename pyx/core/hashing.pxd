# cython: language_level=3
"""A keyed 64-bit hash of a byte string, for tables whose keys come from the network.

Multiply-and-fold (64 x 64 -> 128 bits, halves xored) over 16 bytes at a time, each word mixed with a secret before it
is multiplied: without the key nobody can choose colliding strings. Not a cryptographic hash: tables compare the
text itself as well. Reads only [p, p + n).
"""
from libc.stdint cimport uint8_t, uint64_t


cdef extern from *:
    """
    #ifndef MQTTD_HASHING
    #define MQTTD_HASHING
    #include <stdint.h>
    #include <string.h>

    typedef struct { uint64_t a, b, c; } HashKey;

    static inline uint64_t hash_fold(uint64_t x, uint64_t y) {
        unsigned __int128 product = (unsigned __int128)x * y;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }

    static inline uint64_t hash_word8(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
    static inline uint64_t hash_word4(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }

    /* Short strings and the last piece of long ones are covered by two reads that may overlap: no byte loop. */
    static inline uint64_t hash_bytes(const HashKey *key, const uint8_t *p, size_t n) {
        uint64_t state = key->a ^ n, first = 0, second = 0;
        const uint8_t *end = p + n;
        if (n > 16) {
            for (; end - p > 16; p += 16)
                state = hash_fold(hash_word8(p) ^ key->b, hash_word8(p + 8) ^ state);
            first = hash_word8(end - 16);
            second = hash_word8(end - 8);
        } else if (n >= 8) {
            first = hash_word8(p);
            second = hash_word8(end - 8);
        } else if (n >= 4) {
            first = hash_word4(p);
            second = hash_word4(end - 4);
        } else if (n) {
            first = (uint64_t)p[0] << 16 | (uint64_t)p[n >> 1] << 8 | end[-1];
        }
        state = hash_fold(first ^ key->b, second ^ state);
        return hash_fold(state ^ key->c, n ^ 0x9E3779B97F4A7C15u);
    }
    #endif
    """
    ctypedef struct HashKey:
        uint64_t a
        uint64_t b
        uint64_t c

    uint64_t hash_fold(uint64_t x, uint64_t y) noexcept nogil
    uint64_t hash_bytes(const HashKey* key, const uint8_t* p, size_t n) noexcept nogil
    void prefetch "__builtin_prefetch" (const void* p) noexcept nogil
