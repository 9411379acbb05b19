# cython: language_level=3
"""One worker's router: a publish goes in, deliveries, log records, peer entries and acks come out.

Call order, one publish: begin -> publish -> (answer). One tick: any number of publishes, acks and slow packets ->
commit -> serve_ready -> (links take what peers want) -> release_acks -> the reactor sends what `dirty` names.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.delivery.connection cimport Connection
from pyx.delivery.ending cimport Ending
from pyx.delivery.session cimport Inflight, Session
from pyx.matching.subscriptions cimport Matches


cdef class Router(Ending):
    cdef bint restoring             # the subscription in hand comes from the store: it has it

    cdef int publish(self, Matches* m) except -1            # 1: somebody matches
    cdef int route(self, Matches* m) except -1
    cdef int forward(self, uint64_t mask) except -1
    cdef int append_block(self) except -1
    cdef int lay(self) except -1
    cdef int finish_log(self) except -1
    cdef int hand_off(self) except -1
    cdef int forward_all(self) except -1
    cdef int puback(self, Session s, uint16_t packet_id, uint8_t reason) except -1
    cdef int pubrec(self, Session s, Connection conn, uint16_t packet_id, uint8_t reason) except -1
    cdef int pubcomp(self, Session s, Connection conn, uint16_t packet_id) except -1
    cdef int misfit(self, Session s, Inflight* slot, str what) except -1
    cdef int tell_drained(self) except -1
    cdef int drop_unsubscribed(self, Session s) except -1
