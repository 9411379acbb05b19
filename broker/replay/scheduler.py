"""Scheduling of replays, by a kernel timer in the reactor's set, because pauses can be shorter than a millisecond.

After each piece of work, including sending its messages, there is a pause of twice its duration: replays have at most a
third of a worker, and all other clients are served between two pieces. With less than half, traffic of others finds the
loop idle more often than not, so half of their messages wait for no replay at all. In addition MESSAGE_NS pass for each
message: on a fast machine the traffic of others matters more than finishing a replay sooner, and the reading client
needs a processor, too. Reading pages runs in a thread (`broker.worker.background_thread`) and is not counted here.
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
"""Duration of a pause as a multiple of the work before it."""
MESSAGE_NS = 4400
"""Minimum time per message, for all replays of a worker: 227,000 messages a second."""
_CREDIT_NS = 2_000_000
"""Delay that may be caught up when the loop was busy with other work."""
_libc = ctypes.CDLL(None, use_errno=True)


class ScheduledWork(Protocol):
    """Work in pieces: replays, and walks over retained messages."""

    wake: Callable[[], None]

    @property
    def has_work(self) -> bool:
        """Whether `run` has something to do."""

    @property
    def replayed(self) -> int:
        """Number of archived messages that were queued for clients."""

    def run(self) -> None:
        """Do one piece of work."""


class Scheduler:
    """Paces one kind of work of one worker."""

    def __init__(self, reactor: Reactor, work: ScheduledWork) -> None:
        self._reactor = reactor
        self._replaying = work
        self._timerfd = -1
        self._rests_until = 0
        """End of the present pause, in monotonic ns."""
        self._due = 0
        """Monotonic ns until which the messages queued so far use up their time."""

    def start(self) -> None:
        """Create the timer, after the fork. Raises OSError."""
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
        """Stop for good."""
        if self._timerfd >= 0:
            self._reactor.unwatch(self._timerfd)
            os.close(self._timerfd)
            self._timerfd = -1
            self._replaying.wake = lambda: None
