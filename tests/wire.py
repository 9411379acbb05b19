"""A small MQTT client on a raw blocking socket, for tests only.

It shares no code with ``pyx`` and is written from the standard, so that it cannot repeat an error of the codec. v3.1,
v3.1.1 and v5 are ``version`` 3, 4 and 5. It has three layers; use the lowest that reads well:

* builders (``connect``, ``publish``, ``subscribe``, ...) return the bytes of one packet;
* ``decode`` turns the bytes of one packet of any kind into a ``Packet``; fields that it lacks have their defaults;
* ``Client`` has the socket. Every read has a deadline; ``expect(kind, **fields)`` reads *the next* packet and compares
  the given fields; ``expect_closed`` and ``expect_silence`` assert that nothing more arrives. Methods named after a
  packet (``client.subscribe``) do the whole exchange, and keep packets that arrive in between for later.

PINGREQ proves silence: all packets that the broker sent before its answer arrive before the PINGRESP. Packets caused by
another client need a marker instead: a later message on the same path (see ``tests/conformance/conftest.py``).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

#: Deadline for a packet. Generous, because a loaded machine is no failure; a passing test never waits for its end.
DEADLINE_SECONDS = float(os.environ.get("MQTTD_TEST_DEADLINE_SECONDS", "30"))

#: Whether the broker always sends DISCONNECT after an error, as the standard recommends. mosquitto often just closes.
TELLS_WHY = os.environ.get("MQTTD_TEST_BROKER", "mqttd") == "mqttd"

KINDS = {
    1: "CONNECT",
    2: "CONNACK",
    3: "PUBLISH",
    4: "PUBACK",
    5: "PUBREC",
    6: "PUBREL",
    7: "PUBCOMP",
    8: "SUBSCRIBE",
    9: "SUBACK",
    10: "UNSUBSCRIBE",
    11: "UNSUBACK",
    12: "PINGREQ",
    13: "PINGRESP",
    14: "DISCONNECT",
    15: "AUTH",
}
TYPES = {name: number for number, name in KINDS.items()}

#: MQTT 5.0, table 2-4: identifier -> (name, type)
PROPERTIES = {
    0x01: ("payload_format_indicator", "byte"),
    0x02: ("message_expiry_interval", "four"),
    0x03: ("content_type", "utf8"),
    0x08: ("response_topic", "utf8"),
    0x09: ("correlation_data", "binary"),
    0x0B: ("subscription_identifier", "varint"),
    0x11: ("session_expiry_interval", "four"),
    0x12: ("assigned_client_identifier", "utf8"),
    0x13: ("server_keep_alive", "two"),
    0x15: ("authentication_method", "utf8"),
    0x16: ("authentication_data", "binary"),
    0x17: ("request_problem_information", "byte"),
    0x18: ("will_delay_interval", "four"),
    0x19: ("request_response_information", "byte"),
    0x1A: ("response_information", "utf8"),
    0x1C: ("server_reference", "utf8"),
    0x1F: ("reason_string", "utf8"),
    0x21: ("receive_maximum", "two"),
    0x22: ("topic_alias_maximum", "two"),
    0x23: ("topic_alias", "two"),
    0x24: ("maximum_qos", "byte"),
    0x25: ("retain_available", "byte"),
    0x26: ("user_property", "pair"),
    0x27: ("maximum_packet_size", "four"),
    0x28: ("wildcard_subscription_available", "byte"),
    0x29: ("subscription_identifier_available", "byte"),
    0x2A: ("shared_subscription_available", "byte"),
}
PROPERTY_IDS = {name: (number, kind) for number, (name, kind) in PROPERTIES.items()}
REPEATED = {"user_property", "subscription_identifier"}

#: MQTT 5.0, table 2-4: the properties allowed in packets of a server
_ACK = {"reason_string", "user_property"}
FROM_A_SERVER = {
    "CONNACK": _ACK
    | {"session_expiry_interval", "assigned_client_identifier", "server_keep_alive", "authentication_method"}
    | {"authentication_data", "response_information", "server_reference", "receive_maximum", "topic_alias_maximum"}
    | {"maximum_qos", "retain_available", "maximum_packet_size", "wildcard_subscription_available"}
    | {"subscription_identifier_available", "shared_subscription_available"},
    "PUBLISH": {"payload_format_indicator", "message_expiry_interval", "content_type", "response_topic"}
    | {"correlation_data", "subscription_identifier", "topic_alias", "user_property"},
    **dict.fromkeys(("PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBACK", "UNSUBACK"), _ACK),
    "DISCONNECT": _ACK | {"server_reference"},
    "AUTH": _ACK | {"authentication_method", "authentication_data"},
}

Properties = Mapping[str, Any]
NOTHING: Properties = MappingProxyType({})


class Closed(Exception):
    """The broker closed the connection."""


class Will(NamedTuple):
    """The will of a CONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NOTHING


