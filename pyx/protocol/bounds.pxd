# cython: language_level=3
"""Bounds on lists in a packet, of User Properties and Topic Filters: counted before they are decoded into objects.

All return 1 when the packet exceeds its bound. They raise what the decoder would (MalformedPacket, ProtocolError) for
bytes that cannot be walked. A packet of at most `limits.unwalked_bytes` cannot exceed it: the check is not needed.
"""
from libc.stdint cimport uint8_t, uint32_t

from pyx.core.limits cimport Limits


# For a PUBLISH: its properties, without their length
cdef int publish_lists_too_much(const uint8_t* props, uint32_t n, Limits limits) except -1

# For any other packet of a v5 client: each of its property lists
cdef int lists_too_many_properties(uint8_t packet_type, const uint8_t* body, uint32_t n, Limits limits) except -1

# For a SUBSCRIBE or UNSUBSCRIBE
cdef int lists_too_many_filters(uint8_t packet_type, const uint8_t* body, uint32_t n, bint v5,
                                Limits limits) except -1
