"""The job `parquet`: writes new rows of snapshots to Parquet by date and tenant, each row once (docs/adr/0028).

Tables are of two kinds. A row of a *log* (`messages`, `events`, `counters`, `drops`) is in every snapshot taken while
it was stored; its identity is (`host`, `number`) or that of a cluster's messages (`spark_etl.parquet.identity`), and
the output has it once. Which part of a sequence an output has is
known without reading rows (`spark_etl.source.coverage`); where that cannot be proved, and for messages of the queues,
rows are compared. A row of any other table is a state at the time of its snapshot: all rows of each snapshot are
written.

Snapshots are processed in the order of their times, as many as go into one commit.
"""

from __future__ import annotations

import copy
import functools
import operator
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_etl.jobs import JobError, one_line
from spark_etl.parquet.committed import columns_of, of_files
from spark_etl.parquet.compacting import SMALL_FILES, compact
from spark_etl.parquet.direct_writer import shares, write_directly
from spark_etl.parquet.identity import IDENTITY, MessageIdentity
from spark_etl.parquet.output import Commit, File, Output, TakenSnapshot, with_columns
from spark_etl.source.coverage import Missing, Run, Sequences, runs_of
from spark_etl.source.files import LOGS, files_of_rows, files_of_stores, write
from spark_etl.tables.catalogue import TABLES
from spark_etl.tables.snapshots import Snapshot, SnapshotError, SnapshotStore, damage, find, stores_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["add_options", "found", "parquet", "run", "taken_of"]

_SNAPSHOTS_MAX: Final = 24
_BROADCAST_ROWS_MAX: Final = 1_000_000


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the job."""
    parser.add_argument("--snapshots", required=True, help="directories of snapshots, with commas between them")
    parser.add_argument("--out", required=True, type=Path, help="directory of the Parquet tables")
    parser.add_argument("--tables", help="only these, with commas between them; those of the output, or all")
    parser.add_argument("--master", default="local[*]", help="Spark's, where spark-submit has set none")


def run(options: Namespace) -> int:
    """Run the job, and print what was written."""
    from spark_etl.progress import shown
    from spark_etl.session import session

    tables = [name.strip() for name in options.tables.split(",")] if options.tables else None
    snapshots = found(options.snapshots)
    with Output(options.out) as output, session("parquet", options.master) as spark, shown(spark, "parquet"):
        commits = parquet(spark, snapshots, output, tables)
        compact(spark, output, SMALL_FILES)
    for commit, new in commits:
        rows = {name: sum(file.rows for file in new if file.table == name) for name in commit.tables}
        told = ", ".join(f"{count:,} {name}" for name, count in rows.items() if count)
        print(f"commit {commit.number}: {told or 'no rows'}")
    if not commits:
        print("nothing is new")
    return 0


def found(paths: str) -> list[Snapshot]:
    """Return the snapshots in the order of their times. Raises JobError."""
    try:
        return sorted(find(paths), key=lambda each: (each.manifest.taken_ms, str(each.directory)))
    except SnapshotError as error:
        raise JobError(str(error)) from None


def parquet(
    spark: SparkSession, snapshots: Sequence[Snapshot], output: Output, tables: Sequence[str] | None = None
) -> list[tuple[Commit, list[File]]]:
    """Write new rows; yield each commit with its new files. `output` is locked. `tables`: for a new output; None: all.

    Raises JobError.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    wanted = _tables(tables, output)
    done: list[tuple[Commit, list[File]]] = []
    while True:
        before = output.last()
        batch = _planned(snapshots, before)
        if not batch.snapshots:
            return done
        try:
            done.append(_Taking(spark, output, before, batch).commit(wanted))
        except (PySparkException, Py4JError) as error:
            raise one_line(error) from None
        except SnapshotError as error:
            raise JobError(str(error)) from None


def _tables(named: Sequence[str] | None, output: Output) -> tuple[str, ...]:
    # the output records snapshots, not tables: so all commits must have the same ones
    for name in named or ():
        if name not in TABLES:
            raise JobError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    known = output.last().tables
    if known and named and set(named) != set(known):
        raise JobError(f"{output.directory}: has the tables {', '.join(known)}; others need an output of their own")
    return known or tuple(name for name in TABLES if named is None or name in named)


# ---------------------------------------------------------------- planning


@dataclass(slots=True)
class _Batch:
    """The contents of one commit."""

    sequences: Sequences
    """The sequences in the output after it."""
    snapshots: list[Snapshot] = field(default_factory=list)
    missing: dict[Path, list[Missing]] = field(default_factory=dict)
    """Missing parts, by snapshot."""


