"""Reason Codes and Reason Strings: when they are sent, when they fit, and when the client does not want them."""

from __future__ import annotations

import pytest

from tests import wire
from tests.broker_process import KIND
from tests.waiting import wait_until
from tests.wire import Client, Connect, OpenConnection, Packet, Will

NO_MATCHING_SUBSCRIBERS = 0x10
MALFORMED, PROTOCOL_ERROR, BAD_CLIENT_ID, NOT_AUTHORIZED = 0x81, 0x82, 0x85, 0x87
NO_SUBSCRIPTION, TOPIC_FILTER_INVALID, PACKET_TOO_LARGE = 0x11, 0x8F, 0x95
V3_IDENTIFIER, V3_NOT_AUTHORIZED = 2, 5
DEEP = "/" * 200
"""More levels than are allowed."""
QUIET = {"request_problem_information": 0}

of_mqttd = pytest.mark.skipif(KIND != "mqttd", reason="the standard does not demand it; mqttd does it so")


def refused_publish(client: Client, topic: str, qos: int = 1) -> Packet:
    """Return the answer to a PUBLISH that is refused."""
    client.send(wire.publish(client.version, topic, b"x", qos=qos, packet_id=9))
    return client.expect("PUBACK" if qos == 1 else "PUBREC", packet_id=9)


@of_mqttd
@pytest.mark.mqtt("5:3.4.2-1", "5:3.5.2-1")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("topic", ["$SYS", "$SYS/broker/uptime"])
def test_the_servers_own_topics(connect: Connect, name: str, topic: str, qos: int) -> None:
    """A client may not publish to $SYS: PUBACK or PUBREC 0x87 with a reason; connection and identifier stay usable."""
    watching, client = connect(5), connect(5)
    watching.subscribe(topic)
    got = refused_publish(client, topic, qos)
    assert (got.reason, list(got.properties)) == (NOT_AUTHORIZED, ["reason_string"])
    client.send(wire.publish(5, topic, b"lost at QoS 0"))
    client.send(wire.publish(5, name, b"x", qos=1, packet_id=9))
    client.expect("PUBACK", packet_id=9)
    watching.send(wire.PINGREQ)
    watching.await_packet("PINGRESP")
    assert not [got for got in watching.kept if got.payload in (b"x", b"lost at QoS 0")]


