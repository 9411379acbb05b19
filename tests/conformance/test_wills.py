"""Wills: when they are published, and when they are not."""

from __future__ import annotations

import time

import pytest

from tests import wire
from tests.conformance.conftest import Everywhere
from tests.waiting import let_pass, wait_until
from tests.wire import Client, Connect, Will

WITH_WILL = 0x04
KEEP = {"session_expiry_interval": 60}


def watcher(connect: Connect, version: int, topic: str) -> Client:
    """Return a client that is subscribed to the topic at QoS 2."""
    client = connect(version)
    client.subscribe(topic, qos=2)
    return client


def is_cleared(client: Client, topic: str) -> bool:
    """Return whether nothing is retained: then the first message after SUBACK is the one published now."""
    client.subscribe(topic)
    client.publish(topic, b"marker", qos=1)
    first = client.expect("PUBLISH")
    client.disconnect()
    return not first.retain


@pytest.mark.mqtt("5:3.1.2-7", "5:3.1.2-8", "5:3.1.2-12", "311:3.1.2-8", "311:3.1.2-9", "311:3.1.2-14")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_broken_connection_publishes_the_will(connect: Connect, any_version: int, name: str, qos: int) -> None:
    """The will of a client whose connection breaks is published, at its QoS."""
    watching = watcher(connect, any_version, name)
    connect(any_version, will=Will(name, b"broken", qos=qos)).close()
    watching.receive(name, b"broken", qos=qos, retain=False)


@pytest.mark.mqtt("5:3.1.2-8", "5:3.1.2-10", "5:3.14.4-3", "311:3.1.2-10", "311:3.14.4-3")
def test_disconnect_deletes_the_will(connect: Connect, any_version: int, name: str) -> None:
    """After DISCONNECT with reason 0x00 the will is not published."""
    watching = watcher(connect, any_version, name)
    connect(any_version, will=Will(name, b"no")).disconnect()
    wire.expect_nothing_more(watching, connect(any_version), f"{name}/marker")


@pytest.mark.mqtt("5:3.1.2-8")
def test_disconnect_with_will_message(connect: Connect, name: str) -> None:
    """DISCONNECT with reason 0x04 publishes the will."""
    watching = watcher(connect, 5, name)
    connect(5, will=Will(name, b"as I said", qos=1)).disconnect(WITH_WILL)
    watching.receive(name, b"as I said", qos=1)


@pytest.mark.mqtt("5:3.1.2-8")
@pytest.mark.mosquitto_differs("deletes it")
def test_disconnect_with_an_error(connect: Connect, name: str) -> None:
    """A client that disconnects with reason 0x80 has its will published: only reason 0x00 deletes the will."""
    watching = watcher(connect, 5, name)
    connect(5, will=Will(name, b"error")).disconnect(0x80)
    watching.receive(name, b"error")


@pytest.mark.mqtt("5:3.1.2-8", "311:3.1.2-8")
def test_a_protocol_error_publishes_the_will(connect: Connect, version: int, name: str) -> None:
    """The will of a client that the broker closes because of the client's error is published."""
    watching = watcher(connect, version, name)
    broken = connect(version, will=Will(name, b"its fault"))
    broken.send(wire.publish(version, "a/#", b"x"))
    broken.expect_closed(0x90, 0x81, 0x82)
    watching.receive(name, b"its fault")


@pytest.mark.mqtt("5:3.1.2-14", "5:3.1.2-15", "311:3.1.2-16", "311:3.1.2-17")
@pytest.mark.parametrize("retain", [False, True])
def test_will_retain(connect: Connect, version: int, name: str, retain: bool) -> None:
    """A will is retained exactly if Will Retain is set; current subscribers get it with RETAIN clear."""
    watching = watcher(connect, version, name)
    connect(version, will=Will(name, b"will", retain=retain, qos=1)).close()
    watching.receive(name, b"will", retain=False)
    late = watcher(connect, version, name)
    if retain:
        late.receive(name, b"will", retain=True)
    wire.expect_nothing_more(late, watching, f"{name}/marker")


@pytest.mark.mqtt("5:3.1.2-10", "311:3.1.2-10", "311:3.1.2-12")
def test_the_will_of_the_last_connect_counts(connect: Connect, version: int, name: str) -> None:
    """A client that reconnects without a will has none; one that reconnects with another will has only that."""
    watching = watcher(connect, version, name)
    connect(version, name, will=Will(name, b"old")).disconnect()
    connect(version, name).close()
    connect(version, name, will=Will(name, b"new")).close()
    watching.receive(name, b"new")


@pytest.mark.mqtt("5:3.1.2-10", "311:3.1.2-10")
def test_each_will_is_published_once(connect: Connect, version: int, name: str) -> None:
    """A client whose connection breaks five times has five wills published, each once."""
    watching = watcher(connect, version, name)
    for number in range(5):
        connect(version, name, will=Will(name, b"%d" % number, qos=1)).close()
        watching.receive(name, b"%d" % number)
    wire.expect_nothing_more(watching, connect(version), f"{name}/marker", qos=1)


@pytest.mark.mqtt("5:3.1.2-8", "311:3.1.2-8")
def test_take_over_publishes_the_will(connect: Connect, version: int, name: str) -> None:
    """A take-over publishes the old connection's will (without delay): that connection was closed."""
    watching = watcher(connect, version, name)
    connect(version, name + "c", will=Will(name, b"taken over", qos=1))
    connect(version, name + "c")
    watching.receive(name, b"taken over")


