"""A worker without memory, a disk without room, a slow disk: which work stops, which continues, and that the broker
recovers by itself.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.testing import BrokerFailed, Mqttd
from shards.data_dir import read_layout
from tests import wire
from tests.broker_process import KIND, BrokerProcess
from tests.chaos.crowd import ids_on
from tests.counted import CountedBroker
from tests.integration.test_admin import report, status_of, totals
from tests.integration.test_limits import Scene
from tests.power.test_repartition import contents
from tests.power.trace import compile_shim
from tests.small_disk import fill, grow, mounted
from tests.waiting import let_pass, wait_until

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="bounds, counters and the store are mqttd's own")

SECONDS = 60.0
LASTING = {"clean": False, "properties": {"session_expiry_interval": 600}}
SYNC_SECONDS = 0.25


def test_memory_that_has_room_again(tmp_path: Path, name: str) -> None:
    """At worker_memory_bytes_max: publishers at QoS 1 wait, then are refused; QoS 0 continues; sessions can be resumed.
    Below it everything works as before.
    """
    config = tmp_path / "mqttd.toml"
    full = "[limits]\nworker_memory_bytes_max = 1000000\nhold_seconds_max = 0.5\n"
    config.write_text("[limits]\nhold_seconds_max = 0.5\n")
    broker = CountedBroker(4, ["--config", str(config)]).start()
    scene = Scene(broker, 5, name)
    try:
        publisher, subscriber, old = scene.client(), scene.client(), scene.open(4)
        old.connect(f"{name}old")
        kept = {"clean": False, "properties": {"session_expiry_interval": 600}}
        scene.client(f"{name}kept", **kept).disconnect()
        subscriber.subscribe((name, 1))
        config.write_text(full)
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: len(broker.logged("memory_full")) == 4, SECONDS, "all have noticed")
        let_pass(0.2)  # and their siblings have been notified: no counter shows it
        assert subscriber.subscribe(f"{name}/more") == (0x97,)
        assert publisher.publish(name, b"refused", qos=1) == 0x97
        publisher.publish(name, b"goes", qos=0)
        subscriber.receive(name, b"goes")
        old.send(wire.publish(4, name, b"refused", qos=1, packet_id=1))
        old.expect_closed()
        assert scene.client(f"{name}kept", **kept).connack.session_present
        config.write_text("[limits]\nhold_seconds_max = 0.5\n")
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: scene.open().socket and publisher.publish(name, b"x", qos=1) == 0, SECONDS, "room again")
        wait_until(lambda: len(broker.logged("memory_has_room")) == 4, SECONDS, "all have noticed")
        assert scene.client().connack.reason == 0
        assert broker.counter("memory_held") >= 2
    finally:
        for client in scene.opened:
            client.close()
        broker.stop()
        broker.forget()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 120 MB, with 30 MB of other files."""
    with mounted(tmp_path / "disk", "120m") as disk:
        (disk / "others").write_bytes(bytes(30 << 20))
        yield disk


