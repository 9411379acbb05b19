"""SUBSCRIBE and UNSUBSCRIBE: codes, replacement, overlap, and delivery from the SUBACK on."""

from __future__ import annotations

import pytest

from tests import wire
from tests.wire import Connect

MALFORMED, PROTOCOL_ERROR, NO_SUBSCRIPTION = 0x81, 0x82, 0x11
INVALID_FILTERS = ["", "#/a", "a#", "a/#/b", "a+", "+a", "a/b+/c", "a\0b"]


@pytest.mark.mqtt("5:3.8.4-6", "5:3.8.4-7", "5:3.9.3-1", "311:3.8.4-5", "311:3.9.3-1")
def test_suback_has_a_code_for_each_filter(connect: Connect, any_version: int, name: str) -> None:
    """A SUBSCRIBE of four filters gets one SUBACK with the four granted QoS in their order."""
    client = connect(any_version)
    assert client.subscribe((f"{name}/a", 2), (f"{name}/b", 0), (f"{name}/+", 1), (f"{name}/#", 2)) == (2, 0, 1, 2)


@pytest.mark.mqtt("5:2.2.1-6", "5:3.8.4-2", "5:3.10.4-5", "311:2.3.1-7", "311:3.8.4-2", "311:3.10.4-4")
@pytest.mark.parametrize("packet_id", [1, 255, 256, 65535])
def test_suback_has_the_identifier_of_the_subscribe(connect: Connect, version: int, name: str, packet_id: int) -> None:
    """SUBACK and UNSUBACK carry the Packet Identifier of the packet that they answer."""
    client = connect(version)
    client.send(wire.subscribe(version, packet_id, (name, 0)))
    client.expect("SUBACK", packet_id=packet_id)
    client.send(wire.unsubscribe(version, packet_id, name))
    client.expect("UNSUBACK", packet_id=packet_id)


@pytest.mark.mqtt("5:3.8.4-5", "311:3.8.4-4")
def test_two_hundred_filters_in_one_subscribe(connect: Connect, version: int, name: str) -> None:
    """Every filter of a SUBSCRIBE with two hundred filters receives messages."""
    client = connect(version)
    assert client.subscribe(*(f"{name}/{number}" for number in range(200)), qos=1) == (1,) * 200
    for number in (0, 57, 199):
        client.publish(f"{name}/{number}", b"x")
        client.receive(f"{name}/{number}", b"x")


@pytest.mark.mqtt("5:4.7.1-1", "5:4.7.1-2", "5:4.7.3-1", "5:4.13.1-1", "311:4.7.1-2", "311:4.7.1-3", "311:4.7.3-1")
@pytest.mark.mqtt("311:4.8.0-1")
@pytest.mark.parametrize("bad", [f for f in INVALID_FILTERS if "\0" not in f])
@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE"])
def test_an_empty_or_malformed_filter_ends_the_connection(
    connect: Connect, any_version: int, name: str, bad: str, place: str, kind: str
) -> None:
    """A malformed filter closes the connection and nothing of the packet is executed: 0x8F is for well-formed ones."""
    keep = {"session_expiry_interval": 60} if any_version == 5 else {}
    client = connect(any_version, name, clean=False, properties=keep)
    client.subscribe((f"{name}/before", 1))
    filters = (f"{name}/new", bad) if place == "last" else (bad, f"{name}/new")
    if kind == "SUBSCRIBE":
        client.send(wire.subscribe(any_version, 9, *((each, 1) for each in filters)))
    else:
        client.send(wire.unsubscribe(any_version, 9, *(each.replace("new", "before") for each in filters)))
    client.expect_closed(MALFORMED, PROTOCOL_ERROR)
    again = connect(any_version, name, clean=False, properties=keep)
    publisher = connect(any_version)
    for topic in ("new", "before"):
        publisher.publish(f"{name}/{topic}", b"x", qos=1)
    again.receive(f"{name}/before", b"x")
    again.expect_silence()


