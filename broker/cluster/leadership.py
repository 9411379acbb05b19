"""One host's part in the leadership of the cluster: it stands for election, reports its load, leads while it is the
leader, and carries out what the leader plans.

Nobody waits for any of this. A defect in it is logged and ends this part for a while, not the control process.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.cluster.advice import Advice, MalformedAdvice
from broker.cluster.balance import MalformedPlan, Moves, decode_moves, pace_of
from broker.cluster.contract import Coordination, CoordinationError, Entry
from broker.cluster.election import Election
from broker.cluster.host_load import HostLoad, LoadReports
from broker.cluster.host_record import HostRecord, HostState
from broker.cluster.leading import ADVICE, PLAN, LeaderDuties, PlanPace

if TYPE_CHECKING:
    from broker.config.cluster import Cluster
    from broker.logs import Log

__all__ = ["Leadership", "LeadershipCounts", "SendAway"]

_LOOK_SECONDS: Final = 2.0
"""How often the leader looks whether something is due."""
_FAILED_SECONDS: Final = 60.0
"""Pause after a defect."""

SendAway = Callable[[int, Sequence[tuple[str, int]], float], Awaitable[None]]
"""send_away(number of a plan, [(address of a host as clients are told it, how many clients), ...], how many in a
second): lets the workers do so. An empty list takes the plan back.
"""


class LeadershipCounts(NamedTuple):
    """For metrics. is_leader: whether this process leads. The rest is counted since it was started."""

    is_leader: bool
    changes: int
    plans: int
    owners_reaped: int
    numbers_reaped: int


class Leadership:
    """Implements `broker.cluster.election.ElectionEvents`. hosts: as last seen, by node id. lease: that of this host,
    0: it is no member. measure: returns its load. settings: of the cluster; may be replaced.
    """

    def __init__(
        self,
        coordination: Coordination,
        settings: Cluster,
        hosts: Callable[[], Mapping[str, HostRecord]],
        lease: Callable[[], int],
        is_proven: Callable[[], bool],
        measure: Callable[[], HostLoad],
        send_away: SendAway,
        log: Log,
    ) -> None:
        self.settings = settings
        self._node = settings.node_id
        self._hosts = hosts
        self._send_away = send_away
        self._log = log
        self._election = Election(coordination, settings.name, self._node, lease, is_proven, self)
        self._reports = LoadReports(coordination, settings.name, self._node, lease, measure)
        self._leading = LeaderDuties(
            coordination,
            settings.name,
            self._election,
            hosts,
            lease,
            lambda: self.settings.rebalance == "on",
            lambda: PlanPace(self.settings.drain_per_second),
            log,
        )
        self._advice: Advice | None = None
        self._moves: Moves = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._plan = 0
        """The number of the last plan that the workers were told."""

    async def run(self) -> None:
        """Take part until cancelled. What a former control process of this host has let the workers do ends: it is not
        known whether that plan is still in force.
        """
        self._tell(0, [], 0.0)
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._election.run())
                    group.create_task(self._reports.run())
                    group.create_task(self._lead())
                    group.create_task(self._reap())
            except Exception as error:  # noqa: BLE001  a defect: what the host does for its clients goes on without
                self._log.error("leadership_failed", traceback="".join(traceback.format_exception(error)))
                await self._resign()
                await asyncio.sleep(_FAILED_SECONDS)

    async def _resign(self) -> None:
        try:
            await self._election.resign()
        except CoordinationError as error:
            self._log.debug("leading_delayed", reason=str(error))

    async def _lead(self) -> None:
        while True:
            try:
                await self._leading.look()
            except CoordinationError as error:
                self._log.debug("leading_delayed", reason=str(error))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _reap(self) -> None:
        while True:
            try:
                if self._leading.must_reap:
                    await self._leading.reap()
            except CoordinationError as error:
                self._log.debug("leading_delayed", reason=str(error))
            await asyncio.sleep(_LOOK_SECONDS)

    # ------------------------------------------------------------ for operators

    def report(self) -> dict[str, Any]:
        """Return who leads, what it advises, and which clients it moves, as this host knows."""
        advice = self._advice
        return {
            "leader": {
                "node": self._election.leader or None,
                "term": self._election.term,
                "changes": self._election.changes,
                "is_this_host": self._election.is_leader,
            },
            "advice": None
            if advice is None
            else {"verdict": advice.verdict.value, "host": advice.host or None, "reason": advice.reason},
            "rebalance": {"setting": self.settings.rebalance, "moves": self._moves},
        }

    def counts(self) -> LeadershipCounts:
        """Return what is counted."""
        election, leading = self._election, self._leading
        reaped = leading.reaped
        return LeadershipCounts(election.is_leader, election.changes, leading.plans, reaped.owners, reaped.numbers)

    # ------------------------------------------------------------ events of the election

    def leader_changed(self, node: str, term: int) -> None:
        """Implements ElectionEvents."""
        if node:
            self._log.info("leader_elected", leader=node, term=term)
        else:
            self._log.info("leader_gone")

    def leader_malformed(self, reason: str) -> None:
        """Implements ElectionEvents."""
        self._log.error("leader_malformed", reason=reason)

    def election_refused(self, reason: str) -> None:
        """Implements ElectionEvents."""
        self._log.error("election_refused", reason=reason)

    def written(self, name: str, entry: Entry | None) -> None:
        """Implements ElectionEvents."""
        try:
            if name == ADVICE:
                self._advice = None if entry is None else Advice.decode(entry.value)
            elif name == PLAN:
                self._moves = {}
                if entry is not None:
                    self._moves = decode_moves(entry.value)
                self._carry_out(entry)
        except (MalformedAdvice, MalformedPlan) as error:  # of a later release
            self._log.error("leader_malformed", reason=str(error))

    def _carry_out(self, plan: Entry | None) -> None:
        """Let the workers do this host's part of a plan, or nothing more of the last one."""
        if plan is None:
            if self._plan:
                self._tell(self._plan, [], 0.0)
            return
        if plan.changed == self._plan:  # it was read again
            return
        hosts = self._hosts()
        own = hosts.get(self._node)
        places = [
            (host.client_address, count)
            for node, count in self._moves.get(self._node, {}).items()
            if (host := hosts.get(node)) is not None and host.state is HostState.READY and host.client_address
        ]
        if self.settings.rebalance == "on" and own is not None and own.state is HostState.READY and places:
            self._plan = plan.changed
            self._tell(plan.changed, places, pace_of(self._moves, self._node, self.settings.drain_per_second))
            clients = sum(count for _, count in places)
            self._log.info("clients_to_be_moved", plan=plan.changed, clients=clients)

    def _tell(self, number: int, places: Sequence[tuple[str, int]], per_second: float) -> None:
        async def tell() -> None:
            await self._send_away(number, places, per_second)

        task = asyncio.get_running_loop().create_task(tell())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
