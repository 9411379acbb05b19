"""Questions that the supervisor passes to workers, and who waits for the answers.

Whoever asks (a client of the console, the control process) is answered exactly once: by the worker, or with an error
when that does not run, dies, has not answered in QUESTION_SECONDS_MAX, or has QUESTIONS_MAX that it has not answered: a
worker that pauses is not to find its control socket full of them. What is asked is between the two.

    answered({"worker": I, "answer": {...}})    or    answered({"worker": I, "error": "..."})
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

from shards.worker_channel import Message

__all__ = ["QUESTIONS_MAX", "QUESTION_SECONDS_MAX", "Questions"]

QUESTION_SECONDS_MAX = 10.0
QUESTIONS_MAX = 32
"""That a worker has not answered, whether anybody waits for the answers still or not."""


class _Waiting(NamedTuple):
    worker: int
    until: float
    """By time.monotonic()."""
    why: str
    """Why it has no answer then."""
    answered: Callable[[Message], None]


class Questions:
    """Those that wait for their answers. `tell(worker, message)` gives it to the worker; False: it does not run."""

    def __init__(self, tell: Callable[[int, Message], bool]) -> None:
        self._tell = tell
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}  # the oldest first
        self._unanswered: dict[int, set[int]] = {}  # by worker

    def ask(self, worker: int, ask: object, answered: Callable[[Message], None]) -> int:
        """The number under which it can be forgotten. `answered` is called later, and not from in here."""
        number = next(self._numbers)
        until, why = time.monotonic() + QUESTION_SECONDS_MAX, f"has not answered in {QUESTION_SECONDS_MAX:g} s"
        unanswered = self._unanswered.get(worker, ())
        if len(unanswered) >= QUESTIONS_MAX:
            until, why = 0.0, f"is busy: it has not answered {len(unanswered)} questions"
        elif self._tell(worker, {"event": "ask", "number": number, "ask": ask}):
            self._unanswered.setdefault(worker, set()).add(number)
        else:
            until, why = 0.0, "does not run"
        self._waiting[number] = _Waiting(worker, until, f"worker {worker} {why}", answered)
        return number

    def answered(self, worker: int, number: int, answer: object) -> None:
        """It has; nothing more, if nobody waits for it any more."""
        self._unanswered.get(worker, set()).discard(number)
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.answered({"worker": waiting.worker, "answer": answer})

    def forget(self, number: int) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(number, None)

    def gone(self, worker: int) -> None:
        """A worker has died."""
        self._unanswered.pop(worker, None)
        for number in [number for number, each in self._waiting.items() if each.worker == worker]:
            self._fail(number, f"worker {worker} has died")

    def due(self) -> float:
        """When `expire` is to be called, by time.monotonic(); infinity: nothing waits."""
        return min((each.until for each in self._waiting.values()), default=float("inf"))

    def expire(self, now: float) -> None:
        """Answer for those workers that have not."""
        for number in [number for number, each in self._waiting.items() if each.until <= now]:
            self._fail(number)

    def _fail(self, number: int, why: str = "") -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.answered({"worker": waiting.worker, "error": why or waiting.why})
