# cython: language_level=3
"""Verdicts on whether a client may publish to a topic: cached for each connection, topic, QoS and RETAIN.

A verdict is valid for one generation of the rules. A connection has a table of a power of two of places, one of them
for the hash of a topic; it grows from PLACES to PLACES_MAX when topics collide; at PLACES_MAX the newer topic replaces
the older. The topics themselves are compared: two topics with the same hash are not confused.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef struct Verdict:
    uint64_t topic_hash
    uint8_t* topic              # NULL: the place is free
    uint32_t generation
    uint16_t topic_len
    uint8_t asked               # a bit for each QoS, without and with RETAIN: it was decided
    uint8_t granted             # ... and allowed


cdef struct Verdicts:           # the table of a connection
    Verdict* at
    uint32_t places
    uint32_t topic_bytes        # of all topics


cdef void verdicts_free(Verdicts* v) noexcept


cdef class Authorise:
    cdef object decide          # (session, topic, qos, retain) -> bool; None: everything is allowed
    cdef readonly bint restricts        # `decide` is set
    cdef uint32_t generation

    cdef bint may_publish(self, Verdicts** kept, object session, const uint8_t* topic, uint16_t n, uint64_t topic_hash,
                          uint8_t qos, bint retain) except -1
    cdef int grow(self, Verdicts* v) except -1
    cdef Verdict* place(self, Verdicts* v, const uint8_t* topic, uint16_t n, uint64_t topic_hash) except NULL
