"""Malformed packets and Protocol Errors after CONNECT: the connection is closed, the log says why, others are served.

``WRONG`` is the list; ``tests/chaos/test_bad_input_memory.py`` sends each of its lines two thousand times.

"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from tests import wire
from tests.broker_process import KIND, BrokerProcess
from tests.conformance.conftest import error_line
from tests.wire import Connect, OpenConnection, packet

MALFORMED, PROTOCOL_ERROR, TOPIC_NAME_INVALID, TOPIC_ALIAS_INVALID = 0x81, 0x82, 0x90, 0x94
RECEIVE_MAXIMUM_EXCEEDED, PACKET_TOO_LARGE = 0x93, 0x95


class Wrong(NamedTuple):
    """Bytes that no client may send after its CONNECT."""

    v3: bytes | None
    v5: bytes | None
    reason: int = MALFORMED
    """Reason code of the DISCONNECT to a v5 client; a v3 client gets none."""
    shows: str = ""
    """Further statements shown, beside those about malformed packets and Protocol Errors in general."""


def both(data: bytes, reason: int = MALFORMED, shows: str = "") -> Wrong:
    """Return the same bytes for every version."""
    return Wrong(data, data, reason, shows)


def flagged(kind: str, flags: int, v3: bytes, v5: bytes | None = None, shows: str = "") -> Wrong:
    """Return a packet with wrong flags in its fixed header."""
    return Wrong(packet(kind, flags, v3), packet(kind, flags, v3 if v5 is None else v5), MALFORMED, f"{FLAGS} {shows}")


def topic(kind: str, name: bytes, reason: int, shows: str = "") -> Wrong:
    """Return a packet with a Topic Name or Topic Filter."""
    if kind == "PUBLISH":
        return Wrong(
            packet(kind, 0, wire.binary(name), b"x"), packet(kind, 0, wire.binary(name), b"\0x"), reason, shows
        )
    options = b"\0" if kind == "SUBSCRIBE" else b""
    v3 = packet(kind, 2, b"\0\1", wire.binary(name), options)
    return Wrong(v3, packet(kind, 2, b"\0\1\0", wire.binary(name), options), reason, shows)


def v5_publish(properties: bytes, reason: int, shows: str = "") -> Wrong:
    """Return a v5 PUBLISH with these properties."""
    return Wrong(None, packet("PUBLISH", 0, b"\0\1a", wire.varint(len(properties)), properties, b"x"), reason, shows)


FLAGS = "5:2.1.3-1 311:2.2.2-1 311:2.2.2-2"
UTF8 = "5:1.5.4-1 5:1.5.4-2 311:1.5.3-1 311:1.5.3-2"
NO_UTF8 = {
    "a cut sequence": b"a\xe2\x82",
    "a lone continuation": b"\x80",
    "0xFF": b"a\xff",
    "an overlong /": b"\xc0\xaf",
    "an overlong U+0000": b"\xc0\x80",
    "a surrogate": b"\xed\xa0\x80",
    "the last surrogate": b"\xed\xbf\xbf",
    "a pair of surrogates": b"\xed\xa0\xbd\xed\xb8\x80",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "U+0000": b"a\0b",
}

WRONG: dict[str, Wrong] = {
    "packet type 0": both(b"\x00\x00"),
    "AUTH in v3.1.1": Wrong(b"\xf0\x00", None),
    "AUTH that is a Success": Wrong(None, b"\xf0\x00", PROTOCOL_ERROR, "5:3.15.2-1 5:4.12.0-7"),
    "AUTH without a method": Wrong(None, packet("AUTH", 0, b"\x18\x00"), PROTOCOL_ERROR, "5:4.12.0-7"),
    "AUTH for who named no method": Wrong(None, packet("AUTH", 0, b"\x18\4\x15\0\1m"), PROTOCOL_ERROR, "5:4.12.0-7"),
    "AUTH that begins again without a method": Wrong(None, packet("AUTH", 0, b"\x19\0"), PROTOCOL_ERROR, "5:4.12.0-7"),
    "AUTH with a flag": Wrong(None, packet("AUTH", 1, b"\x18\4\x15\0\1m"), MALFORMED, "5:3.15.1-1 5:2.1.3-1"),
    "CONNACK from a client": Wrong(b"\x20\x02\x00\x00", b"\x20\x03\x00\x00\x00", PROTOCOL_ERROR),
    "SUBACK from a client": Wrong(b"\x90\x03\x00\x01\x00", b"\x90\x04\x00\x01\x00\x00", PROTOCOL_ERROR),
    "UNSUBACK from a client": Wrong(b"\xb0\x02\x00\x01", b"\xb0\x04\x00\x01\x00\x00", PROTOCOL_ERROR),
    "PINGRESP from a client": both(b"\xd0\x00", PROTOCOL_ERROR),
    "PUBLISH with QoS 3": Wrong(
        packet("PUBLISH", 6, b"\0\1a\0\1x"), packet("PUBLISH", 6, b"\0\1a\0\1\0x"), MALFORMED, "5:3.3.1-4 311:3.3.1-4"
    ),
    "PUBLISH with DUP at QoS 0": Wrong(
        packet("PUBLISH", 8, b"\0\1ax"), packet("PUBLISH", 8, b"\0\1a\0x"), MALFORMED, "5:3.3.1-2 311:3.3.1-2"
    ),
    "PUBLISH QoS 1 with identifier 0": Wrong(
        packet("PUBLISH", 2, b"\0\1a\0\0"), packet("PUBLISH", 2, b"\0\1a\0\0\0"), PROTOCOL_ERROR,
        "5:2.2.1-3 311:2.3.1-1",
    ),
    "PUBLISH QoS 2 with identifier 0": Wrong(
        packet("PUBLISH", 4, b"\0\1a\0\0"), packet("PUBLISH", 4, b"\0\1a\0\0\0"), PROTOCOL_ERROR,
        "5:2.2.1-3 311:2.3.1-1",
    ),
    "PUBLISH QoS 1 without identifier": both(packet("PUBLISH", 2, b"\0\1a")),
    "PUBLISH that is empty": both(b"\x30\x00", MALFORMED, "5:3.3.2-1 311:3.3.2-1"),
    "PUBLISH whose topic is longer than the packet": both(
        packet("PUBLISH", 0, b"\0\5ab"), MALFORMED, "5:3.3.2-1 311:3.3.2-1"
    ),
    "PUBLISH without a topic": Wrong(
        packet("PUBLISH", 0, b"\0\0x"), None, TOPIC_NAME_INVALID, "311:3.3.2-1 311:4.7.3-1"
    ),
    "PUBLISH without topic and alias": Wrong(
        None, packet("PUBLISH", 0, b"\0\0\0x"), PROTOCOL_ERROR, "5:3.3.2-1 5:4.7.3-1"
    ),
    **{
        f"PUBLISH to {name}": topic(
            "PUBLISH", name.encode(), TOPIC_NAME_INVALID, "5:3.3.2-2 5:4.7.0-1 311:3.3.2-2 311:4.7.1-1"
        )
        for name in ("#", "+", "a/+", "a/#/b", "a+b", "a#", "#/a")
    },
    "PUBACK that is empty": both(b"\x40\x00"),
    "PUBACK of one byte": both(b"\x40\x01\x00"),
    "PUBACK with identifier 0": both(b"\x40\x02\x00\x00", PROTOCOL_ERROR),
    "PUBREC with identifier 0": both(b"\x50\x02\x00\x00", PROTOCOL_ERROR),
    "PUBREL with identifier 0": both(b"\x62\x02\x00\x00", PROTOCOL_ERROR),
    "PUBCOMP with identifier 0": both(b"\x70\x02\x00\x00", PROTOCOL_ERROR),
    "PUBACK with a Reason Code before v5": Wrong(b"\x40\x03\x00\x01\x00", None),
    **{
        f"{kind} with flags {flags:04b}": flagged(kind, flags, b"\0\1")
        for kind in ("PUBACK", "PUBREC", "PUBCOMP")
        for flags in (1, 2, 4, 8)
    },
    **{
        f"PUBREL with flags {flags:04b}": flagged("PUBREL", flags, b"\0\1", shows="5:3.6.1-1 311:3.6.1-1")
        for flags in (0, 1, 3, 6, 10, 15)
    },
    **{
        f"SUBSCRIBE with flags {flags:04b}": flagged(
            "SUBSCRIBE", flags, b"\0\1\0\1a\0", b"\0\1\0\0\1a\0", shows="5:3.8.1-1 311:3.8.1-1"
        )
        for flags in (0, 1, 3, 6, 10, 15)
    },
    **{
        f"UNSUBSCRIBE with flags {flags:04b}": flagged(
            "UNSUBSCRIBE", flags, b"\0\1\0\1a", b"\0\1\0\0\1a", shows="5:3.10.1-1 311:3.10.1-1"
        )
        for flags in (0, 1, 3, 6, 10, 15)
    },
    **{f"PINGREQ with flags {flags:04b}": flagged("PINGREQ", flags, b"") for flags in (1, 2, 4, 8)},
    **{
        f"DISCONNECT with flags {flags:04b}": flagged("DISCONNECT", flags, b"", shows="5:3.14.1-1 311:3.14.1-1")
        for flags in (1, 2, 4, 8)
    },
    "PINGREQ with a body": both(b"\xc0\x01\x00"),
    "DISCONNECT with a body in v3.1.1": Wrong(b"\xe0\x01\x00", None),
    "SUBSCRIBE with a filter cut off": Wrong(
        packet("SUBSCRIBE", 2, b"\0\1\0\5ab"), packet("SUBSCRIBE", 2, b"\0\1\0\0\5ab")
    ),
    "SUBSCRIBE without options": Wrong(packet("SUBSCRIBE", 2, b"\0\1\0\1a"), packet("SUBSCRIBE", 2, b"\0\1\0\0\1a")),
    "SUBSCRIBE that is empty": both(b"\x82\x00"),
    "SUBSCRIBE without a filter": Wrong(
        b"\x82\x02\0\1", b"\x82\x03\0\1\0", PROTOCOL_ERROR, "5:3.8.3-2 311:3.8.3-3"
    ),
    "SUBSCRIBE with identifier 0": Wrong(
        packet("SUBSCRIBE", 2, b"\0\0\0\1a\0"), packet("SUBSCRIBE", 2, b"\0\0\0\0\1a\0"), PROTOCOL_ERROR,
        "5:2.2.1-3 311:2.3.1-1",
    ),
    "SUBSCRIBE with QoS 3": Wrong(packet("SUBSCRIBE", 2, b"\0\1\0\1a\3"), None, MALFORMED, "311:3-8.3-4"),
    "SUBSCRIBE with QoS 3 in v5": Wrong(None, packet("SUBSCRIBE", 2, b"\0\1\0\0\1a\3"), PROTOCOL_ERROR),
    "SUBSCRIBE with Retain Handling 3": Wrong(None, packet("SUBSCRIBE", 2, b"\0\1\0\0\1a\x30"), PROTOCOL_ERROR),
    **{
        f"SUBSCRIBE with reserved option {bit:#x}": Wrong(
            packet("SUBSCRIBE", 2, b"\0\1\0\1a", bytes([bit])), packet("SUBSCRIBE", 2, b"\0\1\0\0\1a", bytes([bit])),
            MALFORMED, "5:3.8.3-5 311:3-8.3-4",
        )
        for bit in (0x40, 0x80)
    },
    "SUBSCRIBE with a property of PUBLISH": Wrong(None, packet("SUBSCRIBE", 2, b"\0\1\x02\x01\x00\0\1a\0")),
    "UNSUBSCRIBE with a filter cut off": Wrong(
        packet("UNSUBSCRIBE", 2, b"\0\1\0\5a"), packet("UNSUBSCRIBE", 2, b"\0\1\0\0\5a")
    ),
    "UNSUBSCRIBE without a filter": Wrong(
        b"\xa2\x02\0\1", b"\xa2\x03\0\1\0", PROTOCOL_ERROR, "5:3.10.3-2 311:3.10.3-2"
    ),
    "UNSUBSCRIBE with identifier 0": Wrong(
        packet("UNSUBSCRIBE", 2, b"\0\0\0\1a"), packet("UNSUBSCRIBE", 2, b"\0\0\0\0\1a"), PROTOCOL_ERROR,
        "5:2.2.1-3 311:2.3.1-1",
    ),
    **{
        f"{kind} of {what}": topic(kind, name, MALFORMED, f"{UTF8} {shows}")
        for kind, shows in [
            ("PUBLISH", "5:3.3.2-1 311:3.3.2-1"),
            ("SUBSCRIBE", "5:3.8.3-1 311:3.8.3-1"),
            ("UNSUBSCRIBE", "5:3.10.3-1 311:3.10.3-1"),
        ]
        for what, name in NO_UTF8.items()
        if kind != "PUBLISH"  # there 0x90 is more precise
    },
    **{
        f"PUBLISH of {what}": topic(
            "PUBLISH", name, TOPIC_NAME_INVALID, f"{UTF8} 5:3.3.2-1 311:3.3.2-1 5:4.7.3-2 311:4.7.3-2"
        )
        for what, name in NO_UTF8.items()
    },
    "remaining length of five bytes": both(b"\x30\x80\x80\x80\x80\x01", MALFORMED, "5:1.5.5-1"),
    "remaining length without an end": both(b"\x30\xff\xff\xff\xff\xff", MALFORMED, "5:1.5.5-1"),
    "remaining length of more bytes than needed": Wrong(None, b"\xc0\x80\x00", MALFORMED, "5:1.5.5-1"),
    "the largest remaining length": both(b"\x30\xff\xff\xff\x7f", PACKET_TOO_LARGE, "5:3.2.2-15"),
    "property length beyond the packet": Wrong(None, packet("PUBLISH", 0, b"\0\1a\x05x")),
    "property length not minimal": Wrong(None, packet("PUBLISH", 0, b"\0\1a\x80\x00"), MALFORMED, "5:1.5.5-1"),
    "property length of five bytes": Wrong(
        None, packet("PUBLISH", 0, b"\0\1a\x80\x80\x80\x80\x01x"), MALFORMED, "5:1.5.5-1"
    ),
    "no property length": Wrong(None, packet("PUBLISH", 0, b"\0\1a"), MALFORMED, "5:2.2.2-1"),
    "property that does not exist": v5_publish(b"\x7f\x00", MALFORMED),
    "property identifier of two bytes": v5_publish(b"\x81\x00\x00", MALFORMED),
    "property cut off": v5_publish(b"\x02\0\0", MALFORMED),
    "Payload Format Indicator 2": v5_publish(b"\x01\x02", PROTOCOL_ERROR),
    "Topic Alias 0": v5_publish(b"\x23\0\0", TOPIC_ALIAS_INVALID, "5:3.3.2-8"),
    "Topic Alias 65,535": v5_publish(b"\x23\xff\xff", TOPIC_ALIAS_INVALID, "5:3.3.2-9 5:3.2.2-17"),
    "Content Type that is no UTF-8": v5_publish(b"\x03\0\1\xff", MALFORMED, "5:3.3.2-19"),
    "Response Topic that is no UTF-8": v5_publish(b"\x08\0\1\xff", MALFORMED, "5:3.3.2-13"),
    "Response Topic with a wildcard": v5_publish(b"\x08\0\1#", PROTOCOL_ERROR, "5:3.3.2-14"),
    "Response Topic with another wildcard": v5_publish(b"\x08\0\3a/+", PROTOCOL_ERROR, "5:3.3.2-14"),
    "name of a User Property that is no UTF-8": v5_publish(b"\x26\0\1\xff\0\1a", MALFORMED, "5:1.5.7-1"),
    "value of a User Property that is no UTF-8": v5_publish(b"\x26\0\1a\0\1\xff", MALFORMED, "5:1.5.7-1"),
    "User Property with U+0000": v5_publish(b"\x26\0\1\0\0\1a", MALFORMED, "5:1.5.7-1"),
    "User Property of one string": v5_publish(b"\x26\0\1a", MALFORMED, "5:1.5.7-1"),
    "Subscription Identifier from a client": v5_publish(b"\x0b\x01", PROTOCOL_ERROR, "5:3.3.4-6"),
    "Subscription Identifier 0": Wrong(None, packet("SUBSCRIBE", 2, b"\0\1\2\x0b\0\0\1a\0"), PROTOCOL_ERROR),
    "two Subscription Identifiers": Wrong(
        None, packet("SUBSCRIBE", 2, b"\0\1\4\x0b\1\x0b\2\0\1a\0"), PROTOCOL_ERROR
    ),
    "No Local on a shared subscription": Wrong(
        None, wire.subscribe(5, 1, ("$share/g/a", wire.NO_LOCAL)), PROTOCOL_ERROR, "5:3.8.3-4"
    ),
    "PUBACK with an unknown reason code": Wrong(None, packet("PUBACK", 0, b"\0\1\x01"), PROTOCOL_ERROR, "5:3.4.2-1"),
    "PUBREC with a reason code of PUBREL": Wrong(None, packet("PUBREC", 0, b"\0\1\x92"), PROTOCOL_ERROR, "5:3.5.2-1"),
    "PUBREL with a reason code of PUBACK": Wrong(None, packet("PUBREL", 2, b"\0\1\x10"), PROTOCOL_ERROR, "5:3.6.2-1"),
    "PUBCOMP with an unknown reason code": Wrong(None, packet("PUBCOMP", 0, b"\0\1\xff"), PROTOCOL_ERROR, "5:3.7.2-1"),
    "PUBACK with bytes behind its properties": Wrong(None, packet("PUBACK", 0, b"\0\1\0\0\0")),
    "DISCONNECT with an unknown reason code": Wrong(
        None, packet("DISCONNECT", 0, b"\x01"), PROTOCOL_ERROR, "5:3.14.2-1"
    ),
    "DISCONNECT with a reason code of the server": Wrong(
        None, packet("DISCONNECT", 0, b"\x8e"), PROTOCOL_ERROR, "5:3.14.2-1"
    ),
    "DISCONNECT that begins an expiry": Wrong(
        None, wire.disconnect(5, 0, {"session_expiry_interval": 60}), PROTOCOL_ERROR
    ),
}  # fmt: skip

#: where mosquitto 2.0.11 is more lenient
MOSQUITTO_TAKES = {
    "PUBLISH with DUP at QoS 0",
    "PINGREQ with a body",
    "Payload Format Indicator 2",
    "Response Topic with a wildcard",
    "Response Topic with another wildcard",
    "SUBACK from a client",
    "UNSUBACK from a client",
    "PINGRESP from a client",
    "Subscription Identifier from a client",
    "PUBACK with an unknown reason code",
    "PUBREL with a reason code of PUBACK",
    "PUBREC with a reason code of PUBREL",
    "PUBCOMP with an unknown reason code",
    "PUBACK with bytes behind its properties",
    "PUBACK with a Reason Code before v5",
    "remaining length of more bytes than needed",
    "No Local on a shared subscription",
    *(
        f"{kind} with flags {flags:04b}"
        for kind in ("PINGREQ", "PUBACK", "PUBREC", "PUBCOMP")
        for flags in (1, 2, 4, 8)
    ),
}


def cases() -> list[object]:
    """Return (version, bytes, reason) of every line of WRONG, with the statements that it shows."""
    found: list[object] = []
    for what, wrong in WRONG.items():
        for version, data in ((4, wrong.v3), (5, wrong.v5)):
            if data is None:
                continue
            standard = "5:" if version == 5 else "311:"
            shows = [each for each in wrong.shows.split() if each.startswith(standard)]
            general = "5:4.13.1-1" if version == 5 else "311:4.8.0-1"
            marks = [pytest.mark.mqtt(general, *shows)]
            if what in MOSQUITTO_TAKES:
                marks.append(pytest.mark.mosquitto_differs("takes it"))
            name = f"{'v5' if version == 5 else 'v3.1.1'}: {what}"
            found.append(pytest.param(version, data, wrong.reason, id=name, marks=marks))
    return found


@pytest.mark.mqtt("5:3.14.2-1", "5:3.14.2-2", "5:3.14.4-1", "5:4.13.1-1", "5:4.13.2-1", "5:3.14.4-2", "311:4.8.0-1")
@pytest.mark.parametrize(("version", "data", "reason"), cases())
def test_the_connection_is_closed(
    broker: BrokerProcess, connect: Connect, name: str, version: int, data: bytes, reason: int
) -> None:
    """A client that sends it is closed, v5 gets the reason, and the log names it; another client is still served."""
    begin = broker.stderr_size()
    client, other = connect(version, name), connect(version)
    address = "{}:{}".format(*client.socket.getsockname())
    client.send(data)
    client.expect_closed(*([reason] if KIND == "mqttd" else range(0x80, 0xFF)))
    other.expect_silence()
    if KIND == "mqttd":
        line = error_line(broker, "protocol_error", begin, address)
        assert (line["client"], line["code"]) == (name, reason)
        assert line["reason"]


@pytest.mark.mqtt("5:4.13.1-1", "311:4.8.0-1")
def test_nothing_is_done_after_an_error(connect: Connect, version: int, name: str) -> None:
    """Packets that follow a malformed packet in the same segment are not processed; those before it are."""
    watcher, client = connect(version), connect(version)
    watcher.subscribe(f"{name}/+")
    client.send(
        wire.publish(version, f"{name}/before", b"x"), b"\x00\x00", wire.publish(version, f"{name}/after", b"x")
    )
    client.expect_closed(MALFORMED, PROTOCOL_ERROR)
    watcher.receive(f"{name}/before", b"x")
    wire.expect_nothing_more(watcher, watcher, f"marker/{name}")


@pytest.mark.mqtt("5:3.14.4-1", "311:3.14.4-2")
def test_nothing_is_done_after_disconnect(connect: Connect, version: int, name: str) -> None:
    """Packets that follow a client's DISCONNECT are not processed."""
    watcher, client = connect(version), connect(version)
    watcher.subscribe(f"{name}/+")
    client.send(
        wire.publish(version, f"{name}/before", b"x"),
        wire.disconnect(version),
        wire.publish(version, f"{name}/after", b"x"),
    )
    client.expect_closed()
    watcher.receive(f"{name}/before", b"x")
    wire.expect_nothing_more(watcher, watcher, f"marker/{name}")


