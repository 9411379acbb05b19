# cython: language_level=3
"""MQTT 5 properties (2.2.2.2). One table in properties.pyx has identifier, name, type, limits, packets and senders; it
drives the walk over received properties, the dicts of the slow packets and the encoder."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyx.protocol.wire cimport Cursor


cdef enum PropertyId:
    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


cdef struct Property:               # one property as received; pointers are borrowed from the cursor's buffer
    uint8_t id
    uint32_t number                 # value of the integer types
    uint32_t text_len               # of the string and binary types (for a pair: its name)
    uint32_t value_len              # of the second string of a pair
    const uint8_t* text
    const uint8_t* value
    const uint8_t* start            # its identifier byte; the cursor is after its last one


# Reads one property and checks it against the table. *seen has bit `id` set for those read before (start with 0).
# packet_type may be WILL. Raises MalformedPacket (unknown, of another packet, truncated, UTF-8) or ProtocolError
# (repeated, of the other sender, value not allowed).
cdef int next_property(Cursor* c, Property* out, uint64_t* seen, uint8_t packet_type, bint from_server) except -1

# Returns the offset of the value of the first property `wanted` in properties that were checked on arrival; -1: none.
# ValueError: damaged.
cdef int64_t find_property(const uint8_t* props, uint32_t n, uint8_t wanted) except -2

# Checks them in the same way without keeping anything: for acks, whose properties the server does not need.
cdef int check_properties(Cursor* c, uint8_t packet_type, bint from_server) except -1

# Reads Property Length, and makes `out` a cursor over that many bytes of `c`.
cdef int open_properties(Cursor* c, Cursor* out) except -1

# Reads Property Length and all properties into a dict (names of the table; see properties.pyi).
cdef dict read_properties(Cursor* c, uint8_t packet_type, bint from_server)

# Returns the wire form without its length. Raises ValueError for anything that the table does not allow.
cdef bytes pack_properties(dict properties, uint8_t packet_type, bint from_server)
