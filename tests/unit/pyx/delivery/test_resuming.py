"""Messages in flight when a connection ends are sent first on the next one [MQTT-4.4.0-1]; PUBRELs precede everything
else, whatever the Receive Maximum: they do not count against it [MQTT-3.3.4-10].
"""

from __future__ import annotations

import pytest

from tests import wire
from tests.kept_host import kept, lasting
from tests.sansio import Host, Peer


def publish(host: Host, count: int, qos: int = 2, topic: str = "t") -> None:
    publisher = host.connect("publisher", 5)
    for number in range(count):
        packet_id = publisher.publish(topic, b"%d" % number, qos)
        if qos == 2:
            publisher.ack("PUBREL", packet_id)
        publisher.receive()
    host.lose(publisher)


def taken(peer: Peer, kind: str) -> list[int]:
    """Return the Packet Identifiers of the packets received, all of this kind; none is acknowledged."""
    peer.host.settle()
    assert {packet.kind for packet in peer.packets} <= {kind}
    found = [packet.packet_id for packet in peer.packets]
    peer.packets.clear()
    return found


def subscriber(host: Host, receive_maximum: int = 65535) -> Peer:
    return lasting(host, "s", 5, properties={"receive_maximum": receive_maximum})


def released(host: Host, peer: Peer, count: int) -> list[int]:
    """Leave so many QoS 2 messages without PUBCOMP; PUBRECs are sent in reverse order. Return the identifiers."""
    publish(host, count)
    identifiers = taken(peer, "PUBLISH")[::-1]
    for packet_id in identifiers:
        peer.ack("PUBREC", packet_id)
    assert taken(peer, "PUBREL") == identifiers
    return identifiers


@pytest.mark.parametrize("receive_maximum", [1, 10, 65535])
@pytest.mark.parametrize("restarted", [False, True])
def test_pubrels_do_not_wait_for_the_receive_maximum(receive_maximum: int, restarted: bool) -> None:
    host = kept()[0]
    peer = subscriber(host)
    peer.subscribe(("t", 2))
    identifiers = released(host, peer, 40)
    host.lose(peer)
    if restarted:
        host = host.crash()
    peer = subscriber(host, receive_maximum)
    assert taken(peer, "PUBREL") == identifiers, "in the order of the PUBRECs"


def test_pubrels_of_a_former_connection_leave_room_for_messages() -> None:
    host = Host()
    peer = subscriber(host)
    peer.subscribe(("t", 2))
    identifiers = released(host, peer, 40)
    host.lose(peer)
    publish(host, 5)
    peer = subscriber(host, 2)
    host.settle()
    assert [packet.kind for packet in peer.packets] == ["PUBREL"] * 40 + ["PUBLISH"] * 2
    first, second = (packet.packet_id for packet in list(peer.packets)[40:])
    peer.packets.clear()
    for packet_id in identifiers:
        peer.ack("PUBCOMP", packet_id)
    peer.silent()
    peer.ack("PUBREC", first)
    assert taken(peer, "PUBREL") == [first]
    peer.ack("PUBCOMP", first)
    third = taken(peer, "PUBLISH")
    assert len(third) == 1
    for packet_id in (second, *third):
        peer.ack("PUBREC", packet_id)
    assert taken(peer, "PUBREL") == [second, *third], "two are under way: nothing else is sent"
    for packet_id in (second, *third):
        peer.ack("PUBCOMP", packet_id)
    assert len(peer.receive()) == 2
    host.check_books()
    assert host.waiting() == 0


def test_messages_that_are_sent_again_wait_for_the_receive_maximum_and_pubrels_do_not() -> None:
    host = Host()
    peer = subscriber(host)
    peer.subscribe(("t", 2))
    publish(host, 6)
    identifiers = taken(peer, "PUBLISH")
    for packet_id in identifiers[3:]:
        peer.ack("PUBREC", packet_id)
    assert taken(peer, "PUBREL") == identifiers[3:]
    host.lose(peer)
    peer = subscriber(host, 1)
    host.settle()
    came = [(packet.kind, packet.packet_id) for packet in peer.packets]
    assert came == [*(("PUBREL", each) for each in identifiers[3:]), ("PUBLISH", identifiers[0])]
    peer.packets.clear()
    for packet_id in identifiers[3:]:
        peer.ack("PUBCOMP", packet_id)
    peer.silent()
    for each, following in zip(identifiers[:3], [*identifiers[1:3], None], strict=True):
        peer.ack("PUBREC", each)
        assert taken(peer, "PUBREL") == [each]
        peer.ack("PUBCOMP", each)
        assert taken(peer, "PUBLISH") == ([following] if following else [])
    host.check_books()


def test_no_more_slots_are_taken_than_the_broker_allows() -> None:
    """PUBRELs that are never answered, on one connection after another."""
    host = Host(limits={"inflight_max": 10})
    peer = subscriber(host, 4)
    peer.subscribe(("t", 2))
    outstanding = 0
    for _ in range(5):
        publish(host, 4)
        got = [packet.packet_id for packet in peer.packets if packet.kind == "PUBLISH"]
        peer.packets.clear()
        for packet_id in got:
            peer.ack("PUBREC", packet_id)
        host.settle()
        outstanding += len(got)
        assert peer.session.unacknowledged == outstanding <= 10
        host.lose(peer)
        peer = subscriber(host, 4)
        host.settle()
    assert outstanding == 10
    assert len(peer.receive()) == 10
    host.check_books()


def test_many_pubrels_leave_in_slices() -> None:
    host = Host(limits={"inflight_max": 5000})
    peer = subscriber(host)
    peer.subscribe(("t", 2))
    identifiers = released(host, peer, 2500)
    host.lose(peer)
    again = host.open(5)
    again.send(wire.connect(5, "s", clean=False))
    host.turn()
    assert [packet.kind for packet in again.packets] == ["CONNACK"] + ["PUBREL"] * 1000
    again.packets.popleft()
    assert taken(again, "PUBREL") == identifiers


@pytest.mark.mqtt("5:3.3.4-3", "5:3.3.4-4")
@pytest.mark.parametrize("text", ["t/#", "$share/g/t/#"])
@pytest.mark.parametrize("stored", [False, True])
def test_subscription_identifiers_outlive_a_connection_of_another_version(stored: bool, text: str) -> None:
    """A session begins with MQTT 5, continues with 3.1.1, which has no identifiers, and with 5 again: messages sent to
    the 3.1.1 connection, live or from the queue, and not acknowledged, have their identifiers when they are sent again.
    """
    host = kept()[0] if stored else Host()
    peer = subscriber(host)
    peer.subscribe((text, 1), identifier=7)
    if not text.startswith("$"):
        peer.subscribe(("t/+", 1), identifier=9)
    host.lose(peer)
    publish(host, 1, 1, "t/waited")
    peer = lasting(host, "s", 4)
    publish(host, 1, 1, "t/live")
    assert [packet.topic for packet in peer.packets] == ["t/waited", "t/live"]
    host.lose(peer)
    peer = subscriber(host)
    host.settle()
    got = [(packet.topic, packet.dup, sorted(packet.properties["subscription_identifier"])) for packet in peer.packets]
    identifiers = [7] if text.startswith("$") else [7, 9]
    assert got == [("t/waited", True, identifiers), ("t/live", True, identifiers)]