def test_a_full_disk_refuses_drains_and_recovers(small_disk: Path, name: str) -> None:
    """Fill the disk by publishes at QoS 1 and 2 for an offline client until they are refused; then the client connects
    and gets everything acknowledged, at QoS 2 once. Then there is room again.
    """
    environment = {
        "MQTTD_LEVELDB__WRITE_BUFFER_BYTES": str(256 << 10),
        "MQTTD_LEVELDB__RESERVE_BYTES": str(75 << 20),
    }
    arguments = ["--store", "leveldb", "--data-dir", str(small_disk / "data"), "--admin", "127.0.0.1:0"]
    limits = {"queue_bytes_max": 1 << 30, "store_error_seconds_max": 0.5}
    broker = CountedBroker(1, arguments, environment, **limits).start()
    scene = Scene(broker, 5, name)
    try:
        sleeper = scene.client(f"{name}sleeper", **LASTING)
        sleeper.subscribe((f"{name}/stored", 2))
        sleeper.disconnect()
        live, old, publisher = scene.client(), scene.open(4), scene.client(f"{name}publisher", **LASTING)
        old.connect(f"{name}old")
        live.subscribe((f"{name}/live", 0))
        stored: list[bytes] = []
        for _ in range(3):  # a compaction that ends gives room back: other files take that
            _publish_until_refused(publisher, f"{name}/stored", stored)
            others = fill(small_disk)
        assert len(stored) > 20
        publisher.publish(f"{name}/live", b"goes on")
        live.receive(f"{name}/live", b"goes on")
        old.send(wire.publish(4, f"{name}/stored", b"refused", qos=1, packet_id=1))
        old.expect_closed()
        assert status_of(broker, "/ready") == status_of(broker, "/health") == 200
        assert report(broker, "/ready")["workers"][0]["store"] in ("full", "failed")
        assert totals(broker)["mqttd_store_full"] == 1
        os.truncate(others, 30 << 20)
        sleeper = scene.client(f"{name}sleeper", **LASTING)
        assert sleeper.connack.session_present
        assert _drained(sleeper, len(stored)) == stored
        wait_until(lambda: broker.counter("store_full") == 0, SECONDS, "what was read has made room")
        assert publisher.publish(f"{name}/stored", b"again", qos=2) == 0
        sleeper.receive(f"{name}/stored", b"again")
        assert broker.logged("store_full")
        assert broker.logged("store_has_room")
        assert report(broker, "/ready")["workers"][0]["store"] == "ok"
    finally:
        for client in scene.opened:
            client.close()
        status = broker.stop()
        broker.forget()
    assert status == 0


def test_a_small_disk_is_used_refuses_and_drains_without_any_setting(tmp_path: Path, name: str) -> None:
    """With sizes for large disks, nothing could be stored on a small one, or nothing read back."""
    with mounted(tmp_path / "disk", "64m") as disk:
        arguments = ["--store", "leveldb", "--data-dir", str(disk / "data")]
        broker = CountedBroker(1, arguments, queue_bytes_max=1 << 30)
        del broker.environment["MQTTD_LEVELDB__RESERVE_BYTES"]  # which all tests set
        broker.start()
        scene = Scene(broker, 5, name)
        try:
            sleeper = scene.client(f"{name}sleeper", **LASTING)
            sleeper.subscribe((f"{name}/stored", 2))
            sleeper.disconnect()
            publisher = scene.client(f"{name}publisher", **LASTING)
            stored: list[bytes] = []
            while True:
                payload = b"%06d" % len(stored) + os.urandom(100_000)
                if publisher.publish(f"{name}/stored", payload, qos=1 + len(stored) % 2):
                    break
                stored.append(payload[:6])
            assert len(stored) > 100
            assert broker.logged("store_full")
            sleeper = scene.client(f"{name}sleeper", **LASTING)
            assert _drained(sleeper, len(stored)) == stored
            wait_until(lambda: broker.counter("store_full") == 0, SECONDS, "what was read has made room")
            assert publisher.publish(f"{name}/stored", b"again", qos=2) == 0
            sleeper.receive(f"{name}/stored", b"again")
        finally:
            for client in scene.opened:
                client.close()
            status = broker.stop()
            broker.forget()
        assert status == 0


