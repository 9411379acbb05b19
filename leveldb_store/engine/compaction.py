"""Compaction of deleted blocks, to release their disk space.

Deleted data leaves the disk when its table is compacted. LevelDB itself drops short-lived data when its newest tables
are merged: compacting earlier would only rewrite everything else once more. So a range of the log in which much was
deleted is not compacted at once. It *rests* until so much has been written that LevelDB has merged those tables, or
hardly anything is being written, or it has rested for long enough. Then its size on the disk is measured. If it is
worth it, and a good part of it was deleted, the range is compacted, in a thread of its own: commits go on meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass

import plyvel

from leveldb_store.engine.database import Database
from leveldb_store.format import schema

WORTH_BYTES_MIN = 16 << 20  # deleted bytes from which a compaction is considered
URGENT_BYTES_MIN = 1 << 20  # ... while the disk is full
WORTH_SHARE = 4  # ... and at least one in so many of the bytes that it has to read must be deleted
LEFT_BYTES_MIN = 4 << 20  # size of a range on the disk: LevelDB leaves that much anyway
MERGED_BUFFERS = 6  # write buffers: LevelDB merges its newest tables when there are four
QUIET_SECONDS = 2.0  # with at most QUIET_BYTES written: a compaction disturbs nobody
QUIET_BYTES = 1 << 20
REST_SECONDS_MAX = 30.0
LOOK_SECONDS = 1.0
PIECE_BYTES = 32 << 20  # compacted at once: closing the store waits for that at most


@dataclass(slots=True)
class BlockRange:
    """A range of blocks, of which some were deleted."""

    bytes: int = 0
    """Bytes of the deleted blocks."""
    first: int = 0
    last: int = 0

    def add(self, first: int, last: int, size: int) -> None:
        """Add a deleted range."""
        self.first = min(self.first, first) if self.first else first  # positions begin with 1
        self.last = max(self.last, last)
        self.bytes += size


class Compactor:
    """Compacts the blocks of one database. Used by the writer's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._fresh = BlockRange()
        self._resting = BlockRange()
        self._since = 0.0  # when it began to rest
        self._written = 0  # bytes written until then
        self._quiet_since = 0.0  # at most QUIET_BYTES were written since
        self._quiet_written = 0  # bytes written until then
        self._begun = BlockRange()  # the last compaction begun
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, block: int, size: int) -> None:
        """Note that a block of about `size` bytes is being deleted."""
        self._fresh.add(block, block, size)

    @property
    def waits(self) -> float | None:
        """Return the seconds until `look` should be called even if nothing is written; None: not at all."""
        return LOOK_SECONDS if self._fresh.bytes + self._resting.bytes >= WORTH_BYTES_MIN else None

    def look(self, written: int, is_urgent: bool = False) -> None:
        """Begin a compaction, if it is due and worth it, and none is running. `written`: bytes written to the database
        in all. `is_urgent`: the disk is full.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        now = time.monotonic()
        if written - self._quiet_written > QUIET_BYTES:
            self._quiet_since, self._quiet_written = now, written
        if is_urgent:
            self._rest(now, written)
            if self._resting.bytes >= URGENT_BYTES_MIN:
                self._begin(self._left())
        elif not self._resting.bytes:
            if self._fresh.bytes >= WORTH_BYTES_MIN:
                self._rest(now, written)
        elif self._has_rested(now, written):
            left = self._left()
            if left < LEFT_BYTES_MIN:
                self._resting = BlockRange()
            elif self._resting.bytes * WORTH_SHARE < left:
                self._rest(now, written)  # together with later deletions
            else:
                self._begin(left)

    def again(self) -> None:
        """Repeat the last compaction after an error of the database, because it may not have been done."""
        if self._begun.bytes:
            self._fresh.add(self._begun.first, self._begun.last, self._begun.bytes)
            self._begun = BlockRange()

    def join(self) -> None:
        """Wait until no compaction is running: before the database is closed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _rest(self, now: float, written: int) -> None:
        fresh, self._fresh = self._fresh, BlockRange()
        if fresh.bytes:
            self._resting.add(fresh.first, fresh.last, fresh.bytes)
        self._since, self._written = now, written

    def _has_rested(self, now: float, written: int) -> bool:
        return (
            written - self._written >= MERGED_BUFFERS * self._database.write_buffer_bytes
            or now - self._since >= REST_SECONDS_MAX
            or now - max(self._since, self._quiet_since) >= QUIET_SECONDS
        )

    def _left(self) -> int:
        blocks = self._resting
        left: int = self._database.db.approximate_size(
            schema.block_key(blocks.first), schema.block_key(blocks.last + 1)
        )
        return left

    def _begin(self, left: int) -> None:
        self._begun, self._resting = self._resting, BlockRange()
        self._stop.clear()
        arguments = (self._begun.first, self._begun.last + 1, left // PIECE_BYTES + 1)
        self._thread = threading.Thread(target=self._compact, args=arguments, name="store-compaction", daemon=True)
        self._thread.start()

    def _compact(self, first: int, last: int, pieces: int) -> None:
        piece = (last - first) // pieces + 1
        for begin in range(first, last, piece):
            if self._stop.is_set():
                return
            # LevelDB itself remembers an error: the next write fails with it
            with contextlib.suppress(plyvel.Error):
                self._database.db.compact_range(
                    start=schema.block_key(begin), stop=schema.block_key(min(begin + piece, last))
                )
