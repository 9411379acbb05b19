"""All records of a session are deleted when it ends, in any state: no later session of its client gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveldb_store.format import schema
from tests import wire
from tests.kept_host import NEVER, WILL, kept, lasting, store_of
from tests.sansio import Host, Peer

CLIENT = "the-client"
Life = Callable[[Host], Host]


def records(host: Host) -> dict[bytes, bytes]:
    """Return the client's records of all families."""
    store_of(host).sync()
    return {key: value for key, value in store_of(host).records.items() if CLIENT.encode() in key}


def publish(host: Host, topic: str, *bodies: bytes, qos: int = 2, retain: bool = False) -> None:
    publisher = host.connect("publisher", 5)
    for body in bodies:
        packet_id = publisher.publish(topic, body, qos, retain=retain)
        if qos == 2:
            publisher.ack("PUBREL", packet_id)
        publisher.receive()
    host.lose(publisher)


def made() -> Host:
    """A session with shares of groups, retained messages it asked for, and a log, all of them waiting or in flight, and
    with Packet Identifiers without PUBREL; the group has another member, which joined later and is offline.
    """
    host = kept()[0]
    publish(host, "old", b"kept", retain=True)
    other = lasting(host, "other", 5)
    peer = lasting(host, CLIENT, 5, properties={"receive_maximum": 3})
    peer.send(wire.subscribe(5, 1, ("$share/g/t", 2), ("own", 2), ("more", 1), ("old", 2)))
    peer.send(wire.publish(5, "elsewhere", b"x", qos=2, packet_id=77))
    host.settle()
    publish(host, "more", b"m1", qos=1)
    publish(host, "t", b"s1", b"s2")
    publish(host, "own", b"o1", b"o2")
    publish(host, "t", b"s3", b"s4", qos=1)
    peer.send(wire.unsubscribe(5, 2, "more"))
    host.settle()
    host.lose(peer)
    publish(host, "t", b"s5", b"s6", b"s7")
    other.subscribe(("$share/g/t", 2))
    host.lose(other)
    host.pass_time(0.3)
    assert {key[:1] for key in records(host)} >= {schema.SESSION, schema.SUBSCRIPTION, schema.WINDOW, schema.QUEUED}
    return host


def resumed(host: Host, expiry: int = 0, **options: Any) -> Peer:
    return host.connect(CLIENT, 5, clean=False, expiry=expiry, properties={"receive_maximum": 3}, **options)


def everything(peer: Peer) -> list[bytes]:
    return [packet.payload for packet in peer.receive()]


ALL = [b"kept", b"m1", b"o1", b"o2", b"s1", b"s2", b"s3", b"s4", b"s5", b"s6", b"s7"]


def reads_all_and_goes(host: Host) -> Host:
    peer = resumed(host)
    assert sorted(everything(peer)) == ALL
    host.lose(peer)
    return host


def reads_all_and_is_killed(host: Host) -> Host:
    peer = resumed(host)
    assert sorted(everything(peer)) == ALL
    host.pass_time(0.3)
    return host.crash()


def reads_a_part_and_disconnects(host: Host) -> Host:
    peer = resumed(host)
    host.settle()
    for packet in [each for each in peer.packets if each.kind == "PUBLISH"]:
        peer.ack("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id)
    peer.disconnect()
    return host


def says_so_when_it_goes(host: Host) -> Host:
    peer = resumed(host, expiry=NEVER)
    host.settle()
    peer.send(wire.disconnect(5, 0, {"session_expiry_interval": 0}))
    host.settle()
    return host


def is_taken_over(host: Host) -> Host:
    resumed(host)
    host.settle()
    host.lose(resumed(host))
    return host


def starts_clean(host: Host) -> Host:
    host.lose(host.connect(CLIENT, 5, clean=True))
    return host


def starts_clean_over_what_does_not_last(host: Host) -> Host:
    resumed(host)
    host.settle()
    host.lose(host.connect(CLIENT, 5, clean=True))
    return host


def starts_clean_and_lasts(host: Host) -> Host:
    peer = host.connect(CLIENT, 5, clean=True, expiry=NEVER)
    peer.silent()
    assert {key[:1] for key in records(host)} <= {schema.SESSION, schema.WINDOW}
    peer.send(wire.disconnect(5, 0, {"session_expiry_interval": 0}))
    host.settle()
    return host


def expires(host: Host) -> Host:
    host.lose(resumed(host, expiry=2))
    host.pass_time(3)
    return host


def expires_while_nobody_is_there(host: Host) -> Host:
    host.lose(resumed(host, expiry=2))
    host.pass_time(0.3)
    return host.crash(seconds=10)


def has_a_will(host: Host) -> Host:
    will = wire.Will("will", b"gone", qos=1)
    peer = resumed(host, will=will)
    host.settle()
    host.lose(peer)
    return host


def is_deleted(host: Host) -> Host:
    resumed(host)
    host.settle()
    assert host.node.closing.delete(CLIENT)
    host.settle()
    return host


LIVES = [
    reads_all_and_goes, reads_all_and_is_killed, reads_a_part_and_disconnects, says_so_when_it_goes, is_taken_over,
    starts_clean, starts_clean_over_what_does_not_last, starts_clean_and_lasts, expires, expires_while_nobody_is_there,
    has_a_will, is_deleted,
]  # fmt: skip


@pytest.mark.parametrize("life", LIVES)
def test_nothing_is_left_and_nothing_comes_again(life: Life) -> None:
    host = life(made())
    host.pass_time(0.3)
    assert records(host) == {}
    peer = lasting(host, CLIENT, 5)
    assert not peer.session_present
    peer.subscribe(("nothing", 2))
    host.pass_time(0.3)
    host.lose(peer)
    host = host.crash()
    peer = lasting(host, CLIENT, 5)
    assert peer.session_present
    peer.silent()
    peer.send(wire.publish(5, "elsewhere", b"y", qos=2, packet_id=77))
    assert peer.receive() == [], "no identifier of a former life is known"
    assert peer.session.queued == peer.session.unacknowledged == 0


@pytest.mark.parametrize("life", [reads_all_and_goes, reads_all_and_is_killed])
def test_shares_that_were_acknowledged_go_to_nobody_else(life: Life) -> None:
    host = life(made())
    assert everything(lasting(host, "other", 5)) == []
    host.check_books()


def test_shares_that_were_not_go_to_the_other_member() -> None:
    host = made()
    host.lose(resumed(host))
    assert sorted(everything(lasting(host, "other", 5)))[-3:] == [b"s5", b"s6", b"s7"]
    host.check_books()


@pytest.mark.parametrize("version", [4, 5])
def test_a_will_goes_with_its_client(version: int) -> None:
    host = kept()[0]
    lasting(host, CLIENT, version, will=WILL)
    host.connect(CLIENT, version, clean=True).disconnect()
    host.pass_time(0.3)
    assert records(host) == {}