@pytest.mark.mqtt("5:3.8.4-7", "5:3.9.3-2", "311:3.8.4-5", "311:3.9.3-2")
@pytest.mark.parametrize("bad", ["a/" * 200, "x" * 60_000])
@pytest.mark.mosquitto_differs("takes one of them")
def test_a_filter_that_is_not_allowed_fails_alone(connect: Connect, version: int, name: str, bad: str) -> None:
    """A filter with more levels or bytes than allowed gets 0x8F (v3: 0x80); the next one in the packet is granted."""
    client = connect(version)
    assert client.subscribe((bad, 0), (name, 1)) == (0x8F if version == 5 else 0x80, 1)
    client.publish(name, b"works")
    client.receive(name, b"works")


@pytest.mark.mqtt("5:1.5.4-2", "5:4.7.3-2", "311:1.5.3-2", "311:4.7.3-2")
def test_a_filter_with_a_null_character(connect: Connect, version: int) -> None:
    """A filter that is not a UTF-8 Encoded String makes the packet malformed."""
    client = connect(version)
    client.send(wire.subscribe(version, 1, ("a\0b", 0)))
    client.expect_closed(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.8.3-2", "311:3.8.3-3")
def test_subscribe_without_a_filter(connect: Connect, version: int) -> None:
    """A SUBSCRIBE without a filter is a Protocol Error."""
    client = connect(version)
    client.send(wire.subscribe(version, 1))
    client.expect_closed(PROTOCOL_ERROR, MALFORMED)


@pytest.mark.mqtt("5:3.10.3-2", "311:3.10.3-2")
def test_unsubscribe_without_a_filter(connect: Connect, version: int) -> None:
    """An UNSUBSCRIBE without a filter is a Protocol Error."""
    client = connect(version)
    client.send(wire.unsubscribe(version, 1))
    client.expect_closed(PROTOCOL_ERROR, MALFORMED)


@pytest.mark.mqtt("5:3.8.3-5", "311:3-8.3-4")
@pytest.mark.parametrize("options", [0x03, 0x40, 0x80, 0xC1])
def test_reserved_options_and_qos_3(connect: Connect, version: int, name: str, options: int) -> None:
    """A SUBSCRIBE with reserved option bits or QoS 3 closes the connection."""
    client = connect(version)
    client.send(wire.subscribe(version, 1, (name, options)))
    client.expect_closed(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("311:3-8.3-4")
@pytest.mark.parametrize("options", [0x04, 0x08, 0x10, 0x20])
def test_v311_has_no_options(connect: Connect, name: str, options: int) -> None:
    """For a v3.1.1 client the options of v5 are reserved bits."""
    client = connect(4)
    client.send(wire.subscribe(4, 1, (name, options)))
    client.expect_closed()


@pytest.mark.mqtt("5:4.13.1-1")
def test_retain_handling_3(connect: Connect, name: str) -> None:
    """Retain Handling 3 is a Protocol Error."""
    client = connect(5)
    client.send(wire.subscribe(5, 1, (name, 0x30)))
    client.expect_closed(PROTOCOL_ERROR, MALFORMED)


@pytest.mark.mqtt("5:2.2.1-3", "311:2.3.1-1")
def test_packet_identifier_0(connect: Connect, version: int, name: str) -> None:
    """SUBSCRIBE and UNSUBSCRIBE with Packet Identifier 0 close the connection."""
    for refused in (wire.subscribe(version, 0, (name, 0)), wire.unsubscribe(version, 0, name)):
        client = connect(version)
        client.send(refused)
        client.expect_closed(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.8.4-3", "311:3.8.4-3")
def test_the_same_filter_again_replaces(connect: Connect, version: int, name: str) -> None:
    """Subscribing to the same filter with another QoS leaves one subscription, with the new QoS."""
    subscriber, publisher = connect(version), connect(version)
    for qos in (0, 2, 1):
        assert subscriber.subscribe(name, qos=qos) == (qos,)
        publisher.publish(name, b"%d" % qos, qos=2)
        subscriber.receive(name, b"%d" % qos, qos=qos)
    wire.expect_nothing_more(subscriber, publisher, f"{name}/marker", qos=2)


@pytest.mark.mqtt("5:3.8.4-5", "311:3.8.4-4")
def test_the_same_filter_twice_in_one_packet(connect: Connect, version: int, name: str) -> None:
    """One packet with the same filter twice is handled like two packets: the last one counts."""
    subscriber, publisher = connect(version), connect(version)
    assert subscriber.subscribe((name, 0), (name, 1)) == (0, 1)
    publisher.publish(name, b"x", qos=1)
    subscriber.receive(name, b"x", qos=1)
    wire.expect_nothing_more(subscriber, publisher, f"{name}/marker", qos=1)


@pytest.mark.mqtt("5:3.3.4-2", "311:3.3.5-1")
@pytest.mark.mosquitto_differs("sends a copy for each subscription")
def test_overlapping_filters(connect: Connect, version: int, name: str) -> None:
    """A client with four matching filters gets one copy, at the highest of their QoS."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe((f"{name}/a/b", 0), (f"{name}/+/b", 2), (f"{name}/a/+", 1), (f"{name}/#", 1))
    publisher.publish(f"{name}/a/b", b"one copy", qos=2)
    subscriber.receive(f"{name}/a/b", b"one copy", qos=2)
    wire.expect_nothing_more(subscriber, publisher, f"elsewhere/{name}", qos=2)


@pytest.mark.mqtt("5:3.10.4-1", "5:3.10.4-2", "311:3.10.4-1", "311:3.10.4-2")
def test_unsubscribe_ends_it(connect: Connect, version: int, name: str) -> None:
    """After UNSUBACK no further message is sent for that filter."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, f"{name}/other")
    publisher.publish(name, b"before")
    subscriber.receive(name, b"before")
    subscriber.unsubscribe(name)
    publisher.publish(name, b"after")
    publisher.publish(f"{name}/other", b"kept")
    subscriber.receive(f"{name}/other", b"kept")


@pytest.mark.mqtt("5:3.10.4-6", "5:3.11.3-1", "5:3.11.3-2")
def test_unsuback_has_a_code_for_each_filter(connect: Connect, name: str) -> None:
    """In v5 UNSUBACK says for each filter, in order, whether it was subscribed."""
    client = connect(5)
    client.subscribe(f"{name}/a", f"{name}/b")
    got = client.unsubscribe(f"{name}/a", f"{name}/none", f"{name}/b", f"{name}/a")
    assert got.codes == (0, NO_SUBSCRIPTION, 0, NO_SUBSCRIPTION)


@pytest.mark.mqtt("5:3.10.4-4", "5:3.10.4-5", "311:3.10.4-4", "311:3.10.4-5")
def test_unsubscribe_from_nothing(connect: Connect, any_version: int, name: str) -> None:
    """An UNSUBSCRIBE of a filter that was never subscribed is answered."""
    connect(any_version).unsubscribe(name)


@pytest.mark.mqtt("5:3.10.4-1", "311:3.10.4-1")
def test_filters_are_compared_by_character(connect: Connect, version: int, name: str) -> None:
    """Unsubscribing from a/+ leaves a/b and a/# alone."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(f"{name}/b")
    subscriber.unsubscribe(f"{name}/+", f"{name}/#", f"{name}/B", f"{name}/b/")
    publisher.publish(f"{name}/b", b"still there")
    subscriber.receive(f"{name}/b", b"still there")


@pytest.mark.mqtt("5:3.10.4-3", "311:3.10.4-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_unsubscribe_completes_what_was_begun(connect: Connect, version: int, name: str, qos: int) -> None:
    """A message that was sent before the UNSUBSCRIBE can be acknowledged to its end after it."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=qos)
    publisher.publish(name, b"begun", qos=qos)
    begun = subscriber.expect("PUBLISH", payload=b"begun")
    subscriber.unsubscribe(name)
    if qos == 1:
        subscriber.ack("PUBACK", begun.packet_id)
    else:
        subscriber.ack("PUBREC", begun.packet_id)
        subscriber.expect("PUBREL", packet_id=begun.packet_id, reason=0)
        subscriber.ack("PUBCOMP", begun.packet_id)
    subscriber.expect_silence()


@pytest.mark.mqtt("5:3.8.4-1", "5:4.5.0-1", "311:3.8.4-1", "311:4.5.0-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_after_the_suback_arrives(connect: Connect, version: int, name: str, qos: int) -> None:
    """A message published after the SUBACK reaches the subscriber, on whichever workers both are. Forty pairs."""
    publisher = connect(version)
    for number in range(40):
        subscriber = connect(version)
        subscriber.subscribe(f"{name}/{number}", qos=qos)
        publisher.publish(f"{name}/{number}", b"x", qos=qos)
        subscriber.receive(f"{name}/{number}", b"x", qos=qos)
        subscriber.disconnect()


@pytest.mark.mqtt("5:3.8.4-1", "5:3.8.4-2", "311:3.8.4-1", "311:3.8.4-2")
def test_many_subscribes_in_one_segment(connect: Connect, version: int, name: str) -> None:
    """A hundred SUBSCRIBEs sent together get a hundred SUBACKs in their order."""
    client = connect(version)
    client.send(*(wire.subscribe(version, n, (f"{name}/{n}", n % 3)) for n in range(1, 101)))
    for number in range(1, 101):
        client.expect("SUBACK", packet_id=number, codes=(number % 3,))


@pytest.mark.mqtt("5:3.10.4-1", "5:3.10.4-2", "311:3.10.4-1", "311:3.10.4-2")
def test_subscribe_and_unsubscribe_in_turn(connect: Connect, version: int, name: str) -> None:
    """After fifty rounds of subscribing and unsubscribing, only the last state counts."""
    subscriber, publisher = connect(version), connect(version)
    for _ in range(50):
        subscriber.subscribe(name, f"{name}/+")
        subscriber.unsubscribe(name, f"{name}/+")
    publisher.publish(name, b"no", qos=1)
    subscriber.subscribe(name)
    publisher.publish(name, b"yes")
    subscriber.receive(name, b"yes")


@pytest.mark.mqtt("5:3.10.4-6", "311:3.10.4-6")
def test_two_hundred_filters_in_one_unsubscribe(connect: Connect, version: int, name: str) -> None:
    """A long UNSUBSCRIBE gets one UNSUBACK and ends all its subscriptions; other subscriptions stay."""
    client, publisher = connect(version), connect(version)
    client.subscribe(*(f"{name}/{number}" for number in range(200)), qos=1)
    client.send(wire.unsubscribe(version, 77, *(f"{name}/{number}" for number in range(199))))
    client.expect("UNSUBACK", packet_id=77)
    client.expect_silence()
    for number in (0, 57, 198):
        publisher.publish(f"{name}/{number}", b"no", qos=1)
    publisher.publish(f"{name}/199", b"yes", qos=1)
    client.receive(f"{name}/199", b"yes")


@pytest.mark.mqtt("5:3.8.4-4", "311:3.8.4-3")
def test_replacing_a_subscription_loses_nothing(connect: Connect, version: int, name: str) -> None:
    """Three hundred messages arrive once and in order while the subscription is replaced again and again."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=1)
    for start in range(0, 300, 30):
        numbers = range(start, start + 30)
        publisher.send(*(wire.publish(version, name, b"%d" % n, qos=1, packet_id=n + 1) for n in numbers))
        for qos in (2, 1):
            subscriber.send(wire.subscribe(version, start + qos, (name, qos)))
        for number in numbers:
            publisher.await_packet("PUBACK", number + 1)
    seen: list[int] = []
    while len(seen) < 300:
        got = subscriber.read()
        if got.kind == "PUBLISH":
            seen.append(int(got.payload))
            subscriber.ack("PUBACK", got.packet_id)
    assert seen == list(range(300))
