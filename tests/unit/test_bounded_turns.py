"""A connection's turn is bounded in work, whatever its publishes cost: by subscribers, and by filters that overlap."""

from __future__ import annotations

import itertools

import pytest

from pyx import work
from tests import wire
from tests.sansio import Host

SUBSCRIBERS, LEVELS, PUBLISHES = 1000, 11, 500


def subscribers(host: Host) -> bytes:
    for number in range(SUBSCRIBERS):
        host.node.router.subscribe(host.connect(f"c{number}").session, b"t", 0)
    return b"t"


def overlapping(host: Host) -> bytes:
    session = host.connect("c").session
    for levels in itertools.product(b"a+", repeat=LEVELS):
        host.node.router.subscribe(session, b"/".join(bytes([level]) for level in levels), 0)
    return b"/".join([b"a"] * LEVELS)


@pytest.mark.parametrize("wide", [subscribers, overlapping])
def test_what_one_publish_costs_many_cost_in_several_turns(wide: object) -> None:
    assert callable(wide)
    host = Host()
    topic = wide(host).decode()
    publisher = host.connect("publisher")
    work.forget()
    publisher.send(*[wire.publish(4, topic, b"x")] * PUBLISHES)
    host.settle()
    assert work.whole()["packets"] > 5_000_000
    assert work.over() == {}
    assert host.counters()["publish_received"] == PUBLISHES
    assert host.counters()["tick_packets_carried"] > 0
    host.check_books()
