"""The simulation of owners: each client has one in the end, whatever happens; a seed gives one outcome; its batches are
the broker's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from broker.cluster import membership, owner_requests, ownership
from broker.cluster.contract import OPERATIONS_MAX
from broker.cluster.ownership import TRANSACTIONS_PER_SECOND_MAX, Ownership
from broker.worker import owner_questions
from tests.benchmarks import owner_simulation
from tests.benchmarks.owner_directory import DirectoryCosts, directory_owners, registrar_of
from tests.benchmarks.owner_simulation import (
    ANSWER_SECONDS,
    LEASE_SECONDS,
    Event,
    Fleet,
    Owners,
    World,
    etcd_owners,
    simulated,
)
from tests.cluster.in_memory import CoordinatorInMemory

COSTS = DirectoryCosts(1e-6, 1e-6, 1e-9)
SLOW = DirectoryCosts(1e-3, 1e-3, 1e-6)
WAYS: dict[str, Callable[[World], Owners]] = {
    "etcd": etcd_owners(),
    "etcd that stalls": etcd_owners(200, lambda keys: keys / 10),
    "etcd with small leases": etcd_owners(200, lambda keys: keys / 10, 10),
    "directory": directory_owners(COSTS),
    "slow directory": directory_owners(SLOW),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize(("clients", "hosts", "group"), [(1, 2, 1), (300, 2, 1), (1000, 5, 1), (60_000, 20, 200)])
def test_each_client_has_one_owner_in_the_end(way: str, event: Event, clients: int, hosts: int, group: int) -> None:
    """`simulated` looks: one session for each client, on the host that owns it."""
    for seed in range(3):
        fleet = Fleet(clients, hosts, group, seed=seed, cut=hosts // 2)
        outcome = simulated(fleet, event, WAYS[way])
        assert outcome.unproven <= 2 * outcome.asked <= 2 * clients
        assert outcome.doubled <= clients
        assert 0 <= outcome.longest_wait <= ANSWER_SECONDS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("event", [Event.SCATTER, Event.DEATH, Event.PARTITION])
def test_a_seed_gives_one_outcome(way: str, event: Event) -> None:
    fleets = [Fleet(3000, 6, seed=seed, cut=2) for seed in (7, 7, 8)]
    first, again, other = (simulated(fleet, event, WAYS[way]) for fleet in fleets)
    assert first == again
    assert event is Event.DEATH or first != other, "those of a dead host come one by one: there it is the same"


@pytest.mark.parametrize("way", WAYS)
def test_known_clients_cost_nothing(way: str) -> None:
    outcome = simulated(Fleet(1000, 4), Event.RETURN, WAYS[way])
    assert outcome.asked == outcome.transactions == outcome.messages == outcome.unproven == 0


def test_a_world_that_is_wrong_is_seen() -> None:
    world = World(Fleet(10, 2))
    owners = etcd_owners()(world)
    world.check(owners.owner_of)
    world.others[3] = {0}
    with pytest.raises(AssertionError, match="several sessions"):
        world.check(owners.owner_of)
    world.others.clear()
    world.home[3] = 0
    with pytest.raises(AssertionError, match="client 3 is on host 0, its owner is 1"):
        world.check(owners.owner_of)
    world.live = {1}
    with pytest.raises(AssertionError, match="client 0 has no session"):
        world.check(owners.owner_of)


def test_etcd_stays_below_its_pace() -> None:
    """All hosts together, whatever comes; a second has the transactions of its beginning, too."""
    outcome = simulated(Fleet(20_000, 20, seconds=1.0), Event.SCATTER, WAYS["etcd"])
    assert outcome.transactions > TRANSACTIONS_PER_SECOND_MAX
    assert outcome.most_transactions_in_a_second <= TRANSACTIONS_PER_SECOND_MAX + 20


@pytest.mark.parametrize("hosts", [2, 4])
def test_batches_are_those_of_the_broker(hosts: int) -> None:
    """Clients of every host connect to the next one, all at once: each is refused once, and then taken."""
    clients = hosts * 10 * OPERATIONS_MAX

    world = World(Fleet(clients, hosts, seconds=0.0))
    owners = etcd_owners()(world)
    coming = ((0.0, client, (client + 1) % hosts) for client in range(clients))
    world.run(coming, owners.ask)
    world.check(owners.owner_of)

    async def broker() -> int:
        shared = CoordinatorInMemory()
        all_hosts = []
        for number in range(hosts):
            coordination = shared.connect()
            lease = await coordination.grant(600)
            all_hosts.append(Ownership(coordination, "c", f"h{number}", lambda lease=lease: lease))  # type: ignore[misc]
        names = [[f"{number}-{client}" for client in range(clients // hosts)] for number in range(hosts)]
        await asyncio.gather(*(host.claim(name) for host, own in zip(all_hosts, names, strict=True) for name in own))
        before = sum(host.transactions for host in all_hosts)

        async def move(host: Ownership, name: str) -> None:
            await host.take(name, (await host.claim(name)).epoch)

        await asyncio.gather(*(move(host, name) for at, host in enumerate(all_hosts) for name in names[at - 1]))
        return sum(host.transactions for host in all_hosts) - before

    assert world.outcome.transactions == asyncio.run(broker()) == hosts * 2 * 10


def test_bounds_are_those_of_the_broker() -> None:
    assert owner_simulation.LEASE_SECONDS == membership.LEASE_SECONDS
    assert owner_simulation.ANSWER_SECONDS == owner_questions._ANSWER_SECONDS
    assert owner_simulation.WAITING_MAX == owner_requests._WAITING_MAX
    assert owner_simulation.BATCHES_MAX == ownership._BATCHES_MAX


def test_too_many_requests_are_served_unproven() -> None:
    """More than a host has places for, and more than etcd answers in time: nobody waits longer, all are settled."""
    outcome = simulated(Fleet(5_000_000, 5, 5_000), Event.SCATTER, WAYS["etcd"])
    assert 0 < outcome.unproven <= outcome.asked
    assert outcome.longest_wait == ANSWER_SECONDS
    assert outcome.settled > 2 * outcome.asked / OPERATIONS_MAX / TRANSACTIONS_PER_SECOND_MAX * 0.9


def test_a_directory_does_not_reach_registrars_of_the_dead() -> None:
    """Until the view changes: those clients whose registrar has died are served unproven, and no others."""
    fleet = Fleet(4000, 4, seconds=LEASE_SECONDS / 2)
    outcome = simulated(fleet, Event.DEATH, WAYS["directory"])
    hosts = range(fleet.hosts)
    expected = sum(registrar_of(client, hosts) == 3 for client in range(3, 4000, 4))
    assert outcome.unproven == expected > 0
    assert simulated(fleet, Event.DEATH, WAYS["etcd"]).unproven == 0


def test_registrars_are_even_and_stay() -> None:
    """A host that goes takes only its own part along."""
    hosts = list(range(20))
    before = [registrar_of(client, hosts) for client in range(20_000)]
    counts = Counter(before)
    assert set(counts) == set(hosts)
    assert max(counts.values()) < 1.2 * min(counts.values())
    after = [registrar_of(client, [each for each in hosts if each != 7]) for client in range(20_000)]
    assert all(new == old for old, new in zip(before, after, strict=True) if old != 7)
    assert 7 not in after


@pytest.mark.parametrize("way", ["etcd", "directory"])
def test_cut_hosts_may_double_clients_until_they_are_back(way: str) -> None:
    outcome = simulated(Fleet(20_000, 4, cut=2), Event.PARTITION, WAYS[way])
    assert outcome.doubled > 0
    assert simulated(Fleet(20_000, 4, cut=0), Event.PARTITION, WAYS[way]).doubled == 0
