# cython: language_level=3
"""The end of sessions: see the .pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.enrolling cimport Enrolling
from pyx.delivery.handing_on cimport HandingOn
from pyx.delivery.peers cimport Peers
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session
from pyx.delivery.windows cimport Windows
from pyx.matching.filters cimport Filter, Group, Memberships
from pyx.matching.subscriptions cimport Subscriptions
from pyx.protocol.message cimport Message


cdef class Remains:
    cdef uint8_t* names             # of subscriptions, each with its lengths
    cdef size_t at                  # the next one
    cdef uint32_t count             # the number left
    cdef list shares                # [(number of the group, Message, number of its record or 0)]: for other members
    cdef Session session            # their former owner
    cdef int counter                # for shares that no other member can get

    cdef int gather(self, const Memberships* own) except -1
    cdef tuple take(self)


cdef class Ending:
    cdef RouterState state
    cdef Row counters
    cdef Subscriptions subscriptions
    cdef Peers peers
    cdef Windows windows
    cdef BackPressure back_pressure
    cdef Bounding bounding
    cdef Enrolling enrolling
    cdef HandingOn handing_on

    cdef readonly uint64_t shares_left      # of all `Remains`

    cdef int tell_interest(self, Filter* f, bytes text, bytes group, bint durable) except -1
    cdef Group* group_of(self, Filter* f, bytes name) except? NULL
    cdef int tell_ended(self, list plain, list groups) except -1
    cdef int name_interest(self, Session s, list plain, list groups) except -1
    cdef list take_shares(self, Session s, bint with_records, uint32_t* dropped)
    cdef int leave_groups(self, Session s, bint tell) except -1
    cdef int count_filters(self) except -1
    cdef int forget_filter(self, Session s, bytes text, bytes group) except -1
    cdef int hand_on_shares(self, Session s, list shares, int counter) except -1
    cdef int hand_on_or_drop(self, uint32_t group, Message m, int counter) except -1
