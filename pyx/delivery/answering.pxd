# cython: language_level=3
"""Acks and other answers, and the conditions they wait for: see the .pyx."""
from libc.stdint cimport uint8_t, uint16_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.connection cimport Connection
from pyx.delivery.journal cimport Journal
from pyx.delivery.peers cimport Peers
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport Pointers, RouterState


cdef class Answering:
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef PublishInHand in_hand
    cdef Journal journal
    cdef Peers peers

    cdef Pointers waiting               # connections with pending acks
    cdef object after_acks              # deque of (connection, callback after the acks of this round are in outboxes)
    cdef list unknown                   # (number of interest, callback when all live peers know it)
    cdef int answer(self, Connection conn, uint8_t packet_type, uint16_t packet_id, uint8_t reason,
                    uint64_t mask) except -1
    cdef int release_acks(self) except -1
    cdef int release_packet(self, Connection conn, list waits) except -1
    cdef uint64_t known_interest(self) except? 0xFFFFFFFFFFFFFFFF
    cdef int tell_known(self) except -1
    cdef int owe_less(self, Connection conn) except -1
    cdef uint64_t unacknowledged_peers(self) except? 0xFFFFFFFFFFFFFFFF
