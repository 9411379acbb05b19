"""Giving room back to the disk.

What is deleted in LevelDB leaves the disk when its table is compacted. What lives shortly is dropped by LevelDB itself
when its newest tables are merged: to compact it before that would only write all else once more. So a stretch of the
log in which much was deleted *rests* first: until so much was written that LevelDB has merged those tables, or hardly
anything is written any more, or it has rested for long enough. Then what it takes on the disk is looked up. If that is
worth it, and a good part of it was deleted, the stretch is compacted, in a thread of its own: commits go on meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass

import plyvel

from leveldb_store.engine.database import Database
from leveldb_store.format import schema

WORTH_BYTES_MIN = 16 << 20  # deleted, before a compaction is thought of
URGENT_BYTES_MIN = 1 << 20  # ... while the disk is full
WORTH_SHARE = 4  # ... and that must be at least one in so many of the bytes that it has to read
LEFT_BYTES_MIN = 4 << 20  # on the disk, of a stretch: less is what LevelDB leaves anyway
MERGED_BUFFERS = 6  # write buffers: LevelDB merges its newest tables when there are four
QUIET_SECONDS = 2.0  # in which not more than QUIET_BYTES are written: nobody minds a compaction
QUIET_BYTES = 1 << 20
REST_SECONDS_MAX = 30.0
LOOK_SECONDS = 1.0
PIECE_BYTES = 32 << 20  # compacted at once: a closing store waits for that at most


@dataclass(slots=True)
class Stretch:
    """Blocks that were deleted, and others between them."""

    bytes: int = 0
    """Of those that were deleted."""
    first: int = 0
    last: int = 0

    def add(self, first: int, last: int, size: int) -> None:
        """So much more was deleted, from here to there."""
        self.first = min(self.first, first) if self.first else first  # positions begin with 1
        self.last = max(self.last, last)
        self.bytes += size


class Compactor:
    """Compacts the blocks of one database. The writer's thread uses it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._fresh = Stretch()
        self._resting = Stretch()
        self._since = 0.0  # when it began to rest
        self._written = 0  # how much had been written then
        self._quiet_since = 0.0  # not more than QUIET_BYTES were written since
        self._quiet_written = 0  # how much had been written then
        self._begun = Stretch()  # what was begun last
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, block: int, size: int) -> None:
        """A block is being deleted, of about `size` bytes."""
        self._fresh.add(block, block, size)

    @property
    def waits(self) -> float | None:
        """Seconds until it should be looked at again, though nothing is written; None: there is no reason to."""
        return LOOK_SECONDS if self._fresh.bytes + self._resting.bytes >= WORTH_BYTES_MIN else None

    def look(self, written: int, is_urgent: bool = False) -> None:
        """Begin to compact, if it is time and worth it, and nothing is being compacted. `written`: bytes in all that
        the database was given. `is_urgent`: the disk is full.
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
                self._resting = Stretch()
            elif self._resting.bytes * WORTH_SHARE < left:
                self._rest(now, written)  # with what was deleted since
            else:
                self._begin(left)

    def again(self) -> None:
        """The database had an error: nobody can tell whether what was begun last has been done."""
        if self._begun.bytes:
            self._fresh.add(self._begun.first, self._begun.last, self._begun.bytes)
            self._begun = Stretch()

    def join(self) -> None:
        """Wait until nothing is being compacted: before the database is closed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _rest(self, now: float, written: int) -> None:
        fresh, self._fresh = self._fresh, Stretch()
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
        stretch = self._resting
        left: int = self._database.db.approximate_size(
            schema.block_key(stretch.first), schema.block_key(stretch.last + 1)
        )
        return left

    def _begin(self, left: int) -> None:
        self._begun, self._resting = self._resting, Stretch()
        self._stop.clear()
        arguments = (self._begun.first, self._begun.last + 1, left // PIECE_BYTES + 1)
        self._thread = threading.Thread(target=self._compact, args=arguments, name="store-compaction", daemon=True)
        self._thread.start()

    def _compact(self, first: int, last: int, pieces: int) -> None:
        piece = (last - first) // pieces + 1
        for begin in range(first, last, piece):
            if self._stop.is_set():
                return
            # what goes wrong in it is LevelDB's own to remember: the next write fails with it
            with contextlib.suppress(plyvel.Error):
                self._database.db.compact_range(
                    start=schema.block_key(begin), stop=schema.block_key(min(begin + piece, last))
                )
