"""`mqttd snapshot`, `mqttd restore` and `mqttd store` on snapshots, against a real broker."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from broker.cli import snapshots
from broker.testing import Mqttd
from leveldb_store.format import schema
from leveldb_store.snapshots.snapshot import NAME, read_manifest
from shards import data_dir
from shards.placement import home
from tests.broker_process import KIND
from tests.mqttd_command import command, mqttd
from tests.waiting import wait_until
from tests.wire import Client, Will

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no such stores")

Start = Callable[..., Mqttd]
QUEUED = 30


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(workers, name)``: a broker on a data directory of that name, ended with the test."""
    opened: list[Mqttd] = []

    def run(workers: int = 2, name: str = "data") -> Mqttd:
        config = {
            "store": "leveldb", "data_dir": tmp_path / name, "leveldb": {"reserve_bytes": 0},
            "archive": [{"filter": "q/#", "hours": 1, "bytes": "10MB"}],
        }  # fmt: skip
        opened.append(Mqttd(workers, config))
        return opened[-1].start()

    yield run
    for each in opened:
        each.kill()
        each.forget()


def filled(broker: Mqttd) -> None:
    """Make sessions on both workers, with queues, a half-complete window, retained messages, and five wills."""
    for number in range(6):
        with closing(Client(broker.address, 5)) as client:
            will = Will(f"will/{number}", b"gone", properties={"will_delay_interval": 1000})
            client.connect(f"c{number}", clean=False, will=will, properties={"session_expiry_interval": 2000})
            client.subscribe((f"q/{number % 2}/#", number % 3), ("all/+", 1))
            client.disconnect(4)
    with closing(Client(broker.address, 4)) as publisher:
        publisher.connect("publisher", clean=False)
        for number in range(QUEUED):
            publisher.publish(f"q/{number % 2}/x", b"queued %d" % number, qos=1 + number % 2)
        for number in range(8):
            publisher.publish(f"kept/{number}", b"retained %d" % number, qos=1, retain=True)
    with closing(Client(broker.address, 4)) as half:
        half.connect("c2", clean=False)
        first = half.expect("PUBLISH")
        half.ack("PUBREC" if first.qos == 2 else "PUBACK", first.packet_id)


def received(broker: Mqttd) -> dict[str, list[tuple[str, bytes, int]]]:
    """Return the messages that every session gets on its return: its queue, in order; then the retained messages, which
    arrive from both workers in any order.
    """
    found: dict[str, list[tuple[str, bytes, int]]] = {}
    for number in range(6):
        if number % 3 == 0:
            continue  # QoS 0: nothing is queued
        with closing(Client(broker.address, 4)) as client:
            client.connect(f"c{number}", clean=False)
            client.subscribe(("kept/#", 0))
            got = found.setdefault(f"c{number}", [])
            while len(got) < QUEUED // 2 + 8 - (number == 2):
                packet = client.read()
                if packet.kind == "PUBLISH":
                    got.append((packet.topic, packet.payload, packet.qos))
            got.sort(key=lambda each: (each[0].startswith("kept/"), each if each[0].startswith("kept/") else ()))
    return found


def sessions(directory: Path) -> dict[str, dict[str, object]]:
    """Return the rows of `mqttd sessions list` by client id."""
    said = mqttd("sessions", "list", "--json", "--data-dir", directory)
    assert said.status == 0, said
    return {row["client"]: row for row in map(json.loads, said.out.splitlines())}


def archived(directory: Path) -> list[object]:
    """Return the archives as `mqttd store stats` reports them."""
    return [store["archive"] for store in json.loads(mqttd("store", "stats", "--json", directory).out)]


def digests(directory: Path) -> dict[str, str]:
    return {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in directory.rglob("*")
        if file.is_file()
    }


