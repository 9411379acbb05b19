"""The pauses of replays between two pieces of work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from broker.replay.replaying import Replaying
from broker.replay.scheduler import _CREDIT_NS, MESSAGE_NS, Scheduler
from pyx.io.reactor import Reactor
from tests.waiting import wait_until


class Works:
    """A stand-in for the replays of a worker and for its reactor."""

    def __init__(self) -> None:
        self.replayed = 0
        self.has_work = False
        self.messages = 0
        self.seconds = 0.0
        self.wake: Callable[[], None] = lambda: None
        self.turn: Callable[[], None] = lambda: None

    def run(self) -> None:
        end = time.monotonic() + self.seconds
        self.replayed += self.messages
        while time.monotonic() < end:
            pass

    def finish(self) -> None:
        pass

    def watch(self, _: int, callback: Callable[[], None]) -> None:
        self.turn = callback

    def unwatch(self, _: int) -> None:
        pass


@pytest.fixture
def works() -> Iterator[Works]:
    made = Works()
    pace = Scheduler(cast(Reactor, made), cast(Replaying, made))
    pace.start()
    made.pace = pace  # type: ignore[attr-defined]
    yield made
    pace.close()


def rest_ns(works: Works) -> int:
    begun = time.monotonic_ns()
    works.turn()
    until: int = works.pace._rests_until  # type: ignore[attr-defined]
    return until - begun


def test_a_rest_is_twice_as_long_as_the_work(works: Works) -> None:
    works.seconds = 0.01
    assert rest_ns(works) >= 30_000_000


def test_many_messages_in_no_time_are_followed_by_a_rest_for_each(works: Works) -> None:
    works.messages = 10_000
    rest = rest_ns(works)
    assert 10_000 * MESSAGE_NS - _CREDIT_NS <= rest < 10_000 * MESSAGE_NS + 1_000_000_000


def test_what_is_late_is_made_up_for(works: Works) -> None:
    works.messages = 10_000
    rest_ns(works)
    first: int = works.pace._rests_until  # type: ignore[attr-defined]
    wait_until(lambda: time.monotonic_ns() > first + _CREDIT_NS // 2, 60, "it comes late")
    begun = time.monotonic_ns()
    works.turn()
    ended = time.monotonic_ns()
    second: int = works.pace._rests_until  # type: ignore[attr-defined]
    assert second - max(first, begun - _CREDIT_NS) >= 10_000 * MESSAGE_NS
    assert second - ended < 10_000 * MESSAGE_NS


def test_work_without_messages_does_not_wait_for_any(works: Works) -> None:
    works.replayed = 1_000_000
    assert rest_ns(works) < 1_000_000_000
