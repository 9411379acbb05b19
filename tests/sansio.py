"""Workers without sockets, processes and clock, for tests of the data path: bytes in, packets out.

`Host` is one or more Nodes with memory stores (or given ones); their links are the real ones, over lists instead of
ZeroMQ. `Peer` is an MQTT client at the other end of a Connection without a socket: its bytes are fed to the dispatch,
and the broker's are taken from the outbox. Nothing happens by itself: `Host.turn` is one tick of every worker,
`Host.settle` runs ticks until nothing moves. tests.wire builds and reads the packets; it shares no code with pyx.

The end of a round of the reactor (close connections, continue with packets left over) is imitated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from broker.config.settings import Limits, Settings
from broker.logs import Log
from broker.persistence.handoff_log import StoredLinks, kept_links
from broker.worker.core import Node
from leveldb_store.memory import MemoryStore
from pyx.core import peer as peers
from pyx.core.work import callback
from pyx.delivery.connection import Connection
from pyx.delivery.session import Session
from pyx.mesh.link import Link
from shards.placement import home
from tests import wire
from tests.kept_store import KeptStore
from tests.wire import KINDS, Packet
from zmq_mesh.barrier import Barrier
from zmq_mesh.contract import LinkLimits

OPEN, CLOSING, CLOSED = 2, 3, 4
START_MS, START_WALL_MS = 1_000, 1_800_000_000_000
DROPS = (
    "dropped_expired", "dropped_offline_qos0", "dropped_outbox_full", "dropped_connection_closed",
    "dropped_queue_full", "dropped_packet_too_large",
    "dropped_unsubscribed", "dropped_session_ended", "dropped_refused", "dropped_peer_lost", "dropped_no_member",
    "dropped_worker_lost", "dropped_overtaken",
)  # fmt: skip
DELIVERIES = ("delivered_qos0", "delivered_qos1", "delivered_qos2")


class KeptLog(Log):
    """A log that keeps the events instead of writing them."""

    __slots__ = ("events",)

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def write(self, level: str, event: str, **fields: Any) -> None:
        self.events.append((level, event, fields))

    def emit(self, level: str, event: str, **fields: Any) -> None:
        self.write(level, event, **fields)

    def debug(self, event: str, **fields: Any) -> None:
        self.write("debug", event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        self.write("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self.write("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self.write("error", event, **fields)

    def allows(self, event: str) -> bool:  # noqa: ARG002
        return True

    def flush(self) -> None:
        pass

    def named(self, event: str) -> list[dict[str, Any]]:
        return [fields for _, name, fields in self.events if name == event]


class Host:
    """The workers of one host. Keywords: `limits` as in the configuration, `stores` one for each worker, `start_ms` the
    initial time in ms; all others are settings.
    """

    def __init__(
        self,
        workers: int = 1,
        limits: dict[str, Any] | None = None,
        stores: Sequence[Any] | None = None,
        start_ms: int = START_MS,
        **settings: Any,
    ) -> None:
        self.now_ms = start_ms
        self._options = {"limits": limits, **settings}
        quiet = {"sys_interval_seconds": 0, **settings}
        self.settings = Settings(workers=workers, limits=Limits(**(limits or {})), **quiet)
        self.logs = [KeptLog() for _ in range(workers)]
        self.stores: Sequence[Any] = stores or [MemoryStore() for _ in range(workers)]
        wall_ms = START_WALL_MS + start_ms - START_MS
        cell = memoryview(bytearray(8))
        self.nodes = [
            Node(i, workers, self.settings, self.stores[i], self.logs[i], start_ms, wall_ms, clock_cell=cell)
            for i in range(workers)
        ]
        self._clocks_ahead_ms = [0] * workers
        recovered = [node.recovery.run() for node in self.nodes]
        self.peers: list[Peer] = []
        self.peer_of: dict[Connection, Peer] = {}
        self.held: set[tuple[int, int]] = set()
        """Pairs (from, to): batches between these workers wait."""
        self._under_way: dict[tuple[int, int], deque[list[Any]]] = {}
        self._ended: set[Connection] = set()
        self.barriers: list[Barrier] = []
        for node in self.nodes:
            kept = kept_links(node.context, node.set_aside, node.peering)
            links: dict[peers.Peer, Link] = {}
            self.barriers.append(Barrier(links, LinkLimits().link_silence_seconds_max))
            links.update({peer: self._link(node, peer, kept) for peer in node.siblings})
            node.links = links
            node.flush_mesh = lambda node=node: self._flush(node)  # type: ignore[misc]
        for node in self.nodes:
            for link in node.links.values():
                link.tick(self.now)
        self.settle()
        for each in recovered:
            for _ in each.begin():
                pass
        self.settle()

    @property
    def node(self) -> Node:
        """The only node, or the first one."""
        return self.nodes[0]

    @property
    def now(self) -> float:
        return self.now_ms / 1000

    def _link(self, node: Node, peer: peers.Peer, kept: StoredLinks) -> Link:
        line: deque[list[Any]] = deque()
        self._under_way[node.index, peer] = line

        def send(frames: list[Any]) -> bool:
            line.append([bytes(memoryview(frame)) for frame in frames])
            return True

        assert node.interest is not None
        return Link(
            node.context.own,
            peer,
            1,
            node.interest,
            node.peering,
            send,
            LinkLimits(),
            self.now,
            handoff=kept.handoffs.get(peer),
            received=kept.received.get(peer, (0, 0)),
            refusals=kept.refusals.get(peer, ()),
            barrier=self.barriers[node.index],
            batches=node.peering.batches,
        )

    @callback("forward")
    def _flush(self, node: Node) -> None:
        assert node.interest is not None
        node.interest.seal()
        self.barriers[node.index].submitted(self.now)
        for link in node.links.values():
            link.flush(self.now)

    # ------------------------------------------------------------ time

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, in steps of 100 ms with a tick each, and run timers."""
        until = self.now_ms + int(seconds * 1000)
        while self.now_ms < until:
            self.now_ms = min(until, self.now_ms + 100)
            for node in self.nodes:
                self._set_time(node)
                node.timers.advance(self.now_ms)
                for link in node.links.values():
                    link.tick(self.now)
                self.barriers[node.index].check(self.now)
            self.turn()
        self.settle()

    def _set_time(self, node: Node) -> None:
        wall_ms = START_WALL_MS + self.now_ms - START_MS + self._clocks_ahead_ms[node.index]
        node.router.state.set_time(self.now_ms, clock_us=wall_ms * 1000)

    def step_clock(self, worker: int, seconds: float) -> None:
        """Set the wall clock of this worker forward by `seconds`."""
        self._clocks_ahead_ms[worker] += int(seconds * 1000)
        self._set_time(self.nodes[worker])

    def turn(self) -> bool:
        """Run one tick of every worker; return whether anything moved."""
        moved = False
        for node in self.nodes:
            moved = self.turn_of(node) or moved
        return moved

    def turn_of(self, node: Node) -> bool:
        """Run one tick of this worker; return whether anything moved."""
        moved = node.dispatch.take_carried()
        if self.hear(node):
            moved = True
            node.forward()
        for work in (node.replaying, node.retaining):
            if work.has_work:
                work.run()
                moved = True
        node.router.finish_tick()
        moved = self.close_asked(node) or node.router.state.unfinished or node.router.state.divided or moved
        moved = node.router.journal.callbacks_due or moved
        moved = self._commit(node) or moved
        self._resume(node)
        if node.peering.commit():
            node.forward()
        moved = self._send(node) or moved
        for conn in self._ended:
            node.router.state.discard_output(conn)
        self._ended.clear()
        return moved

    def settle(self) -> None:
        """Run ticks until nothing moves any more; raise AssertionError after 10,000."""
        for _ in range(10_000):
            if not self.turn() and not self._is_under_way():
                return
        raise AssertionError("the workers never come to rest")

    def _is_under_way(self) -> bool:
        return any(line and way not in self.held for way, line in self._under_way.items())

    def _commit(self, node: Node) -> bool:
        node.disk.look()
        if not node.store.keeps or (ticket := node.store.collect()) <= node.router.journal.durable_ticket:
            return False
        node.router.journal.durable(ticket)
        node.router.finish_tick()
        return True

    def _resume(self, node: Node) -> None:
        resumed, node.router.state.resumed = node.router.state.resumed, []
        for conn in resumed:
            conn.paused = False
            node.dispatch.carry_on(conn)

    def hear(self, node: Node) -> bool:
        """Let this worker's links take what has arrived; return whether there was anything."""
        heard = False
        for peer in node.siblings:
            line = self._under_way[peer, node.index]
            while line and (peer, node.index) not in self.held:
                node.links[peer].receive(line.popleft(), self.now)
                heard = True
        if heard:
            self.barriers[node.index].check(self.now)
        return heard

    def close_asked(self, node: Node) -> bool:
        moved = False
        while node.router.state.closing:
            moved = True
            asked, node.router.state.closing = node.router.state.closing, []
            for conn, reason, why in asked:
                node.guard(conn, node.closed, conn, reason & 0xFF, why)
                self._ended.add(conn)
            node.router.finish_tick()
        return moved

    def _send(self, node: Node) -> bool:
        moved = False
        for conn in node.router.state.take_dirty():
            peer = self.peer_of.get(conn)
            if peer is not None and not peer.stalled:
                moved = peer.take() or moved
        return moved

    def kill(self, worker: int) -> None:
        """Kill a worker as by SIGKILL: cut its links, and notify its siblings that it was reaped."""
        for node in self.nodes:
            if node.index != worker:
                self.held |= {(worker, node.index), (node.index, worker)}
                node.links[peers.sibling(worker)].down(1)
        self.settle()

    def crash(self, seconds: float = 0) -> Host:
        """Return the host as it is if all workers are killed now, and new ones start `seconds` later with the durable
        content of their stores (KeptStore). This host is not changed.
        """
        stores = [store.after_crash() for store in self.stores if isinstance(store, KeptStore)]
        return Host(len(self.nodes), stores=stores, start_ms=self.now_ms + int(seconds * 1000), **self._options)

    # ------------------------------------------------------------ clients

    def open(self, version: int = 4, worker: int = 0) -> Peer:
        """Open a connection, without CONNECT."""
        peer = Peer(self, self.nodes[worker], version)
        self.peers.append(peer)
        return peer

    def connect(self, client_id: str, version: int = 4, **options: Any) -> Peer:
        """Connect a client at its home, and take CONNACK. `expiry`: Session Expiry Interval of a v5 client."""
        expiry = options.pop("expiry", None)
        if expiry is not None:
            options["properties"] = {**options.get("properties", {}), "session_expiry_interval": expiry}
        peer = self.open(version, home(client_id, len(self.nodes)))
        peer.client_id = client_id
        peer.send(wire.connect(version, client_id, **options))
        self.settle()
        connack = peer.next("CONNACK")
        assert connack.reason == 0, connack
        peer.session_present = connack.session_present
        return peer

    def lose(self, peer: Peer) -> None:
        """End the connection from the client's side, without DISCONNECT."""
        conn = peer.conn
        if conn.state < CLOSING:
            peer.node.router.state.close(conn, 0, "lost")
        self.settle()

    # ------------------------------------------------------------ the books

    def counters(self, worker: int | None = None) -> dict[str, int]:
        """Return the counters of one worker, or their sums over all."""
        rows = [node.counters.as_dict() for node in (self.nodes if worker is None else [self.nodes[worker]])]
        return {name: sum(row[name] for row in rows) for name in rows[0]}

    def waiting(self) -> int:
        """Return the number of matched copies that are neither delivered nor dropped: in windows, in sessions'
        own queues, of QoS 0 in outboxes, and of share groups whose session has left.
        """
        of_sessions = sum(session.unacknowledged + session.queued for node in self.nodes for session in node.sessions)
        of_nobody = sum(node.router.ending.shares_left for node in self.nodes)
        return int(of_sessions + of_nobody) + sum(peer.conn.pending_qos0 for peer in self.peers)

    def check_books(self) -> None:
        """Assert that matched = delivered + dropped + waiting [architecture.md, What goes wrong]."""
        row = self.counters()
        settled = sum(row[name] for name in (*DELIVERIES, *DROPS))
        assert row["matched"] == settled + self.waiting(), {
            name: value for name, value in row.items() if value and name in (*DELIVERIES, *DROPS, "matched")
        } | {"waiting": self.waiting()}


