"""The index of a filter that very many sessions read is swept in slices: a session that joins, reads, leaves or ends
between two of them gets its messages, and messages that no session needs are not held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pyx.core import work
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer

EXPIRY = 1000
MANY = 1100
"""More than one slice queries."""
SLICE = 10_000
"""ns: enough for some of the sessions."""


@pytest.fixture(scope="module", params=["memory", "kept"])
def ready(request: pytest.FixtureRequest) -> Callable[[], Host]:
    """Return a host with that many offline sessions, each with a message that waits."""

    def host() -> Host:
        stores: Sequence[Any] | None = [KeptStore()] if request.param == "kept" else None
        made = Host(stores=stores)
        for number in range(MANY):
            away(made, f"c{number}")
        publish(made, b"0")
        made.pass_time(2)
        return made

    return host


def back(host: Host, name: str) -> Peer:
    return host.connect(name, 5, clean=False, expiry=EXPIRY)


def away(host: Host, name: str) -> None:
    peer = back(host, name)
    peer.subscribe(("all", 1))
    host.lose(peer)


def publish(host: Host, body: bytes) -> None:
    publisher = host.connect("publisher", 5)
    publisher.publish("all", body, 1)
    host.settle()
    publisher.disconnect()


def bodies(peer: Peer) -> list[bytes]:
    return [packet.payload for packet in peer.receive()]


def begun(host: Host) -> None:
    """Start a sweep that is not finished."""
    host.node.router.bounding.slice = SLICE
    host.node.router.sweeping.sweep()
    host.turn()
    assert host.node.router.state.unfinished


def test_no_slice_is_more_than_a_slice(ready: Callable[[], Host]) -> None:
    host = ready()
    publish(host, b"1")
    work.forget()
    begun(host)
    host.settle()
    assert 0 < work.highest()["sweep"] < MANY * 20 + 10 * SLICE
    assert bodies(back(host, f"c{MANY - 1}")) == [b"0", b"1"]


def test_who_comes_and_goes_between_slices(ready: Callable[[], Host]) -> None:
    host = ready()
    publish(host, b"1")
    begun(host)
    assert bodies(back(host, "c0")) == [b"0", b"1"]  # reads all of it
    peer = back(host, "c1")
    assert bodies(peer) == [b"0", b"1"]
    peer.unsubscribe("all")
    host.connect("c2", 5, clean=True).disconnect()  # its session ends
    away(host, "later")
    publish(host, b"2")
    host.settle()
    host.pass_time(3)
    assert bodies(back(host, "later")) == [b"2"]
    for name in ("c3", f"c{MANY // 2}", f"c{MANY - 1}"):
        assert bodies(back(host, name)) == [b"0", b"1", b"2"]
    assert bodies(peer) == []
    host.check_books()


def test_when_nobody_wants_it_any_more_it_goes(ready: Callable[[], Host]) -> None:
    """All sessions end during the sweep."""
    host = ready()
    publish(host, b"1")
    begun(host)
    for number in range(MANY):
        host.connect(f"c{number}", 5, clean=True).disconnect()
        if number % 100 == 0:
            host.turn()
    host.node.router.bounding.slice = 5_000_000
    host.pass_time(5)
    assert host.stores[0].held() == (0, 0)
    assert host.node.router.state.subscriptions.filters == 0
