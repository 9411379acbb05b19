"""Snapshots of a broker under load, over and over, and brokers that are started on the restored snapshots.

Durable publishers on all workers, at QoS 1 and 2, and subscribers of which half are away; write buffers are so small
that the stores are compacted all the time. Each snapshot opens, its contents match its manifest, and the messages
acknowledged before it began are there, for each session that was away, QoS 2 once, in order. At the end nothing is
missing in the broker that was copied.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from leveldb_store.snapshots import snapshot
from leveldb_store.snapshots.clone import reading
from leveldb_store.snapshots.snapshot import Manifest, Taking, differences
from shards import data_dir
from tests.broker_process import ROOT, BrokerProcess
from tests.chaos.conftest import OpenCrowd, Record, StartBroker
from tests.chaos.crowd import Crowd, Publisher, Subscriber, ids_on
from tests.chaos.durable import DurableSubscriber, Load, Past
from tests.mqttd_command import command, mqttd

WORKERS = 3
PATIENCE = 60.0
CONFIG = """\
leveldb = {write_buffer_bytes = 65536, reserve_bytes = 0}
"""
HEAVY_BYTES = 4000
HEAVY_RATE = 300.0
FILL_BYTES = 32_000
STALL_MS_MAX = 20.0


class Round(NamedTuple):
    """A snapshot, and what its clients knew when it began."""

    out: Path
    told: dict[int, frozenset[int]]
    """By publisher: the sequence numbers acknowledged to it."""
    past: Past
    away: list[DurableSubscriber]


def take(crowd: Crowd, data: Path, out: Path) -> Manifest:
    """Take a snapshot while the crowd runs; return its manifest."""
    out.mkdir()
    layout = data_dir.read_layout(str(data))
    taking = Taking([Path(layout.path(str(data), worker)) for worker in range(layout.workers)], out)
    made: list[Manifest] = []

    def work() -> None:
        taking.clone()
        made.append(taking.finish("test", layout.epoch, layout.generation, layout.archive))

    thread = Thread(target=work)
    thread.start()
    try:
        crowd.until(lambda: not thread.is_alive(), "the snapshot is taken", PATIENCE)
    finally:
        thread.join()
    return made[0]


def check(manifest: Manifest, out: Path) -> None:
    """Check that the snapshot's manifest is true."""
    for store in manifest.stores:
        assert list(differences(out, store)) == []
        with reading(out / store.directory) as db:
            found = snapshot.count(db)
        assert (found.records, found.messages, found.last_position, found.counters) == (
            store.records, store.messages, store.last_position, store.counters,
        )  # fmt: skip
        assert store.counters["sessions"] == store.records.get("S", 0)
        assert store.counters["retained_messages"] == store.records.get("R", 0)
        assert store.counters["position"] == store.last_position


def check_restored(each: Round, data: Path, start: StartBroker, crowd_of: OpenCrowd) -> None:
    """Check that a broker started on the snapshot has everything that was acknowledged when it began."""
    assert mqttd("restore", "--from", each.out, "--data-dir", data).status == 0
    broker = start(WORKERS, "--store", "leveldb", "--data-dir", str(data), "--config", str(data.parent / "mqttd.toml"))
    crowd = crowd_of(broker)
    back = [
        DurableSubscriber(
            crowd, former.client_id, "load/#", qos=former.qos, version=former.version, past=each.past[former.client_id]
        )
        for former in each.away
    ]

    def all_came() -> bool:
        return all(told <= set(one.received[number]) for one in back for number, told in each.told.items())

    try:
        crowd.until(all_came, "it has what was acknowledged", PATIENCE)
    except TimeoutError:
        lost = {
            (one.client_id, number): sorted(told - set(one.received[number]))[:5]
            for one in back
            for number, told in each.told.items()
            if told - set(one.received[number])
        }
        raise AssertionError(f"{each.out.name}: acknowledged and not there: {lost}") from None
    for one in back:
        for number in each.told:
            got = one.received[number]
            if one.qos == 2 and number % 2 == 0:  # the publishers at QoS 2: see Load
                assert len(set(got)) == len(got), (
                    f"{each.out.name}: {one.client_id}: twice of publisher {number}: {got}"
                )
            first = list(dict.fromkeys(got))
            assert first == sorted(first), f"{each.out.name}: {one.client_id}: out of order: {got}"
    crowd.__exit__(None, None, None)
    assert broker.stop() == 0
    assert "Traceback" not in broker.stderr()


