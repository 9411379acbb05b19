"""Malformed packets and protocol errors after CONNECT: that connection is closed, and nobody else notices."""

from __future__ import annotations

import random

import pytest

from tests import wire
from tests.wire import Connect, OpenConnection, packet

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82

#: what it is -> (v3.1.1 bytes or None, v5 bytes or None)
WRONG: dict[str, tuple[bytes | None, bytes | None]] = {
    "packet type 0": (b"\x00\x00", b"\x00\x00"),
    "AUTH in v3.1.1, or without a method in v5": (b"\xf0\x00", b"\xf0\x00"),
    "CONNACK from a client": (b"\x20\x02\x00\x00", b"\x20\x03\x00\x00\x00"),
    "SUBACK from a client": (b"\x90\x03\x00\x01\x00", b"\x90\x04\x00\x01\x00\x00"),
    "UNSUBACK from a client": (b"\xb0\x02\x00\x01", b"\xb0\x04\x00\x01\x00\x00"),
    "PINGRESP from a client": (b"\xd0\x00", b"\xd0\x00"),
    "PUBLISH with QoS 3": (packet("PUBLISH", 6, b"\0\1a\0\1x"), packet("PUBLISH", 6, b"\0\1a\0\1\0x")),
    "PUBLISH with DUP at QoS 0": (packet("PUBLISH", 8, b"\0\1ax"), packet("PUBLISH", 8, b"\0\1a\0x")),
    "PUBLISH QoS 1 with identifier 0": (packet("PUBLISH", 2, b"\0\1a\0\0"), packet("PUBLISH", 2, b"\0\1a\0\0\0")),
    "PUBLISH QoS 2 with identifier 0": (packet("PUBLISH", 4, b"\0\1a\0\0"), packet("PUBLISH", 4, b"\0\1a\0\0\0")),
    "PUBLISH QoS 1 without identifier": (packet("PUBLISH", 2, b"\0\1a"), packet("PUBLISH", 2, b"\0\1a")),
    "PUBLISH that is empty": (b"\x30\x00", b"\x30\x00"),
    "PUBLISH whose topic is longer than the packet": (packet("PUBLISH", 0, b"\0\5ab"), packet("PUBLISH", 0, b"\0\5ab")),
    "PUBACK that is empty": (b"\x40\x00", b"\x40\x00"),
    "PUBACK of one byte": (b"\x40\x01\x00", b"\x40\x01\x00"),
    "PUBACK with a flag": (b"\x41\x02\x00\x01", b"\x41\x02\x00\x01"),
    "PUBREC with a flag": (b"\x52\x02\x00\x01", b"\x52\x02\x00\x01"),
    "PUBREL without its flag": (b"\x60\x02\x00\x01", b"\x60\x02\x00\x01"),
    "PUBREL with all flags": (b"\x6f\x02\x00\x01", b"\x6f\x02\x00\x01"),
    "PUBCOMP with a flag": (b"\x72\x02\x00\x01", b"\x72\x02\x00\x01"),
    "SUBSCRIBE without its flag": (packet("SUBSCRIBE", 0, b"\0\1\0\1a\0"), packet("SUBSCRIBE", 0, b"\0\1\0\0\1a\0")),
    "SUBSCRIBE with a filter cut off": (packet("SUBSCRIBE", 2, b"\0\1\0\5ab"), packet("SUBSCRIBE", 2, b"\0\1\0\0\5ab")),
    "SUBSCRIBE without options": (packet("SUBSCRIBE", 2, b"\0\1\0\1a"), packet("SUBSCRIBE", 2, b"\0\1\0\0\1a")),
    "SUBSCRIBE that is empty": (b"\x82\x00", b"\x82\x00"),
    "UNSUBSCRIBE without its flag": (packet("UNSUBSCRIBE", 0, b"\0\1\0\1a"), packet("UNSUBSCRIBE", 0, b"\0\1\0\0\1a")),
    "UNSUBSCRIBE with a filter cut off": (
        packet("UNSUBSCRIBE", 2, b"\0\1\0\5a"),
        packet("UNSUBSCRIBE", 2, b"\0\1\0\0\5a"),
    ),
    "PINGREQ with a flag": (b"\xc1\x00", b"\xc1\x00"),
    "DISCONNECT with a flag": (b"\xe1\x00", b"\xe1\x00"),
    "property length beyond the packet": (None, packet("PUBLISH", 0, b"\0\1a\x05x")),
    "property length not minimal": (None, packet("PUBLISH", 0, b"\0\1a\x80\x00")),
    "property that does not exist": (None, packet("PUBLISH", 0, b"\0\1a\x02\x7f\x00")),
    "property of another packet": (None, packet("PUBLISH", 0, b"\0\1a\x05\x11\0\0\0\1")),
    "property cut off": (None, packet("PUBLISH", 0, b"\0\1a\x03\x02\0\0")),
    "Payload Format Indicator 2": (None, packet("PUBLISH", 0, b"\0\1a\x02\x01\x02")),
    "Payload Format Indicator twice": (None, packet("PUBLISH", 0, b"\0\1a\x04\x01\x00\x01\x00")),
    "Message Expiry Interval twice": (None, packet("PUBLISH", 0, b"\0\1a\x0a\x02\0\0\0\1\x02\0\0\0\1")),
    "Topic Alias twice": (None, packet("PUBLISH", 0, b"\0\1a\x06\x23\0\1\x23\0\1")),
    "Content Type that is no UTF-8": (None, packet("PUBLISH", 0, b"\0\1a\x04\x03\0\1\xff")),
    "User Property that is no UTF-8": (None, packet("PUBLISH", 0, b"\0\1a\x07\x26\0\1\xff\0\1a")),
    "Subscription Identifier from a client": (None, packet("PUBLISH", 0, b"\0\1a\x02\x0b\x01")),
    "Response Topic with a wildcard": (None, packet("PUBLISH", 0, b"\0\1a\x04\x08\0\1#")),
    "PUBACK with an unknown reason code": (None, packet("PUBACK", 0, b"\0\1\x01")),
    "PUBREL with a reason code of PUBACK": (None, packet("PUBREL", 2, b"\0\1\x10")),
    "DISCONNECT with an unknown reason code": (None, packet("DISCONNECT", 0, b"\x01")),
    "DISCONNECT with a reason code of the server": (None, packet("DISCONNECT", 0, b"\x8e")),
    "SUBSCRIBE with a property of PUBLISH": (None, packet("SUBSCRIBE", 2, b"\0\1\x02\x01\x00\0\1a\0")),
    "AUTH with a flag": (None, packet("AUTH", 1)),
    "AUTH that begins again without a method": (None, packet("AUTH", 0, b"\x19\x00")),
}

