"""Codec of control packets for Python: the encoders, a decoder of one packet, a decoder of a byte stream. For tests,
tools and clients; a broker decodes with pyx.protocol.decoders, which makes no object for a PUBLISH or an ack.
"""
import cython

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memset

from pyx.protocol.decoders cimport (
    Ack, Publish, Scratch, ack_head, at_end, bad_reason, check_authentication, check_topic_name, decode_auth,
    decode_connect, decode_delivery, decode_disconnect, decode_pingreq, decode_publish, decode_subscribe,
    decode_unsubscribe, fixed_header, packet_flags, read_packet_id,
)
from pyx.protocol.packets cimport (
    AUTH, CONNACK, CONNECT, Connect, DISCONNECT, PINGREQ, PINGRESP, PUBACK, PUBCOMP, PUBLISH, SUBACK, SUBSCRIBE,
    UNSUBACK, UNSUBSCRIBE,
    Ack as AckPacket, Connack, Packet, Pingreq, Pingresp, Publish as PublishPacket, Suback, Unsuback,
)
from pyx.protocol.properties cimport read_properties
from pyx.protocol.reasons cimport (
    REASON_PACKET_TOO_LARGE, REASON_PROTOCOL_ERROR, malformed, protocol_error, reason_allowed,
)
from pyx.protocol.wire cimport Cursor, read_u8, varint_size

import pyx.protocol.encoders as _encoders

PINGREQ_BYTES = _encoders.PINGREQ_BYTES
PINGRESP_BYTES = _encoders.PINGRESP_BYTES
encode_connack = _encoders.encode_connack
encode_suback = _encoders.encode_suback
encode_unsuback = _encoders.encode_unsuback
encode_disconnect = _encoders.encode_disconnect
encode_auth = _encoders.encode_auth
encode_connect = _encoders.encode_connect
encode_publish = _encoders.encode_publish
encode_ack = _encoders.encode_ack
encode_subscribe = _encoders.encode_subscribe
encode_unsubscribe = _encoders.encode_unsubscribe


cdef PublishPacket _publish_packet(uint8_t flags, const uint8_t* body, uint32_t n, bint v5, bint from_server):
    cdef PublishPacket packet = PublishPacket.__new__(PublishPacket)
    cdef Publish p
    cdef Scratch scratch = Scratch(NULL, 0)
    cdef Cursor c
    memset(&p, 0, sizeof(p))
    try:
        if from_server:
            decode_delivery(&p, flags, body, n, v5, &scratch)
        else:
            decode_publish(&p, flags, body, n, v5, &scratch)
    finally:
        free(scratch.buf)           # p.props may point there: properties are read from the packet below, alias included
    if p.topic_len:
        check_topic_name(p.topic, p.topic_len)
    packet.topic = p.topic[:p.topic_len]
    packet.payload = p.payload[:p.payload_len]
    packet.qos = p.qos
    packet.retain = p.retain
    packet.dup = p.dup
    packet.packet_id = p.packet_id
    packet.properties = {}
    if v5:
        c.at = p.topic + p.topic_len + (2 if p.qos else 0)
        c.end = p.payload
        packet.properties = read_properties(&c, PUBLISH, from_server)
    return packet


cdef AckPacket _ack_packet(
    uint8_t packet_type, uint8_t flags, const uint8_t* body, uint32_t n, bint v5, bint from_server
):
    cdef AckPacket packet = AckPacket.__new__(AckPacket)
    cdef Ack ack = Ack(0, 0)
    cdef Cursor c
    ack_head(&ack, &c, packet_type, flags, body, n, v5, from_server)
    packet.packet_type = packet_type
    packet.packet_id = ack.packet_id
    packet.reason_code = ack.reason
    packet.properties = {}
    if c.at != c.end:
        packet.properties = read_properties(&c, packet_type, from_server)
        at_end(&c)
    return packet


