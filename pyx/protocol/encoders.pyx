"""Encoders of control packets: those that the server sends from Python (CONNACK, SUBACK, UNSUBACK, DISCONNECT, AUTH),
and the packets of test clients and tools. PUBLISH and its acks are encoded in the data path, not here.

Every encoder returns the whole packet. It raises ValueError for anything that the standard does not allow its side to
send: an error of the caller, never of a peer. Python imports encoders from pyx.protocol.codec, beside the decoders.
"""
from libc.stdint cimport uint8_t

from pyx.protocol.packets cimport (
    AUTH, CONNACK, CONNECT, DISCONNECT, PUBACK, PUBCOMP, PUBLISH, PUBREL, SUBACK, SUBSCRIBE, Subscription, UNSUBACK,
    UNSUBSCRIBE, WILL, Will,
)
from pyx.protocol.properties cimport pack_properties
from pyx.protocol.reasons cimport (
    REASON_BAD_AUTHENTICATION_METHOD, REASON_BAD_USER_NAME_OR_PASSWORD, REASON_BANNED,
    REASON_CLIENT_IDENTIFIER_NOT_VALID, REASON_CONNECTION_RATE_EXCEEDED, REASON_NOT_AUTHORIZED, REASON_QUOTA_EXCEEDED,
    REASON_SERVER_BUSY, REASON_SERVER_MOVED, REASON_SERVER_UNAVAILABLE, REASON_UNSPECIFIED_ERROR,
    REASON_UNSUPPORTED_PROTOCOL_VERSION, REASON_USE_ANOTHER_SERVER, reason_allowed,
)
from pyx.protocol.wire cimport put_varint, utf8_valid

PINGREQ_BYTES = b"\xC0\x00"
PINGRESP_BYTES = b"\xD0\x00"


cdef bytes _varint(object value):
    cdef uint8_t[4] out
    if value > 0xFFFFFFF:
        raise ValueError(f"{value} does not fit into a Variable Byte Integer")
    return out[:put_varint(out, value) - out]


cdef bytes _text(object text):
    """Encode a string or binary field with its length: str as UTF-8, bytes as they are."""
    cdef bytes data
    if type(text) is str:
        data = (<str>text).encode("utf-8")
        if not utf8_valid(<const uint8_t*><const char*>data, <size_t>len(data)):
            raise ValueError(f"{text!r} contains U+0000")
    else:
        data = bytes(memoryview(text))
    if len(data) > 65535:
        raise ValueError(f"a field has {len(data)} bytes; 65,535 can be sent")
    return len(data).to_bytes(2, "big") + data


cdef bytes _packet_id(object packet_id):
    if not 1 <= packet_id <= 65535:
        raise ValueError(f"Packet Identifier {packet_id}")
    return packet_id.to_bytes(2, "big")


cdef bytes _packet(int first, bytes body):
    return bytes((first,)) + _varint(len(body)) + body


cdef bytes _properties(object properties, int packet_type, bint from_server):
    cdef bytes packed = pack_properties(properties, packet_type, from_server) if properties else b""
    return _varint(len(packed)) + packed


cdef bytes _fit(int first, bytes head, object properties, bytes tail, bint from_server, object packet_bytes_max):
    """Return the packet `head`, properties, `tail`. If it is too large for the receiver, leave out its User Properties,
    then its Reason String (MQTT-3.2.2-19, -20 and the same in other packets)."""
    cdef bytes packet = _packet(first, head + _properties(properties, first >> 4, from_server) + tail)
    cdef dict kept
    if packet_bytes_max is None or len(packet) <= packet_bytes_max or not properties:
        return packet
    kept = dict(properties)
    for name in ("user_property", "reason_string"):
        if kept.pop(name, None) is not None:
            packet = _packet(first, head + _properties(kept, first >> 4, from_server) + tail)
            if len(packet) <= packet_bytes_max:
                break
    return packet


cdef int _check_reason(int packet_type, object reason_code, bint from_server) except -1:
    if not 0 <= reason_code <= 255 or not reason_allowed(packet_type, reason_code, from_server):
        raise ValueError(f"Reason Code {reason_code} cannot be sent in packet type {packet_type}")
    return 0


