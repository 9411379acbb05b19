"""Sessions: Session Present, clean start, expiry, and messages queued for an offline client."""

from __future__ import annotations

from typing import Any

import pytest

from tests import wire
from tests.conformance.conftest import Everywhere
from tests.waiting import let_pass
from tests.wire import Connect

PROTOCOL_ERROR = 0x82
FOREVER = 0xFFFFFFFF


def durable(version: int, seconds: int = 60) -> dict[str, Any]:
    """Options of a session that outlives its connection."""
    return {"clean": False, "properties": {"session_expiry_interval": seconds} if version == 5 else {}}


@pytest.mark.mqtt(
    "5:3.2.2-1",
    "5:3.1.2-5",
    "5:3.1.2-6",
    "5:3.1.4-4",
    "5:3.2.2-3",
    "311:3.1.2-4",
    "311:3.1.4-3",
    "311:3.2.2-2",
    "311:3.2.2-3",
)
def test_session_present(connect: Connect, version: int, name: str) -> None:
    """A client with clean start 0 finds no session at first, and its own session when it reconnects."""
    first = connect(version, name, **durable(version))
    assert not first.connack.session_present
    first.disconnect()
    assert connect(version, name, **durable(version)).connack.session_present


@pytest.mark.mqtt("5:3.1.2-23", "311:3.1.2-4")
def test_session_outlives_a_broken_connection(connect: Connect, version: int, name: str) -> None:
    """A session outlives its connection with or without DISCONNECT."""
    connect(version, name, **durable(version)).close()
    assert connect(version, name, **durable(version)).connack.session_present


@pytest.mark.mqtt("5:3.1.2-4", "5:3.1.4-4", "5:3.2.2-2", "311:3.1.2-6", "311:3.1.4-3", "311:3.2.2-1")
def test_clean_start_discards(connect: Connect, version: int, name: str) -> None:
    """Clean start 1 gets Session Present 0, and the old subscriptions and messages are discarded."""
    old = connect(version, name, **durable(version))
    old.subscribe(name, qos=1)
    old.disconnect()
    publisher = connect(version)
    publisher.publish(name, b"waits", qos=1)
    new = connect(version, name, clean=True)
    assert not new.connack.session_present
    publisher.publish(name, b"nobody", qos=1)
    wire.expect_nothing_more(new, publisher, f"{name}/marker", qos=1)


@pytest.mark.mqtt("311:3.1.2-6", "311:3.2.2-3")
def test_v311_clean_session_leaves_nothing(connect: Connect, name: str) -> None:
    """The session of a v3.1.1 client with clean session 1 ends with its connection."""
    connect(4, name, clean=True).disconnect()
    assert not connect(4, name, clean=False).connack.session_present


@pytest.mark.mqtt("5:4.1.0-2")
@pytest.mark.parametrize("properties", [{}, {"session_expiry_interval": 0}], ids=["absent", "0"])
def test_v5_session_without_expiry_ends_at_once(connect: Connect, name: str, properties: dict[str, int]) -> None:
    """A v5 session without Session Expiry Interval, or with 0, ends with its connection."""
    connect(5, name, clean=False, properties=properties).disconnect()
    assert not connect(5, name, clean=False).connack.session_present


@pytest.mark.mqtt("5:3.1.2-23")
def test_v5_clean_start_begins_a_durable_session(connect: Connect, name: str) -> None:
    """Clean start discards the former session; Session Expiry Interval says how long the new one lasts."""
    connect(5, name, clean=True, properties={"session_expiry_interval": 60}).disconnect()
    assert connect(5, name, clean=False).connack.session_present


