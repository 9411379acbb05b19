# cython: language_level=3
"""Individual members of a share group, on all workers: for strategies that send a message to a certain one.

The enrolled members are an unordered array. Members of this worker are in it as long as their group has such a
strategy, with their session borrowed: the code that ends a membership removes it first. Members elsewhere are in it as
reported by their worker.

From PLACED_FROM members on a hash table (open addressing, linear probing, at most half full) has the place of each.
"""
from libc.stdint cimport uint32_t, uint64_t

from pyx.matching.filters cimport Group, Member


# add a member, or update the time since which it is online (0: offline). told: see Member
cdef int enrolled_put(
    Group* g, uint64_t identity, uint64_t since, void* session, uint32_t worker, uint32_t told
) except -1
cdef void enrolled_strike(Group* g, uint64_t identity, void* session, uint32_t worker) noexcept   # if it exists
# remove every member of that worker except those last named with this number (0: every one)
cdef void enrolled_forget(Group* g, uint32_t worker, uint32_t told) noexcept
cdef void enrolled_free(Group* g) noexcept
