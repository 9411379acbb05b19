"""Requests that the supervisor forwards to workers, and the callbacks that wait for the answers.

The asker (a client of the console, the control process) is answered exactly once: by the worker, or with an error if
the worker does not run, dies, does not answer within REQUEST_SECONDS_MAX, or has REQUESTS_MAX unanswered ones: a
paused worker must not find its control socket full of them. The supervisor does not interpret the requests.

    answered({"worker": I, "answer": {...}})    or    answered({"worker": I, "error": "..."})
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

from shards.worker_channel import Message

__all__ = ["REQUESTS_MAX", "REQUEST_SECONDS_MAX", "WorkerRequests"]

REQUEST_SECONDS_MAX = 10.0
REQUESTS_MAX = 32
"""Unanswered requests per worker, whether or not somebody still waits for the answers."""


class _Waiting(NamedTuple):
    worker: int
    until: float
    """Deadline by time.monotonic()."""
    why: str
    """The error if it passes."""
    answered: Callable[[Message], None]


class WorkerRequests:
    """Requests that wait for answers. `tell(worker, message)` sends to a worker; False: it does not run."""

    def __init__(self, tell: Callable[[int, Message], bool]) -> None:
        self._tell = tell
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}  # the oldest first
        self._unanswered: dict[int, set[int]] = {}  # by worker

    def ask(self, worker: int, ask: object, answered: Callable[[Message], None]) -> int:
        """Forward a request; return the number for `forget`. `answered` is called later, never from in here."""
        number = next(self._numbers)
        until, why = time.monotonic() + REQUEST_SECONDS_MAX, f"has not answered in {REQUEST_SECONDS_MAX:g} s"
        unanswered = self._unanswered.get(worker, ())
        if len(unanswered) >= REQUESTS_MAX:
            until, why = 0.0, f"is busy: it has not answered {len(unanswered)} requests"
        elif self._tell(worker, {"event": "ask", "number": number, "ask": ask}):
            self._unanswered.setdefault(worker, set()).add(number)
        else:
            until, why = 0.0, "does not run"
        self._waiting[number] = _Waiting(worker, until, f"worker {worker} {why}", answered)
        return number

    def answered(self, worker: int, number: int, answer: object) -> None:
        """Pass an answer on; ignored if nobody waits for it any more."""
        self._unanswered.get(worker, set()).discard(number)
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.answered({"worker": waiting.worker, "answer": answer})

    def forget(self, number: int) -> None:
        """Forget a request that nobody waits for any more."""
        self._waiting.pop(number, None)

    def gone(self, worker: int) -> None:
        """Answer for a worker that has died."""
        self._unanswered.pop(worker, None)
        for number in [number for number, each in self._waiting.items() if each.worker == worker]:
            self._fail(number, f"worker {worker} has died")

    def due(self) -> float:
        """Return when `expire` is to be called, by time.monotonic(); infinity: nothing waits."""
        return min((each.until for each in self._waiting.values()), default=float("inf"))

    def expire(self, now: float) -> None:
        """Answer with an error for workers whose deadline has passed."""
        for number in [number for number, each in self._waiting.items() if each.until <= now]:
            self._fail(number)

    def _fail(self, number: int, why: str = "") -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.answered({"worker": waiting.worker, "error": why or waiting.why})
