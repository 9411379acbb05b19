"""Messages unacknowledged when a connection broke: sent again on the next one, with DUP, in order, and once."""

from __future__ import annotations

from typing import Any

import pytest

from tests import wire
from tests.wire import Client, Connect


def durable(version: int) -> dict[str, Any]:
    """Options of a session that outlives its connection."""
    return {"clean": False, "properties": {"session_expiry_interval": 60} if version == 5 else {}}


def unacknowledged(connect: Connect, version: int, name: str, qos: int, count: int = 1) -> Client:
    """Return a subscriber named ``name`` that was sent ``count`` messages and acknowledged none."""
    subscriber = connect(version, name, **durable(version))
    subscriber.subscribe(name, qos=qos)
    publisher = connect(version)
    for number in range(count):
        publisher.publish(name, b"%d" % number, qos=qos)
        subscriber.expect("PUBLISH", payload=b"%d" % number, dup=False, packet_id=number + 1)
    return subscriber


@pytest.mark.mqtt(
    "5:3.3.1-1", "5:4.3.2-3", "5:4.3.3-3", "5:4.4.0-1", "311:3.3.1-1", "311:4.3.2-1", "311:4.3.3-1", "311:4.4.0-1"
)
@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_publish_comes_again(connect: Connect, version: int, name: str, qos: int) -> None:
    """A PUBLISH without PUBACK or PUBREC is sent again after reconnection: same identifier, DUP set."""
    unacknowledged(connect, version, name, qos).close()
    again = connect(version, name, **durable(version))
    assert again.connack.session_present
    again.receive(name, b"0", dup=True, packet_id=1, qos=qos)
    again.expect_silence()


