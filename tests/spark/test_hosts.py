"""Snapshots of the hosts of a cluster as tables: the host is a column, and nothing is counted twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from leveldb_store.format import schema, session_schema
from leveldb_store.format.schema import StoredMessage
from leveldb_store.snapshots.cluster_facts import ClusterFacts
from leveldb_store.snapshots.cluster_manifest import NAME, ClusterManifest, HostPart
from spark_etl.analyses import ANALYSES, once
from spark_etl.analyses.frames import latest
from spark_etl.parquet.committed import committed
from spark_etl.parquet.job import found, parquet
from spark_etl.parquet.output import Output
from spark_etl.parquet.pruning import prunable
from spark_etl.parquet.quality import Looked, report
from spark_etl.tables.snapshots import SnapshotError, find
from tests.cluster.hosts import Hosts, hosts_of
from tests.made_snapshot import Records, archive_of, log_of, number_at, snapshot_of
from tests.mqttd_command import mqttd
from tests.spark.conftest import Load

T = 1_790_000_000
NEVER = 0xFFFFFFFF


def message(topic: bytes, payload: bytes, at: int, worker: int = 0) -> StoredMessage:
    return StoredMessage(topic, payload, number_at(T + at, worker), 1)


def session(client: str, disconnected_s: int) -> tuple[bytes, bytes]:
    """Return the record of a session; disconnected_s: 0: it is connected."""
    stored = session_schema.StoredSession(NEVER, 5, None, disconnected_s * 1000, T * 1000)
    return schema.session_key(client), session_schema.encode_session(stored)


def retained(topic: bytes, payload: bytes, at: int) -> tuple[bytes, bytes]:
    return schema.RETAINED + topic, schema.encode_message(message(topic, payload, at))


def part_of(directory: Path, node: str, number: int, taken_s: int, stores: list[Records], id_: str) -> None:
    """Make a host's part of the snapshot in this directory."""
    directory.mkdir(exist_ok=True)
    facts = ClusterFacts("mqttd", node, number, id_)
    snapshot_of(directory / f"host-{node}", stores, f"epoch of {node}", taken_s * 1000, facts)


def whole(directory: Path, *nodes: str) -> None:
    """Write the manifest of these hosts."""
    parts = tuple(HostPart(node, f"/snapshots/host-{node}", "1", 1, 1, 1, 0, 0, 0, 0) for node in nodes)
    (directory / NAME).write_text(ClusterManifest(directory.name, "mqttd", 1, parts).encode())


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    """A snapshot of two hosts.

    `both` waits on both; a and b have given the number of 5 s to different messages, of which b has both. `moves` has
    moved from a to b between the two, `stale` has been left behind at b, and is connected at a.
    """
    same = message(b"t/both", b"x", 1)
    directory = tmp_path / "snapshots" / "one"
    directory.parent.mkdir()
    of_a = [
        *archive_of([message(b"t/archived", b"a", 3), message(b"t/of-a", b"5", 5)]),
        *log_of([same, message(b"t/archived", b"a", 3)]),
        session("moves", 0),
        session("stale", 0),
        session("only-a", T + 50),
        retained(b"r/same", b"1", 7),
        retained(b"r/newer", b"new", 9),
    ]
    of_b = [
        *log_of([same, message(b"t/of-a", b"5", 5), message(b"t/of-b", b"5", 5), message(b"t/archived", b"a", 3)]),
        session("moves", T + 101),
        session("stale", T + 20),
        session("only-b", 0),
        retained(b"r/same", b"1", 7),
        retained(b"r/newer", b"old", 8),
    ]
    part_of(directory, "a", 1, T + 100, [of_a], "one")
    part_of(directory, "b", 2, T + 102, [of_b], "one")
    whole(directory, "a", "b")
    return directory.parent


def test_the_host_is_a_column(snapshots: Path, load: Load) -> None:
    """Of each row, in all tables; a condition on it reads no other host."""
    rows = load(snapshots, "sessions").select("node", "cluster", "cluster_snapshot", "host", "client").collect()
    assert sorted((row.node, row.client) for row in rows) == [
        ("a", "moves"), ("a", "only-a"), ("a", "stale"), ("b", "moves"), ("b", "only-b"), ("b", "stale"),
    ]  # fmt: skip
    assert {(row.node, row.cluster, row.cluster_snapshot, row.host) for row in rows} == {
        (node, "mqttd", "one", f"epoch of {node}") for node in "ab"
    }
    assert load(snapshots, "stores").where("node = 'b'").count() == 1
    assert load(snapshots).where("node = 'c'").count() == 0
    heads = load(snapshots, columns="node,origin").where("origin = 'archive'").collect()
    assert [row.node for row in heads] == ["a", "a"]


def test_sessions_and_retained_messages_are_there_once(snapshots: Path, load: Load) -> None:
    """A session counts where its client was connected last, a retained message where it is newest."""
    sessions = once("sessions", load(snapshots, "sessions"))
    assert sorted((row.client, row.node) for row in sessions.collect()) == [
        ("moves", "b"), ("only-a", "a"), ("only-b", "b"), ("stale", "a"),
    ]  # fmt: skip
    rows = once("retained", load(snapshots, "retained"))
    assert sorted((row.topic, row.payload_text) for row in rows.collect()) == [("r/newer", "new"), ("r/same", "1")]
    topics = ANALYSES["retained_topics"](load(snapshots, "retained")).collect()
    assert [(row.topic, row.messages, row.bytes) for row in topics] == [("r", 2, 4)]
    assert latest(load(snapshots, "sessions")).count() == 4


