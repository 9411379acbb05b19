"""The store on disk: a LevelDB per worker, with the end of every index in memory.

One thread (the worker's loop) calls `LevelStore`; `leveldb_store.writer` has the other one, which writes. What is
appended is readable at once, because it stays in memory (the *tail* of its index) at least until it is durable; as long
as there is room it stays longer, so that sessions that are nearly in sync never read the disk. Older messages are read
by `leveldb_store.reading`.

Of an index three things are known: its running counts (messages and bytes of all that was ever appended), its low-water
mark (nobody needs what is at or before it) with the running counts there, and the *spans* behind it that nobody needs
(what sessions with full queues dropped). A backlog is a subtraction. All that is read from the disk when the index is
first used after the start: a start costs one key per index. Memory grows with the number of indexes, never with what
they hold.

The keys and values, and what a crash may leave of them: docs/store.md.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import plyvel

from leveldb_store.archive.archive import Archive, Said, find
from leveldb_store.archive.archive import Options as ArchiveOptions
from leveldb_store.contract import DamagedStoreError, StoreError
from leveldb_store.engine.database import Database, Options, WriteBatch, told
from leveldb_store.event_log import EventLog, EventTrimmer
from leveldb_store.format import schema
from leveldb_store.format.schema import Span
from leveldb_store.reading import Reader
from leveldb_store.writer import Work, Writer
from pyx.core.work import INDEXED, SOUGHT, STEP, spend
from pyx.protocol.message import Message
from pyx.storage.records import Batch, Block, Index
from pyx.storage.stored import block_messages, pack_block, pack_part, part_ends, part_running, without

TAIL_BYTES_MAX: Final = 32 << 20  # of messages in memory that are durable, for the worker
TAIL_MESSAGE_BYTES: Final = 200  # what a message costs beside its content
TAIL_BLOCK_BYTES: Final = 300  # what a block costs
EVENTS_BYTES_MAX: Final = 64 << 20  # of events on the disk; then the oldest are deleted
SPANS_MAX: Final = 4096  # dropped parts of an index that is not trimmed: each costs whenever the index is asked
BLOCK_POSITIONS_MAX: Final = 1 << 32  # a block counts its messages in 32 bits

T = TypeVar("T")


class Held:
    """What is to be written while the disk refuses: of each record its last value. So it does not grow with time."""

    def __init__(self) -> None:
        self._records: dict[bytes, bytes | None] = {}

    def put(self, key: bytes, value: bytes) -> None:
        """As of a plyvel.WriteBatch."""
        self._records[key] = value

    def delete(self, key: bytes) -> None:
        """As of a plyvel.WriteBatch."""
        self._records[key] = None

    def into(self, batch: WriteBatch) -> int:
        """Put all of it there; returns its bytes."""
        size = 0
        for key, value in self._records.items():
            size += len(key)
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
                size += len(value)
        return size


class IndexState:
    """One index: where it ends, where it begins, and its tail."""

    __slots__ = (
        "bytes",
        "last",
        "low",
        "low_bytes",
        "low_messages",
        "messages",
        "number",
        "spans",
        "tail",
        "tail_after",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.tail = Index()
        self.tail_after = 0  # everything behind this position is in the tail
        self.last = 0  # position of the last message
        self.messages = 0  # running counts up to and with it
        self.bytes = 0
        self.low = 0  # nobody needs what is at or before this position
        self.low_messages = 0  # running counts up to and with it
        self.low_bytes = 0
        self.spans: list[Span] = []  # rising; each begins at or behind `low`


class LevelStore:
    """Implements `leveldb_store.contract.Store` on a directory.

    `say` is given one line when something is damaged, repaired, refused by the disk or well again; the writer's thread
    calls it, too. `strict`: a damaged database is not repaired; `repair`: it is, first of all, for that reason. Raises
    StoreError when the directory is in use, of another version, or beyond repair, DamagedStoreError where a repair may
    help.
    """

    immediate = False
    keeps = True

    def __init__(
        self,
        path: str | Path,
        *,
        fsync: bool = True,
        options: Options = Options(),  # noqa: B008  frozen
        tail_bytes_max: int = TAIL_BYTES_MAX,
        archive: ArchiveOptions = ArchiveOptions(),  # noqa: B008  frozen
        events_bytes_max: int = EVENTS_BYTES_MAX,
        strict: bool = False,
        repair: str | None = None,
        say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
    ) -> None:
        self._database = Database(Path(path), options, say, strict, repair)
        self._say = say
        self.unread: list[tuple[bytes, bytes, str]] = []
        """(key, value, what is wrong) of records about indexes that nobody can read."""
        try:
            # number of an index that was not used since the start, or what is known of it
            self._logs: dict[bytes, IndexState | int] = {}
            self._next_number = 1 + self._find_numbers()
            gone = [schema.key_number(key) for key, _ in self._database.scan(schema.GONE)]
            self._next_number = max([self._next_number, *(1 + number for number in gone)])
            self.last_position = self._find_last_position()
            self._events = EventLog(self._database)
            said = Said(self._database.path, say)
            archived = find(self._database, said)
        except plyvel.CorruptionError as error:
            self._database.close()
            raise DamagedStoreError(told(error)) from None
        except (plyvel.Error, schema.SchemaError, ValueError) as error:
            self._database.close()
            raise StoreError(f"the store {path} is damaged: {told(error)}") from None
        self._work = Work()
        self._moment: Callable[[], bytes] | None = None
        self._held: Held | None = None  # the batch that is being gathered while the disk refuses
        self._is_held = False  # it waits, with all else of `_work`, until the disk takes something again
        self._is_flush_due = False
        self._ticket = 0
        self._durable = 0
        self.archive = Archive(self._database, archive, archived, said)
        self._trimmer = EventTrimmer(self._database, self._events, events_bytes_max)
        self._writer = Writer(self._database, self._trimmer, self.last_position, gone, self.archive.retention, say)
        self._reader = Reader(self._database, self._writer.deleted_up_to, say)
        self._fsync = fsync
        self._is_any_loose = False  # was anything flushed that a power cut may take away
        self._tail_bytes_max = tail_bytes_max
        self._messages = 0
        self._bytes = 0
        # blocks in tails: (last position, ticket, bytes, the logs that list it)
        self._recent: deque[tuple[int, int, int, list[IndexState]]] = deque()
        self._recent_bytes = 0
        self._laid: list[IndexState] = []  # the logs that list the block that is being appended, as far as it is
        self._is_partial = False  # some are still to come
        if self.archive.changes:
            for record, new in self.archive.changes:
                if new is None:
                    self._batch().delete(record)
                else:
                    self._batch().put(record, new)
            self._hand_over()

    # ------------------------------------------------------------ writing

    def append(self, block: Block, most: int = 0) -> int:
        """See the contract."""
        first = block.first
        is_begun = block.taken > 0
        batches = block.batches(most)
        ticket = self._ticket + 1
        self._is_flush_due = True
        batch = self._batch()
        if not is_begun:
            self.last_position = max(self.last_position, first + block.count - 1)
            if not batches:
                # nobody needs them any more, but their positions are never given again: records may name them
                batch.put(schema.POSITION, schema.U64.pack(self.last_position))
                return ticket
            packed = pack_block(block)
            batch.put(schema.block_key(first), packed)
            self._work.size += len(packed)
            self._work.blocks += 1
            self._laid = []
        indexes, logs = block.indexes, self._laid
        for name, added in batches:
            spend(4 * STEP)
            log = self._log(name) or self._new_index(name, batch)
            value, begin, end, size = pack_part(added, log.messages, log.bytes, first, indexes)
            batch.put(schema.part_key(log.number, begin), value)
            self._work.size += len(value)
            log.tail.extend(added)
            log.last = end
            log.messages += added.count
            log.bytes += size
            self._messages += added.count
            self._bytes += size
            logs.append(log)
        self._is_partial = block.left > 0
        if self._is_partial:
            return ticket
        size = block.bytes + TAIL_BLOCK_BYTES + TAIL_MESSAGE_BYTES * block.count
        self._recent.append((self.last_position, ticket, size, logs))
        self._recent_bytes += size
        if self._recent_bytes > self._tail_bytes_max:
            self._shorten_tails()
        return ticket

    def append_archived(self) -> None:
        """See the contract."""
        grown = self.archive.append(self._ticket + 1, self.put)
        self._work.archived |= grown

    def put(self, key: bytes, value: bytes) -> None:
        """See the contract."""
        self._is_flush_due = True
        self._work.size += len(key) + len(value)
        self._batch().put(key, value)

    def delete(self, key: bytes) -> None:
        """See the contract."""
        self._is_flush_due = True
        self._work.size += len(key)
        self._batch().delete(key)

    def flush(self, sync: bool = True) -> int:
        """See the contract."""
        if self._is_flush_due and not self._is_partial:
            self._is_flush_due = False
            self._ticket += 1
            self._work.ticket = self._ticket
            if self._moment is not None:
                self._work.moment = self._moment()
            self._work.is_synced |= self._fsync and sync
            self._is_any_loose |= not (self._fsync and sync)
            if self._is_any_loose:
                # a power cut may leave this batch and not those before it: positions that records name are never
                # given again all the same
                self._batch().put(schema.POSITION, schema.U64.pack(self.last_position))
            self._add_events()
            self._hand_over()
        return self._ticket

    def carry(self, moment: Callable[[], bytes]) -> None:
        """See the contract. Of batches that are written as one the last one's is written."""
        self._moment = moment

    def record(self, number: int, event: bytes) -> None:
        """See the contract."""
        self._events.put(number, event)

    def pass_on(self) -> None:
        """See the contract. As safe as all else: of records that nobody synced a power cut may leave the later ones,
        which looks like damage (`leveldb_store.engine.wal`).
        """
        if not self._is_flush_due and self._add_events():
            self._work.is_synced |= self._fsync
            self._hand_over()

    def _add_events(self) -> bool:
        # to what is being gathered, unless others wait there for the disk to take something again
        if self._work.events is None:
            self._work.events, self._work.events_end = self._events.take(), self._events.end
        return self._work.events is not None

    @property
    def last_event(self) -> int:
        """See the contract."""
        return self._events.last

    def events(self, after: int, bytes_max: int) -> tuple[list[tuple[int, bytes]], bool]:
        """See the contract. StoreError where they cannot be read."""
        try:
            return self._events.page(after, bytes_max)
        except (plyvel.Error, schema.SchemaError) as error:
            raise StoreError(f"the store {self._database.path} cannot be read: {told(error)}") from error

    def events_bytes(self) -> int:
        """See the contract."""
        return self._trimmer.held

    def fileno(self) -> int:
        """See the contract."""
        return self._writer.fileno()

    def collect(self) -> int:
        """See the contract; StoreError if the writer has ended."""
        self._durable = self._writer.collect()
        self.archive.durable(self._durable)
        if self._is_held and not self._is_flush_due:
            self._hand_over()
        return self._durable

    @property
    def failed(self) -> str | None:
        """See the contract."""
        return self._writer.failed

    @property
    def full(self) -> str | None:
        """See the contract."""
        return self._writer.failed or self._writer.full

    def close(self) -> None:
        """See the contract."""
        if self._is_flush_due:
            self.flush()
        self.pass_on()
        if self._is_held:
            self._hand_over(at_once=True)
        self._writer.close()
        self._database.close()

    # ------------------------------------------------------------ reading

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See the contract. StoreError where it cannot be read."""
        try:
            yield from self._database.scan(prefix)
        except plyvel.CorruptionError as error:
            raise DamagedStoreError(told(error)) from error
        except plyvel.Error as error:
            raise StoreError(f"the store {self._database.path} cannot be read: {told(error)}") from error

    def names(self) -> Iterable[bytes]:
        """See the contract."""
        return list(self._logs)

    def messages_at(self, positions: Iterable[int]) -> dict[int, Message]:
        """See the contract: of what is on the disk."""
        return self._reader.messages(positions)

    def read(self, index: bytes, after: int, bytes_max: int) -> Batch:
        """See the contract."""
        log = self._log(index)
        if log is None:
            return Batch()
        after = max(after, log.low)
        while True:
            spend(len(log.spans) * STEP // 8)
            for span in log.spans:
                if span.after <= after < span.up_to:
                    after = span.up_to
            if after >= log.tail_after:
                batch = log.tail.read(after, bytes_max)
                reached = log.last if not batch.truncated else batch.last
            else:
                batch, reached = self._reader.batch(log.number, after, log.tail_after, bytes_max, log.last)
            if log.spans:
                batch = without(batch, [(span.after, span.up_to) for span in log.spans])
            if batch.count or reached >= log.last:
                return batch
            # nothing that anybody needs, or nothing that can be read: on behind it
            after = reached if reached > after else log.tail_after

    def backlog(self, index: bytes, after: int) -> tuple[int, int]:
        """See the contract."""
        log = self._log(index)
        return (0, 0) if log is None else self._behind(log, after)

    def position_of_last(self, index: bytes, messages: int, bytes_max: int) -> int:
        """See the contract."""
        log = self._log(index)
        if log is None:
            return 0
        held, size = self._behind(log, log.low)
        if held <= messages and size <= bytes_max:
            return 0
        if log.low >= log.tail_after and not log.spans:
            return log.tail.position_of_last(messages, bytes_max)
        low, high = log.low, log.last
        while low < high:
            middle = (low + high) // 2
            held, size = self._behind(log, middle)
            if held <= messages and size <= bytes_max:
                high = middle
            else:
                low = middle + 1
        return low

    def held(self) -> tuple[int, int]:
        """See the contract; of the indexes that were used since the start."""
        return self._messages, self._bytes

    def reads(self) -> tuple[int, int, int]:
        """See the contract."""
        return self._reader.blocks_read, self._reader.batches_shared, self._reader.blocks_left_out

    def tail_bytes(self) -> int:
        """What the tails hold at most, with what a message costs in memory."""
        return self._recent_bytes

    # ------------------------------------------------------------ forgetting

    def trim(self, index: bytes, up_to: int) -> None:
        """See the contract."""
        log = self._log(index)
        if log is None:
            return
        up_to = min(up_to, log.last)  # an index in which nothing happens costs nothing
        if up_to <= log.low:
            return
        before = self._behind(log, log.low)
        for span in log.spans:
            if span.after <= up_to < span.up_to:
                up_to = span.up_to
        log.low_messages, log.low_bytes = self._running(log, up_to)
        log.low = up_to
        if log.spans and log.spans[0].after < up_to:
            self._set_spans(log, [span for span in log.spans if span.up_to > up_to])
        log.tail.trim(up_to)
        self._count(before, self._behind(log, log.low))
        self._work.trimmed[log.number] = up_to
        self._hand_over_own()

    def drop(self, index: bytes, after: int, up_to: int) -> None:
        """See the contract."""
        log = self._log(index)
        if log is None:
            return
        up_to = min(up_to, log.last)
        if after <= log.low:
            self.trim(index, up_to)
            return
        # one span with those that it touches
        first = bisect.bisect_left(log.spans, after, key=lambda span: span.up_to)
        last = bisect.bisect_right(log.spans, up_to, key=lambda span: span.after)
        touched = log.spans[first:last]
        begin, end = after, up_to
        if not touched and len(log.spans) >= SPANS_MAX:
            return
        if touched:
            begin, end = min(after, touched[0].after), max(up_to, touched[-1].up_to)
        known = sum(span.messages_up_to - span.messages_after for span in touched)
        here = self._running(log, begin)
        there = self._running(log, end)
        if there[0] - here[0] == known:
            return
        before = self._behind(log, log.low)
        self._set_spans(log, [*log.spans[:first], Span(begin, end, *here, *there), *log.spans[last:]])
        self._count(before, self._behind(log, log.low))
        if touched and touched[0].after == begin:
            begin = min(touched[0].up_to, end)  # up to there it is deleted already
        self._work.dropped.append((log.number, begin, end))
        self._hand_over_own()

    def forget(self, index: bytes) -> None:
        """See the contract."""
        found = self._logs.get(index)
        if found is None:
            return
        log = self._log(index)
        del self._logs[index]
        if log is not None:
            self._count(self._behind(log, log.low), (0, 0))
            log.tail = Index()
        number = found if isinstance(found, int) else found.number
        batch = self._batch()
        batch.delete(schema.name_key(index))
        batch.put(schema.gone_key(number), b"")
        self._work.gone.append(number)
        self._hand_over_own()

    # ------------------------------------------------------------ what is known of an index

    def _log(self, name: bytes) -> IndexState | None:
        found = self._logs.get(name)
        if isinstance(found, int):
            try:
                found = self._logs[name] = self._load(found)
            except plyvel.Error as error:
                raise StoreError(f"index {name!r} of {self._database.path} cannot be read: {told(error)}") from error
            self._count((0, 0), self._behind(found, found.low))
        return found

    def _new_index(self, name: bytes, batch: WriteBatch | Held) -> IndexState:
        log = self._logs[name] = IndexState(self._next_number)
        self._next_number += 1
        batch.put(schema.name_key(name), schema.U32.pack(log.number))
        # a power cut must not take the name away and leave what is behind it under a number that is given again
        self._work.is_synced = True
        return log

    def _load(self, number: int) -> IndexState:
        # from its first and last part; counts of what is deleted between cancel out
        log = IndexState(number)
        spend(2 * SOUGHT)
        log.low = self._known(schema.trimmed_key(number), self._low_of) or 0
        if log.low:
            self._writer.deleted_up_to.setdefault(number, log.low)
        log.spans = self._known(schema.dropped_key(number), self._spans_of) or []
        log.last = log.low
        last = self._reader.last_part(number)
        if last is not None:
            log.last = part_ends(last[1], last[0])[0]
            log.messages, log.bytes = part_running(last[1], last[0], log.last)
        if log.spans and log.spans[-1].up_to >= log.last:
            end = log.spans[-1]
            log.last, log.messages, log.bytes = end.up_to, end.messages_up_to, end.bytes_up_to
        log.tail_after = log.last
        first = self._reader.first_part(number, log.low)
        log.low_messages, log.low_bytes = log.messages, log.bytes
        if first is not None:
            log.low_messages, log.low_bytes = part_running(first[1], first[0], log.low)
        while log.spans and (log.spans[0].after <= log.low or first is None or log.spans[0].after < first[0]):
            span = log.spans.pop(0)
            if span.up_to > log.low:
                log.low, log.low_messages, log.low_bytes = span.up_to, span.messages_up_to, span.bytes_up_to
        for span in log.spans:
            self._work.dropped.append((number, span.after, span.up_to))
        return log

    def _known(self, key: bytes, decoded: Callable[[bytes], T]) -> T | None:
        # what a record says of an index. One that cannot be read is set aside, and is as good as none: what nobody
        # needs any more is met once more
        value = self._database.get(key)
        if value is None:
            return None
        try:
            return decoded(value)
        except schema.SchemaError as error:
            self._say(f"record {key!r} of the store {self._database.path} cannot be read ({error}): it is set aside")
            self.put(schema.set_aside_key(key), value)
            self.delete(key)
            return None

    def _low_of(self, value: bytes) -> int:
        low = schema.decode_u64(value)
        if low > self.last_position:
            raise schema.SchemaError(f"position {low} was never given")
        return low

    def _spans_of(self, value: bytes) -> list[Span]:
        spans, before = schema.decode_spans(value), 0
        for span in spans:
            if not before <= span.after <= span.up_to <= self.last_position:
                raise schema.SchemaError(f"a span from {span.after} to {span.up_to}")
            before = span.up_to
        return spans

    def _running(self, log: IndexState, position: int) -> tuple[int, int]:
        # (messages, bytes) of all that was ever appended up to and with `position`, which lies in no span
        if position >= log.last:
            return log.messages, log.bytes
        if position <= log.low:
            return log.low_messages, log.low_bytes
        if position >= log.tail_after:
            messages, size = log.tail.backlog(position)
            return log.messages - messages, log.bytes - size
        found = self._reader.running(log.number, position) or (0, 0)
        found = max(found, (log.low_messages, log.low_bytes))
        for span in log.spans:
            if span.up_to <= position:
                found = max(found, (span.messages_up_to, span.bytes_up_to))
        return found

    def _behind(self, log: IndexState, after: int) -> tuple[int, int]:
        # (messages, bytes) behind `after` that somebody may need
        if after >= log.last:
            return 0, 0
        spend(INDEXED + len(log.spans) * STEP // 4)
        for span in log.spans:
            if span.after <= after < span.up_to:
                after = span.up_to
        messages, size = self._running(log, max(after, log.low))
        messages, size = log.messages - messages, log.bytes - size
        for span in log.spans:
            if span.after >= after:
                messages -= span.messages_up_to - span.messages_after
                size -= span.bytes_up_to - span.bytes_after
        return messages, size

    def _set_spans(self, log: IndexState, spans: list[Span]) -> None:
        # The low-water mark goes with them, as a span from the beginning: parts of a span that it has passed are
        # deleted, those before may not be yet, and their counts must fit together after a crash, too
        log.spans = spans
        spend((1 + len(spans)) * STEP)
        passed = [Span(0, log.low, 0, 0, log.low_messages, log.low_bytes)] if log.low else []
        self._batch().put(schema.dropped_key(log.number), schema.encode_spans([*passed, *spans]))

    def _count(self, before: tuple[int, int], now: tuple[int, int]) -> None:
        self._messages += now[0] - before[0]
        self._bytes += now[1] - before[1]

    # ------------------------------------------------------------ batches and tails

    def _batch(self) -> WriteBatch | Held:
        if self._held is not None:
            return self._held
        batch = self._work.batch
        if batch is None:
            if self._writer.failed is not None:
                self._held = Held()
                return self._held
            batch = self._work.batch = self._database.batch()
        return batch

    def _hand_over(self, at_once: bool = False) -> None:
        self._work.last_position = self.last_position
        if self._work.batch is None and self._writer.failed is not None and not at_once:
            self._is_held = True
            return
        if self._held is not None:
            self._work.batch = self._database.batch()
            self._work.size = self._held.into(self._work.batch)
            self._held = None
        self._is_held = False
        self._writer.hand_over(self._work)
        self._work = Work()

    def _hand_over_own(self) -> None:
        # what nobody waits for goes with the tick's batch, or at once if there is none
        if not self._is_flush_due:
            self._hand_over()

    def _shorten_tails(self) -> None:
        # the oldest blocks leave the memory, if they are on the disk
        recent = self._recent
        while recent and self._recent_bytes > self._tail_bytes_max and recent[0][1] <= self._durable:
            last, _, size, logs = recent.popleft()
            self._recent_bytes -= size
            spend(len(logs) * STEP)
            for log in logs:
                log.tail.trim(last)
                log.tail_after = max(log.tail_after, last)

    def _find_numbers(self) -> int:
        # the highest number of an index; a part may have one of which the name cannot be read
        highest = 0
        for key, value in self._database.scan(schema.NAME):
            try:
                number = schema.decode_u32(value)
            except schema.SchemaError as error:
                self.unread.append((key, value, str(error)))
                continue
            self._logs[key[1:]] = number
            highest = max(highest, number)
        with self._database.db.iterator(
            prefix=schema.PART, reverse=True, include_value=False, verify_checksums=True
        ) as parts:
            return max(highest, *(schema.key_number(key) for key in itertools.islice(parts, 1)), 0)

    def _find_last_position(self) -> int:
        last = 0
        value = self._database.get(schema.POSITION)
        if value is not None:
            try:
                last = schema.decode_u64(value)
            except schema.SchemaError as error:
                self.unread.append((schema.POSITION, value, str(error)))
        with self._database.db.iterator(prefix=schema.BLOCK, reverse=True, verify_checksums=True) as blocks:
            for key, block in itertools.islice(blocks, 1):
                first = schema.key_position(key)
                try:
                    last = max(last, first + block_messages(block) - 1)
                except ValueError:  # it is left out when it is read; no position of it may be given again
                    last = max(last, first + BLOCK_POSITIONS_MAX)
        return last
