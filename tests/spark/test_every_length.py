"""Bytes of every length (tests/record_forms.py) in Spark's readers; and clients with fields of each length, through a
store, a restart, another number of workers, a snapshot and its tables.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leveldb_store.format import archive_schema, schema
from leveldb_store.format.archive_schema import ArchivedMessage
from leveldb_store.format.schema import StoredMessage
from shards.placement import home
from spark_etl.source.plan import spans_of
from spark_etl.tables.catalogue import table_of
from spark_etl.tables.conditions import Conditions
from spark_etl.tables.frames import Counts, Frames
from spark_etl.tables.reading import read
from spark_etl.tables.records import ARCHIVED_LEAD, Records, starts_of
from spark_etl.tables.snapshots import SnapshotStore, find, stores_of
from tests import wire
from tests.kept_host import lasting, let_go, on_disk
from tests.made_snapshot import taken_of
from tests.record_forms import ARCHIVED, STORE, at_every_length
from tests.sansio import Host
from tests.spark.test_records import plain, rows
from tests.unit.broker.repartition.test_repartition import moved, paths
from tests.wire import Packet

LONGEST = 0xFFFF
IDENTIFIER_MAX = 268_435_455
MESSAGES = [case.record for form in STORE[:2] for case in at_every_length(form) if not case.beyond]


def readable(message: StoredMessage) -> StoredMessage:
    """Return a copy without invalid properties, which the readers of columns refuse, and with numbers and times in the
    range of Spark's 64-bit integers.
    """
    properties = message.properties if message.properties.startswith(b"\x26") else b""
    expires = None if message.expires is None else min(message.expires, 2**53)
    return dataclasses.replace(message, properties=properties, number=message.number >> 1, expires=expires)


def test_columns_of_messages_of_every_length() -> None:
    for each in map(readable, MESSAGES):
        data = schema.encode_message(each)
        assert rows(Records(data, starts_of(data, 0, 1, 0), 0)) == [plain(each)]


def test_columns_of_archived_messages_of_every_length() -> None:
    for case in at_every_length(ARCHIVED):
        if not case.beyond:
            archived: ArchivedMessage = case.record
            message = readable(archived.message)
            data = archive_schema.encode_record(archived._replace(message=message))
            records = Records(data, starts_of(data, 0, 1, ARCHIVED_LEAD), ARCHIVED_LEAD)
            assert records.column("matches", pa.int64()).to_pylist() == [archived.matches]
            assert rows(records) == [plain(message)]


# ---------------------------------------------------------------------------------------------- end to end

LIMITS = {
    "topic_bytes_max": LONGEST, "topic_levels_max": LONGEST, "share_name_bytes_max": LONGEST,
    "user_property_bytes_max": 4 * LONGEST, "connect_bytes_max": 1 << 21, "session_expiry_seconds_max": 0,
}  # fmt: skip
KINDS = {
    "client": pa.string(), "username": pa.string(), "expiry_seconds": pa.int64(), "filter": pa.string(),
    "share_group": pa.string(), "identifier": pa.int64(), "topic": pa.string(), "payload": pa.binary(),
    "publisher": pa.string(), "content_type": pa.string(), "response_topic": pa.string(),
    "correlation_data": pa.binary(), "properties": pa.binary(), "packet_id": pa.int32(), "awaits": pa.string(),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Sized:
    """Clients whose fields all have one length. `size`: 0 where MQTT allows an empty field, else at least 1."""

    size: int

    def text(self, letter: str, least: int = 1, room: int = 0) -> str:
        """Return a field of this length, shortened by `room` for other text in the same string."""
        return letter * max(least, self.size - room)

    @property
    def properties(self) -> dict[str, Any]:
        """Properties of a message."""
        return {
            "payload_format_indicator": min(self.size, 1),
            "message_expiry_interval": max(1, self.size),
            "content_type": self.text("t", 0),
            "response_topic": self.text("r"),
            "correlation_data": self.text("d", 0).encode(),
            "user_property": [(self.text("k", 0), self.text("v", 0))],
        }

    @property
    def identifier(self) -> int:
        """Subscription Identifier, as far below its maximum as the length is below its own."""
        return self.size or 1 if self.size < LONGEST - 1 else IDENTIFIER_MAX - (LONGEST - self.size)

    @property
    def share(self) -> str:
        """A subscription to a share group with the longest name that fits into one string."""
        return f"$share/{self.text('g', 1, len('$share//s'))}/s"

    def connected(self, host: Host) -> None:
        """Leave two lasting sessions offline: one with queued messages, one with messages in flight."""
        will = wire.Will(self.text("w"), self.text("b", 0).encode(), 1, False, self.properties)
        options: dict[str, Any] = {"username": self.text("u", 0), "will": will, "expiry": max(1, self.size)}
        topic, payload = self.text("m"), self.text("p", 0).encode()
        for letter in "cx":
            client = lasting(host, self.text(letter), 5, **options)
            client.subscribe((topic, 2), (self.share, 1), identifier=self.identifier)
            if letter == "c":
                host.lose(client)
        publisher = host.connect(self.text("q"), 5)
        properties = self.properties
        publisher.publish(topic, payload or b"-", qos=2, retain=True, properties=properties)
        publisher.publish("s", payload, qos=1, properties=properties)
        host.settle()
        assert client.packets
        host.lose(client)
        host.lose(publisher)

    def came_back(self, host: Host) -> None:
        """Assert that each client resumes its session and receives the messages as published."""
        for letter in "cx":
            client = host.open(5, home(self.text(letter), len(host.nodes)))
            client.client_id = self.text(letter)
            packets = _resumed(host, client, self.text("u", 0))
            got = {packet.topic: packet for packet in packets}
            assert self.text("m") in got
            for topic, packet in got.items():
                assert packet.payload == (self.text("p", 0).encode() or (b"" if topic == "s" else b"-"))
                expected = {**self.properties, "subscription_identifier": [self.identifier]}
                found = {**packet.properties, "message_expiry_interval": expected["message_expiry_interval"]}
                assert found == expected


def _resumed(host: Host, client: Any, username: str) -> list[Packet]:
    properties = {"session_expiry_interval": 3600}
    client.send(wire.connect(5, client.client_id, clean=False, username=username, properties=properties))
    host.settle()
    assert client.next("CONNACK").session_present
    return [packet for packet in client.packets if packet.kind == "PUBLISH"]


def table(stores: list[SnapshotStore], name: str) -> list[dict[str, Any]]:
    """Return the rows of a table, with only the columns that depend on lengths."""
    found: list[dict[str, Any]] = []
    for store in stores:
        wanted = [(each, KINDS[each]) for each in table_of(name).names if each in KINDS]
        frames = Frames(pa.schema(wanted), store, Counts())
        for spans in spans_of(store, name, Conditions(), 1 << 20, None):
            for batch in read(store, name, spans, Conditions(), frames, None):
                found += batch.to_pylist()
    return found


def check_tables(directory: Path, sized: Sized) -> None:
    stores = stores_of(find(str(directory)))
    clients = {sized.text("c"), sized.text("x")}
    sessions = {row["client"]: row for row in table(stores, "sessions")}
    assert sessions.keys() == clients
    assert {row["username"] for row in sessions.values()} == {sized.text("u", 0)}
    subscriptions = table(stores, "subscriptions")
    assert {(row["client"], row["filter"]) for row in subscriptions} == {
        (client, text) for client in clients for text in (sized.text("m"), sized.share)
    }
    assert {row["identifier"] for row in subscriptions} == {sized.identifier}
    assert {row["share_group"] for row in subscriptions} == {None, sized.share.split("/")[1]}
    (retained,) = table(stores, "retained")
    messages = table(stores, "messages")
    assert {row["topic"] for row in messages} >= {sized.text("m"), "s"}
    for row in (retained, *messages):
        assert row["content_type"] == sized.text("t", 0)
        assert row["response_topic"] == sized.text("r")
        assert row["correlation_data"] == sized.text("d", 0).encode()
        assert row["publisher"] in (sized.text("q"), None)
    assert retained["payload"] == (sized.text("p", 0).encode() or b"-")
    assert {row["client"] for row in table(stores, "inflight")} == {sized.text("x")}


@pytest.mark.parametrize("size", [0, 1, LONGEST - 1, LONGEST])
def test_fields_of_every_length_from_the_door_to_spark(tmp_path: Path, size: int) -> None:
    """Fields keep their values after a restart, a move to two workers and a copy, in tables, and when sent again."""
    sized = Sized(size)
    host = on_disk(paths(tmp_path, 1), limits=LIMITS)
    sized.connected(host)
    let_go(host)
    for workers, directory in ((1, tmp_path), (2, tmp_path / "next")):
        if workers == 2:
            moved(tmp_path, 1, 2)
        copies = [directory / f"copy-{number}" for number in range(workers)]
        for source, copy in zip(paths(directory, workers), copies, strict=True):
            shutil.copytree(source, copy)
        taken_of(directory / "snapshot", copies)
        check_tables(directory / "snapshot", sized)
    for workers, directory in ((1, tmp_path), (2, tmp_path / "next")):
        host = on_disk(paths(directory, workers), start_ms=host.now_ms, limits=LIMITS)
        sized.came_back(host)
        let_go(host)
