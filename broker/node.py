"""A worker without its sockets and clock: router, sessions, store, links and the decisions of the slow paths, wired up.

`broker.worker` gives it sockets, time and the mesh; the simulation gives it a seeded clock and network instead. It is
the `handler` of the router, of the dispatch and of the reactor: everything that needs a decision ends in one of its
methods.

The links are anything with the faces of `zmq_mesh.links.Link` (submit, commit, ready, away, full), by worker index.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from broker.authenticating import Authenticating
from broker.connecting import Connecting
from broker.gauges import Gauges
from broker.peering import Peering
from broker.retaining import Retaining
from broker.sessions import Sessions
from broker.subscribing import Subscribing
from broker.sys_topics import SysTopics
from broker.wills import Wills
from pyx import counters as count
from pyx.counters import Row
from pyx.dispatch import Dispatch
from pyx.limits import Limits
from pyx.reasons import ReasonCode
from pyx.retained import Retained
from pyx.router import Router
from pyx.subscriptions import Subscriptions
from pyx.timers import TimerWheel
from zmq_mesh.interest import Publisher

if TYPE_CHECKING:
    from broker.config import Settings
    from broker.logs import Log
    from leveldb_store.contract import Store
    from pyx.connection import Connection
    from pyx.session import Session

__all__ = ["Node"]

_EVERY_SWEEP_MS = 1000


_LIMITS = (
    "packet_bytes_max",
    "topic_bytes_max",
    "topic_levels_max",
    "topic_alias_max",
    "outbox_bytes_max",
    "share_large_bytes",
    "inflight_max",
    "receive_maximum",
    "queue_messages_max",
    "queue_bytes_max",
    "filters_per_session_max",
    "tick_connection_bytes_max",
    "tick_connection_packets_max",
    "tick_peer_bytes_max",
    "retained_messages_max",
    "retained_bytes_max",
)


def fill_limits(limits: Limits, settings: Settings) -> Limits:
    """Put the data path's part of the settings into the struct it reads."""
    for name in _LIMITS:
        setattr(limits, name, getattr(settings.limits, name))
    limits.drop_oldest = settings.queue_full == "drop_oldest"
    limits.disconnect_when_full = settings.queue_full == "disconnect"
    limits.queue_qos0 = settings.queue_qos0
    return limits


