# cython: language_level=3
"""Share groups by name and by number: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t

from pyx.core.hashing cimport HashKey
from pyx.core.tables cimport Table
from pyx.matching.filters cimport Filter, Group

cdef enum:
    SIBLINGS_MAX = 64


cdef class ShareGroups:
    cdef HashKey key
    cdef Table named                    # every Group, by ShareName and Topic Filter
    cdef dict by_number                 # number -> address of the Group

    cdef Group* hold(self, Filter* f, const uint8_t* name, size_t length) except NULL      # finds or creates
    cdef Group* find(self, const uint8_t* label, size_t length) noexcept        # b"ShareName/Topic Filter", or NULL
    cdef Group* numbered(self, uint32_t number) except? NULL                    # NULL: it does not exist any more
    cdef int drop(self, Group* g) except -1                     # g must have no members, here or elsewhere
    # records a sibling's (0 to 63) number of members, of online ones, and whether all online ones are full
    cdef int tell(self, Group* g, int sibling, uint32_t members, uint32_t online, bint full) except -1
    cdef void leave(self, Group* g, int sibling, uint32_t told) noexcept
    cdef void forget_members(self, Group* g, int sibling, uint32_t told) noexcept


cdef void free_group(Group* g) noexcept         # called by the destructor of Subscriptions