def test_parquet_has_each_message_once(snapshots: Path, spark: SparkSession, tmp_path: Path) -> None:
    """What waits on several hosts is one row, also if a later snapshot or one of a host alone has it again; different
    messages of the same number are two, and nothing is found wrong with that.
    """
    out = tmp_path / "out"
    wanted = {("t/both", "x"), ("t/archived", "a"), ("t/of-a", "5"), ("t/of-b", "5")}

    def run() -> list[tuple[str, str]]:
        with Output(out) as output:
            parquet(spark, found(str(snapshots)), output)
            said = report(Looked(spark, output, output.last(), found(str(snapshots))))
        assert said["is_good"], [check for check in said["checks"] if check["count"]]
        return [(row.topic, row.payload_text) for row in committed(spark, out, "messages").collect()]

    rows = run()
    assert len(rows) == len(set(rows)) == 4
    assert set(rows) == wanted
    later = snapshots / "two"
    same = [message(b"t/both", b"x", 1), message(b"t/of-a", b"5", 5), message(b"t/new", b"n", 200)]
    part_of(later, "a", 1, T + 300, [[*log_of(same)]], "two")
    part_of(later, "b", 2, T + 300, [[*log_of(same)]], "two")
    whole(later, "a", "b")
    snapshot_of(snapshots / "stopped", [[*log_of(same)]], "epoch of b", (T + 400) * 1000)
    rows = run()
    assert len(rows) == len(set(rows)) == 5
    assert set(rows) == wanted | {("t/new", "n")}
    with Output(out) as output:
        gone = prunable(found(str(snapshots)), output.last(), 1)
        assert sorted(str(each.directory.relative_to(snapshots)) for each in gone) == ["one/host-a", "one/host-b"]


def test_a_host_whose_part_was_not_copied(snapshots: Path) -> None:
    """It is named, and the rest is not read for the whole; each part can be read alone, and a stream waits."""
    shutil.rmtree(snapshots / "one" / "host-b")
    with pytest.raises(SnapshotError, match="snapshot of host b is not here: copy /snapshots/host-b of that host"):
        find(str(snapshots))
    assert [each.node for each in find(str(snapshots / "one" / "host-a"))] == ["a"]
    assert find(str(snapshots), partial="skip") == []
    snapshot_of(snapshots / "alone", [[session("c", 0)]])
    assert [each.node for each in find(str(snapshots), partial="skip")] == [None]
    for text, why in [("[]", "damaged"), ("{}", "damaged"), ('{"format": 2}', "has format 2"), ("{", "damaged")]:
        (snapshots / "one" / NAME).write_text(text)
        with pytest.raises(SnapshotError, match=why):
            find(str(snapshots))
    (snapshots / "one" / NAME).unlink()  # who has asked for it has died
    assert sorted(str(each.node) for each in find(str(snapshots))) == ["None", "a"]


# ---------------------------------------------------------------- of real hosts


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hosts, Path]]:
    folder = tmp_path_factory.mktemp("snapshots")
    with hosts_of((1, 2), "leveldb", {"MQTTD_CLUSTER__SNAPSHOT_DIR": str(folder)}) as running:
        yield running, folder


def test_of_real_hosts(hosts: tuple[Hosts, Path], load: Load, spark: SparkSession, tmp_path: Path) -> None:
    """Messages wait for a session on each host, retained ones are on both, and one session moves between two snapshots:
    counts of tables are those of what was published and subscribed.
    """
    running, folder = hosts
    for host in running:
        client = host.client(f"of {host.node}", clean=False, properties={"session_expiry_interval": 600})
        client.subscribe(("all/#", 1))
        client.disconnect()
    publisher = running[1].client("publisher")
    for at in range(50):
        publisher.publish(f"all/{at}", b"%d" % at, qos=1)
        publisher.publish(f"kept/{at}", b"%d" % at, qos=1, retain=True)
    stores = str(Path(running[0].runtime_dir).with_name("data"))
    said = mqttd("snapshot", "--data-dir", stores, "--json")
    assert said.status == 0, said
    first = folder / json.loads(said.out)["id"]
    waiting = load(first).where("origin = 'queue'").collect()
    assert sorted({(row.node, row.topic) for row in waiting}) == sorted(
        (node, f"all/{at}") for node in ("n0", "n1") for at in range(50)
    )
    sessions = once("sessions", load(first, "sessions")).collect()
    assert sorted((row.node, row.client) for row in sessions) == [("n0", "of n0"), ("n1", "of n1")]
    assert load(first, "retained").count() == 100
    assert once("retained", load(first, "retained")).count() == 50
    backlog = ANALYSES["backlog"](load(first, "cursors")).collect()
    assert sorted((row.client, row.messages) for row in backlog) == [("of n0", 50), ("of n1", 50)]
    moved = running[0].client("of n1", clean=False, properties={"session_expiry_interval": 600})
    assert moved.connack.session_present
    assert mqttd("snapshot", "--data-dir", stores).status == 0
    with Output(tmp_path / "out") as output:
        parquet(spark, found(str(folder)), output)
    rows = committed(spark, tmp_path / "out", "messages").select("topic").collect()
    assert sorted(row.topic for row in rows) == sorted(f"all/{at}" for at in range(50))
    last = latest(load(folder, "sessions")).collect()
    assert sorted((row.node, row.client) for row in last) == [("n0", "of n0"), ("n0", "of n1")]
