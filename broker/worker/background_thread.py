"""A thread for reading beside the loop: LevelDB's work, including decompression and checksums, needs no GIL.

It rests after each piece of work for as long as that took. So all background work together uses at most half of a
processor and of the disk's time, however much is queued; its users take turns.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyx.io.reactor import Reactor

__all__ = ["BackgroundThread"]

_REST_SECONDS_MAX = 0.25


class BackgroundThread:
    """Runs work in one thread, in order; follow-ups are called in the loop. `clock`: monotonic seconds."""

    def __init__(self, reactor: Reactor, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._reactor = reactor
        self._clock = clock
        self._closed = threading.Event()
        self.rest: Callable[[float], object] = self._closed.wait
        """Sleeps for this many seconds."""
        self._work: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], None]] | None] = queue.SimpleQueue()
        self._done: deque[tuple[BaseException | None, Callable[[], None]]] = deque()
        self._event = -1
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, after the fork. Raises OSError."""
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._reactor.watch(self._event, self._collect)
        self._thread.start()

    def __call__(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Run `work` in the thread, then `then` in the loop. An exception of `work` is raised in the loop instead."""
        self._work.put((work, then))

    def _run(self) -> None:
        while (each := self._work.get()) is not None:
            work, then = each
            begun = self._clock()
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # noqa: BLE001 - re-raised in the loop
                error = raised
            self._done.append((error, then))
            os.eventfd_write(self._event, 1)
            self.rest(min(self._clock() - begun, _REST_SECONDS_MAX))

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):  # another callback of the round may have run the reactor
            os.eventfd_read(self._event)
        while self._done:
            error, then = self._done.popleft()
            if error is not None:
                raise error
            then()

    def close(self) -> None:
        """Stop; work in progress is waited for."""
        if self._event >= 0:
            self._closed.set()
            self._work.put(None)
            self._thread.join()
            self._reactor.unwatch(self._event)
            os.close(self._event)
            self._event = -1
