"""Rows of a table as Arrow record batches, with the selected columns only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from spark_etl.tables.snapshots import SnapshotStore

__all__ = ["ROWS", "Counts", "Frames", "instant"]

ROWS: Final = 2000
"""Rows of a batch: enough to be worth a call, and few enough to keep any batch small."""

BYTES_MAX: Final = 8 << 20
"""Bytes of a batch, if it has more than one row."""


@dataclass(slots=True)
class Counts:
    """Statistics of a task's reading, written by the option `metrics`."""

    clones: int = 0
    blocks_read: int = 0
    """Blocks of messages requested from LevelDB."""
    blocks_decoded: int = 0
    """Of these, blocks whose messages were decoded."""
    records_read: int = 0
    """Other records."""
    rows: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


class Frames:
    """Makes batches of one store's rows. `fields`: the selected columns, as Arrow fields."""

    def __init__(self, fields: pa.Schema, store: SnapshotStore, counts: Counts) -> None:
        self.fields = fields
        self.counts = counts
        self._same: dict[str, pa.Array] = {}
        self._values: dict[str, Any] = {
            "snapshot": str(store.snapshot.directory),
            "taken": instant(store.snapshot.manifest.taken_ms),
            "host": store.snapshot.host,
            "store": store.facts.worker,
            "node": store.snapshot.node,
            "cluster": store.snapshot.cluster,
            "cluster_snapshot": store.snapshot.cluster_snapshot,
        }

    def wants(self, name: str) -> bool:
        """Whether a column is selected."""
        return name in self.fields.names

    def of_columns(self, count: int, column: Callable[[pa.Field], pa.Array | None]) -> Iterator[pa.RecordBatch]:
        """Yield batches of `count` rows. `column` makes a column that varies within the store."""
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
        """Yield batches of tuples with the values of these columns."""
        places = {name: place for place, name in enumerate(names)}
        for some in _batched(rows):
            self.counts.records_read += len(some)
            yield from self._of_values(places, list(zip(*some, strict=True)), len(some))

    def _of_values(self, places: dict[str, int], values: list[tuple[Any, ...]], count: int) -> Iterator[pa.RecordBatch]:
        return self.of_columns(count, lambda field: pa.array(values[places[field.name]], field.type))

    def constant(self, field: pa.Field, count: int, value: Any) -> pa.Array:
        """Return a column with the same value in all rows."""
        known = self._same.get(field.name)
        if known is None or len(known) < count or (len(known) and known[0].as_py() != value):
            known = self._same[field.name] = pa.repeat(pa.scalar(value, field.type), max(count, ROWS))
        return known.slice(0, count)


def _batched(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[tuple[Any, ...], ...]]:
    left = iter(rows)
    while some := tuple(itertools.islice(left, ROWS)):
        yield some


def instant(milliseconds: int) -> datetime:
    """Return a Unix time in ms as a datetime."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
