"""The thread that reads beside the loop: its order, its pauses, and error handling."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import pytest

from broker.worker.background_thread import BackgroundThread


class OneFile:
    """The part of a reactor that the thread uses."""

    def __init__(self) -> None:
        self.fd = -1
        self.callback: Callable[[], None] = lambda: None

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        self.fd, self.callback = fd, callback

    def unwatch(self, fd: int) -> None:
        assert fd == self.fd

    def turn(self) -> None:
        assert select.select([self.fd], [], [], 30)[0]
        self.callback()


def test_it_rests_as_long_as_it_works() -> None:
    reactor: Any = OneFile()
    now = [100.0]
    done: list[int] = []
    rests: list[float] = []
    beside = BackgroundThread(reactor, "reader", clock=lambda: now[0])
    beside.rest = rests.append

    def work(seconds: float) -> Callable[[], None]:
        return lambda: now.__setitem__(0, now[0] + seconds)

    beside.start()
    for seconds in (0.125, 0.0, 60.0):
        beside(work(seconds), lambda: done.append(len(done)))
    while len(done) < 3:
        reactor.turn()
    beside.close()
    assert done == [0, 1, 2]
    assert rests == [0.125, 0.0, 0.25]


def test_an_error_is_the_loops() -> None:
    reactor: Any = OneFile()
    beside = BackgroundThread(reactor, "reader")
    beside.start()
    beside(lambda: [].pop(), lambda: None)
    with pytest.raises(IndexError):
        reactor.turn()
    beside.close()