@dataclass(frozen=True)
class Packet:
    """One packet, decoded. ``reason`` is the reason code of v5 and the return code of a v3 CONNACK."""

    kind: str
    flags: int
    body: bytes
    packet_id: int = 0
    reason: int = 0
    session_present: bool = False
    codes: tuple[int, ...] = ()
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    properties: dict[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------- bytes of one packet


def varint(number: int) -> bytes:
    """Return a Variable Byte Integer."""
    out = bytearray()
    while True:
        number, digit = number >> 7, number & 0x7F
        out.append(digit | (0x80 if number else 0))
        if not number:
            return bytes(out)


def binary(value: bytes | str) -> bytes:
    """Return Binary Data or a UTF-8 Encoded String: two bytes of length and the bytes."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(data)) + data


def packet(kind: str, flags: int, *parts: bytes) -> bytes:
    """Return a whole packet: fixed header, remaining length, body."""
    body = b"".join(parts)
    return bytes([TYPES[kind] << 4 | flags]) + varint(len(body)) + body


def encode_properties(properties: Properties) -> bytes:
    """Return properties with their length. A list repeats its property."""
    out = b""
    for name, value in properties.items():
        number, kind = PROPERTY_IDS[name]
        for each in value if isinstance(value, list) else [value]:
            out += bytes([number])
            if kind == "byte":
                out += bytes([each])
            elif kind == "two":
                out += struct.pack(">H", each)
            elif kind == "four":
                out += struct.pack(">I", each)
            elif kind == "varint":
                out += varint(each)
            elif kind == "pair":
                out += binary(each[0]) + binary(each[1])
            else:
                out += binary(each)
    return varint(len(out)) + out


def in_v5(version: int, properties: Properties) -> bytes:
    """Return encoded properties for version 5, nothing for others."""
    assert version == 5 or not properties, "properties belong to version 5"
    return encode_properties(properties) if version == 5 else b""


def connect(
    version: int,
    client_id: str = "",
    *,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | None = None,
    password: bytes | None = None,
    properties: Properties = NOTHING,
    extra_flags: int = 0,
    protocol: bytes | None = None,
    level: int | None = None,
) -> bytes:
    """Return a CONNECT. ``extra_flags`` are added to its flags; ``protocol`` and ``level`` replace the right ones."""
    flags = 0x02 * clean | extra_flags
    payload = [binary(client_id)]
    if will is not None:
        flags |= 0x04 | will.qos << 3 | 0x20 * will.retain
        payload += [in_v5(version, will.properties), binary(will.topic), binary(will.payload)]
    if username is not None:
        flags |= 0x80
        payload.append(binary(username))
    if password is not None:
        flags |= 0x40
        payload.append(binary(password))
    return packet(
        "CONNECT",
        0,
        binary(protocol if protocol is not None else b"MQIsdp" if version == 3 else b"MQTT"),
        bytes([version if level is None else level, flags]),
        struct.pack(">H", keep_alive),
        in_v5(version, properties),
        *payload,
    )


def publish(
    version: int,
    topic: str,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    properties: Properties = NOTHING,
) -> bytes:
    """Return a PUBLISH, at QoS 0 without Packet Identifier."""
    identifier = struct.pack(">H", packet_id) if qos else b""
    flags = 0x08 * dup | qos << 1 | retain
    return packet("PUBLISH", flags, binary(topic), identifier, in_v5(version, properties), payload)


def ack(version: int, kind: str, packet_id: int, reason: int = 0, properties: Properties = NOTHING) -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP, in short form where that is allowed."""
    tail = b""
    if properties or reason:
        assert version == 5, "reason codes belong to version 5"
        tail = bytes([reason]) + (encode_properties(properties) if properties else b"")
    return packet(kind, 0x02 if kind == "PUBREL" else 0, struct.pack(">H", packet_id), tail)


def subscribe(version: int, packet_id: int, *filters: tuple[str, int], properties: Properties = NOTHING) -> bytes:
    """Return a SUBSCRIBE of (Topic Filter, options byte): the QoS, and in v5 the other options in the bits above."""
    entries = [binary(topic_filter) + bytes([options]) for topic_filter, options in filters]
    return packet("SUBSCRIBE", 0x02, struct.pack(">H", packet_id), in_v5(version, properties), *entries)


def unsubscribe(version: int, packet_id: int, *filters: str, properties: Properties = NOTHING) -> bytes:
    """Return an UNSUBSCRIBE."""
    entries = [binary(topic_filter) for topic_filter in filters]
    return packet("UNSUBSCRIBE", 0x02, struct.pack(">H", packet_id), in_v5(version, properties), *entries)


def disconnect(version: int, reason: int = 0, properties: Properties = NOTHING) -> bytes:
    """Return a DISCONNECT, in short form where that is allowed."""
    if not (reason or properties):
        return packet("DISCONNECT", 0)
    assert version == 5, "reason codes belong to version 5"
    return packet("DISCONNECT", 0, bytes([reason]), encode_properties(properties) if properties else b"")


def auth(reason: int, properties: Properties) -> bytes:
    """Return an AUTH (version 5)."""
    return packet("AUTH", 0, bytes([reason]), encode_properties(properties))


PINGREQ = packet("PINGREQ", 0)

NO_LOCAL, RETAIN_AS_PUBLISHED = 0x04, 0x08
SEND_RETAINED, SEND_RETAINED_IF_NEW, NO_RETAINED = 0x00, 0x10, 0x20


# ------------------------------------------------------------------------------------------------------ decoding


class Reader:
    """A reader of a packet's body, from the left."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes; AssertionError if there are fewer."""
        assert len(self.rest) >= count, f"the packet ends early: {count} bytes wanted, {len(self.rest)} there"
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def number(self, width: int) -> int:
        """Return a big-endian number of ``width`` bytes."""
        return int.from_bytes(self.take(width), "big")

    def binary(self) -> bytes:
        """Return Binary Data."""
        return self.take(self.number(2))

    def varint(self) -> int:
        """Return a Variable Byte Integer."""
        number = shift = 0
        while True:
            digit = self.number(1)
            number |= (digit & 0x7F) << shift
            shift += 7
            if not digit & 0x80:
                assert digit or shift == 7, "a Variable Byte Integer of more bytes than needed"
                return number
            assert shift < 28, "a Variable Byte Integer has at most four bytes"

    def value(self, kind: str) -> Any:
        """Return the value of a property of this type."""
        if kind in ("byte", "two", "four"):
            return self.number({"byte": 1, "two": 2, "four": 4}[kind])
        if kind == "varint":
            return self.varint()
        if kind == "pair":
            return (self.binary().decode(), self.binary().decode())
        return self.binary() if kind == "binary" else self.binary().decode()

    def properties(self) -> dict[str, Any]:
        """Return properties; repeatable ones are lists. AssertionError if another one occurs twice."""
        inside = Reader(self.take(self.varint()))
        found: dict[str, Any] = {}
        while inside.rest:
            name, kind = PROPERTIES[inside.number(1)]
            value = inside.value(kind)
            if name in REPEATED:
                found.setdefault(name, []).append(value)
            else:
                assert name not in found, f"{name} twice in one packet"
                found[name] = value
        return found


def decode(version: int, flags: int, kind: str, body: bytes) -> Packet:
    """Decode a packet of a broker; AssertionError if a broker may not send it."""
    read = Reader(body)
    v5 = version == 5
    fields: dict[str, Any] = {}
    if kind == "CONNACK":
        acknowledge = read.number(1)
        assert acknowledge in (0, 1), f"reserved bits in the Connect Acknowledge Flags: {acknowledge:#x}"
        fields = {"session_present": bool(acknowledge), "reason": read.number(1)}
        fields["properties"] = read.properties() if v5 else {}
    elif kind == "PUBLISH":
        qos = flags >> 1 & 3
        assert qos < 3, "both QoS bits are set"
        fields = {"dup": bool(flags & 8), "qos": qos, "retain": bool(flags & 1), "topic": read.binary().decode()}
        fields["packet_id"] = read.number(2) if qos else 0
        assert not qos or fields["packet_id"], "Packet Identifier 0"
        fields["properties"] = read.properties() if v5 else {}
        fields["payload"], read.rest = read.rest, b""
    elif kind in ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP"):
        fields["packet_id"] = read.number(2)
        fields["reason"] = read.number(1) if v5 and read.rest else 0
        fields["properties"] = read.properties() if v5 and read.rest else {}
    elif kind in ("SUBACK", "UNSUBACK"):
        fields["packet_id"] = read.number(2)
        fields["properties"] = read.properties() if v5 else {}
        if kind == "SUBACK" or v5:
            fields["codes"], read.rest = tuple(read.rest), b""
    elif kind in ("DISCONNECT", "AUTH"):
        assert v5, f"a broker never sends {kind} to a v3 client"
        fields["reason"] = read.number(1) if read.rest else 0
        fields["properties"] = read.properties() if read.rest else {}
    else:
        assert kind == "PINGRESP", f"a broker never sends {kind}"
    assert not read.rest, f"{len(read.rest)} bytes too many at the end of {kind}"
    strange = set(fields.get("properties", ())) - FROM_A_SERVER.get(kind, set())
    assert not strange, f"a server may not send {strange} in {kind}"
    assert kind == "PUBLISH" or flags == (2 if kind == "PUBREL" else 0), f"reserved flags of {kind}: {flags:#x}"
    return Packet(kind, flags, body, **fields)


# -------------------------------------------------------------------------------------------------------- client


class Client:
    """A connection to the broker at ``address``. ``connack`` is set by ``connect``."""

    connack: Packet

    def __init__(self, address: tuple[str, int], version: int) -> None:
        self.version = version
        self.socket = socket.create_connection(address, timeout=DEADLINE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()
        self.kept: list[Packet] = []
        self.last_packet_id = 0

    # -- bytes and packets

    def send(self, *packets: bytes) -> None:
        """Send bytes unchanged; it is no error here if the broker has closed the connection already."""
        self.socket.settimeout(DEADLINE_SECONDS)
        with suppress(ConnectionResetError, BrokenPipeError):
            self.socket.sendall(b"".join(packets))

    def _fill(self, count: int, seconds: float) -> None:
        self.socket.settimeout(seconds)
        while len(self.received) < count:
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                raise TimeoutError(f"no packet within {seconds} s; bytes so far: {self.received.hex(' ')}") from None
            except ConnectionResetError:
                raise Closed("connection reset") from None
            if not data:
                assert not self.received, f"closed in the middle of a packet: {self.received.hex(' ')}"
                raise Closed("connection closed")
            self.received += data

    def _read_from_socket(self, seconds: float) -> Packet:
        size, length = 2, 0
        while True:
            self._fill(size, seconds)
            if not self.received[size - 1] & 0x80:
                break
            size += 1
            assert size <= 5, f"a remaining length of more than four bytes: {self.received[:6].hex(' ')}"
        assert size == 2 or self.received[size - 1], f"a length not minimal: {self.received[:size].hex(' ')}"
        for digit in reversed(self.received[1:size]):
            length = length << 7 | digit & 0x7F
        self._fill(size + length, seconds)
        first, body = self.received[0], bytes(self.received[size : size + length])
        del self.received[: size + length]
        assert first >> 4 in KINDS, f"packet type {first >> 4} does not exist"
        return self._decode(first & 0x0F, KINDS[first >> 4], body)

    def _decode(self, flags: int, kind: str, body: bytes) -> Packet:
        return decode(self.version, flags, kind, body)

    def read(self, seconds: float = DEADLINE_SECONDS) -> Packet:
        """Take the next packet. Raises Closed, or TimeoutError after ``seconds``."""
        return self.kept.pop(0) if self.kept else self._read_from_socket(seconds)

    def expect(self, kind: str, **fields: Any) -> Packet:
        """Take the next packet, which must be of this kind and have these fields."""
        got = self.read()
        wrong = [name for name, value in fields.items() if getattr(got, name) != value]
        assert (got.kind, wrong) == (kind, []), f"expected {kind} {fields}, got {got}"
        return got

    def await_packet(self, kind: str, packet_id: int = 0) -> Packet:
        """Take the next packet of this kind (and identifier), and keep earlier packets for later."""
        for position, kept in enumerate(self.kept):
            if kept.kind == kind and packet_id in (0, kept.packet_id):
                return self.kept.pop(position)
        while True:
            got = self._read_from_socket(DEADLINE_SECONDS)
            if got.kind == kind and packet_id in (0, got.packet_id):
                return got
            self.kept.append(got)

    def expect_silence(self) -> None:
        """Assert that nothing was sent to this client: the next packet is the answer to a PINGREQ."""
        self.send(PINGREQ)
        self.expect("PINGRESP")

    def expect_closed(self, *reasons: int) -> None:
        """Assert that the broker closes, for v5 after a DISCONNECT with one of the ``reasons``, if any are given."""
        try:
            if self.version == 5 and reasons:
                got = self.read()
                assert got.kind == "DISCONNECT", f"expected DISCONNECT {[hex(r) for r in reasons]}, got {got}"
                assert got.reason in reasons, f"DISCONNECT {got.reason:#x}, not one of {[hex(r) for r in reasons]}"
                reasons = ()
            got = self.read()
        except Closed:
            assert self.version < 5 or not reasons or not TELLS_WHY, "closed without DISCONNECT"
            return
        raise AssertionError(f"expected the connection to be closed, got {got}")

    def expect_refused(self, *reasons: int) -> None:
        """Assert that the broker closes, after a CONNACK with one of the ``reasons`` or without an answer.

        A v3 client gets a CONNACK only with a return code of v3.
        """
        if self.version < 5:
            reasons = tuple(each for each in reasons if each < 0x80)
        try:
            got = self.read()
            assert got.kind == "CONNACK", f"expected a refusal, got {got}"
            assert got.reason in reasons, f"CONNACK {got.reason:#x}, not one of {[hex(r) for r in reasons]}"
            assert not got.session_present, "session present in a refusal"
            got = self.read()
        except Closed:
            return
        raise AssertionError(f"expected the connection to be closed, got {got}")

    def close(self) -> None:
        """Close the socket without DISCONNECT, like a failure of the network."""
        self.socket.close()

    # -- whole exchanges

    def next_packet_id(self) -> int:
        """Return the next Packet Identifier, from 1."""
        self.last_packet_id = self.last_packet_id % 65535 + 1
        return self.last_packet_id

    def connect(self, client_id: str = "", **options: Any) -> Packet:
        """Send CONNECT, and take a CONNACK that accepts it."""
        self.send(connect(self.version, client_id, **options))
        self.connack = self.expect("CONNACK", reason=0)
        return self.connack

    def subscribe(
        self, *filters: str | tuple[str, int], qos: int = 0, properties: Properties = NOTHING
    ) -> tuple[int, ...]:
        """Send SUBSCRIBE and return the codes of its SUBACK. A filter without options of its own gets ``qos``."""
        packet_id = self.next_packet_id()
        wanted = [(each, qos) if isinstance(each, str) else each for each in filters]
        self.send(subscribe(self.version, packet_id, *wanted, properties=properties))
        got = self.await_packet("SUBACK", packet_id)
        assert len(got.codes) == len(filters), f"{len(filters)} filters, but {got}"
        return got.codes

    def unsubscribe(self, *filters: str) -> Packet:
        """Send UNSUBSCRIBE and return its UNSUBACK."""
        packet_id = self.next_packet_id()
        self.send(unsubscribe(self.version, packet_id, *filters))
        return self.await_packet("UNSUBACK", packet_id)

    def publish(self, topic: str, payload: bytes = b"", *, qos: int = 0, **options: Any) -> int:
        """Send PUBLISH, do its whole handshake, and return the reason code of the first answer."""
        packet_id = self.next_packet_id() if qos else 0
        self.send(publish(self.version, topic, payload, qos=qos, packet_id=packet_id, **options))
        if qos == 0:
            return 0
        got = self.await_packet("PUBACK" if qos == 1 else "PUBREC", packet_id)
        if qos == 2 and got.reason < 0x80:
            self.send(ack(self.version, "PUBREL", packet_id))
            done = self.await_packet("PUBCOMP", packet_id)
            assert done.reason == 0, f"PUBCOMP refuses: {done}"
        return got.reason

    def receive(self, topic: str, payload: bytes, **fields: Any) -> Packet:
        """Take the next packet, a PUBLISH of this topic and payload, and answer it as its QoS demands."""
        got = self.expect("PUBLISH", topic=topic, payload=payload, **fields)
        if got.qos == 1:
            self.ack("PUBACK", got.packet_id)
        elif got.qos == 2:
            self.ack("PUBREC", got.packet_id)
            released = self.await_packet("PUBREL", got.packet_id)
            assert released.reason == 0, f"PUBREL refuses: {released}"
            self.ack("PUBCOMP", got.packet_id)
        return got

    def ack(self, kind: str, packet_id: int, reason: int = 0) -> None:
        """Send a PUBACK, PUBREC, PUBREL or PUBCOMP."""
        self.send(ack(self.version, kind, packet_id, reason))

    def disconnect(self, reason: int = 0, properties: Properties = NOTHING) -> None:
        """Send DISCONNECT, then wait until the broker has closed too: then it has begun its work for the end."""
        self.send(disconnect(self.version, reason, properties))
        self.socket.shutdown(socket.SHUT_WR)
        with suppress(Closed):
            while self._read_from_socket(DEADLINE_SECONDS):
                pass
        self.socket.close()


#: The fixtures ``connect`` and ``open_connection`` of tests/conftest.py
Connect = Callable[..., Client]
OpenConnection = Callable[[int], Client]


def expect_nothing_more(subscriber: Client, publisher: Client, topic: str, qos: int = 0) -> None:
    """Assert that ``publisher``'s messages so far (at this QoS) brought ``subscriber`` nothing that it has not read.

    A marker on ``topic``, which nothing else may use, takes the same path and must be the next packet.
    """
    subscriber.subscribe((topic, 2))
    publisher.publish(topic, b"marker", qos=qos)
    subscriber.receive(topic, b"marker")
    subscriber.unsubscribe(topic)
