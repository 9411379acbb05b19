# cython: language_level=3
"""Decoders of control packets; versions 3 (MQTT 3.1), 4 (3.1.1) and 5 take one path, the version is data.

Call order of a receiver: fixed_header on the received bytes (0: wait) -> check the packet's length against the limit,
wait for all its bytes -> packet_flags -> decode_publish | decode_ack | decode_pingreq | decode_connect ... on the body.
Decoders keep no state.

Every decoder gets the whole body. It either returns, with everything checked that depends on the packet alone, or
raises MalformedPacket or ProtocolError (pyx.protocol.reasons) with the Reason Code to close with.
"""
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t

from pyx.protocol.packets cimport (
    Auth, Connect, Disconnect, PUBLISH, PUBREL, SUBSCRIBE, Subscribe, UNSUBSCRIBE, Unsubscribe,
)
from pyx.protocol.wire cimport Cursor


cdef struct Publish:                # borrowed from the receive buffer (or from scratch): valid while both are untouched
    uint8_t qos
    uint8_t retain
    uint8_t dup
    uint8_t has_alias               # a Topic Alias was present
    uint16_t packet_id              # 0 at QoS 0
    uint16_t topic_alias            # never 0 when has_alias; the caller checks Topic Alias Maximum
    uint16_t topic_len              # 0 only with has_alias
    uint32_t props_len              # v5 properties in wire form WITHOUT their length, WITHOUT Topic Alias; 0 for v3
    uint32_t payload_len
    int32_t expiry_offset           # offset in props of the 4 value bytes of Message Expiry Interval, -1 = absent
    uint32_t expiry_interval        # seconds, when present
    uint8_t payload_format          # 0/1
    const uint8_t* topic            # not validated here (the dispatch does, once per topic in the match cache)
    const uint8_t* props
    const uint8_t* payload


cdef struct Ack:
    uint16_t packet_id
    uint8_t reason


cdef struct Scratch:                # malloc'd, freed by the caller; start with {NULL, 0}; the decoders grow it
    uint8_t* buf
    uint32_t cap


# Reads the fixed header of the packet at p, of which n bytes have arrived. Returns its length (2 to 5) and sets
# *remaining; 0: wait for more bytes (*remaining untouched); -1: malformed. minimal: refuse a Remaining Length of more
# bytes than needed (v5 demands it, v3 does not mention it; False for a CONNECT, whose version is not known yet: compare
# with varint_size afterwards).
cdef inline int fixed_header(const uint8_t* p, size_t n, bint minimal, uint32_t* remaining) noexcept nogil:
    cdef uint32_t value
    cdef int i
    if n < 2:
        return 0
    if p[1] < 0x80:
        remaining[0] = p[1]
        return 2
    value = p[1] & 0x7F
    for i in range(2, 5):
        if <size_t>i >= n:
            return 0
        value |= <uint32_t>(p[i] & 0x7F) << (7 * (i - 1))
        if p[i] < 0x80:
            if minimal and p[i] == 0:
                return -1
            remaining[0] = value
            return i + 1
    return -1


# Returns the flags nibble for the decoders. MQTT 3.1 (level 3) ignores the bits that it does not use, and lets a client
# set DUP on PUBREL, SUBSCRIBE and UNSUBSCRIBE: these bits are cleared here, so that the decoders demand the same bits
# of every version.
cdef inline uint8_t packet_flags(uint8_t first, uint8_t version) noexcept nogil:
    if version == 3 and first >> 4 != PUBLISH:
        if first >> 4 == PUBREL or first >> 4 == SUBSCRIBE or first >> 4 == UNSUBSCRIBE:
            return first & 0x06
        return 0
    return first & 0x0F


cdef int decode_publish(
    Publish* out, uint8_t flags, const uint8_t* body, uint32_t n, bint v5, Scratch* scratch
) except -1
# the same for a PUBLISH from the server, which may have Subscription Identifiers
cdef int decode_delivery(
    Publish* out, uint8_t flags, const uint8_t* body, uint32_t n, bint v5, Scratch* scratch
) except -1
cdef int decode_ack(Ack* out, uint8_t packet_type, uint8_t flags, const uint8_t* body, uint32_t n, bint v5) except -1
# Validates the topic of a PUBLISH; raises MalformedPacket (UTF-8) or ProtocolError 0x90 (empty, wildcards)
cdef int check_topic_name(const uint8_t* topic, size_t n) except -1

cdef int decode_pingreq(uint8_t flags, uint32_t n) except -1

# Returns 3, 4 or 5 if the body of a CONNECT begins with a protocol name and level we serve, else 0: the version of the
# answer to a CONNECT that decode_connect refuses
cdef int connect_version(const uint8_t* body, uint32_t n) noexcept nogil
# the length of the Client Identifier of a CONNECT, and where it is; -1 if that cannot be said. Nothing is checked
cdef int client_id_of(const uint8_t* body, uint32_t n, const uint8_t** client_id) noexcept nogil

cdef Connect decode_connect(uint8_t flags, const uint8_t* body, uint32_t n)
cdef Subscribe decode_subscribe(uint8_t flags, const uint8_t* body, uint32_t n, bint v5)
cdef Unsubscribe decode_unsubscribe(uint8_t flags, const uint8_t* body, uint32_t n, bint v5)
cdef Disconnect decode_disconnect(uint8_t flags, const uint8_t* body, uint32_t n, bint v5, bint from_server=*)
cdef Auth decode_auth(uint8_t flags, const uint8_t* body, uint32_t n, bint v5, bint from_server=*)

# For packets from a server (pyx.protocol.codec). ack_head decodes an ack without its properties and leaves the cursor
# at Property Length, or at the end
cdef int ack_head(
    Ack* out, Cursor* c, uint8_t packet_type, uint8_t flags, const uint8_t* body, uint32_t n, bint v5, bint from_server
) except -1
cdef int read_packet_id(Cursor* c) except -1
cdef int check_authentication(dict properties, bint demanded) except -1
cdef int bad_reason(uint8_t packet_type, uint8_t reason) except -1
cdef int at_end(Cursor* c) except -1
