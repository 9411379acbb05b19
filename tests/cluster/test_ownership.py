"""One owner per client id, by epochs that rise; requests that travel together."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from broker.cluster.contract import OPERATIONS_MAX, Coordination, CoordinationError, LeaseEnded, Unreachable
from broker.cluster.ownership import KEPT_BYTES_MAX, TRANSACTIONS_PER_SECOND_MAX, Owner, Ownership
from tests.cluster.etcd_process import EtcdProcess, etcd_process
from tests.cluster.in_memory import Connection, CoordinatorInMemory


class Host:
    """The ownership of one host, with a lease of its own."""

    def __init__(self, node: str, coordination: Coordination) -> None:
        self.node = node
        self.coordination = coordination
        self.lease = 0
        self.ownership = Ownership(coordination, "test", node, lambda: self.lease)

    async def join(self) -> Host:
        self.lease = await self.coordination.grant(60)
        return self


def run(test: Callable[[CoordinatorInMemory, Host, Host], Coroutine[Any, Any, None]]) -> None:
    async def with_two() -> None:
        shared = CoordinatorInMemory()
        await test(shared, await Host("a", shared.connect()).join(), await Host("b", shared.connect()).join())

    asyncio.run(with_two())


def test_one_owner_by_rising_epochs() -> None:
    async def test(_: CoordinatorInMemory, a: Host, b: Host) -> None:
        first = await a.ownership.claim("c")
        assert first.node == "a"
        assert await b.ownership.claim("c") == first
        assert await a.ownership.claim("c") == first, "whoever claims again keeps the epoch"
        second = await b.ownership.take("c", first.epoch)
        assert (second.node, second.epoch > first.epoch) == ("b", True)
        assert await a.ownership.take("c", first.epoch) == second, "a former epoch takes nothing"
        await a.ownership.release("c", first.epoch)
        assert await a.ownership.claim("c") == second, "nor does it release"
        await b.ownership.release("c", second.epoch)
        third = await a.ownership.claim("c")
        assert (third.node, third.epoch > second.epoch) == ("a", True)
        assert await b.ownership.take("other", 5) == Owner("", 0), "nobody owns it"

    run(test)


def test_ownership_ends_with_the_lease() -> None:
    async def test(shared: CoordinatorInMemory, a: Host, b: Host) -> None:
        first = await a.ownership.claim("c")
        shared.end_lease(a.lease)
        with pytest.raises(LeaseEnded):
            await a.ownership.claim("d")
        second = await b.ownership.claim("c")
        assert (second.node, second.epoch > first.epoch) == ("b", True)
        a.lease = 0
        with pytest.raises(LeaseEnded, match="no member"):
            await a.ownership.claim("c")

    run(test)


@pytest.mark.parametrize("count", [0, 1, OPERATIONS_MAX, OPERATIONS_MAX + 1, 10_000])
def test_requests_of_the_same_time_travel_together(count: int) -> None:
    async def test(shared: CoordinatorInMemory, a: Host, _: Host) -> None:
        owners = await asyncio.gather(*(a.ownership.claim(f"c{number}") for number in range(count)))
        assert {each.node for each in owners} <= {"a"}
        assert shared.transactions == a.ownership.transactions == -(-count // OPERATIONS_MAX)

    run(test)


def test_those_that_are_refused_cost_a_second_transaction_at_most() -> None:
    async def test(shared: CoordinatorInMemory, a: Host, b: Host) -> None:
        names = [f"c{number}" for number in range(10 * OPERATIONS_MAX)]
        owned = set(random.Random(1).sample(names, 300))
        await asyncio.gather(*(b.ownership.claim(each) for each in sorted(owned)))
        before = shared.transactions
        owners = await asyncio.gather(*(a.ownership.claim(each) for each in names))
        assert {name for name, owner in zip(names, owners, strict=True) if owner.node == "b"} == owned
        assert shared.transactions - before <= 2 * 10

    run(test)


def test_the_same_client_id_many_times_at_once() -> None:
    async def test(_: CoordinatorInMemory, a: Host, b: Host) -> None:
        tried = [host.ownership.claim("c") for host in (a, b) for _ in range(200)]
        owners = await asyncio.gather(*tried)
        assert len(set(owners)) == 1

    run(test)


def test_a_record_of_a_former_lease_is_written_again() -> None:
    async def test(shared: CoordinatorInMemory, a: Host, b: Host) -> None:
        first = await a.ownership.claim("c")
        former, a.lease = a.lease, await a.coordination.grant(60)
        second = await a.ownership.claim("c")
        assert (second.node, second.epoch > first.epoch) == ("a", True)
        shared.end_lease(former)
        assert await b.ownership.claim("c") == second

    run(test)


def test_the_same_client_id_delays_no_other() -> None:
    async def test(_: CoordinatorInMemory, a: Host, __: Host) -> None:
        many = [asyncio.create_task(a.ownership.claim("c")) for _ in range(3000)]
        await asyncio.sleep(0)
        await a.ownership.claim("d")
        assert a.ownership.transactions <= 2
        assert len(set(await asyncio.gather(*many))) == 1

    run(test)


@pytest.mark.parametrize("epoch", [-1, 1 << 63])
def test_impossible_epochs(epoch: int) -> None:
    async def test(_: CoordinatorInMemory, a: Host, __: Host) -> None:
        with pytest.raises(ValueError, match="no epoch"):
            await a.ownership.take("c", epoch)

    run(test)


def test_a_lost_answer() -> None:
    async def test(_: CoordinatorInMemory, a: Host, b: Host) -> None:
        assert isinstance(a.coordination, Connection)
        a.coordination.loses_answers = True
        with pytest.raises(Unreachable):
            await a.ownership.claim("c")
        a.coordination.loses_answers = False
        assert (await b.ownership.claim("c")).node == "a", "it was done"
        assert (await a.ownership.claim("c")).node == "a"
        a.coordination.is_cut = True
        with pytest.raises(Unreachable):
            await a.ownership.claim("d")

    run(test)


def test_whoever_does_not_wait_any_more() -> None:
    async def test(_: CoordinatorInMemory, a: Host, __: Host) -> None:
        tasks = [asyncio.create_task(a.ownership.claim(f"c{number}")) for number in range(10)]
        await asyncio.sleep(0)
        for each in tasks[:5]:
            each.cancel()
        owners = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(each, Owner) for each in owners] == [False] * 5 + [True] * 5

    run(test)


def test_the_end() -> None:
    async def test(_: CoordinatorInMemory, a: Host, __: Host) -> None:
        tasks = [asyncio.create_task(a.ownership.claim(f"c{number}")) for number in range(1000)]
        while not a.ownership.transactions:
            await asyncio.sleep(0)
        await a.ownership.close()
        owners = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in owners} <= {Owner, CoordinationError}
        assert any(isinstance(each, Owner) for each in owners)
        with pytest.raises(CoordinationError, match="leaves"):
            await a.ownership.claim("late")

    run(test)


def test_long_client_ids_have_short_keys() -> None:
    ownership = Ownership(CoordinatorInMemory().connect(), "test", "a", lambda: 1)
    lengths = (0, 1, KEPT_BYTES_MAX, KEPT_BYTES_MAX + 1, 65_535)
    keys = [ownership.key_of("x" * length) for length in lengths]
    assert len(set(keys)) == len(keys)
    assert [len(each) - len(keys[0]) for each in keys] == [0, 1, KEPT_BYTES_MAX, KEPT_BYTES_MAX + 1, KEPT_BYTES_MAX + 1]
    assert ownership.key_of("é" * 33) != ownership.key_of("è" * 33)
    assert ownership.key_of(keys[3].removeprefix(keys[0]).decode()) not in keys, "a digest is too long for a client id"


class CountingClock:
    """Looks when transactions begin."""

    def __init__(self, coordination: Coordination) -> None:
        self.coordination = coordination
        self.at: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coordination, name)

    async def transact(self, *words: Any) -> Any:
        self.at.append(asyncio.get_running_loop().time())
        return await self.coordination.transact(*words)


@pytest.mark.parametrize("hosts", [1, 3, 20])
def test_how_many_transactions_a_second(hosts: int) -> None:
    async def test(_: CoordinatorInMemory, a: Host, __: Host) -> None:
        clock = CountingClock(a.coordination)
        ownership = Ownership(clock, "test", "a", lambda: a.lease)
        ownership.hosts = hosts
        async with asyncio.TaskGroup() as group:
            for number in range(200):  # one after the other, as connections come
                group.create_task(ownership.claim(f"c{number}"))
                await asyncio.sleep(0.001)
        assert 1 < len(clock.at) <= 2 + (clock.at[-1] - clock.at[0]) * TRANSACTIONS_PER_SECOND_MAX / hosts

    run(test)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with etcd_process() as running:
        yield running


def test_two_hosts_race_for_many_client_ids_with_etcd(etcd: EtcdProcess) -> None:
    """They claim, take and release at random. An epoch of a client id is one host's."""

    async def play(host: Host, rng: random.Random, granted: dict[tuple[str, int], set[str]]) -> None:
        for _ in range(150):
            name = f"c{rng.randrange(20)}"
            owner = await host.ownership.claim(name)
            granted.setdefault((name, owner.epoch), set()).add(owner.node)
            if owner.node == host.node and rng.random() < 0.3:
                await host.ownership.release(name, owner.epoch)
            elif owner.node != host.node and owner.epoch and rng.random() < 0.5:
                taken = await host.ownership.take(name, owner.epoch)
                if taken.epoch:
                    granted.setdefault((name, taken.epoch), set()).add(taken.node)
                assert taken.epoch == 0 or taken.epoch > owner.epoch

    async def race() -> None:
        from broker.cluster.etcd import Etcd, EtcdAddress

        granted: dict[tuple[str, int], set[str]] = {}
        async with contextlib.AsyncExitStack() as stack:
            hosts = []
            for node in ("a", "b"):
                one = Etcd(EtcdAddress((etcd.endpoint,)))
                stack.push_async_callback(one.close)
                host = await Host(node, one).join()
                hosts.append(host)
            await asyncio.gather(*(play(host, random.Random(n), granted) for n, host in enumerate(hosts * 10)))
            assert {frozenset(nodes) for nodes in granted.values()} == {frozenset("a"), frozenset("b")}
            await asyncio.gather(*(host.coordination.revoke(host.lease) for host in hosts))
            assert not (await hosts[0].coordination.read_all(b"/mqttd/test/owners/")).entries

    asyncio.run(race())
