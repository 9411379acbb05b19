"""Everything that was published for this host before a moment has arrived at one of its workers.

The worker asks its siblings, and itself. Each asks the workers of other hosts that send to it, and these answer behind
what they have sent and what they still keep for it. What has come by then it has passed on, and its answer to the
worker follows that. So the answers of all siblings follow everything that any worker of any host had routed here. Hosts
that are away are not waited for, which the answer says; if a sibling is, the flush has no end.

    b"F"    u64     flush what you have for me
    b"f"    u64     done; the number comes back. Of a sibling also u8: 0 if a host was away
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from pyx.core.work import STEP, spend

if TYPE_CHECKING:
    from broker.context.context import Context
    from pyx.core.peer import Peer

__all__ = ["FLUSH", "FLUSHED", "Flushing"]

FLUSH: Final = b"F"
FLUSHED: Final = b"f"
_NUMBER: Final = struct.Struct("<Q")
_ANSWER: Final = struct.Struct("<QB")
_SECONDS_MAX: Final = 10.0
"""Time after which nobody waits for a flush any more."""
_QUESTIONS_MAX: Final = 8
"""Questions to the rails at a time: later ones are asked together."""


class _Flush:
    """A flush of this worker's: the siblings that have not answered, and whether no host was away until now."""

    __slots__ = ("is_whole", "left", "then", "until")

    def __init__(self, left: set[Peer], then: Callable[[bool], None], until: float) -> None:
        self.left = left
        self.is_whole = True
        self.then = then
        self.until = until


class _Question:
    """What the rails are asked for some flushes: those that have not answered (None: not asked yet), and whether none
    went away.
    """

    __slots__ = ("is_whole", "left", "thens", "until")

    def __init__(self, until: float) -> None:
        self.left: set[Peer] | None = None
        self.is_whole = True
        self.thens: list[Callable[[bool], None]] = []
        self.until = until


class Flushing:
    """The flushes of one worker. rails: the places of those over which hosts send to this worker now; None: it is not
    known yet which there are. has_away: whether a host is away.
    """

    def __init__(
        self,
        context: Context,
        rails: Callable[[], set[Peer] | None],
        has_away: Callable[[], bool],
    ) -> None:
        self._context = context
        self._router = context.router
        self._rails = rails
        self._has_away = has_away
        # they rise over restarts: an answer to a former life of this worker may come behind much else
        self._numbers = itertools.count(context.router.state.wall_ms << 16)
        self._asked: dict[int, _Flush] = {}
        self._questions: dict[int, _Question] = {}
        self._next: _Question | None = None
        """What is asked when one of the others has ended: it stands for many."""

    def flush(self, then: Callable[[bool], None]) -> None:
        """Call `then` when it has all arrived; False: not what hosts that are away may have."""
        number = next(self._numbers)
        context = self._context
        self._asked[number] = _Flush({context.own, *context.siblings}, then, self._until())
        for peer in context.siblings:
            self._router.peers.tell(peer, FLUSH, _NUMBER.pack(number))
        self._ask(partial(self._answered, context.own, number))

    def _until(self) -> float:
        return self._router.state.now_ms / 1000 + _SECONDS_MAX

    def _ask(self, then: Callable[[bool], None]) -> None:
        """Call `then` when what hosts have for this worker has come; False: one was or is away."""
        question = self._next = self._next or _Question(self._until())
        question.thens.append(then)
        if len(self._questions) < _QUESTIONS_MAX:
            self._go_on()

    def _go_on(self) -> None:
        """Ask what waits."""
        question, self._next = self._next, None
        if question is not None:
            number = next(self._numbers)
            self._questions[number] = question
            question.until = self._until()
            rails = self._rails()
            if rails is not None:
                self._look(number, question, rails)

    def check(self) -> None:
        """Ask those that are there by now, and wait no longer for those that are away."""
        rails = self._rails()
        if rails is not None:
            spend(len(self._questions) * STEP)
            for number, question in list(self._questions.items()):
                self._look(number, question, rails)

    def _look(self, number: int, question: _Question, rails: set[Peer]) -> None:
        if question.left is None:
            spend(len(rails) * STEP)
            question.left = set(rails)
            for place in rails:
                self._router.peers.tell(place, FLUSH, _NUMBER.pack(number))
        elif not question.left <= rails:
            question.left &= rails
            question.is_whole = False
        self._end_if_answered(number, question)

    def _end_if_answered(self, number: int, question: _Question) -> None:
        if not question.left and self._questions.pop(number, None) is question:
            is_whole = question.is_whole and not self._has_away()
            spend(len(question.thens) * STEP)
            for then in question.thens:
                self._context.guard_client(None, then, is_whole)
            self._go_on()

    def tick(self, now: float) -> None:
        """Forget what nobody waits for."""
        self.check()
        for number in [number for number, each in self._asked.items() if each.until <= now]:
            del self._asked[number]
        for number in [number for number, each in self._questions.items() if each.until <= now]:
            del self._questions[number]
            self._go_on()

    def heard(self, kind: bytes, peer: Peer, payload: bytes) -> None:
        """Take a message of a sibling. Raises struct.error."""
        if kind == FLUSH:
            (number,) = _NUMBER.unpack(payload)
            self._ask(lambda whole: self._router.peers.tell(peer, FLUSHED, _ANSWER.pack(number, whole)))
        else:
            number, is_whole = _ANSWER.unpack(payload)
            self._answered(peer, number, bool(is_whole))

    def heard_of_host(self, kind: bytes, place: Peer, payload: bytes) -> None:
        """Take a message of another host's worker. Raises struct.error."""
        (number,) = _NUMBER.unpack(payload)
        if kind == FLUSH:
            self._router.peers.tell(place, FLUSHED, payload)
            return
        question = self._questions.get(number)
        if question is not None and question.left is not None:
            question.left.discard(place)
            self._end_if_answered(number, question)

    def _answered(self, peer: Peer, number: int, is_whole: bool) -> None:
        flush = self._asked.get(number)
        if flush is not None:
            flush.left.discard(peer)
            flush.is_whole &= is_whole
            if not flush.left:
                del self._asked[number]
                self._context.guard_client(None, flush.then, flush.is_whole)
