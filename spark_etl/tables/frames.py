"""Rows of a table as Arrow record batches, of the columns that are wanted and no others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from spark_etl.tables.snapshots import Store

__all__ = ["ROWS", "Counts", "Frames", "instant"]

ROWS: Final = 2000
"""In a batch: as many as are worth a call, and few enough that a batch of any is small."""

BYTES_MAX: Final = 8 << 20
"""Of a batch, where it has more than one row."""


@dataclass(slots=True)
class Counts:
    """What a task has read: the option `metrics` has it written."""

    clones: int = 0
    blocks_read: int = 0
    """Blocks of messages that LevelDB was asked for."""
    blocks_decoded: int = 0
    """Of these, whose messages were looked at."""
    records_read: int = 0
    """Other records."""
    rows: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)


class Frames:
    """Makes batches of one store's rows. `fields`: the columns that are wanted, as Arrow has them."""

    def __init__(self, fields: pa.Schema, store: Store, counts: Counts) -> None:
        self.fields = fields
        self.counts = counts
        self._same: dict[str, pa.Array] = {}
        self._values: dict[str, Any] = {
            "snapshot": str(store.snapshot.directory),
            "taken": instant(store.snapshot.manifest.taken_ms),
            "host": store.snapshot.host,
            "store": store.facts.worker,
        }

    def wants(self, name: str) -> bool:
        """Whether a column is wanted."""
        return name in self.fields.names

    def of_columns(self, count: int, column: Callable[[pa.Field], pa.Array | None]) -> Iterator[pa.RecordBatch]:
        """Batches of so many rows. `column` makes one that is not the same in the whole store."""
        if not count:
            return
        self.counts.rows += count
        arrays = [
            self.constant(field, count, self._values[field.name]) if field.name in self._values else column(field)
            for field in self.fields
        ]
        whole = pa.RecordBatch.from_arrays(arrays, schema=self.fields)
        rows = max(1, min(ROWS, count * BYTES_MAX // max(1, whole.nbytes)))
        pieces = -(-count // rows) if count > ROWS + ROWS // 2 or whole.nbytes > 2 * BYTES_MAX else 1
        each = -(-count // pieces)
        for at in range(0, count, each):
            yield whole.slice(at, each)

    def of_rows(self, names: list[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
        """Batches of tuples with the values of these columns."""
        places = {name: place for place, name in enumerate(names)}
        for some in _batched(rows):
            self.counts.records_read += len(some)
            yield from self._of_values(places, list(zip(*some, strict=True)), len(some))

    def _of_values(self, places: dict[str, int], values: list[tuple[Any, ...]], count: int) -> Iterator[pa.RecordBatch]:
        return self.of_columns(count, lambda field: pa.array(values[places[field.name]], field.type))

    def constant(self, field: pa.Field, count: int, value: Any) -> pa.Array:
        """A column with one value in all rows."""
        known = self._same.get(field.name)
        if known is None or len(known) < count or (len(known) and known[0].as_py() != value):
            known = self._same[field.name] = pa.repeat(pa.scalar(value, field.type), max(count, ROWS))
        return known.slice(0, count)


def _batched(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[tuple[Any, ...], ...]]:
    left = iter(rows)
    while some := tuple(itertools.islice(left, ROWS)):
        yield some


def instant(milliseconds: int) -> datetime:
    """A Unix time in ms."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
