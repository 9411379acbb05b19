"""A connection's turn is bounded in work, whatever its publishes cost: by subscribers, and by overlapping filters."""

from __future__ import annotations

import itertools

import pytest

from pyx.core import work
from shards.placement import home
from tests import wire
from tests.sansio import Host

SUBSCRIBERS, LEVELS, PUBLISHES = 1000, 11, 500


def subscribers(host: Host) -> bytes:
    for number in range(SUBSCRIBERS):
        host.node.router.subscribing.subscribe(host.connect(f"c{number}").session, b"t", 0)
    return b"t"


def overlapping(host: Host) -> bytes:
    session = host.connect("c").session
    for levels in itertools.product(b"a+", repeat=LEVELS):
        host.node.router.subscribing.subscribe(session, b"/".join(bytes([level]) for level in levels), 0)
    return b"/".join([b"a"] * LEVELS)


def of_no_match(host: Host) -> bytes:
    """Deep filters that differ at their end: a walk visits all their levels, and finds none."""
    session = host.connect("c").session
    for levels in itertools.product(b"a+", repeat=LEVELS - 1):
        head = b"/".join([*(bytes([level]) for level in levels), *[b"a"] * 20])
        host.node.router.subscribing.subscribe(session, head + b"/b", 0)
        host.node.router.subscribing.subscribe(session, head + b"/c", 0)
    return b"/".join([b"a"] * (LEVELS + 19)) + b"/"


def groups(host: Host) -> bytes:
    session = host.connect("c").session
    for number in range(SUBSCRIBERS):
        host.node.router.subscribing.subscribe(session, b"t", 0, 0, b"g%d" % number)
    return b"t"


WIDE = [subscribers, overlapping, of_no_match, groups]


def publishes(topic: str, count: int) -> list[bytes]:
    """Return publishes with a topic of its own each, where possible: the result for one does not help the next."""
    return [wire.publish(4, f"{topic}{number}" if topic.endswith("/") else topic, b"x") for number in range(count)]


@pytest.mark.parametrize("wide", WIDE)
def test_what_one_publish_costs_many_cost_in_several_turns(wide: object) -> None:
    assert callable(wide)
    host = Host()
    topic = wide(host).decode()
    publisher = host.connect("publisher")
    work.forget()
    publisher.send(*publishes(topic, PUBLISHES))
    host.settle()
    assert work.whole()["packets"] > 2_000_000
    assert work.over() == {}
    assert host.counters()["publish_received"] == PUBLISHES
    assert host.counters()["tick_packets_carried"] > 0
    host.check_books()


@pytest.mark.parametrize("wide", WIDE)
def test_so_do_those_of_many_connections(wide: object) -> None:
    """Each has its turn in one tick: together they take less than a full turn for each."""
    assert callable(wide)
    host = Host()
    topic = wide(host).decode()
    publishers = [host.connect(f"publisher{number}") for number in range(20)]
    for peer in host.peers:
        peer.stalled = True
    before = work.total()
    for publisher in publishers:
        publisher.send(*publishes(topic, 200))
    assert work.total() - before < 100_000_000
    host.settle()
    assert host.counters()["publish_received"] == 4000


def test_siblings_are_told_when_it_is_enough() -> None:
    host = Host()
    topic = of_no_match(host).decode()
    router = host.node.router
    publishers = [host.connect(f"publisher{number}") for number in range(20)]
    assert not router.state.is_round_over()
    for publisher in publishers:
        publisher.send(*publishes(topic, 200))
    assert router.state.is_round_over()
    host.turn()
    assert not router.state.is_round_over()


def test_one_of_many_groups_of_a_filter_is_found_at_once() -> None:
    """A sibling names the group: the cost to find it does not grow with the number of groups."""
    host = Host(2)
    here, there = (next(f"c{n}" for n in range(99) if home(f"c{n}", 2) == worker) for worker in range(2))
    member, publisher = host.connect(here), host.connect(there)
    before = work.total()
    for number in range(8 * SUBSCRIBERS):
        host.node.router.subscribing.subscribe(member.session, b"t", 0, 0, b"g%d" % number)
    host.settle()
    publisher.send(wire.publish(4, "t", b"x"))
    host.settle()
    assert len(member.receive()) == 8 * SUBSCRIBERS
    member.disconnect()
    assert work.total() - before < 8 * SUBSCRIBERS * 40_000
    host.check_books()
