"""Thread pool for password hashes: a few threads compute, and an eventfd wakes the event loop when one is done.

argon2, PBKDF2 and SHA-512 of a whole password run without the GIL. The threads have a lower priority than the loop:
where there are fewer cores than work, messages go before logins, which still get a quarter of a core. Callbacks given
to `submit` are called from `collect`, in the loop's own thread, so no other thread ever touches protocol state.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Done", "HashPool", "Submit", "at_once"]

Done = Callable[[bool | Exception], None]
"""Callback for the result: right, wrong, or an error on our side."""

Submit = Callable[[Callable[[], bool], Done], Callable[[], None]]
"""submit(work, done): computes `work()` in a thread and calls `done` later. Returns a function that cancels it: `done`
is not called after that."""

_NICENESS = 5


class HashPool:
    """Threads for slow checks."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._executor = _executor(threads)
        self._finished: deque[tuple[Future[bool], Done]] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        self._closing = threading.Lock()  # a thread that finishes late must not write to a reused descriptor

    def fileno(self) -> int:
        """Return the descriptor that is readable while `collect` has something to do."""
        return self._event

    def resize(self, threads: int) -> None:
        """Use this many threads for work submitted from now on; work in the queue is still computed."""
        if threads != self._threads:
            self._threads = threads
            former, self._executor = self._executor, _executor(threads)
            former.shutdown(wait=False)

    def submit(self, work: Callable[[], bool], done: Done) -> Callable[[], None]:
        """Implements `Submit`. The threads start with the first work."""
        future = self._executor.submit(work)
        cancelled = False

        def once(result: bool | Exception) -> None:
            if not cancelled:
                done(result)

        def cancel() -> None:
            nonlocal cancelled
            cancelled = True
            future.cancel()

        future.add_done_callback(lambda future: self._finish(future, once))
        return cancel

    def _finish(self, future: Future[bool], done: Done) -> None:
        # called in one of the threads, or in the loop's when it was cancelled
        if not future.cancelled():
            self._finished.append((future, done))
            with self._closing:
                if not self._closed:
                    os.eventfd_write(self._event, 1)

    def collect(self) -> None:
        """Call the callbacks of all finished work."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        while self._finished:
            future, done = self._finished.popleft()
            error = future.exception()
            if error is None:
                done(future.result())
            elif isinstance(error, Exception):
                done(error)
            else:
                raise error

    def close(self) -> None:
        """Close the pool: work in progress ends by itself; no callback is called any more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._closing:
            if not self._closed:
                self._closed = True
                os.close(self._event)


def at_once(work: Callable[[], bool], done: Done) -> Callable[[], None]:
    """A Submit that computes in the calling thread: for the simulation and tests."""
    done(work())
    return lambda: None


def _executor(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "hash", initializer=_be_nice)


def _be_nice() -> None:
    thread = threading.get_native_id()  # the priority of this thread alone
    os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS))
