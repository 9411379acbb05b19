"""The rails of one worker: its links to workers of other hosts.

Worker i of a host sends to worker i, modulo their number, of every other host; that one passes on what its siblings
want. So a publish crosses to a host once, over the same links for all messages of a publisher. Where two hosts have not
as many workers, a worker also has links over which it is sent to, and only answers.

A rail is made for every host that is there, and connects by itself, again and again. When a host has gone that keeps
its sessions on disk, the rail stays: what its clients are owed is kept for its return. That of another one stays for a
while: a host that is cut off from etcd is no member any more, and has its sessions yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from pyx.core.peer import Peer, host_of, peer_of, worker_of
from pyx.mesh.link import Link
from pyx.mesh.links import Links
from pyx.mesh.receiver import BatchReceiver
from zmq_mesh.contract import HandoffLog, LinkEvents, LinkLimits, Outlet, Transport
from zmq_mesh.interest import Publisher

__all__ = ["Host", "RailPlace", "RailPlaces", "Rails", "endpoint_of", "peers_of"]


class Host(NamedTuple):
    """Another host. number: `pyx.core.peer`. address: "tcp://host:port" of its first worker; the others have the ports
    after it. key: its public key, 40 characters of Z85. keeps: its sessions outlive it.
    """

    number: int
    node: str
    workers: int
    address: str
    key: bytes
    keeps: bool


class RailPlace(NamedTuple):
    """How the router knows a rail, and what its store has of it; see `Link`."""

    number: int
    handoff: HandoffLog | None
    received: tuple[int, int]
    refusals: Iterable[tuple[int, list[tuple[int, int]]]]


class RailPlaces(Protocol):
    """The router's side of rails: it knows them by their places."""

    def add(self, peer: Peer, *, sends: bool, receives: bool) -> RailPlace:
        """Return the place of a rail. sends: it leads to its host. receives: what its host has for this one comes over
        it, so it has to know what this host wants. Raises LookupError: there are too many.
        """

    def drop(self, place: int) -> None:
        """Free a place."""


