"""The tables `messages` and `retained`: blocks of the archive (A) and of the log (B), messages kept for one session
(Q), retained messages (R).

Blocks are gathered until they have enough rows for a batch, and decoded together (`spark_etl.tables.records`).
Conditions narrow the part of the archive that is read: to a range of numbers by keys, to first levels by the heads of
blocks. Every block of the log is read: positions are not times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leveldb_store.format import archive_schema, schema
from leveldb_store.format.queued_messages import decode_queued, whole
from leveldb_store.format.schema import SchemaError
from spark_etl.tables.conditions import HIGHEST, Conditions
from spark_etl.tables.frames import BYTES_MAX, ROWS, Frames
from spark_etl.tables.records import ARCHIVED_LEAD, Records, starts_of

if TYPE_CHECKING:
    from spark_etl.tables.opened import Reading

__all__ = ["archived", "kept", "logged", "retained"]

_QUEUE: Final = "queue"
_OF_BLOCKS: Final = {
    "snapshot", "taken", "host", "store", "node", "cluster", "cluster_snapshot", "origin", "tenant", "rule",
}  # fmt: skip
_NUMBER_MAX: Final = (1 << 64) - 1


@dataclass(slots=True)
class _Gathered:
    """Records to be decoded together, and what else is known of them."""

    lead: int
    pieces: list[bytes] = field(default_factory=list)
    starts: list[npt.NDArray[np.int64]] = field(default_factory=list)
    size: int = 0
    rows: int = 0
    positions: list[npt.NDArray[np.int64]] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)

    def add(self, data: bytes, at: int, count: int) -> None:
        """Add records that begin at `at`. Raises SchemaError."""
        starts = starts_of(data, at, count, self.lead)
        self.starts.append(np.array(starts, np.int64) + (self.size - at))
        self.pieces.append(data[at:] if at else data)
        self.size += len(data) - at
        self.rows += count

    @property
    def is_enough(self) -> bool:
        """Whether it is enough for a batch."""
        return self.rows >= ROWS or self.size >= BYTES_MAX


class _Batches:
    """Makes batches of gathered records. `same`: columns with one value in all rows."""

    def __init__(self, frames: Frames, conditions: Conditions, same: dict[str, Any]) -> None:
        self._frames = frames
        self._conditions = conditions
        self._same = same

    def of(self, gathered: _Gathered) -> Iterator[pa.RecordBatch]:
        """Yield batches of the records. Raises SchemaError."""
        if not gathered.rows:
            return
        records = Records(b"".join(gathered.pieces), np.concatenate(gathered.starts), gathered.lead)
        mask = _wanted(records, self._conditions)
        positions = np.concatenate(gathered.positions) if gathered.positions else None
        sessions = pa.array(gathered.sessions) if gathered.sessions else None
        if mask is not None:
            records.keep(mask)
            positions = None if positions is None else positions[mask]
            sessions = None if sessions is None else sessions.filter(pa.array(mask))

        def column(wanted: pa.Field) -> pa.Array:
            if wanted.name == "position" and positions is not None:
                return pa.array(positions)
            if wanted.name == "session" and sessions is not None:
                return sessions
            if wanted.name in self._same:
                return self._frames.constant(wanted, len(records), self._same[wanted.name])
            return records.column(wanted.name, wanted.type)

        yield from self._frames.of_columns(len(records), column)

    def of_heads(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield rows for which only the columns of `same` are selected."""
        for at in range(0, count, ROWS):
            yield from self._of_heads(min(ROWS, count - at))

    def _of_heads(self, count: int) -> Iterator[pa.RecordBatch]:
        return self._frames.of_columns(
            count, lambda wanted: self._frames.constant(wanted, count, self._same[wanted.name])
        )


def _wanted(records: Records, conditions: Conditions) -> npt.NDArray[np.bool_] | None:
    # which of them the conditions allow; None: all
    mask: npt.NDArray[np.bool_] | None = None
    if conditions.first > 0 or conditions.last < HIGHEST:
        mask = (records.numbers >= conditions.first) & (records.numbers <= conditions.last)
    workers = conditions.values.get("worker")
    if workers is not None:
        found = np.isin(records.numbers & 0xFF, list(workers))
        mask = found if mask is None else mask & found
    if conditions.are_of_topics:
        found = _of_topics(records, conditions)
        mask = found if mask is None else mask & found
    return mask


def _of_topics(records: Records, conditions: Conditions) -> npt.NDArray[np.bool_]:
    topics = records.column("topic", pa.string())
    found = pc.starts_with(topics, conditions.prefix)
    for name in ("topic", "first_level"):
        values = conditions.values.get(name)
        if values is not None:
            column = records.column(name, pa.string())
            found = pc.and_(found, pc.is_in(column, value_set=pa.array(sorted(values), pa.string())))
    mask: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return mask


# ---------------------------------------------------------------- the archive


