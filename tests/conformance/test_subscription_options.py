"""Options of a v5 subscription: No Local, Retain As Published, Retain Handling, Subscription Identifier."""

from __future__ import annotations

import pytest

from tests import wire
from tests.wire import NO_LOCAL, NO_RETAINED, RETAIN_AS_PUBLISHED, SEND_RETAINED, SEND_RETAINED_IF_NEW, Connect

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


@pytest.mark.mqtt("5:3.8.3-3")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local(connect: Connect, name: str, qos: int) -> None:
    """With No Local a client gets messages of others, and not its own."""
    client, other = connect(5), connect(5)
    client.subscribe((name, qos | NO_LOCAL))
    client.publish(name, b"mine", qos=qos)
    other.publish(name, b"theirs", qos=qos)
    client.receive(name, b"theirs")
    client.expect_silence()


@pytest.mark.mqtt("5:3.8.3-3", "5:3.8.4-3")
@pytest.mark.mosquitto_differs("keeps No Local when the subscription is replaced")
def test_no_local_is_a_matter_of_the_subscription(connect: Connect, name: str) -> None:
    """A subscription replaced by one without No Local gets the client's own messages again."""
    client = connect(5)
    client.subscribe((name, NO_LOCAL))
    client.publish(name, b"not seen")
    client.subscribe((name, 0))
    client.publish(name, b"seen")
    client.receive(name, b"seen")