class Node:
    """One worker's broker. `now_ms`: monotonic ms at start; `wall_ms`: Unix time in ms."""

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
            index, workers, Subscriptions(), fill_limits(Limits(), settings), self.counters, self.timers, self.retained
        )
        self.router.set_time(now_ms, wall_ms)
        self.router.store = store
        self.router.handler = self
        self.router.forward_now = self.forward
        self.dispatch = Dispatch(self.router)
        self.siblings = [i for i in range(workers) if i != index]
        self.links: Mapping[int, Any] = {}
        self.interest = Publisher() if workers > 1 else None
        self.router.interest = self.interest
        self.sessions = Sessions()
        self.wills = Wills(self)
        self.authenticating = Authenticating(self)
        self.connecting = Connecting(self)
        self.subscribing = Subscribing(self)
        self.retaining = Retaining(self)
        self.peering = Peering(self)
        self.gauges = Gauges(self)
        self.hand_over = hand_over or self._no_home
        self.opened: Callable[[Connection], None] = lambda _conn: None
        """Called when a CONNACK 0 is in the outbox: the reactor starts the keep-alive timer."""
        self.flush_mesh: Callable[[], None] = lambda: None
        """Sends what the links were given; the worker delays it to gather more."""
        self.peers_changed: Callable[[], None] = lambda: None
        # the data path's callbacks, without a step in between
        self.connect = self.connecting.connect
        self.auth = self.authenticating.auth
        self.disconnect = self.connecting.disconnect
        self.protocol_error = self.connecting.protocol_error
        self.connect_timeout = self.connecting.connect_timeout
        self.keep_alive_timeout = self.connecting.keep_alive_timeout
        self.closed = self.connecting.closed
        self.subscribe = self.subscribing.subscribe
        self.unsubscribe = self.subscribing.unsubscribe
        self.sys_topics = SysTopics(self)
        self._sweep()

    def reload(self, settings: Settings) -> None:
        """Take over what may change while the worker runs (it concerns what happens from now on)."""
        self.settings = settings
        fill_limits(self.router.limits, settings)
        self.authenticating.reload()
        self.sys_topics.reload()

    # ------------------------------------------------------------ time

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        """Call once after so many seconds of running time; the handle has cancel()."""
        return self.timers.call(self.router.now_ms + int(seconds * 1000), callback)

    def soon(self, callback: Callable[[], None]) -> None:
        """Call it in a later tick: long work is done in pieces."""
        self.timers.call(self.router.now_ms, callback)

    def _sweep(self) -> None:
        self.router.sweep()
        self.gauges.update()
        self.log.flush()
        self.timers.call(self.router.now_ms + _EVERY_SWEEP_MS, self._sweep)

    # ------------------------------------------------------------ siblings

    def interest_number(self) -> int:
        """The number under which siblings will know what was subscribed up to now; 0 without siblings."""
        if self.interest is None:
            return 0
        return self.interest.next

    def is_ready(self, peer: int) -> bool:
        """Can that sibling be asked now."""
        link = self.links.get(peer)
        return link is not None and link.ready and not link.away

    def forward(self) -> None:
        """End of a tick with something for siblings: give it to the links, then let them send."""
        router = self.router
        dirty = router.dirty_peers
        peer = 0
        while dirty:
            if dirty & 1:
                self._submit(peer)
            dirty >>= 1
            peer += 1
        router.interest_due = False
        self.flush_mesh()

    def _submit(self, peer: int) -> None:
        taken = self.router.take(peer)
        link = self.links.get(peer)
        if taken is None or link is None:
            return
        volatile, sequenced, payloads_volatile, payloads_sequenced, tick = taken
        link.submit(
            volatile,
            sequenced,
            payloads_volatile,
            payloads_sequenced,
            tick,
            volatile.entry_count if volatile is not None else 0,
            sequenced.entry_count if sequenced is not None else 0,
        )
        if link.full:
            self.router.peer_full(peer, True)

    def told(self, peer: int, kind: bytes, payload: bytes) -> None:
        """A sibling's broker says something (`Router.tell`)."""
        if kind == b"?":
            self.retaining.asked(peer, payload)
        elif kind == b"!":
            self.retaining.answered(peer, payload)

    def _no_home(self, conn: Connection, _worker: int, _raw: bytes) -> None:
        self.connecting.unavailable(conn, "its worker cannot be reached")

    # ------------------------------------------------------------ the data path asks or tells

    def internal_error(self, conn: Connection, error: Exception) -> None:
        """A defect of ours showed while a packet of this connection was handled."""
        self.log.error(
            "internal_error",
            client=_client(conn),
            address=conn.address,
            traceback="".join(traceback.format_exception(error)),
        )
        self.connecting.end_connection(conn, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "internal error")

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
        elif self.settings.queue_full == "disconnect":
            # not at once: this is said in the middle of a walk over subscribers
            self.router.close(session.connection, ReasonCode.QUOTA_EXCEEDED, "queue full")

    def retained_full(self, topic: bytes) -> None:
        """retained_messages_max or retained_bytes_max: the message is delivered but not kept."""
        self.log.warning("retained_full", topic=topic)

    def too_many_connections(self) -> None:
        """connections_max."""
        self.log.warning("connections_max_reached", connections_max=self.settings.limits.connections_max)

    def accept_failed(self, error: int) -> None:
        """Out of descriptors or memory."""
        self.log.error("accept_failed", errno=error)


def _client(conn: Connection) -> str | None:
    return conn.session.client_id if conn.session is not None else None
