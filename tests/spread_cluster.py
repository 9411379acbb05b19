"""Hosts of a cluster without sockets, whose share groups have members: their workers and routers are real, what hosts
tell each other of their members comes late, and clients that are sent away connect where they are told to.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker.config.share_groups import ShareGroupRule
from broker.worker.spreading import SpreadHost, Spreading
from tests.sansio import Host, Peer

__all__ = ["GROUP", "SpreadClient", "SpreadCluster", "SpreadSide"]

GROUP = "$share/g/t/#"
STEP_SECONDS = 0.1


class _Rail(NamedTuple):
    """The link with another host. peer: its place."""

    peer: int


class _Interest:
    """What a worker tells other hosts: kept, with the time at which it arrives."""

    def __init__(self, cluster: SpreadCluster, side: SpreadSide, worker: int) -> None:
        self._cluster = cluster
        self._side = side
        self._worker = worker

    def change(self, text: bytes, group: bytes | None, members: int, _durable: bool = False, online: int = 0) -> None:
        if group is not None:
            self._cluster.tell(self._side, self._worker, text, group, members, online)


class SpreadSide:
    """One host. number: as hosts know it. workers: their number."""

    def __init__(
        self, cluster: SpreadCluster, number: int, workers: int, rules: list[ShareGroupRule], rate: int
    ) -> None:
        self.number = number
        self.node_id = f"n{number}"
        settings: dict[str, Any] = {
            "etcd": ["http://127.0.0.1:1"], "node_id": self.node_id, "listen": "tcp://127.0.0.1:1",
            "client_address": self.node_id, "drain_per_second": rate,
        }  # fmt: skip
        self.host = Host(workers, cluster=settings, shared=rules, limits={"inflight_max": 20})
        self.is_linked = True
        self.places: list[dict[int, int]] = [{} for _ in range(workers)]
        """By worker: the places of other hosts, by their numbers."""
        for at, node in enumerate(self.host.nodes):
            node.router.peers.host_interest = _Interest(cluster, self, at)
        self.spreadings = [
            Spreading(node.context, node.closing, _Others(self, at)) for at, node in enumerate(self.host.nodes)
        ]

    def place(self, other: int) -> None:
        """Make the rails to another host."""
        for at, node in enumerate(self.host.nodes):
            self.places[at][other] = place = node.router.peers.add_rail(True)
            node.router.peers.peer_live(place, True)
            node.router.peers.peer_took_interest(place, (1 << 64) - 1)  # no SUBACK waits for it

    def online(self, group: str = GROUP) -> int:
        """Return how many clients are connected, and members."""
        _, name, topic = group.split("/", 2)
        return sum(
            node.router.subscribing.has(session, topic.encode(), name.encode())
            for node in self.host.nodes
            for session in node.sessions
            if session.connection is not None
        )

    def counter(self, name: str) -> int:
        """Return one counter of all workers."""
        return self.host.counters()[name]


class _Others:
    """The other hosts of a worker: a part of `OtherOwners`."""

    def __init__(self, side: SpreadSide, worker: int) -> None:
        self._side = side
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name}: not asked here")

    def link_of(self, number: int) -> Any:
        return _Rail(self._side.places[self._worker][number]) if self._side.is_linked else None


class SpreadClient:
    """A client. follows: it goes where it is told to. moves: how often it was sent away."""

    def __init__(self, client_id: str, side: SpreadSide, peer: Peer, filters: tuple[str, ...], follows: bool) -> None:
        self.client_id = client_id
        self.side = side
        self.peer = peer
        self.filters = filters
        self.follows = follows
        self.moves = 0
        self.references: list[str] = []
        self.back_at: float | None = None


class SpreadCluster:
    """Hosts and clients. seconds_back: the longest time after which a client connects again."""

    def __init__(
        self,
        hosts: int,
        workers: int = 1,
        rules: Iterable[Mapping[str, Any]] = ({"group": "*", "strategy": "round_robin", "spread": True},),
        rate: int = 500,
        seed: int = 1,
        seconds_back: float = 1.5,
    ) -> None:
        self.chance = random.Random(seed)
        self._seconds_back = seconds_back
        self._told: deque[tuple[float, SpreadSide, int, bytes, bytes, int, int]] = deque()
        """When, to whom, and by which host; then what is told."""
        self.now = 0.0
        self.clients: list[SpreadClient] = []
        self._away: list[SpreadClient] = []
        made = [ShareGroupRule.model_validate(each) for each in rules]
        self.sides: list[SpreadSide] = []
        for number in range(1, hosts + 1):
            self.sides.append(SpreadSide(self, number, workers, made, rate))
        for side in self.sides:
            for other in self.sides:
                if other is not side:
                    side.place(other.number)

    def ready(self, *numbers: int, without_address: Iterable[int] = ()) -> None:
        """Tell all hosts that these are ready."""
        hosts = [
            SpreadHost(number, f"n{number}", "" if number in without_address else f"n{number}") for number in numbers
        ]
        for side in self.sides:
            for each in side.spreadings:
                each.set(side.number, hosts)

    def tell(self, side: SpreadSide, worker: int, text: bytes, group: bytes, members: int, online: int) -> None:
        """Let the same workers of all other hosts hear, soon, how many members a host has."""
        at = max([self.now + self.chance.uniform(0.0, 0.15), *(each[0] for each in list(self._told)[-1:])])
        self._told.append((at, side, worker, text, group, members, online))

    def _hear(self) -> None:
        while self._told and self._told[0][0] <= self.now:
            _, of, worker, text, group, members, online = self._told.popleft()
            for side in self.sides:
                if side is not of:
                    place = side.places[worker][of.number]
                    side.host.nodes[worker].router.siblings.set_interest(place, text, members, group, online)

    def join(
        self,
        client_id: str,
        side: SpreadSide,
        version: int = 5,
        filters: Iterable[str] = (GROUP,),
        follows: bool = True,
        expiry: int = 0,
    ) -> SpreadClient:
        """Return a client that has connected to a host and subscribed."""
        filters = tuple(filters)
        options: dict[str, Any] = {"clean": False, "expiry": expiry} if expiry else {}
        peer = side.host.connect(client_id, version, **options)
        peer.subscribe(*((each, 1) for each in filters))
        self.clients.append(SpreadClient(client_id, side, peer, filters, follows))
        return self.clients[-1]

    def _return_of(self, client: SpreadClient) -> None:
        """Connect a client again, in time."""
        client.back_at = None
        client.peer = client.side.host.connect(client.client_id, client.peer.version)
        client.peer.subscribe(*((each, 1) for each in client.filters))

    def _note_end(self, client: SpreadClient) -> None:
        client.moves += 1
        for packet in client.peer.packets:
            if packet.kind == "DISCONNECT":
                assert packet.reason == 0x9D
                client.references.append(packet.properties["server_reference"])
                if client.follows:
                    client.side = next(each for each in self.sides if each.node_id == client.references[-1])
        client.back_at = self.now + self.chance.uniform(0.0, self._seconds_back)
        self._away.append(client)

    def pass_time(self, seconds: float) -> None:
        """Let time pass on all hosts."""
        until = self.now + seconds - STEP_SECONDS / 2
        while self.now < until:
            self.now += STEP_SECONDS
            self._hear()
            for side in self.sides:
                side.host.pass_time(STEP_SECONDS)
                for each in side.spreadings:
                    each.tick()
            for client in self.clients:
                if client.back_at is None and client.peer.closed:
                    self._note_end(client)
            away, self._away = self._away, []
            for client in away:
                assert client.back_at is not None
                if client.back_at <= self.now:
                    self._return_of(client)
                else:
                    self._away.append(client)

    def online(self, group: str = GROUP) -> list[int]:
        """Return how many members each host has."""
        return [side.online(group) for side in self.sides]

    def assert_sound(self) -> None:
        """Assert that nothing has failed within, and the books balance."""
        for side in self.sides:
            side.host.check_books()
            assert [log.named("internal_error") for log in side.host.logs if log.named("internal_error")] == []
