"""Maps old log positions to new ones during repartitioning (`broker.repartition.stores`).

Old positions move with their blocks, which follow each other without gaps in the new log. So positions do not grow with
each change of the number of workers, whatever lies between the needed blocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

__all__ = ["Needed", "OldLog", "Segment"]

_OPEN: Final = 2**63  # from here on: not a position of a log, but "and everything later"
_HIGHEST: Final = 2**64 - 1


class Needed:
    """The needed part of an index: disjoint spans of positions, in order."""

    __slots__ = ("_behind", "_up_to")

    def __init__(self) -> None:
        self._behind: list[int] = []
        self._up_to: list[int] = []

    def add(self, behind: int, holes: Iterable[tuple[int, int]]) -> None:
        """Add the need for everything behind this position except the holes: (from behind, up to), in order."""
        for hole, up_to in holes:
            if hole > behind:
                self._add(behind, hole)
            behind = max(behind, up_to)
        if behind < _HIGHEST:
            self._add(behind, _HIGHEST)

    def _add(self, behind: int, up_to: int) -> None:
        first = bisect_left(self._up_to, behind)
        last = bisect_right(self._behind, up_to)
        if first < last:  # these merge with it
            behind = min(behind, self._behind[first])
            up_to = max(up_to, self._up_to[last - 1])
        self._behind[first:last] = [behind]
        self._up_to[first:last] = [up_to]

    def overlaps(self, first: int, last: int) -> bool:
        """Whether any of these positions is needed."""
        at = bisect_left(self._up_to, first)
        return at < len(self._up_to) and self._behind[at] < last


class OldLog:
    """The blocks of an old worker's log, in order of positions."""

    def __init__(self) -> None:
        self.firsts = array("Q")
        """Position of the first message, by block."""
        self.counts = array("I")
        """Number of messages, by block."""
        self.last = 0
        """The highest position that the worker knows, in a block or not."""

    def add(self, first: int, count: int) -> None:
        """Add the next block."""
        self.firsts.append(first)
        self.counts.append(count)

    def at(self, first: int) -> int | None:
        """Return the index of the block that begins at this position, or None."""
        at = bisect_left(self.firsts, first)
        return at if at < len(self.firsts) and self.firsts[at] == first else None


class Segment:
    """A segment of a new log, with the messages of one old worker: first the blocks needed there, then room for
    `expected` messages of hand-off logs.

    `listing`: for each block whether it is copied (not 0); None: no block is. `behind`: the position behind which the
    segment begins.
    """

    def __init__(self, log: OldLog, listing: array[int] | None, expected: int, behind: int) -> None:
        self._log = log
        self._listing = listing or array("I", bytes(4 * len(log.firsts)))
        self._behind = array("Q")  # for each block: the new position behind which it begins, or would
        self._start = behind
        for listed, count in zip(self._listing, log.counts, strict=True):
            self._behind.append(behind)
            behind += count if listed else 0
        self._log_end = behind
        self.end = behind + expected
        """The last position of the segment."""

    def place(self, position: int) -> int:
        """Return the new position for an old one; if its block is not copied, the last copied position before it."""
        log = self._log
        if position >= _OPEN:
            return position
        if position > log.last:
            return self._log_end + position - log.last
        at = bisect_right(log.firsts, position) - 1
        if at < 0:
            return self._start
        into = min(position - log.firsts[at] + 1, log.counts[at])
        return self._behind[at] + (into if self._listing[at] else 0)

    def place_of_message(self, position: int) -> int:
        """Return the new position of a message; 0: its block is not copied."""
        log = self._log
        at = bisect_right(log.firsts, position) - 1
        goes = at >= 0 and self._listing[at] and position < log.firsts[at] + log.counts[at]
        return self.place(position) if goes else 0
