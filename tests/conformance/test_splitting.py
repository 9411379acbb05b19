"""One conversation, cut into segments in every way: the broker's answers do not depend on the cuts."""

from __future__ import annotations

import pytest

from tests import wire
from tests.waiting import let_pass
from tests.wire import Client, Connect, OpenConnection, Packet, Will


def conversation(version: int, name: str) -> bytes:
    """Return every kind of packet that a client may send, except DISCONNECT."""
    v5 = version == 5
    properties = {"content_type": "c", "topic_alias": 1, "user_property": [("k", "v")]} if v5 else {}
    return b"".join(
        [
            wire.connect(version, name, keep_alive=60, username="u", password=b"p", will=Will(f"{name}/will", b"w")),
            wire.subscribe(version, 1, (f"{name}/+", 1), (f"{name}/x/#", 2)),
            wire.publish(version, f"{name}/nobody/0", b"payload", properties=properties),
            wire.publish(version, f"{name}/nobody/1", b"payload", qos=1, packet_id=2, properties=properties),
            wire.publish(version, f"{name}/nobody/2", b"", qos=2, packet_id=3),
            wire.ack(version, "PUBREL", 3),
            wire.PINGREQ,
            wire.unsubscribe(version, 4, f"{name}/+"),
        ]
    )


def answers(client: Client) -> list[Packet]:
    """Return the broker's answers to the conversation. PINGRESP, which may overtake an ack that waits, is put last."""
    got = [client.read() for _ in EXPECTED]
    client.disconnect()
    return sorted(got, key=lambda packet: packet.kind == "PINGRESP")


EXPECTED = ["CONNACK", "SUBACK", "PUBACK", "PUBREC", "PUBCOMP", "UNSUBACK", "PINGRESP"]


@pytest.mark.mqtt("5:4.2-1", "311:7.1.1-1")
def test_in_one_segment(open_connection: OpenConnection, any_version: int, name: str) -> None:
    """A whole conversation in one segment is answered packet by packet, in order."""
    client = open_connection(any_version)
    client.send(conversation(any_version, name))
    assert [got.kind for got in answers(client)] == EXPECTED


@pytest.mark.mqtt("5:4.2-1", "311:7.1.1-1")
def test_byte_by_byte(open_connection: OpenConnection, any_version: int, name: str) -> None:
    """A conversation with each byte in its own segment gets the same answers."""
    client = open_connection(any_version)
    for byte in conversation(any_version, name):
        client.send(bytes([byte]))
    assert [got.kind for got in answers(client)] == EXPECTED


@pytest.mark.mqtt("5:4.2-1", "311:7.1.1-1")
def test_at_every_split_point(open_connection: OpenConnection, version: int, name: str) -> None:
    """The same conversation of many clients, each cut into two segments at another byte, gets the same answers."""
    client = open_connection(version)
    client.send(conversation(version, name))
    expected = answers(client)
    cuts = range(1, len(conversation(version, f"{name}c{100}")))
    clients = [(open_connection(version), conversation(version, f"{name}c{100 + cut}"), cut) for cut in cuts]
    for client, whole, cut in clients:
        client.send(whole[:cut])
    let_pass(0.05)  # so that the broker has most likely read the first parts alone
    for client, whole, cut in clients:
        client.send(whole[cut:])
    for client, _, cut in clients:
        assert answers(client) == expected, f"cut at byte {cut}"


@pytest.mark.mqtt("5:4.2-1", "311:7.1.1-1")
@pytest.mark.parametrize("segment", [1000, 65535, 65536, 65537])
def test_a_large_packet_in_many_segments(connect: Connect, version: int, name: str, segment: int) -> None:
    """A message of 400,000 bytes arrives whole, however it was cut, and so does the small one after it."""
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, qos=1)
    payload = bytes(range(250)) * 1600
    data = wire.publish(version, name, payload, qos=1, packet_id=1)
    data += wire.publish(version, name, b"small", qos=1, packet_id=2)
    for start in range(0, len(data), segment):
        publisher.send(data[start : start + segment])
    publisher.expect("PUBACK", packet_id=1)
    publisher.expect("PUBACK", packet_id=2)
    subscriber.receive(name, payload)
    subscriber.receive(name, b"small")


@pytest.mark.mqtt("5:4.2-1", "311:7.1.1-1")
def test_a_packet_that_is_never_finished(connect: Connect, version: int, name: str) -> None:
    """A client that stops in the middle of a PUBLISH affects no other client; its partial message is not published."""
    watcher, client = connect(version), connect(version)
    watcher.subscribe(name)
    client.send(wire.publish(version, name, b"x" * 1000)[:500])
    watcher.expect_silence()
    client.close()
    wire.expect_nothing_more(watcher, connect(version), f"{name}/marker")
