# cython: language_level=3
"""Encoding of an outgoing PUBLISH.

A Frame is one encoding of the publish that is being routed, made once and copied to all subscribers that get the same
bytes: there are four, by (MQTT 5 or not) and (with a Packet Identifier or not). First byte and identifier are patched
in the copy. With a large payload the Frame ends before it: the payload is sent by reference.
"""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.protocol.aliases cimport ALIAS_BYTES
from pyx.protocol.message cimport Content
from pyx.protocol.properties cimport TOPIC_ALIAS
from pyx.protocol.wire cimport put_u16, put_u32, put_varint, varint_size
from libc.string cimport memcpy


cdef struct Frame:
    const uint8_t* data         # borrowed: the received packet itself, or store
    uint8_t* store              # malloc'd, kept from publish to publish
    uint32_t store_cap
    uint32_t length             # bytes at data
    uint32_t total              # bytes of the packet, including the payload
    uint32_t id_at              # offset of the Packet Identifier
    bint ready


cdef inline uint32_t expiry_left(const Content* c, uint64_t wall_ms) noexcept nogil:
    """Seconds of Message Expiry Interval left, rounded up, never more than the original (the clocks of two workers
    differ)."""
    cdef const uint8_t* p = c.props + c.expiry_offset
    cdef uint64_t asked = <uint64_t>p[0] << 24 | <uint64_t>p[1] << 16 | <uint64_t>p[2] << 8 | p[3]
    cdef uint64_t left = (c.expires - wall_ms + 999) // 1000 if wall_ms < c.expires else 0
    return <uint32_t>(left if left < asked else asked)


cdef inline uint64_t remaining_length(const Content* c, bint v5, bint with_id, uint32_t ids_len) noexcept nogil:
    cdef uint64_t n = <uint64_t>2 + c.topic_len + c.payload_len + (2 if with_id else 0)
    if v5:
        n += varint_size(c.props_len + ids_len) + c.props_len + ids_len
    return n


# Writes everything before the payload. ids: Subscription Identifiers as properties. alias: the result of alias_for, in
# v5 only. Returns the address after it.
cdef inline uint8_t* put_head(uint8_t* p, const Content* c, uint8_t first, uint32_t remaining, bint v5,
                              uint16_t packet_id, bint with_id, int32_t alias, const uint8_t* ids, uint32_t ids_len,
                              uint64_t wall_ms) noexcept nogil:
    cdef uint16_t topic_len = c.topic_len if alias <= 0 else 0
    p[0] = first
    p = put_varint(p + 1, remaining)
    p = put_u16(p, topic_len)
    memcpy(p, c.topic, topic_len)
    p += topic_len
    if with_id:
        p = put_u16(p, packet_id)
    if v5:
        p = put_varint(p, c.props_len + ids_len + (ALIAS_BYTES if alias else 0))
        if alias:
            p[0] = TOPIC_ALIAS
            p = put_u16(p + 1, <uint16_t>(alias if alias > 0 else -alias))
        if ids_len:
            memcpy(p, ids, ids_len)
            p += ids_len
        if c.props_len:
            memcpy(p, c.props, c.props_len)
            if c.expires and c.expiry_offset >= 0:
                put_u32(p + c.expiry_offset, expiry_left(c, wall_ms))
            p += c.props_len
    return p


cdef int frame_make(Frame* f, const Content* c, bint v5, bint with_id, bint with_payload, uint64_t wall_ms) except -1
