# cython: language_level=3
"""PUBLISH packets of clients: see the .pyx."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.authorise cimport Authorise
from pyx.delivery.connection cimport Connection
from pyx.delivery.router cimport Router
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session
from pyx.matching.subscriptions cimport Matches, Subscriptions
from pyx.protocol.decoders cimport Publish, Scratch


cdef class Publishing:
    cdef Router router
    cdef RouterState state              # the router's
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef Authorise authorise
    cdef Scratch scratch

    # handles one PUBLISH, whose fixed header has so many bytes; returns 1 if it is not taken yet, else 0
    cdef int publish(self, Connection conn, uint8_t flags, uint8_t* p, uint32_t header, uint32_t total) except -1
    cdef int ask(self, Connection conn, Session s, Publish* pub) except -1
    cdef int answer_again(self, Connection conn, Session s, uint16_t packet_id) except -1
    cdef int check_properties(self, Publish* pub) except -1
    cdef bint topic_fits(self, Publish* pub) except -1
    cdef int guard(self, Connection conn, Session s, Publish* pub, Matches* m, uint32_t total) except -1
    cdef bint arrives(self, Connection conn, Session s, uint16_t packet_id) except -1
    cdef bint known(self, Session s, uint16_t packet_id) except -1
    cdef int refuse(self, Connection conn, Session s, Publish* pub, uint8_t reason, str why) except -1
    cdef int alias(self, Connection conn, Publish* pub) except -1
