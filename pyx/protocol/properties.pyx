"""MQTT 5 properties (2.2.2.2), driven by TABLE: adding a property is adding a row.

Errors follow the standard: a property that is not defined for its packet is Malformed (2.2.2.2); one that is repeated,
that only the other side may send or whose value is not allowed is a Protocol Error (or the row's own Reason Code).
"""
from libc.stdint cimport int64_t, uint16_t

from pyx.protocol.packets cimport (
    AUTH, CONNACK, CONNECT, DISCONNECT, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, SUBSCRIBE, UNSUBACK,
    UNSUBSCRIBE, WILL,
)
from pyx.protocol.reasons cimport REASON_PROTOCOL_ERROR, REASON_TOPIC_ALIAS_INVALID, malformed, protocol_error
from pyx.protocol.topics cimport has_wildcard
from pyx.protocol.wire cimport (
    put_varint, read_binary, read_u8, read_u16, read_u32, read_utf8, read_varint, truncated, utf8_valid, varint_size,
)


cdef enum PropertyType:
    UNKNOWN = 0
    BYTE
    TWO_BYTE
    FOUR_BYTE
    VARINT
    BINARY
    UTF8
    TOPIC           # UTF-8 that is a Topic Name: not empty, no wildcards
    UTF8_PAIR


cdef struct Rule:
    uint8_t type
    uint8_t reason                  # for a value outside of minimum .. maximum
    uint16_t[2] packets             # [from_server]: bit t = allowed in packet type t, bit 0 = in the Will Properties
    uint16_t repeatable             # bit t: may occur more than once there
    uint32_t minimum
    uint32_t maximum


_ACKS = (PUBACK, PUBREC, PUBREL, PUBCOMP)
_MESSAGE_BY_CLIENT = (PUBLISH, WILL)
_BY_CLIENT = (CONNECT, WILL, PUBLISH, *_ACKS, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH)
_BY_SERVER = (CONNACK, PUBLISH, *_ACKS, SUBACK, UNSUBACK, DISCONNECT, AUTH)