def endpoint_of(address: str, worker: int) -> str:
    """Return where that worker of a host with this address listens."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + worker}"


def peers_of(host: int, workers: int, own: int, own_workers: int) -> dict[Peer, tuple[bool, bool]]:
    """Return the workers of a host with which worker `own` of `own_workers` has links: for each whether this one sends
    to its host over it, and whether that host sends to this one.
    """
    return {
        peer_of(host, worker): (worker == own % workers, own == worker % own_workers)
        for worker in range(workers)
        if worker == own % workers or own == worker % own_workers
    }


class Rails:
    """The rails of one worker. own: its number among all hosts' workers. own_workers: of this host. incarnation: of
    the first link, in us as those of workers; each further one has the next. publisher: of the interest of this host.
    wait_seconds: time for which a host without a disk is waited for that is no member any more: it may only be cut off,
    and then it has its sessions yet.
    """

    def __init__(
        self,
        own: Peer,
        own_workers: int,
        incarnation: int,
        together: Links,
        transport: Transport,
        publisher: Publisher,
        events: LinkEvents,
        places: RailPlaces,
        limits: LinkLimits,
        batches: BatchReceiver,
        when_writable: Callable[[Peer], Callable[[], object]],
        wait_seconds: float,
    ) -> None:
        self.own = own
        self._own_workers = own_workers
        self._incarnation = incarnation
        self._made = 0
        self._together = together
        self._transport = transport
        self._publisher = publisher
        self._nothing = Publisher()  # for peers whose host sends to this one over another link
        self._events = events
        self._places = places
        self._limits = limits
        self._batches = batches
        self._when_writable = when_writable
        self._wait_seconds = wait_seconds
        self.hosts: Mapping[int, Host] = {}
        """The other hosts that are there, by number."""
        self.links: Final[dict[Peer, Link]] = {}
        """By the peer's number. A link may be there without its host."""
        self._outlets: dict[Peer, Outlet] = {}
        self._connected: dict[Peer, tuple[str, bytes]] = {}
        """Where each is connected to: address and key of its host."""
        self._leaving: dict[int, tuple[str, float]] = {}
        """Hosts without a disk that are no members any more: their names, and until when they are waited for."""

    def endpoint(self, peer: Peer) -> str:
        """Return where a peer listens. Raises LookupError for one whose host is not there."""
        return endpoint_of(self.hosts[host_of(peer)].address, worker_of(peer))

    def set_hosts(self, hosts: Mapping[int, Host], now: float) -> dict[int, Exception]:
        """Take the hosts that are there now. Return those that could not be linked, with the reason."""
        former, self.hosts = self.hosts, dict(hosts)
        failed: dict[int, Exception] = {}
        for number in former.keys() - hosts.keys():
            if not former[number].keeps:
                self._leaving[number] = former[number].node, now + self._wait_seconds
        names = {host.node for host in hosts.values()}
        for number, (node, _) in list(self._leaving.items()):
            if number in hosts:
                del self._leaving[number]
            elif node in names:  # it has begun anew, without what it had
                self._leaving[number] = node, now
        self.drop_the_gone(now)
        for number, host in hosts.items():
            wanted = peers_of(number, host.workers, worker_of(self.own), self._own_workers)
            for peer in [each for each in self.links if host_of(each) == number and each not in wanted]:
                self._drop(peer)  # it has fewer workers than before
            for peer, (sends, receives) in wanted.items():
                try:
                    if peer not in self.links:
                        self._make_room(peer, sends, receives, now)
                    elif self._connected[peer] != (host.address, host.key):
                        self._outlets[peer].reconnect()
                except Exception as error:  # noqa: BLE001  of this host's record: the others are linked all the same
                    failed[number] = error
                else:
                    self._connected[peer] = host.address, host.key
        return failed

    def drop_the_gone(self, now: float) -> None:
        """Forget hosts that keep nothing, have been no members for `wait_seconds`, and do not answer either."""
        for number, (_, until) in list(self._leaving.items()):
            if until <= now:
                self._drop_host(number)

    def _drop_host(self, number: int) -> bool:
        """Forget a host, if it does not answer. Return whether it was so."""
        peers = [each for each in self.links if host_of(each) == number]
        if any(self.links[peer].ready for peer in peers):
            return False
        del self._leaving[number]
        for peer in peers:
            self._drop(peer)
        return True

    def _make_room(self, peer: Peer, sends: bool, receives: bool, now: float) -> None:
        """Make a link, if need be in the place of a host that is waited for, the one that has left first."""
        try:
            self._make(peer, sends, receives, now)
        except LookupError:
            leaving = sorted(self._leaving, key=lambda number: self._leaving[number][1])
            if not any(self._drop_host(number) for number in leaving):
                raise
            self._make(peer, sends, receives, now)

    def _make(self, peer: Peer, sends: bool, receives: bool, now: float) -> None:
        def writable() -> None:
            if peer in self.links:
                self._when_writable(self.links[peer].peer)()

        outlet = self._transport.connect(peer, writable)
        try:
            place = self._places.add(peer, sends=sends, receives=receives)
        except BaseException:
            outlet.close()
            raise
        link = Link(
            self.own,
            Peer(place.number),
            self._incarnation + self._made,
            self._publisher if receives else self._nothing,
            self._events,
            outlet.send,
            self._limits,
            now,
            reconnect=outlet.reconnect,
            handoff=place.handoff,
            received=place.received,
            refusals=place.refusals,
            batches=self._batches,
            number=peer,
        )
        self._made += 1
        self._outlets[peer] = outlet
        self.links[peer] = link
        self._together.add(link, None)

    def _drop(self, peer: Peer) -> None:
        link = self.links.pop(peer)
        link.down(link.peer_incarnation)
        self._together.remove(link)
        self._outlets.pop(peer).close()
        self._connected.pop(peer, None)
        self._places.drop(link.peer)

    @property
    def ready(self) -> bool:
        """Whether what every host wants is known, and every host knows what this one wants."""
        return all(link.ready for peer, link in self.links.items() if host_of(peer) in self.hosts)

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()
