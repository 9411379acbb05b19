# cython: language_level=3
"""Trie of the wildcard filters [MQTT-4.7.1]: finds those that match a topic.

Call order: plant once for a new Filter with wildcards, uproot before it is freed. walk appends to
found[0 .. found_count), which the caller empties. Filters are borrowed; their text must not move.
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.hashing cimport HashKey
from pyx.core.tables cimport Table
from pyx.matching.filters cimport Filter


cdef struct Node:               # a level of the trie: see trie.pyx
    uint64_t hash
    Node* parent
    Node* plus
    Filter* here
    Filter* multi
    uint32_t children
    uint16_t length
    uint16_t tail
    # the level's text follows


@cython.final
cdef class Trie:
    cdef Filter** found
    cdef size_t found_count

    cdef HashKey key
    cdef Table nodes                    # every literal level, by (parent, text)
    cdef Node root
    cdef Node** frontier                # two times frontier_capacity: the active Nodes of this level and of the next
    cdef size_t frontier_capacity
    cdef size_t found_capacity
    cdef uint64_t walked                # nominal ns of work of all walks: only rises

    cdef int plant(self, Filter* f) except -1                   # raises MemoryError, without adding the filter
    cdef void uproot(self, Filter* f) noexcept
    cdef int walk(self, const uint8_t* topic, size_t length) except -1
    cdef int reserve(self, size_t active) except -1             # room in found for 3 x active, in frontier for 2 x

    cdef uint64_t node_hash(self, const Node* parent, const uint8_t* level, size_t length) noexcept
    cdef Node* child(self, const Node* parent, const uint8_t* level, size_t length, uint64_t hash_) noexcept
    cdef int attach(self, Node* parent, Filter* f, size_t at) except -1
