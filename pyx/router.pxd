# cython: language_level=3
"""One worker's router: a publish goes in, deliveries, log records, peer entries and acks come out.

Call order, one publish: begin -> publish -> (answer). One tick: any number of publishes, acks and slow packets ->
commit -> serve_ready -> (links take what peers want) -> release_acks -> the reactor sends what `dirty` names.
"""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.connection cimport Connection
from pyx.message cimport Message
from pyx.routing cimport Merged, Routing
from pyx.session cimport Inflight, Session
from pyx.siblings cimport Siblings
from pyx.subscriptions cimport Filter, Group, Matches


cdef class Router(Siblings):
    cdef int fill(self, Inflight* slot, const uint8_t* ids, uint32_t ids_len) except -1
    cdef uint32_t put_identifiers(self, Merged* e, uint8_t* ids) noexcept
    cpdef uint64_t next_number(self)
    cdef int publish(self, Matches* m) except -1            # 1: somebody matches
    cdef int forward(self, uint64_t mask) except -1
    cdef int fan_out(self, Filter* f) except -1
    cdef int fan_out_merged(self, Matches* m) except -1
    cdef int32_t chain_identifier(self, uint32_t value, int32_t after) except -1
    cdef bint offline(self, Filter* f, uint32_t sessions) noexcept
    cdef int deliver(self, Session s, uint8_t qos, uint8_t first, const uint8_t* ids, uint32_t ids_len,
                     uint8_t flags) except -1
    cdef int keep(self) except -2
    cdef int puback(self, Session s, uint16_t packet_id, uint8_t reason) except -1
    cdef int pubrec(self, Session s, Connection conn, uint16_t packet_id, uint8_t reason) except -1
    cdef int pubcomp(self, Session s, uint16_t packet_id) except -1
    cdef int tell_interest(self, Filter* f, Group* g, bytes text, bytes group, bint durable) except -1
    cdef Group* group_of(self, Filter* f, bytes name) noexcept
