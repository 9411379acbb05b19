"""Clients that roam between hosts while the network breaks, hosts are killed and stopped, and etcd does not answer.

The hosts are in network namespaces. Every fault ends; in the end one host serves each client, no acknowledged message
is missing, and retained messages are the same everywhere.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

import pytest

from tests.cluster.history import History, Publisher, Roamer
from tests.cluster.namespaces import ETCD, NamespacedHosts, namespaced_hosts_of
from tests.waiting import let_pass, wait_until
from tests.wire import PINGREQ, Client

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
_SETTLED_SECONDS = 60.0
Fault = Callable[[NamespacedHosts, random.Random], AbstractContextManager[str]]
_TOPICS = [f"kept/{at}" for at in range(20)]


@contextmanager
def faulty_network(hosts: NamespacedHosts, chance: random.Random) -> Iterator[str]:
    """Lose what goes between two hosts, or between one and others or etcd, one way or both."""
    network, everybody = hosts.network, list(range(len(hosts)))
    one, other = chance.sample(everybody, 2)
    kind = chance.choice(("one way", "both ways", "from hosts", "from etcd", "from all"))
    others = [each for each in everybody if each != one]
    if kind == "one way":
        network.cut(one, other)
    elif kind == "both ways":
        network.cut_off(one, [other])
    else:
        network.cut_off(one, {"from hosts": others, "from etcd": [ETCD], "from all": [*others, ETCD]}[kind])
    yield f"{one} {kind} {other}"
    network.heal()


@contextmanager
def killed_host(hosts: NamespacedHosts, chance: random.Random) -> Iterator[str]:
    host = chance.choice(hosts)
    host.kill()
    yield f"kill {host.node}"
    host.start()


@contextmanager
def stopped_host(hosts: NamespacedHosts, chance: random.Random) -> Iterator[str]:
    """Stop all processes of a host, or some of them."""
    host = chance.choice(hosts)
    processes = [pid for pid in host.processes() if chance.random() < 0.7]
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    yield f"stop {len(processes)} of {host.node}"
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def frozen_etcd(hosts: NamespacedHosts, _chance: random.Random) -> Iterator[str]:
    hosts.etcd.freeze()
    yield "freeze etcd"
    hosts.etcd.thaw()


def retained(client: Client) -> dict[str, bytes]:
    """Return the retained messages of kept/#."""
    client.unsubscribe("kept/#")
    client.subscribe(("kept/#", 0))
    client.send(PINGREQ)
    found = {}
    while (packet := client.read()).kind != "PINGRESP":
        if packet.retain:
            found[packet.topic] = packet.payload
    return found


def same_everywhere(clients: list[Client]) -> bool:
    """Whether the clients of all hosts get the same retained messages."""
    first, *others = [retained(client) for client in clients]
    return bool(first) and all(each == first for each in others)


def run_history(seed: int, rounds: int, store: str, faults: list[Fault]) -> None:
    """Let clients roam for so many faults, and check what they have seen."""
    chance = random.Random(seed)
    history = History()
    with namespaced_hosts_of((2, 1, 2), store) as hosts:
        roamers = [Roamer(f"roamer-{at}", hosts, history) for at in range(12)]
        publishers = [Publisher(host, history, roamers, _TOPICS) for host in hosts]
        clients: list[Publisher | Roamer] = [*publishers, *roamers]
        threads = [threading.Thread(target=each.run, daemon=True) for each in clients]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(each.subscribed.is_set() for each in roamers), 30, "all have subscribed")
        done = []
        for _ in range(rounds):
            with chance.choice(faults)(hosts, chance) as what:
                done.append(what)
                let_pass(chance.uniform(0.5, 8))
            let_pass(chance.uniform(0, 5))
        for each in clients:
            each.ended.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        said = f"seed {seed}, {done}, {history.count()} messages"
        for roamer in roamers:
            with suppress(TimeoutError):
                wait_until(partial(roamer.take_rest, chance.choice(hosts)), _SETTLED_SECONDS, "it has all")
            assert history.missing(roamer.name) == [], f"{said}: {roamer.name}"
        watchers = [host.client(f"watcher-{host.node}") for host in hosts]
        wait_until(lambda: same_everywhere(watchers), _SETTLED_SECONDS, f"{said}: retained messages are the same")
        assert history.count() > 100, said


@pytest.mark.parametrize("store", ["memory", "leveldb"])
@pytest.mark.parametrize(
    ("seed", "rounds"),
    [
        pytest.param(1, 3, id="some"),
        *(pytest.param(seed, 10, id=str(seed), marks=pytest.mark.long) for seed in (2,)),
        *(pytest.param(seed, 10, id=str(seed), marks=pytest.mark.soak) for seed in range(3, 30)),
    ],
)
def test_the_network_breaks(seed: int, rounds: int, store: str) -> None:
    run_history(seed, rounds, store, [faulty_network])


@pytest.mark.parametrize(
    ("seed", "rounds"),
    [
        pytest.param(1, 4, id="some"),
        *(pytest.param(seed, 10, id=str(seed), marks=pytest.mark.long) for seed in (2,)),
        *(pytest.param(seed, 10, id=str(seed), marks=pytest.mark.soak) for seed in range(3, 30)),
    ],
)
def test_everything_fails(seed: int, rounds: int) -> None:
    run_history(seed, rounds, "leveldb", [faulty_network, killed_host, stopped_host, frozen_etcd])
