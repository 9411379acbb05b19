# cython: language_level=3
"""Members of share groups over the hosts of a cluster: see the .pyx."""
from libc.stdint cimport uint64_t

from pyx.core.tables cimport Paging
from pyx.delivery.enrolling cimport Enrolling
from pyx.delivery.router_state cimport RouterState
from pyx.matching.filters cimport Group
from pyx.matching.subscriptions cimport Subscriptions


cdef class SpreadGroups:
    cdef RouterState state
    cdef Subscriptions subscriptions
    cdef Enrolling enrolling
    cdef Paging paging

    cdef bint has_surplus(self, const Group* g, uint64_t rails) noexcept
    cdef tuple counts(self, const Group* g, uint64_t rails)
    cdef uint64_t online_of(self, const Group* g, uint64_t peers) noexcept
