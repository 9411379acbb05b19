"""PUBACK, PUBREC and PUBCOMP of the wrong kind for their message, and acks of unknown messages, which are allowed.

A client that answers a message of QoS 2 by PUBACK, one of QoS 1 by PUBREC, or sends a PUBCOMP before a PUBREL, has
broken the protocol (4.3.2, 4.3.3): if that were ignored, the message would occupy its place in the window for ever.
Acks of identifiers that are not in flight occur after a resumption, a lost session and a second ack: they do not close
the connection.

"""

from __future__ import annotations

import pytest

from tests import wire
from tests.wire import Client, Connect

PROTOCOL_ERROR, NOT_FOUND = 0x82, 0x92

MISFITS = {
    "PUBACK for QoS 2": (2, ("PUBACK",)),
    "PUBREC for QoS 1": (1, ("PUBREC",)),
    "PUBCOMP for QoS 1": (1, ("PUBCOMP",)),
    "PUBCOMP before PUBREC": (2, ("PUBCOMP",)),
    "PUBACK after PUBREC": (2, ("PUBREC", "PUBACK")),
}


def keeping(version: int) -> dict[str, int]:
    """Return the properties of a lasting session."""
    return {"session_expiry_interval": 60} if version == 5 else {}


def delivered(connect: Connect, version: int, name: str, qos: int) -> tuple[Client, int]:
    """Return a client with one message in flight, and its Packet Identifier."""
    client = connect(version, name, clean=False, properties=keeping(version))
    client.subscribe(name, qos=qos)
    connect(version).publish(name, b"x", qos=qos)
    return client, client.expect("PUBLISH", qos=qos).packet_id


@pytest.mark.mqtt("5:4.3.2-3", "5:4.3.3-3", "5:4.3.3-5", "5:4.13.1-1", "311:4.3.2-1", "311:4.3.3-1", "311:4.8.0-1")
@pytest.mark.parametrize("what", MISFITS)
@pytest.mark.mosquitto_differs("passes some of them over")
def test_an_ack_of_the_wrong_kind_is_a_protocol_error(connect: Connect, any_version: int, name: str, what: str) -> None:
    """The connection is closed; the message stays unacknowledged, and the client can answer it after it reconnects."""
    qos, kinds = MISFITS[what]
    client, packet_id = delivered(connect, any_version, name, qos)
    for kind in kinds[:-1]:
        client.ack(kind, packet_id)
        client.expect("PUBREL", packet_id=packet_id)
    client.ack(kinds[-1], packet_id)
    client.expect_closed(PROTOCOL_ERROR)
    again = connect(any_version, name, clean=False, properties=keeping(any_version))
    if len(kinds) == 1:
        got = again.expect("PUBLISH", packet_id=packet_id, qos=qos, dup=True)
        again.ack("PUBACK" if qos == 1 else "PUBREC", got.packet_id)
    if qos == 2:
        again.expect("PUBREL", packet_id=packet_id)
        again.ack("PUBCOMP", packet_id)
    again.expect_silence()
    again.close()
    once_more = connect(any_version, name, clean=False, properties=keeping(any_version))
    once_more.expect_silence()


@pytest.mark.mqtt("5:4.3.2-3", "5:4.3.3-3", "5:4.13.1-1")
@pytest.mark.parametrize("what", ["PUBACK for QoS 2", "PUBREC for QoS 1"])
@pytest.mark.mosquitto_differs("passes some of them over")
def test_a_refusal_of_the_wrong_kind_is_one_too(connect: Connect, name: str, what: str) -> None:
    """An ack of the wrong kind with a reason code of 0x80 or more also closes the connection."""
    qos, kinds = MISFITS[what]
    client, packet_id = delivered(connect, 5, name, qos)
    client.ack(kinds[0], packet_id, 0x83)
    client.expect_closed(PROTOCOL_ERROR)


@pytest.mark.mqtt("5:4.3.3-4", "311:4.3.3-1")
def test_acks_that_name_nothing_end_nothing(connect: Connect, version: int) -> None:
    """PUBACK and PUBCOMP of identifiers that were never used are ignored; PUBREC is answered, so that the client can
    forget the message.
    """
    client = connect(version)
    client.ack("PUBACK", 77)
    client.ack("PUBCOMP", 78)
    client.expect_silence()
    client.ack("PUBREC", 79)
    client.expect("PUBREL", packet_id=79, reason=NOT_FOUND if version == 5 else 0)
    client.ack("PUBCOMP", 79)
    client.expect_silence()