def archived(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield messages of the archive's blocks with keys from `start` on, before `stop`. Raises SchemaError."""
    conditions, counts = reading.conditions, reading.frames.counts
    if not conditions.allow("origin", "archive"):
        return
    same = {"origin": "archive", "tenant": archive_schema.TENANT, "position": None, "session": None}
    heads_say_all = _OF_BLOCKS.issuperset(reading.frames.fields.names) and not conditions.are_of_messages
    for rule, blocks in _by_rule(reading, start, stop):
        batches = _Batches(reading.frames, conditions, {**same, "rule": reading.store.rules.get(rule)})
        gathered, counted = _Gathered(ARCHIVED_LEAD), 0
        for value, head in blocks:
            if heads_say_all:
                counted += head.messages
                continue
            counts.blocks_decoded += 1
            gathered.add(value, head.size, head.messages)
            if gathered.is_enough:
                yield from batches.of(gathered)
                gathered = _Gathered(ARCHIVED_LEAD)
        yield from batches.of_heads(counted)
        yield from batches.of(gathered)


def _by_rule(
    reading: Reading, start: bytes, stop: bytes
) -> Iterator[tuple[int, Iterator[tuple[bytes, archive_schema.BlockHead]]]]:
    # blocks that may match, in turn by rule and origin
    with reading.db.iterator(start=start, stop=stop, fill_cache=False, verify_checksums=True) as found:
        key = start
        while True:
            found.seek(key)
            key, _ = next(found, (b"", b""))
            if not key:
                return
            rule, origin, _ = archive_schema.split_block(key)
            behind = archive_schema.block_key(rule, origin, _NUMBER_MAX) + b"\0"
            if not _may_have(reading, rule, origin):
                key = behind
                continue
            first = archive_schema.block_key(rule, origin, reading.conditions.first)
            if key < first:
                found.seek(first)
            else:
                found.seek(key)
            yield rule, _blocks(reading, found, behind)
            key = behind


def _may_have(reading: Reading, rule: int, origin: int) -> bool:
    conditions = reading.conditions
    text = reading.store.rules.get(rule)
    if not conditions.allow("worker", origin) or not conditions.allow("rule", text):
        return False
    level = archive_schema.first_level((text or "#").encode())
    wanted = conditions.first_levels
    return wanted is None or level in (b"#", b"+") or level in wanted


def _blocks(reading: Reading, found: Any, behind: bytes) -> Iterator[tuple[bytes, archive_schema.BlockHead]]:
    # of one sequence, from the iterator's place on
    counts, levels = reading.frames.counts, reading.conditions.first_levels
    for key, value in found:
        if key > behind:
            return
        counts.blocks_read += 1
        head = archive_schema.decode_head(value)
        if head.first > reading.conditions.last:
            return
        if levels is None or head.levels is None or not levels.isdisjoint(head.levels):
            yield value, head


# ---------------------------------------------------------------- the log, and messages kept beside it


def logged(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield messages of the log's blocks. Raises SchemaError."""
    if not _of_the_queue(reading.conditions):
        return
    same = {"origin": _QUEUE, "tenant": archive_schema.TENANT, "session": None, "rule": None, "matches": None}
    batches = _Batches(reading.frames, reading.conditions, same)
    gathered = _Gathered(0)
    for key, value in reading.scan(start, stop):
        reading.frames.counts.blocks_read += 1
        if len(value) < schema.BLOCK_HEAD.size:
            raise SchemaError("a block is cut off")
        block_format, count = schema.BLOCK_HEAD.unpack_from(value)
        if block_format != schema.BLOCK_FORMAT:
            raise SchemaError(f"a block has format {block_format}, known is {schema.BLOCK_FORMAT}")
        reading.frames.counts.blocks_decoded += 1
        gathered.add(value, schema.BLOCK_HEAD.size, count)
        gathered.positions.append(np.arange(count, dtype=np.int64) + schema.key_position(key))
        if gathered.is_enough:
            yield from batches.of(gathered)
            gathered = _Gathered(0)
    yield from batches.of(gathered)


def kept(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield messages kept for one session. Raises SchemaError."""
    if not _of_the_queue(reading.conditions):
        return
    same = {"origin": _QUEUE, "tenant": archive_schema.TENANT, "position": None, "rule": None, "matches": None}
    batches = _Batches(reading.frames, reading.conditions, same)
    gathered = _Gathered(0)
    for key, value in reading.scan(start, stop):
        reading.frames.counts.records_read += 1
        gathered.add(schema.encode_message(decode_queued(whole(value, reading.get)).message), 0, 1)
        gathered.sessions.append(schema.split_queued(key)[0])
        if gathered.is_enough:
            yield from batches.of(gathered)
            gathered = _Gathered(0)
    yield from batches.of(gathered)


def _of_the_queue(conditions: Conditions) -> bool:
    return conditions.allow("origin", _QUEUE) and "rule" not in conditions.values


def retained(reading: Reading, start: bytes, stop: bytes) -> Iterator[pa.RecordBatch]:
    """Yield retained messages. Raises SchemaError."""
    batches = _Batches(reading.frames, reading.conditions, {})
    gathered = _Gathered(0)
    for _, value in reading.scan(start, stop):
        reading.frames.counts.records_read += 1
        gathered.add(value, 0, 1)
        if gathered.is_enough:
            yield from batches.of(gathered)
            gathered = _Gathered(0)
    yield from batches.of(gathered)
