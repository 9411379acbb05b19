"""Retained messages."""

from __future__ import annotations

import pytest

from tests import wire
from tests.conformance.conftest import Everywhere
from tests.waiting import let_pass
from tests.wire import Connect


@pytest.mark.mqtt("5:3.3.1-5", "5:3.3.1-9", "5:3.8.4-8", "311:3.3.1-5", "311:3.3.1-6", "311:3.3.1-8", "311:3.8.4-6")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_new_subscription_gets_it(connect: Connect, version: int, name: str, published: int, granted: int) -> None:
    """A later subscription gets a retained message with RETAIN set, at the lower QoS, after SUBACK."""
    publisher, subscriber = connect(version), connect(version)
    publisher.publish(name, b"kept", qos=published, retain=True)
    publisher.expect_silence()
    subscriber.send(wire.subscribe(version, 1, (name, granted)))
    subscriber.expect("SUBACK", packet_id=1, codes=(granted,))
    subscriber.receive(name, b"kept", retain=True, dup=False, qos=min(published, granted))
    subscriber.expect_silence()


@pytest.mark.mqtt("5:3.3.1-5", "311:3.3.1-6", "311:3.3.1-7")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_last_one_counts(connect: Connect, version: int, name: str, qos: int) -> None:
    """Of three retained messages on a topic a later subscriber gets only the last one."""
    publisher, subscriber = connect(version), connect(version)
    for payload in (b"first", b"second", b"third"):
        publisher.publish(name, payload, qos=qos, retain=True)
    publisher.publish(name, b"synchronised", qos=1)
    subscriber.subscribe(name)
    subscriber.receive(name, b"third", retain=True)
    wire.expect_nothing_more(subscriber, publisher, f"{name}/marker")


@pytest.mark.mqtt("5:3.3.1-6", "5:3.3.1-7", "311:3.3.1-10", "311:3.3.1-11")
@pytest.mark.parametrize("qos", [0, 1])
def test_an_empty_payload_clears(connect: Connect, version: int, name: str, qos: int) -> None:
    """A retained message with an empty payload reaches current subscribers and removes the retained message."""
    publisher, early, late = connect(version), connect(version), connect(version)
    publisher.publish(name, b"kept", qos=1, retain=True)
    early.subscribe(name)
    early.receive(name, b"kept", retain=True)
    publisher.publish(name, b"", qos=qos, retain=True)
    early.receive(name, b"", retain=False)
    late.subscribe(name)
    wire.expect_nothing_more(late, publisher, f"{name}/marker")


@pytest.mark.mqtt("5:3.3.1-8", "311:3.3.1-12")
def test_other_messages_leave_it_alone(connect: Connect, version: int, name: str) -> None:
    """A message without RETAIN neither replaces nor removes the retained one, even when it is empty."""
    publisher, subscriber = connect(version), connect(version)
    publisher.publish(name, b"kept", qos=1, retain=True)
    publisher.publish(name, b"passing", qos=1)
    publisher.publish(name, b"", qos=1)
    subscriber.subscribe(name)
    subscriber.receive(name, b"kept", retain=True)


@pytest.mark.mqtt("5:3.3.1-8", "311:3.3.1-12")
def test_nothing_is_retained_without_the_flag(connect: Connect, version: int, name: str) -> None:
    """A message without RETAIN is not stored for later subscribers."""
    publisher, subscriber = connect(version), connect(version)
    publisher.publish(name, b"gone", qos=1)
    subscriber.subscribe(name)
    wire.expect_nothing_more(subscriber, publisher, f"{name}/marker")


@pytest.mark.mqtt("5:3.3.1-12", "311:3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_established_subscription_sees_no_flag(connect: Connect, version: int, name: str, qos: int) -> None:
    """An established subscription gets a retained message with RETAIN clear."""
    publisher, subscriber = connect(version), connect(version)
    subscriber.subscribe(name, qos=2)
    publisher.publish(name, b"kept", qos=qos, retain=True)
    subscriber.receive(name, b"kept", retain=False, qos=qos)


@pytest.mark.mqtt("5:3.3.1-9", "5:3.8.4-4", "311:3.8.4-3")
def test_every_subscribe_brings_it_again(connect: Connect, version: int, name: str) -> None:
    """Subscribing again to the same filter sends the retained message again."""
    connect(version).publish(name, b"kept", qos=1, retain=True)
    subscriber = connect(version)
    for qos in (0, 1, 0):
        subscriber.subscribe(name, qos=qos)
        subscriber.receive(name, b"kept", retain=True, qos=qos)


@pytest.mark.mqtt("5:3.3.1-9", "311:3.3.1-6")
@pytest.mark.parametrize("pattern", ["N/#", "N/+/value", "+/+/value"])
def test_a_wildcard_finds_them_all(connect: Connect, version: int, name: str, pattern: str) -> None:
    """Forty retained messages, on whichever workers they are kept, all reach one wildcard subscription, each once."""
    publisher, subscriber = connect(version), connect(version)
    topics = {f"{name}/{number}/value" for number in range(40)}
    for topic in topics:
        publisher.publish(topic, topic.encode(), qos=1, retain=True)
    subscriber.subscribe(pattern.replace("N", name), qos=1)
    found: list[str] = []
    while len(found) < len(topics):
        got = subscriber.expect("PUBLISH", retain=True)
        if got.qos:
            subscriber.ack("PUBACK", got.packet_id)
        if got.topic.startswith(f"{name}/"):
            assert got.payload == got.topic.encode()
            found.append(got.topic)
    assert set(found) == topics


@pytest.mark.mqtt("5:3.3.1-5", "5:3.3.1-9", "311:3.3.1-5", "311:3.3.1-6")
def test_every_client_finds_it(connect: Connect, version: int, name: str) -> None:
    """Twelve clients, on any workers, find the retained message as soon as its PUBACK has arrived."""
    connect(version).publish(name, b"kept", qos=1, retain=True)
    for _ in range(12):
        subscriber = connect(version)
        subscriber.subscribe(name)
        subscriber.receive(name, b"kept", retain=True)


@pytest.mark.mqtt("5:4.7.2-1", "311:4.7.2-1")
def test_wildcards_do_not_find_dollar_topics(connect: Connect, version: int, name: str) -> None:
    """Retained messages of $-topics do not match +/..., only filters with their own prefix."""
    publisher, subscriber = connect(version), connect(version)
    publisher.publish(f"${name}/{name}", b"kept", qos=1, retain=True)
    subscriber.subscribe(f"+/{name}")
    wire.expect_nothing_more(subscriber, publisher, f"{name}/marker")
    subscriber.subscribe(f"${name}/+")
    subscriber.receive(f"${name}/{name}", b"kept", retain=True)


@pytest.mark.mqtt("5:3.3.1-5", "311:3.1.2-7")
def test_it_outlives_its_publisher(connect: Connect, version: int, name: str) -> None:
    """The retained message stays after the session of its publisher has ended."""
    publisher = connect(version)
    publisher.publish(name, b"kept", qos=1, retain=True)
    publisher.disconnect()
    subscriber = connect(version)
    subscriber.subscribe(name)
    subscriber.receive(name, b"kept", retain=True)


@pytest.mark.mqtt("5:3.3.2-4", "5:3.3.2-15", "5:3.3.2-16", "5:3.3.2-17", "5:3.3.2-18", "5:3.3.2-20")
def test_it_keeps_its_properties(connect: Connect, name: str) -> None:
    """A retained message has the properties it was published with."""
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text",
        "response_topic": "r",
        "correlation_data": b"\0c",
        "user_property": [("b", "1"), ("a", "2")],
    }
    connect(5).publish(name, b"kept", qos=1, retain=True, properties=properties)
    subscriber = connect(5)
    subscriber.subscribe(name)
    assert subscriber.receive(name, b"kept", retain=True).properties == properties


