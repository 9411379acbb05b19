"""The archive of a real broker: its contents after the broker's end, with any subscribers, and what an ack means."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.cli import main as cli
from broker.testing import Mqttd
from leveldb_store.format.archive_schema import unix_ms
from tests.archived import archived, numbers
from tests.broker_process import KIND
from tests.counted import CountedBroker
from tests.small_disk import grow, mounted
from tests.waiting import wait_until
from tests.wire import Client, Closed, Will

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no archive")

SECONDS = 60.0
TABLES = [
    {"filter": "sensor/#", "hours": 24, "bytes": "1GB"},
    {"filter": "+/1", "hours": 24, "bytes": 1 << 30},
]
Start = Callable[..., Mqttd]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(workers, tables)``: a broker on the data directory, ended with the test."""
    opened: list[Mqttd] = []

    def run(workers: int = 1, tables: object = TABLES, **others: object) -> Mqttd:
        config = {
            "store": "leveldb", "data_dir": tmp_path / "data", "leveldb": {"reserve_bytes": 0}, "archive": tables,
            **others,
        }  # fmt: skip
        opened.append(Mqttd(workers, config))
        return opened[-1].start()

    yield run
    for each in opened:
        each.kill()
        each.forget()


def test_everything_that_is_published_is_archived_once_with_all_that_it_said(start: Start, tmp_path: Path) -> None:
    before = time.time() * 1000 - 1
    broker = start(1)
    properties = {"message_expiry_interval": 1000, "content_type": "text", "user_property": [("a", "b")]}
    with closing(Client(broker.address, 5)) as other, closing(Client(broker.address, 5)) as client:
        other.connect("other", will=Will("sensor/will", b"gone"))
        other.subscribe(("sensor/#", 0), ("sensor/a", 1))
        client.connect("me")
        client.publish("sensor/a", b"0")
        client.publish("sensor/a", b"1", qos=1, retain=True, properties=properties)
        client.publish("sensor/a", b"2", qos=2)
        client.publish("x/1", b"nobody", qos=1)
        client.publish("sensor/1", b"first rule", qos=1)
        client.publish("x/2", b"no rule", qos=1)
        client.publish("$x/1", b"no rule", qos=1)
        client.subscribe(("sensor/will", 0))
        other.close()
        client.receive("sensor/will", b"gone")
    broker.stop()
    rows = archived(tmp_path / "data")
    assert [(row.payload, row.topic_filter) for row in rows] == [
        (b"0", b"sensor/#"),
        (b"1", b"sensor/#"),
        (b"2", b"sensor/#"),
        (b"nobody", b"+/1"),
        (b"first rule", b"sensor/#"),
        (b"gone", b"sensor/#"),
    ]
    first, second, third = (row.archived for row in rows[:3])
    assert (first.message.qos, first.message.publisher, first.matches, first.tenant) == (0, "me", 2, "default")
    assert (second.message.qos, second.message.retain, third.message.qos) == (1, True, 2)
    assert b"text" in second.message.properties
    assert second.message.expires is not None
    assert rows[3].archived.matches == 0
    assert rows[5].archived.message.publisher == "other"
    assert numbers(rows) == sorted(numbers(rows))
    assert all(before <= unix_ms(row.number) <= time.time() * 1000 + 1 for row in rows)


def test_what_was_acknowledged_is_in_the_archive_after_a_kill(start: Start, tmp_path: Path, workers: int) -> None:
    broker = start(workers)
    acknowledged: list[bytes] = []
    failed: list[BaseException] = []
    clients = [Client(broker.address, 5) for _ in range(4)]
    for number, client in enumerate(clients):
        client.connect(f"p{number}")

    def publish(number: int) -> None:
        client = clients[number]
        try:
            for i in range(100_000):
                payload = b"%d-%d" % (number, i)
                client.publish("sensor/a", b"0-" + payload)
                assert client.publish("sensor/a", payload, qos=1 + i % 2) in (0, 0x10)
                acknowledged.append(payload)
        except (OSError, AssertionError, Closed) as error:
            failed.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    deadline = time.monotonic() + SECONDS
    while len(acknowledged) < 2000 and time.monotonic() < deadline:
        threads[0].join(0.01)
    broker.kill()
    for each in threads:
        each.join()
    assert len(failed) == 4
    rows = archived(tmp_path / "data")
    payloads = [row.payload for row in rows]
    assert set(acknowledged) <= set(payloads)
    assert len(set(payloads)) == len(payloads)
    numbers(rows)
    for number in range(4):
        own = [int(each.split(b"-")[1]) for each in payloads if each.startswith(b"%d-" % number) and each[:2] != b"0-"]
        assert own == sorted(own)
    # new numbers are above all earlier ones
    broker = start(workers)
    with closing(Client(broker.address, 5)) as client:
        client.connect("later")
        client.publish("sensor/a", b"later", qos=1)
    broker.stop()
    assert archived(tmp_path / "data")[-1].payload == b"later"