@pytest.mark.mqtt("5:3.1.0-1", "311:3.1.0-1")
@pytest.mark.parametrize(
    "hello",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        b"\0" * 100,
        b"\xff" * 100,
    ],
    ids=["TLS", "HTTP", "SSH", "PROXY", "zeros", "ones"],
)
def test_another_protocol(open_connection: OpenConnection, hello: bytes) -> None:
    """A connection of another protocol is closed without an answer."""
    client = open_connection(4)
    client.send(hello)
    client.expect_closed()


@pytest.mark.mqtt("5:4.13.1-1", "311:4.8.0-1")
def test_noise(open_connection: OpenConnection, connect: Connect, version: int, name: str) -> None:
    """Two hundred clients send modified packets and noise; the broker may close them and continues to serve others."""
    witness = connect(version)
    rng = random.Random(f"{version}")
    sane = [
        wire.publish(version, name, b"payload", qos=2, packet_id=5),
        wire.subscribe(version, 3, (f"{name}/+", 1)),
        wire.unsubscribe(version, 4, name),
        wire.ack(version, "PUBREL", 5),
        wire.PINGREQ,
        wire.connect(version, "again"),
        wire.disconnect(version),
    ]
    for number in range(200):
        client = open_connection(version)
        if number % 4:
            client.send(wire.connect(version, f"{name}z{number}"))
        data = bytearray(b"".join(rng.choices(sane, k=5)))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        client.send(bytes(data))
        client.close()
        if number % 20 == 0:
            witness.expect_silence()
    witness.subscribe(f"marker/{name}")
    witness.publish(f"marker/{name}", b"served")
    witness.receive(f"marker/{name}", b"served")
