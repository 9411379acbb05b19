"""Work for very many connections at once is done in slices: sending, closing, timers. Over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from broker.context.piecework import AT_ONCE
from pyx.core import counters as count
from pyx.core import work
from pyx.core.work import STEP, spend
from tests import wire
from tests.unit.pyx.io.test_reactor import Sockets, taken

OPEN: dict[str, Any] = {"filters_per_second_max": 0, "tick_filters_max": 100_000}


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    it = Sockets(None, **OPEN)
    yield it
    it.close()


def whole(kind: str) -> int:
    """Return the work of the most expensive callback of that kind, nested work included."""
    return work.whole().get(kind, 0)


def connected(sockets: Sockets, count: int, *packets: bytes, keep_alive: int = 0) -> list[socket.socket]:
    ends = []
    for number in range(count):
        end, _ = sockets.open(wire.connect(5, f"c{number}", keep_alive=keep_alive), *packets)
        taken(end)
        ends.append(end)
    return ends


def test_a_message_for_many_is_sent_in_slices(sockets: Sockets) -> None:
    """Every client gets it, also at the end of the list, and messages published meanwhile follow."""
    ends = connected(sockets, 300, wire.subscribe(5, 1, ("all", 1)))
    publisher, _ = sockets.open(wire.connect(5, "publisher"))
    taken(publisher)
    sockets.reactor.connections.slice = 50_000
    work.forget()
    publisher.send(wire.publish(5, "all", b"before it", qos=1, packet_id=1))
    sockets.reactor.poll()
    publisher.send(wire.publish(5, "all", b"behind it", qos=1, packet_id=2))
    got = [b""] * len(ends)

    def all_there() -> bool:
        for number, end in enumerate(ends):
            got[number] += taken(end)
        return all(each.endswith(b"behind it") for each in got)

    sockets.until(all_there)
    assert all(each.count(b"before it") == each.count(b"behind it") == 1 for each in got)
    assert 0 < whole("send") < 60_000


def test_those_whose_keep_alive_is_over_end_in_slices(sockets: Sockets) -> None:
    """All clients time out at the same moment, and each leaves hundreds of subscriptions."""
    ends = connected(
        sockets, 60, wire.subscribe(5, 1, *((f"t/{number}", 0) for number in range(AT_ONCE - 10))), keep_alive=1
    )
    clock = sockets.reactor
    work.forget()

    def all_closed() -> bool:
        clock.run_timers()
        return sockets.node.router.state.subscriptions.count == 0

    sockets.until(all_closed)
    assert len(sockets.node.sessions) == 0
    assert all(taken(end).startswith(b"\xe0") for end in ends)
    assert work.over() == {}
    assert 0 < whole("asked_to_close") < work.BOUND
    assert whole("expire") < work.BOUND


def test_timers_of_the_same_moment_take_turns(sockets: Sockets) -> None:
    """Sessions that expire, wills that are due: each round handles some of them, and clients are served in between."""
    pings = 0
    order: list[int] = []

    def call(number: int) -> None:
        spend(20 * STEP)
        order.append(number)

    end, _ = sockets.open(wire.connect(5, "client"))
    taken(end)
    for number in range(3000):
        sockets.node.call_later(0, partial(call, number))
    work.forget()
    sockets.reactor.run_timers()
    rounds = sockets.node.counters.get(count.TICKS)
    while len(order) < 3000:
        assert sockets.again, "nobody comes back for the rest"
        end.send(wire.PINGREQ)
        sockets.reactor.poll()
        pings += len(taken(end)) // len(wire.PINGREQ)
    assert sockets.node.counters.get(count.TICKS) - rounds >= 10
    assert pings
    assert sorted(order) == list(range(3000))
    assert whole("expire") < work.BOUND // 2


def test_a_timer_that_fails_leaves_the_others(sockets: Sockets) -> None:
    """The remaining timers of that moment fire in later rounds."""
    called: list[int] = []

    def failing() -> None:
        spend(10_000 * STEP)
        raise OSError("this one")

    sockets.node.call_later(0, failing)
    for number in range(10):
        sockets.node.call_later(0, partial(called.append, number))
    with pytest.raises(OSError, match="this one"):
        sockets.reactor.run_timers()

    def all_called() -> bool:
        sockets.reactor.run_timers()
        return len(called) == 10

    sockets.until(all_called)
