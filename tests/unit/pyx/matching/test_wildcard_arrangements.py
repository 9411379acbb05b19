"""The arrangements of wildcards are bounded (`wildcard_arrangements_max`), and with them the cost of one publish."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from broker.config.limits import Limits
from pyx.core import work
from pyx.matching.subscriptions import Subscriptions
from tests import wire
from tests.kept_host import OnDisk, kept, lasting, let_go
from tests.sansio import Host, Peer
from tests.unit.broker.repartition.test_repartition import client_of

DEFAULT = Limits().wildcard_arrangements_max
REFUSED = 0x97
LEVELS = 12
ALL = ["/".join(levels) for levels in itertools.product("a+", repeat=LEVELS)][1:]
"""All of them match TOPIC, and each has an arrangement of its own."""
TOPIC = "/".join("a" * LEVELS)
OPEN = {"filters_per_second_max": 0, "tick_filters_max": 100_000}


def granted(peer: Peer, *filters: str) -> list[int]:
    peer.send(wire.subscribe(5, peer.packet_id(), *((text, 1) for text in filters)))
    peer.host.settle()
    return list(peer.next("SUBACK").codes)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("a/+/c", "x/+/z", True),
        ("+", "+", True),
        ("#", "#", True),
        ("a/#", "bcd/#", True),
        ("a//+", "b/c/+", True),
        ("a/+/", "a/+/b", True),
        ("a/+", "+/a", False),
        ("a/+", "a/+/b", False),
        ("a/+", "a/+/", False),
        ("+/#", "+/+", False),
        ("#", "/#", False),
        ("a/+/#", "a/+/b", False),
    ],
)
def test_which_filters_have_the_same(first: str, second: str, same: bool) -> None:
    host = Host()
    peer = host.connect("c", 5)
    there: Subscriptions = host.node.router.state.subscriptions
    assert granted(peer, first) == [1]
    assert there.arrangements.brings(second.encode()) is not same
    assert granted(peer, second) == [1]
    assert there.arrangements.count == (1 if same else 2)
    peer.unsubscribe(first, second)
    assert there.arrangements.count == 0


@pytest.mark.parametrize("most", [1, 2, DEFAULT])
def test_at_the_bound_and_one_beyond(most: int) -> None:
    """Granted: filters with an existing arrangement or without wildcards; a new one once another is gone."""
    host = Host(limits={**OPEN, "wildcard_arrangements_max": most})
    peer, other = host.connect("c", 5), host.connect("d", 5)
    texts = ALL[: most + 1]
    assert granted(peer, *texts) == [1] * most + [REFUSED]
    assert host.counters()["filters_refused"] == 1
    assert granted(other, texts[0], texts[0].replace("a", "b"), TOPIC, texts[most]) == [1, 1, 1, REFUSED]
    assert granted(other, f"$share/g/{texts[0]}", f"$share/g/{texts[most]}") == [1, REFUSED]
    assert granted(peer, texts[0]) == [1]
    peer.unsubscribe(*texts[:most])
    other.disconnect()
    host.settle()
    assert granted(host.connect("e", 5), *texts) == [1] * most + [REFUSED]


def test_no_bound() -> None:
    host = Host(limits={**OPEN, "wildcard_arrangements_max": 0})
    assert granted(host.connect("c", 5), *ALL) == [1] * len(ALL)


def test_what_a_session_has_stays_when_the_bound_is_lowered() -> None:
    """Stored names are not checked again: after a start with a stricter setting only new ones are refused."""
    host, store = kept(limits=OPEN)
    assert granted(lasting(host, "c", 5), *ALL[:20]) == [1] * 20
    host.pass_time(1)
    host = Host(limits={**OPEN, "wildcard_arrangements_max": 10}, stores=[store.after_crash()], start_ms=host.now_ms)
    peer = lasting(host, "c", 5)
    assert host.node.router.state.subscriptions.arrangements.count == 20
    assert granted(peer, ALL[0], ALL[20]) == [1, REFUSED]
    host.connect("publisher", 5).publish(TOPIC, b"x", 1)
    host.settle()
    assert [packet.payload for packet in peer.receive()] == [b"x"]


def test_what_a_sibling_wants_counts() -> None:
    """A sibling's filters are walked as well; they are never refused, since they have been granted."""
    host = Host(2, limits={**OPEN, "wildcard_arrangements_max": 5})
    here, there = (host.connect(client_of(worker, 2), 5) for worker in (0, 1))
    assert granted(there, *ALL[:5]) == [1] * 5
    assert granted(here, ALL[0], ALL[5]) == [1, REFUSED]


@pytest.mark.parametrize("is_online", [True, False])
def test_no_set_of_filters_makes_a_publish_cost_more_than_its_bound(tmp_path: Path, is_online: bool) -> None:
    """A hundred sessions with all filters that they are granted, and a message that matches all of these."""
    host = Host(limits=OPEN, stores=[OnDisk(tmp_path, fsync=False)])
    for number in range(100):
        peer = lasting(host, f"c{number}", 5)
        assert granted(peer, *ALL[: DEFAULT + 100]).count(1) == DEFAULT
        if not is_online:
            host.lose(peer)
    publisher = host.connect("publisher", 5)
    host.pass_time(2)
    work.forget()
    publisher.publish(TOPIC, b"x", 1)
    host.settle()
    assert publisher.next("PUBACK").reason == 0
    host.pass_time(2)
    assert work.over() == {}
    let_go(host)