def test_a_broker_starts_on_a_disk_without_a_byte(tmp_path: Path, name: str) -> None:
    """Acknowledged messages are delivered; that, or removed files, makes room for more."""
    with mounted(tmp_path / "disk", "64m") as disk:
        broker = CountedBroker(2, ["--store", "leveldb", "--data-dir", str(disk / "data")])
        del broker.environment["MQTTD_LEVELDB__RESERVE_BYTES"]  # which all tests set
        broker.start()
        scene = Scene(broker, 5, name)
        try:
            sleeper = scene.client(f"{name}sleeper", **LASTING)
            sleeper.subscribe((f"{name}/stored", 2))
            sleeper.disconnect()
            publisher = scene.client(f"{name}publisher")
            stored = [b"%06d" % number for number in range(5)]
            for number, payload in enumerate(stored):
                assert publisher.publish(f"{name}/stored", payload, qos=1 + number % 2) == 0
            assert broker.stop() == 0  # which removes broker.json
            others = fill(disk)
            broker.start()
            (failed,) = broker.logged("broker_json_failed")
            assert failed["reason"] == "No space left on device"
            assert not {path.name for path in (disk / "data").iterdir()} & {"broker.json", "broker.part"}
            sleeper = scene.client(f"{name}sleeper", **LASTING)
            assert sleeper.connack.session_present
            others.unlink()
            assert _drained(sleeper, len(stored)) == stored
            publisher = scene.client(f"{name}publisher")
            wait_until(lambda: publisher.publish(f"{name}/stored", b"again", qos=1) == 0, SECONDS, "there is room")
            sleeper.receive(f"{name}/stored", b"again")
        finally:
            for client in scene.opened:
                client.close()
            status = broker.stop()
            broker.forget()
        assert status == 0


def test_a_full_disk_refuses_another_number_of_workers(tmp_path: Path, name: str) -> None:
    """At whatever point the disk fills: one line, and the stores are unchanged for the old number of workers, and for
    the new one as soon as there is room.
    """
    with mounted(tmp_path / "disk", "64m") as disk:
        data = disk / "data"
        arguments = ["--store", "leveldb", "--data-dir", str(data)]
        broker = BrokerProcess(2, arguments, {"MQTTD_LEVELDB__WRITE_BUFFER_BYTES": str(256 << 10)}).start()
        opened: list[wire.Client] = []

        def client(client_id: str) -> wire.Client:
            opened.append(wire.Client(broker.address, 5))
            opened[-1].connect(client_id, **LASTING)
            return opened[-1]

        sleepers = [each for worker in range(2) for each in itertools.islice(ids_on(worker, 2, f"{name}s"), 2)]
        try:
            for each in sleepers:
                sleeper = client(each)
                sleeper.subscribe((f"{name}/stored", 2))
                sleeper.disconnect()
            publisher = client(f"{name}publisher")
            stored = [b"%06d" % number for number in range(80)]
            for number, payload in enumerate(stored):
                assert publisher.publish(f"{name}/stored", payload + os.urandom(100_000), qos=1 + number % 2) == 0
            publisher.disconnect()
            broker.stop()
            before = _messages(contents(data))
            files = {path.name for path in data.iterdir()}
            others = fill(disk)
            broker.workers = 3
            for room in (16 << 10, 256 << 10, 2 << 20, 5 << 20):
                others.unlink()
                os.truncate(fill(disk), others.stat().st_size - room)
                said = broker.stderr_size()
                with pytest.raises(BrokerFailed, match="mqttd ended with status 4 "):
                    Mqttd.start(broker)  # BrokerProcess.start removes its files on failure
                (line,) = (each for each in broker.stderr(said).splitlines() if "cannot be repartitioned" in each)
                assert "No space left on device" in line
                assert line.endswith("they are unchanged: start with --workers 2, or with another --data-dir")
                assert "Traceback" not in broker.stderr(said)
                assert read_layout(str(data)).generation == 0
                assert {path.name for path in data.iterdir()} == files
            others.unlink()
            os.truncate(fill(disk), others.stat().st_size - (20 << 20))  # (there is no room for a reserve)
            broker.workers = 2
            broker.start()
            sleeper = client(sleepers[0])
            assert sleeper.connack.session_present
            assert sleeper.await_packet("PUBLISH").payload[:6] == stored[0]
            sleeper.close()
            broker.stop()
            others.unlink()  # opening a store writes to its disk
            assert _messages(contents(data)) == before
            grow(disk, "256m")  # the size of three stores without a reserve until they are compacted
            broker.workers = 3
            broker.start()
            for each in sleepers:
                sleeper = client(each)
                assert sleeper.connack.session_present
                assert _drained(sleeper, len(stored)) == stored
        finally:
            for each_client in opened:
                each_client.close()
            status = broker.stop()
            broker.forget()
        assert status == 0


