"""What a host wants of other hosts: what a session on any of its workers wants, as each of its workers says."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from shards.placement import home
from tests.sansio import Host, Peer
from zmq_mesh.interest import Publisher

FILTERS = ["a", "a/+", "#", "$share/g/a", "$share/g/a/+", "$share/h/a"]


def wanted(publisher: Publisher) -> dict[tuple[bytes, bytes | None], int]:
    """Return by filter and share group what a worker says that its host wants, and how many members the group has."""
    publisher.seal()
    return {
        (each.filter, each.group): each.members if each.group is not None else 1 for each in publisher._table.values()
    }


def split(name: str) -> tuple[bytes, bytes | None]:
    if not name.startswith("$share/"):
        return name.encode(), None
    _, group, text = name.split("/", 2)
    return text.encode(), group.encode()


def hosted(workers: int) -> tuple[Host, list[Publisher]]:
    """Return a host and what each of its workers tells other hosts."""
    host = Host(workers, cluster={"etcd": ["etcd://127.0.0.1:1"], "node_id": "n", "listen": "tcp://127.0.0.1:1"})
    publishers = [Publisher() for _ in host.nodes]
    for node, publisher in zip(host.nodes, publishers, strict=True):
        node.router.peers.host_interest = publisher
    host.settle()
    return host, publishers


@pytest.mark.parametrize("how", ["disconnects", "unsubscribes", "expires", "begins anew"])
def test_the_last_session_of_one_worker_is_not_the_last_of_the_host(how: str) -> None:
    """Another worker's session wants the same yet: other hosts are told nothing."""
    host, publishers = hosted(2)
    lasts = how in ("expires", "begins anew")
    one, other = (next(name for name in (f"c{at}" for at in range(9)) if home(name, 2) == worker) for worker in (0, 1))
    first = host.connect(one, 5, clean=not lasts, expiry=10 if lasts else 0)
    second = host.connect(other, 5)
    for each in (first, second):
        each.subscribe(("a", 1))
    host.settle()
    if how == "unsubscribes":
        first.unsubscribe("a")
    else:
        host.lose(first)
    if how == "expires":
        host.pass_time(20)
    elif how == "begins anew":
        host.connect(one, 5, clean=True)
    host.settle()
    assert [wanted(each) for each in publishers] == [{(b"a", None): 1}] * 2
    host.lose(second)
    host.settle()
    assert [wanted(each) for each in publishers] == [{}] * 2


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_sessions_come_and_go(count: int, seed: int) -> None:
    """On all workers, and subscribe and unsubscribe."""
    chance = random.Random(seed)
    host, publishers = hosted(count)
    there: dict[str, tuple[Peer, set[str]]] = {}
    for turn in range(120):
        name = f"c{chance.randrange(8)}"
        if name not in there:
            there[name] = host.connect(name, 5), set()
        peer, subscribed = there[name]
        action = chance.randrange(4)
        named = chance.choice(FILTERS)
        if action < 2:
            peer.subscribe((named, 1))
            subscribed.add(named)
        elif action == 2 and subscribed:
            named = chance.choice(sorted(subscribed))
            peer.unsubscribe(named)
            subscribed.discard(named)
        elif action == 3:
            host.lose(there.pop(name)[0])
        host.settle()
        members = Counter(split(each) for _, filters in there.values() for each in filters)
        expected = {key: number if key[1] is not None else 1 for key, number in members.items()}
        assert [wanted(each) for each in publishers] == [expected] * count, turn
