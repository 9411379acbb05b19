# cython: language_level=3
"""Memberships: see memberships.pxd."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from pyx.matching.filters cimport Former, Formers, Membership, Memberships

cdef enum:
    FORMERS_MAX = 16                        # per membership


cdef int own_reserve(Memberships* own) except -1:
    cdef uint32_t capacity
    cdef Membership* items
    if own.count < own.capacity:
        return 0
    if own.count > SLOT_MASK:
        raise OverflowError("a session has at most 16777216 subscriptions")
    capacity = own.count + (own.count >> 3 if own.count >= 32 else own.count) + 1
    items = <Membership*> realloc(own.items, capacity * sizeof(Membership))
    if items is NULL:
        raise MemoryError()
    own.items = items
    own.capacity = capacity
    return 0


cdef void own_shrink(Memberships* own) noexcept:
    cdef Membership* items
    if own.count == 0:
        free(own.items)
        own.items = NULL
        own.capacity = 0
    elif own.capacity > 32 and own.count < own.capacity >> 2:
        items = <Membership*> realloc(own.items, (own.capacity >> 1) * sizeof(Membership))
        if items is not NULL:
            own.items = items
            own.capacity >>= 1


cdef uint32_t former_place(Formers* all_) except 0:
    cdef uint32_t capacity, place = all_.free
    if place:
        all_.free = all_.items[place].next
    else:
        if all_.begun + 1 >= all_.capacity:         # 0 is no place
            capacity = all_.capacity * 2 if all_.capacity else 16
            items = <Former*> realloc(all_.items, capacity * sizeof(Former))
            if items is NULL:
                raise MemoryError()
            all_.items = items
            all_.capacity = capacity
        all_.begun += 1
        place = all_.begun
    all_.count += 1
    return place


cdef int add_former(
    Formers* all_, Membership* member, uint8_t options, uint64_t since, uint64_t up_to
) except -1:
    cdef uint32_t place, i = member.former, last = 0, n = 0
    cdef Former* former
    while i:
        last = i
        i = all_.items[i].next
        n += 1
    if n >= FORMERS_MAX:                # the last range grows: unwanted messages rather than missing ones
        former = &all_.items[last]
        former.up_to = up_to
        former.options = max(former.options & 3, options & 3) | former.options & options & 4
        return 0
    place = former_place(all_)
    former = &all_.items[place]
    former.options, former.since, former.up_to, former.next = options, since, up_to, 0
    if last:
        all_.items[last].next = place
    else:
        member.former = place
    return 0


cdef void drop_formers(Formers* all_, Membership* member, uint64_t up_to) noexcept:
    cdef uint32_t first = member.former
    while first and all_.items[first].up_to <= up_to:
        member.former = all_.items[first].next
        all_.items[first].next = all_.free
        all_.free = first
        all_.count -= 1
        first = member.former
    if all_.count == 0 and all_.items is not NULL:
        free(all_.items)
        memset(all_, 0, sizeof(Formers))
