"""Decoders of control packets (MQTT 5, chapters 2 and 3; MQTT 3.1.1; MQTT 3.1). decoders.pxd has the theory,
pyx.protocol.encoders the opposite direction, pyx.protocol.codec both for Python.

The text of MQTT 5 decides for all versions between Malformed (0x81) and a Protocol Error. Where it names no code, bits
and lengths that no packet can have are Malformed, and readable content that must not be sent is a Protocol Error. In
versions 3 and 4 both close the connection. The caller checks everything that needs more than the packet (client
identifier rules, Topic Alias Maximum, Receive Maximum, filter content).
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcmp, memcpy

from pyx.protocol.packets cimport AUTH, CONNECT, DISCONNECT, Subscription, WILL, Will
from pyx.protocol.properties cimport (
    MESSAGE_EXPIRY_INTERVAL, PAYLOAD_FORMAT_INDICATOR, Property, TOPIC_ALIAS, WILL_DELAY_INTERVAL, check_properties,
    next_property, open_properties, read_properties,
)
from pyx.protocol.reasons cimport (
    REASON_PROTOCOL_ERROR, REASON_TOPIC_NAME_INVALID, REASON_UNSUPPORTED_PROTOCOL_VERSION, malformed, protocol_error,
    reason_allowed,
)
from pyx.protocol.topics cimport is_shared, topic_name_valid
from pyx.protocol.wire cimport Cursor, bad_utf8, read_binary, read_u8, read_u16, read_utf8, truncated, utf8_valid


# --- the data path

cdef int _publish_properties(
    Publish* out, const uint8_t* body, uint32_t at, uint32_t n, Scratch* scratch, bint from_server
) except -1:
    """Fill the property fields of *out from Property Length at body[at]; return the index of the payload."""
    cdef Cursor rest, inside
    cdef Property one
    cdef uint64_t seen = 0
    cdef uint32_t before, after
    cdef const uint8_t* start
    cdef const uint8_t* alias = NULL
    cdef uint8_t* grown
    rest.at = body + at
    rest.end = body + n
    open_properties(&rest, &inside)
    start = inside.at
    while inside.at != inside.end:
        next_property(&inside, &one, &seen, PUBLISH, from_server)
        if one.id == MESSAGE_EXPIRY_INTERVAL:
            out.expiry_interval = one.number
            out.expiry_offset = <int32_t>(inside.at - 4 - start)
        elif one.id == PAYLOAD_FORMAT_INDICATOR:
            out.payload_format = <uint8_t>one.number
        elif one.id == TOPIC_ALIAS:
            out.topic_alias = <uint16_t>one.number
            out.has_alias = 1
            alias = one.start
    out.props = start
    out.props_len = <uint32_t>(inside.end - start)
    if alias != NULL:               # cut its 3 bytes out: at either end by moving the bound, else by a copy
        before = <uint32_t>(alias - start)
        after = out.props_len - before - 3
        out.props_len -= 3
        if before == 0:
            out.props = start + 3
        elif after:
            if scratch.cap < out.props_len:
                grown = <uint8_t*>realloc(scratch.buf, out.props_len)
                if grown == NULL:
                    raise MemoryError
                scratch.buf = grown
                scratch.cap = out.props_len
            memcpy(scratch.buf, start, before)
            memcpy(scratch.buf + before, alias + 3, after)
            out.props = scratch.buf
        if out.expiry_offset > <int32_t>before:
            out.expiry_offset -= 3
    return <int>(rest.at - body)


cdef int _no_topic(bint v5) except -1:
    if v5:
        return protocol_error(REASON_PROTOCOL_ERROR, "PUBLISH with neither Topic Name nor Topic Alias")
    return protocol_error(REASON_TOPIC_NAME_INVALID, "PUBLISH without Topic Name")


cdef int _no_packet_id() except -1:
    return protocol_error(REASON_PROTOCOL_ERROR, "Packet Identifier 0")


cdef inline int _publish(
    Publish* out, uint8_t flags, const uint8_t* body, uint32_t n, bint v5, Scratch* scratch, bint from_server
) except -1:
    cdef uint32_t at
    cdef uint8_t qos = (flags >> 1) & 3
    if qos == 3:
        return malformed("PUBLISH with QoS 3")
    if flags & 0x0E == 0x08:
        return malformed("PUBLISH with DUP at QoS 0")
    if n < 2:
        return truncated()
    out.topic_len = <uint16_t>((body[0] << 8) | body[1])
    at = 2 + <uint32_t>out.topic_len
    if at + (2 if qos else 0) > n:
        return truncated()
    out.qos = qos
    out.retain = flags & 1
    out.dup = flags >> 3 & 1
    out.has_alias = 0
    out.topic_alias = 0
    out.packet_id = 0
    out.payload_format = 0
    out.expiry_offset = -1
    out.expiry_interval = 0
    out.topic = body + 2
    if qos:
        out.packet_id = <uint16_t>((body[at] << 8) | body[at + 1])
        if out.packet_id == 0:
            return _no_packet_id()
        at += 2
    out.props = body + at
    out.props_len = 0
    if v5:
        if at < n and body[at] == 0:
            at += 1
        else:
            at = <uint32_t>_publish_properties(out, body, at, n, scratch, from_server)
    if out.topic_len == 0 and not out.has_alias:
        return _no_topic(v5)
    out.payload = body + at
    out.payload_len = n - at
    return 0


cdef int decode_publish(
    Publish* out, uint8_t flags, const uint8_t* body, uint32_t n, bint v5, Scratch* scratch
) except -1:
    return _publish(out, flags, body, n, v5, scratch, False)


cdef int decode_delivery(
    Publish* out, uint8_t flags, const uint8_t* body, uint32_t n, bint v5, Scratch* scratch
) except -1:
    return _publish(out, flags, body, n, v5, scratch, True)


cdef int ack_head(
    Ack* out, Cursor* c, uint8_t packet_type, uint8_t flags, const uint8_t* body, uint32_t n, bint v5, bint from_server
) except -1:
    """Decode an ack without its properties; leave the cursor at Property Length, or at the end."""
    if flags != (2 if packet_type == PUBREL else 0):
        return malformed("acknowledgement with reserved flags")
    if n < 2:
        return truncated()
    if n > 2 and not v5:
        return malformed("acknowledgement of more than two bytes")
    out.packet_id = <uint16_t>((body[0] << 8) | body[1])
    out.reason = 0
    if out.packet_id == 0:
        return _no_packet_id()
    c.at = body + 2
    c.end = body + n
    if n > 2:
        out.reason = body[2]
        c.at += 1
        if not reason_allowed(packet_type, out.reason, from_server):
            return bad_reason(packet_type, out.reason)
    return 0


cdef int decode_ack(Ack* out, uint8_t packet_type, uint8_t flags, const uint8_t* body, uint32_t n, bint v5) except -1:
    cdef Cursor c
    ack_head(out, &c, packet_type, flags, body, n, v5, False)
    if c.at != c.end:
        check_properties(&c, packet_type, False)
        return at_end(&c)
    return 0


cdef int decode_pingreq(uint8_t flags, uint32_t n) except -1:
    if flags or n:
        return malformed("PING packet with flags or a body")
    return 0


cdef int bad_reason(uint8_t packet_type, uint8_t reason) except -1:
    return protocol_error(REASON_PROTOCOL_ERROR, f"packet type {packet_type} with Reason Code 0x{reason:02X}")


cdef int at_end(Cursor* c) except -1:
    if c.at != c.end:
        return malformed("bytes after the end of the packet's last field")
    return 0


cdef int check_topic_name(const uint8_t* topic, size_t n) except -1:
    if topic_name_valid(topic, n):
        return 0
    if not utf8_valid(topic, n):
        return bad_utf8()
    return protocol_error(REASON_TOPIC_NAME_INVALID, "Topic Name is empty or has wildcards")


# --- packets for the handler

cdef int connect_version(const uint8_t* body, uint32_t n) noexcept nogil:
    if n >= 7 and memcmp(body, b"\x00\x04MQTT", 6) == 0 and (body[6] == 4 or body[6] == 5):
        return body[6]
    if n >= 9 and memcmp(body, b"\x00\x06MQIsdp", 8) == 0 and body[8] == 3:
        return 3
    return 0


cdef int client_id_of(const uint8_t* body, uint32_t n, const uint8_t** client_id) noexcept nogil:
    cdef int version = connect_version(body, n)
    cdef uint32_t at = (12 if version == 3 else 10), properties = 0, i
    if version == 0 or n < at:
        return -1
    if version == 5:
        for i in range(4):
            if at == n:
                return -1
            properties |= <uint32_t>(body[at] & 0x7F) << 7 * i
            at += 1
            if body[at - 1] < 0x80:
                break
        if n - at < properties:
            return -1
        at += properties
    if n - at < 2:
        return -1
    client_id[0] = body + at + 2
    n -= at + 2
    return body[at] << 8 | body[at + 1] if n >= <uint32_t>(body[at] << 8 | body[at + 1]) else -1


cdef str _read_str(Cursor* c):
    cdef const uint8_t* text
    cdef int length = read_utf8(c, &text)
    return text[:length].decode("utf-8")


cdef bytes _read_bytes(Cursor* c):
    cdef const uint8_t* data
    cdef int length = read_binary(c, &data)
    return data[:length]


cdef Will _read_will(Cursor* c, uint8_t connect_flags, bint v5):
    cdef Will will = Will.__new__(Will)
    cdef Cursor inside
    cdef Property one
    cdef uint64_t seen = 0
    cdef const uint8_t* start
    cdef const uint8_t* delay = NULL
    cdef const uint8_t* topic
    cdef int length
    will.qos = connect_flags >> 3 & 3
    will.retain = connect_flags & 0x20 != 0
    will.properties = b""
    if v5:
        open_properties(c, &inside)
        start = inside.at
        while inside.at != inside.end:
            next_property(&inside, &one, &seen, WILL, False)
            if one.id == WILL_DELAY_INTERVAL:
                will.delay_interval = one.number
                delay = one.start
            elif one.id == MESSAGE_EXPIRY_INTERVAL:
                will.expiry_interval = one.number
        if delay == NULL:
            will.properties = start[:inside.end - start]
        else:                       # identifier and four bytes
            will.properties = start[:delay - start] + (delay + 5)[:inside.end - delay - 5]
    length = read_utf8(c, &topic)
    if not topic_name_valid(topic, <size_t>length):
        protocol_error(REASON_TOPIC_NAME_INVALID, "Will Topic is not a Topic Name")
    will.topic = topic[:length]
    will.payload = _read_bytes(c)
    return will


cdef int _check_connect_flags(uint8_t flags, int version) except -1:
    # MQTT 3.1 does not use the lowest bit, and ignores Will QoS and Will Retain without a will
    if flags & 0x01 and version != 3:
        return malformed("CONNECT with its reserved flag set")
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            return malformed("CONNECT with Will QoS 3")
    elif flags & 0x38 and version != 3:
        return malformed("CONNECT with Will QoS or Will Retain and no Will Flag")
    if version != 5 and flags & 0xC0 == 0x40:
        return malformed("CONNECT with a password and no user name")
    return 0


cdef int check_authentication(dict properties, bint demanded) except -1:
    if "authentication_method" in properties:
        return 0
    if demanded or "authentication_data" in properties:
        return protocol_error(REASON_PROTOCOL_ERROR, "Authentication Method is missing")
    return 0


cdef Connect decode_connect(uint8_t flags, const uint8_t* body, uint32_t n):
    cdef Connect connect = Connect.__new__(Connect)
    cdef Cursor c
    cdef const uint8_t* name
    cdef uint8_t connect_flags
    cdef int version
    c.at = body
    c.end = body + n
    version = connect_version(body, n)
    if flags and version != 3:      # MQTT 3.1 does not use them
        malformed("CONNECT with reserved flags")
    read_binary(&c, &name)
    read_u8(&c)
    if version == 0:
        protocol_error(REASON_UNSUPPORTED_PROTOCOL_VERSION, "protocol name and level are not MQTT 3.1, 3.1.1 or 5")
    connect_flags = read_u8(&c)
    _check_connect_flags(connect_flags, version)
    connect.version = version
    connect.clean_start = connect_flags & 0x02 != 0
    connect.keep_alive = read_u16(&c)
    if version == 5:
        connect.properties = read_properties(&c, CONNECT, False)
        check_authentication(connect.properties, False)
    else:
        connect.properties = {}
    connect.client_id = _read_str(&c)
    if connect_flags & 0x04:
        connect.will = _read_will(&c, connect_flags, version == 5)
    # MQTT 3.1 (3.1, User name and password flags): a server must accept that the flag is set and the string is missing
    if connect_flags & 0x80 and not (version == 3 and c.at == c.end):
        connect.username = _read_str(&c)
    if connect_flags & 0x40 and not (version == 3 and c.at == c.end):
        connect.password = _read_bytes(&c)
    at_end(&c)
    return connect


cdef int _check_options(uint8_t options, const uint8_t* topic_filter, int length, bint v5) except -1:
    if not v5:
        if options > 2:
            return malformed("SUBSCRIBE with QoS 3 or reserved bits")
        return 0
    if options & 0xC0:
        return malformed("Subscription Options with reserved bits")
    if options & 0x03 == 3:
        return protocol_error(REASON_PROTOCOL_ERROR, "SUBSCRIBE with QoS 3")
    if options & 0x30 == 0x30:
        return protocol_error(REASON_PROTOCOL_ERROR, "SUBSCRIBE with Retain Handling 3")
    if options & 0x04 and is_shared(topic_filter, <size_t>length):
        return protocol_error(REASON_PROTOCOL_ERROR, "No Local on a Shared Subscription")
    return 0


cdef int read_packet_id(Cursor* c) except -1:
    cdef int packet_id = read_u16(c)
    if packet_id == 0:
        return _no_packet_id()
    return packet_id


cdef Subscribe decode_subscribe(uint8_t flags, const uint8_t* body, uint32_t n, bint v5):
    cdef Subscribe subscribe = Subscribe.__new__(Subscribe)
    cdef Subscription one
    cdef Cursor c
    cdef const uint8_t* topic_filter
    cdef int length
    c.at = body
    c.end = body + n
    if flags != 2:
        malformed("SUBSCRIBE with reserved flags")
    subscribe.packet_id = read_packet_id(&c)
    subscribe.properties = read_properties(&c, SUBSCRIBE, False) if v5 else {}
    subscribe.identifier = subscribe.properties.get("subscription_identifier", 0)
    subscribe.filters = []
    if c.at == c.end:
        protocol_error(REASON_PROTOCOL_ERROR, "SUBSCRIBE without Topic Filter")
    while c.at != c.end:
        length = read_utf8(&c, &topic_filter)
        one = Subscription.__new__(Subscription)
        one.options = read_u8(&c)
        _check_options(one.options, topic_filter, length, v5)
        one.filter = topic_filter[:length]
        subscribe.filters.append(one)
    return subscribe


cdef Unsubscribe decode_unsubscribe(uint8_t flags, const uint8_t* body, uint32_t n, bint v5):
    cdef Unsubscribe unsubscribe = Unsubscribe.__new__(Unsubscribe)
    cdef Cursor c
    cdef const uint8_t* topic_filter
    cdef int length
    c.at = body
    c.end = body + n
    if flags != 2:
        malformed("UNSUBSCRIBE with reserved flags")
    unsubscribe.packet_id = read_packet_id(&c)
    unsubscribe.properties = read_properties(&c, UNSUBSCRIBE, False) if v5 else {}
    unsubscribe.filters = []
    if c.at == c.end:
        protocol_error(REASON_PROTOCOL_ERROR, "UNSUBSCRIBE without Topic Filter")
    while c.at != c.end:
        length = read_utf8(&c, &topic_filter)
        unsubscribe.filters.append(topic_filter[:length])
    return unsubscribe


cdef Disconnect decode_disconnect(uint8_t flags, const uint8_t* body, uint32_t n, bint v5, bint from_server=False):
    cdef Disconnect disconnect = Disconnect.__new__(Disconnect)
    cdef Cursor c
    c.at = body
    c.end = body + n
    if flags:
        malformed("DISCONNECT with reserved flags")
    if not v5:
        at_end(&c)
        if from_server:
            protocol_error(REASON_PROTOCOL_ERROR, "DISCONNECT by the server before MQTT 5")
    disconnect.properties = {}
    if n:
        disconnect.reason_code = read_u8(&c)
    if not reason_allowed(DISCONNECT, disconnect.reason_code, from_server):
        bad_reason(DISCONNECT, disconnect.reason_code)
    if n > 1:
        disconnect.properties = read_properties(&c, DISCONNECT, from_server)
    at_end(&c)
    return disconnect


cdef Auth decode_auth(uint8_t flags, const uint8_t* body, uint32_t n, bint v5, bint from_server=False):
    cdef Auth auth = Auth.__new__(Auth)
    cdef Cursor c
    c.at = body
    c.end = body + n
    if not v5:
        malformed("packet type 15 before MQTT 5")
    if flags:
        malformed("AUTH with reserved flags")
    auth.properties = {}
    if n:
        auth.reason_code = read_u8(&c)
    if not reason_allowed(AUTH, auth.reason_code, from_server):
        bad_reason(AUTH, auth.reason_code)
    if n:
        auth.properties = read_properties(&c, AUTH, from_server)
        at_end(&c)
        check_authentication(auth.properties, True)
    return auth
