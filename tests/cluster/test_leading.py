"""What the leader does: advice, plans, and what it takes away; in memory, by clocks that the test moves."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from broker.cluster.advice import Advice, HostsNeeded
from broker.cluster.balance import Trials, decode_moves
from broker.cluster.contract import CoordinationError, Delete, Entry, Put
from broker.cluster.election import Election, NotLeading
from broker.cluster.host_load import REPORT_SECONDS, HostLoad, LoadReports, loads_of
from broker.cluster.host_record import HostRecord, HostState
from broker.cluster.leading import ADVICE, ADVICE_SECONDS, PLAN, REAP_SECONDS, SETTLE_SECONDS, LeaderDuties, PlanPace
from broker.cluster.ownership import prefix_of_owners
from broker.cluster.reaping import Reaper
from tests.cluster.in_memory import CoordinatorInMemory

CLUSTER = "test"
LOADS = loads_of(CLUSTER)
HOST = HostRecord(
    "a", 1, 1, "0" * 32, "tcp://127.0.0.1:7000", "a" * 40, 1, HostState.READY, "0.1.0", (1, 2),
    client_address="a.example:1883",
)  # fmt: skip


class Lines:
    """A log that keeps its events."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    error = warning = debug = info

    def count(self, event: str) -> int:
        return sum(each == event for each, _ in self.lines)


