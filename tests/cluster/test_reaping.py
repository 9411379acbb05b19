"""What the leader takes away of what hosts have left behind, and what it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from broker.cluster.contract import Delete, Put
from broker.cluster.election import NotLeading
from broker.cluster.host_numbers import keep_number, number_of_host
from broker.cluster.ownership import Ownership, prefix_of_owners
from broker.cluster.reaping import GONE_SECONDS, Reaper, mark_in_memory
from tests.cluster.in_memory import CoordinatorInMemory

CLUSTER = "test"


class Cluster:
    """What hosts write, and a leader that takes away."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = 1_800_000_000.0
        self.shared = CoordinatorInMemory(lambda: self.now)
        self.coordination = self.shared.connect()
        self.here: dict[str, str] = {}
        """Installations of hosts that are there, by node id."""
        self.leads = True
        self.reaper = self.new_reaper()

    def new_reaper(self) -> Reaper:
        """Return that of another leader."""

        async def transact(operations: Any, conditions: Any) -> Any:
            if not self.leads:
                raise NotLeading("another one leads")
            assert len(conditions) < 128
            return await self.coordination.transact(conditions, operations)

        return Reaper(
            self.coordination,
            CLUSTER,
            transact,
            lambda: set(self.here.values()),
            clock=lambda: self.now,
            wall=lambda: self.wall,
            pause_seconds=0,
        )

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    async def installed(self, node: str, installation: str, in_memory: bool) -> int:
        self.here[node] = installation
        number = await number_of_host(self.coordination, CLUSTER, installation)
        if in_memory:
            await mark_in_memory(self.coordination, CLUSTER, installation)
        return number

    def keys(self, kind: str) -> list[str]:
        prefix = f"/mqttd/{CLUSTER}/{kind}/".encode()
        return [each.key.removeprefix(prefix).decode() for each in self.shared.view(prefix).entries]

    async def member(self, node: str) -> tuple[Ownership, int]:
        """Let a host be a member, and return its ownership, and its lease."""
        lease = await self.coordination.grant(1_000_000)
        await self.coordination.transact([], [Put(f"/mqttd/{CLUSTER}/hosts/{node}".encode(), b"its record", lease)])
        return Ownership(self.coordination, CLUSTER, node, lambda: lease), lease


def taking_away(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def with_cluster() -> None:
        await test(Cluster())

    asyncio.run(with_cluster())


A, B, C = "a" * 32, "b" * 32, "c" * 32


def test_the_numbers_of_hosts_that_cannot_come_back() -> None:
    """After a day without the host. Those of hosts with a disk stay, and so does the highest."""

    async def test(cluster: Cluster) -> None:
        await cluster.installed("a", A, in_memory=True)
        await cluster.installed("b", B, in_memory=False)
        await cluster.installed("c", C, in_memory=True)
        await cluster.reaper.reap()
        assert cluster.keys("gone") == []
        cluster.here.clear()
        await cluster.reaper.reap()
        assert cluster.keys("gone") == [A, C]
        cluster.wait(GONE_SECONDS - 1)
        await cluster.new_reaper().reap()
        assert cluster.keys("installations") == [A, B, C]
        cluster.wait(1)
        reaper = cluster.new_reaper()
        await reaper.reap()
        assert (cluster.keys("installations"), cluster.keys("in_memory"), cluster.keys("gone")) == ([B, C], [C], [C])
        assert len(cluster.keys("numbers")) == 2
        assert reaper.reaped.numbers == 1
        assert await cluster.installed("d", "d" * 32, in_memory=False) == 4, "no number is given again"
        await reaper.reap()
        assert cluster.keys("installations") == [B, "d" * 32]
        assert reaper.reaped.numbers == 2

    taking_away(test)


def test_a_host_that_is_back_is_gone_no_longer() -> None:
    """The day begins anew."""

    async def test(cluster: Cluster) -> None:
        await cluster.installed("a", A, in_memory=True)
        await cluster.installed("b", B, in_memory=True)
        del cluster.here["a"]
        await cluster.reaper.reap()
        cluster.wait(GONE_SECONDS - 1)
        cluster.here["a"] = A
        await cluster.reaper.reap()
        assert cluster.keys("gone") == []
        del cluster.here["a"]
        await cluster.reaper.reap()
        cluster.wait(GONE_SECONDS - 1)
        await cluster.reaper.reap()
        assert A in cluster.keys("installations")

    taking_away(test)


def test_a_host_that_was_cut_off_for_longer_writes_its_number_again() -> None:
    """It runs all the same. Nobody was given its number."""

    async def test(cluster: Cluster) -> None:
        number = await cluster.installed("a", A, in_memory=True)
        await cluster.installed("b", B, in_memory=False)
        del cluster.here["a"]
        await cluster.reaper.reap()
        cluster.wait(GONE_SECONDS)
        await cluster.reaper.reap()
        assert cluster.keys("installations") == [B]
        assert await keep_number(cluster.coordination, CLUSTER, A, number)
        assert await number_of_host(cluster.coordination, CLUSTER, A) == number

    taking_away(test)


@pytest.mark.parametrize("record", [b"", b"{}", b'{"format":2,"since":1}', b'{"format":1,"since":"x"}', b"[]"])
def test_a_mark_of_a_later_release_is_left_alone(record: bytes) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.installed("a", A, in_memory=True)
        await cluster.installed("b", B, in_memory=False)
        cluster.here.clear()
        await cluster.coordination.transact([], [Put(f"/mqttd/{CLUSTER}/gone/{A}".encode(), record)])
        cluster.wait(2 * GONE_SECONDS)
        await cluster.reaper.reap()
        assert cluster.keys("installations") == [A, B]

    taking_away(test)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 999, 1000, 1001, 2500])
