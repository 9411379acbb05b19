"""A session with many filters that is behind: its cost does not grow with filters times messages (issue 16, 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyx.core import work
from tests import wire
from tests.kept_host import OnDisk, let_go
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer

FILTERS = 5000
OPEN = {"filters_per_second_max": 0, "tick_filters_max": 100_000}
STORES = ["memory", "kept", "disk"]


@pytest.fixture(params=STORES)
def make_host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Host]]:
    made: list[Host] = []

    def make(**options: Any) -> Host:
        limits = {**OPEN, **options.pop("limits", {})}
        stores: Sequence[Any] | None = None
        if request.param != "memory":
            stores = [KeptStore() if request.param == "kept" else OnDisk(tmp_path, fsync=False)]
        made.append(Host(limits=limits, stores=stores, **options))
        return made[-1]

    yield make
    for host in made:
        let_go(host)


def gateway(host: Host, filters: int = FILTERS) -> Peer:
    """Return a client with a lasting session."""
    peer = host.connect("gateway", 5, clean=False, expiry=1000)
    if not peer.session_present:
        for first in range(0, filters, 1000):
            peer.subscribe(*((f"t/{i}", 1) for i in range(first, min(filters, first + 1000))))
    return peer


def publish(host: Host, publisher: Peer, topics: range, per_turn: int = 50) -> None:
    for first in range(topics.start, topics.stop, per_turn):
        for i in range(first, min(topics.stop, first + per_turn)):
            publisher.publish(f"t/{i}", b"%d" % i, 1)
        host.settle()
    publisher.packets.clear()


def numbers(packets: list[Any]) -> list[int]:
    return [int(packet.payload) for packet in packets]


def test_a_message_for_each_of_its_filters(make_host: Callable[..., Host]) -> None:
    host = make_host()
    peer, publisher = gateway(host), host.connect("publisher", 5)
    peer.disconnect()
    work.forget()
    publish(host, publisher, range(FILTERS))
    host.pass_time(2.2)
    peer = gateway(host)
    assert numbers(peer.receive()) == list(range(FILTERS))
    host.pass_time(2.2)
    assert work.over() == {}
    assert max(work.highest().values()) < work.BOUND // 2
    assert host.stores[0].held() == (0, 0)
    host.check_books()


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_beyond_its_limit(make_host: Callable[..., Host], policy: str) -> None:
    limit, filters = 100, 1000
    host = make_host(limits={"queue_messages_max": limit, "inflight_max": 10}, queue_full=policy)
    peer, publisher = gateway(host, filters), host.connect("publisher", 5)
    peer.disconnect()
    publish(host, publisher, range(filters))
    host.pass_time(2.2)
    assert host.node.router.bounding.backlog(peer.session)[0] == limit
    got = numbers(gateway(host).receive())
    assert got == list(range(limit) if policy == "drop_newest" else range(filters - limit, filters))
    assert host.counters()["dropped_queue_full"] == filters - limit
    host.pass_time(2.2)
    assert host.stores[0].held() == (0, 0)
    host.check_books()


def test_filters_that_become_many_while_it_is_behind(make_host: Callable[..., Host]) -> None:
    """The session merged their indexes before; now their messages are searched in slices."""
    host = make_host(limits={"inflight_max": 5})
    peer, publisher = gateway(host, 50), host.connect("publisher", 5)
    publish(host, publisher, range(50))
    peer.send(wire.subscribe(5, peer.packet_id(), *((f"t/{i}", 1) for i in range(50, FILTERS))))
    host.settle()
    publish(host, publisher, range(50, FILTERS))
    work.forget()
    host.pass_time(1.2)
    assert numbers(peer.receive()) == list(range(FILTERS))
    assert max(work.highest().values()) < work.BOUND // 2
    host.check_books()


def test_what_an_ended_subscription_would_have_got_too_is_found_elsewhere(make_host: Callable[..., Host]) -> None:
    """Overlapping filters: a message that the other one matches too is not lost; one for the ended one alone is."""
    host = make_host(limits={"inflight_max": 5})
    peer, publisher = gateway(host, 200), host.connect("publisher", 5)
    peer.subscribe(("+/100", 1), ("t/+/#", 1))
    publish(host, publisher, range(200))
    for ended in (["t/+/#"], ["t/100", "t/101"]):
        peer.send(wire.unsubscribe(5, peer.packet_id(), *ended))
        host.settle()
    got = numbers(peer.receive())
    assert got == [i for i in range(200) if i != 101]
    host.check_books()


def test_after_a_restart(tmp_path: Path) -> None:
    """Messages in many blocks and many indexes are found again, each once and in order."""
    limits = {**OPEN, "inflight_max": 20}
    host = Host(limits=limits, stores=[OnDisk(tmp_path, fsync=False)])
    peer, publisher = gateway(host), host.connect("publisher", 5)
    publish(host, publisher, range(10))
    peer.disconnect()
    publish(host, publisher, range(10, FILTERS))
    let_go(host)
    work.forget()
    host = Host(limits=limits, stores=[OnDisk(tmp_path, fsync=False)])
    publisher = host.connect("publisher", 5)
    publish(host, publisher, range(100))
    host.pass_time(3.2)
    peer = gateway(host)
    assert peer.session_present
    assert numbers(peer.receive()) == [*range(FILTERS), *range(100)]
    assert max(work.highest().values()) < work.BOUND // 2, work.over()
    let_go(host)
