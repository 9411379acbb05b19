# cython: language_level=3
"""Memory of SubscriberLists: see subscriber_lists.pxd."""
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from pyx.matching.filters cimport Subscriber, SubscriberList


cdef inline uint32_t* list_capacity(SubscriberList* members) noexcept nogil:
    """Return the address of an allocated list's capacity: in the item before the first."""
    return &(members.items - 1).identifier


cdef int list_resize(SubscriberList* members, Subscriber* only, uint32_t capacity) except -1:
    """Give the list a block of its own. `only` is the place for one inside the Filter, or NULL."""
    cdef Subscriber* block
    cdef bint inside = members.items is NULL or members.items == only
    block = <Subscriber*> realloc(NULL if inside else members.items - 1, (<size_t> capacity + 1) * sizeof(Subscriber))
    if block is NULL:
        raise MemoryError()
    if inside and members.count:
        memcpy(block + 1, members.items, members.count * sizeof(Subscriber))
    members.items = block + 1
    list_capacity(members)[0] = capacity
    return 0


cdef int list_reserve(SubscriberList* members, Subscriber* only) except -1:
    if members.items is NULL:
        if only is not NULL:
            members.items = only
            return 0
        return list_resize(members, only, 1)
    if members.items == only:
        return 0 if members.count == 0 else list_resize(members, only, 4)
    if members.count == list_capacity(members)[0]:
        return list_resize(members, only, members.count + (members.count >> 1) + 1)
    return 0


cdef void list_shrink(SubscriberList* members, Subscriber* only) noexcept:
    cdef uint32_t capacity
    cdef Subscriber* block
    if members.count == 0:
        if members.items is not NULL and members.items != only:
            free(members.items - 1)
        members.items = NULL
    elif members.items != only:
        capacity = list_capacity(members)[0]
        if capacity > 8 and members.count < capacity >> 2:
            block = <Subscriber*> realloc(members.items - 1, (<size_t> (capacity >> 1) + 1) * sizeof(Subscriber))
            if block is not NULL:
                members.items = block + 1
                list_capacity(members)[0] = capacity >> 1