# identifier, name, type, packets in which a client sends it, in which the server sends it, in which it may be repeated,
# least and greatest value
TABLE = (
    (PAYLOAD_FORMAT_INDICATOR, "payload_format_indicator", BYTE, _MESSAGE_BY_CLIENT, (PUBLISH,), (), 0, 1),
    (MESSAGE_EXPIRY_INTERVAL, "message_expiry_interval", FOUR_BYTE, _MESSAGE_BY_CLIENT, (PUBLISH,), (), 0, 0xFFFFFFFF),
    (CONTENT_TYPE, "content_type", UTF8, _MESSAGE_BY_CLIENT, (PUBLISH,), (), 0, 0),
    (RESPONSE_TOPIC, "response_topic", TOPIC, _MESSAGE_BY_CLIENT, (PUBLISH,), (), 0, 0),
    (CORRELATION_DATA, "correlation_data", BINARY, _MESSAGE_BY_CLIENT, (PUBLISH,), (), 0, 0),
    (SUBSCRIPTION_IDENTIFIER, "subscription_identifier", VARINT, (SUBSCRIBE,), (PUBLISH,), (PUBLISH,), 1, 0xFFFFFFF),
    (SESSION_EXPIRY_INTERVAL, "session_expiry_interval", FOUR_BYTE, (CONNECT, DISCONNECT), (CONNACK,), (),
     0, 0xFFFFFFFF),
    (ASSIGNED_CLIENT_IDENTIFIER, "assigned_client_identifier", UTF8, (), (CONNACK,), (), 0, 0),
    (SERVER_KEEP_ALIVE, "server_keep_alive", TWO_BYTE, (), (CONNACK,), (), 0, 0xFFFF),
    (AUTHENTICATION_METHOD, "authentication_method", UTF8, (CONNECT, AUTH), (CONNACK, AUTH), (), 0, 0),
    (AUTHENTICATION_DATA, "authentication_data", BINARY, (CONNECT, AUTH), (CONNACK, AUTH), (), 0, 0),
    (REQUEST_PROBLEM_INFORMATION, "request_problem_information", BYTE, (CONNECT,), (), (), 0, 1),
    (WILL_DELAY_INTERVAL, "will_delay_interval", FOUR_BYTE, (WILL,), (), (), 0, 0xFFFFFFFF),
    (REQUEST_RESPONSE_INFORMATION, "request_response_information", BYTE, (CONNECT,), (), (), 0, 1),
    (RESPONSE_INFORMATION, "response_information", UTF8, (), (CONNACK,), (), 0, 0),
    (SERVER_REFERENCE, "server_reference", UTF8, (), (CONNACK, DISCONNECT), (), 0, 0),
    (REASON_STRING, "reason_string", UTF8, (*_ACKS, DISCONNECT, AUTH),
     (CONNACK, *_ACKS, SUBACK, UNSUBACK, DISCONNECT, AUTH), (), 0, 0),
    (RECEIVE_MAXIMUM, "receive_maximum", TWO_BYTE, (CONNECT,), (CONNACK,), (), 1, 0xFFFF),
    (TOPIC_ALIAS_MAXIMUM, "topic_alias_maximum", TWO_BYTE, (CONNECT,), (CONNACK,), (), 0, 0xFFFF),
    (TOPIC_ALIAS, "topic_alias", TWO_BYTE, (PUBLISH,), (PUBLISH,), (), 1, 0xFFFF),
    (MAXIMUM_QOS, "maximum_qos", BYTE, (), (CONNACK,), (), 0, 1),
    (RETAIN_AVAILABLE, "retain_available", BYTE, (), (CONNACK,), (), 0, 1),
    (USER_PROPERTY, "user_property", UTF8_PAIR, _BY_CLIENT, _BY_SERVER, (*_BY_CLIENT, *_BY_SERVER), 0, 0),
    (MAXIMUM_PACKET_SIZE, "maximum_packet_size", FOUR_BYTE, (CONNECT,), (CONNACK,), (), 1, 0xFFFFFFFF),
    (WILDCARD_SUBSCRIPTION_AVAILABLE, "wildcard_subscription_available", BYTE, (), (CONNACK,), (), 0, 1),
    (SUBSCRIPTION_IDENTIFIER_AVAILABLE, "subscription_identifier_available", BYTE, (), (CONNACK,), (), 0, 1),
    (SHARED_SUBSCRIPTION_AVAILABLE, "shared_subscription_available", BYTE, (), (CONNACK,), (), 0, 1),
)

cdef Rule[64] _rules                # by identifier; all of them are below 64, so one word records those seen
cdef list _names = [None] * 64
cdef dict _ids = {}


cdef uint16_t _bits(tuple packet_types):
    cdef uint16_t bits = 0
    for packet_type in packet_types:
        bits |= <uint16_t>(1 << <int>packet_type)
    return bits


def _fill():
    cdef Rule* rule
    for identifier, name, type_, from_client, from_server, repeatable, minimum, maximum in TABLE:
        rule = &_rules[<int>identifier]
        rule.type = type_
        rule.reason = REASON_TOPIC_ALIAS_INVALID if identifier == TOPIC_ALIAS else REASON_PROTOCOL_ERROR
        rule.packets[0] = _bits(from_client)
        rule.packets[1] = _bits(from_server)
        rule.repeatable = _bits(repeatable)
        rule.minimum = minimum
        rule.maximum = maximum
        _names[<int>identifier] = name
        _ids[name] = identifier


_fill()


cdef int _refuse(uint8_t id, const char* why, uint8_t reason) except -1:
    cdef str text = f"property {_names[id] or hex(id)} {why.decode('ascii')}"
    if reason:
        return protocol_error(reason, text)
    return malformed(text)


