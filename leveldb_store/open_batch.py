"""The open batch: gathers records until `flush` closes it and the writer takes it.

While the disk refuses writes, only the last value of each record is kept: so the batch does not grow with time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leveldb_store.engine.database import Database, WriteBatch
from leveldb_store.event_log import EventLog
from leveldb_store.format import schema
from leveldb_store.writer import Work, Writer

__all__ = ["HeldRecords", "OpenBatch"]


class HeldRecords:
    """Records gathered while the disk refuses writes."""

    def __init__(self) -> None:
        self._records: dict[bytes, bytes | None] = {}
        self.size = 0
        """Bytes of keys and values."""

    def put(self, key: bytes, value: bytes) -> None:
        """As of a plyvel.WriteBatch."""
        self._set(key, value)

    def put_all(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Put these (key, value) records."""
        for key, value in records:
            self._set(key, value)

    def delete(self, key: bytes) -> None:
        """As of a plyvel.WriteBatch."""
        self._set(key, None)

    def _set(self, key: bytes, value: bytes | None) -> None:
        old = self._records.get(key)
        if old is None and key not in self._records:
            self.size += len(key)
        self.size += len(value or b"") - len(old or b"")
        self._records[key] = value

    def into(self, batch: WriteBatch) -> None:
        """Put all of it into `batch`."""
        for key, value in self._records.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)


class OpenBatch:
    """The open batch of one store. `last_position`: the highest given out; `fsync`: whether anything is synced."""

    def __init__(self, database: Database, writer: Writer, events: EventLog, last_position: int, fsync: bool) -> None:
        self._database = database
        self._writer = writer
        self._events = events
        self.last_position = last_position
        self.work = Work()
        """The work handed over with it."""
        self.ticket = 0
        """Ticket of the last batch that `flush` has closed."""
        self.is_partial = False
        """Whether a block is partly appended: `flush` waits for the rest."""
        self._is_due = False
        self._counters: Callable[[], bytes] | None = None
        self._held: HeldRecords | None = None  # the open batch while the disk refuses writes
        self._is_held = False  # it waits, with all else of `work`, until the disk accepts writes again
        self._fsync = fsync
        self._is_any_loose = False  # whether anything flushed may be lost in a power cut

    def begin(self) -> WriteBatch | HeldRecords:
        """Return the batch for records that `flush` must write."""
        self._is_due = True
        return self.records()

    def records(self) -> WriteBatch | HeldRecords:
        """Return the batch for records that do not require a flush."""
        if self._held is not None:
            return self._held
        batch = self.work.batch
        if batch is None:
            if self._writer.failed is not None:
                self._held = HeldRecords()
                return self._held
            batch = self.work.batch = self._database.batch()
        return batch

    @property
    def unwritten(self) -> int:
        """Bytes of keys and values in the open batch and in the writer's queue."""
        return self._writer.unwritten + (self.work.size if self._held is None else self._held.size)

    def put(self, key: bytes, value: bytes) -> None:
        """Implements Store."""
        self._is_due = True
        self.work.size += len(key) + len(value)
        self.records().put(key, value)

    def delete(self, key: bytes) -> None:
        """Implements Store."""
        self._is_due = True
        self.work.size += len(key)
        self.records().delete(key)

    def flush(self, sync: bool = True) -> int:
        """Implements Store."""
        if self._is_due and not self.is_partial:
            self._is_due = False
            self.ticket += 1
            self.work.ticket = self.ticket
            if self._counters is not None:
                self.work.counters = self._counters()
            self.work.is_synced |= self._fsync and sync
            self._is_any_loose |= not (self._fsync and sync)
            if self._is_any_loose:
                # a power cut may leave this batch and not those before it: even so, positions that records refer to are
                # never given out again
                self.records().put(schema.POSITION, schema.U64.pack(self.last_position))
            self._add_events()
            self.hand_over()
        return self.ticket

    def carry(self, counters: Callable[[], bytes]) -> None:
        """Implements Store. Of batches written as one, only the last one's is stored."""
        self._counters = counters

    def pass_on(self) -> None:
        """Implements Store. Synced like everything else: of unsynced records a power cut may leave the later ones,
        which looks like damage (`leveldb_store.engine.wal`).
        """
        if not self._is_due and self._add_events():
            self.work.is_synced |= self._fsync
            self.hand_over()

    def _add_events(self) -> bool:
        # to the open batch, unless earlier ones wait for the disk to accept writes again
        if self.work.events is None:
            self.work.events, self.work.events_end = self._events.take(), self._events.end
        return self.work.events is not None

    def hand_over(self, at_once: bool = False) -> None:
        """Pass the batch to the writer, once the disk accepts writes (`at_once`: regardless), and open another one."""
        self.work.last_position = self.last_position
        if self.work.batch is None and self._writer.failed is not None and not at_once:
            self._is_held = True
            return
        if self._held is not None:
            self.work.batch = self._database.batch()
            self._held.into(self.work.batch)
            self.work.size = self._held.size
            self._held = None
        self._is_held = False
        self._writer.hand_over(self.work)
        self.work = Work()

    def hand_over_own(self) -> None:
        """Write records that nobody waits for, with the tick's batch, or at once if there is none."""
        if not self._is_due:
            self.hand_over()

    def go_on(self) -> None:
        """Hand over what was held back, now that the disk may accept writes again, unless `flush` does it."""
        if self._is_held and not self._is_due:
            self.hand_over()

    def close(self) -> None:
        """Hand over everything held back."""
        if self._is_due:
            self.flush()
        self.pass_on()
        if self._is_held:
            self.hand_over(at_once=True)
