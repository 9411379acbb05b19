"""The number of workers changes under clients that reconnect, and the process that makes the new stores is killed.

Durable publishers and subscribers at QoS 1 and 2, as in test_crash. The broker is killed under load, started with
another number of workers, and dies while it makes their stores: at a point in the life of the process that makes them
(the library of tests/power), or all at once, after a time. Once it is no longer killed it starts, and everything
acknowledged has arrived, QoS 2 once, in order. The same holds for the archive, which is repartitioned too.
"""

from __future__ import annotations

import os
import random
import signal
import struct
from collections import Counter
from pathlib import Path
from threading import Timer

import pytest

from broker.testing import BrokerFailed, Mqttd
from tests.archived import archived
from tests.broker_process import BrokerProcess
from tests.chaos.conftest import OpenCrowd, Record, StartBroker
from tests.chaos.durable import ROOM, Load
from tests.power.trace import compile_shim

STAMP = struct.Struct(">II")  # publisher and sequence number, of a payload
POINTS = ("write", "written", "sync", "synced")


def die_at_point(broker: BrokerProcess, library: Path, once: Path, data: Path, point: str, at: int) -> bool:
    """Start the broker; its first process that reaches the point dies there. False: that process made no stores."""
    environment = {"LD_PRELOAD": str(library), "POWER_ROOT": str(data), "POWER_KILL": f"{point} {at} {once}"}
    broker.environment.update(environment)
    try:
        Mqttd.start(broker)
    except BrokerFailed:
        assert once.exists(), f"it ended, and not by our hand:\n{broker.stderr()[-5000:]}"
        return True
    else:
        return False
    finally:
        for name in environment:
            del broker.environment[name]
        broker.kill()


def die_by_the_clock(broker: BrokerProcess, seconds: float) -> bool:
    """Start the broker, and kill its supervisor so many seconds later. False: it was ready before."""
    timer = Timer(seconds, lambda: os.kill(broker.pid, signal.SIGKILL))
    timer.start()
    try:
        Mqttd.start(broker)
    except BrokerFailed:
        return True
    else:
        return False
    finally:
        timer.join()
        broker.kill()


@pytest.mark.parametrize(
    ("numbers", "deaths", "seed"),
    [([2, 4, 3, 1], 1, 1), *(pytest.param([2, 4, 3, 1] * 4, 12, seed, marks=pytest.mark.soak) for seed in range(2, 6))],
)
def test_the_number_of_workers_changes_and_nothing_is_lost(
    start_broker: StartBroker,
    crowd_of: OpenCrowd,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    record_property: Record,
    numbers: list[int],
    deaths: int,
    seed: int,
) -> None:
    rng = random.Random(seed)
    library = compile_shim(tmp_path_factory.mktemp("shim"))
    data = tmp_path / "data"
    config = tmp_path / "mqttd.toml"
    config.write_text('[[archive]]\nfilter = "load/#"\nhours = 24\nbytes = "10GB"\n')
    broker = start_broker(numbers[0], "--config", str(config), "--store", "leveldb", "--data-dir", str(data), **ROOM)
    crowd = crowd_of(broker)
    load = Load(crowd, 4, patience=60.0)
    load.begin()
    died = 0
    for step, workers in enumerate(numbers[1:]):
        resting = rng.sample(load.subscribers, len(load.subscribers) // 2)
        for each in load.subscribers:
            if each in resting:
                each.rest()
            else:
                each.wake()
        crowd.let_run(0.3 + rng.random() * 0.5)
        os.kill(broker.pid, signal.SIGKILL)
        broker.kill()
        broker.workers = workers
        for death in range(deaths):
            if death % 3 == 2:
                died += die_by_the_clock(broker, 0.2 + rng.random() * 1.5)
            else:
                once = tmp_path / f"killed-{step}-{death}"
                died += die_at_point(broker, library, once, data, rng.choice(POINTS), rng.randrange(1, 60))
        broker.start()
        assert broker.worker_pids().keys() == set(range(workers))
        load.delivered(f"with {workers} workers")
    load.finish()
    load.check()
    assert died
    assert broker.stop() == 0
    # the archive has everything: messages of QoS 2 once, of QoS 1 as often as they were sent
    stamps = Counter(STAMP.unpack_from(row.payload) for row in archived(data))
    for publisher in load.publishers:
        assert {number for name, number in stamps if name == publisher.number} == set(range(publisher.sent))
        if publisher.qos == 2:
            assert all(stamps[publisher.number, number] == 1 for number in range(publisher.sent))
    record_property("died", died)
    record_property("messages", sum(each.sent for each in load.publishers))