cdef int next_property(Cursor* c, Property* out, uint64_t* seen, uint8_t packet_type, bint from_server) except -1:
    cdef uint8_t id
    cdef uint16_t bit = <uint16_t>(1 << packet_type)
    cdef Rule* rule
    cdef bint number = True
    out.start = c.at
    id = read_u8(c)                 # a Variable Byte Integer by the standard; all existing ones take one byte
    if id >= 64:
        return malformed(f"unknown property {id:#x}")
    rule = &_rules[id]
    if not rule.packets[1 if from_server else 0] & bit:
        if rule.packets[0 if from_server else 1] & bit:
            return _refuse(id, b"is for the other side to send", REASON_PROTOCOL_ERROR)
        return _refuse(id, b"does not belong into this packet", 0)
    if seen[0] >> id & 1 and not rule.repeatable & bit:
        return _refuse(id, b"is repeated", REASON_PROTOCOL_ERROR)
    seen[0] |= <uint64_t>1 << id
    out.id = id
    if rule.type == BYTE:
        out.number = read_u8(c)
    elif rule.type == TWO_BYTE:
        out.number = read_u16(c)
    elif rule.type == FOUR_BYTE:
        out.number = <uint32_t>read_u32(c)
    elif rule.type == VARINT:
        out.number = <uint32_t>read_varint(c)
    else:
        number = False
        if rule.type == BINARY:
            out.text_len = read_binary(c, &out.text)
        else:
            out.text_len = read_utf8(c, &out.text)
            if rule.type == UTF8_PAIR:
                out.value_len = read_utf8(c, &out.value)
            elif rule.type == TOPIC and (out.text_len == 0 or has_wildcard(out.text, out.text_len)):
                return _refuse(id, b"is not a Topic Name", REASON_PROTOCOL_ERROR)
    if number and (out.number < rule.minimum or out.number > rule.maximum):
        return _refuse(id, b"has a value that is not allowed", rule.reason)
    return 0


cdef int64_t find_property(const uint8_t* props, uint32_t n, uint8_t wanted) except -2:
    """Return the offset of the value of the first property `wanted` in properties that were checked on arrival, -1 =
    none. The allowed characters and values may have changed since: only the lengths are checked. ValueError: they
    do not fit."""
    cdef const uint8_t* at = props
    cdef const uint8_t* end = props + n
    cdef uint8_t type
    cdef uint32_t strings, size
    while at < end:
        if at[0] == wanted:
            return at + 1 - props
        type = _rules[at[0]].type if at[0] < 64 else UNKNOWN
        at += 1
        strings = 0
        if type == BYTE:
            at += 1
        elif type == TWO_BYTE:
            at += 2
        elif type == FOUR_BYTE:
            at += 4
        elif type == VARINT:
            while at < end and at[0] & 0x80:
                at += 1
            at += 1
        elif type == UNKNOWN:
            raise ValueError("a property is unknown")
        else:
            strings = 2 if type == UTF8_PAIR else 1
        while strings:
            if end - at < 2:
                break
            size = <uint32_t>at[0] << 8 | at[1]
            if end - at - 2 < <int64_t>size:
                break
            at += 2 + size
            strings -= 1
        if at > end or strings:
            raise ValueError("properties are cut off")
    return -1


cdef int open_properties(Cursor* c, Cursor* out) except -1:
    cdef uint32_t length = <uint32_t>read_varint(c)
    if <size_t>(c.end - c.at) < length:
        return truncated()
    out.at = c.at
    c.at += length
    out.end = c.at
    return 0


cdef int check_properties(Cursor* c, uint8_t packet_type, bint from_server) except -1:
    cdef Cursor inside
    cdef Property one
    cdef uint64_t seen = 0
    open_properties(c, &inside)
    while inside.at != inside.end:
        next_property(&inside, &one, &seen, packet_type, from_server)
    return 0


cdef object _value(Property* p):
    cdef uint8_t type = _rules[p.id].type
    if type == BINARY:
        return p.text[:p.text_len]
    if type == UTF8 or type == TOPIC:
        return p.text[:p.text_len].decode("utf-8")
    if type == UTF8_PAIR:
        return (p.text[:p.text_len].decode("utf-8"), p.value[:p.value_len].decode("utf-8"))
    return p.number


