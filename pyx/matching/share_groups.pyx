# cython: language_level=3
"""Share groups by name and by number, with each sibling's members. pyx.delivery.sharing chooses the member."""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from pyx.core.hashing cimport hash_bytes
from pyx.core.placement cimport fixed_hash
from pyx.core.tables cimport Probe, table_first, table_free, table_init, table_insert, table_next, table_remove
from pyx.core.work cimport FILTER, work
from pyx.matching.filters cimport Elsewhere, Filter, Group, filter_text
from pyx.matching.group_members cimport enrolled_forget, enrolled_free
from pyx.matching.subscriber_lists cimport list_free

cdef enum:
    NAME_BYTES_MAX = 65535


cdef void free_group(Group* g) noexcept:
    list_free(&g.members, NULL)
    free(g.elsewhere)
    enrolled_free(g)
    free(g)


@cython.final
@cython.auto_pickle(False)
cdef class ShareGroups:
    """The share groups of one worker. The Groups are owned by the lists of their Filters."""

    def __cinit__(self):
        table_init(&self.named)
        self.by_number = {}

    def __dealloc__(self):
        table_free(&self.named)

    cdef Group* hold(self, Filter* f, const uint8_t* name, size_t length) except NULL:
        cdef Group* g
        cdef Group* other
        if length == 0 or length > NAME_BYTES_MAX:
            raise ValueError("a ShareName has 1 to 65535 bytes")
        g = <Group*> calloc(1, sizeof(Group) + length + 1 + f.length)
        if g is NULL:
            raise MemoryError()
        g.filter = f
        g.name = <char*> (g + 1)
        g.name_length = <uint16_t> length
        memcpy(g.name, name, length)
        g.name[length] = c'/'
        memcpy(g.name + length + 1, filter_text(f), f.length)
        g.label_length = <uint32_t> length + 1 + f.length
        other = self.find(<const uint8_t*> g.name, g.label_length)
        if other is not NULL:
            free(g)
            return other
        g.hash = hash_bytes(&self.key, <const uint8_t*> g.name, g.label_length)
        # derived from the name: a group that vanishes and comes back keeps its number, which copies name
        g.number = <uint32_t> fixed_hash(<const uint8_t*> g.name, g.label_length)
        while g.number == 0 or g.number in self.by_number:
            g.number += 1
        try:
            table_insert(&self.named, g)
        except MemoryError:
            free(g)
            raise
        self.by_number[g.number] = <size_t> g
        g.next = f.groups
        if g.next is not NULL:
            g.next.previous = g
        f.groups = g
        return g

    cdef Group* find(self, const uint8_t* label, size_t length) noexcept:
        cdef uint64_t hash_ = hash_bytes(&self.key, label, length)
        cdef Probe probe
        cdef Group* g = <Group*> table_first(&self.named, hash_, &probe)
        work(FILTER)
        while g is not NULL and (g.label_length != length or memcmp(g.name, label, length) != 0):
            g = <Group*> table_next(&probe)
        return g

    cdef Group* numbered(self, uint32_t number) except? NULL:
        cdef object address = self.by_number.get(number)
        return NULL if address is None else <Group*> <size_t> address

    cdef int drop(self, Group* g) except -1:
        del self.by_number[g.number]
        table_remove(&self.named, g)
        if g.previous is NULL:
            g.filter.groups = g.next
        else:
            g.previous.next = g.next
        if g.next is not NULL:
            g.next.previous = g.previous
        free_group(g)
        return 0

    cdef int tell(self, Group* g, int sibling, uint32_t members, uint32_t online, bint full) except -1:
        cdef uint64_t bit = <uint64_t> 1 << sibling
        if members == 0:
            self.leave(g, sibling, 0)
            return 0
        if g.elsewhere is NULL:
            g.elsewhere = <Elsewhere*> calloc(SIBLINGS_MAX, sizeof(Elsewhere))
            if g.elsewhere is NULL:
                raise MemoryError()
        g.elsewhere[sibling].members = members
        g.elsewhere[sibling].online = online
        g.siblings |= bit
        g.siblings_online = g.siblings_online | bit if online else g.siblings_online & ~bit
        g.siblings_full = g.siblings_full | bit if full else g.siblings_full & ~bit
        return 0

    cdef void leave(self, Group* g, int sibling, uint32_t told) noexcept:
        """Remove a sibling's members from the group; those enrolled stay if they were last named with number `told` (0:
        none)."""
        cdef uint64_t bit = <uint64_t> 1 << sibling
        self.forget_members(g, sibling, told)
        if g.siblings & bit == 0:
            return
        g.siblings &= ~bit
        g.siblings_online &= ~bit
        g.siblings_full &= ~bit
        g.elsewhere[sibling].members = g.elsewhere[sibling].online = 0
        if g.siblings == 0:
            free(g.elsewhere)
            g.elsewhere = NULL

    cdef void forget_members(self, Group* g, int sibling, uint32_t told) noexcept:
        if g.enrolled is not NULL:
            enrolled_forget(g, <uint32_t> sibling, told)
