"""Workers around links, over simulated transports, for test_links.py."""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from pyx.core.peer import sibling
from pyx.mesh.link import Link
from tests import mesh_messages
from tests.mesh_messages import GREETING, HEAD_END, VERSION_AT, Kind
from zmq_mesh import envelope
from zmq_mesh.contract import HandoffLog, LinkLimits, Undelivered
from zmq_mesh.envelope import PREFIX_BYTES, Entry, decode_entries, encode_entries
from zmq_mesh.interest import Change, Publisher

LIMITS = LinkLimits(
    peer_outbox_bytes_max=64 * 1024,
    handoff_log_bytes_max=256 * 1024,
    link_silence_seconds_max=1.5,
    peer_stall_seconds_max=2.0,
)


class Lasting(HandoffLog):
    """A log in a store: entries can be read back once they are stored, which is a moment later."""

    lasts = True

    def __init__(self, stream: int) -> None:
        super().__init__(stream)
        self.reads = 0
        self._waiting: list[Callable[[], None]] = []
        self._appended: set[int] = set()

    def append(self, sequence: int, part: Any, payloads: list[Any], entries: int) -> bool:
        """See HandoffLog."""
        self._appended.add(sequence)
        super().append(sequence, part, payloads, entries)
        return True

    def read(self, sequence: int) -> tuple[Any, list[Any]]:
        """See HandoffLog."""
        assert sequence not in self._appended, "not stored yet"
        self.reads += 1
        return super().read(sequence)

    def when_stored(self, callback: Callable[[], None]) -> None:
        """See HandoffLog."""
        self._waiting.append(callback)

    def store(self) -> None:
        """Store everything that waits."""
        waiting, self._waiting = self._waiting, []
        self._appended.clear()
        for callback in waiting:
            callback()


def with_versions(first: bytes, said: int) -> bytes:
    """Return the greeting with these versions."""
    head = mesh_messages.unpack_head(first)
    changed = mesh_messages.HEAD.pack(*head._replace(volatile_bytes=said))
    return first[: envelope.PREFIX_BYTES] + changed + first[HEAD_END:]


