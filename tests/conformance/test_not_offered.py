"""A broker that offers a part of MQTT: CONNACK says so, and clients that use the rest are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import wire
from tests.broker_process import KIND, BrokerProcess
from tests.wire import Connect, OpenConnection, Will

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="these are settings of mqttd")

RETAIN_NOT_SUPPORTED, QOS_NOT_SUPPORTED = 0x9A, 0x9B
SHARED_NOT_SUPPORTED, IDENTIFIERS_NOT_SUPPORTED, WILDCARDS_NOT_SUPPORTED = 0x9E, 0xA1, 0xA2
FAILURE = 0x80
V3_OTHER = 0
LITTLE = {
    "PROTOCOL__MAXIMUM_QOS": 1,
    "PROTOCOL__RETAIN_AVAILABLE": "false",
    "PROTOCOL__WILDCARD_SUBSCRIPTION_AVAILABLE": "false",
    "PROTOCOL__SHARED_SUBSCRIPTION_AVAILABLE": "false",
    "PROTOCOL__SUBSCRIPTION_IDENTIFIER_AVAILABLE": "false",
}


@pytest.fixture
def broker(workers: int, configured: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that offers little."""
    return configured(workers, LITTLE)


@pytest.mark.mqtt("5:3.2.2-9")
def test_connack_says_what_is_not_offered(connect: Connect) -> None:
    """CONNACK has Maximum QoS 1 and 0 for retained messages, wildcards, identifiers and shared subscriptions."""
    properties = connect(5).connack.properties
    assert properties["maximum_qos"] == 1
    for feature in ("retain", "wildcard_subscription", "subscription_identifier", "shared_subscription"):
        assert properties[f"{feature}_available"] == 0


@pytest.mark.mqtt("5:3.2.2-10")
def test_a_subscription_is_granted_the_maximum_qos(connect: Connect, any_version: int, name: str) -> None:
    """SUBSCRIBE with any QoS is accepted and granted at most the Maximum QoS."""
    client = connect(any_version)
    assert client.subscribe((f"{name}/0", 0), (f"{name}/1", 1), (f"{name}/2", 2)) == (0, 1, 1)
    client.publish(f"{name}/2", b"x", qos=1)
    client.receive(f"{name}/2", b"x", qos=1)


@pytest.mark.mqtt("5:3.2.2-11")
def test_publish_above_the_maximum_qos(connect: Connect, any_version: int, name: str) -> None:
    """A PUBLISH above Maximum QoS closes the connection, v5 with 0x9B, and is not delivered."""
    watching, client = connect(any_version), connect(any_version)
    watching.subscribe(name)
    client.send(wire.publish(any_version, name, b"x", qos=2, packet_id=1))
    client.expect_closed(QOS_NOT_SUPPORTED)
    wire.expect_nothing_more(watching, watching, f"{name}/marker")


@pytest.mark.mqtt("5:3.2.2-12")
def test_will_above_the_maximum_qos(open_connection: OpenConnection, any_version: int, name: str) -> None:
    """A will above Maximum QoS is refused: CONNACK 0x9B; v3, which has no return code for it, is closed."""
    client = open_connection(any_version)
    client.send(wire.connect(any_version, name, will=Will(name, b"x", qos=2)))
    if any_version == 5:
        assert "reason_string" in client.expect("CONNACK", reason=QOS_NOT_SUPPORTED).properties
    client.expect_closed()


@pytest.mark.mqtt("5:3.2.2-13")
def test_retained_will(open_connection: OpenConnection, any_version: int, name: str) -> None:
    """A will with RETAIN is refused where Retain Available is 0: CONNACK 0x9A, v3 is closed."""
    client = open_connection(any_version)
    client.send(wire.connect(any_version, name, will=Will(name, b"x", retain=True)))
    if any_version == 5:
        client.expect("CONNACK", reason=RETAIN_NOT_SUPPORTED)
    client.expect_closed()


@pytest.mark.mqtt("5:3.2.2-14")
@pytest.mark.parametrize("payload", [b"x", b""], ids=["set", "clear"])
def test_retained_publish(connect: Connect, any_version: int, name: str, payload: bytes) -> None:
    """A PUBLISH with RETAIN closes the connection where Retain Available is 0, v5 with 0x9A."""
    client = connect(any_version)
    client.send(wire.publish(any_version, name, payload, retain=True))
    client.expect_closed(RETAIN_NOT_SUPPORTED)


@pytest.mark.mqtt("5:4.13.1-1", "311:3.8.3-2")
@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [
        ("a/+", WILDCARDS_NOT_SUPPORTED),
        ("#", WILDCARDS_NOT_SUPPORTED),
        ("$share/g/a", SHARED_NOT_SUPPORTED),
        ("$share/g/#", SHARED_NOT_SUPPORTED),
    ],
)
def test_subscriptions_that_are_not_offered(
    connect: Connect, any_version: int, name: str, topic_filter: str, reason: int
) -> None:
    """CONNACK says which subscriptions are unavailable: a v5 client that uses them gets a Protocol Error, v3 SUBACK
    0x80.
    """
    client = connect(any_version)
    if any_version < 5:
        assert client.subscribe(topic_filter, name) == (FAILURE, 0)
        client.publish(name, b"x")
        client.receive(name, b"x")
    else:
        client.send(wire.subscribe(5, 1, (name, 0), (topic_filter, 0)))
        client.expect_closed(reason)


@pytest.mark.mqtt("5:4.13.1-1")
def test_subscription_identifier(connect: Connect, name: str) -> None:
    """A Subscription Identifier where they are unavailable is a Protocol Error: 0xA1."""
    client = connect(5)
    client.send(wire.subscribe(5, 1, (name, 0), properties={"subscription_identifier": 1}))
    client.expect_closed(IDENTIFIERS_NOT_SUPPORTED)