def taken_of(snapshot: Snapshot) -> TakenSnapshot:
    """Return the record of a snapshot in the output."""
    manifest = snapshot.manifest
    return TakenSnapshot(snapshot.host, manifest.epoch, manifest.taken_ms, str(snapshot.directory))


def _planned(snapshots: Sequence[Snapshot], before: Commit) -> _Batch:
    batch = _Batch(Sequences(before.sequences))
    known = {taken.identity for taken in before.snapshots}
    for snapshot in snapshots:
        identity = taken_of(snapshot).identity
        if identity in known:
            continue
        known.add(identity)
        sequences = copy.deepcopy(batch.sequences)
        missing = list(_missing(snapshot, sequences))
        # rows that may exist must be compared with those committed
        if batch.snapshots and any(each.is_doubtful for each in missing):
            break
        batch.sequences = sequences
        batch.snapshots.append(snapshot)
        batch.missing[snapshot.directory] = missing
        if len(batch.snapshots) == _SNAPSHOTS_MAX:
            break
    return batch


def _missing(snapshot: Snapshot, sequences: Sequences) -> Iterator[Missing]:
    import plyvel

    from leveldb_store.format.schema import SchemaError
    from leveldb_store.snapshots.clone import CloneError
    from spark_etl.tables import clones

    for store in stores_of([snapshot]):
        try:
            clones.sweep(clones.place_of(store.path))
            with clones.cloned(store.path) as db:
                runs = list(runs_of(db, store))
                _compare(store, runs)
                for each in runs:
                    yield from sequences.missing(each)
                    sequences.take(each)
        except (CloneError, SchemaError, plyvel.Error, OSError) as error:
            raise JobError(f"{damage(store)} ({error})") from None


def _compare(store: SnapshotStore, runs: list[Run]) -> None:
    # compares with the manifest, because LevelDB skips what it cannot read
    for rule, facts in store.facts.archived.items():
        parts = [run.part for run in runs if run.sequence.rule == rule and run.sequence.kind == "messages"]
        first, last = (
            min((each.first for each in parts), default=0),
            max((each.last for each in parts), default=0),
        )
        if (first, last) != (facts.first, facts.last):
            raise JobError(damage(store))


# ---------------------------------------------------------------- writing