cdef Connack _connack(const uint8_t* body, uint32_t n, bint v5):
    cdef Connack connack = Connack.__new__(Connack)
    cdef Cursor c
    cdef int session_present
    c.at = body
    c.end = body + n
    session_present = read_u8(&c)
    connack.reason_code = read_u8(&c)
    connack.session_present = session_present
    connack.properties = read_properties(&c, CONNACK, True) if v5 else {}
    at_end(&c)
    if session_present > 1 or (session_present and connack.reason_code):
        malformed("CONNACK with reserved flags, or Session Present and a refusal")
    if not (reason_allowed(CONNACK, connack.reason_code, True) if v5 else connack.reason_code <= 5):
        bad_reason(CONNACK, connack.reason_code)
    check_authentication(connack.properties, False)
    return connack


cdef list _read_codes(Cursor* c, uint8_t packet_type, bint v5):
    cdef list codes = []
    cdef uint8_t code
    if c.at == c.end:
        malformed("acknowledgement without Reason Codes")
    while c.at != c.end:
        code = read_u8(c)
        if not (reason_allowed(packet_type, code, True) if v5 else code <= 2 or code == 0x80):
            bad_reason(packet_type, code)
        codes.append(code)
    return codes


cdef Suback _suback(const uint8_t* body, uint32_t n, bint v5):
    cdef Suback suback = Suback.__new__(Suback)
    cdef Cursor c
    c.at = body
    c.end = body + n
    suback.packet_id = read_packet_id(&c)
    suback.properties = read_properties(&c, SUBACK, True) if v5 else {}
    suback.codes = _read_codes(&c, SUBACK, v5)
    return suback


cdef Unsuback _unsuback(const uint8_t* body, uint32_t n, bint v5):
    cdef Unsuback unsuback = Unsuback.__new__(Unsuback)
    cdef Cursor c
    c.at = body
    c.end = body + n
    unsuback.packet_id = read_packet_id(&c)
    unsuback.properties = read_properties(&c, UNSUBACK, True) if v5 else {}
    unsuback.codes = []
    if v5:
        unsuback.codes = _read_codes(&c, UNSUBACK, v5)
    at_end(&c)
    return unsuback


cdef Packet _by_client(uint8_t packet_type, uint8_t flags, const uint8_t* body, uint32_t n, bint v5):
    if packet_type == CONNECT:
        return decode_connect(flags, body, n)
    if packet_type == SUBSCRIBE:
        return decode_subscribe(flags, body, n, v5)
    if packet_type == UNSUBSCRIBE:
        return decode_unsubscribe(flags, body, n, v5)
    if packet_type == PINGREQ:
        decode_pingreq(flags, n)
        return Pingreq()
    protocol_error(REASON_PROTOCOL_ERROR, f"packet type {packet_type} is for the server to send")


cdef Packet _by_server(uint8_t packet_type, uint8_t flags, const uint8_t* body, uint32_t n, bint v5):
    if packet_type not in (CONNACK, SUBACK, UNSUBACK, PINGRESP):
        protocol_error(REASON_PROTOCOL_ERROR, f"packet type {packet_type} is for a client to send")
    if flags:
        malformed("packet with reserved flags")
    if packet_type == CONNACK:
        return _connack(body, n, v5)
    if packet_type == SUBACK:
        return _suback(body, n, v5)
    if packet_type == UNSUBACK:
        return _unsuback(body, n, v5)
    decode_pingreq(flags, n)
    return Pingresp()


cdef Packet _decode(uint8_t first, const uint8_t* body, uint32_t n, uint8_t version, bint from_server):
    cdef uint8_t packet_type = first >> 4
    cdef uint8_t flags = first & 0x0F if packet_type == CONNECT else packet_flags(first, version)
    cdef bint v5 = version == 5
    if packet_type == 0:
        malformed("packet type 0")
    if packet_type == PUBLISH:
        return _publish_packet(flags, body, n, v5, from_server)
    if PUBACK <= packet_type <= PUBCOMP:
        return _ack_packet(packet_type, flags, body, n, v5, from_server)
    if packet_type == DISCONNECT:
        return decode_disconnect(flags, body, n, v5, from_server)
    if packet_type == AUTH:
        return decode_auth(flags, body, n, v5, from_server)
    if from_server:
        return _by_server(packet_type, flags, body, n, v5)
    return _by_client(packet_type, flags, body, n, v5)