@of_mqttd
@pytest.mark.mqtt("311:3.3.5-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_v3_is_acknowledged_and_nothing_is_published(connect: Connect, name: str, qos: int) -> None:
    """A v3 client that may not publish gets ordinary acknowledgements, which have no reason; nothing is published."""
    topic = f"$SYS/{name}"
    watching, client = connect(4), connect(4)
    watching.subscribe(topic)
    client.publish(topic, b"x", qos=qos)
    client.expect_silence()
    wire.expect_nothing_more(watching, client, f"{name}/marker")


@of_mqttd
@pytest.mark.mqtt("5:3.2.2-8")
def test_a_will_for_the_servers_own_topics(open_connection: OpenConnection, any_version: int, name: str) -> None:
    """A will to $SYS is refused: CONNACK 0x87, return code 5."""
    client = open_connection(any_version)
    client.send(wire.connect(any_version, name, will=Will("$SYS/x", b"x")))
    client.expect("CONNACK", reason=NOT_AUTHORIZED if any_version == 5 else V3_NOT_AUTHORIZED)
    client.expect_closed()


@of_mqttd
@pytest.mark.mqtt("311:3.1.3-9")
@pytest.mark.parametrize("clean", [False, True])
def test_v31_needs_a_client_id(open_connection: OpenConnection, clean: bool) -> None:
    """MQTT 3.1 does not allow empty client ids: return code 2, whatever the clean session flag."""
    client = open_connection(3)
    client.send(wire.connect(3, "", clean=clean))
    client.expect("CONNACK", reason=V3_IDENTIFIER)
    client.expect_closed()


@of_mqttd
@pytest.mark.mqtt("5:3.8.4-7")
def test_every_refusal_of_a_filter_has_a_reason(connect: Connect, name: str) -> None:
    """SUBACK has a code for each filter; its Reason String explains the first refused filter."""
    client = connect(5)
    client.send(wire.subscribe(5, 1, (name, 1), (DEEP, 0), (f"$share/g/{DEEP}", 0)))
    got = client.expect("SUBACK", packet_id=1, codes=(1, TOPIC_FILTER_INVALID, TOPIC_FILTER_INVALID))
    assert "filter 2" in got.properties["reason_string"]


@of_mqttd
@pytest.mark.mqtt("5:4.13.2-1")
def test_disconnect_says_why(connect: Connect, open_connection: OpenConnection, name: str) -> None:
    """DISCONNECT and a refusing CONNACK carry a Reason String; for a malformed filter it says which and how."""
    for bad, how in (("", "empty"), ("a/#/b", "wildcard"), ("$share/g", "ShareName")):
        for packet in (wire.subscribe(5, 1, (name, 0), (bad, 0)), wire.unsubscribe(5, 1, name, bad)):
            client = connect(5)
            client.send(packet)
            why = client.expect("DISCONNECT", reason=MALFORMED).properties["reason_string"]
            assert "filter 2" in why
            assert how in why
    client = connect(5)
    client.send(wire.connect(5, name))
    assert "CONNECT" in client.expect("DISCONNECT", reason=PROTOCOL_ERROR).properties["reason_string"]
    client = open_connection(5)
    client.send(wire.connect(5, name, extra_flags=1))
    assert client.expect("CONNACK", reason=MALFORMED).properties["reason_string"]


@of_mqttd
@pytest.mark.mqtt("5:3.1.2-29")
def test_no_reasons_for_who_does_not_want_them(connect: Connect, name: str) -> None:
    """With Request Problem Information 0 PUBACK, PUBREC, SUBACK and UNSUBACK have no Reason String."""
    client = connect(5, properties=QUIET)
    for qos in (1, 2):
        assert refused_publish(client, "$SYS/x", qos).properties == {}
    client.send(wire.subscribe(5, 1, (DEEP, 0)), wire.unsubscribe(5, 2, "a"))
    client.expect("SUBACK", codes=(TOPIC_FILTER_INVALID,), properties={})
    client.expect("UNSUBACK", codes=(NO_SUBSCRIPTION,), properties={})
    client.subscribe(name)
    client.publish(name, b"x", properties={"user_property": [("a", "b")]})
    client.receive(name, b"x", properties={"user_property": [("a", "b")]})


@of_mqttd
@pytest.mark.mqtt("5:3.4.2-2", "5:3.5.2-2", "5:3.9.2-1", "5:3.11.2-1", "5:3.14.2-3")
def test_reasons_that_do_not_fit(connect: Connect) -> None:
    """A Reason String that would make a packet exceed the client's Maximum Packet Size is left out; the code stays."""
    client = connect(5, properties={"maximum_packet_size": 22})
    for qos in (1, 2):
        got = refused_publish(client, "$SYS/x", qos)
        assert (got.reason, got.properties) == (NOT_AUTHORIZED, {})
    client.send(wire.subscribe(5, 1, (DEEP, 0)), wire.unsubscribe(5, 2, "a"))
    client.expect("SUBACK", codes=(TOPIC_FILTER_INVALID,), properties={})
    client.expect("UNSUBACK", codes=(NO_SUBSCRIPTION,), properties={})
    client.send(wire.packet("AUTH", 0))
    client.expect("DISCONNECT", properties={})


@of_mqttd
@pytest.mark.mqtt("5:3.1.2-24", "5:3.2.2-19")
@pytest.mark.parametrize("size", [1, 4, 5, 10, 20])
def test_a_connack_that_does_not_fit(open_connection: OpenConnection, name: str, size: int) -> None:
    """A client whose Maximum Packet Size is too small for CONNACK is refused within that size, or without a packet."""
    client = open_connection(5)
    client.send(wire.connect(5, name, properties={"maximum_packet_size": size}))
    if size < 5:
        client.expect_closed()
        return
    got = client.read()
    assert got.kind == "CONNACK"
    assert len(got.body) + 2 <= size
    if got.reason:
        assert (got.reason, got.properties) == (PACKET_TOO_LARGE, {})
        client.expect_closed()
    else:
        client.expect_silence()


@of_mqttd
@pytest.mark.mqtt("5:3.1.2-24")
def test_a_suback_that_does_not_fit(connect: Connect, name: str) -> None:
    """A SUBSCRIBE whose answer exceeds the client's Maximum Packet Size ends the connection: it cannot be answered."""
    client = connect(5, properties={"maximum_packet_size": 40})
    client.send(wire.subscribe(5, 1, *[(f"{name}/{number}", 0) for number in range(30)]))
    client.expect("SUBACK", codes=(0,) * 30)
    client.send(wire.subscribe(5, 1, *[(f"{name}/{number}", 0) for number in range(40)]))
    assert len(client.expect("DISCONNECT", reason=PACKET_TOO_LARGE).body) <= 38
    client.expect_closed()


@of_mqttd
@pytest.mark.mqtt("5:3.4.2-1")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "shared", "wildcard"])
def test_no_matching_subscribers(connect: Connect, name: str, kind: str, qos: int) -> None:
    """0x10 says that no worker has a subscriber; once any worker has one, the code is 0x00."""
    topic_filter = {"plain": name, "shared": f"$share/g/{name}", "wildcard": f"{name}/#"}[kind]
    publishers = [connect(5) for _ in range(4)]
    for publisher in publishers:
        assert publisher.publish(name, b"x", qos=qos) == NO_MATCHING_SUBSCRIBERS
    subscriber = connect(5)
    subscriber.subscribe(topic_filter, qos=qos)
    for publisher in publishers:
        assert publisher.publish(name, b"x", qos=qos) == 0
        subscriber.receive(name, b"x")
    subscriber.unsubscribe(topic_filter)
    # siblings are notified a little later, and no UNSUBACK waits for them
    wait_until(
        lambda: all(each.publish(name, b"x", qos=qos) == NO_MATCHING_SUBSCRIBERS for each in publishers), 60, "0x10"
    )


@of_mqttd
@pytest.mark.mqtt("5:3.4.2-1")
def test_an_offline_session_matches(connect: Connect, name: str) -> None:
    """An offline session is a subscriber: no 0x10."""
    subscriber = connect(5, name, properties={"session_expiry_interval": 60})
    subscriber.subscribe(name, qos=1)
    subscriber.disconnect()
    for _ in range(4):
        assert connect(5).publish(name, b"x", qos=1) == 0


@of_mqttd
@pytest.mark.mqtt("5:3.4.2-1")
def test_a_retained_message_without_subscribers(connect: Connect, name: str) -> None:
    """A retained message without subscribers is stored, and still acknowledged with 0x10."""
    for number in range(4):
        topic = f"{name}/{number}"
        assert connect(5).publish(topic, b"kept", qos=1, retain=True) == NO_MATCHING_SUBSCRIBERS
        subscriber = connect(5)
        subscriber.subscribe(topic)
        subscriber.receive(topic, b"kept", retain=True)
