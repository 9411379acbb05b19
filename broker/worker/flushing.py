"""Everything that was published for this host before a moment has arrived at one of its workers.

The worker asks its siblings, and itself. Each gives the interest of the host another number: a host acknowledges it
behind everything that it had sent over that rail. What has come over a worker's rails by then it has passed on, and its
answer follows that. So the answers of all siblings follow everything that any worker of any host had routed here. Hosts
that are away are not waited for; if a sibling is, the flush has no end.

    b"F"    u64     flush what you have for me
    b"f"    u64     done; the number comes back
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
    from broker.worker.peering import Peering
    from pyx.core.peer import Peer
    from zmq_mesh.interest import Publisher

__all__ = ["FLUSH", "FLUSHED", "Flushing"]

FLUSH: Final = b"F"
FLUSHED: Final = b"f"
_NUMBER: Final = struct.Struct("<Q")
_SECONDS_MAX: Final = 10.0
"""Time after which nobody waits for a flush any more."""


class _Flush:
    """A flush of this worker's: those who have not answered."""

    __slots__ = ("left", "then", "until")

    def __init__(self, left: set[Peer], then: Callable[[], None], until: float) -> None:
        self.left = left
        self.then = then
        self.until = until


class Flushing:
    """The flushes of one worker. wanted: the interest of its host. lacks: whether a host that is waited for does not
    know a number of that.
    """

    def __init__(self, context: Context, peering: Peering, wanted: Publisher, lacks: Callable[[int], bool]) -> None:
        self._context = context
        self._router = context.router
        self._peering = peering
        self._wanted = wanted
        self._lacks = lacks
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Flush] = {}
        self._waiting: list[tuple[int, float, Callable[[], None]]] = []
        """(number of the interest, until when it is waited for, what is called then)."""

    def flush(self, then: Callable[[], None]) -> None:
        """Call `then` when it has all arrived."""
        number = next(self._numbers)
        context = self._context
        until = self._now() + _SECONDS_MAX
        self._asked[number] = _Flush({context.own, *context.siblings}, then, until)
        for peer in context.siblings:
            self._router.peers.tell(peer, FLUSH, _NUMBER.pack(number))
        self._rails(partial(self._answered, context.own, number))

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
        (number,) = _NUMBER.unpack(payload)
        if kind == FLUSH:
            self._rails(lambda: self._router.peers.tell(peer, FLUSHED, payload))
        else:
            self._answered(peer, number)

    def _answered(self, peer: Peer, number: int) -> None:
        flush = self._asked.get(number)
        if flush is not None:
            flush.left.discard(peer)
            if not flush.left:
                del self._asked[number]
                flush.then()