@pytest.mark.mqtt("5:4.3.2-3", "5:4.3.3-4", "311:4.3.2-1", "311:4.3.3-1")
def test_acks_that_come_twice(connect: Connect, version: int, name: str) -> None:
    """A second PUBACK, PUBREC or PUBCOMP does not close the connection: a second PUBREC is answered by PUBREL again."""
    client, packet_id = delivered(connect, version, name, 1)
    client.ack("PUBACK", packet_id)
    client.ack("PUBACK", packet_id)
    client.expect_silence()
    client.subscribe(name, qos=2)
    client.publish(name, b"y", qos=2)
    packet_id = client.await_packet("PUBLISH").packet_id
    for _ in range(3):
        client.ack("PUBREC", packet_id)
        client.expect("PUBREL", packet_id=packet_id, reason=0)
    for _ in range(3):
        client.ack("PUBCOMP", packet_id)
    client.expect_silence()


@pytest.mark.mqtt("5:4.3.3-4", "5:4.4.0-1", "311:4.3.3-1", "311:4.4.0-1")
def test_acks_before_the_message_was_sent_again(connect: Connect, version: int, name: str) -> None:
    """A client that reconnects may acknowledge a former connection's message at once, whether sent again by then or
    not.
    """
    client, packet_id = delivered(connect, version, name, 2)
    client.close()
    again = connect(version, name, clean=False, properties=keeping(version))
    again.ack("PUBREC", packet_id)
    again.await_packet("PUBREL", packet_id)
    again.ack("PUBCOMP", packet_id)
    again.send(wire.PINGREQ)
    again.await_packet("PINGRESP")  # after anything sent again
    again.close()
    connect(version, name, clean=False, properties=keeping(version)).expect_silence()


@pytest.mark.mqtt("5:4.3.3-4", "311:4.3.3-1")
def test_acks_of_a_session_that_was_lost(connect: Connect, version: int, name: str) -> None:
    """The client answers a QoS 2 message of a lost session: PUBREL. Its PUBCOMP arrives when the new session uses that
    identifier for a QoS 1 message, and is ignored.
    """
    client = connect(version)
    client.subscribe(name, qos=1)
    client.ack("PUBREC", 1)
    client.expect("PUBREL", packet_id=1, reason=NOT_FOUND if version == 5 else 0)
    connect(version).publish(name, b"x", qos=1)
    client.expect("PUBLISH", packet_id=1)
    client.ack("PUBCOMP", 1)
    client.ack("PUBACK", 1)
    client.expect_silence()
    connect(version).publish(name, b"y", qos=1)
    packet_id = client.expect("PUBLISH", payload=b"y").packet_id
    client.ack("PUBCOMP", packet_id)  # a second PUBCOMP, for which there is no PUBREL
    client.expect_closed(PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.3.4-9", "5:4.3.2-3")
def test_a_misfit_opens_no_window(connect: Connect, name: str) -> None:
    """With Receive Maximum 1 a PUBREC with an error for a QoS 1 message makes no room: nothing else is sent."""
    client = connect(5, properties={"receive_maximum": 1})
    client.subscribe(name, qos=1)
    publisher = connect(5)
    for payload in (b"1", b"2"):
        publisher.publish(name, payload, qos=1)
    packet_id = client.expect("PUBLISH", payload=b"1").packet_id
    client.ack("PUBREC", packet_id, 0x80)
    client.expect_closed(PROTOCOL_ERROR)


@pytest.mark.mqtt("5:4.4.0-1", "5:4.9.0-1")
@pytest.mark.mosquitto_differs("forgets the Receive Maximum of the new connection for what it sends again")
def test_acks_of_what_was_not_sent_again_yet(connect: Connect, name: str) -> None:
    """Two QoS 1 messages are in flight and the client reconnects with Receive Maximum 1: a PUBREC for the second one,
    not yet sent on this connection, is ignored; once it was sent, it is an error.
    """
    keep = {"session_expiry_interval": 60}
    client = connect(5, name, properties=keep | {"receive_maximum": 2})
    client.subscribe(name, qos=1)
    publisher = connect(5)
    for payload in (b"1", b"2"):
        publisher.publish(name, payload, qos=1)
    first, second = (client.expect("PUBLISH", payload=payload).packet_id for payload in (b"1", b"2"))
    client.close()
    again = connect(5, name, clean=False, properties=keep | {"receive_maximum": 1})
    again.expect("PUBLISH", packet_id=first)
    again.ack("PUBREC", second)
    again.ack("PUBCOMP", second)
    again.expect_silence()
    again.ack("PUBACK", first)
    again.expect("PUBLISH", packet_id=second)
    again.ack("PUBREC", second)
    again.expect_closed(PROTOCOL_ERROR)