def test_owners_that_are_bound_to_no_lease_of_their_host(count: int) -> None:
    """As in a copied etcd. Those of members stay, all of them."""

    async def test(cluster: Cluster) -> None:
        prefix = prefix_of_owners(CLUSTER)
        for begin in range(0, count, 100):
            names = [b"left%05d" % at for at in range(begin, min(begin + 100, count))]
            await cluster.coordination.transact([], [Put(prefix + name, b"a") for name in names])
        ownership, _ = await cluster.member("a")
        owned = [await ownership.claim(f"own{at}") for at in range(50)]
        assert all(each.node == "a" for each in owned)
        await cluster.reaper.reap()
        assert cluster.keys("owners") == sorted(f"own{at}" for at in range(50))
        assert cluster.reaper.reaped.owners == count
        await ownership.close()

    taking_away(test)


def test_owners_without_a_lease_of_a_host_that_is_away() -> None:
    """They go after a day; when it comes back before that, and has claimed them anew, they stay."""

    async def test(cluster: Cluster) -> None:
        prefix = prefix_of_owners(CLUSTER)
        puts = [Put(prefix + b"1", b"away"), Put(prefix + b"2", b"away"), Put(prefix + b"3", b"gone")]
        await cluster.coordination.transact([], puts)
        await cluster.reaper.reap()
        cluster.wait(GONE_SECONDS - 1)
        await cluster.reaper.reap()
        assert cluster.keys("owners") == ["1", "2", "3"]
        ownership, _ = await cluster.member("away")
        assert (await ownership.claim("1")).node == "away"
        cluster.wait(1)
        await cluster.reaper.reap()
        assert cluster.keys("owners") == ["1"], "2 was not claimed by the member, and nobody is 3 for a day"
        await ownership.close()

    taking_away(test)


def test_owners_bound_to_a_lease_are_left_to_it() -> None:
    """Also those of a host that has no record at present."""

    async def test(cluster: Cluster) -> None:
        ownership, lease = await cluster.member("a")
        await ownership.claim("c")
        await cluster.coordination.transact([], [Delete(f"/mqttd/{CLUSTER}/hosts/a".encode())])
        await cluster.reaper.reap()
        cluster.wait(2 * GONE_SECONDS - 1)
        await cluster.reaper.reap()
        assert cluster.keys("owners") == ["c"]
        await cluster.coordination.revoke(lease)
        assert cluster.keys("owners") == []
        await ownership.close()

    taking_away(test)


def test_a_host_that_joins_meanwhile() -> None:
    """It joins anew between the look at its owners and the transaction: nothing of it is taken away."""

    async def test(cluster: Cluster) -> None:
        ownership, lease = await cluster.member("a")
        owner = cluster.shared.entry(ownership.key_of("c"))
        assert owner is None
        await ownership.claim("c")
        read = cluster.coordination.read_all
        rejoined: list[object] = []

        async def joins_after(prefix: bytes) -> Any:
            view = await read(prefix)
            if prefix.endswith(b"/hosts/") and not rejoined:
                rejoined.append(await cluster.member("a"))
                # as if the record that was read were of a former lease
                return replace(view, entries=[replace(each, lease=lease + 100, changed=10**9) for each in view.entries])
            return view

        cluster.coordination.read_all = joins_after  # type: ignore[method-assign]
        await cluster.reaper.reap()
        assert cluster.keys("owners") == ["c"]
        assert cluster.reaper.reaped.owners == 0
        await ownership.close()

    taking_away(test)


def test_who_does_not_lead_takes_nothing_away() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.coordination.transact([], [Put(prefix_of_owners(CLUSTER) + b"c", b"a")])
        await cluster.member("a")
        cluster.leads = False
        with pytest.raises(NotLeading):
            await cluster.reaper.reap()
        assert cluster.keys("owners") == ["c"]

    taking_away(test)
