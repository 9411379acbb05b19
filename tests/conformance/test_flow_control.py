"""Receive Maximum in both directions."""

from __future__ import annotations

import pytest

from tests import wire
from tests.wire import Client, Connect

EXCEEDED = 0x93


@pytest.mark.mqtt("5:3.3.4-9", "5:4.9.0-2")
@pytest.mark.mosquitto_differs("sends one message too many after the first PUBACK")
def test_no_more_than_receive_maximum(connect: Connect, name: str) -> None:
    """A subscriber with Receive Maximum 2 is sent two messages, then one more for each PUBACK."""
    subscriber, publisher = connect(5, properties={"receive_maximum": 2}), connect(5)
    subscriber.subscribe(name, qos=1)
    for number in range(5):
        publisher.publish(name, b"%d" % number, qos=1)
    for number in (0, 1):
        subscriber.expect("PUBLISH", payload=b"%d" % number)
    subscriber.expect_silence()
    for number in (2, 3, 4):
        subscriber.ack("PUBACK", number - 1)
        subscriber.expect("PUBLISH", payload=b"%d" % number)
        subscriber.expect_silence()


@pytest.mark.mqtt("5:3.3.4-9", "5:4.9.0-2")
def test_qos_2_counts_until_pubcomp(connect: Connect, name: str) -> None:
    """A QoS 2 message occupies its place in the window until PUBCOMP, not PUBREC."""
    subscriber, publisher = connect(5, properties={"receive_maximum": 1}), connect(5)
    subscriber.subscribe(name, qos=2)
    for payload in (b"first", b"second"):
        publisher.publish(name, payload, qos=2)
    subscriber.expect("PUBLISH", payload=b"first", packet_id=1)
    subscriber.ack("PUBREC", 1)
    subscriber.expect("PUBREL", packet_id=1)
    subscriber.expect_silence()
    subscriber.ack("PUBCOMP", 1)
    subscriber.expect("PUBLISH", payload=b"second")


@pytest.mark.mqtt("5:3.3.4-9", "5:4.4.0-2")
@pytest.mark.parametrize(("qos", "kind"), [(1, "PUBACK"), (2, "PUBREC")])
def test_an_error_frees_the_window(connect: Connect, name: str, qos: int, kind: str) -> None:
    """PUBACK or PUBREC with an error code frees a place in the window."""
    subscriber, publisher = connect(5, properties={"receive_maximum": 1}), connect(5)
    subscriber.subscribe(name, qos=qos)
    for payload in (b"first", b"second"):
        publisher.publish(name, payload, qos=qos)
    refused = subscriber.expect("PUBLISH", payload=b"first")
    subscriber.ack(kind, refused.packet_id, reason=0x83)
    subscriber.expect("PUBLISH", payload=b"second")


@pytest.mark.mqtt("5:3.3.4-10", "5:4.9.0-3")
def test_a_full_window_stops_nothing_else(connect: Connect, name: str) -> None:
    """A client with a full window is still sent QoS 0 messages and gets answers to all that it sends."""
    subscriber, publisher = connect(5, properties={"receive_maximum": 1}), connect(5)
    subscriber.subscribe((f"{name}/1", 1), (f"{name}/0", 0))
    for payload in (b"first", b"second"):
        publisher.publish(f"{name}/1", payload, qos=1)
    subscriber.expect("PUBLISH", payload=b"first")
    publisher.publish(f"{name}/0", b"passes")
    subscriber.receive(f"{name}/0", b"passes")
    assert subscriber.subscribe(f"{name}/2", qos=1) == (1,)
    subscriber.publish(f"{name}/elsewhere", b"x", qos=1)
    subscriber.publish(f"{name}/elsewhere", b"x", qos=2)
    subscriber.unsubscribe(f"{name}/2")
    subscriber.expect_silence()


@pytest.mark.mqtt("5:3.3.4-7")
@pytest.mark.mosquitto_differs("answers 0x97 to that message and goes on")
def test_client_exceeds_the_window_of_the_broker(connect: Connect, name: str) -> None:
    """A client that sends one QoS 2 message more than the Receive Maximum in CONNACK gets 0x93 and is closed."""
    client = connect(5)
    window = client.connack.properties.get("receive_maximum", 65535)
    assert window < 65535, "a broker without a Receive Maximum of its own promises 65,535 windows to everybody"
    client.send(*(wire.publish(5, name, b"x", qos=2, packet_id=n) for n in range(1, window + 2)))
    for _ in range(window + 1):
        got = client.read()
        if got.kind != "PUBREC":
            break
    assert (got.kind, got.reason) == ("DISCONNECT", EXCEEDED)
    client.expect_closed()


