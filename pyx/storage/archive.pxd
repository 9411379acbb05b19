# cython: language_level=3
"""Gathering of messages for the archive: see the .pyx.

Call order: count_from, at start. Per publish: rule_of -> append. Per commit: take, by the store
(`leveldb_store.archive.archive`), and when the taken blocks are durable: settled.
"""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.protocol.message cimport Content


cdef enum:
    LEVELS_MAX = 8                  # leveldb_store.format.archive_schema
    LEVEL_BYTES_MAX = 255
    MANY_LEVELS = 0xFF
    BLOCK_FORMAT = 1
    BLOCK_HEAD_BYTES = 30           # without the levels
    BLOCK_KEY_BYTES = 12            # big endian: family, rule, origin, last number
    KNOWN_TOPICS = 8192             # topics whose rule is cached


cdef struct Gathered:               # the block being filled for a rule
    uint8_t* at                     # its records
    uint64_t first                  # numbers
    uint64_t last
    uint32_t size
    uint32_t cap
    uint32_t count
    uint32_t[LEVELS_MAX] level_at   # offsets of the first levels of its topics
    uint8_t[LEVELS_MAX] level_bytes
    uint8_t levels                  # their number, or MANY_LEVELS
    uint64_t messages_before        # running counts of its sequence
    uint64_t bytes_before


cdef struct Known:                  # a topic's cached rule
    uint64_t hash
    uint32_t length                 # of the topic; 0 = empty
    int32_t rule


cdef class Archiver:
    cdef readonly list filters      # in the order of the configuration
    cdef Gathered* gathered         # one for each
    cdef uint32_t rules
    cdef Known* known
    cdef list sealed                # full blocks
    cdef public uint64_t pending_bytes_max
    cdef readonly uint64_t pending_bytes    # gathered or handed over, and not durable
    cdef readonly uint64_t messages         # archived
    cdef readonly uint64_t record_bytes     # size of their records

    # returns the place of the rule that archives this topic, -1 = none; hash_: of the topic, with a secret key
    cdef int32_t rule_of(self, const uint8_t* topic, uint32_t length, uint64_t hash_) except -2
    cdef int append(self, int32_t rule, const Content* c, object publisher, uint32_t matches) except -1
    cdef int note_level(self, Gathered* g, const uint8_t* topic, uint32_t length, uint32_t at) noexcept
    cdef int seal(self, uint32_t rule) except -1
