"""One worker without its process: a Node, its links and its connections, driven as broker.worker.process
drives them.

Real parts: Node with all of pyx but the reactor, Link, and of zmq_mesh.mesh.Mesh everything but the
sockets (awake, flush, tick, down). Imitated parts, which must be kept in sync: the reactor's end of a round and its
reading (pyx.io.reactor.round_end, close_asked, flush, read), broker.worker.process.Worker (its tick), and beside it
mesh.WorkerMesh (coalescing) and handoffs.Handoffs.

A worker ends between two ticks. The effect depends on the mode:

volatile    the memory store: sessions, log, hand-off and retained messages are lost with the worker; a new Node starts.
survives    a store that keeps (tests.kept_store), on a disk with latency: batches become durable in their order,
            each some milliseconds later. A kill leaves only what was durable, and sometimes
            some batches more; a new Node is made of these by broker.worker.recovery and
            broker.persistence.handoff_log, as in a worker that starts. Lost is what was only in RAM: every connection
            (with its bytes in both directions, pending acks and open questions), every session that ends with its
            connection, QoS 0 in transit. Siblings keep the interest of a worker that is gone.

"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.logs import Log
from broker.persistence.handoff_log import kept_links
from broker.worker.core import Node
from broker.worker.recovery import Recovered
from leveldb_store.contract import Store
from leveldb_store.memory import MemoryStore
from pyx.core.peer import Peer, sibling
from pyx.delivery.connection import Connection
from pyx.mesh.link import Link
from pyx.mesh.receiver import Receiver
from tests.kept_archive import KeptArchive
from tests.kept_store import KeptStore
from tests.mesh_messages import BATCH
from tests.simulation import checkers, readers
from tests.simulation.clock import WallClock
from zmq_mesh.contract import Outlet
from zmq_mesh.envelope import decode_entries
from zmq_mesh.interest import Publisher
from zmq_mesh.mesh import Mesh

if TYPE_CHECKING:
    from tests.simulation.network import Line
    from tests.simulation.world import World

__all__ = ["Worker"]

OPEN, CLOSING, CLOSED = 2, 3, 4
TIMER_SECONDS = 0.1
HANDOFF_SECONDS = 5.0


class QuietLog(Log):
    """Forwards the broker's log lines when the run is printed."""

    __slots__ = ("_say",)

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self._say = say

    def emit(self, level: str, event: str, **fields: Any) -> None:
        if self._say is not None:
            self._say(f"{level} {event} " + " ".join(f"{name}={value}" for name, value in fields.items()))

    def debug(self, event: str, **fields: Any) -> None:
        self.emit("debug", event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        self.emit("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self.emit("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self.emit("error", event, **fields)

    def write(self, level: str, event: str, **fields: Any) -> None:
        self.emit(level, event, **fields)

    def allows(self, event: str) -> bool:  # noqa: ARG002
        return self._say is not None

    def flush(self) -> None:
        pass


class SimulatedNode(Node):
    """Reports its drops to the world."""

    def __init__(self, worker: Worker, log: Log, store: Store) -> None:
        self.worker = worker
        world, clock = worker.world, worker.clock
        super().__init__(
            worker.index, world.workers_count, world.settings, store, log, clock.monotonic_ms, clock.broker_ms,
            clock_cell=world.clock_cell,
        )  # fmt: skip
        if world.seed % 2:  # messages logged under more filters are appended in pieces
            self.router.journal.indexes_at_once = 1 + world.seed // 2 % 3
        if world.seed % 3:  # ... and messages of a sibling's batch are taken one at a time
            self.router.state.batch_turn = 1

    def queue_full(self, session: Any, dropped: int) -> None:
        self.worker.world.queue_dropped(session.client_id, dropped)
        super().queue_full(session, dropped)


class SimulatedTransport:
    """The channels of one worker as the transport of its mesh; the worker passes on what arrives."""

    malformed = 0
    is_immediate = False

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def listen(self, receiver: Receiver) -> None:
        """Implements Transport."""

    def connect(self, peer: Peer, when_writable: Callable[[], object]) -> Outlet:  # noqa: ARG002  channels wake workers
        """Implements Transport."""
        channel = self._worker.world.channels[self._worker.index, peer]
        return Outlet(channel.send, channel.reconnect, None)

    def receive(self) -> bool:
        """Implements Transport."""
        return False

    def go_on(self) -> None:
        """Implements Transport."""

    def tick(self) -> None:
        """Implements Transport."""

    def close(self) -> None:
        """Implements Transport."""


class Worker:
    """The counterpart of broker.worker.process.Worker, without a process."""

    node: SimulatedNode
    mesh: Mesh

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.clock = world.clock
        self.index = index
        self.incarnation = 0
        self.alive = False
        self.stopped = False
        self.listening = False
        self.backlog: list[Line] = []
        """Connections accepted by the kernel; they outlive the process."""
        self.handed: deque[tuple[Line, bytes, float]] = deque()
        """Lines from other workers with the bytes read from them and their deadline; they outlive the process too."""
        self.wall_clock = WallClock(world.clock)
        archive = KeptArchive([readers.ARCHIVED.encode()]) if world.archives else None
        self.disk = KeptStore(manual=True, archive=archive)
        """The disk, which outlives the process (survives)."""
        self._written = 0
        self._durable_at = 0.0
        self._stored_due = False
        self._recovered: Recovered | None = None
        self.lines: dict[Connection, Line] = {}
        self._waiting: list[tuple[Line, int, bytes, float]] = []
        self._inbox: deque[tuple[int, list[bytes]]] = deque()
        self._controls: list[tuple[int, int]] = []
        self._awake_due = False
        self._timer_due = False
        self._again = False

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Start a new process: with nothing (volatile), or with the content of the disk (survives)."""
        world = self.world
        self.incarnation += 1
        self.alive, self.stopped, self.listening = True, False, False
        self.lines, self._waiting = {}, []
        self._inbox.clear()
        self._controls.clear()
        self._awake_due = self._again = False
        self._new_node()
        node = self.node
        siblings = node.siblings
        self._recovered = node.recovery.run()
        kept = kept_links(node.context, node.set_aside, node.peering)
        self.mesh = Mesh(
            node.context.own,
            siblings,
            self.incarnation,
            node.interest or Publisher(),
            node.peering,
            world.link_limits,
            self.clock.now,
            SimulatedTransport(self),
            handoffs=kept.handoffs,
            received=kept.received,
            refusals=kept.refusals,
            batches=node.peering.batches,
        )
        node.router.commit()
        node.links = self.mesh.links
        if not siblings:
            self._listen()
        for channel in world.channels_to(self.index):
            channel.target_started()
        self._on_timer(self.incarnation)

    def _new_node(self) -> None:
        world = self.world
        index = self.index
        say = None if world.say is None else (lambda text: world.tell(f"worker {index}: {text}"))
        if world.survives and self.incarnation > 1:
            self.disk = self.disk.after_crash()
        self._written = len(self.disk.batches)
        self._stored_due = False
        self.node = node = SimulatedNode(self, QuietLog(say), self.disk if world.survives else MemoryStore())
        node.hand_over = self._hand_over
        node.peers_changed = self._peers_changed
        node.flush_mesh = self._flush_mesh
        node.replaying.wake = node.retaining.wake = self.wake

    def kill(self) -> None:
        """SIGKILL between two ticks."""
        world = self.world
        if world.survives and self.clock.chance(0.5):
            # the disk has more than this worker was notified of
            self.disk.sync(self.clock.random.randrange(len(self.disk.batches) - self.disk.durable + 1))
        lost = {peer: kept_payloads(link) for peer, link in self.mesh.links.items() if link.handoff_bytes}
        shares = self._shares()
        self.alive = self.stopped = self.listening = False
        for line in [*self.lines.values(), *(each[0] for each in self._waiting)]:
            line.end_down(reset=True)
        for conn in self.lines:
            self.node.router.state.discard_output(conn)
        for channel in world.channels_to(self.index):
            channel.target_died()
        for peer in self.node.siblings:
            if self.clock.chance(0.5):
                world.channels[self.index, peer].lose()
        world.worker_killed(self.index, lost, shares, checkers.booked_losses(self.node))
        self.node.router.abandon()

    def _shares(self) -> list[bytes]:
        """Return the payloads that this worker's memory holds for share groups: in sessions, links and unsent batches.
        (survives: in sessions that end with their connection, and on the way from such a session to another member.)
        """
        node = self.node
        shares = [
            bytes(m.payload)
            for session in node.sessions
            if not (self.world.survives and session.durable)
            for m, _, shared in session.held()
            if shared
        ]
        streams = [link.stream for link in self.mesh.links.values()]
        kept = [
            item
            for stream in streams
            for item in stream.kept
            if item.kind == BATCH
            if not (self.world.survives and item.stored and item.sequence < (stream.holds or [item.sequence + 1])[0])
        ]
        parts: list[tuple[Any, Any]] = [(item.part, item.payloads) for item in kept]
        for peer in node.siblings:
            taken = node.router.peers.take(peer)
            if taken is not None and taken[1] is not None:
                parts.append((taken[1], taken[3]))
        return shares + [
            bytes(entry.payload)
            for part, payloads in parts
            for entry in decode_entries(memoryview(part), [memoryview(payload) for payload in payloads])
            if entry.shared is not None
        ]

    # ------------------------------------------------------------ the disk

    def _write(self) -> None:
        """Let the writer thread take the flushed batches."""
        if not self.world.survives or len(self.disk.batches) == self._written:
            return
        self._written = written = len(self.disk.batches)
        clock, incarnation = self.clock, self.incarnation
        self._durable_at = max(self._durable_at, clock.now + clock.between(0.00005, self.world.disk_seconds))
        clock.at(self._durable_at, lambda: self._wrote(incarnation, written))

    def _wrote(self, incarnation: int, batches: int) -> None:
        if incarnation == self.incarnation and self.alive:
            self.disk.sync(batches - self.disk.durable)
            self._stored_due = True
            self.wake()

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def proceed(self) -> None:
        """SIGCONT."""
        if not self.alive or not self.stopped:
            return
        self.stopped = False
        if self._timer_due:
            self._timer_due = False
            self._on_timer(self.incarnation)
        self.wake()

    @property
    def running(self) -> bool:
        """Whether it is alive and not stopped."""
        return self.alive and not self.stopped

    # ------------------------------------------------------------ events that wake it

    def wake(self) -> None:
        """Make the loop run soon, because of an event."""
        if self.alive and not self._awake_due:
            self._awake_due = True
            incarnation = self.incarnation
            self.clock.after(self.clock.between(0.00001, self.world.loop_seconds), lambda: self._loop(incarnation))

    def mesh_input(self, peer: int, frames: list[bytes]) -> None:
        self._inbox.append((peer, frames))
        self.wake()

    def line_readable(self, line: Line) -> None:  # noqa: ARG002
        self.wake()

    def line_writable(self, line: Line) -> None:  # noqa: ARG002
        self.wake()

    def connected(self, line: Line) -> None:
        """Handle a connection that the kernel accepted for this worker's socket."""
        self.backlog.append(line)
        self.wake()

    def writable(self, peer: int) -> None:
        """Handle a transport to that peer that accepts messages again."""
        if self.running:
            self.mesh.links[sibling(peer)].writable(self.clock.now)

    def sibling_down(self, peer: int, incarnation: int) -> None:
        """Handle the supervisor's notice that it reaped that incarnation."""
        if self.alive:
            self._controls.append((peer, incarnation))
            self.wake()

    # ------------------------------------------------------------ the loop

    def _loop(self, incarnation: int) -> None:
        if incarnation != self.incarnation or not self.alive:
            return
        self._awake_due = False
        if self.stopped:
            return  # `proceed` wakes it again
        controls, self._controls = self._controls, []
        for peer, dead in controls:
            self.mesh.down(sibling(peer), dead)
            self.finish()
        if self._inbox and self.clock.chance(0.7):
            self._on_mesh()
        if self._stored_due:
            self._stored_due = False
            self.node.router.journal.durable(self.disk.collect())
            self.finish()
        if self._client_work():
            self._poll()
        if self._inbox:
            self._on_mesh()
        for work in (self.node.replaying, self.node.retaining):
            if work.has_work:
                work.run()
                self.finish()
                if work.has_work:
                    self.wake()
        self.world.after_tick(self)

    def _client_work(self) -> bool:
        return (
            self._again
            or (self.listening and bool(self.backlog or self.handed))
            or any(line.up or line.up_ended or line.want_write for line in self.lines.values())
        )

    def _poll(self) -> None:
        if not self.mesh.awake(self.clock.now):
            self._on_mesh()
            return  # looked at again when a sibling or the timer wakes the loop
        clock = self.clock
        self._set_time()
        if self._again:
            self._again = self.node.dispatch.take_carried()
        self._accept()
        lines = list(self.lines.values())
        clock.random.shuffle(lines)
        for line in lines:
            if line.want_write and not line.full:
                line.want_write = False
                self._flush(line)
            if line.up or line.up_ended:
                self._read(line)
        self._round()
        if self._again:
            self.wake()

    def _accept(self) -> None:
        if not self.listening:
            return
        backlog, self.backlog = self.backlog, []
        for line in backlog:
            self._adopt(line)
        while self.handed:
            line, raw, deadline = self.handed.popleft()
            conn = self._adopt(line)
            if deadline <= self.clock.now:
                self.node.dispatch.learn_version(conn, raw)
                self.node.closing.unavailable(conn, "its worker did not take it in time")
            else:
                self.node.dispatch.feed(conn, raw)

    def _adopt(self, line: Line) -> Connection:
        conn = Connection()
        conn.opened = self.clock.monotonic_ms
        line.conn, line.worker = conn, self
        self.lines[conn] = line
        return conn

    def _read(self, line: Line) -> None:
        conn = line.conn
        assert conn is not None
        if conn not in self.lines:
            return
        if conn.state >= CLOSING:
            line.up.clear()
        elif conn.paused and not line.up_reset:
            return
        elif line.up and not line.up_reset:
            most = self.world.settings.limits.tick_connection_bytes_max
            if self.clock.chance(0.2):
                most = self.clock.random.randrange(1, 40)
            data = bytes(line.up[:most])
            del line.up[:most]
            self.node.dispatch.feed(conn, data)
            self._again = True  # the packet budget of the tick may have left some packets
            if line.up:
                self.wake()
                return
        if line.up_ended and conn in self.lines:
            if conn.state < CLOSING:
                conn.state = CLOSING
            self.node.closing.closed(conn, 0, "connection lost")
            self._end(line)

    # ------------------------------------------------------------ the end of a round (pyx.io.reactor)

    def _set_time(self) -> None:
        clock = self.clock
        self.node.router.state.set_time(clock.monotonic_ms, clock.broker_ms, self.wall_clock.us)

    def finish(self) -> None:
        """The end of a round for work that no client caused."""
        self._set_time()
        self._round()

    def _round(self) -> None:
        router = self.node.router
        for _ in range(4):
            router.finish_tick()
            if router.state.closing:
                self._close_asked()
                router.finish_tick()
            resumed, router.state.resumed = router.state.resumed, []
            for conn in resumed:
                conn.paused = False
                self.node.dispatch.carry_on(conn)
                self._again = True
                self.wake()
            for conn in router.state.take_dirty():
                line = self.lines.get(conn)
                if line is not None and not line.want_write:
                    self._flush(line)
        router.finish_tick()  # made ready by _flush; its output leaves with the next round
        self._write()
        if router.state.closing or router.state.divided or router.state.unfinished or router.journal.callbacks_due:
            self._again = True
            self.wake()

    def _close_asked(self) -> None:
        router = self.node.router
        while router.state.closing:
            asked, router.state.closing = router.state.closing, []
            for conn, reason, why in asked:
                if conn.state == CLOSED:
                    continue
                self.node.closing.closed(conn, reason & 0xFF, why)
                line = self.lines.get(conn)
                if line is not None:
                    line.send_down(router.state.take_output(conn))
                    self._end(line)

    def _flush(self, line: Line) -> None:
        conn = line.conn
        assert conn is not None
        if line.full:
            line.want_write = True
            return
        data = self.node.router.state.take_output(conn)
        if data:
            line.send_down(data)

    def _end(self, line: Line) -> None:
        conn = line.conn
        assert conn is not None
        conn.state = CLOSED
        self.node.router.state.discard_output(conn)
        del self.lines[conn]
        line.end_down()

    # ------------------------------------------------------------ timers and mesh (broker.worker.process and .mesh)

    def _listen(self) -> None:
        if not self.listening:
            self.listening = True
            if self._recovered is not None:
                for _ in self._recovered.begin():
                    pass
                self._recovered = None
                self.finish()
            self.wake()

    def _peers_changed(self) -> None:
        if self.alive and not self.listening and all(link.ready for link in self.mesh.links.values()):
            self._listen()

    def _on_timer(self, incarnation: int) -> None:
        if incarnation != self.incarnation or not self.alive:
            return
        if self.stopped:
            self._timer_due = True
            return
        now = self.clock.now
        self.mesh.tick(now)
        self._mesh_state()
        self._set_time()
        if self.mesh.awake(now):
            self.node.timers.advance(self.clock.monotonic_ms)
            self._round()
        self._retry_handoffs()
        self.world.after_tick(self)
        if self._client_work() or self._inbox:
            self.wake()
        self.clock.after(TIMER_SECONDS, lambda: self._on_timer(incarnation))

    def _on_mesh(self) -> None:
        now = self.clock.now
        for _ in range(min(len(self._inbox), self.clock.random.randrange(1, 17))):
            peer, frames = self._inbox.popleft()
            self.world.channels[peer, self.index].taken()
            self.mesh.links[sibling(peer)].receive(frames, now)
        self.mesh.together.begin(now)
        self.mesh.together.end_reading()
        self._mesh_state()
        if self.node.peering.commit():
            self.node.router.peers.links_due = True
        self.finish()
        if self._inbox:
            self.wake()

    def _mesh_state(self) -> None:
        for peer, link in self.mesh.links.items():
            self.node.router.peers.peer_full(peer, link.full)

    def _flush_mesh(self) -> None:
        if self.node.links:
            self.mesh.flush(self.clock.now)

    # ------------------------------------------------------------ connections whose home is elsewhere

    def _hand_over(self, conn: Connection, worker: int, raw: bytes) -> None:
        line = self.lines.pop(conn)
        raw += conn.unread()
        conn.state = CLOSED
        self._pass_on(line, worker, raw, self.clock.now + HANDOFF_SECONDS)

    def _pass_on(self, line: Line, worker: int, raw: bytes, deadline: float) -> bool:
        home = self.world.workers[worker]
        if len(home.handed) >= 8:  # the socket is full
            if (line, worker, raw, deadline) not in self._waiting:
                self._waiting.append((line, worker, raw, deadline))
            return False
        line.worker = home
        home.handed.append((line, raw, deadline))
        home.wake()
        return True

    def _retry_handoffs(self) -> None:
        waiting, self._waiting = self._waiting, []
        for line, worker, raw, deadline in waiting:
            if deadline <= self.clock.now:
                conn = self._adopt(line)
                conn.version = line.client.version
                self.node.closing.unavailable(conn, "its worker did not take it in time")
                self._round()
            else:
                self._pass_on(line, worker, raw, deadline)


def kept_payloads(link: Link) -> list[bytes]:
    """Return the payloads of the link's hand-off log in RAM: acknowledged to publishers, and not at the peer."""
    return [
        bytes(entry.payload)
        for item in link.stream.kept
        if item.logged and not item.unloaded
        for entry in decode_entries(memoryview(item.part), [memoryview(payload) for payload in item.payloads])
    ]
