# cython: language_level=3
"""Dispatch of packets: bytes of a connection -> the router (PUBLISH, its acks, PINGREQ) or the handler (all others)."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.authorise cimport Authorise
from pyx.delivery.connection cimport Connection
from pyx.delivery.router cimport Router
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session
from pyx.io.publishing cimport Publishing


cdef class Dispatch:
    cdef readonly Router router
    cdef RouterState state              # the router's
    cdef Row counters
    cdef Limits limits
    cdef readonly Authorise authorise
    cdef Publishing publishing
    # the CONNECT to be handed up: packet and bytes; or the worker that is its home, and bytes
    cdef object raw
    # callables, or None: for a client id the worker that is its home, -1: this one; (connection, worker, bytes of its
    # CONNECT) for one whose home is elsewhere
    cdef public object home_of
    cdef public object hand_over
    cdef uint32_t counted               # packets among the current bytes that another worker has counted
    cdef uint64_t filters_tick           # the tick of filters_left
    cdef int64_t filters_left           # Topic Filters that SUBSCRIBE, UNSUBSCRIBE may still name in that tick
    cdef readonly list carried          # connections with whole packets left over for the next tick

    # handles n bytes at p, the first of them possibly left over from before. p must not point into conn.part
    cdef int take(self, Connection conn, uint8_t* p, uint32_t n) except -1
    cdef int take_part(self, Connection conn) except -1
    cdef int take_guarded(self, Connection conn) except -1      # take_part; an internal error ends the connection
    cpdef int carry_on(self, Connection conn) except -1
    cdef int carry(self, Connection conn) except -1             # continues with its packets in the next tick
    cdef int failed(self, Connection conn, error) except -1
    cdef int hold_note(self, Connection conn, uint8_t packet_type, client_id) except -1
    cdef uint32_t decode(self, Connection conn, uint8_t* p, uint32_t n) except? 0xFFFFFFFF
    cdef bint filters_spent(self) noexcept
    cdef int first_packet(self, Connection conn, const uint8_t* p, uint32_t n, uint64_t total) except -1
    cdef int check_lists(self, uint8_t packet_type, const uint8_t* body, uint32_t n, bint v5) except -1
    cdef int packet(self, Connection conn, uint8_t* p, uint32_t header, uint32_t total) except -1
    cdef int slow_packet(self, Connection conn, Session s, uint8_t* p, uint32_t header, uint32_t total) except -1
    cdef int connect(self, Connection conn, uint8_t* p, uint32_t header, uint32_t total) except -1
    cdef int hand_up(self, Connection conn) except -1
