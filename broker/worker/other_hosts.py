"""The other hosts of the cluster, as one worker knows them: its rails, and what is different with them from siblings.

A rail stands for all of its host: what that wants is one interest, and what it is sent it passes on inside. It is not
asked for retained messages (every host has them all), nor told of full queues, the disk or memory of this worker. Hosts
do not share a clock: each tells the others its time now and then, so that an expiry is understood.

A SUBSCRIBE is answered when hosts that can be reached know it. Siblings learn that from this worker's acknowledgement
of their interest (`zmq_mesh.barrier.HostsFirst`); for its own clients `_pairs` has by which number of the host's
interest the others know a number of this worker's.
"""

from __future__ import annotations

import secrets
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import zmq

from broker.persistence.handoff_log import NOTHING_RECEIVED, StoredHandoff, kept_hosts, tell_receiver
from broker.worker.archive_way import ArchiveWay
from broker.worker.draining import Taker
from broker.worker.flushing import FLUSH, FLUSHED, Flushing
from broker.worker.other_owners import AWAY_SECONDS_MAX
from broker.worker.owning import KINDS, Owning
from broker.worker.retained_exchange import ALL_SENT, ASK, RetainedExchange
from broker.worker.spreading import SpreadHost
from leveldb_store.format import schema
from pyx.core import counters as count
from pyx.core.peer import Peer, host_of, peer_of, worker_of
from pyx.matching.interest import interest_of
from zmq_mesh.contract import HandoffLog
from zmq_mesh.curve import Curve
from zmq_mesh.interest import Change, Publisher
from zmq_mesh.rails import Host, RailPlace, Rails, endpoint_of
from zmq_mesh.zeromq import ZeroMq

if TYPE_CHECKING:
    from broker.worker.core import Node
    from broker.worker.sibling_messages import SiblingMessages
    from pyx.mesh.contract import Watcher
    from pyx.mesh.link import Link
    from shards.worker_channel import WorkerChannel
    from zmq_mesh.curve import KeyPair
    from zmq_mesh.mesh import Mesh

__all__ = ["CLOCK", "CLOCK_SECONDS", "OtherHosts"]

CLOCK: Final = b"t"
"""Kind of a message between hosts: the sender's time, i64 in ms since 1970."""
CLOCK_SECONDS: Final = 10.0
_CLOCK: Final = struct.Struct("<q")
_EVERYTHING: Final = (1 << 64) - 1
_PAIRS_MAX: Final = 1024
_FRAME_BYTES_MAX: Final = (256 << 20) + (64 << 20)
"""Of a message between hosts: the largest packet of MQTT, whatever this host allows its own clients, or a batch."""
_BEGIN_SECONDS_MAX: Final = 10.0
"""Time that a worker waits to be told of other hosts before it serves clients."""
_SIBLINGS_SECONDS_MAX: Final = 30.0
"""Time for which a worker that starts waits to hear its siblings before it is linked with other hosts. What these knew
of its host before they forget as soon as they are told what it wants now."""
_TRY_SECONDS: Final = 1.0