def test_what_is_restored_of_a_running_broker_is_what_it_had(start: Start, tmp_path: Path) -> None:
    """Two workers; sessions, queues, messages in flight, retained messages, wills; messages between the workers."""
    broker = start()
    filled(broker)
    assert {home(f"c{number}", 2) for number in range(6)} == {0, 1}
    data, out = tmp_path / "data", tmp_path / "out"
    said = mqttd("snapshot", "--data-dir", data, "--out", out)
    assert said.status == 0, said
    assert said.err_beside_progress == f"mqttd: the broker (process {broker.pid}) keeps running\n"
    assert said.out.startswith(f"{out}: 2 workers, 7 sessions, ")
    manifest = read_manifest(out)
    assert (manifest.total(schema.SESSION), manifest.total(schema.RETAINED)) == (7, 8)
    assert manifest.total(schema.WILL) == 5
    for store in manifest.stores:
        assert store.counters["sessions"] == store.records["S"]
        assert store.counters["retained_messages"] == store.records["R"]
        assert store.counters["position"] == store.last_position
    assert sum(store.counters["publish_received"] for store in manifest.stores) == QUEUED + 8
    assert [rule["filter"] for rule in manifest.archive_rules] == ["q/#"]
    assert sum(store.archived["q/#"].messages for store in manifest.stores) == QUEUED
    listed = sessions(data)
    assert mqttd("restore", "--from", out, "--data-dir", tmp_path / "new").status == 0
    again = start(2, "new")
    assert {name: {**row, "connected": False} for name, row in listed.items()} == sessions(tmp_path / "new")
    assert received(again) == received(broker)
    assert "Traceback" not in again.logs + broker.logs
    assert again.stop() == broker.stop() == 0
    assert archived(data) == archived(tmp_path / "new") == archived(out)
    assert data_dir.read_layout(str(data)).archive == data_dir.read_layout(str(tmp_path / "new")).archive
    for directory in (data, tmp_path / "new", out):
        verified = mqttd("store", "verify", directory)
        assert (verified.status, verified.err) == (0, ""), verified


def test_a_restored_directory_may_have_another_number_of_workers(start: Start, tmp_path: Path) -> None:
    broker = start()
    filled(broker)
    assert mqttd("snapshot", "--data-dir", tmp_path / "data", "--out", tmp_path / "out").status == 0
    assert mqttd("restore", "--from", tmp_path / "out", "--data-dir", tmp_path / "new").status == 0
    once, more = received(broker), received(start(3, "new"))
    assert {name: sorted(got) for name, got in more.items()} == {name: sorted(got) for name, got in once.items()}


def test_a_stopped_broker_and_one_that_was_killed_have_snapshots_too(start: Start, tmp_path: Path) -> None:
    broker = start()
    filled(broker)
    broker.kill()
    before = digests(tmp_path / "data")
    said = mqttd("snapshot", "--data-dir", tmp_path / "data", "--out", tmp_path / "killed")
    assert (said.status, said.err_beside_progress) == (0, "")
    assert digests(tmp_path / "data") == before
    broker.start()
    assert broker.stop() == 0
    said = mqttd("snapshot", "--data-dir", tmp_path / "data", "--out", tmp_path / "stopped")
    assert (said.status, said.err_beside_progress) == (0, "")
    killed, stopped = (read_manifest(tmp_path / name) for name in ("killed", "stopped"))
    assert killed.total(schema.SESSION) == stopped.total(schema.SESSION) == 7
    assert killed.total(schema.RETAINED) == stopped.total(schema.RETAINED) == 8
    for name in ("killed", "stopped"):
        assert mqttd("store", "verify", tmp_path / name).status == 0