@pytest.mark.parametrize(
    ("rounds", "restored_every"), [(6, 2), pytest.param(100, 5, marks=pytest.mark.soak)], ids=["6", "100"]
)
def test_snapshots_under_load_have_what_was_acknowledged(
    start_broker: StartBroker,
    crowd_of: OpenCrowd,
    tmp_path: Path,
    record_property: Record,
    rounds: int,
    restored_every: int,
) -> None:
    config, data = tmp_path / "mqttd.toml", tmp_path / "data"
    config.write_text(CONFIG)
    broker = start_broker(WORKERS, "--store", "leveldb", "--data-dir", str(data), "--config", str(config))
    crowd = crowd_of(broker)
    load = Load(crowd, WORKERS, moment=time.monotonic_ns, patience=PATIENCE)
    heavy = Publisher(
        crowd, "heavy", "heavy/x", qos=1, rate=HEAVY_RATE, payload_bytes=HEAVY_BYTES, retain=True
    )  # fmt: skip
    reader = Subscriber(crowd, next(ids_on(0, WORKERS, "reader")), "heavy/#", qos=1, clean=False)
    crowd.until(lambda: reader.subscribed and heavy.accepted_by_broker, "the heavy ones are there", PATIENCE)
    load.begin()
    heavy.begin()
    taken: list[Round] = []
    compacted = put_back = 0
    for number in range(rounds):
        away = load.subscribers[number % 2 :: 2]
        for one in load.subscribers:
            if one in away:
                one.rest()
            else:
                one.wake()
        crowd.let_run(0.3)
        told = {each.number: frozenset(each.acknowledged) for each in load.publishers}
        past, out = load.past(), tmp_path / f"out-{number}"
        tables = {file.name for file in data.rglob("*.ldb")}
        manifest = take(crowd, data, out)
        compacted += bool(tables - {file.name for file in data.rglob("*.ldb")})
        put_back += sum(link.put_back for store in manifest.stores for link in store.links.values())
        check(manifest, out)
        if number % restored_every == restored_every - 1:
            taken.append(Round(out, told, past, away))
    load.finish()
    load.check()
    heavy.stop()
    crowd.until(lambda: heavy.done and len(reader.received[heavy.number]) == heavy.sent, "all is there", PATIENCE)
    assert broker.stop() == 0
    verified = mqttd("store", "verify", data)
    assert verified.status == 0, verified
    last = take(crowd, data, tmp_path / "last")
    sent = sum(each.sent for each in load.publishers) + heavy.sent
    assert sum(store.counters["publish_received"] for store in last.stores) == sent
    for each in taken:
        check_restored(each, tmp_path / f"new-{each.out.name}", start_broker, crowd_of)
    assert compacted
    record_property("compacted_meanwhile", compacted)
    record_property("put_back", put_back)
    record_property("messages", sent)


# ---------------------------------------------------------------- duration, and effect on clients


