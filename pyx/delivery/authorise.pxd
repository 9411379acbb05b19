# cython: language_level=3
"""Whether a client may publish to a topic: what was decided is kept for each connection, topic, QoS and RETAIN.

What is kept holds for one generation of the rules. A connection has a table of a power of two of places, in which the
hash of a topic has one; it grows from PLACES to PLACES_MAX as topics meet in a place, and then the newer one has it.
The topic itself is compared: two topics with one hash are two.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef struct Verdict:
    uint64_t topic_hash
    uint8_t* topic              # NULL: the place is free
    uint32_t generation
    uint16_t topic_len
    uint8_t asked               # a bit for each QoS, without and with RETAIN: it was decided on
    uint8_t granted             # ... and allowed


cdef struct Verdicts:           # of a connection
    Verdict* at
    uint32_t places
    uint32_t topic_bytes        # of all


cdef void verdicts_free(Verdicts* v) noexcept


cdef class Authorise:
    cdef object decide          # (session, topic, qos, retain) -> bool; None: everybody may do everything
    cdef readonly bint restricts        # there is one
    cdef uint32_t generation

    cdef bint may_publish(self, Verdicts** kept, object session, const uint8_t* topic, uint16_t n, uint64_t topic_hash,
                          uint8_t qos, bint retain) except -1
    cdef int grow(self, Verdicts* v) except -1
    cdef Verdict* place(self, Verdicts* v, const uint8_t* topic, uint16_t n, uint64_t topic_hash) except NULL
