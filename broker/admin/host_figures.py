"""What the control process knows of its host for the leader of the cluster, and how its workers send clients away."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.admin.metrics import connected
from broker.admin.requests import MoveClients, NoAnswer
from broker.cluster.balance import split
from broker.cluster.host_load import HostLoad
from pyx.core import counters

if TYPE_CHECKING:
    from broker.admin.workers import Workers
    from broker.config.limits import Limits
    from broker.logs import Log
    from pyx.core.counters import Row

__all__ = ["HostFigures", "WorkersCpu"]

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class WorkersCpu:
    """The CPU time of the workers. pids: returns their process ids, 0 for one that does not run. cpus: how many CPUs
    they may use.
    """

    def __init__(
        self,
        pids: Callable[[], Sequence[int]],
        cpus: int,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = Path("/proc"),
    ) -> None:
        self._pids = pids
        self._cpus = cpus
        self._clock = clock
        self._proc = proc
        self._then: tuple[float, dict[int, int]] | None = None

    def share(self) -> float | None:
        """Return which share of the time that they might have had they have used since the former call, from 0 to 1, in
        hundredths; None: this is the first call, or no worker has run for all of it.
        """
        now = self._clock()
        ticks = {pid: found for pid in self._pids() if pid and (found := self._ticks(pid)) is not None}
        then, self._then = self._then, (now, ticks)
        if then is None or now <= then[0]:
            return None
        used = [each - then[1][pid] for pid, each in ticks.items() if pid in then[1]]
        if not used:
            return None
        return round(min(1.0, sum(used) / _TICKS_PER_SECOND / (now - then[0]) / self._cpus), 2)

    def _ticks(self, pid: int) -> int | None:
        try:
            said = (self._proc / str(pid) / "stat").read_text()
        except OSError:  # it has just ended
            return None
        fields = said.rpartition(")")[2].split()  # the name before it may contain anything
        return int(fields[11]) + int(fields[12])


class HostFigures:
    """Of one host. limits: returns those in force. pids: see `WorkersCpu`."""

    def __init__(
        self,
        rows: Sequence[Row],
        limits: Callable[[], Limits],
        pids: Callable[[], Sequence[int]],
        workers: Workers,
        log: Log,
    ) -> None:
        self._rows = rows
        self._limits = limits
        self._workers = workers
        self._log = log
        self._cpu = WorkersCpu(pids, min(len(rows), len(os.sched_getaffinity(0))))

    def measure(self) -> HostLoad:
        """Return the load of the host."""
        limits = self._limits()
        return HostLoad(
            sum(connected(row) for row in self._rows),
            sum(row.get(counters.SESSIONS) for row in self._rows),
            limits.connections_max,
            limits.sessions_max,
            self._cpu.share(),
        )

    async def send_away(self, plan: int, places: Sequence[tuple[str, int]], per_second: float) -> None:
        """Implements `broker.cluster.leadership.SendAway`: each worker has a part in proportion to its clients. One
        that does not answer does nothing, and the leader sees what has become of the plan.
        """
        clients = [connected(row) for row in self._rows]
        parts = [split(count, clients) for _, count in places]
        asked = []
        for worker in range(len(self._rows)):
            to = [(address, part[worker]) for (address, _), part in zip(places, parts, strict=True) if part[worker]]
            if to or not places:
                pace = per_second * clients[worker] / max(1, sum(clients))
                asked.append(self._workers.ask(worker, MoveClients(plan, tuple(to), pace)))
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, NoAnswer):
                if places:  # else there is nothing to end: whoever is down moves nobody
                    self._log.warning("clients_not_moved", plan=plan, reason=str(answer))
            elif isinstance(answer, BaseException):
                raise answer
