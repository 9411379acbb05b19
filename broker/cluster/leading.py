"""What the leader of the cluster does: it advises about the number of hosts, spreads clients, and takes away what hosts
have left behind.

All of it is written under the condition that this process still leads (`broker.cluster.election`), and bound to its
lease: when the leader is gone, so are its advice and its plan, and hosts stop what they have not done of that. The next
leader begins anew, with nothing in hand.

A *plan* (`broker.cluster.balance`) is made when `cluster.rebalance` is on, all hosts are ready and say their load, and
neither has changed which hosts there are for SETTLE_SECONDS. It is taken back when it should have been carried out, at
once when a host leaves, joins or drains. After that, counts have time to settle, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.cluster.advice import Advice, advise
from broker.cluster.balance import (
    HostClients,
    Moves,
    Trials,
    above_share,
    encode_moves,
    plan_moves,
    seconds_of,
)
from broker.cluster.contract import Coordination, Delete, Put
from broker.cluster.election import Election
from broker.cluster.host_load import HostLoad, MalformedLoad, loads_of
from broker.cluster.host_record import HostRecord, HostState
from broker.cluster.reaping import Reaper

if TYPE_CHECKING:
    from broker.logs import Log

__all__ = ["ADVICE", "ADVICE_SECONDS", "PLAN", "REAP_SECONDS", "SETTLE_SECONDS", "LeaderDuties", "PlanPace"]

PLAN: Final = "plan"
ADVICE: Final = "advice"
SETTLE_SECONDS: Final = 30.0
"""Three reports of a host's load: time for clients to connect elsewhere, and for that to be reported."""
ADVICE_SECONDS: Final = 60.0
"""Advice with other numbers is written at most once in this time; another verdict at once."""
REAP_SECONDS: Final = 3600.0
"""From the beginning of a term, and between two looks at what hosts have left."""


@dataclass(frozen=True, slots=True)
class PlanPace:
    """How fast a plan is carried out, and waited for. per_second: clients that a host sends away, or takes, at most."""

    per_second: float
    settle_seconds: float = SETTLE_SECONDS


@dataclass(slots=True)
class _Plan:
    """A plan that is carried out. before: `above_share` when it was made."""

    moves: Moves
    before: int
    until: float
    hosts: frozenset[str]

    @property
    def clients(self) -> int:
        """How many it moves."""
        return sum(sum(each.values()) for each in self.moves.values())


