# cython: language_level=3
"""The messages that a session has had for its client, while another host may have some of them for it as well."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.hashing cimport HashKey, hash_bytes
from pyx.core.work cimport KIBI, work
from pyx.protocol.message cimport Content


cdef enum:
    SEEN_MAX = 16384            # marks of each half: 256 KiB
    SEEN_ALL_MAX = 1 << 23      # places of all sessions, about: 64 MiB; beyond it, halves are as small as they can be
    SEEN_LEAST = 8              # what a half may hold even then


cdef struct Half:               # an open table: linear probing, at most half full
    uint64_t* places            # 0: free
    uint32_t cap
    uint32_t count


cdef class SeenMessages:
    """The last messages, 16,384 at least and twice as many at most: when the newer half is full, the older one is
    forgotten."""
    cdef Half newer
    cdef Half older
    cdef readonly bint has_forgotten

    cdef bint has(self, uint64_t mark) noexcept
    cdef int add(self, uint64_t mark) except -1
    cdef bint is_again(self, uint64_t mark) except -1           # has it been added before? It is now
    cdef int grow(self) except -1
    cdef bytes packed(self)                                     # all of them, the older ones first
    cdef int unpack(self, const uint8_t* p, uint32_t n) except -1


cdef inline uint64_t mark_of(const Content* c) noexcept:
    # the same on all hosts. Two hosts may give messages the same number, so that it is not enough
    # only C is called: hash_bytes and work
    cdef HashKey key
    cdef uint64_t[4] words
    cdef uint64_t mark
    key.a = key.b = key.c = 0x5DEECE66D1CE4E5B
    words[0] = c.number
    words[1] = c.topic_len
    words[2] = hash_bytes(&key, c.topic, c.topic_len)
    words[3] = hash_bytes(&key, c.payload, c.payload_len)
    work(c.payload_len // 1024 * KIBI)
    mark = hash_bytes(&key, <const uint8_t*>words, sizeof(words))
    return mark if mark else 1