#: where mosquitto 2.0.11 is more patient
MOSQUITTO_TAKES = {
    "PUBLISH with DUP at QoS 0",
    "PINGREQ with a flag",
    "Payload Format Indicator 2",
    "Response Topic with a wildcard",
    "SUBACK from a client",
    "UNSUBACK from a client",
    "PINGRESP from a client",
    "PUBACK with a flag",
    "PUBREC with a flag",
    "PUBCOMP with a flag",
    "Subscription Identifier from a client",
    "PUBACK with an unknown reason code",
    "PUBREL with a reason code of PUBACK",
}


def cases() -> list[object]:
    """(version, bytes) of every line of WRONG."""
    return [
        pytest.param(
            version,
            data,
            id=f"{'v5' if version == 5 else 'v3.1.1'}: {what}",
            marks=[pytest.mark.mosquitto_differs("takes it")] if what in MOSQUITTO_TAKES else [],
        )
        for what, both in WRONG.items()
        for version, data in zip((4, 5), both, strict=True)
        if data is not None
    ]


@pytest.mark.mqtt("5:4.13.1-1", "5:4.13.2-1", "311:4.8.0-1")
@pytest.mark.parametrize(("version", "data"), cases())
def test_the_connection_is_closed(connect: Connect, version: int, data: bytes) -> None:
    """A client that sends it is closed, a v5 client is told why; another client is still served."""
    client, other = connect(version), connect(version)
    client.send(data)
    client.expect_closed(MALFORMED, PROTOCOL_ERROR, 0x90)
    other.expect_silence()


@pytest.mark.mqtt("5:4.13.1-1", "311:4.8.0-1")
def test_nothing_is_done_after_an_error(connect: Connect, version: int, name: str) -> None:
    """What stands in the same segment behind a malformed packet is not done; what stands before it is."""
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
    """What a client sends behind its DISCONNECT is not done."""
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
    """A connection that speaks something else is closed without an answer."""
    client = open_connection(4)
    client.send(hello)
    client.expect_closed()


@pytest.mark.mqtt("5:4.13.1-1", "311:4.8.0-1")
def test_noise(open_connection: OpenConnection, connect: Connect, version: int, name: str) -> None:
    """Two hundred clients send changed packets and noise; the broker closes them or not, and goes on serving others."""
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
