"""Direct writing of archived messages to Parquet: tasks that read stores also write the files (docs/adr/0029).

Rows written by Spark go from Python to the JVM, become rows there, and columns again. That is most of the work, and the
rows are not changed. So where nothing has to be compared, a Spark task gets a share of the stores, and returns the
names of the files that it has written. They have the columns and types of Spark's own.

A task that fails, or runs twice, leaves files that are not named: only returned names count.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leveldb_store.format.archive_schema import NUMBER_WORKER_BITS, TENANT
from spark_etl.source.coverage import Missing
from spark_etl.source.files import DAY_MICROSECONDS
from spark_etl.tables.catalogue import TABLES
from spark_etl.tables.conditions import Conditions
from spark_etl.tables.reading import KeySpan
from spark_etl.tables.snapshots import Snapshot, SnapshotStore, store_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StoreShare", "shares", "write_directly"]

_GROUP_BYTES: Final = 64 << 20
"""Size of messages in Arrow that become a row group. A task holds this much, and the group being written."""

_COMPRESSION: Final = "zstd"
_MADE: Final = pa.schema([("made", pa.string()), ("name", pa.string())])
_EPOCH: Final = date(1970, 1, 1)

_WITHOUT: Final = ("tenant",)
"""Columns that are in the path and not in the file."""

_ALIKE: Final = (
    "snapshot", "taken", "host", "store", "node", "cluster", "cluster_snapshot", "origin", "worker", "session", "rule",
    "matches", "topic", "first_level", "levels.list.element", "qos", "retain", "publisher", "payload_format",
    "content_type", "response_topic", "properties",
)  # fmt: skip
"""Columns with repeated values: a dictionary makes them small."""

_MEASURED: Final = ("number", "time", "worker", "origin", "topic", "first_level", "publisher", "rule", "qos")
"""Columns with minimum and maximum of each row group, by which queries skip row groups."""


@dataclass(frozen=True, slots=True)
class StoreShare:
    """A share of a store: the part read in one pass over a clone of it."""

    directory: str
    store: int
    spans: tuple[KeySpan, ...]
    conditions: Conditions


def shares(missing: dict[Path, list[Missing]], snapshots: Sequence[Snapshot]) -> list[StoreShare]:
    """Return what has to be read for the missing messages. Raises SnapshotError."""
    from spark_etl.source.plan import PARTITION_BYTES, spans_of

    found = []
    for snapshot in snapshots:
        for part in missing[snapshot.directory]:
            rule, worker = part.sequence.rule, part.sequence.worker
            values = {"origin": frozenset(("archive",)), "rule": frozenset((rule,)), "worker": frozenset((worker,))}
            conditions = Conditions(part.first, part.last, values)
            store = SnapshotStore(snapshot, snapshot.manifest.stores[part.store])
            for spans in spans_of(store, "messages", conditions, PARTITION_BYTES, None):
                found.append(StoreShare(str(snapshot.directory), part.store, tuple(spans), conditions))
    return found


def write_directly(spark: SparkSession, wanted: list[StoreShare], directory: Path, files: int) -> None:
    """Write messages to Parquet, by date (UTC) and tenant, in `files` tasks: at most as many files for each date.

    Raises PySparkException.
    """
    tasks = min(files, len(wanted))
    groups = [wanted[len(wanted) * at // tasks : len(wanted) * (at + 1) // tasks] for at in range(tasks)]
    task = _task(groups, _fields(), str(directory))
    made = spark.range(0, tasks, 1, tasks).mapInArrow(task, "made string, name string")
    for row in made.collect():
        target = directory / row.name
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(row.made).rename(target)


def _fields() -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns = [column for column in TABLES["messages"].columns if column.name not in _WITHOUT]
    ddl = ", ".join(f"`{column.name}` {column.type}" for column in columns)
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    schema: pa.Schema = to_arrow_schema(found, timezone="UTC")
    return schema


def _task(
    groups: list[list[StoreShare]], fields: pa.Schema, directory: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in numbers):
            made = _written(groups[number], _Files(fields, Path(directory), number))
            yield pa.RecordBatch.from_pydict({"made": list(made), "name": list(made.values())}, schema=_MADE)

    return write


def _written(group: list[StoreShare], files: _Files) -> dict[str, str]:
    # path of each file written -> its name in the directory
    from spark_etl.tables.frames import Counts, Frames
    from spark_etl.tables.reading import read

    for share in group:
        store = store_at(share.directory, share.store)
        frames = Frames(files.fields, store, Counts())
        for batch in read(store, "messages", list(share.spans), share.conditions, frames, None):
            files.add(batch)
    return files.closed()


class _Files:
    """The files of a task: one for each date. A row group is written to one at a time."""

    def __init__(self, fields: pa.Schema, directory: Path, number: int) -> None:
        self.fields = fields
        self._attempt = directory / ".attempts" / uuid.uuid4().hex
        self._name = f"part-{number:05}.parquet"
        self._batches: dict[int, list[pa.RecordBatch]] = {}
        self._bytes: dict[int, int] = {}
        self._writers: dict[int, pq.ParquetWriter] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows to the files of their dates."""
        days = (batch.column("number").to_numpy() >> NUMBER_WORKER_BITS) // DAY_MICROSECONDS
        distinct = np.unique(days).tolist()
        for day in distinct:
            some = batch if len(distinct) == 1 else batch.filter(pa.array(days == day))
            self._batches.setdefault(day, []).append(some)
            self._bytes[day] = self._bytes.get(day, 0) + some.nbytes
        while sum(self._bytes.values()) > _GROUP_BYTES:
            self._write(max(self._bytes, key=lambda day: self._bytes[day]))

    def _write(self, day: int) -> None:
        table = pa.Table.from_batches(self._batches.pop(day))
        self._bytes.pop(day)
        if day not in self._writers:
            path = self._attempt / str(day) / self._name
            path.parent.mkdir(parents=True)
            self._writers[day] = pq.ParquetWriter(
                path,
                self.fields,
                compression=_COMPRESSION,
                use_dictionary=list(_ALIKE),
                write_statistics=list(_MEASURED),
            )
        self._writers[day].write_table(table, row_group_size=table.num_rows)

    def closed(self) -> dict[str, str]:
        """Close them; return the path of each -> its final name."""
        for day in list(self._batches):
            self._write(day)
        made = {}
        for day, writer in self._writers.items():
            writer.close()
            path = self._attempt / str(day) / self._name
            made[str(path)] = str(_place(day, TENANT) / self._name)
        return made


def _place(day: int, tenant: str) -> Path:
    return Path(f"date={_EPOCH + timedelta(days=day)}") / f"tenant={tenant}"