# CONNACK Reason Code -> return code of MQTT 3.1 and 3.1.1 (table 3.1). Others have none.
cdef dict _RETURN_CODES = {
    0: 0,
    REASON_UNSUPPORTED_PROTOCOL_VERSION: 1,
    REASON_CLIENT_IDENTIFIER_NOT_VALID: 2,
    REASON_SERVER_UNAVAILABLE: 3,
    REASON_SERVER_BUSY: 3,
    REASON_QUOTA_EXCEEDED: 3,
    REASON_CONNECTION_RATE_EXCEEDED: 3,
    REASON_USE_ANOTHER_SERVER: 3,
    REASON_SERVER_MOVED: 3,
    REASON_BAD_USER_NAME_OR_PASSWORD: 4,
    REASON_NOT_AUTHORIZED: 5,
    REASON_BANNED: 5,
    REASON_BAD_AUTHENTICATION_METHOD: 5,
}


def encode_connack(version: int, session_present: bool, reason_code: int, properties: dict | None = None,
                   packet_bytes_max: int | None = None) -> bytes:
    """Encode CONNACK. Versions 3 and 4 get the return code of `reason_code`; if there is none, return b"": then the
    connection is closed without a CONNACK (MQTT-3.2.2-6 of 3.1.1). Session Present is 0 with a refusal, and always in
    version 3, which has no such flag.

    packet_bytes_max (here and below): the receiver's Maximum Packet Size; User Properties and Reason String are left
    out to keep within it. Raise ValueError for anything that the standard does not allow the server to send.
    """
    _check_reason(CONNACK, reason_code, True)
    cdef int present = 1 if session_present and reason_code == 0 else 0
    if version == 5:
        return _fit(CONNACK << 4, bytes((present, reason_code)), properties, b"", True, packet_bytes_max)
    if reason_code not in _RETURN_CODES:
        return b""
    return _packet(CONNACK << 4, bytes((present if version == 4 else 0, _RETURN_CODES[reason_code])))


def encode_suback(version: int, packet_id: int, codes: list[int], properties: dict | None = None,
                  packet_bytes_max: int | None = None) -> bytes:
    """Encode SUBACK. In versions 3 and 4 every code of 0x80 and above becomes 0x80 (MQTT-3.9.3-2 of 3.1.1)."""
    for code in codes:
        _check_reason(SUBACK, code, True)
    cdef bytes head = _packet_id(packet_id)
    if version == 5:
        return _fit(SUBACK << 4, head, properties, bytes(codes), True, packet_bytes_max)
    return _packet(SUBACK << 4, head + bytes([min(code, REASON_UNSPECIFIED_ERROR) for code in codes]))


def encode_unsuback(version: int, packet_id: int, codes: list[int], properties: dict | None = None,
                    packet_bytes_max: int | None = None) -> bytes:
    """Encode UNSUBACK. Versions 3 and 4 have no codes in it: `codes` is ignored."""
    for code in codes:
        _check_reason(UNSUBACK, code, True)
    cdef bytes head = _packet_id(packet_id)
    if version == 5:
        return _fit(UNSUBACK << 4, head, properties, bytes(codes), True, packet_bytes_max)
    return _packet(UNSUBACK << 4, head)


def encode_disconnect(reason_code: int, properties: dict | None = None, version: int = 5, from_server: bool = True,
                      packet_bytes_max: int | None = None) -> bytes:
    """Encode DISCONNECT. A server sends it in version 5 only; versions 3 and 4 are for test clients."""
    if version != 5:
        if from_server or reason_code or properties:
            raise ValueError("before MQTT 5 only clients send DISCONNECT, and it is empty")
        return _packet(DISCONNECT << 4, b"")
    _check_reason(DISCONNECT, reason_code, from_server)
    if not properties:
        return _packet(DISCONNECT << 4, bytes((reason_code,)) if reason_code else b"")
    return _fit(DISCONNECT << 4, bytes((reason_code,)), properties, b"", from_server, packet_bytes_max)


def encode_auth(reason_code: int, properties: dict | None = None, from_server: bool = True,
                packet_bytes_max: int | None = None) -> bytes:
    """Encode AUTH (version 5). `properties` needs "authentication_method" (MQTT 5, 3.15.2.2.2)."""
    _check_reason(AUTH, reason_code, from_server)
    if not properties or "authentication_method" not in properties:
        raise ValueError("AUTH needs an Authentication Method")
    return _fit(AUTH << 4, bytes((reason_code,)), properties, b"", from_server, packet_bytes_max)