class Peer:
    """A client. `stalled`: it takes no output, as if the kernel's buffers were full."""

    def __init__(self, host: Host, node: Node, version: int) -> None:
        self.host = host
        self.node = node
        self.version = version
        self.conn = Connection()
        host.peer_of[self.conn] = self
        self.stalled = False
        self.client_id = ""
        self.session_present = False
        self.packets: deque[Packet] = deque()
        self._bytes = b""
        self._packet_id = 0

    @property
    def session(self) -> Session:
        session = self.node.sessions.get(self.client_id)
        assert session is not None
        return session

    @property
    def closed(self) -> bool:
        return self.conn.state >= CLOSING

    # ------------------------------------------------------------ bytes

    def send(self, *packets: bytes) -> None:
        """Feed packets to the dispatch, without a tick."""
        self.node.dispatch.feed(self.conn, b"".join(packets))

    def take(self) -> bool:
        """Take the output for this client and decode it; return whether there was any."""
        out = self.node.router.state.take_output(self.conn)
        self._bytes += out
        self.packets.extend(self._whole())
        return bool(out)

    def _whole(self) -> Iterator[Packet]:
        while len(self._bytes) >= 2:
            length = shift = 0
            at = 1
            while at < len(self._bytes):
                length |= (self._bytes[at] & 0x7F) << shift
                shift += 7
                at += 1
                if not self._bytes[at - 1] & 0x80:
                    break
            else:
                return
            if len(self._bytes) < at + length:
                return
            first, body = self._bytes[0], self._bytes[at : at + length]
            self._bytes = self._bytes[at + length :]
            yield wire.decode(self.version, first & 15, KINDS[first >> 4], body)

    # ------------------------------------------------------------ packets

    def next(self, kind: str) -> Packet:
        """Return the next packet, which must be of this kind."""
        if not self.packets:
            self.host.settle()
        assert self.packets, f"{kind} expected, nothing came"
        packet = self.packets.popleft()
        assert packet.kind == kind, f"{kind} expected: {packet}"
        return packet

    def silent(self) -> None:
        """Assert that no further packet arrives."""
        self.host.settle()
        assert not self.packets, self.packets

    def subscribe(self, *filters: tuple[str, int], identifier: int = 0) -> list[int]:
        properties = {"subscription_identifier": [identifier]} if identifier else {}
        self.send(wire.subscribe(self.version, self.packet_id(), *filters, properties=properties))
        self.host.settle()
        return list(self.next("SUBACK").codes)

    def unsubscribe(self, *filters: str) -> None:
        self.send(wire.unsubscribe(self.version, self.packet_id(), *filters))
        self.host.settle()
        self.next("UNSUBACK")

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **options: Any) -> int:
        """Send a PUBLISH, leave its acks to the caller; return its Packet Identifier."""
        packet_id = self.packet_id() if qos else 0
        self.send(wire.publish(self.version, topic, payload, qos=qos, packet_id=packet_id, **options))
        return packet_id

    def ack(self, kind: str, packet_id: int, reason: int = 0) -> None:
        self.send(wire.ack(self.version, kind, packet_id, reason))

    def packet_id(self) -> int:
        self._packet_id = self._packet_id % 65535 + 1
        return self._packet_id

    def receive(self, accept: Callable[[Packet], bool] = lambda _: True) -> list[Packet]:
        """Take and acknowledge every PUBLISH, discard other packets, return those that `accept` accepts."""
        got: list[Packet] = []
        while True:
            self.host.settle()
            if not self.packets:
                return got
            while self.packets:
                packet = self.packets.popleft()
                if packet.kind == "PUBLISH":
                    if accept(packet):
                        got.append(packet)
                    if packet.qos:
                        self.ack("PUBACK" if packet.qos == 1 else "PUBREC", packet.packet_id)
                elif packet.kind == "PUBREL":
                    self.ack("PUBCOMP", packet.packet_id)

    def disconnect(self) -> None:
        self.send(wire.disconnect(self.version))
        self.host.settle()
