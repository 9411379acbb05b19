"""The broker is killed under load, over and over, and its clients miss nothing: acknowledged means on disk.

Durable publishers and subscribers on all workers, at QoS 1 and 2. In every round something dies: a worker, all of them,
the supervisor, or the first worker that reaches a given point (the library of tests/power kills it there: before or
after a write or sync, or an answer). Clients reconnect; some rest for a round. Checked: every acknowledged message
arrives, QoS 2 exactly once, in order, and sessions and subscriptions are unchanged.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.testing import BrokerFailed, Mqttd
from tests.broker_process import BrokerProcess
from tests.chaos.conftest import OpenCrowd, Record, StartBroker
from tests.chaos.crowd import Crowd
from tests.chaos.durable import ROOM, Load
from tests.mqttd_command import mqttd
from tests.power.trace import compile_shim

POINTS = ("write", "written", "sync", "synced", "answer", "answered")
DEATHS_MAX = 8
"""Deaths of workers under one supervisor: with ten within a minute it ends."""


class Killer:
    """Kills parts of a broker, which then runs, or starts, again."""

    def __init__(self, broker: BrokerProcess, crowd: Crowd, library: Path, directory: Path, rng: random.Random) -> None:
        self.broker = broker
        self.crowd = crowd
        self.rng = rng
        self._library = library
        self._directory = directory
        self._deaths = 0
        self._points = 0

    def _pids(self) -> list[int]:
        """Return the sorted pids of the living workers."""
        self.crowd.until(self.broker.worker_pids, "a worker lives")
        return sorted(self.broker.worker_pids().values())

    def _alive(self, deaths: int) -> bool:
        """Whether this supervisor may see so many more deaths; if not, it is killed itself."""
        self._deaths += deaths
        if self._deaths <= DEATHS_MAX:
            return True
        self.supervisor()
        return False

    def worker(self) -> None:
        """SIGKILL one worker."""
        if self._alive(1):
            os.kill(self.rng.choice(self._pids()), signal.SIGKILL)

    def all_workers(self) -> None:
        """SIGKILL all workers at once."""
        pids = self._pids()
        if self._alive(len(pids)):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

    def supervisor(self) -> None:
        """SIGKILL the supervisor, which the kernel lets no worker survive; then start the broker again."""
        self._end()
        self.broker.start()

    def _end(self) -> None:
        os.kill(self.broker.pid, signal.SIGKILL)
        self.broker.kill()
        self._deaths = 0

    def at_point(self, point: str) -> None:
        """Restart the broker with a worker that will die at its own Nth write, sync or answer. If that is during
        recovery, the broker ends, and is started again.
        """
        self._points += 1
        once = self._directory / f"killed{self._points}"
        environment = {
            "LD_PRELOAD": str(self._library),
            "POWER_ROOT": str(self._directory / "data"),
            "POWER_KILL": f"{point} {self.rng.randrange(20, 400)} {once}",
        }
        self._end()
        self.broker.environment.update(environment)
        try:
            Mqttd.start(self.broker)  # BrokerProcess.start removes its files on failure
        except BrokerFailed:
            assert once.exists(), "it ended, and not by our hand"
        for name in environment:
            del self.broker.environment[name]
        if not self.broker.alive():
            self.broker.start()
        self.crowd.until(once.exists, f"a worker has died at {point}", 60.0)
        self._deaths += 1


@pytest.fixture
def killer_of(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[BrokerProcess, Crowd, int], Killer]:
    """``killer_of(broker, crowd, seed)``: return a killer for that broker."""
    library = compile_shim(tmp_path_factory.mktemp("shim"))
    return lambda broker, crowd, seed: Killer(broker, crowd, library, tmp_path, random.Random(seed))


@pytest.mark.parametrize(
    ("size", "rounds", "seed"),
    [
        (3, 8, 2),
        pytest.param(3, 20, 1, marks=pytest.mark.long),
        *(pytest.param(size, 100, 100 + size, marks=pytest.mark.soak) for size in (1, 2, 4)),
    ],
)
@pytest.mark.parametrize("durability", ["fsync", pytest.param("buffered", marks=pytest.mark.soak)])
def test_nothing_acknowledged_is_lost(
    start_broker: StartBroker,
    crowd_of: OpenCrowd,
    killer_of: Callable[[BrokerProcess, Crowd, int], Killer],
    tmp_path: Path,
    record_property: Record,
    size: int,
    rounds: int,
    seed: int,
    durability: str,
) -> None:
    """In every round something dies; everything acknowledged arrives, QoS 2 once; sessions and order are kept."""
    config = tmp_path / "mqttd.toml"
    config.write_text(f'durability = "{durability}"\n')
    disk = ("--store", "leveldb", "--data-dir", str(tmp_path / "data"))
    broker = start_broker(size, *disk, "--config", str(config), **ROOM)
    crowd = crowd_of(broker)
    load = Load(crowd, size)
    killer = killer_of(broker, crowd, seed)
    load.begin()
    for number in range(rounds):
        resting = killer.rng.sample(load.subscribers, len(load.subscribers) // 3)
        for each in load.subscribers:
            if each in resting:
                each.rest()
            else:
                each.wake()
        crowd.let_run(killer.rng.random() * 0.6)
        kill = killer.rng.choices(["worker", "all_workers", "supervisor", "at_point"], [8, 3, 3, 6])[0]
        if kill == "at_point":
            points = POINTS if durability == "fsync" else POINTS[:2]  # without fsync, a sync is too rare to wait for
            kill += " " + (point := points[number % len(points)])
            killer.at_point(point)
        else:
            getattr(killer, kill)()
        load.delivered(f"round {number}, {kill}")
    load.finish()
    load.check()
    assert broker.stop() == 0
    verified = mqttd("store", "verify", tmp_path / "data")
    assert verified.status == 0, verified  # also: each record belongs to something that exists
    record_property("messages", sum(each.sent for each in load.publishers))
    record_property("returns", sum(each.returns for each in load.members))
