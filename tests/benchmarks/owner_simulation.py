"""Who owns the client ids of a cluster when very many clients connect: two ways beside each other, in simulated time.

    owners in etcd      as it is built: a record for each client id, changed under conditions, 128 in a transaction
                        (`broker.cluster.ownership`; `EtcdOwners` imitates its batches, its pace and its refusals)
    a directory         on the hosts: `tests.benchmarks.owner_directory`

Each simulated client stands for `group` clients that behave alike, so that 200,000 of them are a hundred million. All
of them, and everything that happens, come from one seed. What a client is owned by, and which hosts have a session of
it, is kept for each; in the end exactly one host has it (`World.check`).

The worker's time for a CONNECT is not part of it, nor the way of a session between hosts.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, Protocol

from broker.cluster.contract import OPERATIONS_MAX
from broker.cluster.ownership import TRANSACTIONS_PER_SECOND_MAX

__all__ = ["EtcdOwners", "Event", "Fleet", "Outcome", "Owners", "World", "etcd_owners", "simulated"]

LEASE_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 3.0
"""After which a client is served although its owner is not known (`broker.worker.owner_questions`)."""
WAITING_MAX: Final = 100_000
"""Requests of a host; more are answered that the owner is not known (`broker.cluster.owner_requests`)."""
BATCHES_MAX: Final = 4
"""Transactions of a host under way."""
LINK_SECONDS: Final = 0.001
"""A message from host to host, and the tick in which it waits for others."""
NOBODY: Final = -1


class Event(Enum):
    """What happens to the fleet."""

    RETURN = "all clients reconnect, to their hosts"
    SCATTER = "all clients reconnect, to any host"
    DEATH = "a host dies, its clients connect to the others"
    PARTITION = "hosts are cut off from the others and from etcd, 1 % of all clients reconnect to any host"


@dataclass(frozen=True)
class Fleet:
    """The clients. seconds: over which those that connect do so. cut: hosts that are cut off, for `cut_seconds`."""

    clients: int
    hosts: int
    group: int = 1
    seconds: float = 10.0
    seed: int = 1
    cut: int = 5
    cut_seconds: float = 60.0

    @property
    def simulated(self) -> int:
        """Number of simulated clients."""
        return self.clients // self.group


@dataclass
class Outcome:
    """What it took. Clients and entries are counted as they are, not as simulated ones.

    asked: CONNECTs that had to ask. unproven: of these, served before their owner was known. doubled: clients of which
    more than one host had a session at the end of what happened. longest_wait: for an answer, in seconds, at most
    ANSWER_SECONDS. settled: seconds until every owner was known. messages, entries, bytes: between hosts, about owners.
    """

    asked: int = 0
    unproven: int = 0
    doubled: int = 0
    transactions: int = 0
    most_transactions_in_a_second: int = 0
    messages: int = 0
    entries: int = 0
    bytes: int = 0
    longest_wait: float = 0.0
    settled: float = 0.0
    by_second: dict[int, int] = field(default_factory=dict)

    def transaction(self, at: float) -> None:
        """Count a transaction."""
        self.transactions += 1
        second = int(at)
        self.by_second[second] = found = self.by_second.get(second, 0) + 1
        self.most_transactions_in_a_second = max(self.most_transactions_in_a_second, found)


class Owners(Protocol):
    """A way to know the owners."""

    def ask(self, client: int, host: int) -> None:
        """Make this host the owner of a client that has connected to it."""

    def hosts_lost(self, hosts: set[int]) -> None:
        """Note that the leases of these hosts have ended."""

    def hosts_back(self, hosts: set[int]) -> None:
        """Note that these hosts are members again; `World.sessions` says what they have."""

    def owner_of(self, client: int) -> int:
        """Return the host that owns a client; NOBODY."""


class World:
    """Simulated time, the fleet, and which hosts have sessions of which client."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.chance = random.Random(fleet.seed)
        self.now = 0.0
        self.outcome = Outcome()
        self.home: list[int] = [client % fleet.hosts for client in range(fleet.simulated)]
        """By client: the host that has its session; the latest, if there are several."""
        self.others: dict[int, set[int]] = {}
        """By client: further hosts that have a session of it."""
        self.live = set(range(fleet.hosts))
        self.cut: set[int] = set()
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call it at that time."""
        heapq.heappush(self._events, (when, next(self._numbers), call))

    def run(self, arrivals: Iterator[tuple[float, int, int]], arrive: Callable[[int, int], None]) -> None:
        """Let clients (when, which, host) arrive in the order of time, and everything happen that follows."""
        coming = next(arrivals, None)
        while coming is not None or self._events:
            if coming is not None and (not self._events or coming[0] <= self._events[0][0]):
                self.now = coming[0]
                arrive(coming[1], coming[2])
                coming = next(arrivals, None)
            else:
                self.now, _, call = heapq.heappop(self._events)
                call()

    def reaches(self, one: int, other: int) -> bool:
        """Whether two hosts reach each other."""
        return one in self.live and other in self.live and (one in self.cut) == (other in self.cut)

    def has(self, client: int, host: int) -> bool:
        """Whether a host has a session of a client."""
        return self.home[client] == host or host in self.others.get(client, ())

    def begin(self, client: int, host: int) -> None:
        """Give a host the client's session. Those that it reaches end theirs."""
        former = {self.home[client], *self.others.pop(client, ())} - {host, NOBODY}
        self.home[client] = host
        left = {each for each in former if each in self.live and not self.reaches(each, host)}
        if left:
            self.others[client] = left

    def end(self, client: int, host: int) -> None:
        """End a host's session: the client's owner has it."""
        others = self.others.get(client)
        if others is not None and host in others:
            others.discard(host)
        elif others:
            self.home[client] = others.pop()
        if not others:
            self.others.pop(client, None)

    def sessions(self, host: int) -> list[int]:
        """Return the clients of which a host has a session."""
        doubled = (client for client, hosts in self.others.items() if host in hosts)
        return sorted({*(client for client, at in enumerate(self.home) if at == host), *doubled})

    def check(self, owner_of: Callable[[int], int]) -> None:
        """Raise AssertionError unless each client has one session, on the host that owns it."""
        assert not self.others, f"{len(self.others)} clients have several sessions"
        for client, host in enumerate(self.home):
            assert host in self.live, f"client {client} has no session"
            owner = owner_of(client)
            assert owner == host, f"client {client} is on host {host}, its owner is {owner}"


