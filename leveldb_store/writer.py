"""The writer thread: group commit, and the deletion of records that are not needed any more.

The loop's thread hands over *work*: a closed batch with its ticket, or the names of records to delete. The thread takes
all queued work, writes it as one LevelDB batch with one fsync, and publishes the highest ticket. Meanwhile the next
batches gather: the slower the disk, the larger the commits. plyvel releases the GIL while it writes.

A disk error (full, I/O) stops the writer at that batch: `failed` has the error, no ticket becomes durable, the reserve
(`leveldb_store.engine.disk_reserve`) is released, and at once if there was one, else every RETRY_SECONDS, the database
is reopened and the same batch tried again (applying it twice has the effect of once: records are set and deleted, never
changed). `full` means that no new message should come: while there is little room and until the reserve exists again.
Any other error is ours: `collect` raises it in the loop, and the worker dies.

Deleting. An index's parts at or below its low-water mark are deleted, and for each the count of its block is
decremented: the number of indexes that still have a part in it. A block that no index needs is deleted. The initial
count of a block is in its parts; it is a record of its own only between the deletion of its first part and of its last.
It is written in the same batch as the deletions that it counts, and always before the next ones (with fsync), so that
no crash counts anything twice. So memory does not grow with the backlog, and no scan is needed to find what can be
deleted. Deletions are done in slices between commits, and take at most a third of the thread's time while commits wait.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import plyvel

from leveldb_store.archive.retention import Retention
from leveldb_store.contract import StoreError
from leveldb_store.engine.compaction import Compactor
from leveldb_store.engine.database import Database, WriteBatch, error_text
from leveldb_store.event_log import EventTrimmer
from leveldb_store.format import schema
from pyx.storage.stored import part_ends

RETRY_SECONDS = 0.5
TIDY_SECONDS = 0.5  # entries trimmed in that time are deleted together: mostly whole blocks
TIDY_PARTS = 500  # per slice: one to two milliseconds
TIDY_SHARE = 2  # a slice is followed by a pause of this multiple of its duration, while commits wait
COUNTS_MAX = 65_536  # cached counts of blocks
COMMIT_BYTES_MAX = 16 << 20  # batches written as one
LOOK_SECONDS = 0.5  # between two checks of the disk's room while something is written, or the disk is full
LOOK_BYTES = 4 << 20  # or bytes written between them
HIGHEST = 2**64 - 2


@dataclass(slots=True)
class Work:
    """One unit of work handed over by the loop's thread."""

    ticket: int = 0
    """0: nobody waits for it."""
    batch: WriteBatch | None = None
    size: int = 0
    """Approximate bytes of the batch."""
    events: WriteBatch | None = None
    """Events (`leveldb_store.event_log`), written with `batch`."""
    events_end: int = 0
    """Bytes of all events ever recorded, up to and including these."""
    is_synced: bool = False
    """Whether it counts as durable only when it is on the disk itself."""
    blocks: int = 0
    """Number of messages in the batch."""
    last_position: int = 0
    counters: bytes | None = None
    """The worker's counters when the batch was closed."""
    trimmed: dict[int, int] = field(default_factory=dict)
    """Index number -> everything at or before this position may be deleted."""
    dropped: list[tuple[int, int, int]] = field(default_factory=list)
    """(index number, from behind, up to and including)."""
    gone: list[int] = field(default_factory=list)
    """Numbers of indexes that are not needed any more."""
    archived: dict[int, int] = field(default_factory=dict)
    """Rule of the archive -> running bytes that this worker has archived by it."""