@pytest.mark.mqtt("5:4.1.0-2")
def test_a_session_expires(everywhere: Everywhere) -> None:
    """A session with Session Expiry Interval 1 exists right after its connection, and not two seconds later."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        connect(5, name, **durable(5, 1)).disconnect()
        again = connect(5, name, **durable(5, 1))
        assert again.connack.session_present
        again.disconnect()
        let_pass(3.1)
        assert not connect(5, name, **durable(5, 1)).connack.session_present

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:4.1.0-1")
def test_a_connected_session_does_not_expire(everywhere: Everywhere) -> None:
    """Session Expiry counts from the end of the connection, not from its beginning."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        client = connect(5, name, **durable(5, 1))
        let_pass(2.5)
        client.disconnect()
        assert connect(5, name, **durable(5, 1)).connack.session_present

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:3.1.2-23")
def test_a_session_for_ever(connect: Connect, name: str) -> None:
    """A session with Session Expiry Interval 0xFFFFFFFF does not expire."""
    connect(5, name, **durable(5, FOREVER)).disconnect()
    assert connect(5, name, **durable(5, FOREVER)).connack.session_present


@pytest.mark.mqtt("5:4.1.0-2")
def test_disconnect_may_shorten_the_session(connect: Connect, name: str) -> None:
    """DISCONNECT with Session Expiry Interval 0 ends a lasting session."""
    connect(5, name, **durable(5)).disconnect(properties={"session_expiry_interval": 0})
    assert not connect(5, name, **durable(5)).connack.session_present


