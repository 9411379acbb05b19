"""One host leads, by a key that ends with its lease; a former leader writes nothing. In memory and with etcd alike."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from broker.cluster.contract import (
    OPERATIONS_MAX,
    Coordination,
    Delete,
    Denied,
    Entry,
    KeyCondition,
    Outcome,
    Put,
    Unreachable,
)
from broker.cluster.election import Election, NotLeading, prefix_of
from tests.cluster.etcd_process import EtcdProcess, etcd_process
from tests.cluster.in_memory import Connection, CoordinatorInMemory

LEASE_SECONDS = 60


class Candidate:
    """A host that stands for election. is_proven: what it believes of its lease."""

    def __init__(self, node: str, coordination: Coordination, cluster: str) -> None:
        self.node = node
        self.coordination = coordination
        self.cluster = cluster
        self.lease = 0
        self.is_proven = True
        self.events: list[tuple[Any, ...]] = []
        self.election = Election(coordination, cluster, node, lambda: self.lease, lambda: self.is_proven, self)
        self.task: asyncio.Task[None] | None = None

    async def join(self) -> Candidate:
        self.lease = await self.coordination.grant(LEASE_SECONDS)
        self.task = asyncio.create_task(self.election.run())
        return self

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
            self.task = None

    def leader_changed(self, node: str, term: int) -> None:
        self.events.append(("leader", node, term))

    def leader_malformed(self, reason: str) -> None:
        self.events.append(("malformed", reason))

    def election_refused(self, reason: str) -> None:
        self.events.append(("refused", reason))

    def written(self, name: str, entry: Entry | None) -> None:
        self.events.append(("written", name, None if entry is None else entry.value))


def leads(of: Candidate) -> bool:
    return of.election.is_leader


def has_seen(of: Candidate, *event: object) -> bool:
    return event in of.events


def knows_a_later_term(of: Candidate, term: int) -> bool:
    return of.election.term > term


async def until(condition: Callable[[], object], what: str) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within 30 s: {what}")


class Electorate:
    """Candidates of one cluster. etcd: theirs; None: they have one in memory."""

    def __init__(self, etcd: EtcdProcess | None, cluster: str) -> None:
        self.etcd = etcd
        self.cluster = cluster
        self.memory = CoordinatorInMemory()
        self.candidates: list[Candidate] = []
        self._connections: list[Coordination] = []

    def connect(self) -> Coordination:
        one: Coordination
        if self.etcd is None:
            one = self.memory.connect()
        else:
            from broker.cluster.etcd import Etcd, EtcdAddress  # here, so that no process forks after gRPC has begun

            one = Etcd(EtcdAddress((self.etcd.endpoint,)))
        self._connections.append(one)
        return one

    async def join(self, *nodes: str) -> list[Candidate]:
        new = [Candidate(node, self.connect(), self.cluster) for node in nodes]
        self.candidates += new
        for each in new:
            await each.join()
        return new

    async def leader(self, *of: Candidate) -> Candidate:
        """Wait until all of these agree who leads, and one of them does."""
        known = of or tuple(self.candidates)

        def agreed() -> bool:
            return len({each.election.term for each in known}) == 1 and any(leads(each) for each in known)

        await until(agreed, "one leads")
        (leader,) = (each for each in known if leads(each))
        assert {each.election.leader for each in known} == {leader.node}
        return leader

    async def close(self) -> None:
        for each in self.candidates:
            await each.stop()
        for connection in self._connections:
            await connection.close()


Test = Callable[[Electorate], Coroutine[Any, Any, None]]
Run = Callable[[Test], None]


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with etcd_process() as running:
        yield running


@contextlib.asynccontextmanager
async def electorate(etcd: EtcdProcess | None, cluster: str) -> AsyncIterator[Electorate]:
    made = Electorate(etcd, cluster)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture(params=["memory", "etcd"])
def run(request: pytest.FixtureRequest) -> Run:
    server = request.getfixturevalue("etcd") if request.param == "etcd" else None
    cluster = "".join(each if each.isalnum() else "-" for each in request.node.name)[:60]

    async def with_some(test: Test) -> None:
        async with electorate(server, cluster) as some:
            await test(some)

    return lambda test: asyncio.run(with_some(test))


def in_memory(test: Test) -> None:
    async def with_some() -> None:
        async with electorate(None, "test") as some:
            await test(some)

    asyncio.run(with_some())


def test_one_of_many_leads(run: Run) -> None:
    async def test(some: Electorate) -> None:
        await some.join(*(f"n{at}" for at in range(8)))
        leader = await some.leader()
        assert sum(leads(each) for each in some.candidates) == 1
        assert all(each.election.changes == 1 for each in some.candidates)
        assert ("leader", leader.node, leader.election.term) in some.candidates[0].events

    run(test)


def test_another_one_leads_when_the_lease_has_ended(run: Run) -> None:
    """With a later term; each change is counted by all."""

    async def test(some: Electorate) -> None:
        await some.join("a", "b", "c")
        terms = [0]
        for change in range(1, 4):
            leader = await some.leader()
            assert leader.election.term > terms[-1]
            assert all(each.election.changes == change for each in some.candidates)
            terms.append(leader.election.term)
            ended, leader.lease = leader.lease, 0
            await leader.coordination.revoke(ended)
            await until(partial(knows_a_later_term, leader, terms[-1]), "it knows the next one")
            leader.lease = await leader.coordination.grant(LEASE_SECONDS)

    run(test)


def test_a_former_leader_writes_nothing(run: Run) -> None:
    """It believes that it leads (it was stopped, its lease has ended meanwhile, and it has not heard of anything)."""

    async def test(some: Electorate) -> None:
        (former,) = await some.join("a")
        await some.leader()
        await former.stop()
        key = former.election.key_of("plan")
        assert (await former.election.transact([Put(key, b"1", former.lease)])).done
        await former.coordination.revoke(former.lease)
        (later,) = await some.join("b")
        await some.leader(later)
        assert leads(former), "nobody has told it"
        with pytest.raises(NotLeading):
            await former.election.transact([Put(key, b"2", 0)])
        assert not leads(former)
        assert former.election.leader == "b"
        with pytest.raises(NotLeading):
            await former.election.transact([])
        assert await later.coordination.read(key) is None, "what it has written has ended with its lease"

    run(test)


def test_a_transaction_of_a_former_term_is_not_done(run: Run) -> None:
    async def test(some: Electorate) -> None:
        (one,) = await some.join("a")
        term = (await some.leader()).election.term
        key = one.election.key_of("plan")
        assert (await one.election.transact([Put(key, b"1")], term=term)).done
        await one.coordination.transact([], [Delete(prefix_of(some.cluster) + b"leader")])
        await until(lambda: leads(one) and one.election.term > term, "it leads again")
        with pytest.raises(NotLeading):
            await one.election.transact([Put(key, b"2")], term=term)
        found = await one.coordination.read(key)
        assert found is not None
        assert found.value == b"1"

    run(test)


def test_other_conditions(run: Run) -> None:
    """A transaction whose other conditions do not hold is not done, and the leader stays one."""

    async def test(some: Electorate) -> None:
        (one,) = await some.join("a")
        await some.leader()
        key = one.election.key_of("plan")
        written = await one.election.transact([Put(key, b"1")], [KeyCondition(key, 0)])
        assert written.done
        refused = await one.election.transact([Put(key, b"2")], [KeyCondition(key, 0)])
        assert (refused.done, [each and each.value for each in refused.found]) == (False, [b"1"])
        assert leads(one)
        most = [KeyCondition(key + b"%d" % at, 0) for at in range(OPERATIONS_MAX)]
        assert (await one.election.transact([Put(key, b"3")], most[:-1])).done
        with pytest.raises(ValueError, match=str(OPERATIONS_MAX)):
            await one.election.transact([Put(key, b"4")], most)

    run(test)


def test_a_process_that_is_started_anew_begins_another_term(run: Run) -> None:
    """It goes on with the lease of its host, so the key of its predecessor is there; that one is fenced."""

    async def test(some: Electorate) -> None:
        (former,) = await some.join("a")
        (other,) = await some.join("b")
        await until(lambda: leads(former) and other.election.leader == "a", "a leads")
        term = former.election.term
        await former.stop()
        successor = Candidate("a", some.connect(), some.cluster)
        some.candidates.append(successor)
        successor.lease = former.lease
        successor.task = asyncio.create_task(successor.election.run())
        await some.leader(successor, other)
        assert successor.election.term > term
        with pytest.raises(NotLeading):
            await former.election.transact([])

    run(test)


def test_what_the_leader_writes_is_seen_by_all(run: Run) -> None:
    async def test(some: Electorate) -> None:
        candidates = await some.join("a", "b")
        leader = await some.leader()
        key = leader.election.key_of("advice")
        await leader.election.transact([Put(key, b"1", leader.lease)])
        for each in candidates:
            await until(partial(has_seen, each, "written", "advice", b"1"), "it is seen")
        (late,) = await some.join("c")
        await until(lambda: ("written", "advice", b"1") in late.events, "also by one that joins later")
        await leader.election.transact([Delete(key)])
        for each in (*candidates, late):
            await until(partial(has_seen, each, "written", "advice", None), "it is gone")

    run(test)


def test_resigning(run: Run) -> None:
    async def test(some: Electorate) -> None:
        a, b = await some.join("a", "b")
        leader = await some.leader()
        other = b if leader is a else a
        await leader.stop()
        await leader.election.resign()
        await some.leader(other)
        await leader.election.resign()  # it has no effect
        await some.leader(other)

    run(test)


@pytest.mark.parametrize("value", [b"", b"{}", b'{"format":2,"node":"x"}', b'{"format":1,"node":"a/b"}'])
def test_a_key_that_cannot_be_read(run: Run, value: bytes) -> None:
    """It is of a later release: nobody leads beside it, and somebody does when it has ended. It is said once."""

    async def test(some: Electorate) -> None:
        other = some.connect()
        lease = await other.grant(LEASE_SECONDS)
        await other.transact([], [Put(prefix_of(some.cluster) + b"leader", value, lease)])
        (one,) = await some.join("a")
        await until(lambda: any(each[0] == "malformed" for each in one.events), "it is said")
        await asyncio.sleep(1.2)  # two tries
        assert not leads(one)
        assert one.election.leader == ""
        await other.revoke(lease)
        await some.leader(one)
        assert sum(each[0] == "malformed" for each in one.events) == 1

    run(test)


def test_a_key_without_a_lease_keeps_nobody_out(run: Run) -> None:
    """An etcd that was copied without its leases has one that would stay for ever."""

    async def test(some: Electorate) -> None:
        await some.connect().transact([], [Put(prefix_of(some.cluster) + b"leader", b'{"format":1,"node":"gone"}')])
        (one,) = await some.join("a")
        await some.leader(one)
        assert one.election.changes == 2

    run(test)


def test_who_is_no_member_does_not_lead(run: Run) -> None:
    async def test(some: Electorate) -> None:
        one = Candidate("a", some.connect(), some.cluster)
        some.candidates.append(one)
        one.is_proven = False
        await one.join()
        await asyncio.sleep(1.2)
        assert not leads(one)
        assert await one.coordination.read(prefix_of(some.cluster) + b"leader") is None
        one.is_proven = True
        await some.leader(one)
        one.is_proven = False
        assert not leads(one), "at once"
        with pytest.raises(NotLeading):
            await one.election.transact([])
        one.is_proven = True
        assert leads(one), "its lease was renewed before anybody else could lead"
        one.lease = 0
        assert not leads(one)

    run(test)


def test_an_election_of_which_nobody_heard() -> None:
    """The answer to the transaction is lost: who has written the key finds that out."""

    async def test(some: Electorate) -> None:
        (one,) = await some.join("a")
        connection = one.coordination
        assert isinstance(connection, Connection)
        await until(lambda: leads(one), "it leads")
        await one.stop()
        await connection.transact([], [Delete(prefix_of(some.cluster) + b"leader")])
        again = Candidate("b", some.connect(), some.cluster)
        some.candidates.append(again)
        lossy = again.coordination
        assert isinstance(lossy, Connection)
        lossy.loses_answers = True
        await again.join()
        await until(lambda: some.memory.entry(prefix_of(some.cluster) + b"leader"), "it is written")
        assert not leads(again)
        lossy.loses_answers = False
        await some.leader(again)

    in_memory(test)


def test_without_the_coordinator() -> None:
    """The leader leads as long as its lease is proven, which the membership knows; writes fail; then it goes on."""

    async def test(some: Electorate) -> None:
        a, b = await some.join("a", "b")
        leader = await some.leader()
        for each in (a, b):
            assert isinstance(each.coordination, Connection)
            each.coordination.is_cut = True
        with pytest.raises(Unreachable):
            await leader.election.transact([])
        assert leads(leader)
        leader.is_proven = False
        assert not any(leads(each) for each in (a, b))
        for each in (a, b):
            assert isinstance(each.coordination, Connection)
            each.coordination.is_cut = False
        leader.is_proven = True
        assert await some.leader() is leader

    in_memory(test)


def test_an_etcd_that_has_lost_its_data() -> None:
    """Revisions begin anew, below those that are known: hosts agree all the same."""

    async def test(some: Electorate) -> None:
        a, b = await some.join("a", "b")
        for _ in range(100):
            await a.coordination.transact([], [Put(b"/other", b"")])
        for each in (a, b):
            await each.stop()
        emptied = CoordinatorInMemory()
        for each in (a, b):
            assert isinstance(each.coordination, Connection)
            each.coordination._shared = emptied
            each.lease = await each.coordination.grant(LEASE_SECONDS)
            each.task = asyncio.create_task(each.election.run())
        leader = await some.leader()
        assert leader.election.term < 100

    in_memory(test)


def test_a_coordinator_that_refuses() -> None:
    """It is said once."""

    class Refusing(Connection):
        async def transact(self, conditions: Any, operations: Any) -> Outcome:  # noqa: ARG002
            raise Denied("no right to write there")

    async def test(some: Electorate) -> None:
        one = Candidate("a", Refusing(some.memory), some.cluster)
        some.candidates.append(one)
        await one.join()
        await until(lambda: one.events, "it is said")
        await asyncio.sleep(2.5)
        assert one.events == [("refused", "no right to write there")]

    in_memory(test)