@pytest.mark.mqtt("5:3.3.1-9", "311:3.3.1-6")
@pytest.mark.parametrize(("sending", "receiving"), [(3, 5), (5, 3), (4, 5), (5, 4)])
def test_between_versions(connect: Connect, name: str, sending: int, receiving: int) -> None:
    """A message retained by one version is found by every other."""
    connect(sending).publish(name, b"kept", qos=1, retain=True)
    subscriber = connect(receiving)
    subscriber.subscribe(name, qos=1)
    subscriber.receive(name, b"kept", retain=True, qos=1)


@pytest.mark.mqtt("5:3.3.2-5", "5:3.3.2-6")
def test_it_expires(everywhere: Everywhere) -> None:
    """A retained message is sent with the rest of its Message Expiry Interval, and not sent once that has passed."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        publisher = connect(5)
        publisher.publish(f"{name}/short", b"gone", qos=1, retain=True, properties={"message_expiry_interval": 1})
        publisher.publish(f"{name}/long", b"kept", qos=1, retain=True, properties={"message_expiry_interval": 100})
        let_pass(2.1)
        subscriber = connect(5)
        subscriber.subscribe(f"{name}/#")
        got = subscriber.receive(f"{name}/long", b"kept", retain=True)
        assert 60 <= got.properties["message_expiry_interval"] <= 98
        wire.expect_nothing_more(subscriber, publisher, f"{name}/marker")

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:3.3.1-5", "311:3.3.1-5")
def test_large_retained_message(connect: Connect, version: int, name: str) -> None:
    """A retained message of 500,000 bytes is sent unchanged."""
    payload = bytes(range(250)) * 2000
    connect(version).publish(name, payload, qos=1, retain=True)
    subscriber = connect(version)
    subscriber.subscribe(name, qos=1)
    subscriber.receive(name, payload, retain=True)


@pytest.mark.mqtt("5:3.3.1-5", "5:3.3.1-6", "311:3.3.1-5", "311:3.3.1-10")
def test_set_and_clear_in_turn(connect: Connect, version: int, name: str) -> None:
    """After fifty rounds of setting and clearing, the last operation determines the retained message."""
    publisher = connect(version)
    for number in range(50):
        publisher.publish(name, b"%d" % number, qos=1, retain=True)
        publisher.publish(name, b"", qos=1, retain=True)
    subscriber = connect(version)
    subscriber.subscribe(name)
    wire.expect_nothing_more(subscriber, publisher, f"{name}/marker")
    publisher.publish(name, b"last", qos=1, retain=True)
    subscriber.receive(name, b"last", retain=False)
    other = connect(version)
    other.subscribe(name)
    other.receive(name, b"last", retain=True)


@pytest.mark.mqtt("5:3.3.1-9", "5:3.8.4-4", "311:3.3.1-6", "311:3.8.4-3")
def test_a_subscribe_after_the_live_message_brings_it_again(connect: Connect, version: int, name: str) -> None:
    """Thirty clients receive a live message, then subscribe again: they get it again as a retained message."""
    publisher = connect(version)
    for number in range(30):
        topic, subscriber = f"{name}/{number}", connect(version)
        subscriber.subscribe(f"{name}/+", topic, qos=1)
        publisher.publish(topic, b"kept", qos=1, retain=True)
        while subscriber.await_packet("PUBLISH").topic != topic:
            pass
        subscriber.send(wire.subscribe(version, 7, (topic, 0)))
        subscriber.await_packet("SUBACK", 7)
        while (got := subscriber.await_packet("PUBLISH")).topic != topic or not got.retain:
            pass
        publisher.publish(topic, b"", qos=1, retain=True)
        subscriber.disconnect()
