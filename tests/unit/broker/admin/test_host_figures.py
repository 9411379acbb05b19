"""What the control process measures of its host for the leader of the cluster, and how it divides a plan."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from broker.admin.host_figures import HostFigures, WorkersCpu
from broker.admin.requests import MoveClients, NoAnswer
from broker.cluster.host_load import HostLoad
from broker.config.limits import Limits
from pyx.core import counters
from pyx.core.counters import ROW_BYTES, Row

TICKS = os.sysconf("SC_CLK_TCK")


class Processes:
    """A /proc of the test, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 100.0
        self.pids: list[int] = []

    def uses(self, pid: int, seconds: float) -> None:
        """Let a process have used so much since it began."""
        (self.folder / str(pid)).mkdir(exist_ok=True)
        fields = ["S"] + ["0"] * 10 + [str(int(seconds * TICKS) - 1), "1"] + ["7"] * 20
        (self.folder / str(pid) / "stat").write_text(f"{pid} (a ) name) {' '.join(fields)}")

    def cpu(self, cpus: int) -> WorkersCpu:
        return WorkersCpu(lambda: self.pids, cpus, lambda: self.now, self.folder)


def test_the_share_of_the_cpu_time(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.pids = [1, 2]
    processes.uses(1, 50)
    processes.uses(2, 70)
    cpu = processes.cpu(2)
    assert cpu.share() is None, "since when is not known"
    processes.now += 10
    processes.uses(1, 55)
    processes.uses(2, 71)
    assert cpu.share() == 0.3
    processes.now += 10
    assert cpu.share() == 0
    processes.now += 1
    processes.uses(1, 60)
    processes.uses(2, 80)
    assert cpu.share() == 1, "also where the clocks disagree"
    assert cpu.share() is None, "no time has passed"


def test_workers_that_end_and_begin(tmp_path: Path) -> None:
    """Only those count that have run all the time."""
    processes = Processes(tmp_path)
    processes.pids = [1, 0]
    processes.uses(1, 50)
    cpu = processes.cpu(2)
    assert cpu.share() is None
    processes.pids = [3, 4]
    processes.uses(3, 1)
    processes.now += 10
    assert cpu.share() is None
    processes.uses(3, 6)
    processes.now += 10
    assert cpu.share() == 0.25
    processes.pids = []
    processes.now += 10
    assert cpu.share() is None


def test_of_this_process() -> None:
    cpu = WorkersCpu(lambda: [os.getpid()], 1)
    assert cpu.share() is None
    sum(range(3_000_000))
    share = cpu.share()
    assert share is not None
    assert 0.2 < share <= 1


class Asked:
    """Workers that answer, or do not."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, MoveClients]] = []
        self.fails: set[int] = set()
        self.lines: list[str] = []

    async def ask(self, worker: int, request: MoveClients) -> dict[str, Any]:
        self.requests.append((worker, request))
        if worker in self.fails:
            raise NoAnswer("it is down")
        return {"moving": 1}

    def warning(self, event: str, **_fields: Any) -> None:
        self.lines.append(event)


def figures_of(*clients: int) -> tuple[HostFigures, Asked]:
    rows = []
    for count in clients:
        row = Row(memoryview(bytearray(ROW_BYTES)))
        row.add(counters.CONNECTIONS_OPENED, count + 5)
        row.add(counters.CONNECTIONS_CLOSED, 5)
        row.set(counters.SESSIONS, 2 * count)
        rows.append(row)
    asked: Any = Asked()
    limits = Limits(connections_max=100, sessions_max=200)
    return HostFigures(rows, lambda: limits, list, asked, asked), asked


def test_the_load() -> None:
    figures, _ = figures_of(3, 4)
    assert figures.measure() == HostLoad(7, 14, 100, 200, None)


def test_workers_have_parts_of_a_plan() -> None:
    """In proportion to their clients, and so is the pace; one without a part is not asked."""
    figures, asked = figures_of(60, 30, 0, 10)
    asyncio.run(figures.send_away(5, [("a", 10), ("b", 5)], 100.0))
    assert asked.requests == [
        (0, MoveClients(5, (("a", 6), ("b", 3)), 60.0)),
        (1, MoveClients(5, (("a", 3), ("b", 2)), 30.0)),
        (3, MoveClients(5, (("a", 1),), 10.0)),
    ]


def test_a_plan_is_taken_back_from_all() -> None:
    figures, asked = figures_of(60, 0)
    asyncio.run(figures.send_away(5, [], 0.0))
    assert asked.requests == [(0, MoveClients(5, (), 0.0)), (1, MoveClients(5, (), 0.0))]


@pytest.mark.parametrize("fails", [{0}, {1}, {0, 1}])
def test_a_worker_that_does_not_answer(fails: set[int]) -> None:
    """The others have their parts, and it is said."""
    figures, asked = figures_of(1, 1)
    asked.fails = fails
    asyncio.run(figures.send_away(5, [("a", 2)], 100.0))
    assert len(asked.requests) == 2
    assert asked.lines == ["clients_not_moved"] * len(fails)
    asyncio.run(figures.send_away(5, [], 0.0))
    assert len(asked.lines) == len(fails), "there is nothing to end"