class Network:
    """Directed FIFO channels. A channel holds at most `capacity` messages; then it refuses."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.channels: dict[tuple[int, int], deque[tuple[float, list[Any]]]] = defaultdict(deque)
        self.capacity = 64
        self.delay = 0.0
        self.loss = 0.0  # of accepted messages
        self.duplication = 0.0
        self.reordering = 0.0
        self.cut: set[tuple[int, int]] = set()

    def sender(self, source: int, target: int) -> Callable[[list[Any]], bool]:
        def send(frames: list[Any]) -> bool:
            channel = self.channels[source, target]
            if (source, target) in self.cut or len(channel) >= self.capacity:
                return False
            if self.random.random() < self.loss:
                return True
            message = (self.now + self.random.random() * self.delay, [bytes(frame) for frame in frames])
            channel.append(message)
            if self.random.random() < self.duplication:
                channel.append(message)
            if len(channel) > 1 and self.random.random() < self.reordering:
                channel[-1], channel[-2] = channel[-2], channel[-1]
            return True

        return send


class Worker:
    """A node around its links: commits what it gets a little later, and records everything."""

    def __init__(
        self,
        network: Network,
        index: int,
        peers: list[int],
        incarnation: int,
        limits: LinkLimits = LIMITS,
        handoffs: dict[int, HandoffLog] | None = None,
        received: dict[int, tuple[int, int]] | None = None,
        kept_refusals: dict[int, list[tuple[int, list[tuple[int, int]]]]] | None = None,
        versions: tuple[int, int] = (envelope.OLDEST_VERSION, envelope.VERSION),
        former: bool = False,
    ) -> None:
        """`former`: as the release before greetings had versions, which sent 0 there and did not read the field."""
        self.network = network
        self.index = index
        self.incarnation = incarnation
        self.publisher = Publisher()
        self.stopped = False
        self.former = former
        self.has_handoffs = bool(handoffs)
        self.sequenced: dict[int, list[int]] = defaultdict(list)  # by peer: numbers of entries
        self.volatile: dict[int, list[int]] = defaultdict(list)
        self.commits: dict[int, deque[tuple[float, int]]] = defaultdict(deque)
        self.commit_delay = 0.0
        self.committed: dict[int, tuple[int, int]] = dict(received or {})  # the store: survives if a test wants it
        self.acked: dict[int, int] = defaultdict(lambda: -1)
        self.refusals: list[tuple[int, int, int, int]] = []
        self.known: dict[int, int] = {}
        self.losses: list[tuple[int, int, int]] = []
        self.log: list[tuple[Any, ...]] = []
        self.wants: dict[int, dict[tuple[bytes, bytes | None], Change]] = defaultdict(dict)
        self.told_anew: dict[int, dict[tuple[bytes, bytes | None], Change]] = {}
        self.taken: dict[int, int] = defaultdict(int)
        self.refuse: Callable[[int], list[tuple[int, int]]] = lambda _: []
        self.links = {
            peer: Link(
                sibling(index),
                sibling(peer),
                incarnation,
                self.publisher,
                self,
                self._sender(peer),
                limits,
                network.now,
                handoff=(handoffs or {}).get(peer),
                received=(received or {}).get(peer, (0, 0)),
                refusals=(kept_refusals or {}).get(peer, ()),
                versions=versions,
            )
            for peer in peers
        }

    def _sender(self, peer: int) -> Callable[[list[Any]], bool]:
        send = self.network.sender(self.index, peer)
        return lambda frames: send(self._as_said(frames))

    def _as_said(self, frames: list[Any]) -> list[Any]:
        first = frames[0]
        if not self.former or first[PREFIX_BYTES] not in (Kind.HELLO, Kind.WELCOME):
            return frames
        assert len(first) == HEAD_END + GREETING.size
        assert first[VERSION_AT] == 2
        return [with_versions(first, 0)]

    # Events
    def batch(
        self,
        peer: int,
        volatile: memoryview | None,
        sequenced: memoryview | None,
        payloads: list[Any],
        sequence: int,
    ) -> None:
        assert (sequenced is None) == (sequence == 0)
        volatile_frames = sum(1 for entry_flags in _flags(volatile) if entry_flags & envelope.OWN_FRAME)
        if volatile is not None:
            self.volatile[peer] += [e.number for e in decode_entries(volatile, payloads[:volatile_frames])]
        if sequenced is not None:
            self.sequenced[peer] += [e.number for e in decode_entries(sequenced, payloads[volatile_frames:])]
            self.commits[peer].append((self.network.now + self.network.random.random() * self.commit_delay, sequence))

    def acknowledged(self, peer: int, ticket: int) -> None:
        assert ticket >= self.acked[peer]
        self.acked[peer] = ticket

    def refused(self, peer: int, batch: Undelivered, refusals: Sequence[tuple[int, int]]) -> None:
        # a batch in a hand-off log is acked before the peer has received it
        assert self.has_handoffs or batch.ticket > self.acked[peer]
        assert [position for position, _ in refusals] == sorted({position for position, _ in refusals})
        self.refusals += [(peer, batch.ticket, position, reason) for position, reason in refusals]

    def refusals_known(self, peer: int, number: int) -> None:
        self.known[peer] = number

    def lost(self, peer: int, batches: list[Undelivered], ticket: int) -> None:
        self.losses.append((peer, sum(batch.entries_count for batch in batches), ticket))

    def interest(self, peer: int, changes: list[Change]) -> None:
        for change in changes:
            if change.members:
                self.wants[peer][change.filter, change.group] = change
            else:
                self.wants[peer].pop((change.filter, change.group), None)

    def interest_snapshot(self, peer: int, entries: list[Change], first: bool, last: bool) -> None:
        if first:
            self.told_anew[peer] = {}
        self.told_anew[peer] |= {(entry.filter, entry.group): entry for entry in entries}
        if last:
            self.wants[peer] = self.told_anew.pop(peer)

    def interest_taken(self, peer: int, number: int) -> None:
        assert number > self.taken[peer]
        self.taken[peer] = number

    def answered(self, peer: int) -> None:
        pass

    def ready(self, peer: int) -> None:
        self.log.append(("ready", peer))

    def away(self, peer: int) -> None:
        self.log.append(("away", peer))

    def unconfirmed(self, peer: int) -> None:
        self.log.append(("unconfirmed", peer))

    def incompatible(self, peer: int, oldest: int, newest: int) -> None:
        self.log.append(("incompatible", peer, oldest, newest))

    def gone(self, peer: int, incarnation: int) -> None:
        self.log.append(("gone", peer, incarnation))
        self.taken[peer] = 0

    # The tick
    def step(self) -> None:
        now = self.network.now
        for peer, link in self.links.items():
            channel = self.network.channels[peer, self.index]
            while channel and channel[0][0] <= now:
                link.receive(self._as_said(channel.popleft()[1]), now)
            commits = self.commits[peer]
            while commits and commits[0][0] <= now:
                sequence = commits.popleft()[1]
                position = link.position(sequence)
                if position[0] == link.position(0)[0]:
                    self.committed[peer] = position
                link.commit(sequence, self.refuse(sequence))
        self.publisher.seal()
        for link in self.links.values():
            link.writable(now)  # as if the descriptor were readable: a flush that tries the transport again


def _flags(part: memoryview | None) -> list[int]:
    return [] if part is None else [part[at] for at, _, _ in envelope._walk(part)]


class World:
    """Workers 0..n-1 and their network; steps of 10 ms, ticks of 150 ms."""

    def __init__(self, count: int, seed: int = 1, limits: LinkLimits = LIMITS) -> None:
        self.network = Network(seed)
        self.count = count
        self.limits = limits
        self.number = 0
        self.submitted: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.submitted_volatile: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.tickets: dict[tuple[int, int], int] = defaultdict(int)
        self.workers = [self.start(i, 1) for i in range(count)]
        self._ticked_at = 0.0

    def start(self, index: int, incarnation: int, **options: Any) -> Worker:
        peers = [peer for peer in range(self.count) if peer != index]
        return Worker(self.network, index, peers, incarnation, self.limits, **options)

    def run(self, seconds: float, each: Callable[[], None] = lambda: None) -> None:
        end = self.network.now + seconds
        while self.network.now < end:
            self.network.now += 0.01
            each()
            tick = self.network.now - self._ticked_at >= 0.15
            if tick:
                self._ticked_at = self.network.now
            for worker in self.workers:
                if worker.stopped:
                    continue
                worker.step()
                if tick:
                    for link in worker.links.values():
                        link.tick(self.network.now)

    def submit(
        self, source: int, target: int, entries: int = 3, volatile: int = 0, size: int = 20, hold: bool = False
    ) -> int:
        """Submit entries; return the ticket."""
        numbers = list(range(self.number, self.number + entries + volatile))
        self.number += len(numbers)
        ticket = self.tickets[source, target]
        self.tickets[source, target] += 1
        made = [Entry(b"t", bytes(size), number, own_frame=size > 4096) for number in numbers]
        part, frames = encode_entries(made[:entries])
        volatile_part, volatile_frames = encode_entries(made[entries:])
        self.submitted[source, target] += numbers[:entries]
        self.submitted_volatile[source, target] += numbers[entries:]
        self.workers[source].links[target].submit(
            volatile_part or None, part or None, list(volatile_frames), list(frames), ticket, hold=hold
        )
        return ticket

    def kill(self, index: int) -> Worker:
        """SIGKILL: the content of its sockets is lost. The supervisor has not notified anybody yet."""
        dead = self.workers[index]
        dead.stopped = True
        for (source, target), channel in self.network.channels.items():
            if index in (source, target):
                channel.clear()
        return dead

    def check_quiet(self) -> None:
        for worker in self.workers:
            for peer, link in worker.links.items():
                assert link.ready
                assert not link.away
                assert not link.full
                assert link.unacknowledged == 0
                assert link.handoff_bytes == 0
                assert link.outbox_bytes == sum(size for _, size in link.out.flight)
                assert worker.acked[peer] == self.tickets[worker.index, peer] - 1


def is_full(link: Link) -> bool:
    """A call, which a type checker does not narrow to a constant."""
    return link.full


def is_away(link: Link) -> bool:
    return link.away


def both(world: World) -> list[tuple[int, int]]:
    return [(a, b) for a in range(world.count) for b in range(world.count) if a != b]