@pytest.mark.mqtt("5:3.1.3-9")
@pytest.mark.parametrize("clean", [False, True], ids=["resumed", "clean start"])
def test_take_over_and_a_delayed_will(everywhere: Everywhere, clean: bool) -> None:
    """A take-over that resumes the session within the delay cancels the will for good. One with Clean Start ends the
    session, and with it the delay.
    """

    def scenario(connect: Connect, _version: int, name: str) -> None:
        watching = watcher(connect, 5, name)
        will = Will(name, b"delayed", properties={"will_delay_interval": 1})
        connect(5, name + "c", will=will, properties=KEEP)
        again = connect(5, name + "c", clean=clean, properties=KEEP)
        assert again.connack.session_present == (not clean)
        if clean:
            watching.receive(name, b"delayed")
        let_pass(1.5)
        again.disconnect()
        wire.expect_nothing_more(watching, connect(5), f"{name}/marker")

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:3.1.2-9", "5:3.1.3-10", "5:3.3.2-15", "5:3.3.2-16", "5:3.3.2-17", "5:3.3.2-18")
def test_will_properties(connect: Connect, name: str) -> None:
    """A will is published with its properties, except its delay."""
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text",
        "response_topic": "answers",
        "correlation_data": b"\0\1",
        "user_property": [("b", "1"), ("a", "2"), ("b", "3")],
    }
    watching = watcher(connect, 5, name)
    connect(5, will=Will(name, b"will", properties=properties | {"will_delay_interval": 0})).close()
    assert watching.receive(name, b"will").properties == properties


@pytest.mark.mqtt("5:3.3.2-6")
def test_will_message_expiry(connect: Connect, name: str) -> None:
    """The Message Expiry Interval of a will counts from its publication."""
    watching = watcher(connect, 5, name)
    connect(5, will=Will(name, b"will", properties={"message_expiry_interval": 50})).close()
    assert 20 <= watching.receive(name, b"will").properties["message_expiry_interval"] <= 50


@pytest.mark.mqtt("5:3.1.2-8")
def test_will_delay(everywhere: Everywhere) -> None:
    """A will with Will Delay Interval 3 is published three seconds after the connection broke, and not before."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        watching = watcher(connect, 5, name)
        broken = connect(5, properties=KEEP, will=Will(name, b"late", properties={"will_delay_interval": 3}))
        began = time.monotonic()
        broken.close()
        wire.expect_nothing_more(watching, connect(5), f"{name}/marker")
        watching.receive(name, b"late")
        assert time.monotonic() - began >= 2.8

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:3.1.3-9")
def test_coming_back_cancels_a_delayed_will(everywhere: Everywhere) -> None:
    """A client that reconnects before its Will Delay Interval has passed has no will published."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        watching = watcher(connect, 5, name)
        will = Will(name, b"no", properties={"will_delay_interval": 1})
        connect(5, name, properties=KEEP, will=will).close()
        back = connect(5, name, clean=False, properties=KEEP)
        assert back.connack.session_present
        let_pass(2.5)
        wire.expect_nothing_more(watching, back, f"{name}/marker")

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:3.1.2-8")
@pytest.mark.parametrize("expiry", [pytest.param(0, marks=pytest.mark.mosquitto_differs("forgets it")), 1])
def test_a_will_is_not_delayed_beyond_its_session(everywhere: Everywhere, expiry: int) -> None:
    """If the session ends before the Will Delay Interval has passed, the will is published at that moment."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        watching = watcher(connect, 5, name)
        will = Will(name, b"session ended", properties={"will_delay_interval": 60})
        connect(5, properties={"session_expiry_interval": expiry}, will=will).close()
        watching.receive(name, b"session ended")

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:3.1.2-8")
def test_delay_after_disconnect_with_will(everywhere: Everywhere) -> None:
    """DISCONNECT 0x04 of a client with a lasting session starts the delay, as a broken connection does."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        watching = watcher(connect, 5, name)
        leaving = connect(5, properties=KEEP, will=Will(name, b"late", properties={"will_delay_interval": 1}))
        leaving.disconnect(WITH_WILL)
        wire.expect_nothing_more(watching, connect(5), f"{name}/marker")
        watching.receive(name, b"late")

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:3.1.2-8", "311:3.1.2-8")
def test_a_will_waits_for_an_offline_subscriber(connect: Connect, version: int, name: str) -> None:
    """A will at QoS 1 is queued for a session that is offline."""
    keep = {"clean": False, "properties": KEEP if version == 5 else {}}
    subscriber = connect(version, name, **keep)
    subscriber.subscribe(name, qos=1)
    subscriber.disconnect()
    watching = watcher(connect, version, name)
    connect(version, will=Will(name, b"will", qos=1)).close()
    watching.receive(name, b"will")
    connect(version, name, **keep).receive(name, b"will", qos=1)


@pytest.mark.mqtt("5:3.1.2-8", "311:3.1.2-8")
def test_an_empty_will(connect: Connect, version: int, name: str) -> None:
    """A will may have an empty payload; retained, it clears the topic."""
    connect(version).publish(name, b"kept", qos=1, retain=True)
    watching = watcher(connect, version, name)
    watching.receive(name, b"kept", retain=True)
    connect(version, will=Will(name, b"", qos=1, retain=True)).close()
    watching.receive(name, b"")
    # nothing waits for a will: the owner of the topic may receive it after the subscriber
    wait_until(lambda: is_cleared(connect(version), name), 60.0, "the topic is cleared")
