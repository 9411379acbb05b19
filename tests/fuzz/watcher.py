"""What a client may be sent, judged by what it sent itself: MQTT from the other side, sharing no code with pyx.

A `Watcher` sits at the client's end of one connection. It is told every byte that goes in and takes every byte that
comes out. What comes out must be whole packets, well-formed for the version of that client, in an order that MQTT
knows, answers to something that was asked, and within what the client said in its CONNECT: Maximum Packet Size, Receive
Maximum, Topic Alias Maximum, Request Problem Information. AssertionError says what is not.

What goes in may be anything. The watcher reads it as far as it is MQTT; an answer to a packet that never came makes it
`wild`: then it no longer knows how full the window is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests import wire
from tests.wire import KINDS, Packet, Reader

#: MQTT 5.0, 2.2.2.2: what a server may send, by packet type
ALLOWED_PROPERTIES = {
    "CONNACK": {
        "session_expiry_interval", "receive_maximum", "maximum_qos", "retain_available", "maximum_packet_size",
        "assigned_client_identifier", "topic_alias_maximum", "reason_string", "user_property",
        "wildcard_subscription_available", "subscription_identifier_available", "shared_subscription_available",
        "server_keep_alive", "response_information", "server_reference", "authentication_method", "authentication_data",
    },
    "PUBLISH": {
        "payload_format_indicator", "message_expiry_interval", "topic_alias", "response_topic", "correlation_data",
        "user_property", "subscription_identifier", "content_type",
    },
    "DISCONNECT": {"reason_string", "user_property", "server_reference"},
    "AUTH": {"authentication_method", "authentication_data", "reason_string", "user_property"},
}  # fmt: skip
_OTHERS = {"reason_string", "user_property"}

#: MQTT 5.0, table 2-6: what a server may say, by packet type
REASON_CODES = {
    "CONNACK": {
        0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A,
        0x9B, 0x9C, 0x9D, 0x9F,
    },
    "PUBACK": {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    "PUBREC": {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    "PUBREL": {0x00, 0x92},
    "PUBCOMP": {0x00, 0x92},
    "SUBACK": {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    "UNSUBACK": {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    "DISCONNECT": {
        0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98,
        0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
    },
    "AUTH": {0x00, 0x18, 0x19},
}  # fmt: skip
_V3_CONNACK = range(6)
_V3_SUBACK = {0, 1, 2, 0x80}
_ANSWERS = {
    "PUBACK": "PUBLISH1",
    "PUBREC": "PUBLISH2",
    "PUBCOMP": "PUBREL",
    "SUBACK": "SUBSCRIBE",
    "UNSUBACK": "UNSUBSCRIBE",
}
_PROTOCOLS = {(b"MQIsdp", 3), (b"MQTT", 4), (b"MQTT", 5)}
PACKET_BYTES_MAX = 268_435_460


def split(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """(first byte, body, where it ends) of each whole packet; stops at a Remaining Length that is none."""
    at = 0
    while len(data) - at >= 2:
        length = shift = 0
        body = at + 1
        while True:
            if body >= len(data) or shift == 28:
                return
            digit = data[body]
            length |= (digit & 0x7F) << shift
            shift += 7
            body += 1
            if not digit & 0x80:
                break
        if body + length > len(data):
            return
        yield data[at], data[body : body + length], body + length
        at = body + length


class Greeting:
    """A CONNECT as the watcher reads it."""

    def __init__(self) -> None:
        self.version = 4
        self.properties: dict[str, Any] = {}
        self.will: set[tuple[str, bytes]] = set()
        """Its topic and payload, or nothing."""
        self.whole = False

    def read(self, body: bytes) -> None:
        """As far as it goes: how a refusal has to look is known before all is read."""
        read = Reader(body)
        name, level = read.binary(), read.number(1)
        if (name, level) in _PROTOCOLS:
            self.version = level
        flags = read.number(1)
        read.number(2)
        self.properties = read.properties() if self.version == 5 else {}
        read.binary().decode()
        if flags & 4:
            if self.version == 5:
                read.properties()
            self.will = {(read.binary().decode(), read.binary())}
        self.whole = True


class Watcher:
    """One connection, from the client's end."""

    def __init__(self) -> None:
        self.greeting: Greeting | None = None
        self.accepted = False
        self.ended = False
        """It was told that this is the end: nothing may follow."""
        self.wild = False
        self.seen: set[tuple[str, int]] = set()
        """(kind, reason code) of what came."""
        self.to_answer: list[tuple[str, int]] = []
        """What a well-behaved client still has to send: (kind, Packet Identifier)."""
        self.window: dict[int, int] = {}
        """Packet Identifier -> QoS of messages that came and are not answered to the end."""
        self._former: set[int] = set()
        """Of the window: PUBREL came of a former connection, which counts against no Receive Maximum (MQTT 5, 4.9)."""
        self.published: set[tuple[str, bytes]] = set()
        """Topics and payloads of what it sent, its will included."""
        self.received: set[tuple[str, bytes]] = set()
        self.lost_count = False
        """What it sent is no MQTT."""
        self._in = bytearray()
        self._sent_aliases: dict[int, str] = {}
        self._out = bytearray()
        self._asked: Counter[tuple[str, int]] = Counter()
        self._filters: dict[int, list[int]] = {}
        self._aliases: dict[int, str] = {}
        self._present = False

    # ------------------------------------------------------------ what the client sends

    def sent(self, data: bytes) -> None:
        """The client has sent this."""
        if self.lost_count:
            return
        self._in += data
        taken = 0
        for first, body, end in split(bytes(self._in)):
            taken = end
            try:
                self._note(KINDS.get(first >> 4, ""), first & 15, body)
            except (AssertionError, KeyError, UnicodeDecodeError):
                self.lost_count = True  # no MQTT: the broker will say so, and until then what it takes is its matter
                self.wild = True
                return
        del self._in[:taken]

    def _note(self, kind: str, flags: int, body: bytes) -> None:
        if self.greeting is None:
            assert kind == "CONNECT"
            self.greeting = Greeting()
            self.greeting.read(body)
            self.published |= self.greeting.will
            return
        read = Reader(body)
        v5 = self.greeting.version == 5
        if kind == "PUBLISH":
            topic = read.binary().decode()
            if flags >> 1 & 3:
                self._asked[f"PUBLISH{flags >> 1 & 3}", read.number(2)] += 1
            alias = read.properties().get("topic_alias", 0) if v5 else 0
            topic = topic or self._sent_aliases.get(alias, "")
            self._sent_aliases[alias] = topic
            self.published.add((topic, read.rest))
        elif kind in ("SUBSCRIBE", "UNSUBSCRIBE"):
            packet_id = read.number(2)
            if v5:
                read.properties()
            filters = 0
            while read.rest:
                read.binary()
                if kind == "SUBSCRIBE":
                    read.number(1)
                filters += 1
            self._asked[kind, packet_id] += 1
            self._filters.setdefault(packet_id, []).append(filters)
        elif kind in ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP"):
            packet_id = read.number(2)
            reason = read.number(1) if v5 and read.rest else 0
            self._asked[kind, packet_id] += 1
            self._release(kind, packet_id, reason)

    def _release(self, kind: str, packet_id: int, reason: int) -> None:
        if kind == "PUBREL":
            return
        qos = 1 if kind == "PUBACK" else 2
        if self.window.get(packet_id) != qos:
            self.wild = True  # it may have guessed an identifier of a message that is under way
        elif kind != "PUBREC" or reason >= 0x80:
            del self.window[packet_id]
            self._former.discard(packet_id)

    # ------------------------------------------------------------ what it is sent

    def came(self, data: bytes) -> list[Packet]:
        """The broker has sent this. Returns the packets that are whole now."""
        self._out += data
        found: list[Packet] = []
        taken = 0
        for first, body, end in split(bytes(self._out)):
            taken = end
            found.append(self._take(first, body))
        del self._out[:taken]
        return found

    def at_end(self) -> None:
        """Everything was taken: no half packet is left."""
        assert not self._out, f"half a packet: {self._out.hex()}"

    @property
    def version(self) -> int:
        """In which the broker must speak."""
        return self.greeting.version if self.greeting is not None else 4

    def _take(self, first: int, body: bytes) -> Packet:
        assert not self.ended, f"{first:#x} {body.hex()} after the end was said"
        assert first >> 4 in KINDS, f"packet type {first >> 4}"
        packet = wire.decode(self.version, first & 15, KINDS[first >> 4], body)
        self._form(packet, 1 + len(wire.varint(len(body))) + len(body))
        self.seen.add((packet.kind, packet.reason))
        if packet.kind == "CONNACK":
            assert not self.accepted, "CONNACK twice"
            self.accepted, self.ended = packet.reason == 0, packet.reason != 0
            assert not (packet.reason and packet.session_present), "session present in a refusal"
            assert not self.accepted or (self.greeting is not None and self.greeting.whole), (
                "accepted what is no CONNECT"
            )
            self._present = packet.session_present or self.version == 3  # which is not told
        else:
            assert self.accepted, f"{packet.kind} before CONNACK"
        if packet.kind in _ANSWERS:
            self._answer(packet)
        elif packet.kind == "PUBLISH":
            self._message(packet)
        elif packet.kind == "PUBREL":
            asked = self._asked["PUBREC", packet.packet_id] or self._present
            assert asked or self.wild, f"PUBREL {packet.packet_id} without PUBREC"
            self.to_answer.append(("PUBCOMP", packet.packet_id))
            if self._present and packet.packet_id not in self.window:
                self.window[packet.packet_id] = 2
                self._former.add(packet.packet_id)
        elif packet.kind == "DISCONNECT":
            self.ended = True
        return packet

    def _form(self, packet: Packet, size: int) -> None:
        asked = self.greeting.properties if self.greeting is not None else {}
        if self.version != 5:
            assert packet.kind != "CONNACK" or packet.reason in _V3_CONNACK, packet
            assert packet.kind != "SUBACK" or set(packet.codes) <= _V3_SUBACK, packet
            return
        most = asked.get("maximum_packet_size") or PACKET_BYTES_MAX  # 0 is refused
        if packet.kind == "CONNACK" and packet.reason in (0x81, 0x82, 0x90):
            most = PACKET_BYTES_MAX  # refused while it was decoded: what else it says is not known to the broker
        assert size <= most, f"{size} bytes, Maximum Packet Size {most}: {packet}"
        odd = set(packet.properties) - ALLOWED_PROPERTIES.get(packet.kind, _OTHERS)
        assert not odd, f"{odd} in {packet}"
        if packet.kind in ("SUBACK", "UNSUBACK"):
            assert set(packet.codes) <= REASON_CODES[packet.kind], packet
        elif packet.kind in REASON_CODES:
            assert packet.reason in REASON_CODES[packet.kind], packet
        if asked.get("request_problem_information", 1) == 0 and packet.kind not in ("PUBLISH", "CONNACK", "DISCONNECT"):
            assert not packet.properties, f"Request Problem Information is 0: {packet}"

    def _answer(self, packet: Packet) -> None:
        asked = (_ANSWERS[packet.kind], packet.packet_id)
        if self.lost_count:
            return
        assert self._asked[asked] > 0, f"{packet} answers nothing"
        self._asked[asked] -= 1
        if packet.kind in ("SUBACK", "UNSUBACK"):
            filters = self._filters[packet.packet_id].pop(0)
            expected = filters if packet.kind == "SUBACK" or self.version == 5 else 0
            assert len(packet.codes) == expected, f"{packet} for {filters} filters"
        elif packet.kind == "PUBREC" and packet.reason < 0x80:
            self.to_answer.append(("PUBREL", packet.packet_id))

    def _message(self, packet: Packet) -> None:
        assert self.greeting is not None
        alias = packet.properties.get("topic_alias")
        if alias is not None:
            assert 1 <= alias <= self.greeting.properties.get("topic_alias_maximum", 0), packet
            assert packet.topic or alias in self._aliases, f"an alias that was not set: {packet}"
            topic = self._aliases[alias] = packet.topic or self._aliases[alias]
        else:
            topic = packet.topic
            assert topic, f"neither topic nor alias: {packet}"
        self.received.add((topic, packet.payload))
        assert not set(topic) & set("+#\0"), packet
        assert all(packet.properties.get("subscription_identifier", [1])), packet
        if not packet.qos:
            assert not packet.dup, f"DUP at QoS 0: {packet}"
            return
        packet_id = packet.packet_id
        if not self.wild:
            assert packet_id not in self.window, f"Packet Identifier {packet_id} is in use: {packet}"
            most = self.greeting.properties.get("receive_maximum", 65535)
            count = len(self.window) - len(self._former)
            assert count < most, f"Receive Maximum {most}: {count} open, and {packet}"
        self.window[packet_id] = packet.qos
        self.to_answer.append(("PUBACK" if packet.qos == 1 else "PUBREC", packet_id))
