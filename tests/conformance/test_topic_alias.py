"""Topic Aliases from client to broker; in the other direction the broker may use them only if the client allows it."""

from __future__ import annotations

import pytest

from tests import wire
from tests.conformance.conftest import Configured, OpenTo
from tests.wire import Client, Connect

MALFORMED, PROTOCOL_ERROR, TOPIC_ALIAS_INVALID = 0x81, 0x82, 0x94


def aliased(client: Client, topic: str, payload: bytes, alias: int, qos: int = 0) -> None:
    """Publish with a Topic Alias; an empty topic uses the current meaning of the alias."""
    client.publish(topic, payload, qos=qos, properties={"topic_alias": alias})


@pytest.mark.mqtt("5:3.3.2-12")
def test_the_broker_takes_aliases(connect: Connect) -> None:
    """CONNACK announces a Topic Alias Maximum above 0."""
    assert connect(5).connack.properties["topic_alias_maximum"] > 0


@pytest.mark.mqtt("5:3.3.2-12")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_alias_stands_for_its_topic(connect: Connect, name: str, qos: int) -> None:
    """After a PUBLISH with topic and alias the alias alone is enough; subscribers get the topic and no alias."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(name, qos=2)
    aliased(publisher, name, b"set", 1, qos)
    aliased(publisher, "", b"used", 1, qos)
    for payload in (b"set", b"used"):
        assert subscriber.receive(name, payload, qos=qos).properties == {}


@pytest.mark.mqtt("5:3.3.2-12")
def test_every_alias_up_to_the_maximum(connect: Connect, name: str) -> None:
    """All aliases that CONNACK allows can be used at once."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(f"{name}/+")
    maximum = min(publisher.connack.properties["topic_alias_maximum"], 200)
    for alias in range(1, maximum + 1):
        aliased(publisher, f"{name}/{alias}", b"set", alias)
        subscriber.receive(f"{name}/{alias}", b"set")
    for alias in range(maximum, 0, -1):
        aliased(publisher, "", b"used", alias)
        subscriber.receive(f"{name}/{alias}", b"used")


@pytest.mark.mqtt("5:3.3.2-12")
def test_an_alias_may_change_its_topic(connect: Connect, name: str) -> None:
    """A PUBLISH with another topic and the same alias gives it a new meaning."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(f"{name}/+")
    for topic in (f"{name}/a", f"{name}/b", f"{name}/a"):
        aliased(publisher, topic, b"set", 1)
        aliased(publisher, "", b"used", 1)
        subscriber.receive(topic, b"set")
        subscriber.receive(topic, b"used")


@pytest.mark.mqtt("5:3.3.2-12", "5:3.3.2-17")
def test_an_alias_and_other_properties(connect: Connect, name: str) -> None:
    """The alias is removed from the properties, wherever it is among them; the others arrive."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(name)
    around = {"content_type": "t", "topic_alias": 1, "user_property": [("a", "b")], "response_topic": "r"}
    for topic in (name, ""):
        publisher.publish(topic, b"x", properties=around)
        assert subscriber.receive(name, b"x").properties == {k: v for k, v in around.items() if k != "topic_alias"}


@pytest.mark.mqtt("5:3.3.2-8")
def test_alias_0(connect: Connect, name: str) -> None:
    """Topic Alias 0 closes the connection."""
    client = connect(5)
    client.send(wire.publish(5, name, b"x", properties={"topic_alias": 0}))
    client.expect_closed(TOPIC_ALIAS_INVALID, PROTOCOL_ERROR, MALFORMED)


@pytest.mark.mqtt("5:3.2.2-17", "5:3.3.2-9")
def test_alias_above_the_maximum(connect: Connect, name: str) -> None:
    """A Topic Alias above the maximum in CONNACK closes the connection with 0x94."""
    client = connect(5)
    beyond = client.connack.properties["topic_alias_maximum"] + 1
    assert beyond <= 65535, "a maximum of 65,535 aliases for each connection is no limit"
    client.send(wire.publish(5, name, b"x", properties={"topic_alias": beyond}))
    client.expect_closed(TOPIC_ALIAS_INVALID)


