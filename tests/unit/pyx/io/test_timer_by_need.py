"""A worker that sleeps is woken earlier when something needs its timer, and by nothing else."""

from __future__ import annotations

import pytest

from tests import wire
from tests.unit.adapters.timers_adapter import keep_alive_of
from tests.unit.pyx.io.test_reactor import Sockets, sockets, taken

__all__ = ["sockets"]

FULL_SECOND_MS = 1024
SLEEP_MS = 2000


class Sleeper:
    """A worker's sleep: when its timer comes, and how often it was asked for earlier."""

    def __init__(self, sockets: Sockets) -> None:
        reactor = self.reactor = sockets.reactor
        sockets.node._next_sweep.cancel()  # it would be due earlier
        self.hurried = 0
        reactor.hurry = self._hurry
        reactor.router.state.is_active = False
        self.sleep()

    def sleep(self, milliseconds: int = SLEEP_MS) -> None:
        """Sleep from now on."""
        self.reactor.finish()
        self.hurried = 0
        self.reactor.timer_ms = self.reactor.router.state.now_ms + milliseconds

    def _hurry(self) -> None:
        self.hurried += 1


def is_active(sockets: Sockets) -> bool:
    return bool(sockets.reactor.router.state.is_active)


@pytest.fixture
def sleeper(sockets: Sockets) -> Sleeper:
    return Sleeper(sockets)


def test_nothing_happens(sleeper: Sleeper) -> None:
    sleeper.reactor.finish()
    assert not sleeper.hurried


def test_a_link_waits(sleeper: Sleeper) -> None:
    sleeper.reactor.router.state.needs_timer = True
    sleeper.reactor.finish()
    assert sleeper.hurried == 1
    sleeper.sleep(150)
    sleeper.reactor.finish()
    assert not sleeper.hurried, "the timer comes soon anyway"


@pytest.mark.parametrize("milliseconds", [0, 500, SLEEP_MS - 150])
def test_something_is_due_earlier(sleeper: Sleeper, milliseconds: int) -> None:
    """A timer is at most a tenth of a second late."""
    state = sleeper.reactor.router.state
    state.timers.call(state.now_ms + milliseconds, lambda: None)
    sleeper.reactor.finish()
    assert sleeper.hurried == 1


def test_something_happens(sockets: Sockets, sleeper: Sleeper) -> None:
    """Of what clients send, only a PINGREQ lets the worker sleep on."""
    client, _ = sockets.open(wire.connect(5, "a"))
    taken(client)
    assert sleeper.hurried
    state = sleeper.reactor.router.state
    state.is_active = False
    sleeper.sleep()
    client.sendall(wire.PINGREQ)
    sockets.reactor.poll()
    assert taken(client) == b"\xd0\x00"
    assert not is_active(sockets)
    assert not sleeper.hurried
    client.sendall(wire.subscribe(5, 1, ("t", 0)))
    sockets.reactor.poll()
    assert is_active(sockets)
    assert sleeper.hurried


@pytest.mark.parametrize(
    ("keep_alive", "is_rounded"), [(1, False), (10, False), (11, True), (300, True), (65535, True)]
)
def test_long_keep_alives_end_at_full_seconds(sockets: Sockets, keep_alive: int, is_rounded: bool) -> None:
    """So one wake-up serves many connections. 1.5 times the Keep Alive pass first [MQTT-3.1.2-22]."""
    _, conn = sockets.open(wire.connect(4, "a", keep_alive=keep_alive))
    heard, deadline = keep_alive_of(conn)
    late = deadline - heard - keep_alive * 1500
    assert 0 <= late < FULL_SECOND_MS
    assert (deadline % FULL_SECOND_MS == 0) if is_rounded else late == 0
