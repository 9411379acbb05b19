"""The indexes of the log: their ends, their dropped spans, and their tails, which are in memory.

Three things are known of an index: its running counts (messages and bytes of all ever appended), its low-water mark
(entries at or before it are not needed) with the running counts there, and the dropped *spans* behind it (entries that
sessions with full queues dropped). A backlog is a subtraction. All of that is read from the disk when the index is
first used after the start: a start costs one key per index. Memory grows with the number of indexes, never with their
contents.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import plyvel

from leveldb_store.contract import StoreError
from leveldb_store.engine.database import Database, WriteBatch, error_text
from leveldb_store.format import schema
from leveldb_store.format.schema import Span
from leveldb_store.open_batch import HeldRecords, OpenBatch
from leveldb_store.reading import Reader
from pyx.core.work import INDEXED, SOUGHT, STEP, spend
from pyx.storage.records import Batch, Index
from pyx.storage.stored import block_messages, pack_part, part_ends, part_running, without

__all__ = ["IndexState", "Indexes", "StoredLog", "find"]

SPANS_MAX: Final = 4096  # dropped spans of an index that is not trimmed: each costs time on every use of the index
BLOCK_POSITIONS_MAX: Final = 1 << 32  # a block counts its messages in 32 bits

T = TypeVar("T")


class StoredLog(NamedTuple):
    """The state of a log found in a database."""

    numbers: dict[bytes, int]
    """Number of each index, by name."""
    gone: list[int]
    """Numbers of indexes that are not needed but not completely deleted."""
    highest: int
    """The highest number that an index has or had."""
    last_position: int
    """The highest position given out."""
    unread: list[tuple[bytes, bytes, str]]
    """(key, value, error) of unreadable records."""


class IndexState:
    """One index: its end, its beginning, and its tail."""

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
        self.messages = 0  # running counts up to and including it
        self.bytes = 0
        self.low = 0  # entries at or before this position are not needed
        self.low_messages = 0  # running counts up to and including it
        self.low_bytes = 0
        self.spans: list[Span] = []  # rising; each begins at or behind `low`


class Indexes:
    """The indexes of one store. `deleted_up_to`: for each number the position up to which the writer deletes."""

    def __init__(
        self,
        database: Database,
        found: StoredLog,
        batch: OpenBatch,
        reader: Reader,
        deleted_up_to: dict[int, int],
        say: Callable[[str], None],
    ) -> None:
        # number of an index not used since the start, or its loaded state
        self._logs: dict[bytes, IndexState | int] = dict(found.numbers)
        self._next_number = 1 + found.highest
        self._database = database
        self._batch = batch
        self._reader = reader
        self._deleted_up_to = deleted_up_to
        self._say = say
        self.messages = 0
        """(entries, bytes) that are needed, of the indexes used since the start."""
        self.bytes = 0

    def names(self) -> Iterable[bytes]:
        """Implements Store."""
        return list(self._logs)

    def get(self, name: bytes) -> IndexState | None:
        """Return the index, or None. Raises StoreError."""
        found = self._logs.get(name)
        if isinstance(found, int):
            try:
                found = self._logs[name] = self._load(found)
            except plyvel.Error as error:
                raise StoreError(
                    f"index {name!r} of {self._database.path} cannot be read: {error_text(error)}"
                ) from error
            self._count((0, 0), self._behind(found, found.low))
        return found

    def append(self, parts: Sequence[tuple[bytes, Batch]], block: int, listing: int) -> list[IndexState]:
        """Append a block's parts: `block` is its first position, `listing` the number of indexes that list it."""
        # few calls for each part: a tick has one for each Topic Filter that its messages match
        records = self._batch.begin()
        logs: list[IndexState] = []
        values: list[tuple[bytes, bytes]] = []
        written = 0
        spend(4 * STEP * len(parts))
        for name, added in parts:
            log = self._logs.get(name)
            if not isinstance(log, IndexState):
                log = self.get(name) or self._new(name, records)
            value, begin, end, size = pack_part(added, log.messages, log.bytes, block, listing)
            values.append((schema.part_key(log.number, begin), value))
            written += len(value)
            log.tail.extend(added)
            log.last = end
            log.messages += added.count
            log.bytes += size
            self.messages += added.count
            self.bytes += size
            logs.append(log)
        records.put_all(values)
        self._batch.work.size += written
        return logs

    def _new(self, name: bytes, records: WriteBatch | HeldRecords) -> IndexState:
        log = self._logs[name] = IndexState(self._next_number)
        self._next_number += 1
        records.put(schema.name_key(name), schema.U32.pack(log.number))
        # a power cut must not remove the name and leave its parts under a number that is given out again
        self._batch.work.is_synced = True
        return log

    # ------------------------------------------------------------ reading

    def read(self, index: bytes, after: int, bytes_max: int) -> Batch:
        """Implements Store."""
        log = self.get(index)
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
            # no entries that are needed, or that can be read: continue behind them
            after = reached if reached > after else log.tail_after

    def backlog(self, index: bytes, after: int) -> tuple[int, int]:
        """Implements Store."""
        log = self.get(index)
        return (0, 0) if log is None else self._behind(log, after)

    def position_of_last(self, index: bytes, messages: int, bytes_max: int) -> int:
        """Implements Store."""
        log = self.get(index)
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

    # ------------------------------------------------------------ forgetting

    def trim(self, index: bytes, up_to: int) -> None:
        """Implements Store."""
        log = self.get(index)
        if log is None:
            return
        up_to = min(up_to, log.last)  # an unused index costs nothing
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
        self._batch.work.trimmed[log.number] = up_to
        self._batch.hand_over_own()

    def drop(self, index: bytes, after: int, up_to: int) -> None:
        """Implements Store."""
        log = self.get(index)
        if log is None:
            return
        up_to = min(up_to, log.last)
        if after <= log.low:
            self.trim(index, up_to)
            return
        # merged with the spans that it touches
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
            begin = min(touched[0].up_to, end)  # everything up to there is deleted already
        self._batch.work.dropped.append((log.number, begin, end))
        self._batch.hand_over_own()

    def forget(self, index: bytes) -> None:
        """Implements Store."""
        found = self._logs.get(index)
        if found is None:
            return
        log = self.get(index)
        del self._logs[index]
        if log is not None:
            self._count(self._behind(log, log.low), (0, 0))
            log.tail = Index()
        number = found if isinstance(found, int) else found.number
        records = self._batch.records()
        records.delete(schema.name_key(index))
        records.put(schema.gone_key(number), b"")
        self._batch.work.gone.append(number)
        self._batch.hand_over_own()

    # ------------------------------------------------------------ loading

    def _load(self, number: int) -> IndexState:
        # from its first and last part; counts of entries deleted between them cancel out
        log = IndexState(number)
        spend(2 * SOUGHT)
        log.low = self._known(schema.trimmed_key(number), self._low_of) or 0
        if log.low:
            self._deleted_up_to.setdefault(number, log.low)
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
            self._batch.work.dropped.append((number, span.after, span.up_to))
        return log

    def _known(self, key: bytes, decoded: Callable[[bytes], T]) -> T | None:
        # reads a record about an index. An unreadable one is set aside, and treated as missing: entries that are not
        # needed are then met once more
        value = self._database.get(key)
        if value is None:
            return None
        try:
            return decoded(value)
        except schema.SchemaError as error:
            self._say(f"record {key!r} of the store {self._database.path} cannot be read ({error}): it is set aside")
            self._batch.put(schema.set_aside_key(key), value)
            self._batch.delete(key)
            return None

    def _low_of(self, value: bytes) -> int:
        low = schema.decode_u64(value)
        if low > self._batch.last_position:
            raise schema.SchemaError(f"position {low} was never given")
        return low

    def _spans_of(self, value: bytes) -> list[Span]:
        spans, before = schema.decode_spans(value), 0
        for span in spans:
            if not before <= span.after <= span.up_to <= self._batch.last_position:
                raise schema.SchemaError(f"a span from {span.after} to {span.up_to}")
            before = span.up_to
        return spans

    def _running(self, log: IndexState, position: int) -> tuple[int, int]:
        # (messages, bytes) of all ever appended up to and including `position`, which is in no span
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
        # (messages, bytes) behind `after` that are needed
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
        # The low-water mark is stored with them, as a span from the beginning: the parts of a span that it has passed
        # are deleted, those before may not be yet, and their counts must match after a crash, too
        log.spans = spans
        spend((1 + len(spans)) * STEP)
        passed = [Span(0, log.low, 0, 0, log.low_messages, log.low_bytes)] if log.low else []
        self._batch.records().put(schema.dropped_key(log.number), schema.encode_spans([*passed, *spans]))

    def _count(self, before: tuple[int, int], now: tuple[int, int]) -> None:
        self.messages += now[0] - before[0]
        self.bytes += now[1] - before[1]


