"""The connections that have a session: open ones, and those whose CONNACK waits for the store.

Where the store keeps sessions, a CONNACK that promises something not stored yet waits for the store: the connection
stays DECIDING, its session has no connection, and packets after the CONNECT wait too. A newer CONNECT of the same
client id replaces a waiting one, which is closed without a word [MQTT-3.2.0-1]. A connection that ends before its
CONNACK has changed nothing: an existing session is restored (`_Before`), a new one is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from broker.context.sessions import own_bytes
from pyx.core.steps import Steps

if TYPE_CHECKING:
    from broker.clients.authenticating import ConnectAttempt
    from broker.clients.capacity import Capacity
    from broker.clients.endings import Endings
    from broker.clients.wills import Wills
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from broker.persistence.state_records import StateRecords
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Will

__all__ = ["Attachments", "PendingConnack"]


class _Before(NamedTuple):
    """The state of an offline session before a CONNECT resumed it."""

    expiry_interval: int
    version: int
    username: str | None
    will: Will | None
    will_due: int
    """Time in ms of the router's clock, if there is one."""

    @classmethod
    def of(cls, session: Session) -> _Before:
        """Return its present state."""
        details: Details = session.details
        due = 0 if details.will_handle is None else details.will_handle.deadline
        return cls(details.expiry_interval, session.version, details.username, details.will, due)


class PendingConnack:
    """A connection whose session is created or resumed, before its CONNACK. `before`: the former state, if any."""

    __slots__ = ("attempt", "before", "granted", "keep_alive", "present", "session")

    def __init__(
        self,
        attempt: ConnectAttempt,
        session: Session,
        before: _Before | None,
        granted: dict[str, Any] | None,
        keep_alive: int,
    ) -> None:
        self.attempt = attempt
        self.session = session
        self.before = before
        self.present = before is not None
        """The Session Present flag."""
        self.granted = granted
        self.keep_alive = keep_alive


class Attachments:
    """The connected sessions of one worker."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        state_records: StateRecords,
        wills: Wills,
        endings: Endings,
        capacity: Capacity,
    ) -> None:
        self._router = context.router
        self._sessions = sessions
        self._state_records = state_records
        self._wills = wills
        self._endings = endings
        self._capacity = capacity
        self._open = 0
        self._awaiting: dict[Connection, PendingConnack] = {}

    def __len__(self) -> int:
        return self._open + len(self._awaiting)

    def of(self, session: Session) -> Connection | None:
        """Return the connection that a newer one of this client id would replace."""
        return session.connection or session.details.awaiting

    def count(self) -> None:
        """Publish the number of connections."""
        self._capacity.set_connections(self._open + len(self._awaiting))

    def enter(
        self, attempt: ConnectAttempt, session: Session | None, granted: dict[str, Any] | None, keep_alive: int
    ) -> PendingConnack:
        """Begin to resume this session, or a new one (None): until its CONNACK, `withdraw` undoes all of it, whatever
        fails.
        """
        before = None
        if session is None:
            session = self._sessions.new(attempt.client_id, attempt.packet.version)
        else:
            self._sessions.release()
            self._sessions.came(session)
            before = _Before.of(session)
        pending = PendingConnack(attempt, session, before, granted, keep_alive)
        session.details.awaiting = attempt.conn
        self._awaiting[attempt.conn] = pending
        return pending

    def opened(self, pending: PendingConnack) -> None:
        """Note that its CONNACK is in the outbox."""
        del self._awaiting[pending.attempt.conn]
        pending.session.details.awaiting = None
        self._open += 1

    def closed(self) -> None:
        """Note that an open connection has ended."""
        self._open -= 1
        self._capacity.connection_ended()

    def pending(self, conn: Connection) -> PendingConnack | None:
        """Return what the CONNACK of this connection waits with, if it waits."""
        return self._awaiting.get(conn)

    def awaiting(self) -> list[Connection]:
        """Return the connections whose CONNACK waits for the disk."""
        return list(self._awaiting)

    def awaited(self, conn: Connection) -> str | None:
        """Return the client id of a connection whose CONNACK waits for the store."""
        pending = self._awaiting.get(conn)
        return None if pending is None else pending.attempt.client_id

    def withdraw(self, conn: Connection) -> None:
        """Cancel a CONNACK that waits for the store, if there is one. The client has got no answer, so its will is
        discarded, a session created for it ends, and an existing one is restored.
        """
        if self._capacity.waiting:
            self._capacity.forget(conn)
        if self._endings.clients:
            self._endings.forget(conn)
        pending = self._awaiting.pop(conn, None)
        if pending is None:
            return
        steps = Steps()
        steps.do(self._capacity.connection_ended)
        steps.do(self._take_back, pending)
        steps.finish()

    def _take_back(self, pending: PendingConnack) -> None:
        session, before = pending.session, pending.before
        details: Details = session.details
        details.awaiting = None
        if before is None:
            details.will = None
            self._state_records.will_gone(session)
            self._endings.end(session)
            return
        session.durable = True
        session.version = before.version
        self._sessions.left(session)
        details.username = before.username
        details.expiry_interval = before.expiry_interval
        details.will = before.will
        details.own_bytes = own_bytes(session.client_id, before.username, before.will)
        if before.will is None:
            self._state_records.will_gone(session)
        else:
            left = max(0, before.will_due - self._router.state.now_ms)
            self._state_records.will_waits(session, self._router.state.wall_ms + left)
            self._wills.start_delay(session, left / 1000)
        self._state_records.disconnected(session)
        self._endings.expire_in(session, details.expiry_interval)
