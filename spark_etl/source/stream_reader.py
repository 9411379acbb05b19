"""The stream reader of the data source `mqttd`: streams new rows of snapshots that arrive in a directory.

    spark.readStream.format("mqttd").option("table", "messages").load(DIRECTORY)

It streams the archive's messages, and the tables made from events. An offset has for each sequence the number up to
which it was read, and the amount stored up to there (`spark_etl.source.coverage`). The rows between two offsets are the
same whichever snapshot has them, so a batch that is read again after a crash has the same rows, also when other
snapshots have arrived since, or some that have them as well have been removed.

Any exception to this is an error, of one line: retention has removed messages before a snapshot was taken (unless
`option("missing", "skip")`), or the snapshot is of a copy of the data directory that has diverged. Snapshots older than
what was read are skipped. The job `parquet` is more precise, because it can compare with its output.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plyvel
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from leveldb_store.format.schema import SchemaError
from leveldb_store.snapshots.clone import CloneError
from leveldb_store.snapshots.snapshot import NAME
from spark_etl.source.coverage import Run, SequencePart, runs_of
from spark_etl.source.files import LOGS
from spark_etl.tables import clones
from spark_etl.tables.conditions import Conditions
from spark_etl.tables.frames import Counts, Frames
from spark_etl.tables.reading import KeySpan, read
from spark_etl.tables.snapshots import Snapshot, SnapshotError, SnapshotStore, damage, find, stores_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from spark_etl.source.options import Options

__all__ = ["MqttdStreamReader"]

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Part(InputPartition):
    """Keys of one sequence in one store."""

    directory: str
    worker: int
    span: KeySpan


@dataclass(slots=True)
class _Place:
    """The place up to which a sequence was read: the number, and the amount stored up to it."""

    number: int
    behind: int


class MqttdStreamReader(DataSourceStreamReader):
    """Plans batches on the driver, and reads their parts. Methods raise SnapshotError."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.table.name not in LOGS:
            raise SnapshotError(f"{options.table.name} cannot be streamed; {', '.join(LOGS)} can")
        self._options = options
        self._schema = schema

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        """Return the offset before everything."""
        return {}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802, ARG002
        """Return the offset after everything that has arrived."""
        found = {name: _Place(**place) for name, place in start.items()}
        for snapshot in self._arrived():
            for name, part in self._coverage(snapshot):
                if name not in found or found[name].number < part.last:
                    found[name] = _Place(part.last, part.behind)
        return {name: {"number": each.number, "behind": each.behind} for name, each in sorted(found.items())}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the parts between two offsets."""
        places = {name: _Place(**place) for name, place in start.items()}
        wanted = {name: int(place["number"]) for name, place in end.items()}
        parts: list[InputPartition] = []
        if start == end:
            return parts
        for snapshot in self._arrived():
            if any(places.get(name, _Place(0, 0)).number < number for name, number in wanted.items()):
                parts += self._parts(snapshot, places, wanted)
        for name, number in wanted.items():
            if places.get(name, _Place(0, 0)).number < number:
                raise SnapshotError(f"{self._options.paths}: no snapshot has {name} up to number {number} any more")
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        assert isinstance(partition, _Part)
        options = self._options
        (snapshot,) = find(partition.directory)
        store = SnapshotStore(snapshot, snapshot.manifest.stores[partition.worker])
        frames = Frames(to_arrow_schema(self._schema, timezone="UTC"), store, Counts())
        yield from read(store, options.table.name, [partition.span], Conditions(), frames, options.scratch)

    def commit(self, end: Offset) -> None:
        """Do nothing: no state is kept of what was read."""

    def stop(self) -> None:
        """Do nothing: there is nothing to stop."""

    # ---------------------------------------------------------------- on the driver

    def _arrived(self) -> list[Snapshot]:
        # in the order of their times; there may be none yet
        texts = self._options.paths.split(",")
        if not any(Path(text).is_dir() and next(Path(text).rglob(NAME), None) for text in texts):
            return []
        return sorted(
            find(self._options.paths, partial="skip"), key=lambda each: (each.manifest.taken_ms, str(each.directory))
        )

    def _runs(self, snapshot: Snapshot) -> Iterator[tuple[SnapshotStore, str, Run]]:
        # runs from which the table is made; a run may be used until the next is taken
        for store in stores_of([snapshot]):
            try:
                with clones.cloned(store.path, self._options.scratch) as db:
                    for run in runs_of(db, store):
                        if run.sequence.kind == LOGS[self._options.table.name]:
                            yield (
                                store,
                                "/".join(map(str, (run.sequence.host, run.sequence.worker, run.sequence.rule))),
                                run,
                            )
            except (CloneError, SchemaError, plyvel.Error, OSError) as error:
                raise SnapshotError(f"{damage(store)} ({error})") from None

    @functools.cached_property
    def _known(self) -> dict[tuple[str, int], list[tuple[str, SequencePart]]]:
        return {}

    def _coverage(self, snapshot: Snapshot) -> list[tuple[str, SequencePart]]:
        key = str(snapshot.directory), snapshot.manifest.taken_ms
        if key not in self._known:
            self._known[key] = [(name, run.part) for _, name, run in self._runs(snapshot)]
        return self._known[key]

    def _parts(self, snapshot: Snapshot, places: dict[str, _Place], wanted: dict[str, int]) -> Iterator[InputPartition]:
        for store, name, run in self._runs(snapshot):
            last = min(wanted.get(name, 0), run.part.last)
            place = places.get(name)
            if (place is not None and last <= place.number) or last < run.part.first:
                continue
            if place is not None:
                self._compare(snapshot, name, place, run)
            behind = run.counted(last)
            if behind is None:
                continue  # another snapshot has it
            span = KeySpan(run.key(place.number + 1 if place else 0), run.key(last) + b"\0")
            yield _Part(str(snapshot.directory), store.facts.worker, span)
            places[name] = _Place(last, behind)

    def _compare(self, snapshot: Snapshot, name: str, place: _Place, run: Run) -> None:
        # checks that it continues where the last one has ended
        part = run.part
        found = run.counted(place.number) if part.first <= place.number else min(place.behind, part.before)
        if found != place.behind:
            raise SnapshotError(
                f"{snapshot.directory}: {name} has not the history of what was read up to {place.number}"
            )
        if part.first > place.number and part.before > place.behind and self._options.missing != "skip":
            raise SnapshotError(
                f"{snapshot.directory}: {name}: {part.before - place.behind:,} behind number {place.number} were "
                "removed before a snapshot was taken"
            )
