"""Summaries of the topics in a stretch of blocks, which let a reader of a rare Topic Filter skip the others.

A stretch consists of blocks of one rule and origin that one process has written one after the other. When it is long
enough, its summary goes into the batch of its last block. It has the number at which it begins: behind the previous
stretch, so that no block between two summaries has to be examined. Blocks without one (the newest, those before a
restart, those of an older release) are examined one by one; a summary of an older release begins at its first message,
and one block is examined to find out that none is before it. A summary is a Bloom filter: it may match in vain, and
never misses a topic.
"""

from __future__ import annotations

from collections.abc import Sequence

import plyvel

from leveldb_store.engine.readable import Readable
from leveldb_store.format import archive_schema as schema
from leveldb_store.format.schema import SchemaError
from pyx.delivery.archived import may_match, note_topics

__all__ = ["Stretch", "Summaries"]


class Stretch:
    """The blocks that one worker archives by one rule, since the last summary. `behind`: the highest number archived by
    it before.
    """

    def __init__(self, behind: int) -> None:
        self._begin(behind)

    def _begin(self, behind: int) -> None:
        self._first = behind + 1
        self._blocks = self._bytes = 0
        self._bits = bytearray(schema.SUMMARY_BITS_BYTES)

    def add(self, last: int, block: bytes) -> bytes | None:
        """Add a block with number `last` at its end; return the summary's value with the last block of the stretch."""
        note_topics(self._bits, block)
        self._blocks += 1
        self._bytes += len(block)
        if self._blocks < schema.SUMMARY_BLOCKS and self._bytes < schema.SUMMARY_STRETCH_BYTES:
            return None
        value = schema.encode_summary(self._first, self._blocks, self._bits)
        self._begin(last)
        return value


class Summaries:
    """The summaries of one rule and origin, for a reader of these Topic Filters that moves forward."""

    def __init__(self, db: plyvel.DB, rule: int, origin: int, after: int, topic_filters: Sequence[bytes]) -> None:
        self.until = 0
        """Up to this number blocks must be examined one by one."""
        self._filters = topic_filters
        self._records = Readable(
            db, schema.summary_key(rule, origin, after + 1), schema.summary_key(rule, origin, schema.HIGHEST)
        )
        self._first = self._last = 0
        self._is_wanted = True

    def over(self, at: int, most: int) -> tuple[int, int]:
        """Return (the number up to which nothing behind `at` is wanted, the stretches skipped, at most `most`). Sets
        `until` for the blocks after that.
        """
        passed = 0
        while passed < most:
            self._look(at + 1)
            if self._is_wanted or self._first > at + 1:
                break
            at = self._last
            passed += 1
        self.until = self._last if self._is_wanted else max(at, self._first - 1)
        return at, passed

    def behind(self, first: int, last: int) -> int:
        """Skip for a block with these numbers, higher than before: return the number up to which nothing is wanted; 0:
        unknown.
        """
        self._look(last)
        return 0 if self._is_wanted or first < self._first else self._last

    def _look(self, number: int) -> None:
        # at the first one that ends at or behind this number
        while self._last < number:
            key, value = self._records.next()
            if not key:
                self._last, self._is_wanted = schema.HIGHEST, True
                break
            try:
                self._last = schema.split_block(key)[2]
                self._first, _, bits = schema.decode_summary(value)
                self._is_wanted = any(may_match(bits, each) for each in self._filters)
            except SchemaError:
                self._is_wanted = True

    def close(self) -> None:
        """Close the iterators."""
        self._records.close()
