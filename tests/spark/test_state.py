"""The tables of a store's state records and queued messages, on hand-made records."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveldb_store.format import link_schema, queued_messages, replay_schema, schema, session_schema, windows
from leveldb_store.format.queued_messages import StoredQueued, message_key
from leveldb_store.format.replay_schema import StoredReplay
from leveldb_store.format.schema import StoredMessage
from leveldb_store.format.session_schema import StoredSession
from leveldb_store.format.subscription_schema import encode_subscription
from leveldb_store.format.windows import Window
from pyx.core.peer import sibling
from tests.made_snapshot import number_at, snapshot_of
from tests.spark.conftest import Load

T = 1_790_000_000
PUBACK, PUBREC, PUBCOMP = 1, 2, 3
SESSION = StoredSession(3600, 5, None, 1000 * (T + 1), 1000 * T)
#: QoS 2, No Local, Retain As Published, Retain Handling 1 [MQTT 5.0, 3.8.3.1]
OPTIONS = 0x1E


def named_by(number: int) -> bytes:
    """Return a queued message that refers to a message record by its number."""
    return queued_messages.QUEUED_HEAD.pack(1 | schema.FORM_2 | schema.OF_ITS_OWN, 0, 0) + schema.U64.pack(number)


def replaced() -> list[tuple[bytes, bytes]]:
    """Return records of session e, which was sent the log up to message 1 of 6: its subscription had QoS 1 for
    messages 1 to 3, QoS 0 for 4 and 5. Another session holds all of them.
    """
    log = [StoredMessage(b"n", b"%d" % number, number_at(T + number), 1) for number in range(1, 7)]
    part = schema.Part(1, 0, 0, 1, 1, [(number, 2) for number in range(1, 7)])
    return [
        (schema.name_key(b"n"), schema.U32.pack(7)),
        (schema.block_key(1), schema.encode_block(log)),
        (schema.part_key(7, 1), schema.encode_part(part)),
        (schema.session_key("e"), session_schema.encode_session(SESSION)),
        (schema.subscription_key("e", b"n"), encode_subscription(1, 0, 5, [(1, 0, 3)])),
        (schema.window_key("e"), windows.encode_window(Window(1, [], [], 1))),
    ]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("state") / "snapshot"
    kept = StoredMessage(b"t", b"x", number_at(T + 7, 3), 1)
    large = StoredMessage(b"large", b"x" * 2000, number_at(T + 8, 3), 1)
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
        # a record has its own number; the message got another one when it arrived
        (schema.queued_key("c", number_at(T + 60)), queued_messages.encode_queued(StoredQueued(2, 0, b"", kept))),
        # a message queued for several sessions
        *((schema.queued_key(client, number_at(T + 62)), named_by(large.number)) for client in ("c", "d")),
        (
            message_key(large.number),
            queued_messages.encode_queued(StoredQueued(0, 0, b"", large))[queued_messages.QUEUED_HEAD.size :],
        ),
        *((schema.session_key(client), session_schema.encode_session(SESSION)) for client in ("c", "d")),
        (schema.handoff_key(sibling(1), 0), link_schema.encode_handoff_head(77, 100)),
        *(
            (schema.handoff_key(sibling(1), each), link_schema.encode_handoff(each, b"part", [b"abc"]))
            for each in (1, 2, 3)
        ),
        (schema.handoff_key(sibling(1), 4), link_schema.encode_handoff(-1, b"", [])),
    ]
    zero += replaced()
    one = [(schema.peer_key(sibling(0)), link_schema.encode_peer(77, 2))]
    snapshot_of(directory, [iter(sorted(zero)), iter(one)])
    return directory


def test_subscriptions_and_those_that_replay(load: Load, snapshot: Path) -> None:
    rows = {row.filter: row for row in load(snapshot, "subscriptions").where("client = 'c'").collect()}
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


def test_a_message_that_several_sessions_wait_for(load: Load, snapshot: Path) -> None:
    rows = load(snapshot, "messages").where("topic = 'large'").collect()
    assert sorted((row.session, len(row.payload), row.number) for row in rows) == [
        ("c", 2000, number_at(T + 8, 3)), ("d", 2000, number_at(T + 8, 3)),
    ]  # fmt: skip
    waits = {row.client: (row.lag_messages, row.lag_bytes) for row in load(snapshot, "cursors").collect()}
    assert (waits["c"], waits["d"]) == ((1, 2005), (1, 2005))


def test_what_waits_under_options_that_a_subscription_had_formerly(load: Load, snapshot: Path) -> None:
    (row,) = load(snapshot, "cursors").where("client = 'e'").collect()
    assert (row.filter, row.position, row.lag_messages, row.lag_bytes) == ("n", 1, 3, 6)


def test_batches_for_siblings_and_which_have_arrived(load: Load, snapshot: Path) -> None:
    rows = load(snapshot, "handoff").orderBy("sequence").collect()
    told = [(row.peer, row.stream, row.sequence, row.entries, row.arrived) for row in rows]
    assert told == [(1, 77, 1, 1, True), (1, 77, 2, 2, True), (1, 77, 3, 3, False), (1, 77, 4, None, False)]
    assert {row.store for row in rows} == {0}
    assert rows[0].bytes == len(link_schema.encode_handoff(1, b"part", [b"abc"]))
