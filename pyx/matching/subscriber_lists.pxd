# cython: language_level=3
"""Memory of SubscriberLists: a block of its own with its capacity in front, or the place for one in a Filter."""
from libc.stdlib cimport free

from pyx.matching.filters cimport Subscriber, SubscriberList


# only: the place for one inside the Filter, or NULL
cdef int list_reserve(SubscriberList* members, Subscriber* only) except -1      # makes room for one more
cdef void list_shrink(SubscriberList* members, Subscriber* only) noexcept       # call it after a removal
cdef inline void list_free(SubscriberList* members, Subscriber* only) noexcept:
    if members.items is not NULL and members.items != only:
        free(members.items - 1)
