# cython: language_level=3
"""Cache of match results by topic: 8192 entries in sets of two, validated by generation, hash and the whole topic.

Matches* is valid until the next keep. All blocks together are bounded to 8 MB; a result of more than 1 MB is not kept,
only returned.
"""
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from pyx.matching.filters cimport Filter, Matches


cdef enum:
    RESULT_SETS = 4096                  # of two entries


cdef struct Result:
    Matches matches             # valid if its generation is the current one (which is never 0)
    uint32_t capacity           # bytes of the block that has filters and topic; matches.filters is its address


@cython.final
cdef class MatchCache:
    cdef Result* entries                # NULL until there is one
    cdef size_t bytes                   # of all blocks
    cdef size_t hand                    # where the next eviction begins
    cdef Matches large                  # a result too large to be kept

    cdef Matches* keep(
        self, uint64_t generation, uint64_t hash_, const uint8_t* topic, size_t length, Filter** filters, size_t count
    ) except NULL
    cdef void evict(self, Result* spared) noexcept

    cdef inline Matches* lookup(
        self, uint64_t generation, uint64_t hash_, const uint8_t* topic, size_t length
    ) noexcept:
        cdef Result* entry
        cdef int _
        if self.entries is NULL:
            return NULL
        entry = self.entries + 2 * (hash_ >> 16 & (RESULT_SETS - 1))
        for _ in range(2):
            if entry.matches.topic_hash == hash_ and entry.matches.generation == generation:
                if entry.matches.topic_length == length and memcmp(entry.matches.topic, topic, length) == 0:
                    return &entry.matches
            entry += 1
        return NULL