class Incomplete(Exception):
    """Error of `decode`: the packet is not complete, wait for more bytes."""


cdef Packet _first_packet(
    const uint8_t* data, size_t n, uint8_t version, bint from_server, uint32_t packet_bytes_max, size_t* used
):
    """Return the packet at the start of `data`, None if it is not complete; set *used to its length in bytes."""
    cdef uint32_t remaining = 0
    cdef bint connect = n != 0 and data[0] >> 4 == CONNECT
    cdef int head
    cdef Packet packet
    head = fixed_header(data, n, version == 5 and not connect, &remaining)
    if head < 0:
        malformed("Remaining Length is no Variable Byte Integer")
    if head == 0:
        return None
    if <size_t>head + remaining > packet_bytes_max:
        protocol_error(REASON_PACKET_TOO_LARGE, f"packet of {head + remaining} bytes")
    if n - <size_t>head < remaining:
        return None
    packet = _decode(data[0], data + head, remaining, version, from_server)
    if connect and (<Connect>packet).version == 5 and <uint32_t>head != 1 + varint_size(remaining):
        malformed("Remaining Length of more bytes than needed")
    used[0] = <size_t>head + remaining
    return packet


def decode(data: bytes, version: int, from_server: bool = False) -> Packet:
    """Return the packet at the start of `data`; bytes after it are ignored (see Decoder).

    version: 3, 4 or 5 as agreed by CONNECT (which names its own). from_server: the server sent it, else a client;
    CONNACK, SUBACK, UNSUBACK and PINGRESP come from the server only, CONNECT, SUBSCRIBE, UNSUBSCRIBE and PINGREQ from
    clients only. Raise Incomplete, MalformedPacket or ProtocolError.
    """
    cdef size_t used
    cdef const uint8_t* start = <const uint8_t*><const char*>data
    cdef Packet packet = _first_packet(start, <size_t>len(data), version, from_server, 0xFFFFFFFF, &used)
    if packet is None:
        raise Incomplete
    return packet


@cython.final
cdef class Decoder:
    """A decoder of a byte stream: call `feed`, then `next_packet` until it returns None. For tests and tools.

    A decoded CONNECT sets `version`. packet_bytes_max bounds the buffer: a larger packet raises ProtocolError 0x95 as
    soon as its fixed header is complete. After an error the decoder must not be used.
    """

    cdef public uint8_t version
    cdef readonly bint from_server
    cdef readonly uint32_t packet_bytes_max
    cdef bytearray _bytes

    def __init__(self, uint8_t version=4, bint from_server=False, uint32_t packet_bytes_max=268_435_460):
        self.version = version
        self.from_server = from_server
        self.packet_bytes_max = packet_bytes_max
        self._bytes = bytearray()

    def feed(self, bytes data not None) -> None:
        self._bytes += data

    def next_packet(self) -> Packet | None:
        cdef size_t used = 0
        cdef const char* start = self._bytes
        cdef Packet packet = _first_packet(
            <const uint8_t*>start, <size_t>len(self._bytes), self.version, self.from_server, self.packet_bytes_max,
            &used,
        )
        if packet is not None:
            del self._bytes[:used]
            if type(packet) is Connect:
                self.version = (<Connect>packet).version
        return packet


def publish_fields(flags: int, body: bytes, v5: bool) -> dict:
    """Return the Publish struct of decode_publish as a dict; "topic", "props" and "payload" are bytes. For tests."""
    cdef Publish p
    cdef Scratch scratch = Scratch(NULL, 0)
    memset(&p, 0, sizeof(p))
    try:
        decode_publish(&p, flags, <const uint8_t*><const char*>body, <uint32_t>len(body), v5, &scratch)
        return {
            "qos": p.qos, "retain": p.retain, "dup": p.dup, "has_alias": p.has_alias, "packet_id": p.packet_id,
            "topic_alias": p.topic_alias, "expiry_offset": p.expiry_offset, "expiry_interval": p.expiry_interval,
            "payload_format": p.payload_format, "topic": p.topic[:p.topic_len], "props": p.props[:p.props_len],
            "payload": p.payload[:p.payload_len],
        }
    finally:
        free(scratch.buf)
