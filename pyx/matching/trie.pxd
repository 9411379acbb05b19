# cython: language_level=3
"""The wildcard filters as a trie [MQTT-4.7.1]: which of them match a topic.

Call order: plant once for a Filter with wildcards that is not there yet, uproot before it is freed. walk appends to
found[0 .. found_count), which is the caller's to empty. Filters are borrowed; their text must stay where it is.
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.hashing cimport HashKey
from pyx.core.tables cimport Table
from pyx.matching.filters cimport Filter


cdef struct Node:               # a level of the trie: see subscriptions.pyx
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
    cdef uint64_t walked                # ns of work, nominal, that all walks have cost: only rises

    cdef int plant(self, Filter* f) except -1                   # raises MemoryError, the filter nowhere
    cdef void uproot(self, Filter* f) noexcept
    cdef int walk(self, const uint8_t* topic, size_t length) except -1
    cdef int reserve(self, size_t active) except -1             # room in found for 3 x active, in frontier for 2 x

    cdef uint64_t node_hash(self, const Node* parent, const uint8_t* level, size_t length) noexcept
    cdef Node* child(self, const Node* parent, const uint8_t* level, size_t length, uint64_t hash_) noexcept
    cdef int attach(self, Node* parent, Filter* f, size_t at) except -1
