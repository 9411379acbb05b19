"""The table `cursors`: the messages of the log, and of its own queue, that a session has not been sent.

An index's parts have its running counts before them, so the amount behind a position is a subtraction, as in the
broker. Subtracted are the messages that the session dropped when its queue was full (holes) and those no longer needed
(spans).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import plyvel

from leveldb_store.format import schema
from leveldb_store.format.archive_schema import NUMBER_WORKER_BITS
from leveldb_store.format.queued_messages import decode_queued, whole
from leveldb_store.format.schema import Span
from leveldb_store.format.subscription_schema import decode_subscription
from leveldb_store.format.windows import NEVER_SENT, Window
from spark_etl.tables.catalogue import TABLES
from spark_etl.tables.state import seen, shared, window_of

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_etl.tables.opened import Reading

__all__ = ["cursors"]

_COLUMNS: Final = TABLES["cursors"].own_names
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CACHED: Final = 1024
_HIGHEST: Final = (1 << 64) - 1


class _Lag(NamedTuple):
    messages: int
    bytes: int
    oldest: int | None
    """Message number."""


def cursors(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of sessions with keys from `start` on, before `stop`. Raises SchemaError."""
    return reading.frames.of_rows(_COLUMNS, _rows(reading, start, stop))


def _rows(reading: Reading, start: bytes, stop: bytes) -> Iterator[tuple[Any, ...]]:
    logs = _Logs(reading.db)
    last = reading.store.facts.last_position
    for key, record in reading.scan(start, stop):
        client = key[1:].decode()
        at_last = seen(reading, record)
        value = reading.db.get(schema.window_key(client), verify_checksums=True)
        window = NEVER_SENT if value is None else window_of(reading, client, value)
        prefix = schema.subscriptions_of(client)
        for subscribed, options in reading.scan(prefix, schema.prefix_end(prefix) or b""):
            _, text = schema.split_subscription(subscribed)
            if shared(text.decode())[0] is not None:
                continue  # its group's messages are kept for it alone
            granted, _, begins, formers = decode_subscription(options)
            formers = [former for former in formers if former[2] > window.cursor]
            gaps = [(up_to, later) for (_, _, up_to), (_, later, _) in itertools.pairwise(formers)]
            if granted & schema.QOS or window.absences:
                gaps += [(up_to, begins) for _, _, up_to in formers[-1:]]
            elif formers:
                gaps.append((formers[-1][2], _HIGHEST))
            else:
                continue  # nothing waits for it
            position = max(window.cursor, formers[0][1] if formers else begins)
            lag = logs.lag(text, position, [*window.holes, *gaps])
            yield client, text.decode(), position, last, lag.messages, lag.bytes, *_oldest(lag), at_last
        lag = _kept(reading, client, window)
        if lag.messages:
            yield client, None, None, last, lag.messages, lag.bytes, *_oldest(lag), at_last


def _oldest(lag: _Lag) -> tuple[int | None, datetime | None]:
    if lag.oldest is None:
        return None, None
    return lag.oldest, _EPOCH + timedelta(microseconds=lag.oldest >> NUMBER_WORKER_BITS)


def _kept(reading: Reading, client: str, window: Window) -> _Lag:
    # messages with a record of their own that are not in flight
    sent = {at for _, flags, _, at in window.out if flags & schema.OWN_RECORD}
    messages = size = 0
    oldest: int | None = None
    prefix = schema.queued_key(client, 0)[:-8]
    for key, value in reading.scan(prefix, schema.prefix_end(prefix) or b""):
        if schema.key_position(key) in sent:
            continue
        message = decode_queued(whole(value, reading.get)).message
        messages += 1
        size += message.content_bytes
        oldest = message.number if oldest is None else min(oldest, message.number)
    return _Lag(messages, size, oldest)