@pytest.mark.mqtt("5:3.1.2-23")
def test_disconnect_may_lengthen_the_session(everywhere: Everywhere) -> None:
    """DISCONNECT with another Session Expiry Interval replaces that of CONNECT."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        connect(5, name, **durable(5, 1)).disconnect(properties={"session_expiry_interval": 60})
        let_pass(2.5)
        assert connect(5, name, **durable(5)).connack.session_present

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:4.13.1-1")
def test_disconnect_may_not_begin_an_expiry(connect: Connect, name: str) -> None:
    """A client that connected with Session Expiry Interval 0 may not set another value on DISCONNECT."""
    client = connect(5, name)
    client.send(wire.disconnect(5, 0, {"session_expiry_interval": 60}))
    client.expect_closed(PROTOCOL_ERROR)
    assert not connect(5, name, clean=False).connack.session_present


@pytest.mark.mqtt("5:3.1.2-5", "5:3.1.3-2", "311:3.1.2-4", "311:3.1.3-2")
@pytest.mark.parametrize(("before", "after"), [(4, 5), (5, 4), (3, 4)])
def test_a_session_may_change_its_version(connect: Connect, name: str, before: int, after: int) -> None:
    """A session belongs to the client id: a client of another version resumes it with its subscriptions."""
    first = connect(before, name, **durable(before))
    first.subscribe(name, qos=1)
    first.disconnect()
    connect(after).publish(name, b"waits", qos=1)
    again = connect(after, name, **durable(after))
    if after != 3:
        assert again.connack.session_present
    again.receive(name, b"waits", qos=1)


@pytest.mark.mqtt("5:4.5.0-1", "311:3.1.2-5", "311:4.5.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait(connect: Connect, version: int, name: str, qos: int) -> None:
    """QoS 1 and 2 messages for an offline session are delivered when it reconnects: in order, DUP and RETAIN clear."""
    subscriber = connect(version, name, **durable(version))
    subscriber.subscribe(name, qos=qos)
    subscriber.disconnect()
    publisher = connect(version)
    for number in range(30):
        publisher.publish(name, b"%d" % number, qos=qos, retain=number == 29)
    again = connect(version, name, **durable(version))
    for number in range(30):
        again.receive(name, b"%d" % number, qos=qos, dup=False, retain=False)
    again.expect_silence()


@pytest.mark.mqtt("5:4.5.0-1", "311:3.1.2-5")
def test_qos_0_does_not_wait(connect: Connect, version: int, name: str) -> None:
    """Neither a QoS 0 message nor one for a QoS 0 subscription is queued for an offline session."""
    subscriber = connect(version, name, **durable(version))
    subscriber.subscribe((f"{name}/1", 1), (f"{name}/0", 0))
    subscriber.disconnect()
    publisher = connect(version)
    publisher.publish(f"{name}/1", b"QoS 0", qos=0)
    publisher.publish(f"{name}/0", b"granted 0", qos=1)
    publisher.publish(f"{name}/1", b"waits", qos=1)
    again = connect(version, name, **durable(version))
    again.receive(f"{name}/1", b"waits", qos=1)
    again.expect_silence()


@pytest.mark.mqtt("5:3.8.4-8", "5:4.5.0-1", "311:3.1.2-5", "311:3.8.4-6")
def test_messages_wait_at_the_effective_qos(connect: Connect, version: int, name: str) -> None:
    """A queued message is delivered at the lower of the published and the granted QoS."""
    subscriber = connect(version, name, **durable(version))
    subscriber.subscribe((f"{name}/1", 1), (f"{name}/2", 2))
    subscriber.disconnect()
    publisher = connect(version)
    publisher.publish(f"{name}/1", b"a", qos=2)
    publisher.publish(f"{name}/2", b"b", qos=1)
    publisher.publish(f"{name}/2", b"c", qos=2)
    again = connect(version, name, **durable(version))
    for expected in [(f"{name}/1", b"a", 1), (f"{name}/2", b"b", 1), (f"{name}/2", b"c", 2)]:
        again.receive(expected[0], expected[1], qos=expected[2])


@pytest.mark.mqtt("5:4.6.0-5", "5:4.6.0-6", "311:4.6.0-5", "311:4.6.0-6")
def test_waiting_messages_come_before_new_ones(connect: Connect, version: int, name: str) -> None:
    """Five hundred queued messages arrive before ten that are published after the client reconnects, all in order."""
    subscriber = connect(version, name, **durable(version))
    subscriber.subscribe(name, qos=1)
    subscriber.disconnect()
    publisher = connect(version)
    for number in range(500):
        publisher.publish(name, b"%d" % number, qos=1)
    again = connect(version, name, **durable(version))
    for number in range(500, 510):
        publisher.publish(name, b"%d" % number, qos=1)
    for number in range(510):
        again.receive(name, b"%d" % number)
    again.expect_silence()


@pytest.mark.mqtt("5:4.6.0-5", "5:4.6.0-6", "311:4.6.0-5", "311:4.6.0-6")
def test_waiting_messages_come_before_the_retained_one(connect: Connect, version: int, name: str) -> None:
    """A client with waiting messages subscribes anew: the retained message, which is the newest, comes after them."""
    subscriber = connect(version, name, **durable(version))
    subscriber.subscribe(name, qos=1)
    subscriber.disconnect()
    publisher = connect(version)
    for number in range(200):
        publisher.publish(name, b"%d" % number, qos=1, retain=True)
    options = durable(version)
    if version == 5:
        options["properties"]["receive_maximum"] = 2
    again = connect(version, name, **options)
    again.send(wire.subscribe(version, 9, (name, 1)))
    again.await_packet("SUBACK")
    for number in range(200):
        again.receive(name, b"%d" % number, retain=False)
    again.receive(name, b"199", retain=True)
    again.expect_silence()


@pytest.mark.mqtt("5:3.3.2-5", "5:3.3.2-6")
def test_waiting_messages_expire(everywhere: Everywhere) -> None:
    """A queued message whose Message Expiry Interval passes is not sent; another has its remaining interval."""

    def scenario(connect: Connect, _version: int, name: str) -> None:
        subscriber = connect(5, name, **durable(5))
        subscriber.subscribe(name, qos=1)
        subscriber.disconnect()
        publisher = connect(5)
        publisher.publish(name, b"expires", qos=1, properties={"message_expiry_interval": 1})
        publisher.publish(name, b"lives", qos=1, properties={"message_expiry_interval": 100})
        let_pass(2.1)
        again = connect(5, name, **durable(5))
        assert 60 <= again.receive(name, b"lives").properties["message_expiry_interval"] <= 98
        again.expect_silence()

    everywhere(scenario, [5])


@pytest.mark.mqtt("5:3.1.2-5", "5:4.1.0-1", "311:3.1.2-4", "311:4.1.0-1")
def test_subscriptions_stay_with_the_session(connect: Connect, version: int, name: str) -> None:
    """A client that reconnects gets live messages without a new SUBSCRIBE; UNSUBSCRIBE ends an old subscription."""
    subscriber = connect(version, name, **durable(version))
    subscriber.subscribe(f"{name}/a", f"{name}/+/c")
    subscriber.disconnect()
    again = connect(version, name, **durable(version))
    publisher = connect(version)
    publisher.publish(f"{name}/a", b"1")
    publisher.publish(f"{name}/b/c", b"2")
    again.receive(f"{name}/a", b"1")
    again.receive(f"{name}/b/c", b"2")
    again.unsubscribe(f"{name}/a")
    publisher.publish(f"{name}/a", b"3")
    wire.expect_nothing_more(again, publisher, f"{name}/marker")


@pytest.mark.mqtt("5:3.1.2-5", "5:4.1.0-1", "311:3.1.2-4", "311:4.1.0-1")
def test_a_session_lives_through_many_connections(connect: Connect, version: int, name: str) -> None:
    """A client that disconnects and reconnects twenty times misses none of the messages published in between."""
    connect(version, name, **durable(version)).subscribe(name, qos=2)
    publisher = connect(version)
    for number in range(20):
        publisher.publish(name, b"%d" % number, qos=2)
        client = connect(version, name, **durable(version))
        got = client.expect("PUBLISH", payload=b"%d" % number)
        client.ack("PUBREC", got.packet_id)
        client.expect("PUBREL", packet_id=got.packet_id)
        client.ack("PUBCOMP", got.packet_id)
        client.disconnect()


@pytest.mark.mqtt("5:4.5.0-1", "311:3.1.2-5", "311:4.5.0-1")
def test_messages_wait_for_many_sessions(connect: Connect, version: int, name: str) -> None:
    """One message is queued for twenty sessions, on whichever workers their homes are."""
    ids = [f"{name}w{number}" for number in range(20)]
    for client_id in ids:
        client = connect(version, client_id, **durable(version))
        client.subscribe(name, qos=1)
        client.disconnect()
    connect(version).publish(name, b"for all", qos=1)
    for client_id in ids:
        connect(version, client_id, **durable(version)).receive(name, b"for all", qos=1)


@pytest.mark.mqtt("5:3.10.4-2", "311:3.10.4-2")
def test_unsubscribed_while_messages_wait(connect: Connect, version: int, name: str) -> None:
    """A session that unsubscribes and disconnects is not sent messages published after that."""
    client = connect(version, name, **durable(version))
    client.subscribe(name, qos=1)
    client.unsubscribe(name)
    client.disconnect()
    connect(version).publish(name, b"no", qos=1)
    connect(version, name, **durable(version)).expect_silence()


@pytest.mark.mqtt("5:4.1.0-1", "311:4.1.0-1", "311:4.1.0-2")
def test_a_session_lasts_as_long_as_its_connection(everywhere: Everywhere) -> None:
    """A client with clean session 1 keeps its subscription and unfinished handshake while it is connected."""

    def scenario(connect: Connect, version: int, name: str) -> None:
        client = connect(version, name, clean=True)
        client.subscribe(name, qos=2)
        publisher = connect(version)
        publisher.publish(name, b"begun", qos=2)
        client.expect("PUBLISH", packet_id=1, payload=b"begun")
        for number in range(20):
            connect(version, f"{name}c{number}").disconnect()
        let_pass(1.2)
        client.ack("PUBREC", 1)
        client.expect("PUBREL", packet_id=1, reason=0)
        client.ack("PUBCOMP", 1)
        publisher.publish(name, b"more", qos=1)
        client.receive(name, b"more", packet_id=2)

    everywhere(scenario, [3, 4, 5])