class _Taking:
    """The writing of one batch."""

    def __init__(self, spark: SparkSession, output: Output, before: Commit, batch: _Batch) -> None:
        self._spark = spark
        self._output = output
        self._before = before
        self._batch = batch
        self._number = before.number + 1
        self._identity = MessageIdentity(batch.snapshots)
        self._files: list[File] = []

    def commit(self, tables: Sequence[str]) -> tuple[Commit, list[File]]:
        columns = dict(self._before.columns)
        for table in tables:
            if table in LOGS:
                self._log(table)
            elif self._records(table):
                self._write(table, self._read(table, self._batch.snapshots), files_of_rows(self._records(table)))
            with_columns(columns, table, [(each.name, each.type) for each in TABLES[table].columns])
        taken = (*self._before.snapshots, *map(taken_of, self._batch.snapshots))
        after = Commit(
            self._number, "parquet", (*self._before.files, *self._files), taken,
            tuple(self._batch.sequences.as_dicts()), columns, tuple(tables),
        )  # fmt: skip
        return self._output.commit(after), self._files

    def _records(self, table: str) -> int:
        # number of records by the manifests
        from spark_etl.tables.manifests import OF_MANIFESTS
        from spark_etl.tables.reading import families_of

        if table in OF_MANIFESTS:
            return len(stores_of(self._batch.snapshots))
        return sum(
            store.facts.records.get(family.decode("latin-1"), 0)
            for store in stores_of(self._batch.snapshots)
            for family in families_of(store, table)
        )

    def _read(self, table: str, snapshots: list[Snapshot]) -> DataFrame:
        paths = [str(snapshot.directory) for snapshot in snapshots]
        return self._spark.read.format("mqttd").option("table", table).load(paths if len(paths) > 1 else paths[0])

    # ---------------------------------------------------------------- logs

    def _log(self, table: str) -> None:
        for is_doubtful in (False, True):
            parts = {
                directory: [
                    each for each in missing if each.sequence.kind == LOGS[table] and each.is_doubtful is is_doubtful
                ]
                for directory, missing in self._batch.missing.items()
            }
            if table == "messages" and not is_doubtful and self._directly(parts):
                continue
            frames = [
                self._read(table, [snapshot]).where(_condition(table, parts[snapshot.directory]))
                for snapshot in self._batch.snapshots
                if parts[snapshot.directory]
            ]
            if not frames:
                continue
            numbers = [number for each in parts.values() for one in each for number in (one.first, one.last)]
            rows = functools.reduce(lambda one, other: one.unionByName(other), frames)
            if is_doubtful or table == "messages":
                rows = self._but_known(table, rows, min(numbers), max(numbers), only_queued=not is_doubtful)
            self._write(table, rows, self._files_of(table, parts))
        if table == "messages":
            self._queues()

    def _directly(self, parts: dict[Path, list[Missing]]) -> bool:
        # returns whether it was written directly; impossible if messages of queues in the output may be among them
        ends = [number for each in parts.values() for one in each for number in (one.first, one.last)]
        if not ends or self._known("messages", min(ends), max(ends), only_queued=True):
            return False
        wanted = shares(parts, self._batch.snapshots)
        if wanted:
            made = self._making("messages")
            write_directly(self._spark, wanted, made, self._files_of("messages", parts))
            self._stage("messages", made)
        return True

    def _files_of(self, table: str, parts: dict[Path, list[Missing]]) -> int:
        if table != "messages":
            return files_of_rows(self._records(table))
        size = 0.0
        for snapshot in self._batch.snapshots:
            for store in snapshot.manifest.stores:
                shares = [part.share for part in parts[snapshot.directory] if part.store == store.worker]
                size += SnapshotStore(snapshot, store).bytes * max(shares, default=0.0)
        return files_of_stores(int(size), self._spark.sparkContext.defaultParallelism)

    def _queues(self) -> None:
        # writes messages that wait and are in no archive, one row each
        from pyspark.sql import Window
        from pyspark.sql import functions as sf

        facts = [store.facts for store in stores_of(self._batch.snapshots)]
        count = sum(each.messages + each.records.get("Q", 0) for each in facts)
        if not count:
            return
        waiting = self._read("messages", self._batch.snapshots).where(sf.col("origin") == "queue")
        ends = waiting.agg(sf.min("number"), sf.max("number")).first()
        if ends is None or ends[0] is None:
            return
        order = Window.partitionBy(*IDENTITY).orderBy("taken", "snapshot", "store", "session", "position")
        turns = self._identity.with_identity(waiting).withColumn("_turn", sf.row_number().over(order))
        first = turns.where(sf.col("_turn") == 1).drop("_turn", *IDENTITY)
        self._write("messages", self._but_known("messages", first, ends[0], ends[1]), files_of_rows(count))

    def _but_known(
        self, table: str, rows: DataFrame, first: int, last: int, *, only_queued: bool = False
    ) -> DataFrame:  # fmt: skip
        # without rows that the output, or this commit so far, has; `only_queued`: compares only with rows of queues
        from pyspark.sql import functions as sf

        paths = self._known(table, first, last, only_queued=only_queued)
        if not paths:
            return rows
        known = of_files(self._spark, paths, columns_of(self._before, table))
        known = known.where(sf.col("number").between(first, last))
        if only_queued:
            known = known.where(sf.col("origin") == "queue")
        identity = self._identity if table == "messages" else MessageIdentity(())
        known = identity.with_identity(known.select(*identity.columns)).select(*IDENTITY).distinct()
        count = known.count()
        if not count:
            return rows
        if count <= _BROADCAST_ROWS_MAX:
            known = sf.broadcast(known)
        return identity.with_identity(rows).join(known, list(IDENTITY), "left_anti").drop(*IDENTITY)

    def _known(self, table: str, first: int, last: int, *, only_queued: bool) -> list[Path]:
        # files that may have rows with these numbers
        staged = self._output.staging(self._number)
        return [
            (self._output.directory if file in self._before.files else staged) / file.path
            for file in (*self._before.files, *self._files)
            if file.table == table and (file.has_queued or not only_queued)
            and file.first is not None and file.first <= last and file.last is not None and first <= file.last
        ]  # fmt: skip

    # ---------------------------------------------------------------- files

    def _write(self, table: str, rows: DataFrame, files: int) -> None:
        made = self._making(table)
        write(rows.select(*TABLES[table].names), table, made, files)
        self._stage(table, made)

    def _making(self, table: str) -> Path:
        return self._output.staging(self._number) / f"making-{table}-{len(self._files)}"

    def _stage(self, table: str, made: Path) -> None:
        self._files += self._output.stage(self._number, table, made, sum(each.table == table for each in self._files))


def _condition(table: str, parts: list[Missing]) -> Column:
    from pyspark.sql import functions as sf

    def of(part: Missing) -> Column:
        found = (sf.col("store") == part.store) & sf.col("number").between(part.first, part.last)
        if table == "messages":
            found &= (sf.col("worker") == part.sequence.worker) & (sf.col("rule") == part.sequence.rule)
        return found

    # the data source uses the first condition to skip
    bounds = sf.col("number").between(min(part.first for part in parts), max(part.last for part in parts))
    if table == "messages":
        bounds &= sf.col("origin") == "archive"
    return bounds & functools.reduce(operator.or_, map(of, parts))
