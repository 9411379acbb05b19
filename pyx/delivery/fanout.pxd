# cython: language_level=3
"""From a match to its subscribers: see the .pyx."""
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from pyx.delivery.backlog cimport Backlog
from pyx.delivery.connection cimport Connection
from pyx.delivery.routing cimport Merged
from pyx.delivery.session cimport Inflight, Session
from pyx.matching.subscriptions cimport Filter, Matches
from pyx.protocol.message cimport Message


cdef class FanOut(Backlog):
    cdef int fan_out(self, Filter* f) except -1
    cdef int fan_out_merged(self, Matches* m) except -1
    cdef int log_wanted(self, const Matches* m, uint64_t want) except -1
    cdef int note_unread(self, Session s, Filter* f) except -1
    cdef int grow_merged(self) except -1
    cdef uint32_t put_identifiers(self, Merged* e, uint8_t* ids) noexcept
    cdef int32_t chain_identifier(self, uint32_t value, int32_t after) except -1
    cdef bint offline(self, Filter* f, uint32_t sessions) noexcept
    cdef int deliver(self, Session s, uint8_t qos, uint8_t first, const uint8_t* ids, uint32_t ids_len,
                     uint8_t flags) except -1
    cdef int drop_offline(self, Session s) except -1
    cdef int place(self, Session s, Connection conn, Inflight* slot) except -1
    cdef int fill(self, Session s, Inflight* slot, const uint8_t* ids, uint32_t ids_len) except -1
    cdef int keep(self) except -2
    cdef int note_retained(self, bytes topic, Message m) except -1