class _Logs:
    """The indexes of a store's log. Cached, because sessions in sequence need the same ones."""

    def __init__(self, db: plyvel.DB) -> None:
        self._db = db
        self.index = functools.lru_cache(_CACHED)(self._index)
        self.numbers = functools.lru_cache(8)(self._numbers)

    def lag(self, text: bytes, position: int, holes: list[tuple[int, int]]) -> _Lag:
        """Return the amount behind a position in the index of a Topic Filter, without holes."""
        index = self.index(text)
        if index is None:
            return _Lag(0, 0, None)
        gone = _joined([*holes, *((span.after, span.up_to) for span in index.spans)], position)
        messages, size = index.total
        before = index.running(position)
        messages, size = messages - before[0], size - before[1]
        for behind, up_to in gone:
            a, z = index.running(behind), index.running(up_to)
            messages, size = messages - (z[0] - a[0]), size - (z[1] - a[1])
        oldest = index.first(position, gone) if messages else None
        return _Lag(messages, size, None if oldest is None else self._number(oldest))

    def _index(self, text: bytes) -> _Index | None:
        value = self._db.get(schema.name_key(text), verify_checksums=True)
        return None if value is None else _Index(self._db, schema.decode_u32(value))

    def _number(self, position: int) -> int | None:
        # of the message there
        with self._db.iterator(
            start=schema.BLOCK,
            stop=schema.block_key(position),
            include_stop=True,
            reverse=True,
            include_value=False,
            verify_checksums=True,
        ) as keys:
            key = next(keys, None)
        numbers = () if key is None else self.numbers(key)
        at = 0 if key is None else position - schema.key_position(key)
        return numbers[at] if at < len(numbers) else None

    def _numbers(self, key: bytes) -> tuple[int, ...]:
        value = self._db.get(key, verify_checksums=True)
        return tuple(message.number for message in schema.decode_block(value or b""))


class _Index:
    """An index of the log: its parts, and their running counts."""

    def __init__(self, db: plyvel.DB, number: int) -> None:
        self._db = db
        self._number = number
        value = db.get(schema.dropped_key(number), verify_checksums=True)
        self.spans: list[Span] = [] if value is None else schema.decode_spans(value)
        # parts within a span may be deleted: its record has the counts at its ends
        self._ends = {
            **{span.after: (span.messages_after, span.bytes_after) for span in self.spans},
            **{span.up_to: (span.messages_up_to, span.bytes_up_to) for span in self.spans},
        }
        self._known: dict[int, tuple[int, int]] = {}
        trimmed = db.get(schema.trimmed_key(number), verify_checksums=True)
        self._deleted = 0 if trimmed is None else schema.decode_u64(trimmed)
        self.total = self.running(_HIGHEST)

    def running(self, position: int) -> tuple[int, int]:
        """Return (messages, bytes) of all ever appended up to and including a position."""
        if position in self._ends:
            return self._ends[position]
        if position not in self._known:
            if len(self._known) > _CACHED:
                self._known.clear()
            # behind the last part there may be a span, whose parts are deleted
            ends = [counts for at, counts in self._ends.items() if at <= position]
            self._known[position] = max(self._running(position), *ends, (0, 0))
        return self._known[position]

    def _running(self, position: int) -> tuple[int, int]:
        found = self._part_before(position)
        if found is not None:
            part = schema.decode_part(*found)
            here = [size for at, size in part.entries if at <= position]
            return part.messages_before + len(here), part.bytes_before + sum(here)
        with self._parts(0) as parts:  # all remaining parts are behind
            key, value = next(parts, (b"", b""))
        if not key:
            return 0, 0
        part = schema.decode_part(key, value)
        return part.messages_before, part.bytes_before

    def _part_before(self, position: int) -> tuple[bytes, bytes] | None:
        # the last one that begins at or before a position
        with self._db.iterator(
            start=schema.part_key(self._number, self._deleted),
            stop=schema.part_key(self._number, position),
            include_stop=True,
            reverse=True,
            verify_checksums=True,
        ) as parts:
            found: tuple[bytes, bytes] | None = next(parts, None)
        return found

    def first(self, position: int, gone: list[tuple[int, int]]) -> int | None:
        """Return the first existing position behind one; None: there is none."""
        for behind, up_to in gone:
            if behind <= position < up_to:
                position = up_to
        found = self._part_before(position)
        begin = 0 if found is None else schema.key_position(found[0])
        with self._parts(begin) as parts:
            for key, value in parts:
                for at, _ in schema.decode_part(key, value).entries:
                    if at > position and not any(behind < at <= up_to for behind, up_to in gone):
                        return at
        return None

    def _parts(self, position: int) -> plyvel.Iterator:
        return self._db.iterator(
            start=schema.part_key(self._number, max(position, self._deleted)),
            stop=schema.part_key(self._number + 1, 0),
            verify_checksums=True,
        )


def _joined(spans: list[tuple[int, int]], position: int) -> list[tuple[int, int]]:
    # those behind a position, merged and in order
    joined: list[tuple[int, int]] = []
    for behind, up_to in sorted((max(behind, position), up_to) for behind, up_to in spans if up_to > position):
        if joined and behind <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], up_to)
        else:
            joined.append((behind, up_to))
    return joined
