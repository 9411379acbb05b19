"""Message Expiry Interval of messages that are not queued, and Maximum Packet Size in both directions."""

from __future__ import annotations

import pytest

from tests import wire
from tests.conformance.conftest import Everywhere
from tests.waiting import let_pass
from tests.wire import Connect

MALFORMED, PACKET_TOO_LARGE = 0x81, 0x95


@pytest.mark.mqtt("5:3.3.2-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_expiry_interval_arrives(connect: Connect, name: str, qos: int) -> None:
    """A message that is not queued is delivered with the Message Expiry Interval that it was published with."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(name, qos=2)
    publisher.publish(name, b"x", qos=qos, properties={"message_expiry_interval": 4294967295, "content_type": "t"})
    got = subscriber.receive(name, b"x")
    assert got.properties["content_type"] == "t"
    assert 4294967294 <= got.properties["message_expiry_interval"] <= 4294967295


@pytest.mark.mqtt("5:3.1.2-24", "5:3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_too_large_for_the_client(connect: Connect, name: str, qos: int) -> None:
    """A client with Maximum Packet Size 100 is not sent a larger message; messages before and after it arrive."""
    subscriber, publisher = connect(5, properties={"maximum_packet_size": 100}), connect(5)
    subscriber.subscribe(name, qos=qos)
    for payload in (b"before", b"x" * 100, b"after"):
        publisher.publish(name, payload, qos=qos)
    subscriber.receive(name, b"before")
    subscriber.receive(name, b"after")
    subscriber.expect_silence()


@pytest.mark.mqtt("5:3.1.2-25")
@pytest.mark.mosquitto_differs("never frees that place")
def test_too_large_takes_no_place_in_the_window(connect: Connect, name: str) -> None:
    """A message dropped for its size counts as delivered: it does not use up Receive Maximum 1."""
    subscriber, publisher = connect(5, properties={"maximum_packet_size": 100, "receive_maximum": 1}), connect(5)
    subscriber.subscribe(name, qos=1)
    for _ in range(5):
        publisher.publish(name, b"x" * 100, qos=1)
    publisher.publish(name, b"small", qos=1)
    subscriber.receive(name, b"small")
    subscriber.expect_silence()


@pytest.mark.mqtt("5:3.1.2-24")
def test_too_large_for_one_of_two(connect: Connect, name: str) -> None:
    """A message that is too large for one subscriber is delivered to another."""
    small, large, publisher = connect(5, properties={"maximum_packet_size": 100}), connect(5), connect(5)
    small.subscribe(name)
    large.subscribe(name)
    publisher.publish(name, b"x" * 100)
    large.receive(name, b"x" * 100)
    wire.expect_nothing_more(small, publisher, f"{name}/marker")


@pytest.mark.mqtt("5:3.1.2-24")
@pytest.mark.mosquitto_differs("does not count the fixed header")
def test_exactly_as_large_as_allowed(connect: Connect, name: str) -> None:
    """A message whose packet has exactly Maximum Packet Size bytes is sent; one byte more is not sent."""
    subscriber, publisher = connect(5, properties={"maximum_packet_size": 100}), connect(5)
    subscriber.subscribe(name)
    fits = b"x" * (100 - len(wire.publish(5, name, b"")))
    assert len(wire.publish(5, name, fits)) == 100
    publisher.publish(name, fits + b"x")
    publisher.publish(name, fits)
    subscriber.receive(name, fits)
    subscriber.expect_silence()


@pytest.mark.mqtt("5:3.1.2-24", "5:3.1.2-25")
def test_too_large_while_it_waited(connect: Connect, name: str) -> None:
    """A queued message that is too large for the client when it reconnects is dropped; the others arrive."""
    keep = {"session_expiry_interval": 60}
    subscriber = connect(5, name, properties=keep)
    subscriber.subscribe(name, qos=1)
    subscriber.disconnect()
    publisher = connect(5)
    publisher.publish(name, b"x" * 200, qos=1)
    publisher.publish(name, b"small", qos=1)
    again = connect(5, name, clean=False, properties=keep | {"maximum_packet_size": 100})
    again.receive(name, b"small")
    again.expect_silence()


@pytest.mark.mqtt("5:3.2.2-15")
def test_too_large_for_the_broker(connect: Connect, name: str) -> None:
    """A packet above the Maximum Packet Size of CONNACK is refused by its header, before its body arrives."""
    client = connect(5)
    maximum = client.connack.properties["maximum_packet_size"]
    client.send(b"\x30" + wire.varint(maximum) + wire.binary(name))
    client.expect_closed(PACKET_TOO_LARGE)


@pytest.mark.mqtt("5:1.5.5-1", "311:4.8.0-1")
@pytest.mark.parametrize(
    "length", [b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\xff", b"\x80\x80\x80\x80\x00", b"\x80\x80\x80\x80\x01"]
)
def test_remaining_length_of_five_bytes(connect: Connect, version: int, length: bytes) -> None:
    """A remaining length of more than four bytes is malformed."""
    client = connect(version)
    client.send(b"\x30" + length)
    client.expect_closed(MALFORMED, 0x82, PACKET_TOO_LARGE)


@pytest.mark.mqtt("5:3.2.2-15")
def test_as_large_as_the_broker_allows(connect: Connect, name: str) -> None:
    """A packet of exactly the Maximum Packet Size of CONNACK (at most a megabyte here) is accepted."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(name)
    maximum = min(publisher.connack.properties["maximum_packet_size"], 1_000_000)
    payload = b"x" * (maximum - len(wire.publish(5, name, b"")) - 2)
    assert len(wire.publish(5, name, payload)) == maximum
    publisher.publish(name, payload)
    subscriber.receive(name, payload)


@pytest.mark.mqtt("5:4.3.3-13")
def test_expiry_does_not_stop_the_handshake_with_the_publisher(everywhere: Everywhere) -> None:
    """A QoS 2 message that expires between PUBREC and PUBREL still completes its handshake with PUBCOMP."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        sleeping = connect(5, name, properties={"session_expiry_interval": 60})
        sleeping.subscribe(name, qos=2)
        sleeping.disconnect()
        publisher = connect(5)
        short = {"message_expiry_interval": 1}
        publisher.send(wire.publish(5, name, b"x", qos=2, packet_id=5, properties=short))
        publisher.expect("PUBREC", packet_id=5, reason=0)
        let_pass(2.1)
        publisher.send(wire.publish(5, name, b"x", qos=2, packet_id=5, dup=True, properties=short))
        publisher.expect("PUBREC", packet_id=5, reason=0)
        publisher.ack("PUBREL", 5)
        publisher.expect("PUBCOMP", packet_id=5, reason=0)
        connect(5, name, clean=False).expect_silence()

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:4.3.3-7")
@pytest.mark.parametrize("answered", [False, True], ids=["before PUBREC", "after PUBREC"])
@pytest.mark.mosquitto_differs("lets it expire")
def test_what_was_sent_at_qos_2_does_not_expire(everywhere: Everywhere, answered: bool) -> None:
    """A QoS 2 message that was sent and not completed is completed on the next connection, even if it has expired."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        keep = {"session_expiry_interval": 60}
        subscriber = connect(5, name, properties=keep)
        subscriber.subscribe(name, qos=2)
        connect(5).publish(name, b"x", qos=2, properties={"message_expiry_interval": 1})
        subscriber.expect("PUBLISH", packet_id=1, payload=b"x")
        if answered:
            subscriber.ack("PUBREC", 1)
            subscriber.expect("PUBREL", packet_id=1)
        subscriber.close()
        let_pass(2.1)
        again = connect(5, name, clean=False, properties=keep)
        if not answered:
            again.expect("PUBLISH", packet_id=1, payload=b"x", dup=True)
            again.ack("PUBREC", 1)
        again.expect("PUBREL", packet_id=1)
        again.ack("PUBCOMP", 1)
        again.expect_silence()

    everywhere(scenario, [5])
