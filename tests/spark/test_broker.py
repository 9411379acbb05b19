"""Snapshots of a real broker as tables: they agree with the published messages and with `mqttd sessions`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import spark_etl
from broker.testing import Mqttd
from leveldb_store.snapshots.snapshot import read_manifest
from shards.placement import home
from spark_etl.tables.catalogue import TABLES
from tests.broker_process import KIND
from tests.mqttd_command import mqttd
from tests.spark.conftest import Load
from tests.spark.rows import rows_of
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no such stores")

PUBLISHED = 30
CLIENTS = 6


class World:
    """A snapshot of a broker with two workers, and its expected content."""

    def __init__(self, broker: Mqttd, data: Path) -> None:
        self.data = data
        self.snapshot = data.with_name("snapshot")
        self.sent: list[tuple[str, bytes, int]] = []
        self._fill(broker)
        said = mqttd("snapshot", "--data-dir", data, "--out", self.snapshot)
        assert said.status == 0, said
        self.manifest = read_manifest(self.snapshot)
        self.sessions = {f"c{number}": self._session(f"c{number}") for number in range(CLIENTS)}
        self.digests = digests(self.snapshot)

    def _fill(self, broker: Mqttd) -> None:
        assert {home(f"c{number}", 2) for number in range(CLIENTS)} == {0, 1}
        for number in range(CLIENTS):
            with closing(Client(broker.address, 5)) as client:
                client.connect(f"c{number}", clean=False, properties={"session_expiry_interval": 2000})
                client.subscribe((f"q/{number % 2}/#", number % 3), ("all/+", 1))
                client.subscribe((f"$share/g{number % 2}/q/+/x", 1))
                client.disconnect()
        with closing(Client(broker.address, 5)) as publisher:
            publisher.connect("publisher", clean=False)
            for number in range(PUBLISHED):
                topic, payload, qos = f"q/{number % 2}/x", b'{"number": %d}' % number, 1 + number % 2
                properties = {"content_type": "application/json", "user_property": [("n", str(number)), ("a", "b")]}
                publisher.publish(topic, payload, qos=qos, properties=properties)
                self.sent.append((topic, payload, qos))
            for number in range(8):
                publisher.publish(f"kept/{number}", b"\xff%d" % number, qos=1, retain=True)
        with closing(Client(broker.address, 4)) as half:
            half.connect("c2", clean=False)
            first = half.expect("PUBLISH")
            half.ack("PUBREC" if first.qos == 2 else "PUBACK", first.packet_id)
            half.disconnect()

    def _session(self, client: str) -> dict[str, Any]:
        said = mqttd("sessions", "show", "--json", "--data-dir", self.data, client)
        assert said.status == 0, said
        shown: dict[str, Any] = json.loads(said.out)
        return shown


def digests(directory: Path) -> dict[str, str]:
    return {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in directory.rglob("*")
        if file.is_file()
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data = tmp_path_factory.mktemp("broker") / "data"
    config = {
        "store": "leveldb", "data_dir": data, "leveldb": {"reserve_bytes": 0},
        "archive": [{"filter": "q/#", "hours": 1, "bytes": "10MB"}],
    }  # fmt: skip
    broker = Mqttd(2, config).start()
    try:
        yield World(broker, data)
    finally:
        broker.kill()
        broker.forget()


def test_the_archive_has_what_was_published(world: World, load: Load) -> None:
    rows = load(world.snapshot).where("origin = 'archive'").orderBy("number").collect()
    assert [(row.topic, bytes(row.payload), row.qos) for row in rows] == world.sent
    for number, row in enumerate(rows):
        assert row.host == world.manifest.archive_epoch
        assert (row.rule, row.tenant, row.publisher, row.retain) == ("q/#", "default", "publisher", False)
        assert (row.first_level, list(row.levels)) == ("q", ["q", str(number % 2), "x"])
        assert (row.payload_text, row.payload_bytes) == (row.payload.decode(), len(row.payload))
        assert (row.content_type, dict(row.user_properties)) == ("application/json", {"n": str(number), "a": "b"})
        assert (row.position, row.session, row.expires, row.payload_format) == (None, None, None, None)
        assert row.worker == row.number & 0xFF == home("publisher", 2)
        assert row.time.timestamp() == pytest.approx((row.number >> 8) / 1e6)
        assert row.matches > 0


def test_payloads_that_are_json_as_variants(world: World, load: Load) -> None:
    found = spark_etl.with_json(load(world.snapshot)).where("origin = 'archive'").orderBy("number")
    rows = found.selectExpr("variant_get(payload_json, '$.number', 'int') AS n").collect()
    assert [row.n for row in rows] == list(range(PUBLISHED))
    retained = spark_etl.with_json(load(world.snapshot, "retained"))
    assert {row.payload_json for row in retained.collect()} == {None}


def test_the_log_has_each_message_once_in_each_store_that_waits_for_it(world: World, load: Load) -> None:
    rows = load(world.snapshot).where("origin = 'queue' and session is null").collect()
    assert len(rows) == sum(store.messages for store in world.manifest.stores)
    for store in world.manifest.stores:
        here = [row for row in rows if row.store == store.worker]
        assert [row.position for row in sorted(here, key=lambda row: row.number)] == [row.position for row in here]
        assert max(row.position for row in here) == store.last_position
        assert len({row.number for row in here}) == len(here)
    assert {row.number for row in rows} == {
        row.number for row in load(world.snapshot).where("origin = 'archive'").collect()
    }


def test_shares_of_a_group_are_kept_for_one_session_each(world: World, load: Load) -> None:
    """Each share is kept once for each of two groups; c2 has acknowledged one message, which may have been a share."""
    rows = load(world.snapshot).where("session is not null").collect()
    kept = Counter((row.topic, bytes(row.payload)) for row in rows)
    assert kept <= Counter((topic, payload) for topic, payload, _ in world.sent for _ in range(2))
    assert kept.total() >= 2 * PUBLISHED - 1
    assert {row.session for row in rows} <= world.sessions.keys()


def test_sessions_and_their_subscriptions(world: World, load: Load) -> None:
    rows = {row.client: row for row in load(world.snapshot, "sessions").collect()}
    assert rows.keys() == world.sessions.keys()
    for client, shown in world.sessions.items():
        row = rows[client]
        assert (row.store, row.version, row.expiry_seconds) == (
            shown["worker"], shown["version"], shown["expiry_seconds"],
        )  # fmt: skip
        assert row.created.timestamp() == shown["created"] / 1000
        assert (row.connected, row.disconnected is None) == (False, False)
    for row in load(world.snapshot, "subscriptions").collect():
        number = int(row.client.removeprefix("c"))
        expected = {
            f"q/{number % 2}/#": (None, f"q/{number % 2}/#", "q", number % 3),
            "all/+": (None, "all/+", "all", 1),
            f"$share/g{number % 2}/q/+/x": (f"g{number % 2}", "q/+/x", "q", 1),
        }
        assert (row.share_group, row.topic_filter, row.first_level, row.qos) == expected[row.filter]


def test_cursors_say_what_the_broker_says_waits(world: World, load: Load) -> None:
    rows = load(world.snapshot, "cursors").collect()
    for client, shown in world.sessions.items():
        of_logs = [row for row in rows if row.client == client and row.filter is not None]
        assert sum(row.lag_messages for row in of_logs) == shown["backlog_messages"], client
        assert sum(row.lag_bytes for row in of_logs) == shown["backlog_bytes"], client
        own = [row for row in rows if row.client == client and row.filter is None]
        assert sum(row.lag_messages for row in own) == shown["queued"], client
    log = {row.number: row.time for row in load(world.snapshot).where("origin = 'queue'").collect()}
    waiting = [row for row in rows if row.lag_messages]
    assert waiting
    assert all(row.oldest == log[row.oldest_number] for row in waiting)


def test_what_is_in_flight(world: World, load: Load) -> None:
    rows = load(world.snapshot, "inflight").collect()
    by_client = Counter(row.client for row in rows)
    assert by_client == Counter({client: shown["inflight"] for client, shown in world.sessions.items()}) - Counter()
    assert {row.client for row in rows} == {"c2"}
    log = {(row.store, row.position): row for row in load(world.snapshot).where("position is not null").collect()}
    for row in rows:
        assert (row.direction, row.awaits in ("PUBACK", "PUBREC", "PUBCOMP")) == ("out", True)
        if row.position is not None and row.awaits != "PUBCOMP":
            assert log[row.store, row.position].qos >= row.qos > 0


def test_retained_messages(world: World, load: Load) -> None:
    rows = load(world.snapshot, "retained").collect()
    assert {row.topic: bytes(row.payload) for row in rows} == {f"kept/{n}": b"\xff%d" % n for n in range(8)}
    assert {(row.payload_text, row.retain, row.qos, row.publisher) for row in rows} <= {
        (None, True, 1, "publisher"), (None, True, 1, None),
    }  # fmt: skip


def test_events_counters_and_drops_are_those_of_mqttd_events(world: World, load: Load) -> None:
    said = mqttd("events", "--data-dir", world.snapshot, "--json")
    assert said.status == 0, said
    told = [json.loads(line) for line in said.out.splitlines()]
    rows = load(world.snapshot, "events").orderBy("number").collect()
    assert [row.kind for row in rows] == [each["kind"] for each in told]
    for row, each in zip(rows, told, strict=True):
        for name in ("client", "username", "reason", "filter", "version", "keep_alive", "session_expiry"):
            assert row[name] == each.get(name), (row, each)
    assert Counter(row.kind for row in rows)["connection_opened"] == CLIENTS + 2
    sampled = load(world.snapshot, "counters").collect()
    assert len(sampled) == sum(len(row.rows) for row in rows if row.kind == "counters")
    assert load(world.snapshot, "drops").count() == sum(row.kind == "messages_dropped" for row in rows)


def test_stores_and_rules_are_those_of_the_manifest(world: World, load: Load) -> None:
    rows = load(world.snapshot, "stores").orderBy("store").collect()
    for row, facts in zip(rows, world.manifest.stores, strict=True):
        assert (row.store, row.messages, row.last_position) == (facts.worker, facts.messages, facts.last_position)
        assert (row.epoch, row.workers, dict(row.records)) == (world.manifest.epoch, 2, facts.records)
        assert dict(row.counters) == facts.counters
        assert row.taken.timestamp() == world.manifest.taken_ms / 1000
    ruled = load(world.snapshot, "rules").collect()
    assert {(row["filter"], row.place, row.age_seconds) for row in ruled} == {("q/#", 0, 3600)}
    assert sum(row.messages for row in ruled) == PUBLISHED


def test_reading_leaves_a_snapshot_as_it_is(world: World, load: Load) -> None:
    """A snapshot is unchanged by reads, also by several tasks that read one store at the same time."""
    for table in TABLES:
        load(world.snapshot, table).collect()
    whole = load(world.snapshot).collect()
    parts = load(world.snapshot, partition_bytes="500")
    assert parts.rdd.getNumPartitions() > 2
    assert Counter(rows_of(parts.collect())) == Counter(rows_of(whole))
    assert digests(world.snapshot) == world.digests
    assert {each.name for each in world.snapshot.iterdir()} == {"snapshot.json", "worker-0", "worker-1"}
    verified = mqttd("store", "verify", world.snapshot)
    assert (verified.status, verified.err) == (0, ""), verified
