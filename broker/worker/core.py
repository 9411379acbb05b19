"""A worker without its sockets and clock: its context and its parts (the decisions of the slow paths), wired together.

`broker.worker.process` adds sockets, time and the mesh; the simulation adds a seeded clock and network instead. It is
the handler of the data path (`pyx.delivery.handler`): everything that needs a decision ends in one of its methods, most
of which belong to the parts.

Each part gets the parts that it calls, and is below those that call it: no part knows the Node. Where two call each
other, the lower one declares a Protocol for its needs, and gets the other here when that exists.

    context     broker.context: router, store, log, timers, ...; sessions
    records     state_records, recording, set_aside (broker.persistence)
    the archive replaying, opening (broker.replay)
    clients     authorising, wills, unanswered, retaining, endings, capacity, authenticating, attachments, closing,
                connecting, subscribing; disk, which closes some
    the worker  sibling_messages, peering, gauges, administration, recovery
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from broker.admin.sys_topics import SysTopics
from broker.clients.attachments import Attachments
from broker.clients.authenticating import Authenticating
from broker.clients.authorising import Authorising
from broker.clients.capacity import Capacity
from broker.clients.client_requests import ClientRequests, OwnerFinder
from broker.clients.closing import Closing
from broker.clients.connecting import Connecting
from broker.clients.endings import Endings
from broker.clients.retaining import Retaining
from broker.clients.subscribing import Subscribing
from broker.clients.unanswered import Unanswered
from broker.clients.wills import Wills
from broker.config.data_path import fill
from broker.context.context import Context
from broker.context.sessions import Sessions
from broker.persistence.disk import Disk
from broker.persistence.recording import Recording
from broker.persistence.set_aside import SetAside
from broker.persistence.state_records import StateRecords
from broker.replay.opening import Opening
from broker.replay.replaying import Replaying
from broker.worker.administration import Administration
from broker.worker.gauges import Gauges
from broker.worker.peering import Peering
from broker.worker.recovery import Recovery
from broker.worker.sibling_messages import SiblingMessages
from pyx.core import counters as count
from pyx.core.peer import Peer
from pyx.protocol.reasons import ReasonCode

if TYPE_CHECKING:
    from broker.admin.requests import MoveClients
    from broker.clients.authenticating import ConnectionOpener
    from broker.config.settings import Settings
    from broker.logs import Log
    from leveldb_store.contract import Store
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session

__all__ = ["Node"]

_EVERY_SWEEP_MS = 1000
_SWEEPS_AFTER_ACTIVITY = 10
"""At that pace; a worker that rests is then swept every _EVERY_REST_MS."""
_EVERY_REST_MS = 5000


class Node:
    """The broker of one worker. `now_ms`: monotonic ms at start; `wall_ms`: the broker's time (`shards.clock`);
    `clock_cell`: that of its host (`pyx.core.clock`).
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
        context = Context(index, workers, settings, store, log, now_ms, wall_ms, row, clock_cell)
        self._stand_on(context)
        self._wire(context)
        if hand_over is not None:
            self.hand_over = hand_over
        self._expose()
        context.router.state.handler = self
        context.router.peers.forward_now = self.forward
        self.may_rest = False  # its worker calls `wake`
        self._swept_at_rest = 0
        self._sweep()

    def _stand_on(self, context: Context) -> None:
        self.context = context
        self.index, self.workers, self.siblings = context.index, context.workers, context.siblings
        self.router, self.dispatch, self.interest = context.router, context.dispatch, context.interest
        self.counters, self.timers, self.retained = context.counters, context.timers, context.retained
        self.piecework = context.piecework
        self.call_later, self.is_ready = context.call_later, context.is_ready
        self.guard, self.defect = context.guard, context.defect

    def _wire(self, context: Context) -> None:
        sessions = self.sessions = Sessions()
        set_aside = self.set_aside = SetAside(context)
        state_records = self.state_records = StateRecords(context)
        recording = self.recording = Recording(context)
        sys_topics = self.sys_topics = SysTopics(context)
        replaying = self.replaying = Replaying(context, state_records)
        authorising = self.authorising = Authorising(context)
        opening = self.opening = Opening(context, recording, replaying, authorising)
        wills = self.wills = Wills(context, state_records, authorising)
        self.client_requests = ClientRequests(context, authorising)
        unanswered = self.unanswered = Unanswered(context)
        retaining = self.retaining = Retaining(context, state_records, sys_topics, authorising, unanswered)
        endings = self.endings = Endings(context, sessions, state_records, recording, wills, retaining, replaying)
        capacity = self.capacity = Capacity(context, sessions, recording, endings)
        authenticating = self.authenticating = Authenticating(context)
        attachments = self.attachments = Attachments(context, sessions, state_records, wills, endings, capacity)
        closing = self.closing = Closing(
            context, sessions, state_records, recording, authenticating, wills, replaying, endings, attachments,
            unanswered,
        )  # fmt: skip
        connecting = self.connecting = Connecting(
            context, sessions, state_records, recording, authenticating, authorising, capacity, endings, attachments,
            closing, retaining, replaying,
        )  # fmt: skip
        authenticating.opener, authenticating.closer = connecting, closing
        subscribing = self.subscribing = Subscribing(
            context, sessions, state_records, recording, authorising, closing, retaining, replaying, opening,
            unanswered,
        )  # fmt: skip
        opening.subscriptions = subscribing
        disk = self.disk = Disk(context, closing)
        messages = self.sibling_messages = SiblingMessages(context, retaining, capacity, disk, replaying, opening)
        peering = self.peering = Peering(context, messages, retaining, replaying, opening)
        retaining.when_taken = peering.when_taken
        self.gauges = Gauges(context, sessions, replaying)
        self.administration = Administration(context, sessions, closing)
        self.recovery = Recovery(
            context, sessions, set_aside, state_records, recording, wills, endings, subscribing, retaining, replaying
        )

    def _expose(self) -> None:
        """Set the data path's callbacks to the parts' methods, without a step in between."""
        self.connect = self.connecting.connect
        self.auth = self.authenticating.auth
        self.disconnect = self.closing.disconnect
        self.protocol_error = self.closing.protocol_error
        self.asked_for_owner = self.client_requests.asked_for_owner
        self.connect_timeout = self.closing.connect_timeout
        self.keep_alive_timeout = self.closing.keep_alive_timeout
        self.closed = self.closing.closed
        self.too_many_connections = self.connecting.too_many_connections
        self.subscribe = self.subscribing.subscribe
        self.unsubscribe = self.subscribing.unsubscribe
        self.retained_changed = self.state_records.retained_changed
        self.unstored, self.store_unwritten = self.disk.unstored, self.disk.store_unwritten
        self.drained = self.replaying.drained
        self.work_on = self.piecework.run
        self.works_for = self.endings.works_for
        self.sibling_message, self.greet = self.sibling_messages.receive, self.sibling_messages.greet
        self.hold_changed, self.set_memory_full = (
            self.sibling_messages.hold_changed,
            self.sibling_messages.set_memory_full,
        )
        self.forward, self.hold = self.peering.forward, self.peering.hold

    def open_through(
        self,
        opener: ConnectionOpener,
        drain_report: Callable[[], dict[str, Any]] | None = None,
        find: OwnerFinder | None = None,
        move_clients: Callable[[MoveClients], int] | None = None,
    ) -> None:
        """Let somebody decide about clients that are authenticated, who passes them to `connecting`. drain_report,
        move_clients: see `Administration`; find: see `ClientRequests`.
        """
        self.authenticating.opener = opener
        self.administration.drain_report = drain_report
        self.administration.move_clients = move_clients
        self.client_requests.find = find

    def reload(self, settings: Settings) -> None:
        """Apply settings that may change while the worker runs (for everything that happens from now on)."""
        context, router = self.context, self.router
        changed = settings.shared != context.settings.shared
        context.use(settings)
        fill(router.state.limits, settings)
        self.authenticating.reload()
        self.sys_topics.reload()
        if changed:
            context.in_pieces(router.enrolling.strategies_changed())
        router.back_pressure.limits_changed()
        context.in_pieces(self.subscribing.set_queue_rules(settings.queue))

    def _sweep(self) -> None:
        self.router.sweeping.sweep()
        self.retaining.sweep()
        self.replaying.sweep()
        self.gauges.update()
        self.disk.sweep()
        self.connecting.sweep()
        self.recording.sweep()
        self.log.flush()
        state = self.router.state
        self._swept_at_rest = 0 if state.is_active or not self.may_rest else self._swept_at_rest + 1
        state.is_active = False
        rests = self._swept_at_rest >= _SWEEPS_AFTER_ACTIVITY
        self._next_sweep = self.timers.call(state.now_ms + (_EVERY_REST_MS if rests else _EVERY_SWEEP_MS), self._sweep)

    def wake(self) -> None:
        """End a rest: something has happened."""
        if self._swept_at_rest >= _SWEEPS_AFTER_ACTIVITY:
            self._swept_at_rest = 0
            self._next_sweep.cancel()
            self._next_sweep = self.timers.call(self.router.state.now_ms + _EVERY_SWEEP_MS, self._sweep)

    # ------------------------------------------------------------ set by the process around it, and replaceable

    @property
    def settings(self) -> Settings:
        """Settings of the last `reload`."""
        return self.context.settings

    @property
    def store(self) -> Store:
        """The store of its state."""
        return self.context.store

    @store.setter
    def store(self, store: Store) -> None:
        self.context.store = store

    @property
    def log(self) -> Log:
        """The log of its parts."""
        return self.context.log

    @log.setter
    def log(self, log: Log) -> None:
        self.context.log = log

    @property
    def links(self) -> Mapping[Peer, Any]:
        """By sibling, see `Context`."""
        return self.context.links

    @links.setter
    def links(self, links: Mapping[Peer, Any]) -> None:
        self.context.links = self.peering.batches.links = links

    @property
    def hand_over(self) -> Callable[[Connection, int, bytes], None]:
        """See `Connecting`."""
        return self.connecting.hand_over

    @hand_over.setter
    def hand_over(self, hand_over: Callable[[Connection, int, bytes], None]) -> None:
        self.connecting.hand_over = hand_over

    @property
    def opened(self) -> Callable[[Connection], None]:
        """See `Connecting`."""
        return self.connecting.opened

    @opened.setter
    def opened(self, opened: Callable[[Connection], None]) -> None:
        self.connecting.opened = opened

    @property
    def flush_mesh(self) -> Callable[[], object]:
        """See `Batches.flush`."""
        return self.peering.batches.flush

    @flush_mesh.setter
    def flush_mesh(self, flush: Callable[[], object]) -> None:
        self.peering.batches.flush = flush

    @property
    def peers_changed(self) -> Callable[[], None]:
        """See `Peering.changed`."""
        return self.peering.changed

    @peers_changed.setter
    def peers_changed(self, changed: Callable[[], None]) -> None:
        self.peering.changed = changed

    # ------------------------------------------------------------ callbacks of the data path

    def internal_error(self, conn: Connection, error: Exception) -> None:
        """Handle an internal error while something of this connection was processed (`RouterState.fail` counts it):
        close this connection and nothing else. Raises nothing.
        """
        self.defect(_client(conn), error, conn.address)
        try:
            self.closing.fail(conn)
        except Exception as again:  # noqa: BLE001  in any case the socket is closed
            self.defect(None, again, conn.address)
            self.router.state.close(conn, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "internal error")

    def publish_refused(self, conn: Connection, topic: bytes, reason: int) -> None:
        """Log a publish that this client may not make."""
        self.log.info("publish_refused", client=_client(conn), topic=topic, code=reason)

    def dropping(self, conn: Connection, counter: int) -> None:
        """Log that drops begin for a client."""
        self.log.warning(
            "drops_begin", client=_client(conn), address=conn.address, reason=count.NAMES[counter], drops=conn.drops
        )

    def dropping_ended(self, conn: Connection) -> None:
        """Log the summary of drops, when nothing waits for the client any more."""
        self.log.warning("drops_end", client=_client(conn), drops=conn.drops)

    def queue_full(self, session: Session, dropped: int) -> None:
        """Log that a session's queue has reached its limit."""
        if session.connection is None:  # else it is included in the drops of its connection
            self.log.warning("queue_full", client=session.client_id, dropped=dropped)

    def queue_held(self, session: Session) -> None:
        """Log the same where publishers are made to wait."""
        self.log.warning("queue_held", client=session.client_id)

    def retained_full(self, topic: bytes) -> None:
        """Log a message delivered but not retained: retained_messages_max or retained_bytes_max."""
        self.log.warning("retained_full", topic=topic)

    def source_refused(self, conn: Connection, counter: int) -> None:
        """Log a refusal: half_open_per_address_max or connections_per_address_per_second_max."""
        listener = self.context.listener_of(conn)
        self.log.warning("source_refused", address=conn.address, listener=listener, reason=count.NAMES[counter])
        self.recording.refused(conn, 0, count.NAMES[counter])

    def accept_failed(self, error: int) -> None:
        """Log a failed accept: out of descriptors or memory."""
        self.log.error("accept_failed", errno=error)


def _client(conn: Connection) -> str | None:
    return conn.session.client_id if conn.session is not None else None