def encode_connect(version: int, client_id: str, clean_start: bool = True, keep_alive: int = 0,
                   username: str | None = None, password: bytes | None = None, will: Will | None = None,
                   properties: dict | None = None) -> bytes:
    """Encode CONNECT of version 3 (MQTT 3.1), 4 (3.1.1) or 5. Properties of a will are in wire form: see Will."""
    cdef int flags = 0x02 if clean_start else 0
    cdef list payload = [_text(client_id)]
    cdef Will w = will
    cdef bytes head
    if version == 3:
        head = b"\x00\x06MQIsdp\x03"
    elif version == 4 or version == 5:
        head = b"\x00\x04MQTT" + bytes((version,))
    else:
        raise ValueError(f"version {version}")
    if w is not None:
        flags |= 0x04 | w.qos << 3 | (0x20 if w.retain else 0)
        if version == 5:
            packed = w.properties
            if w.delay_interval:
                packed = pack_properties({"will_delay_interval": w.delay_interval}, WILL, False) + packed
            payload.append(_varint(len(packed)) + packed)
        payload.append(_text(w.topic))
        payload.append(_text(w.payload))
    if username is not None:
        flags |= 0x80
        payload.append(_text(username))
    if password is not None:
        flags |= 0x40
        payload.append(_text(password))
    head += bytes((flags,)) + int(keep_alive).to_bytes(2, "big")
    if version == 5:
        head += _properties(properties, CONNECT, False)
    return _packet(CONNECT << 4, head + b"".join(payload))


def encode_publish(version: int, topic: bytes | str, payload: bytes = b"", qos: int = 0, retain: bool = False,
                   dup: bool = False, packet_id: int = 0, properties: dict | None = None,
                   from_server: bool = False) -> bytes:
    """Encode PUBLISH. packet_id is needed at QoS 1 and 2, and must be 0 at QoS 0."""
    if not 0 <= qos <= 2 or (qos == 0 and (packet_id or dup)):
        raise ValueError("QoS is 0 to 2, and QoS 0 has neither Packet Identifier nor DUP")
    cdef bytes head = _text(topic)
    if qos:
        head += _packet_id(packet_id)
    if version == 5:
        head += _properties(properties, PUBLISH, from_server)
    return _packet(PUBLISH << 4 | (8 if dup else 0) | <int>qos << 1 | (1 if retain else 0), head + payload)


def encode_ack(version: int, packet_type: int, packet_id: int, reason_code: int = 0, properties: dict | None = None,
               from_server: bool = False, packet_bytes_max: int | None = None) -> bytes:
    """Encode PUBACK (4), PUBREC (5), PUBREL (6) or PUBCOMP (7). Versions 3 and 4 have neither Reason Code nor
    properties: both are ignored."""
    if not PUBACK <= packet_type <= PUBCOMP:
        raise ValueError(f"packet type {packet_type}")
    cdef int first = packet_type << 4 | (2 if packet_type == PUBREL else 0)
    cdef bytes head = _packet_id(packet_id)
    if version != 5:
        return _packet(first, head)
    _check_reason(packet_type, reason_code, from_server)
    if not properties:
        return _packet(first, head + (bytes((reason_code,)) if reason_code else b""))
    return _fit(first, head + bytes((reason_code,)), properties, b"", from_server, packet_bytes_max)


def encode_subscribe(version: int, packet_id: int, filters: list, properties: dict | None = None) -> bytes:
    """Encode SUBSCRIBE. filters: Subscription objects or (filter, options byte) pairs, the filter str or bytes."""
    cdef bytes head = _packet_id(packet_id)
    if version == 5:
        head += _properties(properties, SUBSCRIBE, False)
    parts = [head]
    for one in filters:
        topic_filter, options = (one.filter, one.options) if isinstance(one, Subscription) else one
        parts.append(_text(topic_filter) + bytes((options,)))
    return _packet(SUBSCRIBE << 4 | 2, b"".join(parts))


def encode_unsubscribe(version: int, packet_id: int, filters: list, properties: dict | None = None) -> bytes:
    """Encode UNSUBSCRIBE. filters: str or bytes."""
    cdef bytes head = _packet_id(packet_id)
    if version == 5:
        head += _properties(properties, UNSUBSCRIBE, False)
    return _packet(UNSUBSCRIBE << 4 | 2, b"".join([head, *[_text(one) for one in filters]]))
