"""A process that was stopped for a while: it reads no client before its caller has looked at the mesh again, and ends
no connection before it has read what waited in the socket.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests import wire
from tests.unit.pyx.io.test_reactor import Sockets, sockets, taken
from tests.waiting import let_pass

__all__ = ["sockets"]

PAUSE_NS = 50_000_000
PINGRESP = b"\xd0\x00"


def stop_for_longer() -> None:
    """Take longer than PAUSE_NS."""
    until = time.monotonic_ns() + 2 * PAUSE_NS
    while time.monotonic_ns() < until:
        pass


def connected(sockets: Sockets, name: str) -> socket.socket:
    client, _ = sockets.open(wire.connect(5, name))
    taken(client)
    return client


def test_what_came_since_the_caller_looked_is_left_to_the_next_call(sockets: Sockets) -> None:
    client = connected(sockets, "a")
    client.sendall(wire.PINGREQ)
    sockets.reactor.poll(time.monotonic_ns() - sockets.reactor.pause_ns - 1)
    assert taken(client) == b""
    sockets.reactor.poll(time.monotonic_ns())
    assert taken(client) == PINGRESP


@pytest.mark.parametrize("stays", [False, True])
def test_a_stop_in_a_callback(sockets: Sockets, stays: bool) -> None:
    """The next round of the same call reads no client."""
    client = connected(sockets, "a")
    ours, theirs = socket.socketpair()

    def callback() -> None:
        ours.recv(1)
        stop_for_longer()
        client.sendall(wire.PINGREQ)

    with ours, theirs:
        sockets.reactor.pause_ns = PAUSE_NS
        sockets.reactor.stays = stays
        sockets.reactor.watch(ours.fileno(), callback)
        theirs.send(b"x")
        sockets.reactor.poll(time.monotonic_ns())
        assert taken(client) == b""
        sockets.reactor.poll(time.monotonic_ns())
        assert taken(client) == PINGRESP
        sockets.reactor.unwatch(ours.fileno())


def test_a_stop_between_two_clients_of_a_round(sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [connected(sockets, name) for name in "ab"]
    subscribe: Callable[..., Any] = sockets.node.subscribe

    def slow(*arguments: Any) -> None:
        stop_for_longer()
        subscribe(*arguments)

    monkeypatch.setattr(sockets.node, "subscribe", slow)
    sockets.reactor.pause_ns = PAUSE_NS
    for client in clients:
        client.sendall(wire.subscribe(5, 1, ("t", 0)))
    answered: list[int] = []
    for _ in range(2):
        sockets.reactor.poll(time.monotonic_ns())
        answered.append(sum(bool(taken(client)) for client in clients))
    assert answered == [1, 1]


def test_keep_alive_and_the_time_for_connect_after_a_stop(sockets: Sockets) -> None:
    """What a client sent meanwhile is read first. One that has sent nothing is closed as ever, a second later."""
    (pings, pinging), (_silent, silent) = (sockets.open(wire.connect(5, name)) for name in ("pings", "silent"))
    taken(pings)
    ours, late = socket.socketpair()
    ours.setblocking(False)
    with late:
        late.setblocking(False)
        sockets.reactor.adopt(ours.detach(), b"", 30)
        for conn in (pinging, silent):
            conn.keep_alive_ms = 30
            sockets.reactor.start_keep_alive(conn)
        sockets.reactor.pause_ns = PAUSE_NS
        let_pass(0.6)  # longer than what counts as a stop
        pings.sendall(wire.PINGREQ)
        late.sendall(wire.connect(5, "late"))
        sockets.reactor.run_timers()
        assert len(sockets.reactor) == 3
        sockets.poll()
        assert taken(pings) == PINGRESP
        assert taken(late)[:1] == b"\x20", "its CONNACK"

        def is_closed() -> bool:
            pings.sendall(wire.PINGREQ)
            sockets.reactor.run_timers()
            return silent.session is None

        sockets.until(is_closed)
        assert pinging.session is not None


def test_signals_end_a_wait(sockets: Sockets) -> None:
    """A reactor that waits for more traffic returns to its loop, however often it is interrupted: timers are due there.
    It did not: signals that come more often than its waits are long kept it for ever.
    """
    client = connected(sockets, "a")
    sockets.reactor.stays = True
    signals = 0

    def count(_number: int, _frame: object) -> None:
        nonlocal signals
        signals += 1
        if signals == 500:
            signal.setitimer(signal.ITIMER_REAL, 0)

    former = signal.signal(signal.SIGALRM, count)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        for _ in range(20):  # two rounds close to each other are needed for a wait
            client.sendall(wire.PINGREQ)
            sockets.reactor.poll()
            taken(client)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert signals < 500
