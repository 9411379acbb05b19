"""Power cuts while the number of workers changes: the old stores remain, whole, or the new ones, and the next start
continues from them, for any number of workers.

"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.repartition.stores import repartition
from leveldb_store.engine.database import Database, DatabaseOptions
from leveldb_store.format import schema
from shards.data_dir import DataDir, StoreChange, read_layout, store_path
from tests import wire
from tests.broker_process import BrokerProcess
from tests.kept_host import lasting, let_go, on_disk
from tests.power import repartitioner
from tests.power.conftest import Trace
from tests.power.cuts import cut
from tests.power.disk import Disk
from tests.power.test_broker import go_on, life
from tests.power.test_shim import run, tree
from tests.power.trace import Record

BODY_BYTES = 2000
OLD, NEW, BACK, AGAIN = range(4)
"""Generations: the first stores, those made of them, those made back for the first number of workers, and again."""

Contents = list[dict[bytes, bytes]]
"""All records by worker, except the epoch."""


class Changed(NamedTuple):
    """A change of the number of workers: the disk before, the trace of the change, and the expected contents."""

    disk: Disk
    records: Sequence[Record]
    workers: tuple[int, int]
    contents: dict[int, Contents]
    """Contents by generation."""


Changing = Callable[[int, int], Changed]


def fill(data: Path, workers: int) -> None:
    """Make stores with records of every kind: backlogs, windows, retained messages, wills, shares, hand-off logs."""
    DataDir(str(data), workers).close()
    host = on_disk([Path(store_path(str(data), worker)) for worker in range(workers)])
    for number in range(10):
        will = wire.Will("t/will", b"%d" % number, qos=1)
        peer = lasting(host, f"c{number}", (4, 5)[number % 2], will=will)
        peer.subscribe(("t/#", 1), (f"own/{number}", 2), ("$share/g/s/+", 2))
        if number % 3:
            host.lose(peer)
    publisher = lasting(host, "publisher", 5)

    def publish(count: int, *topics: str) -> None:
        for number in range(count):
            publisher.publish(topics[number % len(topics)], os.urandom(BODY_BYTES), qos=1 + number % 2)
            publisher.receive()

    publish(200, "t/a", "t/b", "own/3", "own/4", "own/5")
    publish(20, "s/1", "s/2")
    for number in range(10):
        publisher.publish(f"r/{number}", b"retained", qos=1, retain=True)
        publisher.receive()
    host.pass_time(1)
    if workers > 1:
        host.kill(next(node.index for node in host.nodes if node is not publisher.node))
        publish(50, "t/a", "t/b")
    let_go(host)


def contents(data: Path) -> Contents:
    """Return the contents of the stores, opened as by a worker. A store may log that its last record was torn."""
    now = read_layout(str(data))
    said: list[str] = []
    found: Contents = []
    for worker in range(now.workers):
        database = Database(Path(now.path(str(data), worker)), DatabaseOptions(), said.append)
        try:
            found.append(dict(database.db.iterator(verify_checksums=True)))
        finally:
            database.close()
        identity = found[-1].pop(schema.STORE, None)
        if now.generation:
            assert identity is not None
            assert json.loads(identity) == {"worker": worker, "workers": now.workers, "epoch": now.epoch}
    assert all("torn" in line for line in said), said
    return found


def begin(data: Path, workers: int) -> None:
    """Do the work of a start before there are workers."""

    def make(change: StoreChange) -> None:
        repartition(change.old, change.new, change.old_epoch, change.epoch)

    DataDir(str(data), workers, make).close()
    now = read_layout(str(data))
    assert now.workers == workers
    stores = {Path(now.path(str(data), worker)).name for worker in range(workers)}
    assert {path.name for path in data.iterdir()} - {"store.part"} == {"mqttd.lock", "store.json", *stores}


@pytest.fixture(scope="module")
def changing(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Changing:
    """``changing(before, after)``: a change of the number of workers, made once."""
    known: dict[tuple[int, int], Changed] = {}

    def of(before: int, after: int) -> Changed:
        if (before, after) in known:
            return known[before, after]
        traced = trace(tmp_path_factory.mktemp("data"))
        data = traced.root
        fill(data, before)
        shutil.copytree(data, copied := tmp_path_factory.mktemp("copy") / "data")
        found = {OLD: contents(copied)}
        disk = Disk.of(data)
        run(traced, repartitioner.__name__, data, traced.trace, str(after))
        played = copy.deepcopy(disk)
        played.play(traced.records())
        played.as_seen(copied.parent / "played")
        assert tree(copied.parent / "played") == tree(data), "the trace is not complete"
        found[NEW] = contents(data)
        for generation, workers in ((BACK, before), (AGAIN, after)):
            begin(data, workers)
            found[generation] = contents(data)
        known[before, after] = Changed(disk, traced.records(), (before, after), found)
        return known[before, after]

    return of


def check(changed: Changed, data: Path, rng: random.Random) -> int:
    """Check that one of both generations is whole, also after the next start continues from it; return its number."""
    generation = read_layout(str(data)).generation
    if rng.random() < 0.5:
        assert contents(data) == changed.contents[generation], f"generation {generation} is not what it was"
    if rng.random() < 0.3:
        workers = rng.choice(changed.workers)
        begin(data, workers)
        now = read_layout(str(data)).generation
        assert now == generation + (workers != changed.workers[generation % 2])
        assert contents(data) == changed.contents[now], f"generation {now}, made of {generation}, is not what it was"
    shutil.rmtree(data)
    return generation


SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    ("before", "after", "cuts"),
    [
        (2, 3, 20),
        pytest.param(2, 3, 50, marks=pytest.mark.long),
        *(pytest.param(*numbers, 3000, marks=SOAK) for numbers in ((2, 3), (1, 2), (4, 1))),
    ],
)
def test_the_old_stores_are_there_or_the_new_ones(
    changing: Changing, after_cuts: Path, before: int, after: int, cuts: int
) -> None:
    changed = changing(before, after)
    rng = random.Random(cuts)
    seen = set()
    for found in cut(copy.deepcopy(changed.disk), changed.records, cuts, seed=cuts, into=after_cuts):
        try:
            generation = check(changed, found.directory, rng)
        except BaseException as error:
            error.add_note(f"cut {found.number} at record {found.point} of {len(changed.records)}: {found.directory}")
            raise
        assert generation == NEW or found.promised is None
        seen.add(generation)
    assert seen == {OLD, NEW}


@pytest.mark.parametrize(("starts", "cuts"), [(2, 8), pytest.param(40, 100, marks=SOAK)])
def test_power_cuts_of_the_start_behind_a_power_cut(
    changing: Changing, trace: Trace, after_cuts: Path, starts: int, cuts: int
) -> None:
    """A power cut of the start after a power cut leaves the stores of one generation, for either number of workers."""
    changed = changing(2, 3)
    rng = random.Random(starts)
    for first in cut(copy.deepcopy(changed.disk), changed.records, starts, seed=starts, into=after_cuts):
        disk = Disk.of(first.directory)
        traced = trace(first.directory)
        workers = changed.workers[first.number % 2]
        run(traced, repartitioner.__name__, first.directory, traced.trace, str(workers))
        for found in cut(disk, traced.records(), cuts, seed=first.number, into=after_cuts / f"again{first.number}"):
            try:
                check(changed, found.directory, rng)
            except BaseException as error:
                error.add_note(f"{first.number}, record {first.point}: again with {workers}, record {found.point}")
                raise
        shutil.rmtree(first.directory)


@SOAK
@pytest.mark.parametrize("cuts", [200])
def test_nothing_acknowledged_is_lost(
    trace: Trace,
    tmp_path: Path,
    after_cuts: Path,
    own_broker: Callable[..., BrokerProcess],
    cuts: int,
) -> None:
    """A broker with clients is killed, and the power fails while the number of its workers changes: its clients return
    to a broker with the old or the new number, and nothing acknowledged is lost.
    """
    traced = trace(tmp_path / "data")
    lived = life(traced, "fsync")
    begun = len(traced.records())
    run(traced, repartitioner.__name__, traced.root, traced.trace, "3")
    records = traced.records()
    lived = lived._replace(records=records, ends=list(accumulate(record.size for record in records)), begun=begun)
    for found in cut(Disk(), records, cuts, seed=cuts, into=after_cuts, first=begun):
        workers = 2 + found.number % 2
        try:
            go_on(lived, found, own_broker, 30.0, workers)
        except BaseException as error:
            error.add_note(f"cut {found.number} at record {found.point}, {workers} workers: {found.directory}")
            raise