def find(database: Database) -> StoredLog:
    """Find the state of the log, before anything is used. Raises plyvel.Error."""
    unread: list[tuple[bytes, bytes, str]] = []
    numbers: dict[bytes, int] = {}
    for key, value in database.scan(schema.NAME):
        try:
            numbers[key[1:]] = schema.decode_u32(value)
        except schema.SchemaError as error:
            unread.append((key, value, str(error)))
    # a part may have a number whose name record is unreadable
    with database.db.iterator(prefix=schema.PART, reverse=True, include_value=False, verify_checksums=True) as parts:
        of_parts = [schema.key_number(key) for key in itertools.islice(parts, 1)]
    gone = [schema.key_number(key) for key, _ in database.scan(schema.GONE)]
    highest = max([0, *numbers.values(), *of_parts, *gone])
    return StoredLog(numbers, gone, highest, _last_position(database, unread), unread)


def _last_position(database: Database, unread: list[tuple[bytes, bytes, str]]) -> int:
    # the highest position given out
    last = 0
    value = database.get(schema.POSITION)
    if value is not None:
        try:
            last = schema.decode_u64(value)
        except schema.SchemaError as error:
            unread.append((schema.POSITION, value, str(error)))
    with database.db.iterator(prefix=schema.BLOCK, reverse=True, verify_checksums=True) as blocks:
        for key, block in itertools.islice(blocks, 1):
            first = schema.key_position(key)
            try:
                last = max(last, first + block_messages(block) - 1)
            except ValueError:  # it is skipped when it is read; none of its positions may be given out again
                last = max(last, first + BLOCK_POSITIONS_MAX)
    return last
