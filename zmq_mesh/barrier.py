"""The barrier: a worker acknowledges a sibling's interest when everything that it sent before has arrived.

A SUBSCRIBE is answered when every sibling has acknowledged the new interest; then the owners of retained topics are
asked. A retained message that this worker routed before it knew of the interest goes to the owner of its topic alone.
If the question reached the owner before it, the subscriber would get the message neither live nor as a retained
message, although clients of this worker may have it already. So the acknowledgement waits until each sibling has
received everything that this worker had for it when the interest arrived, including entries that wait for the disk,
entries to be read back from a hand-off log, and entries that the tick has not submitted yet. A SUBSCRIBE that asks for
retained messages gives the interest another number (`Publisher.touch`) even if the siblings know the interest already.

Siblings that are away or gone are not waited for, and none for longer than link_silence_seconds_max.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Protocol

from pyx.core.peer import Peer
from pyx.core.work import STEP, spend

__all__ = ["Barrier", "HostsFirst"]


class PeerLink(Protocol):
    """What a link (`pyx.mesh.link`) does for the barrier."""

    def outstanding(self) -> int:
        """Return the last number that the peer has to receive; 0: it has all, or is not waited for."""

    def lacks(self, number: int) -> bool:
        """Whether the peer is waited for and has not received that number."""

    def acknowledge_interest(self, number: int) -> None:
        """Acknowledge the peer's interest up to this number, with the next message."""

    def flush(self, now: float) -> bool:
        """Send what is due."""


@dataclass(slots=True)
class _Waiting:
    """An acknowledgement that waits. `outstanding`: numbers by link; None: the tick has not submitted everything."""

    peer: Peer
    number: int
    until: float
    outstanding: dict[Peer, int] | None = None


class Barrier:
    """The acknowledgements of interest of one worker that wait, in the order in which the interest arrived."""

    def __init__(self, links: Mapping[Peer, PeerLink], seconds_max: float) -> None:
        self._links = links
        self._seconds_max = seconds_max
        self.waiting: Final[deque[_Waiting]] = deque()
        """Empty as a rule: callers look before they call. It is always the same object."""

    def interest_arrived(self, peer: Peer, number: int, now: float) -> None:
        """Note that interest of this peer has arrived, up to this number."""
        for each in self._of_this_tick():
            if each.peer == peer:
                each.number = number
                return
        self.waiting.append(_Waiting(peer, number, now + self._seconds_max))

    def forget(self, peer: Peer) -> None:
        """Note that the peer's incarnation is dead: nothing is acknowledged to it, nor has it to receive anything."""
        others = [each for each in self.waiting if each.peer != peer]
        self.waiting.clear()
        self.waiting.extend(others)
        for each in self.waiting:
            if each.outstanding is not None:
                each.outstanding.pop(peer, None)

    def submitted(self, now: float) -> None:
        """Note that links have everything that was routed until now. Their messages are flushed after this."""
        # one table for all: ticks may be many until a slow sibling has received it
        outstanding: dict[Peer, int] | None = None
        for each in self._of_this_tick():
            if outstanding is None:
                outstanding = {peer: last for peer, link in self._links.items() if (last := link.outstanding())}
            each.outstanding = outstanding
        self._acknowledge(now)

    def _of_this_tick(self) -> Iterator[_Waiting]:
        # at most one for each peer, at the end
        return takewhile(lambda each: each.outstanding is None, reversed(self.waiting))

    def check(self, now: float) -> None:
        """Acknowledge what has waited long enough: siblings may have received something, and time has passed."""
        for peer in self._acknowledge(now):
            self._links[peer].flush(now)

    def _acknowledge(self, now: float) -> set[Peer]:
        told: set[Peer] = set()
        while self.waiting and (now >= self.waiting[0].until or self._has_arrived(self.waiting[0])):
            spend(STEP)
            each = self.waiting.popleft()
            self._links[each.peer].acknowledge_interest(each.number)
            told.add(each.peer)
        return told

    def _has_arrived(self, waiting: _Waiting) -> bool:
        if waiting.outstanding is None:
            return False
        for peer, number in list(waiting.outstanding.items()):
            if not self._links[peer].lacks(number):
                del waiting.outstanding[peer]
        return not waiting.outstanding


class HostsFirst:
    """Before the barrier: other hosts have to know what the siblings' interest has changed in that of this host. Then
    what they had sent before has arrived here, and the barrier waits until siblings have it.

    Hosts that are away are not waited for, and none for longer than `seconds_max`.
    """

    def __init__(self, barrier: Barrier, seconds_max: float) -> None:
        self._barrier = barrier
        self._seconds_max = seconds_max
        self.number: Callable[[], int] = lambda: 0
        """Returns the number by which other hosts will know the interest of this one, as it is now."""
        self.lacks: Callable[[int], bool] = lambda _number: False
        """Whether a host that is waited for does not know that number."""
        self._first: dict[Peer, tuple[int, int, float]] = {}
        """By sibling: the number of its interest, that of this host's, and until when it may wait."""
        self._next: dict[Peer, int] = {}
        """The number of its interest that has arrived since."""

    def interest_arrived(self, peer: Peer, number: int, now: float) -> None:
        """As `Barrier.interest_arrived`."""
        if peer in self._first:
            self._next[peer] = number
            return
        hosts_number = self.number()
        if self.lacks(hosts_number):
            self._first[peer] = number, hosts_number, now + self._seconds_max
        else:
            self._barrier.interest_arrived(peer, number, now)

    def forget(self, peer: Peer) -> None:
        """As `Barrier.forget`."""
        self._first.pop(peer, None)
        self._next.pop(peer, None)
        self._barrier.forget(peer)

    def check(self, now: float) -> None:
        """Pass on what hosts know by now."""
        for peer, (number, hosts_number, until) in list(self._first.items()):
            spend(STEP)
            if now >= until or not self.lacks(hosts_number):
                del self._first[peer]
                self._barrier.interest_arrived(peer, number, now)
                if peer in self._next:
                    self.interest_arrived(peer, self._next.pop(peer), now)
