"""Messages that tasks write to Parquet without Spark: the same rows and types as those that Spark writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from leveldb_store.format.schema import StoredMessage
from spark_etl.parquet import direct_writer
from spark_etl.parquet import job as job
from spark_etl.parquet.committed import committed
from spark_etl.parquet.job import found, parquet
from spark_etl.parquet.output import Commit, Output
from spark_etl.tables.catalogue import TABLES
from tests.made_snapshot import archive_of, log_of, number_at, snapshot_of
from tests.spark.rows import rows_of

T = 1_790_000_000  # 2026-09-21, 14:13:20 UTC
DAY = 86_400
#: Payload Format Indicator, Content Type, Response Topic, Correlation Data, two User Properties of one name (wire form)
PROPERTIES = bytes.fromhex("01 01 03 0001 63 08 0001 72 09 0002 00ff 26 0001 6b 0001 76 26 0001 6b 0001 77")


def messages(worker: int, count: int) -> Iterator[StoredMessage]:
    """Yield messages over three days, some of them with every field of a message."""
    for each in range(count):
        number = number_at(T + each * 3 * DAY / count, worker)
        yield StoredMessage(
            f"a/{each % 7}/ä".encode() if each % 5 else b"plain", (b"\xff\x00", b"", b'{"a":1}', b"x" * 3000)[each % 4],
            number, each % 3, retain=each % 2 == 0, publisher=None if each % 11 == 0 else f"p{each % 13}",
            properties=PROPERTIES if each % 3 else b"", expires=(T + each) * 1000 if each % 4 == 0 else None,
        )  # fmt: skip


def taken(spark: SparkSession, snapshot: Path, out: Path) -> Commit:
    with Output(out) as output:
        parquet(spark, found(str(snapshot)), output, ("messages",))
        return output.last()


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("straight") / "snapshot"
    stores = [archive_of(messages(worker, 900), block=20) for worker in range(2)]
    snapshot_of(directory, stores, taken_ms=(T + 4 * DAY) * 1000)
    return directory


def test_files_have_the_rows_and_the_types_of_those_that_spark_writes(
    spark: SparkSession, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = taken(spark, snapshot, tmp_path / "mine")
    with monkeypatch.context() as without:
        without.setattr(job._Taking, "_directly", lambda *_: False)
        others = taken(spark, snapshot, tmp_path / "others")
    assert {(file.date, file.tenant) for file in mine.files} == {(file.date, file.tenant) for file in others.files}
    assert {file.date for file in mine.files} == {"2026-09-21", "2026-09-22", "2026-09-23", "2026-09-24"}
    rows = [
        sorted(rows_of(committed(spark, tmp_path / name, "messages").collect()), key=str) for name in ("mine", "others")
    ]
    assert len(rows[0]) == 1800
    assert rows[0] == rows[1]
    # also for readers that use only the files
    inferred = [spark.read.parquet(str(tmp_path / name / "messages")).schema for name in ("mine", "others")]
    assert inferred[0] == inferred[1]
    assert {field.name: field.dataType.simpleString() for field in inferred[0]} == {
        **{column.name: column.type for column in TABLES["messages"].columns}, "date": "date", "tenant": "string",
    }  # fmt: skip
    frame = pd.read_parquet(tmp_path / "mine" / "messages").set_index("number").sort_index()
    first = frame.loc[number_at(T + 2 * 3 * DAY / 900, 1)]
    assert (first["topic"], list(first["levels"]), first["payload"]) == ("a/2/ä", ["a", "2", "ä"], b'{"a":1}')
    assert dict(first["user_properties"]) == {"k": "w"}


def test_row_groups_can_be_left_out_by_number_and_topic(spark: SparkSession, snapshot: Path, tmp_path: Path) -> None:
    commit = taken(spark, snapshot, tmp_path / "out")
    for file in commit.files:
        metadata = pq.read_metadata(tmp_path / "out" / file.path)
        bounds = {
            metadata.schema.column(index).path: metadata.row_group(0).column(index).statistics
            for index in range(metadata.num_columns)
        }
        assert (bounds["number"].min, bounds["number"].max) == (file.first, file.last)
        assert (bounds["first_level"].min, bounds["first_level"].max) == ("a", "plain")
        assert bounds["payload"] is None
        assert file.rows == metadata.num_rows
        assert not file.has_queued


def test_a_group_of_rows_ends_when_it_is_large_enough_and_no_day_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_writer, "_GROUP_BYTES", 100_000)
    files = direct_writer._Files(direct_writer._fields(), tmp_path, 3)
    numbers = [number_at(T + each * 3600) for each in range(96)]
    for at in range(0, len(numbers), 30):
        files.add(_batch(files.fields, numbers[at : at + 30][::-1]))
    made = files.closed()
    assert sorted(made.values()) == [f"date=2026-09-{day}/tenant=default/part-00003.parquet" for day in range(21, 26)]
    read = [number for path in made for number in pq.read_table(path, partitioning=None)["number"].to_pylist()]
    assert sorted(read) == numbers
    assert max(pq.read_metadata(path).num_row_groups for path in made) > 1


def _batch(fields: pa.Schema, numbers: list[int]) -> pa.RecordBatch:
    columns = {
        field.name: pa.array(numbers) if field.name == "number" else pa.nulls(len(numbers), field.type)
        for field in fields
    }
    columns["payload"] = pa.array([b"x" * 5000] * len(numbers))
    return pa.RecordBatch.from_pydict(columns, schema=fields)


def test_what_another_attempt_has_left_is_no_part_of_the_output(
    spark: SparkSession, snapshot: Path, tmp_path: Path
) -> None:
    (whole,) = found(str(snapshot))
    wanted = direct_writer.shares(job._planned([whole], Commit()).missing, [whole])
    left = direct_writer._Files(direct_writer._fields(), tmp_path, 0)
    assert direct_writer._written(wanted[:1], left)
    direct_writer.write_directly(spark, wanted, tmp_path, 2)
    paths = sorted(tmp_path.glob("date=*/tenant=*/*.parquet"))
    assert {path.name for path in paths} == {"part-00000.parquet", "part-00001.parquet"}
    assert sum(pq.read_metadata(path).num_rows for path in paths) == 1800


def test_a_share_without_a_message_makes_no_file(spark: SparkSession, snapshot: Path, tmp_path: Path) -> None:
    (whole,) = found(str(snapshot))
    share = direct_writer.shares(job._planned([whole], Commit()).missing, [whole])[0]
    nothing = replace(share, conditions=replace(share.conditions, first=1, last=2))
    direct_writer.write_directly(spark, [nothing, share], tmp_path, 2)
    assert {path.name for path in tmp_path.glob("date=*/tenant=*/*.parquet")} == {"part-00001.parquet"}


def test_a_message_that_waited_before_it_was_archived_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    some = list(messages(0, 40))
    snapshot_of(tmp_path / "one", [log_of(iter(some))], taken_ms=(T + DAY) * 1000)
    snapshot_of(tmp_path / "two", [archive_of(iter(some), block=7)], taken_ms=(T + 2 * DAY) * 1000)
    out = tmp_path / "out"
    assert taken(spark, tmp_path / "one", out).files[0].has_queued
    taken(spark, tmp_path / "two", out)
    rows = committed(spark, out, "messages").collect()
    assert sorted(row.number for row in rows) == [each.number for each in some]
    assert {row.origin for row in rows} == {"queue"}