@pytest.mark.mqtt("5:4.4.0-1", "5:4.6.0-5", "311:4.6.0-1", "311:4.6.0-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_redelivery_keeps_the_order(connect: Connect, version: int, name: str, qos: int) -> None:
    """Five unacknowledged messages are sent again in their order; messages published meanwhile follow."""
    unacknowledged(connect, version, name, qos, count=5).close()
    connect(version).publish(name, b"new", qos=qos)
    again = connect(version, name, **durable(version))
    got = [again.expect("PUBLISH") for _ in range(6)]
    assert [each.packet_id for each in got] == [1, 2, 3, 4, 5, 6]
    # the last one may have been sent before the broker noticed the end
    assert [each.dup for each in got[:5]] == [True] * 5
    assert [each.payload for each in got] == [b"0", b"1", b"2", b"3", b"4", b"new"]


@pytest.mark.mqtt("5:4.3.3-4", "5:4.3.3-5", "5:4.3.3-6", "5:4.4.0-1", "311:4.3.3-1", "311:4.4.0-1")
def test_pubrel_comes_again_instead_of_publish(connect: Connect, version: int, name: str) -> None:
    """After PUBREC the PUBREL is sent again on the next connection, never the PUBLISH."""
    subscriber = unacknowledged(connect, version, name, 2)
    subscriber.ack("PUBREC", 1)
    subscriber.expect("PUBREL", packet_id=1)
    subscriber.close()
    again = connect(version, name, **durable(version))
    again.expect("PUBREL", packet_id=1)
    again.ack("PUBCOMP", 1)
    again.expect_silence()
    again.disconnect()
    connect(version, name, **durable(version)).expect_silence()


@pytest.mark.mqtt("5:4.4.0-1", "311:4.3.2-1", "311:4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_no_redelivery_while_connected(connect: Connect, version: int, name: str, qos: int) -> None:
    """A message is not sent again while its client stays connected, however long it does not answer."""
    subscriber = unacknowledged(connect, version, name, qos)
    for _ in range(5):
        subscriber.expect_silence()
    subscriber.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        subscriber.read(0.5)


@pytest.mark.mqtt("5:4.3.2-3", "311:4.3.2-1")
def test_only_what_is_unacknowledged(connect: Connect, version: int, name: str) -> None:
    """Of five messages the second and the fourth are acknowledged; only the other three are sent again."""
    subscriber = unacknowledged(connect, version, name, 1, count=5)
    subscriber.ack("PUBACK", 2)
    subscriber.ack("PUBACK", 4)
    subscriber.expect_silence()
    subscriber.close()
    again = connect(version, name, **durable(version))
    assert [again.expect("PUBLISH", dup=True).packet_id for _ in range(3)] == [1, 3, 5]
    again.expect_silence()


@pytest.mark.mqtt("5:4.4.0-2")
@pytest.mark.parametrize(("qos", "kind"), [(1, "PUBACK"), (2, "PUBREC")])
def test_an_error_counts_as_acknowledged(connect: Connect, name: str, qos: int, kind: str) -> None:
    """A message that a v5 subscriber refused by reason code is not sent again."""
    subscriber = unacknowledged(connect, 5, name, qos)
    subscriber.ack(kind, 1, reason=0x97)
    subscriber.expect_silence()
    subscriber.close()
    connect(5, name, **durable(5)).expect_silence()


@pytest.mark.mqtt("5:4.3.3-10", "311:4.3.3-2")
def test_publisher_repeats_qos_2_after_reconnection(connect: Connect, version: int, name: str) -> None:
    """A publisher that loses its connection after PUBREC and repeats the PUBLISH with DUP has it delivered once."""
    subscriber = connect(version)
    subscriber.subscribe(name, qos=2)
    publisher = connect(version, name, **durable(version))
    publisher.send(wire.publish(version, name, b"once", qos=2, packet_id=7))
    publisher.expect("PUBREC", packet_id=7)
    publisher.close()
    publisher = connect(version, name, **durable(version))
    assert publisher.connack.session_present
    publisher.send(wire.publish(version, name, b"once", qos=2, packet_id=7, dup=True))
    publisher.expect("PUBREC", packet_id=7)
    publisher.ack("PUBREL", 7)
    publisher.expect("PUBCOMP", packet_id=7, reason=0)
    subscriber.receive(name, b"once")
    wire.expect_nothing_more(subscriber, publisher, f"{name}/marker", qos=2)


@pytest.mark.mqtt("5:4.3.3-10", "5:4.3.3-11", "311:4.3.3-2")
@pytest.mark.parametrize("topic", ["{}/other", "$SYS/refused", "{}" + "/x" * 300], ids=["other", "refused", "long"])
def test_an_identifier_in_use_is_no_new_message(connect: Connect, version: int, name: str, topic: str) -> None:
    """A PUBLISH with the identifier of one without PUBREL is a repetition, whatever its content, even content that
    would be refused: PUBREC as before. A refusal would free an identifier that the broker still considers in use.
    """
    subscriber = connect(version)
    subscriber.subscribe(f"{name}/#", qos=2)
    publisher = connect(version, name, **durable(version))
    publisher.send(wire.publish(version, name, b"once", qos=2, packet_id=7))
    publisher.expect("PUBREC", packet_id=7)
    publisher.close()
    publisher = connect(version, name, **durable(version))
    publisher.send(wire.publish(version, topic.format(name), b"again", qos=2, packet_id=7, dup=True))
    publisher.expect("PUBREC", packet_id=7, reason=0)
    publisher.ack("PUBREL", 7)
    publisher.expect("PUBCOMP", packet_id=7, reason=0)
    publisher.send(wire.publish(version, name, b"new", qos=2, packet_id=7))
    publisher.expect("PUBREC", packet_id=7, reason=0)
    subscriber.receive(name, b"once")
    subscriber.receive(name, b"new")
    wire.expect_nothing_more(subscriber, publisher, f"{name}/marker", qos=2)


@pytest.mark.mqtt("5:4.3.3-11", "311:4.3.3-2")
def test_publisher_repeats_pubrel_after_reconnection(connect: Connect, version: int, name: str) -> None:
    """A publisher that loses its connection after PUBREC continues with PUBREL: it gets PUBCOMP, and one delivery."""
    subscriber = connect(version)
    subscriber.subscribe(name, qos=2)
    publisher = connect(version, name, **durable(version))
    publisher.send(wire.publish(version, name, b"once", qos=2, packet_id=7))
    publisher.expect("PUBREC", packet_id=7)
    publisher.close()
    publisher = connect(version, name, **durable(version))
    publisher.ack("PUBREL", 7)
    publisher.expect("PUBCOMP", packet_id=7, reason=0)
    subscriber.receive(name, b"once")
    wire.expect_nothing_more(subscriber, publisher, f"{name}/marker", qos=2)


@pytest.mark.mqtt("5:3.1.2-4", "311:3.1.2-6")
def test_a_new_session_forgets_the_identifiers(connect: Connect, version: int, name: str) -> None:
    """A QoS 2 identifier of a discarded session is unknown in the next one: its PUBLISH is a new message."""
    subscriber = connect(version)
    subscriber.subscribe(name, qos=2)
    publisher = connect(version, name, **durable(version))
    publisher.send(wire.publish(version, name, b"first", qos=2, packet_id=7))
    publisher.expect("PUBREC", packet_id=7)
    publisher.close()
    publisher = connect(version, name, clean=True)
    publisher.send(wire.publish(version, name, b"second", qos=2, packet_id=7))
    publisher.expect("PUBREC", packet_id=7)
    publisher.ack("PUBREL", 7)
    publisher.expect("PUBCOMP", packet_id=7, reason=0)
    payloads = {subscriber.await_packet("PUBLISH").payload}
    if payloads == {b"first"}:
        subscriber.ack("PUBREC", 1)
        payloads.add(subscriber.await_packet("PUBLISH").payload)
    assert b"second" in payloads


@pytest.mark.mqtt("5:3.1.2-4", "311:3.1.2-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_clean_start_forgets_what_was_unacknowledged(connect: Connect, version: int, name: str, qos: int) -> None:
    """A client that reconnects with clean start is not sent the messages of its former session."""
    unacknowledged(connect, version, name, qos).close()
    connect(version, name, clean=True).expect_silence()


@pytest.mark.mqtt("5:3.3.1-1", "5:4.3.2-3", "311:3.3.1-1", "311:4.3.2-1")
def test_redelivery_again_and_again(connect: Connect, version: int, name: str) -> None:
    """A client that never acknowledges gets the same message with the same identifier on every connection."""
    unacknowledged(connect, version, name, 1).close()
    for _ in range(5):
        again = connect(version, name, **durable(version))
        again.expect("PUBLISH", payload=b"0", dup=True, packet_id=1)
        again.close()