class Pings:
    """A process that pings a worker all the time (tests/chaos/pings.py)."""

    def __init__(self, broker: BrokerProcess, client_id: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.pings", broker.host, str(broker.port), client_id],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "asks\n"

    def end(self) -> list[tuple[float, float]]:
        """Return (time of the ping, seconds until the answer) of the slow answers."""
        out, _ = self._process.communicate(timeout=PATIENCE)
        *lines, asked = out.splitlines()
        assert asked.startswith("asked "), asked
        return [(float(began), float(seconds)) for began, _, seconds in (line.partition(" ") for line in lines)]


def worst(delays: list[tuple[float, float]], begin: float, end: float) -> float:
    """Return the longest of the delays that overlap this time."""
    return max((delay for at, delay in delays if at < end and at + delay > begin), default=0.0)


def fill(crowd: Crowd, data: Path, size: int) -> None:
    """Fill the store of each worker with so many bytes, for sessions that are away."""
    away = [
        Subscriber(crowd, next(ids_on(worker, 2, "away")), f"fill/{worker}", qos=1, clean=False) for worker in (0, 1)
    ]
    crowd.until(lambda: all(each.subscribed for each in away), "they have subscribed", PATIENCE)
    for subscriber in away:
        subscriber.close()
    fillers = [
        Publisher(
            crowd, next(ids_on(worker, 2, "filler")), f"fill/{worker}", qos=1, payload_bytes=FILL_BYTES,
            count=size // FILL_BYTES + 1,
        )
        for worker in (0, 1)
    ]  # fmt: skip
    crowd.until(lambda: all(each.accepted_by_broker for each in fillers), "the fillers are there", PATIENCE)
    crowd.begin()
    crowd.until(lambda: all(each.done for each in fillers), "all is filled", 30 * PATIENCE)
    for each in fillers:
        each.close()

    def size_of(worker: int) -> int:
        return sum(file.stat().st_size for file in (data / f"worker-{worker}").iterdir() if file.exists())

    sizes: list[int] = []
    while len(sizes) < 6 or len(set(sizes[-6:])) > 1:  # compaction continues for a while
        crowd.let_run(0.5)
        sizes.append(size_of(0) + size_of(1))
    assert min(size_of(0), size_of(1)) > size


@pytest.mark.soak
def test_a_snapshot_of_a_gigabyte_per_worker_is_taken_under_load_and_nobody_notices(
    start_broker: StartBroker, crowd_of: OpenCrowd, tmp_path: Path, record_property: Record
) -> None:
    """Five of them, two workers, 1,000 msg/s at QoS 1 to lasting sessions; a ping every 2 ms to each worker."""
    config, data = tmp_path / "mqttd.toml", tmp_path / "data"
    config.write_text('leveldb = {compression = "none", reserve_bytes = 0}\n')
    disk = ("--store", "leveldb", "--data-dir", str(data), "--config", str(config))
    broker = start_broker(2, *disk, queue_bytes_max=8 << 30, queue_messages_max=1 << 30)
    crowd = crowd_of(broker)
    fill(crowd, data, 1 << 30)
    pairs = []
    for worker in (0, 1):
        reader = Subscriber(crowd, next(ids_on(worker, 2, "reader")), f"pair/{worker}", qos=1, clean=False)
        writer = Publisher(crowd, next(ids_on(1 - worker, 2, "writer")), f"pair/{worker}", qos=1, rate=500.0)
        pairs.append((writer, reader))
    crowd.until(lambda: all(w.accepted_by_broker and r.subscribed for w, r in pairs), "the pairs are there", PATIENCE)
    pings = [Pings(broker, next(ids_on(worker, 2, "ping"))) for worker in (0, 1)]
    for writer, _ in pairs:
        writer.begin()
    crowd.let_run(1.0)
    began = time.monotonic()
    crowd.let_run(8.0)
    times = [(began, time.monotonic())]
    said = []
    for number in range(5):
        began = time.monotonic()
        running = command("snapshot", "--data-dir", data, "--out", tmp_path / f"out-{number}")
        crowd.until(lambda running=running: running.poll() is not None, "it is taken", PATIENCE)  # type: ignore[misc]
        times.append((began, time.monotonic()))
        out, err = running.communicate()
        assert running.returncode == 0, err
        said.append(re.search(r"cloned in ([\d.]+) s, all in ([\d.]+) s", out))
        shutil.rmtree(tmp_path / f"out-{number}")
        crowd.let_run(1.0)
    for writer, _ in pairs:
        writer.stop()
    crowd.until(lambda: all(w.done and len(r.received[w.number]) == w.sent for w, r in pairs), "all came", PATIENCE)
    delays = [delay for each in pings for delay in each.end()]
    before, *during = [1000 * worst(delays, *each) for each in times]
    record_property("worst_ping_ms_without", round(before, 2))
    record_property("worst_ping_ms_during", [round(each, 2) for each in during])
    record_property("cloned_s", [float(each[1]) for each in said if each])
    record_property("all_s", [float(each[2]) for each in said if each])
    assert statistics.median(during) < STALL_MS_MAX + before
