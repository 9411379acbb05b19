"""Hosts that lose sight of each other or of etcd, in network namespaces, while clients roam between them."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest

from tests.cluster.history import History, Publisher, Roamer
from tests.cluster.namespaces import ETCD, NamespacedHosts, namespaced_hosts_of
from tests.waiting import let_pass, wait_until
from tests.wire import Client

SETTLED_SECONDS = 60.0


def cut_somewhere(hosts: NamespacedHosts, chance: random.Random) -> str:
    """Cut the network at random, and return what was done."""
    network, everybody = hosts.network, list(range(len(hosts)))
    one, other = chance.sample(everybody, 2)
    kind = chance.choice(("one way", "both ways", "from hosts", "from etcd", "from all"))
    if kind == "one way":
        network.cut(one, other)
        return f"{one} to {other}"
    if kind == "both ways":
        network.cut_off(one, [other])
        return f"{one} from {other}"
    others = [each for each in everybody if each != one]
    network.cut_off(one, {"from hosts": others, "from etcd": [ETCD], "from all": [*others, ETCD]}[kind])
    return f"{one} {kind}"


def retained(client: Client) -> dict[str, bytes]:
    """Return the retained messages of kept/#."""
    client.unsubscribe("kept/#")
    client.subscribe(("kept/#", 0))
    client.send(b"\xc0\x00")
    found = {}
    while (packet := client.read()).kind != "PINGRESP":
        if packet.retain:
            found[packet.topic] = packet.payload
    return found


def same_everywhere(clients: list[Client]) -> bool:
    """Whether the clients of all hosts get the same retained messages."""
    first, *others = [retained(client) for client in clients]
    return bool(first) and all(each == first for each in others)


@pytest.mark.parametrize("seed", range(2))
def test_clients_roam_while_the_network_breaks(seed: int) -> None:
    """Ten times a part of the network is cut and healed while clients connect here and there: in the end one host
    serves each client, nothing acknowledged is missing, and retained messages are the same everywhere.
    """
    chance = random.Random(seed)
    history = History()
    with namespaced_hosts_of((2, 1, 2), "memory") as hosts:
        roamers = [Roamer(f"roamer-{at}", hosts, history) for at in range(12)]
        publishers = [Publisher(host, history, roamers, [f"kept/{at}" for at in range(20)]) for host in hosts]
        threads = [threading.Thread(target=each.run, daemon=True) for each in (*publishers, *roamers)]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(each.subscribed.is_set() for each in roamers), 30, "all have subscribed")
        cuts = []
        for _ in range(10):
            cuts.append(cut_somewhere(hosts, chance))
            let_pass(chance.uniform(0.5, 8))
            hosts.network.heal()
            let_pass(chance.uniform(0, 5))
        for each in (*publishers, *roamers):
            each.ended.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        said = f"seed {seed}, cuts {cuts}, {history.count()} messages"
        for roamer in roamers:
            rest = partial(roamer.take_rest, chance.choice(hosts))
            try:
                wait_until(rest, SETTLED_SECONDS, "it has all")
            except TimeoutError:
                pytest.fail(f"{said}: {roamer.name} misses {history.missing(roamer.name)[:5]}")
        watchers = [host.client(f"watcher-{host.node}") for host in hosts]
        wait_until(lambda: same_everywhere(watchers), SETTLED_SECONDS, f"{said}: retained messages are the same")
        assert history.count() > 100, said
        print(said, [roamer.sessions_lost for roamer in roamers], [len(history.twice(r.name, b"2-")) for r in roamers])
