"""Hand-off of connections: what is decided about those that their home does not take at once, or not in time.

A connection that its home has not taken yet waits here, unread, for at most handoff_seconds_max.
`pyx.io.handing_over` passes them on and takes them in.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyx.core import counters as count
from pyx.core.peer import sibling
from pyx.core.work import STEP, callback, spend
from pyx.io.handing_over import HandingOver
from shards.placement import elsewhere

if TYPE_CHECKING:
    from broker.clients.closing import Closing
    from broker.clients.connecting import Connecting
    from broker.context.context import Context
    from pyx.delivery.connection import Connection
    from pyx.io.dispatch import Dispatch
    from pyx.io.reactor import Reactor
    from shards.worker_channel import WorkerChannel

__all__ = ["Handoffs"]

_CLOSING = 3


class _Waiting:
    """A connection that its home has not taken yet."""

    __slots__ = ("conn", "deadline_ns", "raw", "worker")

    def __init__(self, conn: Connection, worker: int, raw: bytes, deadline_ns: int) -> None:
        self.conn = conn
        self.worker = worker
        self.raw = raw
        self.deadline_ns = deadline_ns


class Handoffs:
    """The hand-offs of one worker, both ways."""

    def __init__(
        self,
        channel: WorkerChannel,
        context: Context,
        connecting: Connecting,
        closing: Closing,
        dispatch: Dispatch,
        reactor: Reactor,
    ) -> None:
        self._context = context
        self._connecting = connecting
        self._closing = closing
        self._reactor = reactor
        self._log = context.log
        self._waiting: list[_Waiting] = []
        self._passing = HandingOver(
            reactor, [each.fileno() for each in channel.handoff_send], channel.handoff_receive.fileno(), self
        )
        self.hand_over, self.take_in = self._passing.hand_over, self._passing.take_in
        if channel.workers > 1:
            dispatch.home_of, dispatch.hand_over = elsewhere(channel.index, channel.workers), self.hand_over
        self.reload()

    def reload(self) -> None:
        """Apply other settings."""
        limits = self._context.settings.limits
        self._passing.handoff_ms_max = int(limits.handoff_seconds_max * 1000)
        self._passing.connect_ms_max = int(limits.connect_seconds_max * 1000)

    def stop(self) -> None:
        """Take no connection in any more."""
        self._passing.is_stopping = True

    @property
    def waits(self) -> bool:
        """Whether a connection waits for its home."""
        return bool(self._waiting)

    @callback("handoff")
    def retry(self) -> None:
        """Try again for connections that wait; refuse those that have waited for too long."""
        now_ns = time.monotonic_ns()
        kept = []
        spend(len(self._waiting) * STEP)
        for waiting in self._waiting:
            if waiting.conn.fd < 0:
                continue
            self._context.guard(waiting.conn, self._try_again, waiting, now_ns >= waiting.deadline_ns)
            if waiting.conn.fd >= 0 and waiting.conn.state < _CLOSING:
                kept.append(waiting)
        self._waiting = kept
        self._reactor.finish()

    def _try_again(self, waiting: _Waiting, is_late: bool) -> None:
        if is_late:
            self._context.counters.add(count.HANDOFF_TIMEOUTS)
            self._closing.unavailable(waiting.conn, "its worker did not take it in time")
        else:
            self._passing.pass_on(waiting.conn, waiting.worker, waiting.raw, waiting.deadline_ns)

    # ------------------------------------------------------------ calls of pyx.io.handing_over

    def is_ready(self, worker: int) -> bool:
        """Whether that worker takes connections now."""
        return self._context.is_ready(sibling(worker))

    def wait(self, conn: Connection, worker: int, raw: bytes, deadline_ns: int) -> None:
        """Let a connection wait for its home."""
        if len(self._waiting) >= self._context.settings.limits.handoff_pending_max:
            self._context.counters.add(count.HANDOFFS_REFUSED)
            self._closing.unavailable(conn, "its worker is busy")
        else:
            self._waiting.append(_Waiting(conn, worker, raw, deadline_ns))
            if len(self._waiting) == 1:
                self._reactor.hurry()  # the timer tries again

    def failed(self, worker: int, error: OSError) -> None:
        """Log that a connection could not be sent; it is tried again."""
        self._log.error("handoff_failed", worker_to=worker, reason=str(error))

    def lost(self, error: Exception) -> None:
        """Log that a connection was lost on the way here."""
        self._log.error("handoff_lost", reason=str(error))

    def refused(self, is_full: bool) -> None:
        """Count a connection that is not taken in because there are too many, or the worker stops."""
        if is_full:
            self._context.counters.add(count.CONNECTIONS_REFUSED)
            self._connecting.too_many_connections()

    def late(self, conn: Connection, unread: bytes) -> None:
        """Refuse a connection whose time for CONNECT was over before it arrived."""
        self._context.counters.add(count.HANDOFF_TIMEOUTS)
        self._context.dispatch.learn_version(conn, unread)
        self._closing.unavailable(conn, "its worker did not take it in time")