# ---------------------------------------------------------------- owners in etcd


@dataclass(slots=True)
class _Claim:
    client: int
    host: int
    epoch: int
    asked_at: float
    left: int
    """Clients of the group that are in no transaction that was done."""
    waits: bool
    """Whether a client waits for the answer."""
    is_refused: bool = False
    queued: int = 0
    """Clients of the group that are in no transaction yet."""


class EtcdOwners:
    """The records of etcd and the queues of the hosts. transactions_per_second: that etcd makes. end_seconds: for which
    it does nothing else when a lease with so many records ends. of_a_lease: client ids of a host that are bound to
    one lease; 0: all of them, as it is built.
    """

    def __init__(
        self, world: World, transactions_per_second: float, end_seconds: Callable[[int], float], of_a_lease: int
    ) -> None:
        fleet = world.fleet
        self._world = world
        self._service = 1 / transactions_per_second
        self._end_seconds = end_seconds
        self._of_a_lease = of_a_lease
        self.owner = list(world.home)
        self.epoch = [1] * fleet.simulated
        self._revision = 1
        self._busy_until = 0.0
        self._pace = fleet.hosts / TRANSACTIONS_PER_SECOND_MAX
        self._queues: list[deque[_Claim]] = [deque() for _ in range(fleet.hosts)]
        self._waiting = [0] * fleet.hosts
        self._again: list[deque[list[tuple[_Claim, int]]]] = [deque() for _ in range(fleet.hosts)]
        self._under_way = [0] * fleet.hosts
        self._next_at = [0.0] * fleet.hosts
        self._is_due = [False] * fleet.hosts
        self._later: list[deque[int]] = [deque() for _ in range(fleet.hosts)]
        """By host: clients that it serves unproven, to be asked for when there is room."""

    def ask(self, client: int, host: int) -> None:
        """Implements Owners."""
        world = self._world
        if host in world.cut or self._waiting[host] >= WAITING_MAX:
            self._serve_unproven(client, host)
            if host not in world.cut:
                self._later[host].append(client)
            return
        self._claim(client, host, 0, waits=True)

    def _ask_again(self, host: int) -> None:
        """Ask for clients that are served unproven, while there is room."""
        later = self._later[host]
        while later and self._waiting[host] < WAITING_MAX:
            client = later.popleft()
            if self._world.has(client, host) and self.owner[client] != host:
                self._claim(client, host, 0, waits=False)

    def _serve_unproven(self, client: int, host: int) -> None:
        self._world.outcome.unproven += self._world.fleet.group
        had = self._world.home[client]
        self._world.others.setdefault(client, set()).update({had} - {host})
        self._world.others[client].discard(host)
        self._world.home[client] = host
        if not self._world.others[client] or had not in self._world.live:
            self._world.others.pop(client)

    def _claim(self, client: int, host: int, epoch: int, *, waits: bool) -> None:
        group = self._world.fleet.group
        claim = _Claim(client, host, epoch, self._world.now, group, waits, queued=group)
        self._queues[host].append(claim)
        self._waiting[host] += group
        self._schedule(host)
        if waits:
            self._world.at(self._world.now + ANSWER_SECONDS, lambda: self._give_up(claim))

    def _give_up(self, claim: _Claim) -> None:
        """Serve a client whose owner is not known in time. What it asked for goes on."""
        if claim.left and claim.waits:
            claim.waits = False
            self._world.outcome.longest_wait = ANSWER_SECONDS
            self._serve_unproven(claim.client, claim.host)

    def _schedule(self, host: int) -> None:
        if self._is_due[host] or self._under_way[host] == BATCHES_MAX or host not in self._world.live:
            return
        if self._queues[host] or self._again[host]:
            self._is_due[host] = True
            self._world.at(max(self._next_at[host], self._world.now), lambda: self._send(host))

    def _send(self, host: int) -> None:
        self._is_due[host] = False
        batch = self._again[host].popleft() if self._again[host] else self._next_batch(host)
        world = self._world
        self._next_at[host] = world.now + self._pace
        self._under_way[host] += 1
        world.outcome.transaction(world.now)
        self._busy_until = max(self._busy_until, world.now) + self._service
        world.at(self._busy_until + LINK_SECONDS, lambda: self._done(host, batch))
        self._schedule(host)

    def _next_batch(self, host: int) -> list[tuple[_Claim, int]]:
        queue, batch, room = self._queues[host], [], OPERATIONS_MAX
        while queue and room:
            claim = queue[0]
            part = min(room, claim.queued)
            batch.append((claim, part))
            claim.queued -= part
            room -= part
            if not claim.queued:
                queue.popleft()
        return batch

    def _done(self, host: int, batch: list[tuple[_Claim, int]]) -> None:
        self._under_way[host] -= 1
        refused = [claim.is_refused or self.epoch[claim.client] != claim.epoch for claim, _ in batch]
        if any(refused):
            left = []
            for (claim, part), no in zip(batch, refused, strict=True):
                if no:
                    claim.is_refused = True
                    self._answer(claim, part)
                else:
                    left.append((claim, part))
            if left:
                self._again[host].append(left)
        else:
            for claim, part in batch:
                self._answer(claim, part)
        self._ask_again(host)
        self._schedule(host)

    def _answer(self, claim: _Claim, part: int) -> None:
        claim.left -= part
        self._waiting[claim.host] -= part
        if claim.left:
            return
        world, client, host = self._world, claim.client, claim.host
        if claim.waits:
            world.outcome.longest_wait = max(world.outcome.longest_wait, world.now - claim.asked_at)
        world.outcome.settled = world.now
        if not claim.is_refused:
            self._revision += 1
            self.owner[client], self.epoch[client] = host, self._revision
            world.begin(client, host)
        elif self.owner[client] == host or (not claim.waits and not world.has(client, host)):
            return
        elif claim.epoch and not claim.waits and self.owner[client] != NOBODY:
            world.end(client, host)  # another one has taken it meanwhile
        else:
            self._claim(client, host, self.epoch[client], waits=claim.waits)

    def hosts_lost(self, hosts: set[int]) -> None:
        """Implements Owners."""
        world = self._world
        at = world.now
        for host in sorted(hosts):
            owned = [(client, self.epoch[client]) for client, owner in enumerate(self.owner) if owner == host]
            size = max(1, self._of_a_lease // world.fleet.group) if self._of_a_lease else max(1, len(owned))
            for first in range(0, len(owned), size):
                part = owned[first : first + size]
                seconds = self._end_seconds(len(part) * world.fleet.group)
                world.at(at, partial(self._end_lease, part, seconds))
                at += seconds if self._of_a_lease else 0.0

    def _end_lease(self, records: list[tuple[int, int]], seconds: float) -> None:
        for client, epoch in records:
            if self.epoch[client] == epoch:
                self.owner[client], self.epoch[client] = NOBODY, 0
        self._busy_until = max(self._busy_until, self._world.now) + seconds

    def hosts_back(self, hosts: set[int]) -> None:
        """Implements Owners. They claim what they have; where another host is the owner, it gets their session."""
        for host in sorted(hosts):
            for client in self._world.sessions(host):
                if self.owner[client] not in (host, NOBODY):
                    self._world.outcome.entries += self._world.fleet.group
                    self._world.end(client, host)
                    self._claim_in_vain(client, host)
                else:  # its record has ended, or is of its former lease
                    self._claim(client, host, self.epoch[client], waits=False)

    def _claim_in_vain(self, client: int, host: int) -> None:
        claim = _Claim(client, host, 0, self._world.now, self._world.fleet.group, False, True, self._world.fleet.group)
        self._queues[host].append(claim)
        self._waiting[host] += self._world.fleet.group
        self._schedule(host)

    def owner_of(self, client: int) -> int:
        """Implements Owners."""
        return self.owner[client]


def etcd_owners(
    transactions_per_second: float = TRANSACTIONS_PER_SECOND_MAX,
    end_seconds: Callable[[int], float] = lambda _: 0.0,
    of_a_lease: int = 0,
) -> Callable[[World], EtcdOwners]:
    """Return what makes the owners of a world."""
    return lambda world: EtcdOwners(world, transactions_per_second, end_seconds, of_a_lease)


# ---------------------------------------------------------------- what happens


def simulated(fleet: Fleet, event: Event, owners: Callable[[World], Owners]) -> Outcome:
    """Let something happen, until every owner is known. Raises AssertionError if a client then has not exactly one."""
    world = World(fleet)
    known = owners(world)

    def arrive(client: int, host: int) -> None:
        if host in world.live and not world.has(client, host):
            world.outcome.asked += fleet.group
            known.ask(client, host)

    if event is Event.DEATH:
        dead = {fleet.hosts - 1}
        world.live -= dead
        for client, host in enumerate(world.home):
            if host in dead:
                world.home[client] = NOBODY
        world.at(LEASE_SECONDS, lambda: known.hosts_lost(dead))
    elif event is Event.PARTITION:
        cut = set(range(fleet.hosts - fleet.cut, fleet.hosts))
        world.cut = cut
        world.at(LEASE_SECONDS, lambda: known.hosts_lost(cut))

        def heal() -> None:
            world.outcome.doubled = len(world.others) * fleet.group
            world.cut = set()
            known.hosts_back(cut)

        world.at(fleet.cut_seconds, heal)
    world.run(_arrivals(world, event), arrive)
    world.check(known.owner_of)
    return world.outcome


def _arrivals(world: World, event: Event) -> Iterator[tuple[float, int, int]]:
    fleet, chance = world.fleet, world.chance
    if event is Event.DEATH:
        coming = [client for client, host in enumerate(world.home) if host == NOBODY]
    elif event is Event.PARTITION:
        coming = chance.sample(range(fleet.simulated), fleet.simulated // 100)
    else:
        coming = list(range(fleet.simulated))
    chance.shuffle(coming)
    hosts = sorted(world.live)
    seconds = fleet.cut_seconds if event is Event.PARTITION else fleet.seconds
    for number, client in enumerate(coming):
        host = world.home[client] if event is Event.RETURN else hosts[chance.randrange(len(hosts))]
        yield seconds * number / len(coming), client, host