def test_snapshots_under_publishes_have_counters_that_agree_with_their_records(start: Start, tmp_path: Path) -> None:
    """One worker, an offline session: the number of messages received always equals the number in the log."""
    broker = start(1)
    with closing(Client(broker.address, 4)) as subscriber:
        subscriber.connect("away", clean=False)
        subscriber.subscribe(("n/#", 1))
    counts = []
    with closing(Client(broker.address, 4)) as publisher:
        publisher.connect("publisher")
        for number in range(4):
            running = command("snapshot", "--data-dir", tmp_path / "data", "--out", tmp_path / f"out-{number}")
            while running.poll() is None:
                publisher.publish(f"n/{number}", os.urandom(200), qos=1, retain=True)
            assert running.wait() == 0, running.communicate()
            running.communicate()
            (store,) = read_manifest(tmp_path / f"out-{number}").stores
            assert store.counters["publish_received_qos1"] == store.messages == store.counters["position"]
            assert store.counters["retained_messages"] == store.records.get("R", 0) == number + 1
            counts.append(store.messages)
    assert counts == sorted(counts)
    assert counts[0] > 0


def test_the_stores_commands_leave_a_snapshot_as_it_is_and_name_damage(start: Start, tmp_path: Path) -> None:
    broker, out = start(), tmp_path / "out"
    filled(broker)
    assert mqttd("snapshot", "--data-dir", tmp_path / "data", "--out", out).status == 0
    before = digests(out)
    verified = mqttd("store", "verify", out)
    assert [line.partition(" records, ")[2] for line in verified.out.splitlines()] == ["no problems", "no problems"]
    stats = json.loads(mqttd("store", "stats", "--json", out).out)
    assert sum(store["families"]["sessions"]["records"] for store in stats) == 7
    assert [store["store"] for store in stats] == [str(out / "worker-0"), str(out / "worker-1")]
    assert digests(out) == before
    assert {each.name for each in out.iterdir()} == {NAME, "worker-0", "worker-1"}
    said = json.loads((out / NAME).read_text())
    said["stores"][0]["messages"] += 1
    (out / NAME).write_text(json.dumps(said))
    verified = mqttd("store", "verify", out)
    assert verified.status == 1
    assert f"and {NAME} says" in verified.out
    table = next((out / "worker-1").glob("*.ldb"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.unlink()  # the broker's file is a hard link to it
    table.write_bytes(content)
    verified = mqttd("store", "verify", out)
    assert verified.status == 1
    assert f"{table.name}: is damaged (its digest differs)" in verified.out
    refused = mqttd("restore", "--from", out, "--data-dir", tmp_path / "new")
    assert (refused.status, refused.err.count("\n")) == (4, 1)
    assert f"{table}: is damaged" in refused.err
    assert not (tmp_path / "new").exists()
    assert broker.stop() == 0
    assert mqttd("store", "verify", tmp_path / "data").status == 0


def test_what_cannot_be_done_is_said_in_one_line(start: Start, tmp_path: Path) -> None:
    broker, data, out = start(1), tmp_path / "data", tmp_path / "out"
    full = tmp_path / "full"
    full.mkdir()
    (full / "something").touch()
    for arguments, status, line in (
        (("snapshot", "--data-dir", data, "--out", full), 2, f"{full}: exists and is not empty"),
        (("snapshot", "--data-dir", data, "--out", data / "out"), 2, f"{data / 'out'}: lies in the data directory"),
        (("snapshot", "--data-dir", data, "--out", tmp_path / "a" / "b"), 2, f"{tmp_path / 'a'}: is not a directory"),
        (("snapshot", "--data-dir", full, "--out", out), 4,
         f"{full}: is not a data directory of mqttd (it has no store.json)"),
        (("restore", "--from", full, "--data-dir", out), 4,
         f"{full}: is not a snapshot of mqttd, or is incomplete"),
    ):  # fmt: skip
        said = mqttd(*arguments)
        assert (said.status, said.out, said.err_beside_progress) == (status, "", f"mqttd: {line}\n")
        assert not out.exists()
    assert mqttd("snapshot", "--data-dir", data, "--out", out).status == 0
    said = mqttd("restore", "--from", out, "--data-dir", data)
    assert (said.status, said.err) == (2, f"mqttd: data_dir {data}: is not empty\n")
    for arguments in (
        ("snapshot", "--data-dir", data, "--out", out / "worker-0" / "out"),
        ("restore", "--from", out, "--data-dir", out / "out"),
    ):
        said = mqttd(*arguments)
        assert (said.status, said.err) == (2, f"mqttd: {arguments[-1]}: lies in the snapshot {out}\n")
        assert mqttd("store", "verify", out).status == 0
    said = mqttd("restore", "--from", out, "--data-dir", tmp_path / "a" / "b")
    assert (said.status, said.err) == (2, f"mqttd: {tmp_path / 'a'}: is not a directory\n")
    whole = (out / NAME).read_text()
    for key, line in (
        ("format", "the snapshot has format 3, this mqttd reads formats 1 to 2"),
        ("schema", "the stores have schema version 3, this mqttd reads versions 1 to 2"),
    ):
        (out / NAME).write_text(json.dumps({**json.loads(whole), key: 3}))
        restoring: tuple[str | Path, ...] = ("restore", "--from", out, "--data-dir", tmp_path / "new")
        for refused in (restoring, ("store", "verify", out)):
            said = mqttd(*refused)
            assert (said.status, said.err_beside_progress) == (4, f"mqttd: {out}: {line}\n")
    assert not (tmp_path / "new").exists()
    assert broker.alive()


def test_one_that_is_interrupted_leaves_nothing(start: Start, tmp_path: Path) -> None:
    start(1)
    out = tmp_path / "out"
    running = command("snapshot", "--data-dir", tmp_path / "data", "--out", out)
    wait_until(lambda: out.exists() or running.poll() is not None, 60.0, "it has begun")
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    if running.returncode in (0, -signal.SIGTERM):  # the snapshot was faster, and may not even have ended by itself
        assert read_manifest(out).workers == 1
    else:
        assert (running.returncode, err.splitlines()[-1]) == (130, "mqttd: interrupted; all new files were removed")
        assert not out.exists()


@pytest.mark.parametrize("what", ["snapshot", "restore"])
@pytest.mark.parametrize("is_there", [False, True])
def test_wherever_it_is_interrupted_there_is_nothing_or_all(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, is_there: bool
) -> None:
    """SIGTERM arrives at each call of a function in turn, and a second one during the clean-up."""
    assert start(2).stop() == 0
    monkeypatch.setattr(snapshots, "_step_back", lambda: None)
    data, whole, out = str(tmp_path / "data"), str(tmp_path / "whole"), tmp_path / "out"
    assert snapshots.snapshot_main(["--data-dir", data, "--out", whole]) == 0
    run = {
        "snapshot": partial(snapshots.snapshot_main, ["--data-dir", data, "--out", str(out)]),
        "restore": partial(snapshots.restore_main, ["--from", whole, "--data-dir", str(out)]),
    }[what]
    at: list[int] = []
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        if event == "call":
            calls += 1
            if calls in at:
                signal.raise_signal(signal.SIGTERM)

    def watched_run() -> int:
        nonlocal calls
        calls = 0
        if is_there:
            out.mkdir()
        former = signal.signal(signal.SIGTERM, lambda *_: None)  # before it watches, and afterwards
        sys.setprofile(count)
        try:
            return run()
        finally:
            sys.setprofile(None)
            signal.signal(signal.SIGTERM, former)

    assert watched_run() == 0
    last = calls
    statuses = set()
    for first in {*range(1, last, max(1, last // 60)), *range(last - 20, last)}:
        shutil.rmtree(out)
        at[:] = [first, first + 30]
        statuses.add(status := watched_run())
        if status == 0:
            assert (out / (NAME if what == "snapshot" else "store.json")).is_file()
        else:
            assert status == 130
            assert (list(out.iterdir()) == []) if is_there else not out.exists()
            out.mkdir(exist_ok=True)
    assert statuses == {0, 130}