def test_archives_go_along_when_the_number_of_workers_changes(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over 2, 4, 3, 1 and 4 workers no message is lost or doubled, later numbers are higher, each origin is whole."""
    expected: list[bytes] = []
    rules = TABLES
    for generation, workers in enumerate((2, 4, 3, 1, 4)):
        if generation == 3:
            rules = [*TABLES[1:], {"filter": "x/#", "hours": 1, "bytes": "1MB"}]  # one table is added, one removed
        broker = start(workers, rules)
        for each in range(8):
            with closing(Client(broker.address, 5)) as client:
                client.connect(f"{generation}-{each}")
                for i in range(5):
                    payload = b"%d-%d-%d" % (generation, each, i)
                    client.publish("sensor/1", payload, qos=i % 3)
                    expected.append(payload)
                client.disconnect()
        broker.stop()
        rows = archived(tmp_path / "data")
        found = numbers(rows)
        assert found == sorted(found)
        # numbers of different workers are as close as their clocks; of one client, and across a restart, in order
        assert sorted((row.payload for row in rows), key=lambda payload: payload[:3]) == expected
        assert [row.payload[:1] for row in rows] == sorted(row.payload[:1] for row in rows)
        assert all(row.origin % workers == row.store for row in rows)
        assert {row.origin for row in rows if row.payload.startswith(b"%d-" % generation)} == set(range(workers))
        assert cli.main(["store", "verify", str(tmp_path / "data")]) == 0, capsys.readouterr().out
    capsys.readouterr()
    assert cli.main(["store", "stats", "--json", str(tmp_path / "data")]) == 0
    stores = json.loads(capsys.readouterr().out)
    said = [rule for store in stores for rule in store["archive"] if rule["filter"] == "sensor/#"]
    assert len(said) == 4
    assert not any(rule["configured"] for rule in said)
    assert sum(rule["messages"] for rule in said) == 3 * 8 * 5
    assert all(rule["first"] <= rule["last"] for rule in said if rule["messages"])
    assert cli.main(["store", "stats", str(tmp_path / "data")]) == 0
    assert "archive sensor/#: " in capsys.readouterr().out


def test_a_full_disk_refuses_what_would_be_archived_and_is_over_by_itself(tmp_path: Path, name: str) -> None:
    """QoS 1 is refused; QoS 0 is delivered and not archived, and counted; everything acknowledged is there."""
    config = tmp_path / "mqttd.toml"
    config.write_text('[[archive]]\nfilter = "kept/#"\nhours = 24\nbytes = "1GB"\n')
    with mounted(tmp_path / "disk", "64m") as disk:
        broker = CountedBroker(1, ["--config", str(config), "--store", "leveldb", "--data-dir", str(disk / "data")])
        del broker.environment["MQTTD_LEVELDB__RESERVE_BYTES"]  # which all tests set
        broker.start()
        try:
            with closing(Client(broker.address, 5)) as publisher, closing(Client(broker.address, 5)) as subscriber:
                publisher.connect(f"{name}publisher")
                subscriber.connect(f"{name}subscriber")
                subscriber.subscribe(("kept/0", 0))
                stored: list[bytes] = []
                while True:
                    payload = b"%06d" % len(stored) + os.urandom(100_000)
                    if publisher.publish("kept/1", payload, qos=1 + len(stored) % 2) not in (0, 0x10):
                        break
                    stored.append(payload[:6])
                assert len(stored) > 50
                publisher.publish("kept/0", b"delivered")
                subscriber.receive("kept/0", b"delivered")
                assert publisher.publish("other", b"", qos=1) == 0x10
                wait_until(lambda: broker.counter("archive_dropped") == 1, SECONDS, "it is counted")
                grow(disk, "256m")
                wait_until(lambda: broker.counter("store_full") == 0, SECONDS, "there is room")
                assert publisher.publish("kept/1", b"again!", qos=1) == 0x10
                stored.append(b"again!")
                publisher.publish("kept/0", b"delivered, and archived")
                subscriber.receive("kept/0", b"delivered, and archived")
        finally:
            broker.stop()
            broker.forget()
        payloads = [row.payload[:6] for row in archived(disk / "data")]
        assert set(stored) <= set(payloads)
        assert payloads[-1] == b"delive"
        assert payloads.count(b"delive") == 1
