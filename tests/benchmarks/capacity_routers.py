"""Routers without sockets at the size of a cluster: what filters of other hosts, sessions and retained messages cost.

The routers, their tables of filters and the formats between hosts are the broker's own; nothing else of a worker is
there unless it is said. Bytes are the growth of the process's PSS, so each measurement needs a process of its own.
Times are CPU times of this process.

    worker    1 worker of 16 of one of 20 hosts: 15 siblings and 19 rails have told it what they want
    grid      all routers of a cluster in one process: what is told by whom, and the way of each publish
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from broker.config.data_path import fill
from broker.config.settings import Settings
from pyx.core.counters import Row
from pyx.core.limits import Limits
from pyx.core.peer import peer_of, worker_of
from pyx.core.timers import TimerWheel
from pyx.delivery.router import Router
from pyx.delivery.session import Session
from pyx.matching.interest import interest_of
from pyx.mesh.link import Link
from pyx.protocol.message import Message
from shards.placement import home
from tests import wire
from tests.benchmarks import on_disk
from tests.benchmarks.bench_subscriptions import Population
from tests.benchmarks.run_subscriptions import pss_bytes
from tests.sansio import Host
from zmq_mesh.contract import LinkLimits
from zmq_mesh.interest import Change, Publisher, decode_changes
from zmq_mesh.rails import peers_of

__all__ = [
    "Figures",
    "Grid",
    "delta",
    "filter_of",
    "grid",
    "idle_link",
    "on_disk_bytes",
    "places",
    "remote_interest",
    "retained",
    "sessions",
    "snapshot_of_table",
]

Figures = dict[str, float]

FILTER_BYTES = 30
_START_MS, _WALL_MS = 1_000, 1_800_000_000_000
_MATCHES = 300_000
_PASSES = 5
_CONNECT_AT_ONCE = 500
_TICK_SECONDS = 0.1


def filter_of(number: int) -> bytes:
    """Return an exact Topic Filter of 30 bytes, which is the topic that it matches."""
    return b"fleet/%05d/truck/%08d/bat" % (number // 1000, number)


@cache
def _settings() -> Settings:
    return Settings()


class RoutedWorker:
    """The router of a worker; its peers are places, and nothing travels by itself."""

    def __init__(self, index: int, workers: int) -> None:
        self.index = index
        self.workers = workers
        self.counters = Row()
        self.population = Population()
        self.subscriptions = self.population.subscriptions
        self.router = Router(
            index, workers, self.subscriptions, fill(Limits(), _settings()), self.counters, TimerWheel(_START_MS)
        )
        self.router.state.set_time(_START_MS, _WALL_MS)

    def entries(self) -> Iterator[Change]:
        """Yield what its host wants, as `broker.worker.other_hosts` does."""
        for page in interest_of(self.subscriptions, (1 << self.workers) - 1):
            for entry in page:
                if entry[1] is None:
                    yield Change(entry[0], None, 1, False)
                else:
                    yield Change(entry[0], entry[1], entry[2], False, entry[3])

    def learn(self, place: int, parts: Iterable[bytes]) -> int:
        """Take a snapshot of what a peer wants. Return the number of filters."""
        siblings = self.router.siblings
        whole = siblings.begin_interest(place)
        taken = 0
        for part in parts:
            for each in decode_changes(part):
                siblings.set_interest(place, each.filter, each.members, each.group, each.online)
                taken += 1
        while siblings.forget_unnamed(whole):
            pass
        return taken


def _snapshot(changes: Iterable[Change]) -> list[bytes]:
    [update] = Publisher(lambda: changes).since(0)
    return update.parts


# ---------------------------------------------------------------- one worker of a large cluster


def remote_interest(filters: int, siblings: int, hosts: int) -> Figures:
    """Let a worker learn so many exact filters, evenly from its siblings and from rails to other hosts. The process
    must not be used for another measurement of memory.
    """
    worker = RoutedWorker(0, siblings + 1)
    places = [*range(1, siblings + 1), *(worker.router.peers.add_rail(True) for _ in range(hosts))]
    each = filters // len(places)
    taken_seconds, sent = 0.0, 0
    gc.collect()
    before = pss_bytes()
    for at, place in enumerate(places):
        parts = _snapshot(Change(filter_of(at * each + n), None, 1, False) for n in range(each))
        began = time.process_time()
        assert worker.learn(place, parts) == each
        taken_seconds += time.process_time() - began
        sent += sum(map(len, parts))
        del parts
    gc.collect()
    held = each * len(places)
    assert worker.subscriptions.filters == held
    figures = {
        "filters": float(held),
        "peers": float(len(places)),
        "memory": (pss_bytes() - before) / held,
        "snapshot": sent / held,
        "take_us": taken_seconds / held * 1e6,
    }
    return figures | _matches(worker, held)


def _matches(worker: RoutedWorker, filters: int) -> Figures:
    chance = random.Random(filters)
    topics = b"".join(filter_of(chance.randrange(filters)) for _ in range(_MATCHES))
    absent = b"".join(filter_of(chance.randrange(filters))[:-1] + b"_" for _ in range(_MATCHES))
    found = [worker.population.match(topics, FILTER_BYTES) for _ in range(_PASSES)]
    assert {count for _, count in found} == {_MATCHES}
    missed = [worker.population.match(absent, FILTER_BYTES) for _ in range(_PASSES)]
    assert {count for _, count in missed} == {0}
    return {"match_ns": median(ns for ns, _ in found), "none_ns": median(ns for ns, _ in missed)}


def snapshot_of_table(filters: int) -> Figures:
    """Make the snapshot of what a host wants from the table of one of its workers, as a host that joins is sent it."""
    worker = RoutedWorker(0, 2)
    worker.learn(1, _snapshot(Change(filter_of(n), None, 1, False) for n in range(filters)))
    times = []
    for _ in range(3):
        began = time.process_time()
        [update] = Publisher(worker.entries).since(0)
        times.append(time.process_time() - began)
    taken = sum(1 for part in update.parts for _ in decode_changes(part))
    assert taken == filters
    return {"filters": filters, "us": median(times) / filters * 1e6, "bytes": sum(map(len, update.parts)) / filters}


def delta(changes: int) -> int:
    """Return the bytes of the deltas that tell peers of so many new exact filters of 30 bytes."""
    publisher = Publisher()
    publisher.since(0)
    number = publisher.number
    for each in range(changes):
        publisher.change(filter_of(each))
    publisher.seal()
    return sum(len(part) for update in publisher.since(number) for part in update.parts)


# ---------------------------------------------------------------- links


def places(own_workers: int, other_workers: Sequence[int]) -> tuple[list[int], int]:
    """Link a worker of a host with its siblings and with the workers of other hosts, by the router's own places. Return
    the links of each worker of the host, and for how many pairs (worker, other host) there was no place.
    """
    links, missing = [], 0
    for index in range(own_workers):
        router = RoutedWorker(index, own_workers).router
        made = own_workers - 1
        for number, workers in enumerate(other_workers, 2):
            try:
                for sends, _ in peers_of(number, workers, index, own_workers).values():
                    router.peers.add_rail(sends)
                    made += 1
            except LookupError:
                missing += 1
        links.append(made)
        router.abandon()
    return links, missing


class _Ignored:
    """Takes every event of a link, and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def idle_link(seconds: int) -> Figures:
    """Let two linked workers of different hosts have nothing to say. Return what travels in both directions together,
    each second; without the heads of ZMTP, TCP and IP.
    """
    ways: dict[int, list[list[bytes]]] = {0: [], 1: []}
    counted = {"messages": 0, "bytes": 0}

    def sender(way: int) -> Callable[[list[Any]], bool]:
        def send(frames: list[Any]) -> bool:
            made = [bytes(memoryview(each)) for each in frames]
            counted["messages"] += 1
            counted["bytes"] += sum(map(len, made))
            ways[way].append(made)
            return True

        return send

    events: Any = _Ignored()
    names = (peer_of(1, 0), peer_of(2, 0))
    now = 1000.0
    pair = [
        Link(names[way], names[1 - way], 1, Publisher(), events, sender(way), LinkLimits(), now) for way in range(2)
    ]

    def pass_time(until: float) -> float:
        at = now
        while at < until:
            at += _TICK_SECONDS
            for way, link in enumerate(pair):
                link.tick(at)
                link.flush(at)
                arrived, ways[way] = ways[way], []
                for frames in arrived:
                    pair[1 - way].receive(frames, at)
        return at

    now = pass_time(now + seconds)
    assert all(link.ready for link in pair)
    counted.update(messages=0, bytes=0)
    pass_time(now + seconds)
    return {name: value / seconds for name, value in counted.items()}


