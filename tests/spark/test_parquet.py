"""The jobs `parquet`, `compact`, `quality` and `prune` on hand-made snapshots."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from leveldb_store.format import events, queued_messages, schema, session_schema
from leveldb_store.format.queued_messages import StoredQueued
from leveldb_store.format.schema import StoredMessage
from spark_etl.__main__ import main
from spark_etl.parquet.committed import committed
from spark_etl.parquet.compacting import compact
from spark_etl.parquet.job import found, parquet, taken_of
from spark_etl.parquet.output import Commit, Output
from spark_etl.parquet.pruning import prunable
from spark_etl.parquet.quality import Looked, report
from spark_etl.tables import catalogue as tables
from spark_etl.tables.catalogue import Table
from tests.made_snapshot import archive_of, log_of, number_at, snapshot_of

T = 1_790_000_000  # 2026-09-21, 14:13:20 UTC
DAY = 86_400
MESSAGES = ("messages",)


def messages(worker: int, seconds: Iterable[int], publisher: str = "p") -> Iterator[StoredMessage]:
    """Yield a message for each of these seconds."""
    for second in seconds:
        payload = b"%d of %d" % (second, worker)
        yield StoredMessage(b"t/%d" % (second % 3), payload, number_at(T + second, worker), publisher=publisher)


def kept(session: str, message: StoredMessage, number: int) -> tuple[bytes, bytes]:
    return schema.queued_key(session, number), queued_messages.encode_queued(StoredQueued(1, 0, b"", message))


def samples(minutes: Iterable[int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield counter samples of worker 0, recorded when its clock showed these minutes."""
    before = 0
    for index, minute in enumerate(minutes):
        value = events.encode_event(events.COUNTERS, [], [(T + minute * 60) * 1000], [("delivered", index)])
        key, value = events.event_key(number_at(T + index)), schema.U64.pack(before) + value
        yield key, value
        before += len(key) + len(value)


def take(spark: SparkSession, out: Path, *snapshots: Path, wanted: tuple[str, ...] = MESSAGES) -> Commit:
    with Output(out) as output:
        parquet(spark, found(",".join(map(str, snapshots))), output, wanted)
        return output.last()


def numbers(spark: SparkSession, out: Path, origin: str = "%") -> list[int]:
    rows = committed(spark, out, "messages").where(f"origin like '{origin}'").select("number").collect()
    return sorted(row.number for row in rows)


def wanted(*ranges: tuple[int, range]) -> list[int]:
    return sorted(number_at(T + second, worker) for worker, seconds in ranges for second in seconds)


def digests(out: Path) -> dict[str, str]:
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.glob("*/date=*/*/*.parquet"))
    }


