"""The data source `mqttd` for Spark (Python Data Source API).

    load(PATHS)                     snapshots (`spark_etl.tables.snapshots.find`)
    option("table", NAME)           default: messages
    option("columns", A,B)          only these columns: other columns are not decoded
    option("partition_bytes", N)    bytes of files for one task
    option("scratch", DIR)          where clones of stores are made; default: beside them
    option("missing", "skip")       for streams (`spark_etl.source.stream_reader`): ignore messages that were removed
                                    before a snapshot had them
    option("metrics", DIR)          each task writes statistics of its reading there, as NUMBER.json

Spark makes a `MqttdSource` in a Python process on the driver, which plans, and pickles the reader for the tasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_etl.source.options import Options
from spark_etl.source.plan import spans_of
from spark_etl.source.stream_reader import MqttdStreamReader
from spark_etl.tables import clones
from spark_etl.tables.conditions import Conditions, conditions_of
from spark_etl.tables.frames import Counts, Frames
from spark_etl.tables.manifests import OF_MANIFESTS
from spark_etl.tables.reading import KeySpan, read
from spark_etl.tables.snapshots import find, store_at, stores_of

__all__ = ["MqttdReader", "MqttdSource"]


class MqttdSource(DataSource):
    """`spark.read.format("mqttd")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "mqttd"

    def schema(self) -> str:
        """Return the selected columns. Raises OptionError, TableError, SnapshotError."""
        options = Options.of(dict(self.options))
        find(options.paths)
        return ", ".join(f"`{column.name}` {column.type}" for column in options.columns)

    def reader(self, schema: StructType) -> MqttdReader:
        """Return the reader of a query."""
        return MqttdReader(Options.of(dict(self.options)), schema)

    def streamReader(self, schema: StructType) -> MqttdStreamReader:  # noqa: N802  Spark's name
        """Return the reader of a stream."""
        return MqttdStreamReader(Options.of(dict(self.options)), schema)


class TaskInput(InputPartition):
    """The input of a task: spans of keys of a store, or its entry in the manifest."""

    def __init__(self, number: int, directory: str, worker: int, spans: list[KeySpan]) -> None:
        super().__init__(number)
        self.directory = directory
        self.worker = worker
        self.spans = spans


class MqttdReader(DataSourceReader):
    """Plans a query, and reads its parts."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions = Conditions()
        options.table.chosen(schema.names)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Use the conditions to skip records. Spark checks all rows once more."""
        self._conditions = conditions_of(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of all stores. Raises SnapshotError."""
        options = self._options
        stores = stores_of(find(options.paths))
        for place in sorted({clones.place_of(store.path, options.scratch) for store in stores}):
            clones.sweep(place)
        parts: list[InputPartition] = []
        for store in stores:
            spans: Iterable[list[KeySpan]] = [[]]
            if options.table.name not in OF_MANIFESTS:
                spans = spans_of(store, options.table.name, self._conditions, options.partition_bytes, options.scratch)
            for each in spans:
                parts.append(TaskInput(len(parts), str(store.snapshot.directory), store.facts.worker, each))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part. Raises SnapshotError."""
        if not isinstance(partition, TaskInput):
            return  # Spark's own part, where there is nothing to read
        options = self._options
        store = store_at(partition.directory, partition.worker)
        frames = Frames(to_arrow_schema(self._schema, timezone="UTC"), store, Counts())
        if options.table.name in OF_MANIFESTS:
            yield from OF_MANIFESTS[options.table.name](store, frames)
        else:
            yield from read(store, options.table.name, partition.spans, self._conditions, frames, options.scratch)
        if options.metrics:
            _write(Path(options.metrics), partition, frames.counts)


def _write(directory: Path, part: TaskInput, counts: Counts) -> None:
    # a repeated task writes the same file
    directory.mkdir(parents=True, exist_ok=True)
    half = directory / f".{part.value}-{os.getpid()}"
    half.write_text(json.dumps({"snapshot": part.directory, "store": part.worker, **counts.as_dict()}) + "\n")
    half.rename(directory / f"{part.value}.json")