@pytest.mark.mqtt("5:4.13.1-1")
def test_an_alias_without_a_meaning(connect: Connect) -> None:
    """An empty topic with an alias that was not set is a Protocol Error."""
    client = connect(5)
    client.send(wire.publish(5, "", b"x", properties={"topic_alias": 1}))
    client.expect_closed(PROTOCOL_ERROR, TOPIC_ALIAS_INVALID)


@pytest.mark.mqtt("5:3.3.2-7")
def test_aliases_end_with_the_connection(connect: Connect, name: str) -> None:
    """A client that resumes its session must set its aliases again."""
    keep = {"session_expiry_interval": 60}
    client = connect(5, name, properties=keep)
    aliased(client, name, b"set", 1, qos=1)
    client.disconnect()
    again = connect(5, name, clean=False, properties=keep)
    assert again.connack.session_present
    again.send(wire.publish(5, "", b"x", properties={"topic_alias": 1}))
    again.expect_closed(PROTOCOL_ERROR, TOPIC_ALIAS_INVALID)


@pytest.mark.mqtt("5:3.3.2-7")
def test_aliases_belong_to_their_connection(connect: Connect, name: str) -> None:
    """The same alias stands for different topics on two connections."""
    subscriber, first, second = connect(5), connect(5), connect(5)
    subscriber.subscribe(f"{name}/+")
    aliased(first, f"{name}/1", b"set", 1)
    subscriber.receive(f"{name}/1", b"set")
    aliased(second, f"{name}/2", b"set", 1)
    subscriber.receive(f"{name}/2", b"set")
    aliased(first, "", b"used", 1)
    subscriber.receive(f"{name}/1", b"used")
    aliased(second, "", b"used", 1)
    subscriber.receive(f"{name}/2", b"used")


@pytest.mark.mqtt("5:3.1.2-27")
def test_no_aliases_for_who_does_not_want_them(connect: Connect, name: str) -> None:
    """A client without a Topic Alias Maximum is never sent an alias, always the topic."""
    subscriber, publisher = connect(5), connect(5)
    subscriber.subscribe(name)
    for _ in range(5):
        publisher.publish(name, b"x")
        assert "topic_alias" not in subscriber.receive(name, b"x").properties


@pytest.mark.mqtt("5:3.1.2-26", "5:3.3.2-11")
def test_aliases_to_the_client_stay_in_its_limit(connect: Connect, name: str) -> None:
    """A client that allows two aliases can resolve the topics of all messages, whether aliases are used or not."""
    subscriber, publisher = connect(5, properties={"topic_alias_maximum": 2}), connect(5)
    subscriber.subscribe(f"{name}/+")
    known: dict[int, str] = {}
    for number in [0, 1, 2, 3, 0, 1, 2, 3, 3, 3]:
        publisher.publish(f"{name}/{number}", b"x")
        got = subscriber.expect("PUBLISH")
        alias = got.properties.get("topic_alias")
        if alias is not None:
            assert 1 <= alias <= 2
            known[alias] = got.topic or known[alias]
        assert (got.topic or known[alias or 0]) == f"{name}/{number}"


@pytest.mark.mqtt("5:3.2.2-18")
@pytest.mark.mosquitto_differs("is configured in another way")
def test_a_broker_without_aliases(configured: Configured, open_to: OpenTo, workers: int, name: str) -> None:
    """If aliases are disabled, CONNACK has no Topic Alias Maximum, and every alias closes the connection."""
    client = open_to(configured(workers, {"LIMITS__TOPIC_ALIAS_MAX": 0}), 5)
    client.connect(name)
    assert "topic_alias_maximum" not in client.connack.properties
    client.send(wire.publish(5, name, b"x", properties={"topic_alias": 1}))
    client.expect_closed(TOPIC_ALIAS_INVALID)
