# cython: language_level=3
"""The match cache: see match_cache.pxd. Each entry has one block with pointers and topic, reused if large enough."""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from pyx.core.work cimport FILTER, PLACE, work
from pyx.matching.filters cimport Filter, Matches

cdef enum:
    BYTES_MAX = 8 << 20                     # of the blocks of all entries
    RESULT_BYTES_MAX = 1 << 20


@cython.auto_pickle(False)
cdef class MatchCache:
    def __dealloc__(self):
        cdef size_t i
        if self.entries is not NULL:
            for i in range(<size_t> 2 * RESULT_SETS):
                free(self.entries[i].matches.filters)
            free(self.entries)
        free(self.large.filters)

    cdef Matches* keep(
        self, uint64_t generation, uint64_t hash_, const uint8_t* topic, size_t length, Filter** filters, size_t count
    ) except NULL:
        """Replace an outdated result, else either one of its set."""
        cdef size_t pointers = count * sizeof(Filter*)
        cdef size_t size = pointers + length
        cdef Result* entry
        cdef Matches* matches
        cdef void* block
        if size > RESULT_BYTES_MAX:
            matches = &self.large
            block = realloc(matches.filters, size)
            if block is NULL:
                raise MemoryError()
        else:
            if self.entries is NULL:
                self.entries = <Result*> calloc(2 * RESULT_SETS, sizeof(Result))
                if self.entries is NULL:
                    raise MemoryError()
            entry = self.entries + 2 * (hash_ >> 16 & (RESULT_SETS - 1))
            if entry.matches.generation == generation:
                if entry[1].matches.generation != generation or hash_ >> 40 & 1:
                    entry += 1
            matches = &entry.matches
            block = matches.filters
            if size > entry.capacity or size + 256 < entry.capacity >> 1:
                matches.generation = 0
                size = (size + 39) & ~<size_t> 15 | 8            # as malloc would round it
                block = malloc(size)
                if block is NULL:
                    raise MemoryError()
                free(matches.filters)
                matches.filters = <Filter**> block
                self.bytes += size
                self.bytes -= entry.capacity
                entry.capacity = <uint32_t> size
                if self.bytes > BYTES_MAX:
                    self.evict(entry)
        matches.filters = <Filter**> block
        work(FILTER + count * PLACE)
        if pointers:
            memcpy(block, filters, pointers)
        memcpy(<char*> block + pointers, topic, length)
        matches.topic = <const uint8_t*> block + pointers
        matches.topic_length = <uint16_t> length
        matches.topic_hash = hash_
        matches.count = <uint32_t> count
        matches.generation = generation
        return matches

    cdef void evict(self, Result* spared) noexcept:
        cdef Result* entry
        while self.bytes > BYTES_MAX // 2:
            entry = &self.entries[self.hand]
            work(PLACE)
            self.hand = (self.hand + 1) & (2 * RESULT_SETS - 1)
            if entry == spared:
                continue
            free(entry.matches.filters)
            entry.matches.filters = NULL
            entry.matches.generation = 0
            self.bytes -= entry.capacity
            entry.capacity = 0
