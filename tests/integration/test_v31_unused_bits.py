"""MQTT 3.1: bits which that version does not use, or disregards, and which are errors in 3.1.1.

Its text has no numbered statements. Section 3.1 (CONNECT): "The DUP, QoS, and RETAIN flags are not used"; bit 0 of the
connect flags "is not currently used. It is reserved for future use"; Will QoS and Will RETAIN, without the Will flag:
"its value is disregarded". The same is said of the fixed header of the acknowledgements, PINGREQ and DISCONNECT, and of
RETAIN in SUBSCRIBE and UNSUBSCRIBE.
"""

from __future__ import annotations

import pytest

from tests import wire
from tests.wire import Client, Connect, OpenConnection, Will

V31 = 3


def with_flags(whole: bytes, flags: int) -> bytes:
    """Return the packet with these bits set in addition to those of its fixed header."""
    return bytes([whole[0] | flags]) + whole[1:]


def works(client: Client, name: str) -> None:
    """Check that the client is connected and gets what it publishes."""
    client.subscribe((name, 1))
    client.publish(name, b"x", qos=1)
    client.receive(name, b"x", qos=1)
    client.expect_silence()


@pytest.mark.parametrize("flags", [*range(1, 16)])
def test_flags_in_the_fixed_header_of_connect(open_connection: OpenConnection, name: str, flags: int) -> None:
    """A v3.1 CONNECT with any of DUP, QoS and RETAIN in its fixed header is accepted."""
    client = open_connection(V31)
    client.send(with_flags(wire.connect(V31, name), flags))
    client.expect("CONNACK", reason=0)
    works(client, name)


@pytest.mark.parametrize("flags", [0x01, 0x08, 0x10, 0x18, 0x20, 0x39])
def test_connect_flags_that_are_disregarded(open_connection: OpenConnection, name: str, flags: int) -> None:
    """The lowest connect flag, and Will QoS and Will RETAIN without a will, mean nothing."""
    client = open_connection(V31)
    client.send(wire.connect(V31, name, extra_flags=flags))
    client.expect("CONNACK", reason=0)
    works(client, name)


def test_the_lowest_connect_flag_beside_everything_else(
    open_connection: OpenConnection, connect: Connect, name: str
) -> None:
    """The flag does not change the meaning of the others: the will is published."""
    watcher = connect(V31)
    watcher.subscribe((name, 1))
    client = open_connection(V31)
    client.send(with_flags(wire.connect(V31, name, extra_flags=1, will=Will(name, b"gone", qos=1)), 0x0F))
    client.expect("CONNACK", reason=0)
    client.close()
    watcher.receive(name, b"gone", qos=1)


@pytest.mark.parametrize("flags", [0x18, 0x19])
def test_will_qos_3_is_still_refused(open_connection: OpenConnection, name: str, flags: int) -> None:
    """With a will, Will QoS 3 is not a valid QoS."""
    client = open_connection(V31)
    client.send(wire.connect(V31, name, extra_flags=flags, will=Will(name, b"x")))
    client.expect_closed()


def test_flags_of_other_packets(connect: Connect, name: str) -> None:
    """Acknowledgements, PINGREQ, SUBSCRIBE, UNSUBSCRIBE and PUBREL are accepted with any unused bit set."""
    client = connect(V31, name)
    for flags in range(16):
        client.send(with_flags(wire.PINGREQ, flags))
        client.expect("PINGRESP")
    for number, flags in enumerate((0x01, 0x08, 0x09), 1):
        client.send(with_flags(wire.subscribe(V31, number, (name, 2)), flags))
        client.expect("SUBACK", packet_id=number)
    for number, flags in enumerate(range(16), 100):
        client.send(wire.publish(V31, name, b"x", qos=2, packet_id=number))
        client.await_packet("PUBREC", number)
        client.send(with_flags(wire.ack(V31, "PUBREL", number), (flags & 1) | (flags & 8)))
        client.await_packet("PUBCOMP", number)
        got = client.await_packet("PUBLISH")
        client.send(with_flags(wire.ack(V31, "PUBREC", got.packet_id), flags))
        client.await_packet("PUBREL", got.packet_id)
        client.send(with_flags(wire.ack(V31, "PUBCOMP", got.packet_id), flags))
    client.send(with_flags(wire.unsubscribe(V31, 9, name), 0x09))
    client.expect("UNSUBACK", packet_id=9)
    client.send(with_flags(wire.subscribe(V31, 10, (name, 1)), 0))
    client.expect("SUBACK", packet_id=10)
    for flags in range(16):
        client.publish(name, b"y", qos=1)
        got = client.await_packet("PUBLISH")
        client.send(with_flags(wire.ack(V31, "PUBACK", got.packet_id), flags))
    client.expect_silence()


def test_disconnect_with_flags_is_a_disconnect(open_connection: OpenConnection, connect: Connect, name: str) -> None:
    """A DISCONNECT with flags ends the connection cleanly: no will is published."""
    watcher = connect(V31)
    watcher.subscribe((name, 0))
    for flags in range(1, 16):
        client = open_connection(V31)
        client.send(wire.connect(V31, f"{name}d{flags}", will=Will(name, b"gone")))
        client.expect("CONNACK", reason=0)
        client.send(with_flags(wire.disconnect(V31), flags))
        client.expect_closed()
    client = connect(V31)
    client.publish(name, b"marker")
    watcher.receive(name, b"marker")


@pytest.mark.parametrize("flags", [0x00, 0x04, 0x06])
def test_a_wrong_qos_of_subscribe_is_malformed(connect: Connect, name: str, flags: int) -> None:
    """SUBSCRIBE has QoS 1 in 3.1 too: that bit is used."""
    client = connect(V31, name)
    whole = wire.subscribe(V31, 1, (name, 0))
    client.send(bytes([whole[0] & 0xF0 | flags]) + whole[1:])
    client.expect_closed()
