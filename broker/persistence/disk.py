"""A disk that is full, or fails: what clients and siblings are told, and when waiting ends.

`Store.full` says that no new message should come, `Store.failed` that nothing becomes durable at all. In both cases:

    publish QoS 0       goes on
    publish QoS 1, 2    for somebody on a worker whose store is full: v5 is refused with 0x97; before MQTT 5, which has
                        no way to say so, the connection is not read, and closed after store_error_seconds_max
    CONNECT, SUBSCRIBE  that would need a record are refused at once (connecting, subscribing)
    anything else       goes on, deliveries above all: what is read and acknowledged makes room

What was taken before waits for its record. While only room is wanting it gets it. If nothing has become durable for
store_error_seconds_max its publishers are told 0x97, or closed: no custody is claimed, though what lies in memory by
then is written, and delivered, when the disk is well again [MQTT-4.4.0-2 ends the matter for the client]. What is no
message is taken back before its client is told so: the session of a CONNECT is none, or what it was before; what a
SUBSCRIBE subscribed is not. Where that cannot be done (a subscription was replaced, or ended before MQTT 5, whose
UNSUBACK knows no failure) the connection is closed, and nothing was said.

A disk that is slower than what clients send: the acks of QoS 1 and 2 wait for it, and nothing else would bound what
waits in memory to be written. While a store has store_unwritten_bytes_max to write, until half of that is written, a
PUBLISH at any QoS that it would have to write is not taken, nor a SUBSCRIBE or UNSUBSCRIBE of a stored session.

Siblings are told of both because they ask for us: they judge what their clients publish to sessions here
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
"""The kind of a word: the store has store_unwritten_bytes_max to write (1), or no longer half of it (0)."""
_AT_ONCE = 100
"""Connections of which a piece looks through the answers that wait."""


class Connections(Protocol):
    """Of clients, some of which wait for the disk (`broker.clients.closing`)."""

    def awaiting(self) -> list[Connection]:
        """Those whose CONNACK waits for it."""

    def refuse_unstored(self, conn: Connection) -> None:
        """Such a one waits no longer."""

    def end_connection(self, conn: Connection, reason: int, why: str) -> None:
        """One that is open ends."""


class Disk:
    """The state of one worker's store, as its clients and siblings know it."""

    def __init__(self, context: Context, connections: Connections) -> None:
        self._context = context
        self._router = context.router
        self._connections = connections
        self._failed: str | None = None
        self._full: str | None = None
        self._is_behind = False
        """The store has more to write than it may have."""
        self._failed_at = 0
        """Monotonic ms."""
        self._refusing: set[int] = set()
        """The workers for whose disks nobody waits any longer: that is being said."""

    def look(self) -> None:
        """The store may have something new to say."""
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
        self._look_at_unwritten()

    def store_unwritten(self) -> None:
        """The store has store_unwritten_bytes_max to write."""
        self._set_behind(True)

    def _look_at_unwritten(self) -> None:
        if self._is_behind:
            most = self._context.settings.limits.store_unwritten_bytes_max
            if most == 0 or self._context.store.unwritten_bytes <= most // 2:
                self._set_behind(False)

    def _set_behind(self, behind: bool) -> None:
        self._is_behind = behind
        self._router.back_pressure.set_store_unwritten(self._context.index, behind)
        for peer in self._context.siblings:
            self._router.peers.tell(peer, _UNWRITTEN, b"\1" if behind else b"\0")

    def told_unwritten(self, peer: Peer, payload: bytes) -> None:
        """A sibling says whether its store has store_unwritten_bytes_max to write."""
        self._router.back_pressure.set_store_unwritten(peer, payload == b"\1")

    def sweep(self) -> None:
        """Once a second: who has waited for long enough?"""
        self._context.counters.set(count.STORE_UNWRITTEN_BYTES, self._context.store.unwritten_bytes)
        self._look_at_unwritten()  # the bound may be another one since a reload
        if self._failed is None:
            return
        if self._router.state.now_ms - self._failed_at >= self._context.settings.limits.store_error_seconds_max * 1000:
            self._refuse(self._context.index)
            self._tell(_GIVEN_UP)

    def _tell(self, state: bytes) -> None:
        for peer in self._context.siblings:
            self._router.peers.tell(peer, _KIND, state)

    def greet(self, peer: Peer) -> None:
        """A sibling is heard (again)."""
        if self._full is not None:
            self._router.peers.tell(peer, _KIND, _FULL)
        if self._is_behind:
            self._router.peers.tell(peer, _UNWRITTEN, b"\1")

    def told(self, peer: Peer, state: bytes) -> None:
        """A sibling says how its store is."""
        router = self._router
        router.back_pressure.set_store_full(peer, state != _ROOM)
        if state == _GIVEN_UP:
            self._refuse(peer)

    def _refuse(self, worker: int) -> None:
        if worker not in self._refusing:
            self._refusing.add(worker)
            self._context.in_pieces(self._refusals(worker))

    def _refusals(self, worker: int) -> Iterator[None]:
        # in pieces: whoever has got its answer meanwhile waits no longer
        router, connections = self._router, self._connections
        try:
            for number, conn in enumerate(router.back_pressure.awaiting_answers(), 1):
                router.back_pressure.refuse_unstored(conn, 1 << worker)
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
        """A client that cannot be told that what it asked for is not stored has waited for store_error_seconds_max."""
        self._connections.end_connection(conn, ReasonCode.QUOTA_EXCEEDED, "nothing can be stored at present")
