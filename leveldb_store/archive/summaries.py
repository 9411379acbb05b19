"""Which topics a stretch of blocks may have: what lets a reader of a rare Topic Filter pass over the rest.

A stretch is blocks of one rule and origin that were written one behind the other by one process. When it is long enough
its summary goes into the batch of its last block. It says from which number on it speaks: behind the stretch before, so
that from one summary to the next no block has to be looked at. Blocks without one (the newest, those before a restart,
those of an older release) are looked at one by one; a summary of an older release speaks from its first message on, and
one block is looked at to find out that none lies before. A summary is a Bloom filter: it may say yes in vain, and never
no.
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
    """What one worker archives by one rule, since the last summary. `behind`: all that it has archived by it before has
    no higher number.
    """

    def __init__(self, behind: int) -> None:
        self._begin(behind)

    def _begin(self, behind: int) -> None:
        self._first = behind + 1
        self._blocks = self._bytes = 0
        self._bits = bytearray(schema.SUMMARY_BITS_BYTES)

    def add(self, last: int, records: bytes) -> bytes | None:
        """A block, with number `last` at its end. -> with the last one of the stretch the value of its summary."""
        note_topics(self._bits, records)
        self._blocks += 1
        self._bytes += len(records)
        if self._blocks < schema.SUMMARY_BLOCKS and self._bytes < schema.SUMMARY_STRETCH_BYTES:
            return None
        value = schema.encode_summary(self._first, self._blocks, self._bits)
        self._begin(last)
        return value


class Summaries:
    """Of one rule and origin, for a reader of these Topic Filters that goes on and on."""

    def __init__(self, db: plyvel.DB, rule: int, origin: int, after: int, topic_filters: Sequence[bytes]) -> None:
        self.until = 0
        """Up to this number blocks are to be looked at one by one."""
        self._filters = topic_filters
        self._records = Readable(
            db, schema.summary_key(rule, origin, after + 1), schema.summary_key(rule, origin, schema.HIGHEST)
        )
        self._first = self._last = 0
        self._is_wanted = True

    def over(self, at: int, most: int) -> tuple[int, int]:
        """What lies behind `at` is not wanted up to and with the number returned, by so many stretches, at most `most`.
        Sets `until` for what follows.
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
        """A block with these numbers, higher ones than before. Nothing up to and with the number returned is wanted; 0:
        nobody knows.
        """
        self._look(last)
        return 0 if self._is_wanted or first < self._first else self._last

    def _look(self, number: int) -> None:
        # at the first one that does not end before this number
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
        """Let go of them."""
        self._records.close()
