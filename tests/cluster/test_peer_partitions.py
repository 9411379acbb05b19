"""Networks of peers that are cut and heal, peers that are killed and come back, with hosts that own client ids.

In a loop whose time passes when nothing happens: every run of a seed is the same. Each host is a membership and an
ownership, as in its control process, and what its workers would believe: which client ids it owns.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cluster.contract import CoordinationError, Unreachable
from broker.cluster.host_record import HostRecord, HostState, MalformedHostRecord
from broker.cluster.membership import HostMembership
from broker.cluster.ownership import Ownership
from broker.cluster.peers.leading import GroupRules
from tests.cluster.peer_groups import Network, led, majority, passing

ALONE = GroupRules(1, waits_for_all=True)
"""As with DNS: each side of a cut decides alone."""
CLIENTS = [f"c{at}" for at in range(6)]
OWN = HostRecord("", 1, 1, "0" * 32, "tcp://127.0.0.1:7000", "a" * 40, 1, HostState.READY, "0.1.0", (1, 2))
HEALED_SECONDS = 15.0
"""Documented (docs/cluster.md): so long after the end of a cut each client id has one owner."""
FOUNDED_SECONDS = 30.0
"""And so long if control processes were killed meanwhile."""


class SimulatedHost:
    """A host's part of the control process, and what its workers believe. It claims what clients ask it for."""

    def __init__(self, network: Network, at: int, tell: Callable[[int, str, int], None]) -> None:
        self.at = at
        self._tell = tell
        self._takes: set[str] = set()
        self._heard: dict[str, int] = {}  # highest epochs of other hosts
        self._asked = asyncio.Event()
        self.node = f"n{at}"
        self.owned: dict[str, int] = {}
        """What its workers believe to own, with the epochs."""
        self.wanted: set[str] = set()
        """Client ids of its sessions."""
        self.losses = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.start(network, is_fresh=True)

    def start(self, network: Network, is_fresh: bool) -> None:
        """Start a control process: what its workers believe is as it was."""
        self.coordination = network.start(self.at, is_fresh)
        own = replace(OWN, node=self.node, number=self.at + 1, installation=f"{self.at:032x}")
        loop = asyncio.get_running_loop()
        self.membership = HostMembership(self.coordination, "sim", own, self, clock=loop.time)
        self.ownership = Ownership(self.coordination, "sim", self.node, lambda: self.membership.lease)
        self._tasks = [loop.create_task(self.membership.run()), loop.create_task(self._claim_all())]

    def believes(self, client_id: str) -> bool:
        """Whether it serves this client as the proven owner."""
        return client_id in self.owned and self.membership.is_proven

    def connects(self, client_id: str) -> None:
        """A client connects here: own it in place of whoever does."""
        self.wanted.add(client_id)
        self._takes.add(client_id)
        self.owned.pop(client_id, None)
        self._asked.set()

    async def _claim_all(self) -> None:
        """As workers do: ask for the owner of each session that is not known to be owned, until it is known."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._asked.wait()
            self._asked.clear()
            for client_id in sorted(self.wanted - self.owned.keys()):
                with contextlib.suppress(CoordinationError):
                    await self._claim(client_id)

    async def _claim(self, client_id: str) -> None:
        owner = await self.ownership.claim(client_id)
        if owner.node != self.node and client_id in self._takes:
            owner = await self.ownership.take(client_id, owner.epoch)
        if owner.node == self.node and owner.epoch < self._heard.pop(client_id, 0):
            return  # what was heard may be newer than this answer: ask again
        if owner.node == self.node:
            self.owned[client_id] = owner.epoch
            self._takes.discard(client_id)
            self._tell(self.at, client_id, owner.epoch)
        elif owner.node not in ("", self.node) and client_id not in self._takes:
            self.wanted.discard(client_id)  # another host has the client: its session is handed over

    def told(self, client_id: str, epoch: int) -> None:
        """Hear that another host has taken a client id."""
        self._heard[client_id] = max(epoch, self._heard.get(client_id, 0))
        if self.owned.get(client_id, epoch) < epoch:
            del self.owned[client_id]
            self.wanted.discard(client_id)

    async def stop(self, network: Network) -> None:
        """End the control process, and with it all that its peer knows."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self.membership.proven_until = 0.0
        await self.ownership.close()
        await network.stop(self.at)

    # ------------------------------------------------------------ MembershipEvents

    def hosts_changed(self, hosts: Mapping[str, HostRecord]) -> None:
        """Nothing to do."""

    def joined(self, incarnation: int, lease: int, kept_lease: bool) -> None:  # noqa: ARG002
        if not kept_lease:
            self.owned.clear()

    def lost(self) -> None:
        self.losses += 1
        self.owned.clear()

    def node_id_taken(self, by: HostRecord) -> None:
        raise AssertionError(f"{self.node} is taken by {by}")

    def malformed(self, error: MalformedHostRecord) -> None:
        raise error

    def out_of_reach(self, reason: str) -> None:
        """It goes on."""

    def reached(self) -> None:
        """It goes on."""


