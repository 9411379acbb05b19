"""Power cuts under a broker with traffic: in any state of its disk, nothing acknowledged is lost; QoS 2 arrives once.
That holds for subscribers with queued messages, and for those that replay the archive of all messages.

The broker runs once, traced, under load. Its clients keep a journal, whose moments are lengths of the trace: a client's
action at a moment cannot be on the broker's disk at an earlier one, and what the broker acknowledged at a moment was on
the disk by then. So disk and clients can be set back to the same moment together, and continue from there.

"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import plyvel
import pytest

from leveldb_store.format import schema
from leveldb_store.reachability import unreachable
from leveldb_store.store import LevelStore
from tests.broker_process import BrokerProcess
from tests.chaos import conftest as chaos
from tests.chaos.crowd import Crowd, ids_on
from tests.chaos.durable import ROOM, DurableSubscriber, Load, Past
from tests.power.conftest import Trace
from tests.power.cuts import Cut, cut
from tests.power.disk import Disk
from tests.power.trace import Record, Traced

WORKERS = 2
CUTS = 60
CUTS_LONG = 250
TOPICS = "load/#"
ARCHIVE = f'[[archive]]\nfilter = "{TOPICS}"\nhours = 24\nbytes = "1GB"\n'
WITH_ROOM = {f"MQTTD_LIMITS__{name.upper()}": str(limit) for name, limit in ROOM.items()}
STAMP = struct.Struct(">II")
STAMPED = re.compile(rb"load/\d/\d(?=\0\0\0)")  # a topic, followed by a stamp


class Life(NamedTuple):
    """A run of a broker: records of its disk, the end of each in the trace, the start of the traffic; its clients."""

    records: Sequence[Record]
    ends: Sequence[int]
    begun: int
    past: Past
    publishers: Mapping[str, int]
    """Publisher numbers by client id."""

    def acknowledged(self) -> list[tuple[int, int, int]]:
        """Return (moment, publisher, sequence number) of every PUBACK and PUBREC."""
        found = []
        for name, publisher in self.publishers.items():
            numbers: dict[bytes, int] = {}
            for moment, first, body in self.past[name]:
                if first == 0:
                    numbers[body[:2]] = int.from_bytes(body[2:], "big")
                elif first >> 4 in (4, 5):
                    found.append((moment, publisher, numbers[body[:2]]))
        return sorted(found)


Live = Callable[[str], Life]
Start = Callable[..., BrokerProcess]


def arguments_of(data_dir: Path) -> list[str]:
    config = data_dir.parent / "mqttd.toml"
    config.write_text(ARCHIVE)
    return ["--log-format", "json", "--config", str(config), "--store", "leveldb", "--data-dir", str(data_dir)]


@pytest.fixture(scope="module")
def live(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Live:
    """``live(durability)``: a run of a broker for a few seconds, made once."""
    lived: dict[str, Life] = {}

    def of(durability: str) -> Life:
        if durability not in lived:
            lived[durability] = life(trace(tmp_path_factory.mktemp(durability) / "data"), durability)
        return lived[durability]

    return of


def life(traced: Traced, durability: str) -> Life:
    """Run traffic: subscribers leave and return, a worker is killed and recovers; then everything is killed."""
    environment = {**traced.environment, **WITH_ROOM, "MQTTD_DURABILITY": durability}
    broker = BrokerProcess(WORKERS, arguments_of(traced.root), environment).start()
    try:
        with Crowd(broker.address) as crowd:
            load = Load(crowd, WORKERS, moment=lambda: traced.trace.stat().st_size, readers_each=1)
            sleepers = [
                DurableSubscriber(crowd, next(ids_on(worker, WORKERS, "sleeper")), TOPICS, qos=1)
                for worker in range(WORKERS)
            ]
            crowd.until(lambda: all(each.subscribed for each in sleepers), "the sleepers have subscribed")
            for each in sleepers:
                each.rest()
            begun = len(traced.records())
            load.begin()
            crowd.let_run(0.7)
            for each in load.subscribers[::3]:
                each.rest()
            crowd.let_run(0.7)
            os.kill(broker.worker_pids()[0], signal.SIGKILL)
            for each in load.subscribers:
                each.wake()
            load.delivered("after a worker was killed")
            crowd.let_run(0.7)
    finally:
        broker.kill()
        broker.forget()
    records = traced.records()
    ends = list(accumulate(record.size for record in records))
    return Life(records, ends, begun, load.past(), {each.client_id: each.number for each in load.publishers})


def go_on(life: Life, found: Cut, start: Start, patience: float, workers: int = WORKERS) -> None:
    """Start a broker on the remaining files and let the clients return in their state of that moment. Raises
    AssertionError, or TimeoutError after `patience` seconds, if something is missing, repeated or out of order.
    """
    moment = life.ends[found.point - 1]
    past = {name: [event for event in events if event[0] <= moment] for name, events in life.past.items()}
    broker = start(workers, arguments_of(found.directory), WITH_ROOM)
    with Crowd(broker.address) as crowd:
        load = Load(crowd, WORKERS, past=past, patience=patience, readers_each=1)
        load.begin()
        crowd.let_run(0.2)
        load.finish()
        load.check()
    assert broker.stop() == 0
    assert "Traceback" not in broker.stderr()
    shutil.rmtree(found.directory)


def scan(db: plyvel.DB, prefix: bytes) -> Iterable[tuple[bytes, bytes]]:
    """Return the records of a family."""
    found: Iterable[tuple[bytes, bytes]] = db.iterator(prefix=prefix)
    return found


def stored(data_dir: Path, said: list[str]) -> tuple[list[set[tuple[int, int]]], set[tuple[int, int]]]:
    """Return (publisher, sequence number) of all messages in the stores: by worker those that its store, or a hand-off
    log for it, has for its sleeper; and those in the archives.
    """
    found: list[set[tuple[int, int]]] = [set() for _ in range(WORKERS)]
    archived: list[tuple[int, int]] = []
    once: list[tuple[int, int]] = []
    for worker in range(WORKERS):
        store = LevelStore(data_dir / f"worker-{worker}", say=said.append)
        try:
            after = 0
            while batch := store.read(TOPICS.encode(), after, 1 << 20):
                after = batch.last
                found[worker] |= {STAMP.unpack_from(message.payload) for _, message in batch.items()}
            for key, value in store.scan(schema.HANDOFF):
                # of the bodies of an entry only ours matter, and they follow their topics
                found[key[1]] |= {STAMP.unpack_from(value, at.end()) for at in STAMPED.finditer(value)}
            page = store.archive.read([TOPICS.encode()], 0, 1 << 20)
            while not page.is_end or page.messages:
                archived += (STAMP.unpack_from(message.payload) for message in page.messages)
                once += (STAMP.unpack_from(message.payload) for message in page.messages if message.qos == 2)
                page = store.archive.read([TOPICS.encode()], page.up_to, 1 << 20)
        finally:
            store.close()
        with plyvel.DB(str(data_dir / f"worker-{worker}")) as db:
            assert list(unreachable(partial(scan, db), db.get)) == []
    # QoS 1 may: messages that the killed worker had stored and not acknowledged were sent again
    assert len(set(once)) == len(once)
    return found, set(archived)


@pytest.mark.parametrize(
    "cuts", [CUTS, pytest.param(CUTS_LONG, marks=pytest.mark.long), pytest.param(10_000, marks=pytest.mark.soak)]
)
def test_what_was_acknowledged_is_stored(
    live: Live, after_cuts: Path, cuts: int, record_property: chaos.Record
) -> None:
    """After every cut the stores open, and have every message acknowledged for a session that never reconnected."""
    life = live("fsync")
    acknowledged = life.acknowledged()
    said: list[str] = []
    for found in cut(Disk(), life.records, cuts, seed=cuts, into=after_cuts, first=life.begun):
        moment = life.ends[found.point - 1]
        told = {(publisher, number) for when, publisher, number in acknowledged if when <= moment}
        sleepers, archived = stored(found.directory, said)
        for worker, there in enumerate([*sleepers, archived]):  # the last one: the archives of all
            lost = sorted(told - there)
            assert not lost, f"cut {found.number}, {found.directory}, worker {worker}: {len(lost)}: {lost[:5]}"
        shutil.rmtree(found.directory)
    record_property("repairs", sum("is repaired" in each for each in said))


@pytest.mark.parametrize(
    "cuts", [4, pytest.param(8, marks=pytest.mark.long), pytest.param(1000, marks=pytest.mark.soak)]
)
def test_nothing_acknowledged_is_lost_by_a_power_cut(
    live: Live, after_cuts: Path, own_broker: Start, cuts: int
) -> None:
    """After every cut a broker starts on the remaining files, its clients return, and nothing is missing."""
    life = live("fsync")
    for found in cut(Disk(), life.records, cuts, seed=cuts, into=after_cuts, first=life.begun):
        try:
            go_on(life, found, own_broker, 30.0)
        except BaseException as error:
            error.add_note(f"cut {found.number} at record {found.point} of {len(life.records)}: {found.directory}")
            raise


def test_what_was_only_buffered_is_missed(live: Live, after_cuts: Path, own_broker: Start) -> None:
    """Negative control: with `durability = "buffered"` a power cut loses an acknowledged message; this is noticed."""
    life = live("buffered")
    for found in cut(Disk(), life.records, 20, seed=1, into=after_cuts, first=life.begun):
        try:
            go_on(life, found, own_broker, 3.0)
        except (AssertionError, TimeoutError):
            return
    pytest.fail("nothing was missed at 20 cuts")
