# cython: language_level=3
"""Fan-out of a match to its subscribers: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.connection cimport Connection
from pyx.delivery.journal cimport Journal
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Inflight, Session
from pyx.delivery.windows cimport Windows
from pyx.matching.subscriptions cimport Filter, Matches


cdef class FanOut:
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef PublishInHand in_hand
    cdef Journal journal
    cdef Windows windows
    cdef Bounding bounding
    cdef Backlog backlog

    cdef int fan_out(self, Filter* f) except -1
    cdef int fan_out_merged(self, Matches* m) except -1
    cdef int log_wanted(self, const Matches* m, uint64_t want) except -1
    cdef int note_unread(self, Session s, Filter* f) except -1
    cdef bint offline(self, Filter* f, uint32_t sessions) noexcept
    cdef int deliver(self, Session s, uint8_t qos, uint8_t first, const uint8_t* ids, uint32_t ids_len,
                     uint8_t flags) except -1
    cdef int fall_behind(self, Session s) except -1
    cdef int drop_offline(self, Session s) except -1
    cdef int place(self, Session s, Connection conn, Inflight* slot) except -1
    cdef int fill(self, Session s, Inflight* slot, const uint8_t* ids, uint32_t ids_len) except -1