class Cluster:
    """Hosts in a network. Every change of owner is told to the others that are reached, as hosts tell each other."""

    def __init__(self, seed: int, rules: GroupRules, size: int) -> None:
        self.chance = random.Random(seed)
        self.network = Network(seed, rules, size, lost=0.01)
        self.hosts = {at: SimulatedHost(self.network, at, self._tell) for at in range(size)}
        self.sides: list[set[int]] = [set(range(size))]
        self.untold: list[tuple[int, str, int]] = []
        """What hosts are told when they are reached: host, client id, epoch."""
        self.healed_seconds = 0.0
        """Longest time from the end of a cut until one owner was left of each client id."""

    def cut(self, side: set[int]) -> None:
        other = set(self.hosts) - side
        self.network.cut(side, other)
        self.sides = [each for each in (side, other) if each]

    async def heal(self) -> None:
        """End a cut, and wait until one owner is left of each client id."""
        self.network.heal()
        self.sides = [set(self.hosts)]
        for at, client_id, epoch in self.untold:
            self.hosts[at].told(client_id, epoch)
        self.untold.clear()
        loop = asyncio.get_running_loop()
        healed_at = loop.time()
        while True:
            await asyncio.sleep(0.25)
            try:
                await self.settled()
                break
            except (AssertionError, Unreachable):
                if loop.time() - healed_at > FOUNDED_SECONDS:
                    raise
        self.healed_seconds = max(self.healed_seconds, loop.time() - healed_at)

    async def restart(self, hosts: Collection[int]) -> None:
        """Kill the control processes of hosts at the same time, and start others a moment later."""
        for at in hosts:
            await self.hosts[at].stop(self.network)
        await asyncio.sleep(self.chance.uniform(0.1, 3))
        for at in hosts:
            self.hosts[at].start(self.network, is_fresh=False)

    async def pass_time(self, seconds: float) -> None:
        """Let clients connect here and there, and look that no side has two owners."""
        for _ in range(int(seconds / 0.25)):
            if self.chance.random() < 0.5:
                host = self.hosts[self.chance.choice(sorted(self.hosts))]
                host.connects(self.chance.choice(CLIENTS))
            await asyncio.sleep(0.25)
            assert not self.doubles(), (self.doubles(), self.sides)

    def _tell(self, sender: int, client_id: str, epoch: int) -> None:
        """Tell the other hosts who owns a client id: those on the other side when the network is whole."""
        side = next(each for each in self.sides if sender in each)
        for at in self.hosts.keys() - {sender}:
            if at in side:
                self.hosts[at].told(client_id, epoch)
            else:
                self.untold.append((at, client_id, epoch))

    def doubles(self) -> list[tuple[str, list[int]]]:
        """Return the client ids that two hosts of one side believe to own, with the hosts."""
        found = []
        for side in self.sides:
            for client_id in CLIENTS:
                owners = [at for at in sorted(side) if self.hosts[at].believes(client_id)]
                if len(owners) > 1:
                    found.append((client_id, owners))
        return found

    async def owners(self) -> dict[str, str]:
        """Return the owners by the records, as every host reads them."""
        seen = []
        for host in self.hosts.values():
            view = await host.coordination.read_all(b"/mqttd/sim/owners/")
            seen.append({each.key.rpartition(b"/")[2].decode(): each.value.decode() for each in view.entries})
        assert all(each == seen[0] for each in seen)
        return seen[0]

    async def settled(self) -> None:
        """Assert that each client id that anybody has has one owner, who knows it."""
        owners = await self.owners()
        for client_id in CLIENTS:
            wanted = [host.node for host in self.hosts.values() if client_id in host.wanted]
            believe = [host.node for host in self.hosts.values() if host.believes(client_id)]
            if wanted:
                assert believe == [owners.get(client_id)] == wanted, (client_id, wanted, believe, owners)

    async def close(self) -> None:
        for host in self.hosts.values():
            await host.stop(self.network)


async def run_cuts(seed: int, rules: GroupRules, size: int, kills: bool, cuts: int = 3) -> float:
    """Cut and heal, and (kills) kill control processes, all at once among them. Return the longest time from the end of
    a cut until one owner was left of each client id.
    """
    cluster = Cluster(seed, rules, size)
    chance = cluster.chance
    try:
        await led(*cluster.network.peers.values())
        await cluster.pass_time(5)
        for _ in range(cuts):
            side = set(chance.sample(range(size), chance.randrange(1, size)))
            if not kills or chance.random() < 0.8:
                cluster.cut(side)
            if kills and chance.random() < 0.5:
                await cluster.restart(chance.sample(range(size), chance.randrange(1, size + 1)))
            await cluster.pass_time(chance.choice((1, 4, 9, 14, 30)))
            await cluster.heal()
            await cluster.pass_time(3)
        return cluster.healed_seconds
    finally:
        await cluster.close()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32), size=st.integers(2, 5), kills=st.booleans())
def test_a_majority_decides(seed: int, size: int, kills: bool) -> None:
    """A minority decides nothing; nobody owns what another one does, during the cut or after it."""
    seconds = passing(lambda: run_cuts(seed, majority(size), size, kills))
    assert seconds < (FOUNDED_SECONDS if kills else HEALED_SECONDS)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32), size=st.integers(2, 5), kills=st.booleans())
def test_each_side_decides_alone(seed: int, size: int, kills: bool) -> None:
    """On one side there are never two owners; after healing there is one."""
    seconds = passing(lambda: run_cuts(seed, ALONE, size, kills))
    assert seconds < (FOUNDED_SECONDS if kills else HEALED_SECONDS)
