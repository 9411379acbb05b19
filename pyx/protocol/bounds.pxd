# cython: language_level=3
"""Bounds of what a packet lists, User Properties and Topic Filters: counted before it is decoded into objects.

All return 1 when the packet is beyond its bound. They raise what the decoder would (MalformedPacket, ProtocolError) for
what cannot be walked. A packet of at most `limits.unwalked_bytes` cannot be beyond: the caller need not ask.
"""
from libc.stdint cimport uint8_t, uint32_t

from pyx.core.limits cimport Limits


# Of a PUBLISH: its properties, without their length
cdef int publish_lists_too_much(const uint8_t* props, uint32_t n, Limits limits) except -1

# Of any other packet of a v5 client: in one of its property lists
cdef int lists_too_many_properties(uint8_t packet_type, const uint8_t* body, uint32_t n, Limits limits) except -1

# Of a SUBSCRIBE or UNSUBSCRIBE
cdef int lists_too_many_filters(uint8_t packet_type, const uint8_t* body, uint32_t n, bint v5,
                                Limits limits) except -1