cdef dict _read_inside(Cursor* inside, uint8_t packet_type, bint from_server):
    cdef Property one
    cdef uint64_t seen = 0
    cdef dict properties = {}
    cdef str name
    while inside.at != inside.end:
        next_property(inside, &one, &seen, packet_type, from_server)
        name = _names[one.id]
        if _rules[one.id].repeatable >> packet_type & 1:
            properties.setdefault(name, []).append(_value(&one))
        else:
            properties[name] = _value(&one)
    return properties


cdef dict read_properties(Cursor* c, uint8_t packet_type, bint from_server):
    cdef Cursor inside
    open_properties(c, &inside)
    return _read_inside(&inside, packet_type, from_server)


cdef int _append_text(bytearray out, object text, bint utf8) except -1:
    cdef bytes data
    if utf8:
        if type(text) is not str:
            raise ValueError(f"{text!r} is not a str")
        data = (<str>text).encode("utf-8")
        if not utf8_valid(<const uint8_t*><const char*>data, <size_t>len(data)):
            raise ValueError(f"{text!r} contains U+0000")
    else:
        data = bytes(memoryview(text))
    if len(data) > 65535:
        raise ValueError(f"a string or binary value has {len(data)} bytes; 65,535 can be sent")
    out += len(data).to_bytes(2, "big")
    out += data
    return 0


cdef int _append(bytearray out, int id, object value) except -1:
    cdef Rule* rule = &_rules[id]
    cdef uint8_t[4] varint
    cdef int64_t number
    out.append(id)
    if rule.type == UTF8_PAIR:
        name, text = value
        _append_text(out, name, True)
        _append_text(out, text, True)
    elif rule.type == BINARY or rule.type == UTF8 or rule.type == TOPIC:
        _append_text(out, value, rule.type != BINARY)
        if rule.type == TOPIC and (not value or "+" in value or "#" in value):
            raise ValueError(f"{value!r} is not a Topic Name")
    else:
        number = value
        if number < rule.minimum or number > rule.maximum:
            raise ValueError(f"{_names[id]} is {number}; {rule.minimum} to {rule.maximum} can be sent")
        if rule.type == VARINT:
            put_varint(varint, <uint32_t>number)
            out += varint[:varint_size(<uint32_t>number)]
        else:
            out += int(number).to_bytes(1 if rule.type == BYTE else 2 if rule.type == TWO_BYTE else 4, "big")
    return 0


cdef bytes pack_properties(dict properties, uint8_t packet_type, bint from_server):
    cdef bytearray out = bytearray()
    cdef int id
    for name, value in properties.items():
        id = _ids.get(name, 0)
        if id == 0:
            raise ValueError(f"there is no property {name!r}")
        if not _rules[id].packets[1 if from_server else 0] >> packet_type & 1:
            sender = "server" if from_server else "client"
            raise ValueError(f"{name} cannot be sent in packet type {packet_type} by the {sender}")
        if _rules[id].repeatable >> packet_type & 1:
            for one in value:
                _append(out, id, one)
        else:
            _append(out, id, value)
    return bytes(out)


def pack(properties: dict, packet_type: int, from_server: bool = False) -> bytes:
    """Return the wire form of `properties` without Property Length. packet_type: 1 = CONNECT ... 15 = AUTH, 0 = Will.

    Raises ValueError for a name, value, packet or sender that the table does not have (MQTT 5, 2.2.2.2).
    """
    if not 0 <= packet_type <= 15:
        raise ValueError(f"there is no packet type {packet_type}")
    return pack_properties(properties, packet_type, from_server)


def unpack(data: bytes, packet_type: int, from_server: bool = False) -> dict:
    """Do the reverse of `pack`. Raises MalformedPacket or ProtocolError."""
    cdef Cursor inside
    if not 0 <= packet_type <= 15:
        raise ValueError(f"there is no packet type {packet_type}")
    inside.at = <const uint8_t*><const char*>data
    inside.end = inside.at + len(data)
    return _read_inside(&inside, packet_type, from_server)
