# cython: language_level=3
"""Trie that finds the wildcard filters that match a topic, without recursion.

    Node (one level)         here  = the Filter that ends with this level          sport/tennis    at sport -> tennis
      |  |                   multi = the Filter that ends with # below this level   sport/tennis/#  at sport -> tennis
      |  plus -> Node        the level +, at most one per Node
      children               literal levels, in one hash table for all Nodes, keyed (parent, text); the text is compared

A Node with only one Filter below it is not unfolded: `here` is that Filter and `tail` the offset in its text of the
level after this one. Most filters of a large population (a device's own topics) thus cost one Node whatever their
depth, and the rest of such a filter is compared in one pass over its text. A second filter with the same beginning
unfolds it one level at a time.

    plant(device/7/+/state):     root -> device -> 7 (here = device/7/+/state, tail at "+/state")
    plant(device/7/+/alarm):     root -> device -> 7 -> + -> state (here)
                                                          -> alarm (here)

match walks the trie breadth first, one level of the topic at a time, with the set of active Nodes in an array: no
recursion. A Node can be reached in one way only, so the set never has a Node twice and is never larger than the number
of wildcard filters; the walk ends when it is empty, however deep the topic. For the same reason results have no
duplicates.
"""
from os import urandom

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from pyx.core.hashing cimport HashKey, hash_bytes, hash_fold
from pyx.core.tables cimport (
    Probe, Walk, table_first, table_free, table_init, table_insert, table_next, table_remove, table_walk,
)
from pyx.core.work cimport FILTER, NODE, work
from pyx.matching.filters cimport Filter, filter_text

cdef enum:
    COLD = 4 * NODE             # in a wide walk the Nodes are in no cache


