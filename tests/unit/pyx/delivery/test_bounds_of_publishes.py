"""No publish does more than its bound in one callback, whatever matches it: on the disk, as test_bounds_of_callbacks.

A message logged under very many filters is appended in pieces (`Router.append_piece`). Between the pieces no session
misses a message or gets one twice, and no ack leaves before its message is safe.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyx.core import work
from tests import wire
from tests.kept_host import OnDisk, let_go
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer

EXPIRY = 1000
LEVELS = 12
MANY = ["/".join(levels) for levels in itertools.product("a+", repeat=LEVELS)]
"""All of them match."""
TOPIC = "/".join("a" * LEVELS)
OPEN = {"filters_per_second_max": 0, "tick_filters_max": 100_000, "wildcard_arrangements_max": 0}
Made = Callable[..., Host]


@pytest.fixture(params=["memory", "kept", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:
    made: list[Host] = []

    def host(**options: Any) -> Host:
        stores: Sequence[Any] | None = None
        if request.param != "memory":
            stores = [KeptStore() if request.param == "kept" else OnDisk(tmp_path, fsync=False)]
        made.append(Host(limits={**OPEN, **options.pop("limits", {})}, stores=stores, **options))
        return made[-1]

    yield host
    for each in made:
        let_go(each)


def subscribe(peer: Peer, filters: Sequence[str], qos: int = 1) -> None:
    for first in range(0, len(filters), 8192):
        peer.send(wire.subscribe(5, peer.packet_id(), *((text, qos) for text in filters[first : first + 8192])))
        peer.host.settle()
        assert set(peer.next("SUBACK").codes) == {qos}


def lasting(host: Host, client_id: str = "gateway") -> Peer:
    return host.connect(client_id, 5, clean=False, expiry=EXPIRY)


def away(host: Host, filters: Sequence[str], client_id: str = "gateway") -> Peer:
    """Make a session with these filters, whose client is offline."""
    peer = lasting(host, client_id)
    subscribe(peer, filters)
    host.lose(peer)
    return peer


def begun(host: Host, publisher: Peer, body: bytes = b"0") -> None:
    """Publish until the message has been logged under some of the filters, not all."""
    publisher.publish(TOPIC, body, 1)
    host.turn()
    assert host.node.router.is_appending


def bodies(peer: Peer) -> list[bytes]:
    return [packet.payload for packet in peer.receive()]


# ---------------------------------------------------------------- the bound


@pytest.mark.parametrize(
    ("online", "qos"),
    [
        (False, 0),
        pytest.param(False, 1, marks=pytest.mark.long),
        pytest.param(True, 0, marks=pytest.mark.long),
        (True, 1),
    ],
)
def test_over_thousands_of_filters_of_one_session(tmp_path: Path, qos: int, online: bool) -> None:
    host = Host(limits=OPEN, stores=[OnDisk(tmp_path, fsync=False)])
    peer, publisher = lasting(host), host.connect("publisher", 5)
    subscribe(peer, ["/".join(levels) for levels in itertools.product("a+", repeat=15)])
    if not online:
        host.lose(peer)
    host.pass_time(2)
    work.forget()
    publisher.publish("/".join("a" * 15), b"x", qos)
    host.settle()
    assert qos == 0 or publisher.next("PUBACK").reason == 0
    if not online:
        peer = lasting(host)
    assert bodies(peer) == [b"x"] * (online or qos)
    host.pass_time(2)
    assert work.over() == {}
    assert max(work.highest().values()) < work.BOUND * 3 // 4
    host.check_books()
    let_go(host)


def test_over_filters_of_thousands_of_sessions_that_are_away(tmp_path: Path) -> None:
    host = Host(limits=OPEN, stores=[OnDisk(tmp_path, fsync=False)])
    filters = ["/".join(levels) for levels in itertools.product("a+", repeat=14)][:12_000]
    for first in range(0, len(filters), 40):
        away(host, filters[first : first + 40], f"c{first}")
    publisher = host.connect("publisher", 5)
    host.pass_time(2)
    work.forget()
    publisher.publish("/".join("a" * 14), b"x", 1)
    host.settle()
    assert publisher.next("PUBACK").reason == 0
    for first in range(0, len(filters), 40):
        assert bodies(lasting(host, f"c{first}")) == [b"x"]
    host.pass_time(2)
    assert max(work.highest().values()) < work.BOUND // 2
    assert host.stores[0].held() == (0, 0)
    let_go(host)


def test_what_waits_under_thousands_of_filters_is_found_in_pieces_after_a_restart(tmp_path: Path) -> None:
    """Each message is in the index of each filter, and is listed once."""
    store = OnDisk(tmp_path, fsync=False)
    host = Host(limits=OPEN, stores=[store])
    away(host, MANY)
    publisher = host.connect("publisher", 5)
    messages = [b"%d" % number for number in range(200)]
    for body in messages:
        publisher.publish(TOPIC, body, 1)
        if len(publisher.packets) % 50 == 0:
            host.settle()
    let_go(host)
    work.forget()
    host = Host(limits=OPEN, stores=[OnDisk(tmp_path, fsync=False)], start_ms=host.now_ms)
    host.pass_time(5)
    assert bodies(lasting(host)) == messages
    assert work.over() == {}
    assert max(work.highest().values()) < work.BOUND * 3 // 4
    let_go(host)


# ---------------------------------------------------------------- between the pieces


def test_messages_that_come_meanwhile_follow(make: Made) -> None:
    """Messages for the same filters, for some of them, and for a session that has read everything so far."""
    host = make(limits={"inflight_max": 10})
    away(host, MANY)
    away(host, MANY[:3], "few")
    publisher, other = host.connect("publisher", 5), host.connect("other", 5)
    begun(host, publisher)
    reader = host.open(5)
    reader.client_id = "few"
    reader.send(wire.connect(5, "few", clean=False, properties={"session_expiry_interval": EXPIRY}))
    for number in range(1, 4):
        begun(host, other, b"%d" % number)
    host.settle()
    assert not host.node.router.is_appending
    assert reader.next("CONNACK").session_present
    assert bodies(reader) == bodies(lasting(host)) == [b"0", b"1", b"2", b"3"]
    host.pass_time(2)
    assert host.stores[0].held() == (0, 0)
    host.check_books()


def test_who_is_in_sync_gets_it_at_once(make: Made) -> None:
    host = make()
    away(host, MANY)
    reader, publisher = host.connect("reader", 5), host.connect("publisher", 5)
    reader.subscribe(("a/#", 1))
    begun(host, publisher)
    publisher.publish("a/b", b"1", 0)
    host.turn()
    assert [packet.payload for packet in reader.packets] == [b"0", b"1"]
    assert host.node.router.is_appending


def test_publishes_that_never_end_are_answered_all_the_same(make: Made) -> None:
    """Messages that arrive meanwhile are appended in pieces, too: no more are taken until that is done."""
    host = make()
    away(host, MANY)
    publishers = [host.connect(f"publisher{number}", 5) for number in range(3)]
    for publisher in publishers:
        publisher.send(*(wire.publish(5, TOPIC, b"x", qos=1, packet_id=number) for number in range(1, 40)))
    for _ in range(15):
        host.turn()
    assert 0 < sum(len(publisher.packets) for publisher in publishers) < 3 * 39
    host.settle()
    assert all(len(publisher.packets) == 39 for publisher in publishers)
    assert len(bodies(lasting(host))) == 3 * 39
    host.check_books()


@pytest.mark.parametrize("make", ["kept", "disk"], indirect=True)
def test_the_ack_leaves_with_the_last_piece(make: Made) -> None:
    """Acks that wait behind it leave then, too. (In memory an ack waits for nothing.)"""
    host = make()
    away(host, MANY)
    publisher = host.connect("publisher", 5)
    begun(host, publisher)
    publisher.publish("nobody", b"", 1)
    while host.node.router.is_appending:
        assert not publisher.packets
        host.turn()
    host.settle()
    assert [packet.kind for packet in publisher.packets] == ["PUBACK"] * 2


@pytest.mark.parametrize("end", ["UNSUBSCRIBE", "Session Expiry", "clean start"])
def test_a_session_that_ends_meanwhile(make: Made, end: str) -> None:
    host = make()
    away(host, MANY[: len(MANY) // 2], "other")
    peer, publisher = lasting(host), host.connect("publisher", 5)
    subscribe(peer, MANY)
    for number in range(3):  # the first is sent, the next ones wait
        peer.session.inflight_max = 1
        begun(host, publisher, b"%d" % number)
        if number < 2:
            host.settle()
    if end == "UNSUBSCRIBE":
        peer.send(wire.unsubscribe(5, peer.packet_id(), *MANY[:-1]))
    elif end == "Session Expiry":
        peer.send(wire.disconnect(5, properties={"session_expiry_interval": 0}))
    else:
        host.connect("gateway", 5, clean=True)
    host.settle()
    host.pass_time(2)
    if end == "UNSUBSCRIBE":
        peer.next("PUBLISH")
        peer.next("UNSUBACK")
        peer.ack("PUBACK", 1)
        assert bodies(peer) == [b"1", b"2"]
    assert bodies(lasting(host, "other")) == [b"0", b"1", b"2"]
    host.pass_time(2)
    assert host.stores[0].held() == (0, 0)
    host.check_books()


@pytest.mark.parametrize("pieces", range(7))
def test_a_crash_meanwhile(pieces: int) -> None:
    """An acknowledged message is in every index; one that was not is in all of them or in none."""
    host = Host(limits=OPEN, stores=[KeptStore()])
    away(host, MANY)
    away(host, MANY[:1], "first")
    away(host, MANY[-1:], "last")
    publisher = host.connect("publisher", 5)
    begun(host, publisher)
    for _ in range(pieces):
        host.turn()
    acknowledged = bool(publisher.packets)
    assert acknowledged == (pieces >= len(MANY) // 1000)
    host = host.crash()
    got = [bodies(lasting(host, name)) for name in ("gateway", "first", "last")]
    assert got == [[b"0"] if acknowledged else []] * 3


def test_a_worker_that_stops_meanwhile(tmp_path: Path) -> None:
    host = Host(limits=OPEN, stores=[OnDisk(tmp_path, fsync=False)])
    away(host, MANY)
    begun(host, host.connect("publisher", 5))
    host.node.router.commit(True)
    assert not host.node.router.is_appending
    host.stores[0].close()
    host = Host(limits=OPEN, stores=[OnDisk(tmp_path, fsync=False)])
    assert bodies(lasting(host)) == [b"0"]
    let_go(host)


def test_what_a_sibling_gets_waits_with_it() -> None:
    """Part of the sibling's copy must be stored before it leaves."""
    host = Host(2, limits=OPEN, stores=[KeptStore(), KeptStore()])
    names = [f"c{number}" for number in range(20)]
    readers = [host.connect(name, 5, clean=False, expiry=EXPIRY) for name in names]
    here = readers[0].node
    there = next(peer for peer in readers if peer.node is not here)
    there.subscribe((TOPIC, 2))
    away(host, MANY, next(peer.client_id for peer in readers[1:] if peer.node is here))
    readers[0].publish(TOPIC, b"0", 2)
    host.turn()
    while here.router.is_appending:
        here.forward()
        assert not there.packets
        assert not readers[0].packets
        host.turn()
    host.settle()
    assert bodies(there) == [b"0"]
