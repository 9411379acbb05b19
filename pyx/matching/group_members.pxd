# cython: language_level=3
"""The members of a share group one by one, on all workers: for strategies that send a message to a certain one.

A roster is an array in no order. Members of this worker stand in it as long as their group has such a strategy, with
the session borrowed: whoever ends a membership strikes it first. Members elsewhere stand in it as their worker says.

From PLACED_FROM members on a hash table (open addressing, linear probing, at most half full) says where each stands.
"""
from libc.stdint cimport uint32_t, uint64_t

from pyx.matching.filters cimport Group, Member


# add a member, or say anew since when it is online (0: offline). told: see Member
cdef int roster_put(
    Group* g, uint64_t identity, uint64_t since, void* session, uint32_t worker, uint32_t told
) except -1
cdef void roster_strike(Group* g, uint64_t identity, void* session, uint32_t worker) noexcept   # if it is there
# every member of that worker but for those that were told with this number (0: every one)
cdef void roster_forget(Group* g, uint32_t worker, uint32_t told) noexcept
cdef void roster_free(Group* g) noexcept
