"""When replays work: a timer of the kernel in the reactor's set, so that the pauses can be shorter than a millisecond.

After each piece of work, what it sent included, there is none for twice as long: clients that replay have at most a
third of a worker, and every other client is served between two pieces. With less than half, what comes for others finds
the loop free more often than not: so half of their messages wait for no replay at all. And MESSAGE_NS pass for each
message: on a machine that is fast enough, what others send is worth more than that a replay is over sooner, and the
client that reads needs a processor, too. Pages are read beside the loop (`broker.worker.background_thread`) and are no
part of this.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from pyx.core.work import callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyx.io.reactor import Reactor

__all__ = ["MESSAGE_NS", "Scheduler"]

_SPEC = Struct("qqqq")  # struct itimerspec: interval, then value, each in seconds and nanoseconds
_TFD_NONBLOCK, _TFD_CLOEXEC, _CLOCK_MONOTONIC = 0o4000, 0o2000000, 1
_NOW_NS = 1000
_PAUSE = 2
"""Times as long as the work before it."""
MESSAGE_NS = 4400
"""Of a worker's replays, together: 227,000 a second."""
_CREDIT_NS = 2_000_000
"""So much of it is made up for when the loop had other things to do."""
_libc = ctypes.CDLL(None, use_errno=True)


class Work(Protocol):
    """What is done in pieces: replays, and walks over retained messages."""

    wake: Callable[[], None]

    @property
    def has_work(self) -> bool:
        """Whether `run` has something to do."""

    @property
    def replayed(self) -> int:
        """Messages of an archive that were queued for clients."""

    def run(self) -> None:
        """Do one piece."""


class Scheduler:
    """Of one kind of work of one worker."""

    def __init__(self, reactor: Reactor, work: Work) -> None:
        self._reactor = reactor
        self._replaying = work
        self._timerfd = -1
        self._rests_until = 0
        """Monotonic ns."""
        self._due = 0
        """Monotonic ns: when what was queued so far has had its time."""

    def start(self) -> None:
        """After the fork. Raises OSError."""
        self._timerfd = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._timerfd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._reactor.watch(self._timerfd, self._work)
        self._replaying.wake = self._arm
        if self._replaying.has_work:
            self._arm()

    def _arm(self) -> None:
        wait = max(_NOW_NS, self._rests_until - time.monotonic_ns())
        _libc.timerfd_settime(self._timerfd, 0, _SPEC.pack(0, 0, wait // 1_000_000_000, wait % 1_000_000_000), None)

    @callback("replay")
    def _work(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._timerfd, 8)
        begun, before = time.monotonic_ns(), self._replaying.replayed
        self._replaying.run()
        self._reactor.finish()
        now = time.monotonic_ns()
        queued = self._replaying.replayed - before
        due = max(self._due, begun - _CREDIT_NS) + queued * MESSAGE_NS
        self._due = due
        self._rests_until = max(now + _PAUSE * (now - begun), due)
        if self._replaying.has_work:
            self._arm()

    def close(self) -> None:
        """No more work."""
        if self._timerfd >= 0:
            self._reactor.unwatch(self._timerfd)
            os.close(self._timerfd)
            self._timerfd = -1
            self._replaying.wake = lambda: None