def _messages(stores: list[dict[bytes, bytes]]) -> list[dict[bytes, bytes]]:
    # blocks and parts of indexes
    return [{key: value for key, value in store.items() if key[:1] in (b"B", b"I")} for store in stores]


def _publish_until_refused(publisher: wire.Client, topic: str, stored: list[bytes]) -> None:
    # appends the acknowledged ones, QoS 1 and 2 in turn, each with a large body that does not compress
    for number in range(len(stored), 2000):
        payload = b"%06d" % number + os.urandom(100_000)
        reason = publisher.publish(topic, payload, qos=1 + number % 2)
        if reason == 0x97:
            return
        assert reason == 0
        stored.append(payload[:6])
    raise AssertionError("it is never full")


def _drained(client: wire.Client, count: int) -> list[bytes]:
    # returns so many messages, by number; QoS 1 may be repeated, QoS 2 may not
    got: list[bytes] = []
    while len(set(got)) < count:
        packet = client.await_packet("PUBLISH")
        if packet.qos == 1:
            client.ack("PUBACK", packet.packet_id)
        else:
            assert packet.payload[:6] not in got, "QoS 2 twice"
            client.ack("PUBREC", packet.packet_id)
            client.await_packet("PUBREL", packet.packet_id)
            client.ack("PUBCOMP", packet.packet_id)
        got.append(packet.payload[:6])
    return sorted(set(got))


