# cython: language_level=3
"""Arrangements of wildcards in Topic Filters: `a/+/c` and `x/+/z` have the same one. At most one filter of each matches
a topic, so their number bounds the result of a match."""
cimport cython
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pyx.core.hashing cimport HashKey, hash_fold
from pyx.core.tables cimport (
    Probe, Walk, table_first, table_free, table_init, table_insert, table_next, table_remove, table_walk,
)
from pyx.matching.filters cimport Filter, filter_text
from pyx.protocol.topics cimport has_wildcard


cdef uint64_t arrangement_hash(const HashKey* key, const uint8_t* text, size_t length) noexcept nogil:
    """Return the hash of a valid Topic Filter's arrangement: equal for `a/+/c` and `x/+/z`."""
    cdef inline uint64_t hash_ = key.a
    cdef size_t i = 0
    while i < length:
        hash_ = hash_fold(hash_ ^ (text[i] if text[i] == c'+' or text[i] == c'#' else c'/'), key.b | 1)
        while i < length and text[i] != c'/':
            i += 1
        i += 1
    if text[length - 1] == c'/':            # the last level is empty
        hash_ = hash_fold(hash_ ^ c'/', key.b | 1)
    return hash_


@cython.final
@cython.auto_pickle(False)
cdef class Arrangements:
    """The arrangements of one set of filters."""

    def __cinit__(self):
        table_init(&self.table)

    def __dealloc__(self):
        cdef Walk walk
        cdef Arrangement* a
        memset(&walk, 0, sizeof(Walk))
        while self.table.directory is not NULL:
            a = <Arrangement*> table_walk(&self.table, &walk)
            if a is NULL:
                break
            free(a)
        table_free(&self.table)

    cdef Arrangement* arrangement(self, uint64_t hash_) noexcept:
        cdef Probe probe
        cdef Arrangement* a = <Arrangement*> table_first(&self.table, hash_, &probe)
        while a is not NULL and a.hash != hash_:
            a = <Arrangement*> table_next(&probe)
        return a

    cdef int arrange(self, const Filter* f) except -1:
        cdef uint64_t hash_ = arrangement_hash(&self.key, <const uint8_t*> filter_text(f), f.length)
        cdef Arrangement* a = self.arrangement(hash_)
        if a is NULL:
            a = <Arrangement*> calloc(1, sizeof(Arrangement))
            if a is NULL:
                raise MemoryError()
            a.hash = hash_
            try:
                table_insert(&self.table, a)
            except MemoryError:
                free(a)
                raise
        a.filters += 1
        return 0

    cdef void disarrange(self, const Filter* f) noexcept:
        cdef Arrangement* a = self.arrangement(arrangement_hash(&self.key, <const uint8_t*> filter_text(f), f.length))
        a.filters -= 1
        if a.filters == 0:
            table_remove(&self.table, a)
            free(a)

    def brings(self, const uint8_t[::1] text not None):
        """Return whether this valid Topic Filter (without $share) has wildcards in an arrangement of its own."""
        cdef size_t length = text.shape[0]
        if not has_wildcard(&text[0], length):
            return False
        return self.arrangement(arrangement_hash(&self.key, &text[0], length)) is NULL

    @property
    def count(self):
        """Number of arrangements: at most one filter of each matches a topic."""
        return self.table.count
