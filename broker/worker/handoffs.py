"""Hand-off of connections: passes them on to their home worker, and takes in those whose home is here.

A connection that its home has not taken yet waits here, unread, for at most handoff_seconds_max. `shards.handoff` has
the format of the messages.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from pyx.core import counters as count
from pyx.core.peer import sibling
from pyx.core.work import STEP, callback, spend
from shards import handoff

if TYPE_CHECKING:
    from broker.clients.closing import Closing
    from broker.clients.connecting import Connecting
    from broker.context.context import Context
    from pyx.delivery.connection import Connection
    from pyx.io.reactor import Reactor
    from shards.worker_channel import WorkerChannel

__all__ = ["Handoffs"]

_CLOSING = 3
_TAKEN_AT_ONCE = 64


class _Waiting:
    """A connection that its home has not taken yet."""

    __slots__ = ("conn", "deadline", "raw", "worker")

    def __init__(self, conn: Connection, worker: int, raw: bytes, deadline: float) -> None:
        self.conn = conn
        self.worker = worker
        self.raw = raw
        self.deadline = deadline


class Handoffs:
    """The hand-offs of one worker, both ways."""

    def __init__(
        self,
        channel: WorkerChannel,
        context: Context,
        connecting: Connecting,
        closing: Closing,
        reactor: Reactor,
    ) -> None:
        self._channel = channel
        self._context = context
        self._connecting = connecting
        self._closing = closing
        self._reactor = reactor
        self._log = context.log
        self._waiting: list[_Waiting] = []
        self.is_stopping = False
        """Whether no connection is taken in any more."""

    def hand_over(self, conn: Connection, worker: int, raw: bytes) -> None:
        """Pass a connection, with the bytes of its CONNECT, to its home: now, or as soon as the home takes it."""
        limits = self._context.settings.limits
        deadline = time.monotonic() + min(
            limits.handoff_seconds_max,
            max(0.0, limits.connect_seconds_max - (self._context.router.state.now_ms - conn.opened) / 1000),
        )
        waiting = _Waiting(conn, worker, raw, deadline)
        if not self._pass_on(waiting):
            if len(self._waiting) >= limits.handoff_pending_max:
                self._context.counters.add(count.HANDOFFS_REFUSED)
                self._closing.unavailable(conn, "its worker is busy")
            else:
                self._waiting.append(waiting)

    def _pass_on(self, waiting: _Waiting) -> bool:
        conn = waiting.conn
        if not self._context.is_ready(sibling(waiting.worker)):  # down, stopped, or not heard yet: it may never take it
            return False
        host, _, port = conn.address.rpartition(":")
        try:
            sent = handoff.send(
                self._channel.handoff_send[waiting.worker],
                conn.fd,
                waiting.raw + conn.unread(),
                waiting.deadline - time.monotonic(),
                (host.strip("[]"), int(port or 0)),
                conn.listener,
            )
        except OSError as error:
            self._log.error("handoff_failed", worker_to=waiting.worker, reason=str(error))
            return False
        if sent:
            self._context.counters.add(count.CONNECTIONS_HANDED_OVER)
            self._reactor.release(conn)
        return sent

    @property
    def waits(self) -> bool:
        """Whether a connection waits for its home."""
        return bool(self._waiting)

    @callback("handoff")
    def retry(self) -> None:
        """Try again for connections that wait; refuse those that have waited for too long."""
        now = time.monotonic()
        kept = []
        spend(len(self._waiting) * STEP)
        for waiting in self._waiting:
            if waiting.conn.fd < 0:
                continue
            self._context.guard(waiting.conn, self._try_again, waiting, now >= waiting.deadline)
            if waiting.conn.fd >= 0 and waiting.conn.state < _CLOSING:
                kept.append(waiting)
        self._waiting = kept
        self._reactor.finish()

    def _try_again(self, waiting: _Waiting, is_late: bool) -> None:
        if is_late:
            self._context.counters.add(count.HANDOFF_TIMEOUTS)
            self._closing.unavailable(waiting.conn, "its worker did not take it in time")
        else:
            self._pass_on(waiting)

    def take_in(self) -> None:
        """Take in connections that have arrived."""
        for _ in range(_TAKEN_AT_ONCE):
            try:
                came = handoff.receive(self._channel.handoff_receive)
            except handoff.HandoffLost as lost:
                self._log.error("handoff_lost", reason=str(lost))
                continue
            if came is None:
                break
            try:
                self._adopt(came)
            except OSError as error:  # the descriptor is closed, so it cannot be watched
                self._log.error("handoff_lost", reason=str(error))
        self._reactor.finish()

    def _adopt(self, came: handoff.HandedOver) -> None:
        self._context.counters.add(count.CONNECTIONS_TAKEN_IN)
        if self.is_stopping or len(self._reactor) >= self._reactor.acceptor.connections_max:
            if not self.is_stopping:
                self._context.counters.add(count.CONNECTIONS_REFUSED)
                self._connecting.too_many_connections()
            os.close(came.fd)
            return
        conn = self._reactor.adopt(came.fd, b"", max(0, int(came.remaining_seconds * 1000)), came.listener)
        self._context.guard(conn, self._go_on, conn, came)

    def _go_on(self, conn: Connection, came: handoff.HandedOver) -> None:
        if came.remaining_seconds <= 0:
            self._context.counters.add(count.HANDOFF_TIMEOUTS)
            self._context.dispatch.learn_version(conn, came.unread)
            self._closing.unavailable(conn, "its worker did not take it in time")
        else:
            self._context.dispatch.feed(conn, came.unread, True)