cdef inline const uint8_t* level_end(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and p[0] != c'/':
        p += 1
    return p


cdef bint tail_matches(const uint8_t* f, const uint8_t* f_end, const uint8_t* t, const uint8_t* t_end) noexcept nogil:
    """Whether the rest of a filter matches the rest of a topic. Both begin at a level; t = NULL: no more levels."""
    while True:
        if f < f_end and f[0] == c'#':
            return True
        if t is NULL:
            return False
        if f < f_end and f[0] == c'+':
            f += 1
            t = level_end(t, t_end)
        else:
            while f < f_end and f[0] != c'/':
                if t == t_end or t[0] != f[0]:
                    return False
                f += 1
                t += 1
        if f == f_end:
            return t == t_end
        f += 1                              # the topic's level must end here too: the filter's may be only a prefix
        if t == t_end:
            t = NULL
        elif t[0] == c'/':
            t += 1
        else:
            return False


cdef void free_pluses(const Node* node) noexcept:
    """Free the Nodes that are not in the table; their literal children are in it."""
    cdef Node* plus = node.plus
    cdef Node* following
    while plus is not NULL:
        following = plus.plus
        free(plus)
        plus = following


@cython.auto_pickle(False)
cdef class Trie:
    def __cinit__(self):
        cdef bytes seed = urandom(sizeof(HashKey))
        memcpy(&self.key, <const char*> seed, sizeof(HashKey))
        table_init(&self.nodes)

    def __dealloc__(self):
        cdef Walk walk
        cdef Node* node
        memset(&walk, 0, sizeof(Walk))
        free_pluses(&self.root)
        while self.nodes.directory is not NULL:
            node = <Node*> table_walk(&self.nodes, &walk)
            if node is NULL:
                break
            free_pluses(node)
            free(node)
        table_free(&self.nodes)
        free(self.frontier)
        free(self.found)

    cdef uint64_t node_hash(self, const Node* parent, const uint8_t* level, size_t length) noexcept:
        return hash_fold(hash_bytes(&self.key, level, length) + <uint64_t> parent, 0x9E3779B97F4A7C15ULL)

    cdef Node* child(self, const Node* parent, const uint8_t* level, size_t length, uint64_t hash_) noexcept:
        cdef Probe probe
        cdef Node* node = <Node*> table_first(&self.nodes, hash_, &probe)
        while node is not NULL:
            if node.hash == hash_ and node.parent == parent and node.length == length:
                if memcmp(node + 1, level, length) == 0:
                    return node
            node = <Node*> table_next(&probe)
        return NULL

    cdef int attach(self, Node* parent, Filter* f, size_t at) except -1:
        """Add f below a Node that has no place for it yet: `at` is the offset of the level after the parent's."""
        cdef const uint8_t* text = <const uint8_t*> filter_text(f)
        cdef const uint8_t* level = text + at
        cdef const uint8_t* text_end = text + f.length
        cdef const uint8_t* end = level_end(level, text_end)
        cdef size_t length = end - level
        cdef bint plus = length == 1 and level[0] == c'+'
        cdef Node* node
        if length == 1 and level[0] == c'#':
            parent.multi = f
            return 0
        node = <Node*> calloc(1, sizeof(Node) + length)
        if node is NULL:
            raise MemoryError()
        node.parent = parent
        node.here = f
        node.length = <uint16_t> length
        node.tail = 0 if end == text_end else <uint16_t> (end + 1 - text)
        memcpy(node + 1, level, length)
        if plus:
            parent.plus = node
            return 0
        node.hash = self.node_hash(parent, level, length)
        try:
            table_insert(&self.nodes, node)
        except MemoryError:
            free(node)
            raise
        parent.children += 1
        return 0

    cdef int plant(self, Filter* f) except -1:
        """Raises MemoryError without adding f. Others may have been unfolded for it, which changes no result."""
        cdef const uint8_t* text = <const uint8_t*> filter_text(f)
        cdef const uint8_t* text_end = text + f.length
        cdef const uint8_t* level = text
        cdef const uint8_t* end
        cdef Node* node = &self.root
        cdef Node* following
        cdef Filter* folded
        cdef uint16_t tail
        cdef size_t length
        work(FILTER)
        while True:
            work(NODE)
            end = level_end(level, text_end)
            length = end - level
            if length == 1 and level[0] == c'#':
                node.multi = f
                return 0
            if length == 1 and level[0] == c'+':
                following = node.plus
            else:
                following = self.child(node, level, length, self.node_hash(node, level, length))
            if following is NULL:
                return self.attach(node, f, level - text)
            node = following
            if node.tail:                           # the only Node of another filter, which moves one level down
                folded = node.here
                tail = node.tail
                self.attach(node, folded, tail)
                node.here = NULL
                node.tail = 0
            if end == text_end:
                node.here = f
                return 0
            level = end + 1

    cdef void uproot(self, Filter* f) noexcept:
        cdef const uint8_t* text = <const uint8_t*> filter_text(f)
        cdef const uint8_t* text_end = text + f.length
        cdef const uint8_t* level = text
        cdef const uint8_t* end
        cdef Node* node = &self.root
        cdef Node* parent
        cdef size_t length
        work(FILTER)
        while True:
            work(2 * NODE)
            end = level_end(level, text_end)
            length = end - level
            if length == 1 and level[0] == c'#':
                node.multi = NULL
                break
            if length == 1 and level[0] == c'+':
                node = node.plus
            else:
                node = self.child(node, level, length, self.node_hash(node, level, length))
            if node.here == f:
                node.here = NULL
                node.tail = 0
                break
            level = end + 1
        while node != &self.root and node.children == 0:
            if node.here is not NULL or node.multi is not NULL or node.plus is not NULL:
                break
            parent = node.parent
            if parent.plus == node:
                parent.plus = NULL
            else:
                table_remove(&self.nodes, node)
                parent.children -= 1
            free(node)
            node = parent

    cdef int reserve(self, size_t active) except -1:
        """Make room for what one level can add: two active Nodes and three Filters for each active one."""
        cdef size_t capacity, old
        cdef void* block
        if self.found_count + 3 * active > self.found_capacity:
            capacity = 2 * (self.found_count + 3 * active) + 16
            block = realloc(self.found, capacity * sizeof(Filter*))
            if block is NULL:
                raise MemoryError()
            self.found = <Filter**> block
            self.found_capacity = capacity
        if 2 * active > self.frontier_capacity:
            capacity = 4 * active + 16
            block = malloc(2 * capacity * sizeof(Node*))
            if block is NULL:
                raise MemoryError()
            if self.frontier is not NULL:           # only the half in use has contents: both are copied
                old = self.frontier_capacity
                memcpy(block, self.frontier, old * sizeof(Node*))
                memcpy(<Node**> block + capacity, self.frontier + old, old * sizeof(Node*))
            free(self.frontier)
            self.frontier = <Node**> block
            self.frontier_capacity = capacity
        return 0

    cdef int walk(self, const uint8_t* topic, size_t length) except -1:
        cdef const uint8_t* topic_end = topic + length
        cdef const uint8_t* level = topic
        cdef const uint8_t* end
        cdef const uint8_t* rest
        cdef size_t active = 1, i, upcoming
        cdef unsigned int half = 0, which
        cdef uint64_t level_hash
        cdef Node* node
        cdef Node* following
        cdef Node** now
        cdef Node** later
        cdef bint hidden = topic[0] == c'$'         # [MQTT-4.7.2-1]
        self.frontier[0] = &self.root
        while active:
            work(active * NODE)
            self.walked += active * COLD
            self.reserve(active)
            now = self.frontier + half * self.frontier_capacity
            later = self.frontier + (1 - half) * self.frontier_capacity
            if level is NULL:
                for i in range(active):
                    node = now[i]
                    if node.here is not NULL:
                        self.found[self.found_count] = node.here
                        self.found_count += 1
                    if node.multi is not NULL:
                        self.found[self.found_count] = node.multi
                        self.found_count += 1
                break
            end = level_end(level, topic_end)
            rest = end + 1 if end < topic_end else NULL
            level_hash = hash_bytes(&self.key, level, end - level)
            upcoming = 0
            for i in range(active):
                node = now[i]
                if node.multi is not NULL and not hidden:
                    self.found[self.found_count] = node.multi
                    self.found_count += 1
                for which in range(2):
                    if which:
                        following = NULL if hidden else node.plus
                    elif node.children:
                        following = self.child(
                            node, level, end - level, hash_fold(level_hash + <uint64_t> node, 0x9E3779B97F4A7C15ULL)
                        )
                    else:
                        continue
                    if following is NULL:
                        continue
                    if following.tail == 0:
                        later[upcoming] = following
                        upcoming += 1
                    elif tail_matches(
                        <const uint8_t*> filter_text(following.here) + following.tail,
                        <const uint8_t*> filter_text(following.here) + following.here.length,
                        rest, topic_end,
                    ):
                        self.found[self.found_count] = following.here
                        self.found_count += 1
            hidden = False
            active = upcoming
            half = 1 - half
            level = rest
        return 0