def test_a_sibling_whose_disk_is_slow_is_sent_from_the_log(tmp_path: Path, name: str) -> None:
    """More is in flight than a link keeps in memory: nothing is lost, repeated or out of order, QoS 1 and 2 in turn."""
    environment = {
        "LD_PRELOAD": str(compile_shim(tmp_path, Path(__file__).parents[1] / "power" / "slow.c")),
        "SLOW_SYNC_MS": str(int(SYNC_SECONDS * 1000)),
    }
    arguments = ["--store", "leveldb", "--data-dir", str(tmp_path / "data")]
    broker = CountedBroker(2, arguments, environment, peer_outbox_bytes_max=1 << 20, peer_stall_seconds_max=60).start()
    scene = Scene(broker, 5, name)
    try:
        near, far = (next(ids_on(worker, 2, f"{name}c")) for worker in range(2))
        subscriber, publisher = scene.client(far, **LASTING), scene.client(near)
        subscriber.subscribe((name, 2))
        sent = [b"%06d" % number for number in range(64)]
        for number, payload in enumerate(sent):
            body = payload + bytes(60_000)
            publisher.send(wire.publish(5, name, body, qos=1 + number % 2, packet_id=number + 1))
        got: dict[int, list[bytes]] = {1: [], 2: []}  # one QoS does not wait for the other
        for _ in sent:
            packet = subscriber.await_packet("PUBLISH")
            subscriber.ack("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id)
            got[packet.qos].append(packet.payload[:6])
        assert got == {1: sent[0::2], 2: sent[1::2]}
        for number, _ in enumerate(sent):
            publisher.expect("PUBREC" if number % 2 else "PUBACK", packet_id=number + 1)
        wait_until(lambda: broker.rows()[0]["mesh_batches_behind"], SECONDS, "the gauges are written")
        assert not broker.rows()[1]["mesh_batches_behind"]
        assert not broker.counter("peers_away")
    finally:
        for client in scene.opened:
            client.close()
        broker.stop()
        broker.forget()


def test_a_slow_disk_keeps_nobody_waiting_but_for_acks(tmp_path: Path, name: str) -> None:
    """While the ack of a publish waits for its fdatasync, other clients are served without delay."""
    environment = {
        "LD_PRELOAD": str(compile_shim(tmp_path, Path(__file__).parents[1] / "power" / "slow.c")),
        "SLOW_SYNC_MS": str(int(SYNC_SECONDS * 1000)),
    }
    arguments = ["--store", "leveldb", "--data-dir", str(tmp_path / "data")]
    broker = CountedBroker(1, arguments, environment).start()
    scene = Scene(broker, 5, name)
    try:
        sleeper = scene.client(f"{name}sleeper", **LASTING)
        sleeper.subscribe((f"{name}/stored", 1))
        sleeper.disconnect()
        publisher, live = scene.client(), scene.client()
        live.subscribe((f"{name}/live", 0))
        for packet_id in range(1, 40):  # a busy machine may take all of one wait
            rounds = 0
            began = time.monotonic()
            publisher.send(wire.publish(5, f"{name}/stored", b"slow", qos=1, packet_id=packet_id))
            while time.monotonic() - began < SYNC_SECONDS * 0.75:
                live.publish(f"{name}/live", b"fast")
                live.receive(f"{name}/live", b"fast")
                rounds += 1
            publisher.expect("PUBACK", packet_id=packet_id)
            assert time.monotonic() - began >= SYNC_SECONDS
            if rounds > 3:
                break
        else:
            pytest.fail("who waits for the disk has one round or two in each of its waits")
    finally:
        for client in scene.opened:
            client.close()
        broker.stop()
        broker.forget()


def test_what_no_ack_waits_for_does_not_gather_in_memory(tmp_path: Path, name: str) -> None:
    """Retained messages of QoS 0 that arrive faster than a slow disk takes them wait at the client."""
    environment = {
        "LD_PRELOAD": str(compile_shim(tmp_path, Path(__file__).parents[1] / "power" / "slow.c")),
        "SLOW_SYNC_MS": "50",
    }
    arguments = ["--store", "leveldb", "--data-dir", str(tmp_path / "data")]
    broker = CountedBroker(1, arguments, environment, store_unwritten_bytes_max=8 << 20).start()
    scene = Scene(broker, 5, name)
    body = os.urandom(60_000)
    topics = [f"{name}/{number}" for number in range(4)]
    packets = [wire.publish(5, topic, body, retain=True) for topic in topics]
    try:
        before, most = broker.pss_bytes(), 0
        flooder = scene.client()
        for number in range(4000):  # 240 MB
            flooder.send(packets[number % 4])
            if number % 50 == 0:
                most = max(most, broker.pss_bytes() - before)
        flooder.publish(topics[0], b"last", qos=1, retain=True)
        assert broker.counter("store_unwritten_held")
        assert most < 100 << 20
        reader = scene.client()
        reader.subscribe((topics[0], 0))
        assert reader.expect("PUBLISH").payload == b"last"
    finally:
        for client in scene.opened:
            client.close()
        broker.stop()
        broker.forget()


def test_retained_messages_beyond_the_bound_wait(tmp_path: Path, workers: int, name: str) -> None:
    """Each tick has more than the bound: the next one waits until it is written, and nothing is lost."""
    arguments = ["--store", "leveldb", "--data-dir", str(tmp_path / "data")]
    with CountedBroker(workers, arguments, store_unwritten_bytes_max=1000) as broker:
        scene = Scene(broker, 5, name)
        publisher, reader = scene.client(), scene.client()
        for number in range(200):
            publisher.publish(f"{name}/{number % 20}", b"%04d" % number + bytes(2000), retain=True)
        publisher.publish(f"{name}/20", b"0200", qos=1, retain=True)
        wait_until(lambda: broker.counter("retained_messages") == 21, SECONDS, "all are with their owners")
        reader.subscribe((f"{name}/#", 0))
        got = sorted(reader.expect("PUBLISH").payload[:4] for _ in range(21))
        assert got == [b"%04d" % number for number in range(180, 201)]
        assert broker.counter("store_unwritten_held")
        for client in scene.opened:
            client.close()
