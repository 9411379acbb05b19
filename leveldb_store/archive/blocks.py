"""Reading of sequences of blocks in order, with gaps where some cannot be read.

A reader must learn of a gap before it gets anything behind it. So a page ends before a gap, and the request for the
next page raises `FallenBehind`, unless the reader knows of the gap.
"""

from __future__ import annotations

import plyvel

from leveldb_store.archive.ends import DamageReporter
from leveldb_store.archive.summaries import Summaries
from leveldb_store.engine.readable import Readable
from leveldb_store.format import archive_schema as schema
from leveldb_store.format.archive_schema import HIGHEST
from pyx.delivery.archived import check, concerns, place_of

__all__ = ["ArchivedBlocks", "load"]

_PASSED_MAX = 512  # consecutive stretches: some milliseconds
_DAMAGED_MAX = 100_000  # keys remembered; further ones are found anew each time


class ArchivedBlocks:
    """The blocks of one rule and origin behind number `after`, up to number `last`. The next block is known by its
    head; those before it are loaded.
    """

    def __init__(
        self,
        db: plyvel.DB,
        rule: int,
        origin: int,
        after: int,
        last: int,
        damaged: set[bytes],
        reporter: DamageReporter,
    ) -> None:
        self.loaded: list[bytes] = []
        self.begin = after + 1
        """Number of the first message of the next block, or of the unreadable range before it; HIGHEST: there is
        none.
        """
        self.gap = 0
        """Everything before the next block up to this number is unreadable; 0: nothing."""
        self.summaries: Summaries | None = None
        """The summaries by which blocks are skipped."""
        self.is_halted = False
        """Whether so many stretches were skipped that the page should end: nothing before `begin` is wanted."""
        self._keys: list[tuple[bytes, int]] = []
        """The loaded blocks; and the number behind which each begins."""
        self._last = last
        self._after = after
        self._at = 0
        """The last number of the block examined."""
        self._damaged = damaged
        self._reporter = reporter
        self._key = self._value = b""
        self._behind = 0
        """The last number before the next block."""
        self._records = Readable(
            db, schema.block_key(rule, origin, after + 1), schema.block_key(rule, origin, last) + b"\0"
        )
        self._name = schema.block_key(rule, origin, after)
        self._sequence = rule, origin

    def load(self, levels: set[bytes] | None) -> int:
        """Load the next block, unless it has none of these first levels; return its bytes."""
        value = self._value
        if levels is None or concerns(value, levels):
            self.loaded.append(value)
            self._keys.append((self._key, self._behind))
        self.look()
        return len(value)

    def look(self) -> None:
        """Examine the next block."""
        self.gap = passed = 0
        self.is_halted = False
        begin = max(self._at, self._after) + 1
        while True:
            if self.summaries is not None and self._at >= self.summaries.until:
                at = max(self._at, self._after)
                unwanted, count = self.summaries.over(at, max(1, _PASSED_MAX - passed))
                if count and self._pass(unwanted, passed := passed + count):
                    return
            key, value = self._records.next()
            if self._records.error is not None:
                self._reporter(self._name, "what follows cannot be read", self._records.error)
                self.gap = max(self._at, self._after)
            if not key:
                if self.gap:
                    self.gap = self._last
                self.begin = begin if self.gap else HIGHEST
                self._value = b""
                return
            self._name = key
            behind = self._at
            try:
                self._at, first = place_of(key, value, behind)
                if key in self._damaged:
                    raise ValueError("a message is damaged")
            except ValueError as error:
                self._reporter(key, "a block", error)
                if len(key) == schema.BLOCK_KEY_BYTES:
                    self._at = schema.split_block(key)[2]
                self.gap = self._at
                continue
            if self.summaries is not None and (unwanted := self.summaries.behind(first, self._at)):
                if self._pass(unwanted, passed := passed + 1):
                    return
                continue
            if self.gap:
                self.gap = first - 1
            self._key, self._value, self._behind = key, value, behind
            self.begin = begin if self.gap else first
            return

    def _pass(self, unwanted: int, passed: int) -> bool:
        # nothing up to there is wanted. True: the page should end, after so many stretches
        self._at = unwanted
        if passed >= _PASSED_MAX and not self.gap:
            self.is_halted = True
            self.begin = min(unwanted, self._last) + 1  # nothing is known about blocks that became durable since
            self._value = b""
            return True
        self._records.seek(schema.block_key(*self._sequence, unwanted + 1))
        return False

    @property
    def is_over(self) -> bool:
        """Whether there is no next block; an unreadable range may be left."""
        return not self._value

    def check(self) -> None:
        """Find the damaged blocks among the loaded ones."""
        for (key, behind), value in zip(self._keys, self.loaded, strict=True):
            try:
                check(value, behind, schema.split_block(key)[2])
            except ValueError as error:
                self._reporter(key, "a block", error)
                if len(self._damaged) >= _DAMAGED_MAX:
                    self._damaged.clear()
                self._damaged.add(key)

    def close(self) -> None:
        """Close the iterators."""
        self._records.close()
        if self.summaries is not None:
            self.summaries.close()


def load(
    sequences: list[ArchivedBlocks], after: int, last: int, bytes_max: int, levels: set[bytes] | None
) -> tuple[int, bool]:
    """Load blocks in the order in which they begin: blocks that begin behind the last one loaded are left to the next
    page, and so is everything behind a gap that is not at the beginning. Return (the number up to which the page is
    complete, whether nothing is behind it).
    """
    left = bytes_max
    while True:
        blocks = min(sequences, key=lambda each: each.begin)
        if blocks.begin == HIGHEST:
            return last, True
        if blocks.begin > after + 1 and (left <= 0 or blocks.gap or blocks.is_halted):
            return blocks.begin - 1, False
        if blocks.is_over:
            blocks.begin = HIGHEST
        else:
            left -= blocks.load(levels)
