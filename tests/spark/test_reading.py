"""Reading of snapshots: the blocks that are read or skipped, and snapshots that cannot be read."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from leveldb_store.format import schema
from leveldb_store.format.schema import StoredMessage
from leveldb_store.snapshots.snapshot import NAME
from tests.made_snapshot import archive_of, log_of, number_at, snapshot_of
from tests.spark.conftest import Load
from tests.spark.rows import rows_of

START = datetime(2026, 11, 21, tzinfo=UTC)
HOURS = 24
LEVELS = 100
PER_HOUR = 1000
BLOCK = 25


def fleet(worker: int) -> Iterator[StoredMessage]:
    """Yield a worker's messages of a day: 100 first levels, a few of them in each block, as ticks write them."""
    chosen = random.Random(worker)
    for number in range(HOURS * PER_HOUR):
        at = START.timestamp() + number * 3600 / PER_HOUR
        level = (number // BLOCK * 5 + chosen.randrange(5)) % LEVELS
        topic = f"l{level}/device-{number % 7}".encode()
        yield StoredMessage(topic, b"%d" % number, number_at(at, worker), publisher="p")


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a snapshot of a day of two workers; the second one's messages are in the log, too."""
    directory = tmp_path_factory.mktemp("day") / "snapshot"
    stores = [
        archive_of(fleet(0), "#", block=BLOCK),
        [*archive_of(fleet(1), "#", block=BLOCK), *log_of(fleet(1), block=50)],
    ]
    snapshot_of(directory, stores, taken_ms=1_795_000_000_000)
    return directory


def blocks_read(directory: Path) -> dict[str, int]:
    """Return the metrics of all tasks, summed."""
    total: Counter[str] = Counter()
    for file in directory.glob("*.json"):
        total.update({name: value for name, value in json.loads(file.read_text()).items() if isinstance(value, int)})
    return total


def test_one_hour_of_one_level_reads_a_tenth_of_the_blocks_at_most(day: Path, load: Load, tmp_path: Path) -> None:
    begin, end = START + timedelta(hours=7), START + timedelta(hours=8)
    found = load(day, metrics=str(tmp_path)).where(
        (sql.col("origin") == "archive") & (sql.col("first_level") == "l42") & (sql.col("time") >= begin)
        & (sql.col("time") < end)
    )  # fmt: skip
    expected = Counter(
        message.payload.decode()
        for worker in (0, 1)
        for message in fleet(worker)
        if message.topic.startswith(b"l42/")
        and number_at(begin.timestamp()) <= message.number < number_at(end.timestamp())
    )
    assert Counter(row.payload_text for row in found.collect()) == expected != Counter()
    read = blocks_read(tmp_path)
    blocks = 2 * HOURS * PER_HOUR // BLOCK
    assert read["blocks_read"] <= 0.05 * blocks
    assert read["blocks_decoded"] <= 0.005 * blocks


@pytest.mark.parametrize(
    "condition",
    [
        "topic = 'l3/device-1'",
        "topic in ('l3/device-1', 'l4/device-2')",
        "topic like 'l3/%'",
        "topic like 'l3%'",
        "first_level in ('l1', 'l2', 'none')",
        "first_level <=> 'l1' and not topic = 'l1/device-1'",
        "number > 459580000000000000 and number <= 459585000000000000",
        "time between '2026-11-21 10:00:00' and '2026-11-21 10:00:03.6'",
        "time = '2026-11-21 10:00:00'",
        "time > '2026-11-21 23:59:00' or topic = 'l3/device-1'",
        "time < '2026-11-21 00:00:10' and worker = 1",
        "time in ('2026-11-21 10:00:00', '2026-11-21 11:00:00')",
        "rule = '#' and store = 0 and hour(time) = 3",
        "rule is null and time > '2026-11-21 23:50:00'",
        "rule <=> null and worker in (1, 2) and time < '2026-11-21 00:10:00'",
        "origin = 'queue' and first_level = 'l9'",
        "host = 'other'",
        "time < '1960-01-01 00:00:00'",
        "payload_text = '77'",
    ],
)
def test_conditions_find_the_same_whether_they_are_pushed_down_or_not(
    day: Path, load: Load, everything: DataFrame, condition: str
) -> None:
    expected = everything.where(condition).collect()
    assert Counter(rows_of(load(day, columns=",".join(everything.columns)).where(condition).collect())) == Counter(
        rows_of(expected)
    )
    assert bool(expected) == ("other" not in condition and "1960" not in condition), "it says something"


@pytest.fixture(scope="module")
def everything(day: Path, spark: SparkSession) -> DataFrame:
    """Return the messages, read without pushed-down conditions."""
    columns = "host,store,origin,worker,number,time,rule,topic,first_level,payload_text"
    rows = spark.read.format("mqttd").option("columns", columns).load(str(day))
    return spark.createDataFrame(rows.collect(), rows.schema).cache()


@pytest.mark.parametrize("size", ["60000", "50000", "40000", "30000"])
def test_tasks_that_share_a_store_have_each_row_once(day: Path, load: Load, tmp_path: Path, size: str) -> None:
    parts = load(day, columns="number,store,position,origin", partition_bytes=size, metrics=str(tmp_path))
    rows = parts.collect()
    assert blocks_read(tmp_path)["clones"] >= 8
    assert blocks_read(tmp_path)["rows"] == len(rows) == 3 * HOURS * PER_HOUR
    assert len(set(rows)) == len(rows)
    assert [row.position for row in rows if row.origin == "queue"] == list(range(1, HOURS * PER_HOUR + 1))


def test_heads_are_enough_to_count(day: Path, load: Load, tmp_path: Path) -> None:
    counted = load(day, columns="origin", metrics=str(tmp_path)).where("origin = 'archive'").count()
    assert counted == 2 * HOURS * PER_HOUR
    assert blocks_read(tmp_path)["blocks_read"] == 2 * HOURS * PER_HOUR // BLOCK
    assert blocks_read(tmp_path)["blocks_decoded"] == 0


def test_views_in_sql(day: Path, spark: SparkSession) -> None:
    spark.sql(f"CREATE OR REPLACE TEMP VIEW day USING mqttd OPTIONS (path '{day}', columns 'topic,time')")
    (row,) = spark.sql(
        "SELECT count(*) AS n FROM day WHERE topic LIKE 'l5/%' AND time < '2026-11-21 01:00:00'"
    ).collect()
    in_the_hour = [m for w in (0, 1, 1) for m in list(fleet(w))[:PER_HOUR] if m.topic.startswith(b"l5/")]
    assert row.n == len(in_the_hour) > 0
    spark.catalog.dropTempView("day")


def test_several_snapshots_by_directory_by_pattern_and_by_name(load: Load, tmp_path: Path) -> None:
    for host in ("a", "b"):
        for number in range(2):
            directory = tmp_path / host / f"s{number}"
            directory.parent.mkdir(exist_ok=True)
            message = StoredMessage(b"t", host.encode(), number_at(1_790_000_000 + number))
            snapshot_of(directory, [archive_of([message])], host)
    (tmp_path / "a" / "unfinished" / "worker-0").mkdir(parents=True)
    names = [tmp_path / host / f"s{number}" for host in ("a", "b") for number in range(2)]
    for paths in (str(tmp_path), f"{tmp_path}/*/s*", ",".join(map(str, names)), f"{tmp_path}/a, {tmp_path}/b"):
        rows = load(paths, columns="snapshot,host,payload_text").collect()
        assert [row.snapshot for row in rows] == [str(name) for name in names]
        assert [row.host for row in rows] == [row.payload_text for row in rows] == ["a", "a", "b", "b"]
    assert load(tmp_path, "stores").count() == 4


def test_what_cannot_be_read_is_one_line_that_names_the_file(load: Load, tmp_path: Path) -> None:
    good = tmp_path / "good"
    snapshot_of(good, [archive_of([StoredMessage(b"t", b"x" * 5000, number_at(n)) for n in range(1, 400)], block=1)])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "file").touch()
    manifest = json.loads((good / NAME).read_text())
    for name, key, value in (("newer", "schema", 99), ("later", "format", 99), ("odd", "stores", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / NAME).write_text(json.dumps({**manifest, key: value}))
    for path, options, line in (
        (foreign, {}, f"{foreign}: is not a snapshot of mqttd, or is incomplete"),
        (tmp_path / "missing", {}, f"{tmp_path / 'missing'}: is not a snapshot of mqttd"),
        (tmp_path / "none*", {}, f"{tmp_path / 'none*'}: matches nothing"),
        (
            tmp_path / "newer",
            {},
            f"{tmp_path / 'newer'}: the stores have schema version 99, this mqttd reads versions 1 to 2",
        ),
        (tmp_path / "later", {}, f"{tmp_path / 'later'}: the snapshot has format 99, this mqttd reads formats 1 to 2"),
        (tmp_path / "odd", {}, f"{tmp_path / 'odd'}: {NAME} is damaged"),
        (good, {"columns": "topic,levle"}, "the table messages has no column levle; it has snapshot, "),
        (good, {"table": "message"}, "there is no table 'message'; there are messages, "),
        (good, {"colums": "topic"}, "there is no option colums; there are columns, "),
        (good, {"partition_bytes": "1 MB"}, "partition_bytes is '1 MB', not a number of bytes"),
    ):
        with pytest.raises(Exception, match="SQLSTATE") as refused:
            load(path, **options)
        assert line in str(refused.value)
    table = max((good / "worker-0").glob("*.ldb"), key=lambda file: file.stat().st_size)
    content = table.read_bytes()
    middle = len(content) // 2
    table.write_bytes(content[:middle] + bytes((content[middle] ^ 1,)) + content[middle + 1 :])
    with pytest.raises(Exception, match="SnapshotError") as refused:
        load(good).collect()
    assert f"{table}: is damaged (its digest differs)" in str(refused.value)
    table.write_bytes(content)
    (good / "worker-0" / "CURRENT").unlink()
    with pytest.raises(Exception, match="SnapshotError") as refused:
        load(good).collect()
    assert f"{good / 'worker-0' / 'CURRENT'}: is missing" in str(refused.value)


def test_stores_of_another_schema_are_refused_where_their_reader_would_be(tmp_path: Path) -> None:
    from dataclasses import replace

    from spark_etl.tables import reading
    from spark_etl.tables.snapshots import SnapshotError, SnapshotStore, find, stores_of

    snapshot_of(tmp_path / "s", [[]])
    (store,) = stores_of(find(str(tmp_path / "s")))
    older = SnapshotStore(replace(store.snapshot, manifest=replace(store.snapshot.manifest, schema=0)), store.facts)
    with pytest.raises(SnapshotError, match="the stores have schema version 0, this mqttd reads 1"):
        reading.families_of(older, "messages")
    assert schema.ARCHIVED in reading.families_of(store, "messages")