class Host:
    """Snapshots of a data directory of two workers over a day."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # each has the messages of the one before, without those that retention has removed
        self.first = self.snapshot("first", 1, [(0, 0, range(100)), (1, 0, range(90))])
        self.second = self.snapshot("second", 2, [(0, 50, range(50, 220)), (1, 30, range(30, 200))])
        self.third = self.snapshot("third", 3, [(0, 100, range(100, 300)), (1, 50, range(50, 290))])

    def snapshot(
        self, name: str, hour: int, workers: list[tuple[int, int, range]], stores: int = 2, host: str = "host"
    ) -> Path:
        """Make a snapshot. `workers`: (worker, number of messages before, messages in the snapshot) of each."""
        path = self.directory / name
        records: list[list[tuple[bytes, bytes]]] = [[] for _ in range(stores)]
        for worker, before, seconds in workers:
            everything = list(archive_of(messages(worker, range(before + len(seconds))), block=10))
            records[worker % stores] += [everything[0], *everything[1 + before // 10 :]]
        snapshot_of(path, records, host=host, taken_ms=(T + hour * 3600) * 1000)
        return path


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return Host(tmp_path_factory.mktemp("host"))


EVERYTHING = ((0, range(300)), (1, range(290)))


def test_each_message_is_there_once_however_snapshots_overlap(spark: SparkSession, host: Host, tmp_path: Path) -> None:
    out = tmp_path / "out"
    take(spark, out, host.second)
    assert numbers(spark, out) == wanted((0, range(50, 220)), (1, range(30, 200)))
    # an older one, the same one under another name, and a newer one
    again = tmp_path / "again"
    shutil.copytree(host.second, again)
    commit = take(spark, out, host.first, again, host.third)
    assert numbers(spark, out) == wanted(*EVERYTHING)
    assert len(commit.snapshots) == 3
    # two workers were repartitioned to one; and a copy of the directory has continued separately
    merged = host.snapshot("merged", 4, [(0, 150, range(150, 310)), (1, 200, range(200, 300))], stores=1)
    take(spark, out, merged)
    other = host.directory / "other"
    some = [*range(40), *range(1000, 1010)]
    snapshot_of(other, [archive_of(messages(0, some), block=10)], taken_ms=(T + 5 * 3600) * 1000)
    take(spark, out, other)
    assert numbers(spark, out) == wanted((0, range(310)), (1, range(300)), (0, range(1000, 1010)))


def test_a_second_run_takes_nothing_and_another_one_makes_the_same_files(
    spark: SparkSession, host: Host, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for out in (one, other):
        assert take(spark, out, host.first, host.second, wanted=("messages", "stores")).number == 1
    before = digests(one)
    assert take(spark, one, host.first, host.second, wanted=("messages", "stores")).number == 1
    assert before == digests(one) == digests(other)
    assert committed(spark, one, "stores").count() == 4


def test_waiting_messages_are_there_once_whoever_waits_and_whether_or_not_they_are_archived(
    spark: SparkSession, tmp_path: Path
) -> None:
    def stores(archived: range) -> list[Iterator[tuple[bytes, bytes]]]:
        some = list(messages(0, range(20)))
        record = kept("s", some[3], number_at(T + 500))
        zero = itertools.chain(archive_of(messages(0, archived), block=5), log_of(some))
        return [zero, itertools.chain(log_of(iter(some[10:])), [record, kept("u", some[4], number_at(T + 501))])]

    # worker 1 was cloned later than worker 0: it has messages that worker 0 has not archived yet
    snapshot_of(tmp_path / "first", stores(range(10)), taken_ms=(T + 60) * 1000)
    snapshot_of(tmp_path / "second", stores(range(25)), taken_ms=(T + 120) * 1000)
    out = tmp_path / "out"
    take(spark, out, tmp_path / "first")
    assert numbers(spark, out, "archive") == wanted((0, range(10)))
    assert numbers(spark, out) == wanted((0, range(20)))
    take(spark, out, tmp_path / "second")
    assert numbers(spark, out) == wanted((0, range(25)))


def test_events_are_there_once_and_what_describes_a_snapshot_once_for_each(spark: SparkSession, tmp_path: Path) -> None:
    for hour, count in ((1, 3), (2, 5)):
        session = session_schema.encode_session(session_schema.StoredSession(60, 5, None, 0, T * 1000))
        records = [*samples(range(count)), (schema.session_key("c"), session)]
        snapshot_of(tmp_path / f"at{hour}", [iter(records)], taken_ms=(T + hour * 3600) * 1000)
    out = tmp_path / "out"
    names = ("events", "counters", "sessions")
    take(spark, out, tmp_path / "at1", wanted=names)
    take(spark, out, tmp_path / "at1", tmp_path / "at2", wanted=names)
    assert [row.value for row in committed(spark, out, "counters").orderBy("number").collect()] == [0, 1, 2, 3, 4]
    assert committed(spark, out, "events").count() == 5
    assert [row.client for row in committed(spark, out, "sessions").collect()] == ["c", "c"]


def test_small_files_become_one_with_the_same_rows_and_others_can_read_them(
    spark: SparkSession, host: Host, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for snapshot in (host.first, host.second, host.third):
        take(spark, out, snapshot)
    before = committed(spark, out, "messages").orderBy("number").collect()
    with Output(out) as output:
        assert compact(spark, output, least=100) is None
        after = compact(spark, output)
    assert after is not None
    assert len(after.files) == 1
    assert committed(spark, out, "messages").orderBy("number").collect() == before
    # without Spark: partitions by the names of directories
    frame = pd.read_parquet(out / "messages")
    assert sorted(frame["number"]) == wanted(*EVERYTHING)
    assert set(frame["tenant"]) == {"default"}
    by_date = duckdb.sql(
        f"select date, count(*), max(time) from read_parquet('{out}/messages/**/*.parquet', hive_partitioning=true) "
        "group by date"
    )
    assert by_date is not None
    assert [(str(date), count) for date, count, _ in by_date.fetchall()] == [("2026-09-21", 590)]


def test_rows_lie_under_the_date_at_which_they_were_received_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    midnight = T // DAY * DAY + DAY - T
    some = messages(0, [midnight - 1, midnight])
    snapshot_of(tmp_path / "snapshot", [archive_of(some)], taken_ms=(T + 2 * DAY) * 1000)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        commit = take(spark, tmp_path / "out", tmp_path / "snapshot")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert Counter((file.date, file.rows) for file in commit.files) == {("2026-09-21", 1): 1, ("2026-09-22", 1): 1}


def test_output_of_a_release_with_other_columns_is_readable(
    spark: SparkSession, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    today = tables.TABLES["messages"]
    columns = tuple(column for column in today.columns if column.name not in ("matches", "content_type"))
    with monkeypatch.context() as older:
        older.setitem(tables.TABLES, "messages", Table("messages", "", columns))
        take(spark, out, host.first)
        assert "matches" not in committed(spark, out, "messages").columns
    take(spark, out, host.second)
    rows = committed(spark, out, "messages").groupBy("matches").count().collect()
    assert {(row.matches, row["count"]) for row in rows} == {(None, 190), (1, 230)}
    with Output(out) as output:
        compact(spark, output)
    assert committed(spark, out, "messages").where("matches is null").count() == 190
    # output with a column that this release does not know
    commit = Output(out).last()
    commit.columns["messages"].append(["of_tomorrow", "int"])
    assert committed(spark, out, "messages", commit).columns[-1] == "of_tomorrow"


def test_quality_says_what_is_not_as_it_should_be(spark: SparkSession, host: Host, tmp_path: Path) -> None:
    out = tmp_path / "out"
    names = ("messages", "events")
    take(spark, out, host.first, host.second, wanted=names)
    looked = Looked(spark, Output(out), Output(out).last(), found(f"{host.first},{host.second}"))
    said = report(looked)
    assert said["is_good"], said
    assert said["rows"] == {"messages": 420}
    # retention was faster than the next snapshot, a clock was set back, a file is missing and an extra one exists
    late = host.snapshot("late", 6, [(0, 250, range(250, 400)), (1, 0, range(300))])
    back = tmp_path / "back"
    snapshot_of(back, [samples([1, 2, 1, 3])], host="back", taken_ms=(T - 600) * 1000)
    take(spark, out, late, back, wanted=names)
    commit = Output(out).last()
    archived = [file for file in commit.files if file.table == "messages"]
    double = out / archived[0].path
    shutil.copy(double, double.with_name("more.parquet"))
    manifest = json.loads((late / "snapshot.json").read_text())
    manifest["stores"][0]["archived"]["#"]["messages"] += 1
    (late / "snapshot.json").write_text(json.dumps(manifest))
    said = report(Looked(spark, Output(out), commit, found(str(late))))
    findings = {check["name"]: check["findings"] for check in said["checks"]}
    assert not said["is_good"]
    assert findings["manifests"] == [f"{late}/worker-0: archived by #: 151 by the manifest, 150 were read"]
    assert findings["files"] == [f"{double.with_name('more.parquet')}: is none of the output's files"]
    assert len(findings["gaps"]) == 1
    assert "host: 30 messages of #, worker 0 were removed before a snapshot was taken" in findings["gaps"][0]
    assert findings["times"] == ["back: worker 0: the minute 2026-09-21 14:14:20 comes after 2026-09-21 14:15:20"]
    assert findings["doubles"] == findings["tenants"] == []


def test_quality_finds_a_message_that_is_there_twice(spark: SparkSession, host: Host, tmp_path: Path) -> None:
    out = tmp_path / "out"
    commit = take(spark, out, host.first)
    (file,) = commit.files
    again = replace(file, path=file.path.replace("00000001-", "00000002-"))
    shutil.copy(out / file.path, out / again.path)
    twice = Commit(commit.number, files=(file, again))
    said = report(Looked(spark, Output(out), twice, []))
    (doubles,) = [check for check in said["checks"] if check["name"] == "doubles"]
    (line,) = doubles["findings"]
    assert line.startswith(f"messages: 190 are there more than once: host, {number_at(T)} 2 times; host, ")


def test_only_snapshots_that_were_taken_are_pruned(spark: SparkSession, host: Host, tmp_path: Path) -> None:
    commit = take(spark, tmp_path / "out", host.first, host.second)
    snapshots = found(f"{host.first},{host.second},{host.third}")
    assert [each.directory.name for each in prunable(snapshots, commit, 1)] == ["first", "second"]
    assert [each.directory.name for each in prunable(snapshots, commit, 2)] == ["first"]
    assert [each.directory.name for each in prunable(snapshots, commit, 0)] == ["first", "second"]
    assert taken_of(snapshots[0]).identity == ("host", "host-epoch", (T + 3600) * 1000)


def test_what_is_wrong_is_said_in_one_line(
    spark: SparkSession, host: Host, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    damaged = tmp_path / "damaged"
    shutil.copytree(host.first, damaged)
    table = max((damaged / "worker-1").glob("*.ldb"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    content[: len(content) // 2] = bytes(len(content) // 2)
    table.write_bytes(content)
    (tmp_path / "empty").mkdir()
    out, taken = tmp_path / "out", tmp_path / "taken"
    take(spark, taken, host.first)
    capfd.readouterr()
    for arguments, line in (
        (["parquet", "--snapshots", str(damaged), "--out", str(out)], f"{table}: is damaged"),
        (["parquet", "--snapshots", str(tmp_path / "empty"), "--out", str(out)], f"{tmp_path / 'empty'}: is not a"),
        (["parquet", "--snapshots", str(host.first), "--out", str(out), "--tables", "x"], "there is no table 'x'"),
        (
            ["parquet", "--snapshots", str(host.first), "--out", str(taken), "--tables", "events"],
            f"{taken}: has the tab",
        ),
        (["quality", "--out", str(tmp_path / "none")], f"{tmp_path / 'none'}: is no output of the job parquet"),
    ):
        assert main(arguments) == 2
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith(f"spark_etl: {line}"), lines
    assert not list(out.glob("messages/**/*.parquet"))


def test_jobs_are_listed_and_run_by_name(
    spark: SparkSession, host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "  parquet              snapshots to Parquet: what is new since the last run\n" in listed
    assert "  silent_devices " in listed
    out = tmp_path / "out"
    assert main(["parquet", "--snapshots", str(host.first), "--out", str(out), "--tables", "messages"]) == 0
    assert capsys.readouterr().out == "commit 1: 190 messages\n"
    assert main(["parquet", "--snapshots", str(host.first), "--out", str(out)]) == 0
    assert capsys.readouterr().out == "nothing is new\n"
    copies = tmp_path / "copies"
    shutil.copytree(host.first, copies / "first")
    assert main(["prune", "--snapshots", str(copies), "--out", str(out), "--keep", "0"]) == 0
    assert not (copies / "first").exists()