class OtherHosts:
    """The rails of a worker, and the events of their links (`zmq_mesh.contract.LinkEvents`)."""

    def __init__(self, channel: WorkerChannel, node: Node, mesh: Mesh, watcher: Watcher) -> None:
        self._channel = channel
        self._context = context = node.context
        self._router = router = context.router
        self._peering = node.peering
        self._mesh = mesh
        self._watcher = watcher
        self._kept = kept_hosts(context, node.set_aside)
        self._keeps, self._set_aside = context.store.keeps, node.set_aside
        self._own = (1 << context.workers) - 1
        self._wanted = Publisher(self._entries, context.tell_in_pieces)
        """What this host wants."""
        router.peers.host_interest = self._wanted
        assert context.interest is not None
        self._publisher: Publisher = context.interest
        mesh.together.host_publisher = self._wanted
        mesh.together.when_sealed = self._sealed
        mesh.hosts_first.number = lambda: self._wanted.next
        mesh.hosts_first.lacks = self._lacks
        self._taken: dict[Peer, int] = {}
        """By place: the number of this host's interest that a rail's host routes by."""
        self._live: set[Peer] = set()
        """Places of rails that are waited for."""
        self._receives: set[Peer] = set()
        """Places of rails whose hosts have to know what this one wants."""
        self._pairs: list[tuple[int, int]] = []
        """(number of this host's interest, number of this worker's that is part of it), both rising."""
        self._retained = RetainedExchange(context)
        self.rails: Rails | None = None
        self._client_addresses: dict[str, str] = {}
        self._nodes: dict[str, int] = {}
        """Numbers of hosts that are or were there, by their names."""
        self._linked_at: dict[int, float] = {}
        """By the number of a host: when it was last seen linked."""
        self._sending: dict[int, Link] = {}
        """By the number of a host: the link over which it is told something."""
        keys: KeyPair = channel.identity.keys
        self._curve = Curve(keys, {}, _FRAME_BYTES_MAX)
        self._hosts: dict[str, Any] | None = None  # what could not be done yet
        self._told_at = self._try_at = 0.0
        self._failed: dict[int, str] = {}  # by host: why it is not linked, as logged
        self.has_begun = False
        """Whether hosts that can be reached are linked, so that clients may be served; it stays so."""
        self._made_at = time.monotonic()
        self._began_at = 0.0  # when it was told of other hosts first
        self._peering.carries_rails = True
        self._peering.when_all_heard = lambda: self._link(time.monotonic())
        for sibling in context.siblings if self._keeps else ():
            router.peers.peer_unsure(sibling)  # of what comes for it before it is heard
        mesh.when_paused = self._paused
        self._told_linked: tuple[bool, list[str]] | None = None  # as the supervisor was told last
        peering = node.peering  # what is no different with hosts
        self.batch, self.acknowledged, self.refused = peering.batch, peering.acknowledged, peering.refused
        self.refusals_known, self.lost = peering.refusals_known, peering.lost
        self.interest, self.interest_snapshot = peering.interest, peering.interest_snapshot
        messages: SiblingMessages = node.sibling_messages
        messages.of_hosts = self._heard
        self._archives = ArchiveWay(node.replaying, messages, peering, router, self, self._there)
        assert channel.owner_socket is not None
        owning = self._owning = Owning(
            context, node.sessions, node.endings, node.capacity, node.closing, node.connecting, node.subscribing,
            node.state_records, node.recording, channel.owner_socket, self,
        )  # fmt: skip
        node.open_through(owning, owning.draining.report, owning.looks.find, owning.moving_clients.take)
        watcher.watch_in_round(channel.owner_socket.fileno(), self._owning.receive)
        self._flushing = Flushing(context, self._senders, self.has_away)
        for kind in (FLUSH, FLUSHED):
            messages.add(kind, lambda peer, payload, kind=kind: self._flushing.heard(kind, peer, payload))  # type: ignore[misc]
        for kind in KINDS:
            messages.add(kind, lambda _peer, payload, kind=kind: self._owning.heard(kind, payload))  # type: ignore[misc]

    # ------------------------------------------------------------ the cluster

    def hosts_changed(self, message: dict[str, Any], now: float) -> None:
        """Take the hosts of the cluster, as the control process has them (`broker.cluster.host`)."""
        self._hosts = message
        self._told_linked = None  # it wants to know
        self._link(now)
        self._client_addresses = message["client_addresses"]
        self._owning.draining.set(message["drains"], [Taker(*each) for each in message["takers"]])
        self._owning.spreading.set(message["number"], [SpreadHost(*each) for each in message["ready"]])

    @property
    def drains(self) -> bool:
        """Whether clients and sessions are sent to other hosts."""
        return self._owning.draining.is_on or self._owning.moving_clients.left > 0

    def _link(self, now: float) -> None:
        """Take the hosts, as soon as it is known what siblings want: others send at once what they have kept, and it
        would not be passed on.
        """
        if self.rails is None and self._waits_for_siblings(now):
            return
        message, self._hosts = self._hosts, None
        try:
            if message is not None and not self._set_hosts(message, now):
                self._hosts = message
        except Exception as error:  # noqa: BLE001  of another host's record: clients of this one are served all the same
            self._context.counters.add(count.INTERNAL_ERRORS)
            self._context.defect(None, error)

    def _set_hosts(self, message: dict[str, Any], now: float) -> bool:
        """Return False if it has to be tried again."""
        hosts = [Host(**{**each, "key": each["key"].encode()}) for each in message["hosts"]]
        self._curve.hosts = {each.key: each.number for each in hosts}
        if self.rails is None:
            own = peer_of(int(message["number"]), self._channel.index)
            try:
                self.rails = self._listening(own)
            except zmq.ZMQError as error:
                self._context.log.error("rails_unavailable", reason=str(error))
                return False
        failed = self.rails.set_hosts({each.number: each for each in hosts}, now)
        self._nodes |= {each.node: each.number for each in hosts}
        self._find_links(hosts)
        for number, reason in failed.items():
            if self._failed.get(number) != str(reason):
                self._context.log.error("host_not_linked", host=self.rails.hosts[number].node, reason=str(reason))
        self._failed = {number: str(reason) for number, reason in failed.items()}
        self._began_at = self._began_at or now
        return not failed

    def _there(self) -> Mapping[int, Host]:
        return self.rails.hosts if self.rails is not None else {}

    def _find_links(self, hosts: Iterable[Host]) -> None:
        """Note over which link each host is told something. That of a host that has gone stays as long as it does."""
        assert self.rails is not None
        for host in hosts:
            link = self.rails.links.get(peer_of(host.number, self._context.index % host.workers))
            if link is not None:
                self._sending[host.number] = link
        links = set(self.rails.links.values())
        for number in [number for number, link in self._sending.items() if link not in links]:
            del self._sending[number]

    def _listening(self, own: Peer) -> Rails:
        """Listen for other hosts. `own`: this worker's number in the cluster. Raises zmq.ZMQError if it cannot."""
        listens = endpoint_of(self._context.settings.cluster.listen, worker_of(own))
        together = self._mesh.together

        def endpoint(peer: Peer) -> str:
            return listens if peer == own else rails.endpoint(peer)

        transport = ZeroMq(own, endpoint, self._watcher, self._curve)
        incarnation = self._router.state.wall_ms * 1000  # over all its lives, whatever the clock does
        away_seconds_max = self._context.settings.cluster.unproven_seconds_max or AWAY_SECONDS_MAX
        rails = Rails(
            own, self._context.workers, incarnation, together, transport, self._wanted, self, self, self._mesh.limits,
            self._peering.batches, self._mesh.when_writable, away_seconds_max,
        )  # fmt: skip
        try:
            transport.listen(together)
        except BaseException:
            transport.close()
            raise
        inside = together.go_on

        def go_on() -> None:
            inside()
            transport.go_on()

        together.go_on = go_on
        return rails

    def tick(self, now: float) -> None:
        """Tell the others the time now and then, and the supervisor whether all are linked; acknowledge what siblings
        have by now.
        """
        if self._hosts is not None and now >= self._try_at:
            self._try_at = now + _TRY_SECONDS
            self._link(now)
        if now - self._told_at >= CLOCK_SECONDS:
            self._told_at = now
            for place in self._live:
                self._tell_time(place)
            self._linked_at |= dict.fromkeys((each for each in self._sending if self.link_of(each) is not None), now)
        if self._peering.batches.acknowledges and self._peering.batches.release_passed_on():
            self._router.peers.links_due = True
        if self.rails is not None:
            self.rails.drop_the_gone(now)
            self._find_links(())
        if not self.has_begun and self._may_begin(now):
            self._begin()
        self._flushing.tick(self._router.state.now_ms / 1000)
        self._owning.tick(self._router.state.now_ms / 1000)
        linked = (
            self.rails is not None
            and self.rails.ready
            and not any(map(self._retained.lacks, self._live & self._receives))
        )
        hosts = [node for node, number in self._nodes.items() if self.link_of(number) is not None]
        if (linked, hosts) != self._told_linked and self.rails is not None:
            self._told_linked = linked, hosts
            self._channel.tell("linked", linked=linked, hosts=hosts)

    def _waits_for_siblings(self, now: float) -> bool:
        return bool(self._peering.unheard) and now - self._made_at <= _SIBLINGS_SECONDS_MAX

    def _may_begin(self, now: float) -> bool:
        if self.rails is None or not self._began_at:
            is_held_up = self._hosts is not None and self._waits_for_siblings(now)
            return now - self._made_at > _BEGIN_SECONDS_MAX and not is_held_up
        silence = self._context.settings.limits.link_silence_seconds_max
        return self.rails.ready or now - self._began_at > silence

    def _begin(self) -> None:
        self.has_begun = True
        self._owning.claim_all()
        for link in self.rails.links.values() if self.rails is not None else ():
            if not link.ready:
                self._context.log.warning("host_away", **self._named(link.peer))
                self._router.peers.peer_unsure(link.peer)
        self._peering.changed()

    def _paused(self, now: float) -> None:
        """Greet after a pause: until a host has answered it gets every message, because it may have been promised more
        than this worker knows of.
        """
        for link in self.rails.links.values() if self.rails is not None else ():
            if link.ready:
                self._router.peers.peer_unsure(link.peer)
                link.greet(now)

    def close(self) -> None:
        """Close the rails."""
        if self.rails is not None:
            self.rails.close()

    def _entries(self) -> Iterator[Change]:
        for page in interest_of(self._router.state.subscriptions, self._own):
            for entry in page:
                if entry[1] is None:
                    yield Change(entry[0], None, 1, False)
                else:
                    yield Change(entry[0], entry[1], entry[2], False, entry[3])

    # ------------------------------------------------------------ to a host (`broker.worker.other_owners`)

    @property
    def number(self) -> int:
        """Implements OtherOwners."""
        return 0 if self.rails is None else host_of(self.rails.own)

    def number_of(self, node: str) -> int | None:
        """Implements OtherOwners."""
        return self._nodes.get(node)

    def node_of(self, number: int) -> str:
        """Implements OtherOwners."""
        return next((node for node, each in self._nodes.items() if each == number), "")

    def client_address_of(self, node: str) -> str:
        """Implements OtherOwners."""
        return self._client_addresses.get(node, "")

    def tell_host(self, number: int, kind: bytes, payload: bytes, *, keeps: bool) -> bool:
        """Implements OtherOwners."""
        link = self._sending.get(number)
        if link is None or not (keeps or link.ready):
            return False
        self._router.peers.tell(link.peer, kind, payload)
        return link.ready

    def flush(self, then: Callable[[bool], None]) -> None:
        """Implements OtherOwners."""
        self._flushing.flush(then)

    def has_away(self) -> bool:
        """Implements OtherOwners."""
        soonest = time.monotonic() - AWAY_SECONDS_MAX
        return any(
            self._linked_at.get(number, self._made_at) > soonest
            for number in self._nodes.values()
            if number != self.number and self.link_of(number) is None
        )

    def link_of(self, number: int) -> Link | None:
        """Implements OtherOwners."""
        link = self._sending.get(number)
        return link if link is not None and link.ready else None

    # ------------------------------------------------------------ places (`zmq_mesh.rails.RailPlaces`)

    def add(self, peer: Peer, *, sends: bool, receives: bool) -> RailPlace:
        """Implements RailPlaces."""
        place = Peer(self._router.peers.add_rail(sends))
        self._peering.numbers[place] = peer
        self._peering.batches.add_rail(place, schema.peer_key(peer))
        if receives:
            self._receives.add(place)
        if not self._keeps:
            # the sessions of a host outlive one of its workers: what that was sent is sent to its successor
            return RailPlace(place, HandoffLog(secrets.randbits(63) | 1), NOTHING_RECEIVED, ())
        kept = self._kept.pop(peer, None)
        if kept is None:
            handoff = StoredHandoff(self._router, self._context.store, peer, self._set_aside.take)
            return RailPlace(place, handoff, NOTHING_RECEIVED, ())
        tell_receiver(self._peering, place, kept)
        return RailPlace(place, kept.handoff, kept.received, kept.refusals)

    def drop(self, place: int) -> None:
        """Implements RailPlaces."""
        peer = Peer(place)
        self._receives.discard(peer)
        self._live.discard(peer)
        self._taken.pop(peer, None)
        self._retained.dropped(peer)

        def forgotten() -> None:  # before that, filters name its place; its number stays: its batches may wait
            self._peering.batches.drop_rail(place)
            self._router.peers.drop_rail(place)

        self._peering.forget_interest(peer, forgotten)

    # ------------------------------------------------------------ who knows which interest

    def _senders(self) -> set[Peer] | None:
        """The rails over which hosts send to this worker; None: no host knows yet that it is there."""
        return self._live & self._receives if self.has_begun else None

    def _lacks(self, number: int) -> bool:
        senders = self._senders()
        return senders is None or any(self._taken.get(place, 0) < number for place in senders)

    def _sealed(self) -> None:
        pair = self._wanted.number, self._publisher.number
        if self._pairs and self._pairs[-1][0] == pair[0]:
            self._pairs[-1] = pair
        else:
            self._pairs.append(pair)
            known = min((self._taken.get(place, 0) for place in self._live & self._receives), default=pair[0])
            del self._pairs[: max(0, bisect_right(self._pairs, (known, _EVERYTHING)) - 1)]
            del self._pairs[:-_PAIRS_MAX]  # those who do not know even that wait for a later number
        for place in self._live & self._receives:
            self._translate(place)

    def _translate(self, place: Peer) -> None:
        at = bisect_right(self._pairs, (self._taken.get(place, 0), _EVERYTHING))
        if at:
            self._router.peers.peer_took_interest(place, self._pairs[at - 1][1])

    def interest_taken(self, peer: Peer, number: int) -> None:
        """Implements LinkEvents."""
        self._taken[peer] = number
        self._translate(peer)
        self._mesh.hosts_first.check(self._router.state.now_ms / 1000)

    # ------------------------------------------------------------ events of the links

    def answered(self, peer: Peer) -> None:
        """Implements LinkEvents."""
        self._wait_for(peer)
        self._router.peers.peer_answered(peer)

    def ready(self, peer: Peer) -> None:
        """Implements LinkEvents."""
        self._wait_for(peer)
        self._router.peers.peer_live(peer, True)
        self._tell_time(peer)
        self._retained.linked(peer, asks=peer in self._receives)
        self._context.log.info("host_linked", **self._named(peer))
        self._archives.look()
        self._peering.changed()

    def _wait_for(self, place: Peer) -> None:
        self._live.add(place)
        if place not in self._receives:
            self._router.peers.peer_took_interest(place, _EVERYTHING)

    def away(self, peer: Peer) -> None:
        """Implements LinkEvents."""
        self._context.log.warning("host_away", **self._named(peer))
        self._leave(peer)
        self._router.peers.peer_away(peer)
        self._flushing.check()
        self._peering.changed()

    def _leave(self, place: Peer) -> None:
        host = host_of(self._peering.numbers[place])
        if self.link_of(host) is None:
            self._owning.host_away(host)
            self._archives.look()
        self._live.discard(place)
        self._mesh.hosts_first.check(self._router.state.now_ms / 1000)

    def unconfirmed(self, peer: Peer) -> None:
        """Implements LinkEvents."""
        self._peering.unconfirmed(peer)

    def incompatible(self, peer: Peer, oldest: int, newest: int) -> None:
        """Implements LinkEvents."""
        self._peering.incompatible(self._peering.numbers[peer], oldest, newest)

    def gone(self, peer: Peer, incarnation: int) -> None:
        """Implements LinkEvents."""
        self._context.log.warning("host_gone", **self._named(peer))
        self._taken.pop(peer, None)
        self._retained.gone(peer)
        self._leave(peer)
        self._router.peers.peer_live(peer, False)
        self._flushing.check()
        self._peering.changed()

    def _named(self, place: Peer) -> dict[str, Any]:
        number = self._peering.numbers[place]
        host = self.rails.hosts.get(host_of(number)) if self.rails is not None else None
        return {"host": host_of(number) if host is None else host.node, "peer": worker_of(number)}

    # ------------------------------------------------------------ messages between the brokers

    def _tell_time(self, place: Peer) -> None:
        self._router.peers.tell_unkept(place, CLOCK, _CLOCK.pack(self._router.state.wall_ms))

    def _heard(self, place: Peer, kind: bytes, payload: bytes) -> None:
        if kind == CLOCK and len(payload) == _CLOCK.size:
            (theirs,) = _CLOCK.unpack(payload)
            self._router.siblings.set_ahead(place, theirs - self._router.state.wall_ms)
        elif kind in (ASK, ALL_SENT):
            self._retained.heard(place, kind, payload)
        elif kind in (FLUSH, FLUSHED):
            self._flushing.heard_of_host(kind, place, payload)
        elif kind in KINDS:
            self._owning.heard(kind, payload)
