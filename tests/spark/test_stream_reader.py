"""The stream of new messages from a directory of snapshots: it continues exactly after a crash."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

from leveldb_store.format.schema import StoredMessage
from spark_etl.source.options import Options
from spark_etl.source.stream_reader import MqttdStreamReader
from spark_etl.tables.snapshots import SnapshotError
from tests.made_snapshot import archive_of, number_at, snapshot_of

T = 1_790_000_000
SCHEMA = StructType().add("number", LongType())


def messages(worker: int, seconds: Iterable[int]) -> Iterator[StoredMessage]:
    for second in seconds:
        yield StoredMessage(b"t", b"x", number_at(T + second, worker), publisher="p")


def arrive(directory: Path, name: str, hour: int, *workers: tuple[int, int]) -> Path:
    """Make a snapshot. `workers`: the number of removed messages and the number of all messages of each."""
    stores = []
    for worker, (before, count) in enumerate(workers):
        records = list(archive_of(messages(worker, range(count)), block=10))
        stores.append([records[0], *records[1 + before // 10 :]])
    made = directory.parent / f"made-{name}"
    snapshot_of(made, stores, taken_ms=(T + hour * 3600) * 1000)
    directory.mkdir(exist_ok=True)
    return made.rename(directory / name)


def streamed(spark: SparkSession, directory: Path, work: Path) -> None:
    """Stream the new messages to Parquet below `work`."""
    query = (
        spark.readStream.format("mqttd").option("columns", "number").load(str(directory))
        .writeStream.format("parquet").option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True).start(str(work / "rows"))
    )  # fmt: skip
    query.awaitTermination()


def rows(spark: SparkSession, work: Path) -> list[int]:
    return sorted(row.number for row in spark.read.parquet(str(work / "rows")).collect())


def wanted(*counts: int) -> list[int]:
    return sorted(number_at(T + second, worker) for worker, count in enumerate(counts) for second in range(count))


def test_a_stream_goes_on_where_its_checkpoint_ends_and_again_after_a_crash(
    spark: SparkSession, tmp_path: Path
) -> None:
    arriving, work = tmp_path / "arriving", tmp_path / "work"
    arrive(arriving, "first", 1, (0, 30), (0, 20))
    streamed(spark, arriving, work)
    assert rows(spark, work) == wanted(30, 20)
    # a newer one, and an older one that arrives late
    arrive(arriving, "second", 2, (20, 60), (10, 40))
    arrive(arriving, "late", 0, (0, 10), (0, 10))
    shutil.rmtree(arriving / "first")
    streamed(spark, arriving, work)
    assert rows(spark, work) == wanted(60, 40)
    # the batch was planned and written, but not committed when the job was killed; another snapshot has arrived since
    (last,) = sorted((work / "checkpoint" / "commits").glob("[0-9]*"))[-1:]
    last.unlink()
    (work / "checkpoint" / "commits" / f".{last.name}.crc").unlink()
    arrive(arriving, "third", 3, (30, 80), (20, 50))
    streamed(spark, arriving, work)
    assert rows(spark, work) == wanted(60, 40)
    streamed(spark, arriving, work)
    assert rows(spark, work) == wanted(80, 50)


def test_what_was_removed_before_it_was_read_ends_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    arriving, work = tmp_path / "arriving", tmp_path / "work"
    arrive(arriving, "first", 1, (0, 30))
    streamed(spark, arriving, work)
    arrive(arriving, "second", 2, (50, 70))
    with pytest.raises(StreamingQueryException, match="second: host/0/#: 20 behind number"):
        streamed(spark, arriving, work)


# ---------------------------------------------------------------- without a query


def reader(directory: Path, **options: str) -> MqttdStreamReader:
    return MqttdStreamReader(Options.of({"path": str(directory), **options}), SCHEMA)


def read(planned: MqttdStreamReader, start: dict[str, object], end: dict[str, object]) -> list[int]:
    found = [
        number
        for part in planned.partitions(start, end)
        for batch in planned.read(part)
        for number in batch["number"].to_pylist()
    ]
    assert len(set(found)) == len(found)
    return sorted(found)


def test_a_batch_has_the_same_rows_whichever_snapshots_are_there(tmp_path: Path) -> None:
    arriving = tmp_path / "arriving"
    first = arrive(arriving, "first", 1, (0, 30), (0, 20))
    here = reader(arriving)
    start = here.latestOffset({}, None)  # type: ignore[arg-type]
    assert start["host/0/#"] == {"number": number_at(T + 29), "behind": 30}
    second = arrive(arriving, "second", 2, (0, 50), (0, 50))
    end = reader(arriving).latestOffset(start, None)  # type: ignore[arg-type]
    new = sorted({*wanted(50, 50)} - {*wanted(30, 20)})
    assert read(reader(arriving), start, end) == new
    assert read(reader(arriving), {}, end) == wanted(50, 50)
    arrive(arriving, "third", 3, (20, 90), (10, 60))
    for gone in (first, second):
        shutil.rmtree(gone)
        assert read(reader(arriving), start, end) == new
    assert reader(arriving).partitions(end, end) == []


def test_of_nothing_comes_nothing(tmp_path: Path) -> None:
    (tmp_path / "arriving").mkdir()
    assert reader(tmp_path / "arriving").latestOffset({}, None) == {}  # type: ignore[arg-type]


def test_what_is_not_there_any_more_or_has_another_history_is_said(tmp_path: Path) -> None:
    arriving = tmp_path / "arriving"
    first = arrive(arriving, "first", 1, (0, 30))
    end = reader(arriving).latestOffset({}, None)  # type: ignore[arg-type]
    shutil.rmtree(first)
    with pytest.raises(SnapshotError, match="no snapshot has host/0/# up to number"):
        reader(arriving).partitions({}, end)
    arrive(arriving, "later", 2, (50, 70))
    later = reader(arriving).latestOffset(end, None)  # type: ignore[arg-type]
    with pytest.raises(SnapshotError, match="20 behind number"):
        reader(arriving).partitions(end, later)
    assert len(read(reader(arriving, missing="skip"), end, later)) == 20
    shutil.rmtree(arriving / "later")
    snapshot_of(tmp_path / "other", [archive_of(messages(0, [*range(25), *range(100, 110)]), block=10)])
    (tmp_path / "other").rename(arriving / "other")
    other = reader(arriving).latestOffset(end, None)  # type: ignore[arg-type]
    with pytest.raises(SnapshotError, match="has not the history of what was read up to"):
        reader(arriving).partitions(end, other)
    with pytest.raises(SnapshotError, match="sessions cannot be streamed; messages, events, counters, drops can"):
        reader(arriving, table="sessions")