@pytest.mark.mqtt("5:3.3.4-7", "5:4.9.0-3")
def test_client_uses_the_whole_window_of_the_broker(connect: Connect, name: str) -> None:
    """A client may have exactly Receive Maximum QoS 2 messages in flight; each PUBCOMP makes room for one more."""
    client = connect(5)
    window = client.connack.properties.get("receive_maximum", 65535)
    client.send(*(wire.publish(5, name, b"x", qos=2, packet_id=n) for n in range(1, window + 1)))
    for number in range(1, window + 1):
        client.expect("PUBREC", packet_id=number)
    client.ack("PUBREL", 1)
    client.expect("PUBCOMP", packet_id=1)
    client.send(wire.publish(5, name, b"x", qos=2, packet_id=1))
    client.expect("PUBREC", packet_id=1)
    client.expect_silence()


@pytest.mark.mqtt("5:4.9.0-1")
@pytest.mark.mosquitto_differs("forgets the Receive Maximum of the new connection for what it sends again")
def test_the_next_connection_has_a_window_of_its_own(connect: Connect, name: str) -> None:
    """Three messages are in flight; the client reconnects with Receive Maximum 1 and is sent one at a time."""
    keep = {"session_expiry_interval": 60}
    subscriber, publisher = connect(5, name, properties=keep | {"receive_maximum": 3}), connect(5)
    subscriber.subscribe(name, qos=1)
    for number in range(3):
        publisher.publish(name, b"%d" % number, qos=1)
        subscriber.expect("PUBLISH", payload=b"%d" % number)
    subscriber.close()
    again = connect(5, name, clean=False, properties=keep | {"receive_maximum": 1})
    for number in range(3):
        again.expect("PUBLISH", payload=b"%d" % number, packet_id=number + 1)
        again.expect_silence()
        again.ack("PUBACK", number + 1)
    again.expect_silence()


