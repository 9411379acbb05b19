"""Handling of a disk that is full or fails: the answers to clients and siblings, and the end of waiting.

`Store.full` means that the store takes no new message, `Store.failed` that nothing becomes durable. In both cases:

    publish QoS 0       goes on
    publish QoS 1, 2    to a session on a worker whose store is full: v5 is refused with 0x97; before MQTT 5, which has
                        no such code, the connection is not read, and closed after store_error_seconds_max
    CONNECT, SUBSCRIBE  that need a record are refused at once (connecting, subscribing)
    anything else       goes on, deliveries above all: reading and acknowledging messages makes room

Publishes taken before wait for their record. While the disk is only full, they get it. If nothing has become durable
for store_error_seconds_max, their publishers get 0x97 or are closed: the broker takes no responsibility for these
messages, although those still in memory are written and delivered when the disk recovers (for the client the exchange
is over [MQTT-4.4.0-2]). Other state is undone before its client is told so: the session of a CONNECT is removed or
restored, a new subscription is removed. Where that is impossible (a subscription was replaced; or ended before MQTT 5,
whose UNSUBACK has no reason codes) the connection is closed without an answer.

A disk that is slower than the clients: publishers of QoS 1 and 2 wait for their acks, but nothing else would bound
the bytes in memory that wait to be written. While a store has store_unwritten_bytes_max to write, until half of that is
written, the router does not take a PUBLISH of any QoS that the store would have to write, nor a SUBSCRIBE or
UNSUBSCRIBE of a stored session.

Siblings are told both states, because they decide about what their clients publish to sessions here
(`pyx.delivery.back_pressure`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pyx.core import counters as count
from pyx.core.peer import Peer
from pyx.protocol.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.context.context import Context
    from pyx.delivery.connection import Connection

__all__ = ["Disk"]

_KIND = b"d"
_ROOM, _FULL, _GIVEN_UP = b"\0", b"\1", b"\2"
_UNWRITTEN = b"w"
"""Kind of message: the store has store_unwritten_bytes_max to write (1), or at most half of that again (0)."""
_AT_ONCE = 100
"""Connections per piece whose waiting answers are examined."""


class WaitingConnections(Protocol):
    """The connections of clients, some of which wait for the disk (`broker.clients.closing`)."""

    def awaiting(self) -> list[Connection]:
        """Return the connections whose CONNACK waits for the disk."""

    def refuse_unstored(self, conn: Connection) -> None:
        """Refuse a connection that waits for it."""

    def end_connection(self, conn: Connection, reason: int, why: str) -> None:
        """Close an open connection."""


class Disk:
    """The state of one worker's disk, as announced to its clients and siblings."""

    def __init__(self, context: Context, connections: WaitingConnections) -> None:
        self._context = context
        self._router = context.router
        self._connections = connections
        self._failed: str | None = None
        self._full: str | None = None
        self._is_behind = False
        """The store has had store_unwritten_bytes_max to write, and still has more than half of that."""
        self._failed_at = 0
        """Time of the failure, in monotonic ms."""
        self._refusing: set[int] = set()
        """Workers for whose disks waiting has ended: their clients are being told."""

    def look(self) -> None:
        """React to a changed state of the store."""
        context = self._context
        failed, full = context.store.failed, context.store.full
        if failed != self._failed:
            if failed is None:
                context.log.warning("store_recovered")
            else:
                self._failed_at = self._router.state.now_ms
                context.log.error("store_failed", reason=failed)
            self._failed = failed
            context.counters.set(count.STORE_FAILED, int(failed is not None))
        if (full is None) != (self._full is None):
            if full is None:
                context.log.warning("store_has_room")
            else:
                context.log.error("store_full", reason=full)
            context.counters.set(count.STORE_FULL, int(full is not None))
            self._router.back_pressure.set_store_full(context.index, full is not None)
            self._tell(_FULL if full is not None else _ROOM)
        self._full = full
        if self._is_behind:
            self._look_at_unwritten()

    def store_unwritten(self) -> None:
        """Pause the clients that would add to it: the store has store_unwritten_bytes_max to write."""
        self._set_behind(True)

    def _look_at_unwritten(self) -> None:
        most = self._context.limits.store_unwritten_bytes_max
        if most == 0 or self._context.store.unwritten_bytes <= most // 2:
            self._set_behind(False)

    def _set_behind(self, behind: bool) -> None:
        self._is_behind = behind
        self._router.back_pressure.set_store_unwritten(self._context.index, behind)
        for peer in self._context.siblings:
            self._router.peers.tell(peer, _UNWRITTEN, b"\1" if behind else b"\0")

    def unwritten_received(self, peer: Peer, payload: bytes) -> None:
        """Take in whether a sibling's store has store_unwritten_bytes_max to write."""
        self._router.back_pressure.set_store_unwritten(peer, payload == b"\1")

    def sweep(self) -> None:
        """End waiting that has taken too long; called once a second."""
        self._context.counters.set(count.STORE_UNWRITTEN_BYTES, self._context.store.unwritten_bytes)
        if self._is_behind:
            self._look_at_unwritten()  # a reload may have changed the bound
        if self._failed is None:
            return
        if self._router.state.now_ms - self._failed_at >= self._context.limits.store_error_seconds_max * 1000:
            self._refuse(self._context.index)
            self._tell(_GIVEN_UP)

    def _tell(self, state: bytes) -> None:
        for peer in self._context.siblings:
            self._router.peers.tell(peer, _KIND, state)

    def greet(self, peer: Peer) -> None:
        """Tell the state to a sibling that is heard (again)."""
        if self._full is not None:
            self._router.peers.tell(peer, _KIND, _FULL)
        if self._is_behind:
            self._router.peers.tell(peer, _UNWRITTEN, b"\1")

    def state_received(self, peer: Peer, state: bytes) -> None:
        """Take in the state of a sibling's store."""
        router = self._router
        router.back_pressure.set_store_full(peer, state != _ROOM)
        if state == _GIVEN_UP:
            self._refuse(peer)

    def _refuse(self, worker: int) -> None:
        if worker not in self._refusing:
            self._refusing.add(worker)
            self._context.in_pieces(self._refusals(worker))

    def _refusals(self, worker: int) -> Iterator[None]:
        # in pieces: connections that have got their answer meanwhile no longer wait
        router, connections = self._router, self._connections
        try:
            for number, conn in enumerate(router.late_answers.awaiting_answers(), 1):
                router.late_answers.refuse_unstored(conn, 1 << worker)
                if number % _AT_ONCE == 0:
                    yield
            if worker == self._context.index:
                for number, conn in enumerate(connections.awaiting(), 1):
                    if self._failed is not None:
                        connections.refuse_unstored(conn)
                    if number % _AT_ONCE == 0:
                        yield
        finally:
            self._refusing.discard(worker)

    def unstored(self, conn: Connection) -> None:
        """Close a client after store_error_seconds_max, where no answer can say that its request is not stored."""
        self._connections.end_connection(conn, ReasonCode.QUOTA_EXCEEDED, "nothing can be stored at present")