@pytest.mark.mqtt("5:3.8.3-4")
@pytest.mark.mosquitto_differs("grants it")
def test_no_local_on_a_shared_subscription(connect: Connect, name: str) -> None:
    """No Local together with $share is a Protocol Error."""
    client = connect(5)
    client.send(wire.subscribe(5, 1, (f"$share/group/{name}", NO_LOCAL)))
    client.expect_closed(PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.3.1-12", "5:3.3.1-13")
@pytest.mark.parametrize("retain", [False, True], ids=["RETAIN 0", "RETAIN 1"])
@pytest.mark.parametrize("keep", [False, True], ids=["as published 0", "as published 1"])
def test_retain_as_published(connect: Connect, name: str, keep: bool, retain: bool) -> None:
    """An established subscription gets the RETAIN flag of the publisher only with Retain As Published."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe((name, 1 | RETAIN_AS_PUBLISHED * keep))
    publisher.publish(name, b"x", qos=1, retain=retain)
    subscriber.receive(name, b"x", retain=keep and retain)


@pytest.mark.mqtt("5:3.3.1-12", "5:3.3.1-13")
def test_retain_as_published_of_two_subscribers(connect: Connect, name: str) -> None:
    """Two subscribers of one message each get the RETAIN flag by their own option."""
    plain, keeping, publisher = connect(5), connect(5), connect(5)
    plain.subscribe((name, 0))
    keeping.subscribe((name, RETAIN_AS_PUBLISHED))
    publisher.publish(name, b"x", retain=True)
    plain.receive(name, b"x", retain=False)
    keeping.receive(name, b"x", retain=True)


@pytest.mark.mqtt("5:3.3.1-9", "5:3.8.4-4")
def test_retain_handling_0(connect: Connect, name: str) -> None:
    """Retain Handling 0: every SUBSCRIBE gets the retained message, with RETAIN set."""
    connect(5).publish(name, b"kept", qos=1, retain=True)
    client = connect(5)
    for _ in range(3):
        client.subscribe((name, SEND_RETAINED))
        client.receive(name, b"kept", retain=True)
    client.expect_silence()


@pytest.mark.mqtt("5:3.3.1-10")
def test_retain_handling_1(connect: Connect, name: str) -> None:
    """Retain Handling 1: a new subscription gets the retained message, a repeated one does not."""
    connect(5).publish(name, b"kept", qos=1, retain=True)
    client = connect(5)
    client.subscribe((name, SEND_RETAINED_IF_NEW))
    client.receive(name, b"kept", retain=True)
    client.subscribe((name, 1 | SEND_RETAINED_IF_NEW))
    wire.expect_nothing_more(client, client, f"{name}/marker")
    client.unsubscribe(name)
    client.subscribe((name, SEND_RETAINED_IF_NEW))
    client.receive(name, b"kept", retain=True)


@pytest.mark.mqtt("5:3.3.1-11")
def test_retain_handling_2(connect: Connect, name: str) -> None:
    """Retain Handling 2: the retained message is never sent; later messages are."""
    publisher = connect(5)
    publisher.publish(name, b"kept", qos=1, retain=True)
    client = connect(5)
    client.subscribe((name, NO_RETAINED))
    publisher.publish(name, b"live")
    client.receive(name, b"live", retain=False)


@pytest.mark.mqtt("5:3.3.4-3")
@pytest.mark.parametrize("identifier", [1, 127, 128, 16384, 268435455])
def test_subscription_identifier(connect: Connect, name: str, identifier: int) -> None:
    """A message carries the Subscription Identifier of the subscription it matched."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(name, qos=1, properties={"subscription_identifier": identifier})
    for qos in (0, 1):
        publisher.publish(name, b"x", qos=qos)
        assert subscriber.receive(name, b"x").properties == {"subscription_identifier": [identifier]}


@pytest.mark.mqtt("5:3.3.4-3", "5:3.3.4-4")
@pytest.mark.mosquitto_differs("sends a copy for each subscription")
def test_subscription_identifiers_of_overlapping_filters(connect: Connect, name: str) -> None:
    """One copy carries the identifiers of all matching filters that have one."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(f"{name}/a", properties={"subscription_identifier": 1})
    subscriber.subscribe(f"{name}/+", properties={"subscription_identifier": 300})
    subscriber.subscribe(f"{name}/#")
    subscriber.subscribe(f"{name}/b", properties={"subscription_identifier": 4})
    publisher.publish(f"{name}/a", b"x")
    got = subscriber.receive(f"{name}/a", b"x")
    assert sorted(got.properties["subscription_identifier"]) == [1, 300]


@pytest.mark.mqtt("5:3.8.4-3")
def test_subscription_identifier_is_replaced(connect: Connect, name: str) -> None:
    """Subscribing to the same filter again replaces or removes its identifier."""
    subscriber, publisher = connect(5), connect(5)
    for identifier in (5, 6, None):
        properties = {} if identifier is None else {"subscription_identifier": identifier}
        subscriber.subscribe(name, properties=properties)
        publisher.publish(name, b"x")
        assert subscriber.receive(name, b"x").properties.get("subscription_identifier", [None]) == [identifier]


@pytest.mark.mqtt("5:3.3.4-3")
def test_one_identifier_for_many_filters(connect: Connect, name: str) -> None:
    """The identifier of a SUBSCRIBE applies to all its filters."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(f"{name}/a", f"{name}/b", properties={"subscription_identifier": 9})
    for topic in (f"{name}/a", f"{name}/b"):
        publisher.publish(topic, b"x")
        assert subscriber.receive(topic, b"x").properties == {"subscription_identifier": [9]}


@pytest.mark.mqtt("5:3.3.4-3")
def test_identifier_of_a_retained_message(connect: Connect, name: str) -> None:
    """A retained message sent for a SUBSCRIBE carries its identifier."""
    connect(5).publish(name, b"kept", qos=1, retain=True)
    subscriber = connect(5)
    subscriber.subscribe(name, properties={"subscription_identifier": 9})
    assert subscriber.receive(name, b"kept").properties == {"subscription_identifier": [9]}


@pytest.mark.mqtt("5:3.3.4-3")
def test_identifier_outlives_the_connection(connect: Connect, name: str) -> None:
    """A queued message carries the identifier of its subscription."""
    keep = {"session_expiry_interval": 60}
    subscriber = connect(5, name, properties=keep)
    subscriber.subscribe(name, qos=1, properties={"subscription_identifier": 9})
    subscriber.disconnect()
    connect(5).publish(name, b"waits", qos=1)
    subscriber = connect(5, name, clean=False, properties=keep)
    assert subscriber.receive(name, b"waits").properties == {"subscription_identifier": [9]}


@pytest.mark.mqtt("5:3.3.4-3")
def test_each_subscriber_sees_its_own_identifier(connect: Connect, name: str) -> None:
    """Each of ten subscribers of one message gets its own identifier; a subscriber without an identifier gets none."""
    subscribers = [connect(5) for _ in range(10)]
    for number, subscriber in enumerate(subscribers):
        subscriber.subscribe(name, properties={"subscription_identifier": number} if number else {})
    connect(5).publish(name, b"x", properties={"content_type": "t"})
    for number, subscriber in enumerate(subscribers):
        expected = {"content_type": "t"} | ({"subscription_identifier": [number]} if number else {})
        assert subscriber.receive(name, b"x").properties == expected


@pytest.mark.mqtt("5:4.13.1-1")
@pytest.mark.parametrize("identifiers", [0, [1, 2]], ids=["0", "two"])
def test_bad_subscription_identifiers(connect: Connect, name: str, identifiers: int | list[int]) -> None:
    """Subscription Identifier 0, or two of them in one SUBSCRIBE, is a Protocol Error."""
    client = connect(5)
    client.send(wire.subscribe(5, 1, (name, 0), properties={"subscription_identifier": identifiers}))
    client.expect_closed(PROTOCOL_ERROR, MALFORMED)
