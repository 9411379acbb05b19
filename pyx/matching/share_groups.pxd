# cython: language_level=3
"""Share groups by their names and numbers: see the .pyx."""
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

    cdef Group* hold(self, Filter* f, const uint8_t* name, size_t length) except NULL      # find or create
    cdef Group* find(self, const uint8_t* label, size_t length) noexcept        # b"ShareName/Topic Filter", or NULL
    cdef Group* numbered(self, uint32_t number) except? NULL                    # NULL: it is no more
    cdef int drop(self, Group* g) except -1                     # it has no members, here or elsewhere
    # a sibling, 0 to 63, has so many members of it, so many of them online, and whether all of those are full
    cdef int tell(self, Group* g, int sibling, uint32_t members, uint32_t online, bint full) except -1
    cdef void leave(self, Group* g, int sibling, uint32_t told) noexcept
    cdef void leave_roster(self, Group* g, int sibling, uint32_t told) noexcept


cdef void free_group(Group* g) noexcept         # when the Subscriptions end
