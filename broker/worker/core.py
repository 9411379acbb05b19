"""A worker without its sockets and clock: router, sessions, store, links and the decisions of the slow paths, wired up.

`broker.worker.process` gives it sockets, time and the mesh; the simulation gives it a seeded clock and network instead.
It is the `handler` of the router, of the dispatch and of the reactor: everything that needs a decision ends in one of
its methods.

The links are anything with the faces of `zmq_mesh.links.Link` (submit, commit, ready, away, full), by worker index.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.admin.sys_topics import SysTopics
from broker.clients.authenticating import Authenticating
from broker.clients.capacity import Room
from broker.clients.connecting import Connecting
from broker.clients.endings import Endings
from broker.clients.retaining import Retaining
from broker.clients.sessions import Sessions
from broker.clients.subscribing import Subscribing
from broker.clients.wills import Wills
from broker.config.data_path import fill
from broker.config.share_groups import rule_of
from broker.persistence.disk import Disk
from broker.persistence.recording import Recording
from broker.persistence.set_aside import SetAside
from broker.persistence.state_records import Custody
from broker.piecework import AT_ONCE, Piecework
from broker.replay.opening import Opening
from broker.replay.replaying import Replaying
from broker.worker.gauges import Gauges
from broker.worker.peering import Peering
from pyx.core import counters as count
from pyx.core.counters import Row
from pyx.core.limits import Limits
from pyx.core.steps import Steps
from pyx.core.timers import TimerWheel
from pyx.core.work import STEP, spend
from pyx.delivery.router import STRATEGIES, WAITS_FLAG, Router
from pyx.io.dispatch import Dispatch
from pyx.matching.retained import Retained
from pyx.matching.subscriptions import Subscriptions
from pyx.protocol.reasons import ReasonCode
from zmq_mesh.interest import Publisher

if TYPE_CHECKING:
    from broker.config.settings import Settings
    from broker.logs import Log
    from leveldb_store.contract import Store
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session

__all__ = ["Node"]

_EVERY_SWEEP_MS = 1000


class Node:
    """One worker's broker. `now_ms`: monotonic ms at start; `wall_ms`: the broker's time (`shards.clock`);
    `clock_cell`: of its host (`pyx.core.clock`).
    """

    def __init__(
        self,
        index: int,
        workers: int,
        settings: Settings,
        store: Store,
        log: Log,
        now_ms: int,
        wall_ms: int,
        row: Any = None,
        hand_over: Callable[[Connection, int, bytes], None] | None = None,
        clock_cell: memoryview | None = None,
    ) -> None:
        self.index = index
        self.workers = workers
        self.settings = settings
        self.store = store
        self.log = log
        self.counters = Row(row) if row is not None else Row()
        self.timers = TimerWheel(now_ms)
        self.retained = Retained()
        self.router = Router(
            index, workers, Subscriptions(), fill(Limits(), settings), self.counters, self.timers, self.retained
        )
        if clock_cell is not None:
            self.router.clock.share(clock_cell)
        self.router.set_time(now_ms, wall_ms)
        self.router.store = store
        self.router.keeps = store.keeps
        self.router.set_durabilities(
            [(rule.filter.encode(), rule.durability == "fsync") for rule in settings.topic],
            settings.durability == "fsync",
        )
        self.router.go_on_behind(store.last_position)
        self.router.set_archive(store.archive)
        self.router.handler = self
        self.router.forward_now = self.forward
        self.router.strategy_of = self._strategy_of
        self.dispatch = Dispatch(self.router)
        self.siblings = [i for i in range(workers) if i != index]
        self.links: Mapping[int, Any] = {}
        self.piecework = Piecework(self)
        self.interest = self.router.interest = Publisher(in_pieces=self._tell_in_pieces) if workers > 1 else None
        self.sessions = Sessions()
        self.room = Room(self)
        self.set_aside = SetAside(self)
        self.custody = Custody(self)
        self.disk = Disk(self)
        self.recording = Recording(self)
        self.wills = Wills(self)
        self.authenticating = Authenticating(self)
        self.endings = Endings(self)
        self.connecting = Connecting(self)
        self.subscribing = Subscribing(self)
        self.retaining = Retaining(self)
        self.replaying = Replaying(self)
        self.opening = Opening(self)
        self.peering = Peering(self)
        self.gauges = Gauges(self)
        self.hand_over = hand_over or self._no_home
        self.opened: Callable[[Connection], None] = lambda _conn: None
        """Called when a CONNACK 0 is in the outbox: the reactor starts the keep-alive timer."""
        self.flush_mesh: Callable[[], None] = lambda: None
        """Sends what the links were given; the worker delays it to gather more."""
        self.peers_changed: Callable[[], None] = lambda: None
        self.sys_topics = SysTopics(self)
        self._expose()
        self._sweep()

    def _expose(self) -> None:
        """The data path's callbacks, without a step in between."""
        self.connect = self.connecting.connect
        self.auth = self.authenticating.auth
        self.disconnect = self.connecting.disconnect
        self.protocol_error = self.connecting.protocol_error
        self.connect_timeout = self.connecting.connect_timeout
        self.keep_alive_timeout = self.connecting.keep_alive_timeout
        self.closed = self.connecting.closed
        self.subscribe = self.subscribing.subscribe
        self.unsubscribe = self.subscribing.unsubscribe
        self.retained_changed = self.custody.retained_changed
        self.unstored = self.disk.unstored
        self.drained = self.replaying.drained
        self.work_on = self.piecework.run

    def reload(self, settings: Settings) -> None:
        """Take over what may change while the worker runs (it concerns what happens from now on)."""
        changed = settings.shared != self.settings.shared
        self.settings = settings
        fill(self.router.limits, settings)
        self.authenticating.reload()
        self.sys_topics.reload()
        if changed:
            self.in_pieces(self.router.strategies_changed())
        self.router.limits_changed()
        self.in_pieces(self.subscribing.set_queue_rules(settings.queue))

    def _strategy_of(self, group: bytes, topic_filter: bytes) -> int:
        rule = rule_of(self.settings.shared, group, topic_filter)
        if rule is None:
            return STRATEGIES["round_robin"]
        return STRATEGIES[rule.strategy] | (WAITS_FLAG if rule.when_full == "wait" else 0)

    def set_memory_full(self, full: bool) -> None:
        """The worker is at worker_memory_bytes_max, or no longer; siblings are told."""
        self.router.set_memory_full(self.index, full)
        for peer in self.siblings:
            self.router.tell(peer, b"m", b"\1" if full else b"\0")

    # ------------------------------------------------------------ time

    def call_later(self, seconds: float, callback: Callable[[], None], session: Session | None = None) -> Any:
        """Call once after so many seconds of running time; the handle has cancel(). `session`: whom it concerns, if it
        is one client's.
        """
        call = callback if session is None else partial(self.guard_session, session, callback)
        return self.timers.call(self.router.now_ms + int(seconds * 1000), call)

    def soon(self, callback: Callable[[], None], session: Session | None = None) -> None:
        """Call it in a later tick: long work is done in pieces."""
        self.call_later(0, callback, session)

    def attached(self, session: Session) -> None:
        """It has a connection: what is done for it in pieces goes on."""
        if self.works_for(session):
            self.replaying.attached(session)
            self.retaining.resumed(session)

    def works_for(self, session: Session) -> bool:
        """Whether something is done for it in pieces."""
        details = session.details
        return bool(session.replays or details.walks or details.walks_waiting)

    def ended(self, session: Session) -> None:
        """It is no more, and nothing is done for it."""
        steps = Steps()
        steps.do(self.replaying.ended, session)
        steps.do(self.retaining.ended, session)
        steps.finish()

    def _sweep(self) -> None:
        self.router.sweep()
        self.retaining.sweep()
        self.replaying.sweep()
        self.gauges.update()
        self.disk.sweep()
        self.connecting.sweep()
        self.recording.sweep()
        self.log.flush()
        self.timers.call(self.router.now_ms + _EVERY_SWEEP_MS, self._sweep)

    # ------------------------------------------------------------ siblings

    def interest_number(self) -> int:
        """The number under which siblings will know what was subscribed up to now; 0 without siblings."""
        if self.interest is None:
            return 0
        return self.interest.next

    def _tell_in_pieces(self, pieces: Iterator[None]) -> None:
        # a snapshot for siblings: they are told in the tick of the last piece
        def telling() -> Iterator[None]:
            for _ in pieces:
                self.router.interest_due = True
                yield

        self.piecework.add(telling(), lambda error: self.defect(None, error))

    def in_pieces(self, pieces: Iterator[None]) -> None:
        """Nobody's in particular: the first one is done now, the others in later ticks."""
        self.piecework.begin(pieces, partial(self.defect, None))

    def is_ready(self, peer: int) -> bool:
        """Can that sibling be asked now."""
        link = self.links.get(peer)
        return link is not None and link.ready and not link.away

    def forward(self) -> None:
        """End of a tick with something for siblings: give it to the links, then let them send."""
        router = self.router
        if router.is_laying:  # some of it may have to be stored first: when that can be, all of it leaves
            router.interest_due = True
            return
        dirty = router.dirty_peers
        peer = 0
        while dirty:
            if dirty & 1:
                self.submit(peer)
            dirty >>= 1
            peer += 1
        router.interest_due = False
        self.flush_mesh()

    def hold(self, peers: int) -> None:
        """What these siblings (a bit for each) get of this tick must not be lost with this worker: it is stored with
        the tick, and leaves after that.
        """
        for peer in self.siblings:
            if peers >> peer & 1:
                self.submit(peer, hold=True)

    def submit(self, peer: int, hold: bool = False) -> None:
        """Give the link what the tick has for that sibling."""
        link = self.links.get(peer)
        while (taken := self.router.take(peer)) is not None and link is not None:
            volatile, sequenced, payloads_volatile, payloads_sequenced, tick = taken
            link.submit(
                volatile,
                sequenced,
                payloads_volatile,
                payloads_sequenced,
                tick,
                volatile.entry_count if volatile is not None else 0,
                sequenced.entry_count if sequenced is not None else 0,
                hold,
            )
        if link is not None and link.full:
            self.router.peer_full(peer, True)

    def told(self, peer: int, kind: bytes, payload: bytes) -> None:
        """A sibling's broker says something (`Router.tell`). It is about some client, and no reason to end."""
        try:
            self._hear(peer, kind, payload)
        except Exception as error:  # noqa: BLE001  the one door
            self.counters.add(count.INTERNAL_ERRORS)
            self.defect(None, error)

    def _hear(self, peer: int, kind: bytes, payload: bytes) -> None:
        if kind == b"?":
            self.retaining.asked(peer, payload)
        elif kind == b"!":
            self.retaining.answered(peer, payload)
        elif kind == b"h":
            self.router.sibling_holds(peer, payload[1:], payload[:1] == b"\1")
        elif kind == b"m":
            self.router.set_memory_full(peer, payload == b"\1")
        elif kind == b"e":
            self.room.asked()
        elif kind == b"d":
            self.disk.told(peer, payload)
        else:
            self._told_of_archives(peer, kind, payload)

    def _told_of_archives(self, peer: int, kind: bytes, payload: bytes) -> None:
        sources = self.replaying.sources
        if kind == b"R":
            self.replaying.answered(peer, payload)
        elif kind == b"b":
            self.replaying.told_beat(peer, payload)
        elif kind == b"s":
            self.replaying.told_so_far(peer, payload)
        elif kind == b"O":
            self.opening.started(peer, payload)
        elif sources is None:
            return
        elif kind == b"r":
            sources.asked(peer, payload)
        elif kind == b"c":
            sources.end(peer, payload)
        elif kind == b"o":
            sources.probed(peer, payload)

    def greet(self, peer: int) -> None:
        """A sibling is heard (again): what it cannot know of this worker by now."""
        self.in_pieces(self._tell_held(peer, self.router.held_filters()))
        if self.router.is_memory_full:
            self.router.tell(peer, b"m", b"\1")
        self.disk.greet(peer)

    def _tell_held(self, peer: int, texts: list[bytes]) -> Iterator[None]:
        # what changes meanwhile is told by itself
        for number, text in enumerate(texts, 1):
            spend(STEP)
            if self.router.holds_own(text):
                self.router.tell(peer, b"h", b"\1" + text)
            if number % AT_ONCE == 0:
                yield

    def _no_home(self, conn: Connection, _worker: int, _raw: bytes) -> None:
        self.connecting.unavailable(conn, "its worker cannot be reached")

    # ------------------------------------------------------------ the data path asks or tells

    def internal_error(self, conn: Connection, error: Exception) -> None:
        """A defect of ours showed while something of this connection's was handled (`Routing.fail` counts it): it ends,
        and nothing else does. Raises nothing.
        """
        self.defect(_client(conn), error, conn.address)
        try:
            self.connecting.fail(conn)
        except Exception as again:  # noqa: BLE001  whatever it is, the socket is closed
            self.defect(None, again, conn.address)
            self.router.close(conn, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "internal error")

    def defect(self, client: str | None, error: Exception, address: str | None = None) -> None:
        """A defect of ours that concerns this client alone, and is counted: the log has all about it."""
        try:
            trace = "".join(traceback.format_exception(error))
            self.log.error("internal_error", client=client, address=address, traceback=trace)
        except Exception:  # noqa: BLE001  what cannot be logged has been counted
            return

    def guard(self, conn: Connection, call: Callable[..., object], *arguments: Any) -> None:
        """Something of this connection's, outside of its packets: if it fails, the connection ends."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001  the one door
            self.router.fail(conn, error)

    def guard_session(self, session: Session, call: Callable[..., object], *arguments: Any) -> None:
        """The same of a session's: its connection ends, if it has one."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001  the one door
            if session.connection is not None:
                self.router.fail(session.connection, error)
            else:
                self.counters.add(count.INTERNAL_ERRORS)
                self.defect(session.client_id, error)

    def publish_refused(self, conn: Connection, topic: bytes, reason: int) -> None:
        """A publish that this client may not make."""
        self.log.info("publish_refused", client=_client(conn), topic=topic, code=reason)

    def dropping(self, conn: Connection, counter: int) -> None:
        """Drops begin for a client."""
        self.log.warning(
            "drops_begin", client=_client(conn), address=conn.address, reason=count.NAMES[counter], drops=conn.drops
        )

    def dropping_ended(self, conn: Connection) -> None:
        """Nothing waits for it any more: the summary."""
        self.log.warning("drops_end", client=_client(conn), drops=conn.drops)

    def queue_full(self, session: Session, dropped: int) -> None:
        """A session's backlog reached its limit."""
        if session.connection is None:  # else it is among the drops of its connection
            self.log.warning("queue_full", client=session.client_id, dropped=dropped)

    def queue_held(self, session: Session) -> None:
        """The same, and its publishers are made to wait."""
        self.log.warning("queue_held", client=session.client_id)

    def hold_changed(self, text: bytes, held: bool) -> None:
        """Publishers that match this filter are to wait for a session here, or no longer: those at siblings, too."""
        for peer in self.siblings:
            self.router.tell(peer, b"h", (b"\1" if held else b"\0") + text)

    def retained_full(self, topic: bytes) -> None:
        """retained_messages_max or retained_bytes_max: the message is delivered but not kept."""
        self.log.warning("retained_full", topic=topic)

    def too_many_connections(self) -> None:
        """connections_max."""
        self.counters.add(count.CONNECTIONS_OVER_MAX)
        self.log.warning("connections_max_reached", connections_max=self.settings.limits.connections_max)

    def source_refused(self, conn: Connection, counter: int) -> None:
        """half_open_per_address_max or connections_per_address_per_second_max."""
        self.log.warning("source_refused", address=conn.address, reason=count.NAMES[counter])
        self.recording.refused(conn, 0, count.NAMES[counter])

    def accept_failed(self, error: int) -> None:
        """Out of descriptors or memory."""
        self.log.error("accept_failed", errno=error)


def _client(conn: Connection) -> str | None:
    return conn.session.client_id if conn.session is not None else None
