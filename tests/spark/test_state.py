"""The tables of what a store holds for its clients, of records that were made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveldb_store import replay_schema, schema, windows
from leveldb_store.replay_schema import StoredReplay
from leveldb_store.schema import StoredMessage, StoredQueued
from leveldb_store.subscription_schema import encode_subscription
from leveldb_store.windows import Window
from tests.made_snapshot import number_at, snapshot_of
from tests.spark.conftest import Load

T = 1_790_000_000
PUBACK, PUBREC, PUBCOMP = 1, 2, 3
#: QoS 2, No Local, Retain As Published, Retain Handling 1 [MQTT 5.0, 3.8.3.1]
OPTIONS = 0x1E


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("state") / "snapshot"
    kept = StoredMessage(b"t", b"x", number_at(T + 7, 3), 1)
    in_flight = Window(
        9,
        [
            (4, 1, PUBACK, 17), (5, 2 | schema.RETAIN | schema.OWN_RECORD, PUBREC, number_at(T + 60)),
            (6, 1 | schema.SHARED_COPY, PUBACK, 18), (7, 2 | schema.OWN_RECORD, PUBCOMP, number_at(T + 61)),
        ],
        [11, 12],
    )  # fmt: skip
    zero = [
        (schema.subscription_key("c", b"$share/g/a/+"), encode_subscription(OPTIONS, 5, 40)),
        (schema.subscription_key("c", b"b"), encode_subscription(1, 0, 41)),
        (replay_schema.replay_key("c", b"old/#"), replay_schema.encode_replay(StoredReplay(1, 0, 3, number_at(T)))),
        (schema.window_key("c"), windows.encode_window(in_flight)),
        # a record has a number of its own: the message's was given when it came
        (schema.queued_key("c", number_at(T + 60)), schema.encode_queued(StoredQueued(2, 0, b"", kept))),
        (schema.handoff_key(1, 0), schema.encode_handoff_head(77, 100)),
        *((schema.handoff_key(1, each), schema.encode_handoff(each, b"part", [b"abc"])) for each in (1, 2, 3)),
        (schema.handoff_key(1, 4), schema.encode_handoff(-1, b"", [])),
    ]
    one = [(schema.peer_key(0), schema.encode_peer(77, 2))]
    snapshot_of(directory, [iter(sorted(zero)), iter(one)])
    return directory


def test_subscriptions_and_those_that_replay(load: Load, snapshot: Path) -> None:
    rows = {row.filter: row for row in load(snapshot, "subscriptions").collect()}
    assert {row.client for row in rows.values()} == {"c"}
    shared = rows["$share/g/a/+"]
    assert (shared.share_group, shared.topic_filter, shared.first_level) == ("g", "a/+", "a")
    assert (shared.qos, shared.no_local, shared.retain_as_published, shared.retain_handling) == (2, True, True, 1)
    assert (shared.identifier, shared.since, shared.replayed) == (5, 40, None)
    assert (rows["b"].share_group, rows["b"].identifier, rows["b"].since) == (None, None, 41)
    assert (rows["old/#"].since, rows["old/#"].replayed) == (None, number_at(T))


def test_in_flight_and_the_message_of_a_record_of_its_own(load: Load, snapshot: Path) -> None:
    rows = {(row.direction, row.packet_id): row for row in load(snapshot, "inflight").collect()}
    assert len(rows) == 6
    told = {key: (row.awaits, row.qos, row.retain, row.shared, row.position, row.number) for key, row in rows.items()}
    assert told == {
        ("out", 4): ("PUBACK", 1, False, False, 17, None),
        ("out", 5): ("PUBREC", 2, True, False, None, number_at(T + 7, 3)),
        ("out", 6): ("PUBACK", 1, False, True, 18, None),
        ("out", 7): ("PUBCOMP", 2, False, False, None, None),  # its record was removed with PUBREC
        ("in", 11): ("PUBREL", 2, None, None, None, None),
        ("in", 12): ("PUBREL", 2, None, None, None, None),
    }
    messages = load(snapshot, "messages")
    joined = rows["out", 5].number
    assert [row.topic for row in messages.where(f"number = {joined}").collect()] == ["t"]


def test_batches_for_siblings_and_which_have_arrived(load: Load, snapshot: Path) -> None:
    rows = load(snapshot, "handoff").orderBy("sequence").collect()
    told = [(row.peer, row.stream, row.sequence, row.entries, row.arrived) for row in rows]
    assert told == [(1, 77, 1, 1, True), (1, 77, 2, 2, True), (1, 77, 3, 3, False), (1, 77, 4, None, False)]
    assert {row.store for row in rows} == {0}
    assert rows[0].bytes == len(schema.encode_handoff(1, b"part", [b"abc"]))
