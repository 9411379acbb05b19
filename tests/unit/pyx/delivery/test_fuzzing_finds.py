"""Defects found by fuzzing whole sessions, each as the shortest sequence that shows it."""

from __future__ import annotations

import sys

import pytest

from pyx.core.placement import owner
from shards.placement import home
from tests import wire
from tests.sansio import Host


def id_on(worker: int, name: str) -> str:
    """Return a client id whose home is that one of two workers."""
    return next(each for n in range(99) if home(each := f"{name}{n}", 2) == worker)


def topic_owned_by(worker: int) -> str:
    """Return a topic whose owner is that one of two workers."""
    return next(each for n in range(99) if owner((each := f"t{n}").encode(), 2) == worker)


def test_nothing_follows_a_disconnect_that_is_said() -> None:
    """An ack that waits for a sibling becomes due in the tick in which its connection ends: it is not sent any more."""
    host = Host(2)
    subscriber = host.connect(id_on(1, "sub"), 5)
    subscriber.subscribe(("t", 2))
    publisher = host.connect(id_on(0, "pub"), 5)
    host.held.add((1, 0))
    publisher.publish("t", b"x", qos=2)
    for _ in range(4):
        host.turn()
    host.held.clear()
    publisher.send(wire.packet("CONNECT", 0, b"again"))
    host.settle()
    assert [packet.kind for packet in publisher.packets] == ["DISCONNECT"]
    host.check_books()


def test_a_group_without_members_is_withdrawn_though_the_filter_stays() -> None:
    """The last member of a group leaves a worker where another session has the same filter without the group."""
    host = Host(2)
    plain = host.connect(id_on(1, "plain"), 5)
    plain.subscribe(("t", 1))
    member = host.connect(id_on(1, "member"), 5)
    member.subscribe(("$share/g/t", 1))
    member.unsubscribe("$share/g/t")
    other = host.connect(id_on(0, "other"), 5)
    other.subscribe(("$share/g/t", 1))
    publisher = host.connect(id_on(0, "pub"), 5)
    for _ in range(6):
        publisher.publish("t", b"x", qos=1)
    assert len(other.receive()) == 6
    assert len(plain.receive()) == 6
    plain.disconnect()
    other.disconnect()
    host.pass_time(1.0)
    assert [node.router.state.subscriptions.filters for node in host.nodes] == [0, 0]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_is_kept_by_an_owner_that_was_also_chosen_for_a_group(qos: int) -> None:
    """The topic's owner subscribes to it and has the only member of a group on it: one entry serves all three."""
    host = Host(2)
    topic = topic_owned_by(1)
    subscriber = host.connect(id_on(1, "sub"), 5)
    subscriber.subscribe((topic, 1), (f"$share/g/{topic}", 1))
    publisher = host.connect(id_on(0, "pub"), 5)
    publisher.publish(topic, b"kept", qos=qos, retain=True)
    assert [packet.payload for packet in subscriber.receive()] == [b"kept", b"kept"]
    late = host.connect(id_on(0, "late"), 5)
    late.subscribe((topic, 1))
    assert [packet.payload for packet in late.receive()] == [b"kept"]


def test_a_router_that_is_abandoned_holds_nobody() -> None:
    """Lists that the collector cannot see into hold connections whose acks wait: they would keep a worker alive."""
    host = Host(2)
    subscriber = host.connect(id_on(1, "sub"), 4)
    subscriber.subscribe(("t", 1))
    host.held.add((1, 0))
    publisher = host.connect(id_on(0, "pub"), 4)
    publisher.publish("t", b"x", qos=1)
    publisher.send(wire.subscribe(4, 9, ("u", 1)))
    for _ in range(3):
        host.turn()
    assert publisher.conn.acks_pending == 2
    before = sys.getrefcount(publisher.conn)
    host.node.router.abandon()
    after = sys.getrefcount(publisher.conn)
    assert publisher.conn.acks_pending == 0
    assert after == before - 1