@pytest.mark.mqtt("5:4.9.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_many_messages_through_a_window_of_one(connect: Connect, name: str, qos: int) -> None:
    """A subscriber with Receive Maximum 1 that acknowledges each message receives a hundred in order."""
    subscriber, publisher = connect(5, properties={"receive_maximum": 1}), connect(5)
    subscriber.subscribe(name, qos=qos)
    for number in range(100):
        publisher.publish(name, b"%d" % number, qos=qos)
    for number in range(100):
        subscriber.receive(name, b"%d" % number)
    subscriber.expect_silence()


@pytest.mark.mqtt("311:4.3.2-2")
def test_v311_without_a_window(connect: Connect, name: str) -> None:
    """A v3.1.1 client has no Receive Maximum: it may send two hundred QoS 1 messages before it reads an answer."""
    client = connect(4)
    client.send(*(wire.publish(4, name, b"x", qos=1, packet_id=n) for n in range(1, 201)))
    for number in range(1, 201):
        client.expect("PUBACK", packet_id=number)


KEEP = {"session_expiry_interval": 60}


def resumed_with_open_identifiers(connect: Connect, name: str, identifiers: range) -> Client:
    """Return a client that sent these QoS 2 messages, got their PUBRECs, lost its connection and reconnected."""
    client = connect(5, name, properties=KEEP)
    client.send(*(wire.publish(5, f"{name}/former", b"x", qos=2, packet_id=n) for n in identifiers))
    for number in identifiers:
        client.expect("PUBREC", packet_id=number)
    client.close()
    again = connect(5, name, clean=False, properties=KEEP)
    assert again.connack.session_present
    return again


@pytest.mark.mqtt("5:3.3.4-7", "5:4.9.0-1")
@pytest.mark.mosquitto_differs("counts what former connections have sent")
def test_a_resumed_client_has_a_whole_window(connect: Connect, name: str) -> None:
    """A resumed client with a window full of identifiers that wait for PUBREL may first publish as many again."""
    window = connect(5).connack.properties.get("receive_maximum", 65535)
    former, new = range(1, window + 1), range(window + 1, 2 * window + 1)
    client = resumed_with_open_identifiers(connect, name, former)
    client.send(*(wire.publish(5, f"{name}/new", b"x", qos=2, packet_id=n) for n in new))
    for number in new:
        client.expect("PUBREC", packet_id=number)
    for number in (*former, *new):
        client.ack("PUBREL", number)
        client.expect("PUBCOMP", packet_id=number, reason=0)
    client.expect_silence()


@pytest.mark.mqtt("5:3.3.4-7")
@pytest.mark.mosquitto_differs("answers 0x97 to that message and goes on")
@pytest.mark.parametrize("released", [0, 1, 100])
def test_former_identifiers_make_no_room(connect: Connect, name: str, released: int) -> None:
    """However many former PUBRELs arrive first, the send quota never exceeds Receive Maximum: one more is refused."""
    window = connect(5).connack.properties.get("receive_maximum", 65535)
    client = resumed_with_open_identifiers(connect, name, range(1, window + 1))
    for number in range(1, min(released, window) + 1):
        client.ack("PUBREL", number)
        client.expect("PUBCOMP", packet_id=number, reason=0)
    client.send(*(wire.publish(5, f"{name}/n", b"x", qos=2, packet_id=n) for n in range(1000, 1001 + window)))
    for number in range(1000, 1000 + window):
        client.expect("PUBREC", packet_id=number)
    client.expect_closed(EXCEEDED)


@pytest.mark.mqtt("5:3.3.4-7", "5:4.4.0-1", "5:4.3.3-10")
@pytest.mark.mosquitto_differs("counts what former connections have sent")
def test_a_former_publish_that_is_sent_again_takes_no_place(connect: Connect, name: str) -> None:
    """Former QoS 2 messages sent again with DUP are answered, not delivered twice, and use no place in the window."""
    window = connect(5).connack.properties.get("receive_maximum", 65535)
    watcher = connect(5)
    watcher.subscribe((f"{name}/#", 1))
    former = range(1, window + 1)
    client = resumed_with_open_identifiers(connect, name, former)
    client.send(*(wire.publish(5, f"{name}/former", b"x", qos=2, packet_id=n, dup=True) for n in former))
    for number in former:
        client.expect("PUBREC", packet_id=number, reason=0)
    client.send(*(wire.publish(5, f"{name}/new", b"y", qos=2, packet_id=n) for n in range(1000, 1000 + window)))
    for number in range(1000, 1000 + window):
        client.expect("PUBREC", packet_id=number)
    for payload in [b"x"] * window + [b"y"] * window:
        got = watcher.expect("PUBLISH", payload=payload)
        watcher.ack("PUBACK", got.packet_id)
    watcher.expect_silence()


@pytest.mark.mqtt("5:3.3.4-7")
@pytest.mark.mosquitto_differs("counts what former connections have sent")
def test_identifiers_of_many_former_connections(connect: Connect, name: str) -> None:
    """Five connections in a row each leave a window of identifiers: all of them are kept and can be released."""
    window = connect(5).connack.properties.get("receive_maximum", 65535)
    for turn in range(5):
        client = connect(5, name, clean=turn == 0, properties=KEEP)
        first = 1 + turn * window
        client.send(*(wire.publish(5, name, b"x", qos=2, packet_id=n) for n in range(first, first + window)))
        for number in range(first, first + window):
            client.expect("PUBREC", packet_id=number)
        client.close()
    client = connect(5, name, clean=False, properties=KEEP)
    for number in range(1, 5 * window + 1):
        client.ack("PUBREL", number)
        client.expect("PUBCOMP", packet_id=number, reason=0)
    client.ack("PUBREL", 1)
    client.expect("PUBCOMP", packet_id=1, reason=0x92)


@pytest.mark.mqtt("5:3.3.4-10", "5:4.4.0-1")
def test_pubrels_do_not_wait_for_receive_maximum(connect: Connect, name: str) -> None:
    """Twenty messages wait for PUBCOMP and the subscriber reconnects with Receive Maximum 1: all PUBRELs are sent
    before anything else, and the next message although none of them is answered.
    """
    subscriber, publisher = connect(5, name, properties=KEEP), connect(5)
    subscriber.subscribe((name, 2))
    for number in range(2, 22):
        publisher.send(wire.publish(5, name, b"former", qos=2, packet_id=number))
        publisher.expect("PUBREC", packet_id=number)
        publisher.ack("PUBREL", number)
        publisher.expect("PUBCOMP", packet_id=number)
    former = [subscriber.expect("PUBLISH", qos=2).packet_id for _ in range(20)]
    for number in former:
        subscriber.ack("PUBREC", number)
        subscriber.expect("PUBREL", packet_id=number)
    subscriber.close()
    publisher.send(wire.publish(5, name, b"new", qos=1, packet_id=100))
    publisher.expect("PUBACK", packet_id=100)
    again = connect(5, name, clean=False, properties={**KEEP, "receive_maximum": 1})
    assert again.connack.session_present
    for number in former:
        again.expect("PUBREL", packet_id=number)
    new = again.expect("PUBLISH", payload=b"new")
    for number in former:
        again.ack("PUBCOMP", number)
    again.ack("PUBACK", new.packet_id)
    again.expect_silence()
