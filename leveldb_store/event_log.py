"""Events on the disk (family E): appended by the loop's thread, deleted from the front by the writer's.

Nobody waits for an event. Recorded events gather in a write batch of their own, which is written with the next batch of
the store; without one, by `EventLog.take`, which the loop calls once a second. So an event costs no commit, and no
answer to a client waits for one.

Their size in the store is bounded: an event has the number of bytes recorded before it, so the size is a subtraction,
after a crash, too, and nothing has to be counted at a start. `EventTrimmer` deletes a sixteenth of the bound when it is
exceeded, in slices between commits. A record of its own has the last deleted number, because LevelDB walks over deleted
keys one by one. When an eighth of the bound was deleted, its tables are compacted, in a thread: only then is the space
released.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final

import plyvel

from leveldb_store.engine.database import Database, WriteBatch
from leveldb_store.engine.readable import Readable, last_of, readable
from leveldb_store.format import schema
from leveldb_store.format.events import KEY_BYTES, event_key, key_number, split_event

__all__ = ["EventLog", "EventTrimmer"]

FREED_SHARE: Final = 16  # fraction of the bound deleted at once, so that not each event deletes one
COMPACTED_SHARE: Final = 8  # fraction of the bound worth a compaction
PAGE_EVENTS_MAX: Final = 256
LOOK_SECONDS: Final = 1.0
HIGHEST: Final = 2**64 - 1


class EventLog:
    """The loop's side of the events. Unreadable ones are skipped."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.deleted = self._find_deleted()
        """Number of the last deleted event."""
        self.last = self.deleted
        """The highest number."""
        self.begin = self.end = 0
        """Running bytes before the first existing event, and with the last one."""
        key, value = last_of(database.db, schema.EVENT, _BEHIND)
        behind = 0
        while key:  # of damaged events only the bytes are known
            behind += len(key) + len(value)
            with contextlib.suppress(schema.SchemaError):
                self.last = max(self.last, key_number(key))
                self.begin = self.end = split_event(value)[0] + behind
                break
            key, value = last_of(database.db, schema.EVENT, key)
        for _, value in readable(database.db, event_key(self.deleted + 1), _BEHIND):
            with contextlib.suppress(schema.SchemaError):
                self.begin = min(split_event(value)[0], self.end)
                break
        self._batch: WriteBatch | None = None

    def _find_deleted(self) -> int:
        with contextlib.suppress(schema.SchemaError, plyvel.CorruptionError):
            value = self._database.get(schema.EVENTS_DELETED)
            return 0 if value is None else schema.decode_u64(value)
        return 0  # the first existing event is found all the same, only later

    def put(self, number: int, event: bytes) -> None:
        """Record an event. `event`: its value without the count of bytes before it."""
        batch = self._batch
        if batch is None:
            batch = self._batch = self._database.batch()
        value = schema.U64.pack(self.end) + event
        batch.put(event_key(number), value)
        self.end += KEY_BYTES + len(value)
        self.last = number

    def take(self) -> WriteBatch | None:
        """Return recorded events that were not taken yet, up to `end`; None: there are none."""
        batch, self._batch = self._batch, None
        return batch

    def page(self, after: int, bytes_max: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Return (number, value) of events behind number `after`, oldest first: at least one if there is one, up to
        `bytes_max` and PAGE_EVENTS_MAX; and whether these are all written ones.
        """
        events: list[tuple[int, bytes]] = []
        left = bytes_max
        start = event_key(min(max(after, self.deleted) + 1, HIGHEST))
        with self._database.lock, contextlib.closing(readable(self._database.db, start, _BEHIND)) as found:
            for key, value in found:
                if len(key) != KEY_BYTES:
                    continue
                left -= len(key) + len(value)
                if events and (left < 0 or len(events) == PAGE_EVENTS_MAX):
                    return events, False
                events.append((key_number(key), value))
        return events, True


class EventTrimmer:
    """The writer's side of the events: keeps their size below `bytes_max`."""

    def __init__(self, database: Database, log: EventLog, bytes_max: int) -> None:
        self._database = database
        self._log = log
        self._bytes_max = bytes_max
        self._begin = log.begin
        self._end = log.end  # running bytes with the last written event
        self._deleted = log.deleted
        self._is_broken = False  # some cannot be read: a compaction ends there with an error
        self._freed = 0  # bytes deleted since the last compaction
        self._target = 0  # running bytes up to which a deletion in progress goes
        self._thread: threading.Thread | None = None

    @property
    def held(self) -> int:
        """Return the bytes that are written and not deleted."""
        return self._end - self._begin

    def written(self, end: int) -> None:
        """Note that everything recorded up to there is written."""
        self._end = end

    @property
    def is_due(self) -> bool:
        """Whether events must be deleted."""
        return self._target > self._begin or self.held > self._bytes_max

    def delete(self, batch: plyvel.WriteBatch, left: int) -> int:
        """Put the deletion of at most `left` events into the batch; return how many more are allowed. plyvel.Error."""
        self._target = max(self._target, self._end - self._bytes_max + self._bytes_max // FREED_SHARE)
        begin = self._begin
        records = Readable(self._database.db, event_key(self._deleted + 1), _BEHIND)
        with contextlib.closing(records):
            while True:
                key, value = records.next()
                self._is_broken |= records.error is not None
                if not key:
                    self._begin = self._end  # later events are not written yet
                    break
                # a damaged event, or one with impossible counts, is deleted with those before it
                before = int.from_bytes(value[: schema.U64.size], "little")
                is_damaged = len(value) < schema.U64.size or not begin <= before <= self._end
                if left <= 0 or (before >= self._target and not is_damaged):
                    self._begin = max(begin, min(before, self._end))
                    break
                batch.delete(key)
                left -= 1
                if len(key) == KEY_BYTES:
                    self._deleted = self._log.deleted = key_number(key)
        if self._begin >= self._target:
            self._target = 0
        batch.put(schema.EVENTS_DELETED, schema.U64.pack(self._deleted))
        self._freed += self._begin - begin
        return left

    @property
    def waits(self) -> float | None:
        """Return the seconds until `look` should be called even if nothing is written; None: not at all."""
        return LOOK_SECONDS if self._freed >= self._bytes_max // COMPACTED_SHARE else None

    def look(self) -> None:
        """Release the space, if it is worth it, and no compaction is running."""
        if self.waits is None or (self._thread is not None and self._thread.is_alive()):
            return
        self._freed = 0
        if self._is_broken:
            self._is_broken = False
            return
        self._thread = threading.Thread(
            target=self._compact, args=(self._deleted,), name="store-events-compaction", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Wait until no compaction is running: before the database is closed."""
        if self._thread is not None:
            self._thread.join()

    def _compact(self, up_to: int) -> None:
        # LevelDB itself remembers an error: the next write fails with it
        with contextlib.suppress(plyvel.Error):
            self._database.db.compact_range(start=event_key(0), stop=event_key(up_to))


_BEHIND: Final = schema.prefix_end(schema.EVENT)
