"""Bounds on lists in a packet: see the .pxd."""
from libc.stdint cimport uint64_t

from pyx.protocol.packets cimport AUTH, CONNECT, DISCONNECT, PUBACK, PUBCOMP, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, WILL
from pyx.protocol.properties cimport Property, USER_PROPERTY, next_property, open_properties
from pyx.protocol.wire cimport Cursor, read_binary, read_u8, read_u16


cdef int walk(Cursor* inside, uint8_t packet_type, Limits limits) except -1:
    cdef Property one
    cdef uint64_t seen = 0, size = 0
    cdef uint32_t properties = 0
    while inside.at != inside.end:
        next_property(inside, &one, &seen, packet_type, False)
        if one.id == USER_PROPERTY:
            properties += 1
            size += one.text_len + one.value_len
            if properties > limits.user_properties_max or size > limits.user_property_bytes_max:
                return 1
    return 0


cdef int publish_lists_too_much(const uint8_t* props, uint32_t n, Limits limits) except -1:
    cdef Cursor inside
    inside.at = props
    inside.end = props + n
    return walk(&inside, PUBLISH, limits)


cdef int connect_lists_too_much(Cursor* c, Limits limits) except -1:
    cdef Cursor inside
    cdef const uint8_t* text
    cdef int flags
    read_binary(c, &text)                       # Protocol Name
    read_u8(c)
    flags = read_u8(c)
    read_u16(c)                                 # Keep Alive
    open_properties(c, &inside)
    if walk(&inside, CONNECT, limits):
        return 1
    if not flags & 4:
        return 0
    read_binary(c, &text)                       # Client Identifier
    open_properties(c, &inside)
    return walk(&inside, WILL, limits)


cdef int lists_too_many_properties(uint8_t packet_type, const uint8_t* body, uint32_t n, Limits limits) except -1:
    cdef Cursor c, inside
    cdef uint32_t at
    c.at = body
    c.end = body + n
    if packet_type == CONNECT:
        return connect_lists_too_much(&c, limits)
    if packet_type == SUBSCRIBE or packet_type == UNSUBSCRIBE:
        at = 2                                  # after the Packet Identifier
    elif PUBACK <= packet_type <= PUBCOMP:
        at = 3                                  # and the Reason Code
    elif packet_type == DISCONNECT or packet_type == AUTH:
        at = 1
    else:
        return 0
    if n <= at:
        return 0
    c.at = body + at
    open_properties(&c, &inside)
    return walk(&inside, packet_type, limits)


cdef int lists_too_many_filters(uint8_t packet_type, const uint8_t* body, uint32_t n, bint v5,
                                Limits limits) except -1:
    cdef Cursor c, inside
    cdef const uint8_t* text
    cdef uint32_t filters = 0
    c.at = body
    c.end = body + n
    read_u16(&c)                                # Packet Identifier
    if v5:
        open_properties(&c, &inside)
    while c.at != c.end:
        read_binary(&c, &text)
        if packet_type == SUBSCRIBE:
            read_u8(&c)
        filters += 1
        if filters > limits.filters_per_packet_max:
            return 1
    return 0
