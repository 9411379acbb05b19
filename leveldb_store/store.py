"""The store on disk: a LevelDB per worker, with the end of every index in memory.

One thread (the worker's loop) calls `LevelStore`; `leveldb_store.writer` has the other one, which writes the batches
that `leveldb_store.open_batch` has gathered. Appended messages are readable at once, because they stay in memory (the
*tail* of their index, `leveldb_store.indexes`) at least until they are durable; as long as there is room they stay
longer, so that sessions that are nearly in sync never read the disk. Older messages are read by
`leveldb_store.reading`.

Keys, values, and the possible states after a crash: docs/store.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import plyvel

from leveldb_store.archive.archive import Archive, DamageReporter, find
from leveldb_store.archive.archive import ArchiveOptions as ArchiveOptions
from leveldb_store.contract import DamagedStoreError, StoreError
from leveldb_store.engine.database import Database, DatabaseOptions, error_text
from leveldb_store.event_log import EventLog, EventTrimmer
from leveldb_store.format import schema
from leveldb_store.indexes import Indexes, IndexState
from leveldb_store.indexes import find as find_log
from leveldb_store.open_batch import OpenBatch
from leveldb_store.reading import Reader
from leveldb_store.writer import Writer
from pyx.core.work import STEP, spend
from pyx.protocol.message import Message
from pyx.storage.records import Block
from pyx.storage.stored import pack_block

TAIL_BYTES_MAX: Final = 32 << 20  # durable messages in memory, per worker
TAIL_MESSAGE_BYTES: Final = 200  # size of a message in addition to its content
TAIL_BLOCK_BYTES: Final = 300  # size of a block
EVENTS_BYTES_MAX: Final = 64 << 20  # events on the disk; then the oldest are deleted


class LevelStore:
    """Implements `leveldb_store.contract.Store` on a directory.

    `say` is called with one line when something is damaged or repaired, or when the disk refuses writes or recovers;
    also from the writer's thread. `strict`: a damaged database is not repaired; `repair`: it is repaired first, for
    that reason. Raises StoreError when the directory is in use, of another version, or beyond repair, DamagedStoreError
    where a repair may help.
    """

    immediate = False
    keeps = True

    def __init__(
        self,
        path: str | Path,
        *,
        fsync: bool = True,
        options: DatabaseOptions = DatabaseOptions(),  # noqa: B008  frozen
        tail_bytes_max: int = TAIL_BYTES_MAX,
        archive: ArchiveOptions = ArchiveOptions(),  # noqa: B008  frozen
        events_bytes_max: int = EVENTS_BYTES_MAX,
        strict: bool = False,
        repair: str | None = None,
        say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
    ) -> None:
        self._database = Database(Path(path), options, say, strict, repair)
        try:
            log = find_log(self._database)
            self._events = EventLog(self._database)
            reporter = DamageReporter(self._database.path, say)
            archived = find(self._database, reporter)
        except plyvel.CorruptionError as error:
            self._database.close()
            raise DamagedStoreError(error_text(error)) from None
        except (plyvel.Error, schema.SchemaError, ValueError) as error:
            self._database.close()
            raise StoreError(f"the store {path} is damaged: {error_text(error)}") from None
        self.unread = log.unread
        """(key, value, error) of unreadable records about indexes."""
        self.archive = Archive(self._database, archive, archived, reporter)
        self._trimmer = EventTrimmer(self._database, self._events, events_bytes_max)
        self._writer = Writer(self._database, self._trimmer, log.last_position, log.gone, self.archive.retention, say)
        self._reader = Reader(self._database, self._writer.deleted_up_to, say)
        self._batch = OpenBatch(self._database, self._writer, self._events, log.last_position, fsync)
        self.put, self.delete = self._batch.put, self._batch.delete
        self._indexes = Indexes(self._database, log, self._batch, self._reader, self._writer.deleted_up_to, say)
        self.names, self.read, self.backlog = self._indexes.names, self._indexes.read, self._indexes.backlog
        self.position_of_last = self._indexes.position_of_last
        self.trim, self.drop, self.forget = self._indexes.trim, self._indexes.drop, self._indexes.forget
        self._durable = 0
        self._tail_bytes_max = tail_bytes_max
        # blocks in tails: (last position, ticket, bytes, the indexes that list it)
        self._recent: deque[tuple[int, int, int, list[IndexState]]] = deque()
        self._recent_bytes = 0
        self._laid: list[IndexState] = []  # the indexes that list the block being appended, as far as known
        if self.archive.changes:
            for record, new in self.archive.changes:
                if new is None:
                    self._batch.records().delete(record)
                else:
                    self._batch.records().put(record, new)
            self._batch.hand_over()

    # ------------------------------------------------------------ writing

    @property
    def last_position(self) -> int:
        """Implements Store."""
        return self._batch.last_position

    def append(self, block: Block, most: int = 0) -> int:
        """Implements Store."""
        first = block.first
        is_begun = block.taken > 0
        parts = block.batches(most)
        batch = self._batch
        ticket = batch.ticket + 1
        records = batch.begin()
        if not is_begun:
            batch.last_position = max(batch.last_position, first + block.count - 1)
            if not parts:
                # they are not needed, but records may refer to their positions, which are never given out again
                records.put(schema.POSITION, schema.U64.pack(batch.last_position))
                return ticket
            packed = pack_block(block)
            records.put(schema.block_key(first), packed)
            batch.work.size += len(packed)
            batch.work.blocks += 1
            self._laid = []
        self._laid += self._indexes.append(parts, first, block.indexes)
        batch.is_partial = block.left > 0
        if batch.is_partial:
            return ticket
        size = block.bytes + TAIL_BLOCK_BYTES + TAIL_MESSAGE_BYTES * block.count
        self._recent.append((batch.last_position, ticket, size, self._laid))
        self._recent_bytes += size
        if self._recent_bytes > self._tail_bytes_max:
            self._shorten_tails()
        return ticket

    def append_archived(self) -> None:
        """Implements Store."""
        grown = self.archive.append(self._batch.ticket + 1, self.put)
        self._batch.work.archived |= grown

    def flush(self, sync: bool = True) -> int:
        """Implements Store."""
        return self._batch.flush(sync)

    def carry(self, counters: Callable[[], bytes]) -> None:
        """Implements Store."""
        self._batch.carry(counters)

    def record(self, number: int, event: bytes) -> None:
        """Implements Store."""
        self._events.put(number, event)

    def pass_on(self) -> None:
        """Implements Store."""
        self._batch.pass_on()

    @property
    def last_event(self) -> int:
        """Implements Store."""
        return self._events.last

    def events(self, after: int, bytes_max: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Implements Store. StoreError where they cannot be read."""
        try:
            return self._events.page(after, bytes_max)
        except (plyvel.Error, schema.SchemaError) as error:
            raise StoreError(f"the store {self._database.path} cannot be read: {error_text(error)}") from error

    def events_bytes(self) -> int:
        """Implements Store."""
        return self._trimmer.held

    def gather(self) -> Callable[[], None]:
        """Implements Store."""
        return self._writer.gather()

    def fileno(self) -> int:
        """Implements Store."""
        return self._writer.fileno()

    def collect(self) -> int:
        """Implements Store; StoreError if the writer has ended."""
        self._durable = self._writer.collect()
        self.archive.durable(self._durable)
        self._batch.go_on()
        return self._durable

    @property
    def failed(self) -> str | None:
        """Implements Store."""
        return self._writer.failed

    @property
    def full(self) -> str | None:
        """Implements Store."""
        return self._writer.failed or self._writer.full

    @property
    def unwritten_bytes(self) -> int:
        """See the contract."""
        return self._batch.unwritten

    def close(self) -> None:
        """Implements Store."""
        self._batch.close()
        self._writer.close()
        self._database.close()

    # ------------------------------------------------------------ reading

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Implements Store. StoreError where it cannot be read."""
        try:
            yield from self._database.scan(prefix)
        except plyvel.CorruptionError as error:
            raise DamagedStoreError(error_text(error)) from error
        except plyvel.Error as error:
            raise StoreError(f"the store {self._database.path} cannot be read: {error_text(error)}") from error

    def messages_at(self, positions: Iterable[int]) -> dict[int, Message]:
        """Implements Store, for messages on the disk."""
        return self._reader.messages(positions)

    def held(self) -> tuple[int, int]:
        """Implements Store; for the indexes used since the start."""
        return self._indexes.messages, self._indexes.bytes

    def reads(self) -> tuple[int, int, int]:
        """Implements Store."""
        return self._reader.blocks_read, self._reader.batches_shared, self._reader.blocks_left_out

    def tail_bytes(self) -> int:
        """Return the upper bound of the tails' size in memory."""
        return self._recent_bytes

    def _shorten_tails(self) -> None:
        # removes the oldest blocks from memory, if they are on the disk
        recent = self._recent
        while recent and self._recent_bytes > self._tail_bytes_max and recent[0][1] <= self._durable:
            last, _, size, logs = recent.popleft()
            self._recent_bytes -= size
            spend(len(logs) * STEP)
            for log in logs:
                log.tail.trim(last)
                log.tail_after = max(log.tail_after, last)