class Writer:
    """Does all writing to one database."""

    def __init__(
        self,
        database: Database,
        events: EventTrimmer,
        last_position: int,
        gone: list[int],
        retention: Retention,
        say: Callable[[str], None],
    ) -> None:
        self.failed: str | None = None
        """Why nothing becomes durable, or None."""
        self.full: str | None = None
        """Why no new message should come, or None."""
        self.commits = 0
        self.durable = 0
        self.deleted_up_to: dict[int, int] = {}
        """Index number -> parts that end at or before this position are deleted (as far as it was looked up)."""
        self._database = database
        self._say = say
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._gathers = False
        self._gathered: list[Work] = []
        self._stop = threading.Event()
        self._broken: BaseException | None = None
        self._trimmed: dict[int, int] = {}
        self._dropped: list[tuple[int, int, int]] = []
        self._gone = gone
        self._counts: dict[int, int] = {}
        self._deleted: set[bytes] = set()  # parts deleted in the present slice
        self._last_position = last_position
        self._block_bytes = 0.0  # size of a block, a moving average
        self._compactor = Compactor(database)
        self._retention = retention
        self._events = events
        self._next_tidy = 0.0
        self._next_look = 0.0
        self._written = 0  # bytes since then
        self._total = 0  # bytes in all
        self._handed_over = 0  # bytes; the loop's thread counts these, the writer's thread those that it is done with
        self._done = 0
        self._is_probe_due = False
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._guarded, name="store-writer", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ the loop's thread

    def hand_over(self, work: Work) -> None:
        """Queue work."""
        self._handed_over += work.size
        if self._gathers:
            self._gathered.append(work)
        else:
            self._queue.put(work)

    def gather(self) -> Callable[[], None]:
        """Queue no work any more before the returned function is called; see `contract.Store.gather`."""
        self._gathers = True
        return self._queue_gathered

    def _queue_gathered(self) -> None:
        if self._gathered:
            for work in self._gathered:
                self._queue.put(work)
            self._gathered.clear()

    @property
    def unwritten(self) -> int:
        """Bytes of the queued work that is not written yet."""
        return self._handed_over - self._done

    def fileno(self) -> int:
        """Return the descriptor that is readable when `durable`, `failed` or `full` have changed."""
        return self._event

    def collect(self) -> int:
        """Return the highest durable ticket."""
        try:  # noqa: SIM105  suppress() costs three frames, for each commit
            os.eventfd_read(self._event)
        except BlockingIOError:
            pass  # nothing was written since the last call
        if self._broken is not None:
            raise StoreError("the store's writer has ended") from self._broken
        return self.durable

    def close(self) -> None:
        """Write all queued work, unless the disk refuses, and end."""
        self._queue_gathered()
        self._gathers = False
        self._stop.set()
        self._queue.put(None)
        self._thread.join()
        self._compactor.join()
        self._retention.join()
        self._events.join()
        os.close(self._event)

    # ------------------------------------------------------------ the writer's thread

    def _guarded(self) -> None:
        try:
            self._look_at_room()
            while self._round():
                self._look_at_room()
        except BaseException as error:  # noqa: BLE001  collect raises it in the loop's thread
            self._broken = error
            os.eventfd_write(self._event, 1)

    def _round(self) -> bool:
        works, goes_on = self._take()
        for work in reversed(works):
            if work.counters is not None and work.batch is not None:
                work.batch.put(schema.COUNTERS, work.counters)
                break
        batches = [each.gathered for work in works for each in (work.batch, work.events) if each is not None]
        tidy = None
        now = time.monotonic()
        if goes_on and self._has_tidying() and now >= self._next_tidy:
            # the deletions are written with this commit; they were found in earlier commits
            tidy, is_all = self._slice_or_leave()
            spent = time.monotonic() - now
            self._next_tidy = now + spent + (TIDY_SECONDS if is_all else TIDY_SHARE * spent if batches else 0)
            if tidy is not None:
                batches.append(tidy)
        size = sum(work.size for work in works)
        removal = self._remove_archived(size) if goes_on else None
        if removal is not None:
            batches.append(removal)
        if self._is_probe_due and goes_on and not batches:
            # while the disk is full, an error of a compaction would only show at the next write, and none may come
            probe = self._database.db.write_batch()
            probe.put(schema.POSITION, schema.U64.pack(self._last_position))
            batches.append(probe)
        self._is_probe_due = False
        is_synced = tidy is not None or any(work.is_synced for work in works)
        if batches and not self._write(batches, size, is_synced):
            return False
        self._done += size
        self._tell_durable(works)
        for work in works:
            self._learn(work)
        self._retention.compact(self.full is not None)
        if batches and (pause := self._retention.pause(size)):
            self._stop.wait(pause)
        return goes_on

    def _remove_archived(self, written: int) -> plyvel.WriteBatch | None:
        now = time.monotonic()
        return self._retention.slice(now, written) if self._retention.wait(now) == 0 else None

    def _take(self) -> tuple[list[Work], bool]:
        # returns the queued work, waiting for the first; False: no more will come
        works: list[Work] = []
        size = 0
        wait = max(0.0, self._next_tidy - time.monotonic()) if self._has_tidying() else None
        looks = LOOK_SECONDS if self.full is not None else self._compactor.waits
        for other in (looks, self._events.waits, self._retention.wait(time.monotonic())):
            if other is not None:
                wait = other if wait is None else min(wait, other)
        most = self._retention.commit_bytes_max or COMMIT_BYTES_MAX
        try:
            work = self._queue.get(wait is None or wait > 0, wait)
            while True:
                if work is None:
                    return works, False
                works.append(work)
                size += work.size
                if size >= most:
                    break
                work = self._queue.get_nowait()
        except queue.Empty:
            pass
        return works, True

    def _learn(self, work: Work) -> None:
        # it is written: only now may the records that it names be deleted
        self._last_position = max(self._last_position, work.last_position)
        if work.blocks:
            self._block_bytes += (work.size / work.blocks - self._block_bytes) / 64
        if (work.trimmed or work.dropped or work.gone) and not self._has_tidying():
            self._next_tidy = max(self._next_tidy, time.monotonic() + TIDY_SECONDS)
        for number, up_to in work.trimmed.items():
            self._trimmed[number] = max(up_to, self._trimmed.get(number, 0))
        self._dropped += work.dropped
        self._gone += work.gone
        if work.archived:
            self._retention.learn(work.archived)
        if work.events is not None:
            self._events.written(work.events_end)

    def _tell_durable(self, works: list[Work]) -> None:
        # first of all that follows a write: the loop wakes up meanwhile
        for work in reversed(works):
            if work.ticket:
                self.durable = work.ticket
                os.eventfd_write(self._event, 1)
                return

    def _write(self, batches: list[plyvel.WriteBatch], size: int, fsync: bool) -> bool:
        # returns when it is written; False: stopped before
        room = self._database.reserve
        is_first = True
        while True:
            try:
                self._database.write(batches, fsync)
                self.commits += 1
                self._written += size
                self._total += size
                if self.failed is not None:
                    self._next_look = 0.0
                    self.failed = None
                    os.eventfd_write(self._event, 1)
                    self._say("the store writes again")
                return True
            except (plyvel.Error, OSError) as error:
                self._note_failure(error)
                why = error
            try:
                if not (room.release() and is_first) and self._stop.wait(RETRY_SECONDS):
                    return False
                is_first = False
                while not room.has(size):
                    if self._stop.wait(RETRY_SECONDS):
                        return False
                self._compactor.join()
                self._retention.join()
                self._events.join()
                self._database.reopen(why)
                room.keep_opening()
                self._compactor.again()
            except (plyvel.Error, OSError) as error:
                raise StoreError(f"the store cannot be opened anew after an error: {error_text(error)}") from error

    def _look_at_room(self) -> None:
        now = time.monotonic()
        if now < self._next_look and self._written < LOOK_BYTES:
            return
        self._next_look, self._written = now + LOOK_SECONDS, 0
        try:
            full = self._database.reserve.look()
        except OSError as error:
            full = f"the room on the disk cannot be told: {error_text(error)}"
        if full is not None:
            self._is_probe_due = True
        self._compactor.look(self._total, is_urgent=full is not None)
        if full is None:
            self._events.look()
        if (full is None) != (self.full is None):
            self.full = full
            os.eventfd_write(self._event, 1)

    def _note_failure(self, error: Exception) -> None:
        if self.failed is None:
            self.failed = f"{error_text(error)}, since {time.strftime('%Y-%m-%dT%H:%M:%S%z')}"
            os.eventfd_write(self._event, 1)
            self._say(f"the store cannot write: {error_text(error)}; it is tried again every {RETRY_SECONDS} s")

    # ------------------------------------------------------------ deleting

    def _has_tidying(self) -> bool:
        return bool(self._trimmed or self._dropped or self._gone) or self._events.is_due

    def _slice_or_leave(self) -> tuple[plyvel.WriteBatch | None, bool]:
        try:
            return self._slice()
        except plyvel.Error as error:
            # damage on the disk: some unneeded records stay, needed ones are not touched
            self._say(f"the store cannot find what to delete: {error_text(error)}; some room is not given back")
            self._trimmed.clear()
            self._dropped.clear()
            self._gone.clear()
            self._counts.clear()
            return None, True

    def _slice(self) -> tuple[plyvel.WriteBatch | None, bool]:
        # (the deletions of one slice, or None if there is nothing to delete; whether that was all)
        batch = self._database.db.write_batch()
        released: dict[int, list[int]] = {}
        self._deleted.clear()
        left = TIDY_PARTS
        while left > 0 and self._gone:
            number = self._gone[-1]
            left, last = self._delete_parts(batch, released, number, 0, HIGHEST, left)
            if left > 0:
                self._gone.pop()
                self._trimmed.pop(number, None)
                self._dropped = [each for each in self._dropped if each[0] != number]
                self.deleted_up_to.pop(number, None)
                for key in (schema.trimmed_key(number), schema.dropped_key(number), schema.gone_key(number)):
                    batch.delete(key)
        while left > 0 and self._dropped:
            number, after, up_to = self._dropped.pop()
            left, last = self._delete_parts(batch, released, number, after, up_to, left)
            if left <= 0:
                self._dropped.append((number, last, up_to))
        while left > 0 and self._trimmed:
            number = next(iter(self._trimmed))
            up_to = self._trimmed.pop(number)
            begin = self._deleted_up_to(number)
            left, last = self._delete_parts(batch, released, number, begin, up_to, left)
            if last > begin:
                self.deleted_up_to[number] = last
                batch.put(schema.trimmed_key(number), schema.U64.pack(last))
            if left <= 0:
                self._trimmed[number] = up_to
        if left > 0 and self._events.is_due:
            self._events.delete(batch, left)
        self._release(batch, released)
        return batch if batch.approximate_size() > 12 else None, not self._has_tidying()

    def _deleted_up_to(self, number: int) -> int:
        known = self.deleted_up_to.get(number)
        if known is None:
            value = self._database.db.get(schema.trimmed_key(number), verify_checksums=True)
            known = 0
            with contextlib.suppress(schema.SchemaError):  # deleted records are then searched for once more
                known = 0 if value is None else schema.decode_u64(value)
            self.deleted_up_to[number] = known
        return known

    def _delete_parts(
        self, batch: plyvel.WriteBatch, released: dict[int, list[int]], number: int, after: int, up_to: int, left: int
    ) -> tuple[int, int]:
        # parts that are wholly behind `after` and not behind `up_to`; (room left, last position deleted)
        last = after
        with self._database.db.iterator(
            start=schema.part_key(number, after + 1), stop=schema.part_key(number, up_to + 1), verify_checksums=True
        ) as parts:
            for key, value in parts:
                block = indexes = 0
                try:
                    end, block, indexes = part_ends(value, schema.key_position(key))
                except ValueError:  # the part is not needed; how many need its block is unknown, so that stays
                    end = schema.key_position(key)
                if end > up_to:
                    break
                last = end
                if key in self._deleted:
                    continue  # for another reason, in this slice: it is still in the database, and counted already
                self._deleted.add(key)
                batch.delete(key)
                known = released.get(block)
                if known is not None:
                    known[0] += 1
                elif block:
                    released[block] = [1, indexes]
                left -= 1
                if left <= 0:
                    break
        return left, last

    def _release(self, batch: plyvel.WriteBatch, released: dict[int, list[int]]) -> None:
        # decrements the counts of these blocks
        is_deleted = False
        for block, (fewer, indexes) in released.items():
            had = self._counts.pop(block, None)
            if had is None and fewer < indexes:
                value = self._database.db.get(schema.wanted_key(block), verify_checksums=True)
                with contextlib.suppress(schema.SchemaError):  # else: the parts' count, which is at least as high
                    had = None if value is None else schema.decode_u32(value)
            remain = (indexes if had is None else had) - fewer
            if remain > 0:
                batch.put(schema.wanted_key(block), schema.U32.pack(remain))
                self._counts[block] = remain
                continue
            is_deleted = True
            self._compactor.note(block, int(self._block_bytes))
            batch.delete(schema.block_key(block))
            if had is not None:
                batch.delete(schema.wanted_key(block))
        if is_deleted:
            batch.put(schema.POSITION, schema.U64.pack(self._last_position))
        while len(self._counts) > COUNTS_MAX:
            del self._counts[next(iter(self._counts))]