class Leader:
    """A host that leads, beside others that only are there."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = 1_800_000_000.0
        self.shared = CoordinatorInMemory(lambda: self.now)
        self.coordination = self.shared.connect()
        self.lease = 0
        self.hosts: dict[str, HostRecord] = {}
        self.loads: dict[str, HostLoad] = {}
        self.rebalances = True
        self.per_second = 500.0
        self.log = Lines()
        self.election = Election(self.coordination, CLUSTER, "a", lambda: self.lease, lambda: True, self)
        log: Any = self.log
        self.leading = LeaderDuties(
            self.coordination,
            CLUSTER,
            self.election,
            lambda: self.hosts,
            lambda: self.lease,
            lambda: self.rebalances,
            lambda: PlanPace(self.per_second),
            log,
            clock=lambda: self.now,
            wall=lambda: self.wall,
        )

    def leader_changed(self, node: str, term: int) -> None: ...
    def leader_malformed(self, reason: str) -> None: ...
    def election_refused(self, reason: str) -> None: ...
    def written(self, name: str, entry: Entry | None) -> None: ...

    async def elected(self) -> None:
        self.lease = await self.coordination.grant(1_000_000)
        self.election._has_seen = True
        await self.election._try()
        assert self.election.is_leader

    async def host(self, node: str, clients: int | None, state: HostState = HostState.READY, **fields: Any) -> None:
        """Let a host be there; clients None: it says nothing of its load."""
        address = fields.pop("client_address", f"{node}.example:1883")
        installation = f"{sum(node.encode()):032x}"
        record = replace(HOST, node=node, installation=installation, state=state, client_address=address, **fields)
        self.hosts[node] = record
        key = LOADS + node.encode()
        if clients is None:
            await self.coordination.transact([], [Delete(key)])
        else:
            await self.coordination.transact([], [Put(key, HostLoad(clients, clients, 1000).encode())])

    async def look(self, seconds: float = 0.0) -> None:
        self.now += seconds
        await self.leading.look()

    def must_reap(self) -> bool:
        return self.leading.must_reap

    def plan(self) -> dict[str, dict[str, int]] | None:
        entry = self.shared.entry(self.election.key_of(PLAN))
        return None if entry is None else decode_moves(entry.value)

    def advice(self) -> Advice | None:
        entry = self.shared.entry(self.election.key_of(ADVICE))
        return None if entry is None else Advice.decode(entry.value)


def run(test: Callable[[Leader], Coroutine[Any, Any, None]]) -> None:
    async def with_leader() -> None:
        leader = Leader()
        await leader.elected()
        await test(leader)

    asyncio.run(with_leader())


# ------------------------------------------------------------ plans


def test_a_host_that_joins_gets_its_share() -> None:
    """When it is ready and has said its load, and nothing has changed for a while; then nobody is moved any more."""

    async def test(leader: Leader) -> None:
        await leader.host("a", 600)
        await leader.look()
        await leader.look(SETTLE_SECONDS)
        assert leader.plan() is None
        await leader.host("b", None, HostState.JOINING)
        await leader.look(SETTLE_SECONDS)
        assert leader.plan() is None
        await leader.host("b", None)
        await leader.look(SETTLE_SECONDS)
        assert leader.plan() is None, "it has not said its load"
        await leader.host("b", 0)
        await leader.look(SETTLE_SECONDS - 1)
        assert leader.plan() is None, "nothing is settled"
        await leader.look(1)
        assert leader.plan() == {"a": {"b": 300}}
        await leader.look(0.6 + SETTLE_SECONDS - 0.1)
        assert leader.plan() == {"a": {"b": 300}}
        await leader.host("a", 300)
        await leader.host("b", 300)
        await leader.look(0.2)
        assert leader.plan() is None
        for _ in range(1000):
            await leader.look(10)
        assert leader.leading.plans == 1
        assert [fields for event, fields in leader.log.lines if event == "rebalance_over"] == [
            {"clients": 300, "moved": 300, "seconds": Trials.SECONDS}
        ]

    run(test)


@pytest.mark.parametrize("what", ["drains", "leaves", "joins", "is off", "says nothing", "is malformed"])
def test_a_plan_is_taken_back(what: str) -> None:
    """And there is no other one before everything has settled, and has been so for a while."""

    async def test(leader: Leader) -> None:
        leader.per_second = 1.0
        await leader.host("a", 600)
        await leader.host("b", 0)
        await leader.host("c", 0)
        await leader.look()
        await leader.look(SETTLE_SECONDS)
        assert leader.plan() is not None
        match what:
            case "drains":
                await leader.host("c", 0, HostState.DRAINING)
            case "leaves":
                del leader.hosts["c"]
            case "joins":
                await leader.host("d", 0, HostState.JOINING)
            case "is off":
                leader.rebalances = False
            case "says nothing":
                await leader.host("c", None)
            case "is malformed":
                await leader.coordination.transact([], [Put(LOADS + b"c", b'{"format":2}')])
        await leader.look(1)
        assert leader.plan() is None
        assert leader.log.count("rebalance_withdrawn") == 1
        assert leader.log.count("host_load_malformed") == (what == "is malformed")
        await leader.look(SETTLE_SECONDS - 1)
        assert leader.plan() is None
        leader.rebalances = True
        await leader.host("c", 0)
        leader.hosts.pop("d", None)
        await leader.look(1)
        await leader.look(SETTLE_SECONDS - 3)
        if what != "is off":
            assert leader.plan() is None
        await leader.look(3)
        assert leader.plan() is not None

    run(test)


def test_no_plan_where_it_is_off() -> None:
    async def test(leader: Leader) -> None:
        leader.rebalances = False
        await leader.host("a", 600)
        await leader.host("b", 0)
        for _ in range(100):
            await leader.look(10)
        assert leader.plan() is None
        advice = leader.advice()
        assert advice is not None
        assert advice.verdict is HostsNeeded.FINE

    run(test)


def test_clients_that_stay_are_left_alone_for_longer_each_time() -> None:
    async def test(leader: Leader) -> None:
        await leader.host("a", 600)
        await leader.host("b", 0)
        planned_at = []
        while leader.now < 1000 + 6 * 3600:
            before = leader.leading.plans
            await leader.look(5)
            if leader.leading.plans > before:
                planned_at.append(leader.now)
        pauses = [later - former for former, later in itertools.pairwise(planned_at)]
        assert pauses == sorted(pauses)
        assert pauses[0] == pytest.approx(2 * Trials.SECONDS + SETTLE_SECONDS, abs=15)
        assert pauses[-1] == pytest.approx(Trials.SECONDS_MAX + SETTLE_SECONDS, abs=15)
        assert len(planned_at) < 15

    run(test)


def test_only_hosts_with_an_address_and_room_are_named() -> None:
    async def test(leader: Leader) -> None:
        await leader.host("a", 990)
        await leader.host("b", 0, client_address="")
        await leader.host("c", 0)
        await leader.look()
        await leader.look(SETTLE_SECONDS)
        assert leader.plan() == {"a": {"c": 330}}

    run(test)


def test_a_leader_begins_with_nothing_in_hand() -> None:
    """What is there of a former term (of the same host, so that its lease has not ended) is taken back."""

    async def test(leader: Leader) -> None:
        for name in (PLAN, ADVICE):
            await leader.coordination.transact([], [Put(leader.election.key_of(name), b"of a former leader")])
        await leader.host("a", 600)
        await leader.host("b", 0)
        await leader.look()
        assert leader.plan() is None
        assert leader.advice() is not None
        await leader.look(SETTLE_SECONDS)
        assert leader.plan() is not None
        await leader.coordination.transact([], [Delete(leader.election.key_of("leader"))])
        with pytest.raises(NotLeading):
            await leader.look(ADVICE_SECONDS + SETTLE_SECONDS)
        await leader.look()
        await leader.election._try()
        await leader.look()
        assert leader.plan() is None
        assert leader.leading.plans == 1

    run(test)


def test_who_does_not_lead_writes_nothing() -> None:
    async def test(leader: Leader) -> None:
        leader.lease = 0
        await leader.host("a", 600)
        await leader.host("b", 0)
        writes = leader.shared.transactions
        for _ in range(10):
            await leader.look(SETTLE_SECONDS)
        assert not leader.must_reap()
        assert leader.shared.transactions == writes

    run(test)


def test_advice_is_written_seldom() -> None:
    """Another verdict at once, other numbers once in a minute, the same never."""

    async def test(leader: Leader) -> None:
        await leader.host("a", 100)
        await leader.look()
        writes = leader.shared.transactions
        for _ in range(100):
            await leader.look(10)
        assert leader.shared.transactions == writes
        written = []
        for clients in range(200, 260):
            await leader.host("a", clients)
            writes = leader.shared.transactions
            await leader.look(5)
            written.append(leader.shared.transactions - writes)
        assert sum(written) == 5
        await leader.host("a", 900)
        await leader.look(0.1)
        advice = leader.advice()
        assert advice == Advice(HostsNeeded.ADD, "900 of 1000 connections are used, more than 70%")

    run(test)


# ------------------------------------------------------------ loads


def test_loads_are_written_seldom() -> None:
    """Only if they have changed, and under each lease anew."""

    async def test() -> None:
        shared = CoordinatorInMemory()
        lease, load = 0, HostLoad(100, 100)
        reports = LoadReports(shared.connect(), CLUSTER, "a", lambda: lease, lambda: load)
        assert not await reports.report()
        lease = shared.grant(60)
        assert await reports.report()
        for clients in (101, 105, 95, 100):
            load = HostLoad(clients, 100)
            assert not await reports.report()
        load = HostLoad(106, 100)
        assert await reports.report()
        assert reports.writes == 2
        shared.end_lease(lease)
        assert shared.entry(LOADS + b"a") is None
        load = HostLoad(200, 100)
        with pytest.raises(CoordinationError):
            await reports.report()
        lease = shared.grant(60)
        assert await reports.report()
        found = shared.entry(LOADS + b"a")
        assert found is not None
        assert HostLoad.decode(found.value) == load

    asyncio.run(test())


def test_loads_that_change_all_the_time_are_written_once_in_their_time() -> None:
    async def test() -> None:
        shared = CoordinatorInMemory()
        chance, lease = random.Random(1), shared.grant(60)
        reports = LoadReports(
            shared.connect(), CLUSTER, "a", lambda: lease, lambda: HostLoad(chance.randrange(10_000), 0), seconds=0.2
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.1):
                await reports.run()
        assert 2 <= reports.writes <= 6

    asyncio.run(test())
    assert REPORT_SECONDS == 10.0


# ------------------------------------------------------------ what hosts have left


def test_the_leader_reaps_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginning an hour after its election; what it has taken away is counted, and said."""

    async def test(leader: Leader) -> None:
        pauses = []

        async def pause(self: Reaper) -> None:
            pauses.append(self)

        monkeypatch.setattr(Reaper, "_pause", pause)
        await leader.coordination.transact([], [Put(prefix_of_owners(CLUSTER) + b"c", b"b")])
        lease = await leader.coordination.grant(1_000_000)
        await leader.coordination.transact([], [Put(f"/mqttd/{CLUSTER}/hosts/b".encode(), b"", lease)])
        await leader.look()
        await leader.look(REAP_SECONDS - 1)
        assert not leader.must_reap()
        await leader.look(1)
        assert leader.must_reap()
        await leader.leading.reap()
        assert leader.leading.reaped.owners == 1
        assert pauses
        assert not leader.must_reap()
        await leader.look(REAP_SECONDS)
        assert leader.must_reap()
        await leader.leading.reap()
        assert [fields for event, fields in leader.log.lines if event == "leavings_reaped"] == [
            {"owners": 1, "numbers": 0}
        ]

    run(test)