# ---------------------------------------------------------------- all routers of a cluster


class Grid:
    """All routers of a cluster, with real tables and batches, each of the hosts with as many workers. Client n is on
    host n modulo their number, at its home there, and subscribes to `filter_of(n)`.
    """

    def __init__(self, hosts: int, workers: int, clients: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.hosts, self.workers, self.clients = hosts, workers, clients
        self.routers = [[RoutedWorker(index, workers) for index in range(workers)] for _ in range(hosts)]
        self.sessions: list[Session] = []
        self.entries: Counter[str] = Counter()
        """Entries that travelled, by the kind of link."""
        self.bytes: Counter[str] = Counter()
        self.told_bytes = 0
        """Of snapshots, to all workers of all hosts."""
        self._places: dict[tuple[int, int, int], tuple[int, int]] = {}
        """(host, worker, place) -> the host and worker at the other end."""
        self._back: dict[tuple[int, int, int, int], int] = {}
        """(host, worker, other host, its worker) -> the place of that one."""
        self._add_rails()
        wanted = self._subscribe()
        self._tell(wanted)

    def _add_rails(self) -> None:
        for host in range(self.hosts):
            for index, worker in enumerate(self.routers[host]):
                for other in range(self.hosts):
                    if other == host:
                        continue
                    for peer, (sends, _) in peers_of(other, self.workers, index, self.workers).items():
                        place = worker.router.peers.add_rail(sends)
                        self._places[host, index, place] = other, worker_of(peer)
                        self._back[host, index, other, worker_of(peer)] = place

    def home_of(self, client: int) -> tuple[int, int]:
        """Return the host and the worker of a client."""
        return client % self.hosts, home(f"client{client}", self.workers)

    def _subscribe(self) -> dict[tuple[int, int], list[bytes]]:
        wanted: dict[tuple[int, int], list[bytes]] = {}
        for client in range(self.clients):
            host, index = self.home_of(client)
            session = Session(f"client{client}")
            self.routers[host][index].router.subscribing.subscribe(session, filter_of(client), 0)
            self.sessions.append(session)
            wanted.setdefault((host, index), []).append(filter_of(client))
        return wanted

    def _tell(self, wanted: dict[tuple[int, int], list[bytes]]) -> None:
        for (host, index), filters in wanted.items():
            parts = _snapshot([Change(each, None, 1, False) for each in filters])
            for sibling in range(self.workers):
                if sibling != index:
                    self.told_bytes += sum(map(len, parts))
                    self.routers[host][sibling].learn(index, parts)
        unions = {
            (host, index): _snapshot(list(worker.entries()))
            for host, row in enumerate(self.routers)
            for index, worker in enumerate(row)
        }
        for (host, index, place), other in self._places.items():
            self.told_bytes += sum(map(len, unions[other]))
            self.routers[host][index].learn(place, unions[other])

    def publish(self, messages: int, payload: int) -> None:
        """Publish from clients at random to topics of others at random, one after the other, until each has arrived."""
        for _ in range(messages):
            host, index = self.home_of(self.chance.randrange(self.clients))
            topic = filter_of(self.chance.randrange(self.clients))
            self.routers[host][index].router.publish_message(Message.create(topic, bytes(payload)))
            self._carry(host, index)

    def _carry(self, host: int, index: int) -> None:
        worker = self.routers[host][index]
        peers = worker.router.peers
        while dirty := peers.dirty_peers:
            place = dirty.bit_length() - 1
            is_rail = peers.rails >> place & 1
            to_host, to = self._places[host, index, place] if is_rail else (host, place)
            taken = peers.take(place)
            assert taken is not None
            part = bytes(memoryview(taken[0] if taken[0] is not None else taken[1]))  # type: ignore[arg-type]
            kind = "between hosts" if is_rail else "inside"
            self.entries[kind] += 1
            self.bytes[kind] += len(part)
            back = self._back[to_host, to, host, index] if is_rail else index
            self.routers[to_host][to].router.siblings.ingest(back, part, [])
            self._carry(to_host, to)

    @property
    def matched(self) -> int:
        """Number of copies for sessions, of all workers."""
        return sum(worker.counters["matched"] for row in self.routers for worker in row)

    def filters(self) -> list[int]:
        """Return the number of filters in the table of each worker."""
        return [worker.subscriptions.filters for row in self.routers for worker in row]

    def close(self) -> None:
        """Free what refers to each other."""
        for row in self.routers:
            for worker in row:
                worker.router.abandon()


def grid(hosts: int, workers: int, clients: int, messages: int, payload: int = 100, seed: int = 1) -> Figures:
    """Build a cluster of routers, and publish. Each message has one subscriber, on any host."""
    gc.collect()
    before = pss_bytes()
    built = Grid(hosts, workers, clients, seed)
    held = built.filters()
    assert set(held) == {clients}, "every worker knows all filters of the cluster"
    memory = pss_bytes() - before
    built.publish(messages, payload)
    assert built.matched == messages, "each message arrives once"
    figures = {
        "routers": float(hosts * workers),
        "clients": float(clients),
        "filters_each": float(held[0]),
        "memory_per_router": memory / (hosts * workers),
        "told_bytes_per_filter": built.told_bytes / clients,
        "between_hosts": built.entries["between hosts"] / messages,
        "inside": built.entries["inside"] / messages,
        "bytes_between_hosts": built.bytes["between hosts"] / max(1, built.entries["between hosts"]),
        "payload": float(payload),
    }
    built.close()
    return figures


# ---------------------------------------------------------------- sessions and retained messages


def _connected(count: int) -> tuple[Host, list[float]]:
    """Connect so many clients without sockets, each with a filter of its own. Return the bytes before and after."""
    host = Host(limits={"sessions_max": count + 1, "filters_max": count + 1})
    gc.collect()
    before = pss_bytes()
    peers = []
    for number in range(count):
        peer = host.open(5)
        options = {"session_expiry_interval": 3600}
        peer.send(wire.connect(5, f"sensor-{number:016x}", clean=False, properties=options))
        peers.append(peer)
        if len(peers) == _CONNECT_AT_ONCE or number == count - 1:
            host.settle()
            for at, each in enumerate(peers, number + 1 - len(peers)):
                each.packets.clear()
                each.send(wire.subscribe(5, 1, (filter_of(at).decode(), 1)))
            host.settle()
            for each in peers:
                each.send(wire.disconnect(5))
            host.settle()
            for each in peers:
                del host.peer_of[each.conn]
            host.peers.clear()
            peers.clear()
            for log in host.logs:
                log.events.clear()
    gc.collect()
    return host, [before, pss_bytes()]


def sessions(count: int) -> Figures:
    """Leave so many sessions, each with an exact filter, in the memory of a worker: their clients have gone."""
    host, (before, after) = _connected(count)
    assert len(host.node.sessions) == count
    return {"sessions": count, "memory": (after - before) / count}


def retained(count: int, payload: int) -> Figures:
    """Retain so many messages in a worker, each of its own topic of 30 bytes."""
    host = Host(limits={"retained_messages_max": count, "retained_bytes_max": 1 << 40})
    publisher = host.connect("publisher")
    gc.collect()
    before = pss_bytes()
    began = time.process_time()
    for number in range(count):
        publisher.send(wire.publish(4, filter_of(number).decode(), bytes(payload), retain=True))
        if number % 1000 == 999:
            host.turn()
    host.settle()
    seconds = time.process_time() - began
    assert host.node.retained.count == count
    return {
        "messages": count,
        "payload": payload,
        "memory": (pss_bytes() - before) / count,
        "publish_us": seconds / count * 1e6,
    }


def on_disk_bytes(count: int) -> Figures:
    """Return the bytes at rest of a session, a subscription, a retained message, as docs/store.md measures them."""
    with TemporaryDirectory(prefix="capacity-") as folder:
        rows = [*on_disk.of_sessions(Path(folder) / "a", count), *on_disk.of_copies(Path(folder) / "b", count // 10)]
    named = {row.what: row.sizes for row in rows}
    names = {
        "session": "session, with its cursor",
        "subscription": "subscription",
        "retained": "retained message, beside its payload",
    }
    figures = {name: named[what].tables for name, what in names.items()}
    return figures | {f"{name}_plain": named[what].plain for name, what in names.items()}