class LeaderDuties:
    """The leader's work, in any process that may be it. hosts: as last seen, by node id. rebalances: whether clients
    are spread. clock: seconds that go on.
    """

    def __init__(
        self,
        coordination: Coordination,
        cluster: str,
        election: Election,
        hosts: Callable[[], Mapping[str, HostRecord]],
        lease: Callable[[], int],
        rebalances: Callable[[], bool],
        pace: Callable[[], PlanPace],
        log: Log,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._coordination = coordination
        self._prefix = loads_of(cluster)
        self._election = election
        self._hosts = hosts
        self._lease = lease
        self._rebalances = rebalances
        self._pace = pace
        self._log = log
        self._clock = clock
        self._reaper = Reaper(
            coordination,
            cluster,
            lambda operations, conditions: election.transact(operations, conditions),
            lambda: {each.installation for each in hosts().values()},
            clock=clock,
            wall=wall,
        )
        self.reaped = self._reaper.reaped
        """What this process has taken away."""
        self._term = 0
        self._trials = Trials()
        self._plan: _Plan | None = None
        self._plan_at = 0.0
        """When the next plan may be made."""
        self._reap_at = 0.0
        self._advice: Advice | None = None
        self._advice_at = 0.0
        self._unreadable: dict[str, str] = {}
        """By node id: why its load cannot be read, as logged."""
        self.plans = 0
        """Plans made by this process."""

    async def look(self) -> None:
        """Do what is due, if this process leads. Raises CoordinationError: then it is done the next time."""
        if not self._election.is_leader:
            self._term = 0
            return
        if self._term != self._election.term:
            await self._begin()
        loads = await self._loads()
        await self._advise(loads)
        await self._rebalance(loads)

    @property
    def must_reap(self) -> bool:
        """Whether it is time to look through what hosts have left."""
        return self._election.is_leader and self._term == self._election.term and self._clock() >= self._reap_at

    async def reap(self) -> None:
        """Look through it. Raises CoordinationError."""
        self._reap_at = self._clock() + REAP_SECONDS
        before = self.reaped.owners, self.reaped.numbers
        try:
            await self._reaper.reap()
        finally:
            owners, numbers = self.reaped.owners - before[0], self.reaped.numbers - before[1]
            if owners or numbers:
                self._log.info("leavings_reaped", owners=owners, numbers=numbers)

    async def _begin(self) -> None:
        """Take back what a former term has left, and begin with nothing in hand."""
        term = self._election.term
        keys = [self._election.key_of(PLAN), self._election.key_of(ADVICE)]
        await self._election.transact([Delete(key) for key in keys], term=term)
        now = self._clock()
        self._term, self._trials, self._plan, self._advice = term, Trials(), None, None
        self._plan_at = now + self._pace().settle_seconds
        self._reap_at = now + REAP_SECONDS

    async def _loads(self) -> dict[str, HostLoad | None]:
        """Return the load of each host; None: it is not known, or the host is not ready."""
        view = await self._coordination.read_all(self._prefix)
        records = {each.key.removeprefix(self._prefix).decode(errors="replace"): each.value for each in view.entries}
        loads = dict[str, HostLoad | None]()
        for node, host in self._hosts().items():
            record = records.get(node)
            loads[node] = None
            if record is not None and host.state is HostState.READY:
                loads[node] = self._decoded(node, record)
        return loads

    def _decoded(self, node: str, record: bytes) -> HostLoad | None:
        try:
            load = HostLoad.decode(record)
        except MalformedLoad as error:
            if self._unreadable.get(node) != str(error):
                self._unreadable[node] = str(error)
                self._log.error("host_load_malformed", host=node, reason=str(error))
            return None
        self._unreadable.pop(node, None)
        return load

    # ------------------------------------------------------------ advice

    async def _advise(self, loads: Mapping[str, HostLoad | None]) -> None:
        advice = advise(loads, {node: host.workers for node, host in self._hosts().items()})
        now, former = self._clock(), self._advice
        if former == advice:
            return
        is_other = former is None or (former.verdict, former.host) != (advice.verdict, advice.host)
        if not is_other and now < self._advice_at:
            return
        lease = self._lease()
        await self._election.transact([Put(self._election.key_of(ADVICE), advice.encode(), lease)], term=self._term)
        self._advice, self._advice_at = advice, now + ADVICE_SECONDS
        if is_other:
            self._log.info("scaling_advice", advice=advice.verdict.value, host=advice.host, reason=advice.reason)

    # ------------------------------------------------------------ rebalancing

    async def _rebalance(self, loads: Mapping[str, HostLoad | None]) -> None:
        now, hosts, pace = self._clock(), frozenset(loads), self._pace()
        are_known = bool(loads) and all(each is not None for each in loads.values())
        if self._trials.of_hosts(hosts) or not are_known:
            self._plan_at = max(self._plan_at, now + pace.settle_seconds)
        if self._plan is not None:
            await self._look_at_plan(self._plan, loads, are_known, now)
        elif are_known and self._rebalances() and now >= self._plan_at:
            await self._make_plan(self._places(loads), hosts, now, pace)

    def _places(self, loads: Mapping[str, HostLoad | None]) -> dict[str, HostClients]:
        """Return the hosts with known loads."""
        hosts, places = self._hosts(), dict[str, HostClients]()
        for node, load in loads.items():
            host = hosts.get(node)
            if load is not None and host is not None:
                room = max(0, load.clients_max - load.clients) if load.clients_max else None
                places[node] = HostClients(load.clients, host.workers, room, bool(host.client_address))
        return places

    async def _make_plan(
        self, places: Mapping[str, HostClients], hosts: frozenset[str], now: float, pace: PlanPace
    ) -> None:
        moves = plan_moves(places) if places else {}
        if not moves:
            return
        seconds = seconds_of(moves, pace.per_second) + pace.settle_seconds
        put = Put(self._election.key_of(PLAN), encode_moves(moves), self._lease())
        outcome = await self._election.transact([put], term=self._term)
        self._plan = _Plan(moves, above_share(places), now + seconds, hosts)
        self.plans += 1
        self._log.info("rebalance_planned", plan=outcome.revision, clients=self._plan.clients, moves=moves)

    async def _look_at_plan(
        self, plan: _Plan, loads: Mapping[str, HostLoad | None], are_known: bool, now: float
    ) -> None:
        """Take a plan back if it is over, or cannot go on."""
        is_off = not self._rebalances() or not are_known or frozenset(loads) != plan.hosts
        if now < plan.until and not is_off:
            return
        await self._election.transact([Delete(self._election.key_of(PLAN))], term=self._term)
        self._plan = None
        if is_off:
            self._log.info("rebalance_withdrawn", clients=plan.clients)
            self._plan_at = now + self._pace().settle_seconds
            return
        after = above_share(self._places(loads))
        self._trials.over(plan.clients, plan.before, after)
        self._plan_at = now + self._trials.seconds
        self._log.info("rebalance_over", clients=plan.clients, moved=plan.before - after, seconds=self._trials.seconds)
