# cython: language_level=3
"""Answers, and what they wait for: see the .pyx."""
from libc.stdint cimport uint8_t, uint16_t, uint64_t

from pyx.delivery.connection cimport Connection
from pyx.delivery.routing cimport Routing


cdef class Answering(Routing):
    cdef int answer(self, Connection conn, uint8_t packet_type, uint16_t packet_id, uint8_t reason,
                    uint64_t mask) except -1
    cdef int release_acks(self) except -1
    cdef int release_packet(self, Connection conn, list waits) except -1
    cdef int owe_less(self, Connection conn) except -1
    cdef uint64_t unacknowledged_peers(self) except? 0xFFFFFFFFFFFFFFFF
