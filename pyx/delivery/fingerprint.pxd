# cython: language_level=3
"""Whether two messages are one, on one worker: two hosts may give messages the same number."""
from libc.stdint cimport uint8_t, uint64_t

from pyx.core.hashing cimport HashKey, hash_bytes
from pyx.core.work cimport KIBI, work
from pyx.protocol.message cimport Content


cdef inline uint64_t fingerprint(const HashKey* key, const Content* c) noexcept:
    # only C is called: hash_bytes and work
    cdef uint64_t[4] words
    words[0] = c.number
    words[1] = c.topic_len
    words[2] = hash_bytes(key, c.topic, c.topic_len)
    words[3] = hash_bytes(key, c.payload, c.payload_len)
    work(c.payload_len // 1024 * KIBI)
    return hash_bytes(key, <const uint8_t*>words, sizeof(words))
