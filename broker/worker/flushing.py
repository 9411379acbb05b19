"""Everything that was published for this host before a moment has arrived at one of its workers.

The worker asks its siblings, and itself. Each gives the interest of the host another number: a host acknowledges it
behind everything that it had sent over that rail. What has come over a worker's rails by then it has passed on, and its
answer follows that. So the answers of all siblings follow everything that any worker of any host had routed here. Hosts
that are away are not waited for, which the answer says; if a sibling is, the flush has no end.

    b"F"    u64     flush what you have for me
    b"f"    u64     done; the number comes back, and u8: 0 if a host was away
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pyx.core.work import STEP, spend

if TYPE_CHECKING:
    from broker.context.context import Context
    from broker.worker.peering import Peering
    from pyx.core.peer import Peer
    from zmq_mesh.interest import Publisher

__all__ = ["FLUSH", "FLUSHED", "Flushing"]

FLUSH: Final = b"F"
FLUSHED: Final = b"f"
_NUMBER: Final = struct.Struct("<Q")
_ANSWER: Final = struct.Struct("<QB")
_SECONDS_MAX: Final = 10.0
"""Time after which nobody waits for a flush any more."""


class _Flush:
    """A flush of this worker's: those who have not answered, and whether no host was away until now."""

    __slots__ = ("is_whole", "left", "then", "until")

    def __init__(self, left: set[Peer], then: Callable[[bool], None], until: float) -> None:
        self.left = left
        self.is_whole = True
        self.then = then
        self.until = until


class Flushing:
    """The flushes of one worker. wanted: the interest of its host. lacks: whether a host that is waited for does not
    know a number of that. has_away: whether a host is away.
    """

    def __init__(
        self,
        context: Context,
        peering: Peering,
        wanted: Publisher,
        lacks: Callable[[int], bool],
        has_away: Callable[[], bool],
    ) -> None:
        self._context = context
        self._router = context.router
        self._peering = peering
        self._wanted = wanted
        self._lacks = lacks
        self._has_away = has_away
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Flush] = {}
        self._waiting: list[tuple[int, float, Callable[[], None]]] = []
        """(number of the interest, until when it is waited for, what is called then)."""

    def flush(self, then: Callable[[bool], None]) -> None:
        """Call `then` when it has all arrived; False: not what hosts that are away may have."""
        number = next(self._numbers)
        context = self._context
        until = self._now() + _SECONDS_MAX
        self._asked[number] = _Flush({context.own, *context.siblings}, then, until)
        for peer in context.siblings:
            self._router.peers.tell(peer, FLUSH, _NUMBER.pack(number))
        self._rails(lambda: self._answered(context.own, number, not self._has_away()))

    def _now(self) -> float:
        return self._router.state.now_ms / 1000

    def _rails(self, then: Callable[[], None]) -> None:
        """Call `then` when what hosts had sent over this worker's rails is taken."""
        self._waiting.append((self._wanted.touch(), self._now() + _SECONDS_MAX, then))
        self._router.peers.links_due = True
        self.check()

    def check(self) -> None:
        """Go on with what hosts have acknowledged."""
        now, waiting = self._now(), self._waiting
        self._waiting = []
        spend(len(waiting) * STEP)
        for number, until, then in waiting:
            if not self._lacks(number):
                self._peering.when_taken(then)
            elif now < until:
                self._waiting.append((number, until, then))

    def tick(self, now: float) -> None:
        """Forget what nobody waits for."""
        self.check()
        for number in [number for number, each in self._asked.items() if each.until <= now]:
            del self._asked[number]

    def heard(self, kind: bytes, peer: Peer, payload: bytes) -> None:
        """Take a message of a sibling."""
        if kind == FLUSH:
            (number,) = _NUMBER.unpack(payload)
            self._rails(lambda: self._router.peers.tell(peer, FLUSHED, _ANSWER.pack(number, not self._has_away())))
        else:
            number, is_whole = _ANSWER.unpack(payload)
            self._answered(peer, number, bool(is_whole))

    def _answered(self, peer: Peer, number: int, is_whole: bool) -> None:
        flush = self._asked.get(number)
        if flush is not None:
            flush.left.discard(peer)
            flush.is_whole &= is_whole
            if not flush.left:
                del self._asked[number]
                flush.then(flush.is_whole)
