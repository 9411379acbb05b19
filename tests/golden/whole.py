"""What a data directory of `tests.golden.written` has besides: forms of records that schema 1 was written without.

Subscription options, windows of 3.1.1 both ways, windows so large that they have pages (U), large retained messages
that several sessions wait for (J), parts and blocks that are read by some and not by others (L, N), an archive with
summaries (M) and one of which something was removed (K), and a record that nobody can read (Z). What lives for a moment
only, the index that is being deleted (G), is not there.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import plyvel

from broker.testing import wait_until
from leveldb_store.format import schema
from leveldb_store.snapshots.clone import CloneError, reading
from shards.placement import home
from tests import wire
from tests.wire import Client

if TYPE_CHECKING:
    from broker.testing import Mqttd
    from tests.golden.written import Fleet

IN_FLIGHT = 200
ARRIVED = 150
LARGE = b"large " * 500
SUMMARISED = 300
REMOVED = 150
ARCHIVE = [
    {"filter": "summarised/#", "hours": 878_400, "bytes": "1GB"},
    {"filter": "removed/#", "hours": 878_400, "bytes": "2MB"},
]
NO_LOCAL, AS_PUBLISHED, NONE_RETAINED = 0x04, 0x08, 0x20
SECONDS_MAX = 60.0


def unreadable(broker: Mqttd, data: Path) -> None:
    """A session whose record was spoilt while the broker was down: it is set aside with all that belongs to it."""
    with closing(Client(broker.address, 4)) as client:
        client.connect("unreadable", clean=False)
        client.subscribe(("unreadable/#", 1))
        client.disconnect()
    assert broker.stop() == 0
    with closing(plyvel.DB(str(data / f"worker-{home('unreadable', broker.workers)}"))) as db:
        db.put(schema.session_key("unreadable"), b"spoilt", sync=True)
    broker.start()


def fill(fleet: Fleet, data: Path) -> None:
    """All of it; the publisher's worker is 0."""
    _options(fleet)
    _windows_of_3_1_1(fleet)
    _windows_with_pages(fleet)
    _large_retained(fleet, data)
    _archive(fleet, data)
    _read_by_some(fleet, data)


def _options(fleet: Fleet) -> None:
    # No Local, Retain As Published, Retain Handling 2
    client = fleet.client("options")
    client.subscribe(("options/own", 1 | NO_LOCAL), ("options/kept", 2 | AS_PUBLISHED | NONE_RETAINED))
    client.disconnect()
    fleet.publisher.publish("options/kept", b"o0", qos=2, retain=True)
    properties = {"message_expiry_interval": 0xFFFFFFFF, "content_type": "text", "correlation_data": b"c"}
    fleet.publisher.publish("options/own", b"o1", qos=1, properties=properties)


def _windows_of_3_1_1(fleet: Fleet) -> None:
    # QoS 1 and 2 both ways
    client = fleet.client("windows-of-3-1-1", 4)
    client.subscribe(("older/#", 2))
    for number in range(4):
        fleet.publisher.publish(f"older/{number}", b"c%d" % number, qos=1 + number % 2)
    got = [client.expect("PUBLISH", payload=b"c%d" % number) for number in range(4)]
    client.ack("PUBACK", got[0].packet_id)
    client.ack("PUBREC", got[1].packet_id)
    client.expect("PUBREL", packet_id=got[1].packet_id)
    client.send(wire.publish(4, "older-from", b"", qos=2, packet_id=33))
    client.await_packet("PUBREC", 33)
    client.close()


def _windows_with_pages(fleet: Fleet) -> None:
    client = fleet.client("pages", 4)
    client.subscribe(("pages/#", 1))
    fleet.several("pages", b"p", IN_FLIGHT)
    for number in range(IN_FLIGHT):
        client.expect("PUBLISH", payload=b"p%d" % number)
    for packet_id in range(1000, 1000 + ARRIVED):
        client.send(wire.publish(4, "pages-from", b"", qos=2, packet_id=packet_id))
        client.await_packet("PUBREC", packet_id)
    client.close()


def _large_retained(fleet: Fleet, data: Path) -> None:
    # two sessions wait for the same ones
    for number in range(3):
        fleet.publisher.publish(f"large/{number}", LARGE + b"%d" % number, qos=1, retain=True)
    for name in ("large-one", "large-two"):
        client = fleet.client(name, properties={"session_expiry_interval": 0xFFFFFFFF, "receive_maximum": 1})
        client.subscribe(("large/+", 1))
        client.expect("PUBLISH")
        client.expect_silence()
        client.close()
    _until(data, schema.MESSAGE)


def _archive(fleet: Fleet, data: Path) -> None:
    fleet.several("summarised", b"m", SUMMARISED)
    for number in range(REMOVED):
        fleet.publisher.publish(f"removed/{number}", bytes([number]) * 10_000, qos=1)
    _until(data, schema.ARCHIVE_SUMMARY)
    _until(data, schema.ARCHIVE_REMOVED)


def _read_by_some(fleet: Fleet, data: Path) -> None:
    # the same messages in two indexes: one session has read them, one has read the first of them
    for name, topic_filter in (("read", "read/#"), ("read-in-part", "read/+")):
        client = fleet.client(name)
        client.subscribe((topic_filter, 1))
        client.disconnect()
    fleet.several("read", b"r", 6)
    for name, count in (("read", 6), ("read-in-part", 2)):
        client = fleet.client(name, properties={"session_expiry_interval": 0xFFFFFFFF, "receive_maximum": 1})
        for number in range(count):
            client.receive(f"read/{number}", b"r%d" % number)
        client.close()
    _until(data, schema.TRIMMED)
    _until(data, schema.WANTED)


def _until(data: Path, family: bytes) -> None:
    # what the writer does by itself is seen in a clone of its store
    def is_there() -> bool:
        for store in data.glob("worker-*"):
            try:
                with reading(store) as db, db.iterator(prefix=family) as found:
                    if next(found, None) is not None:
                        return True
            except CloneError:
                continue  # it is being written
        return False

    wait_until(is_there, SECONDS_MAX, f"a record of family {family!r}")
