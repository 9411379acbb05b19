"""The connections that have a session: those that are open, and those whose CONNACK waits for the store.

Where the store keeps sessions, a CONNACK that promises what the store does not hold yet waits for it: the connection
stays DECIDING, its session has no connection, and what comes behind the CONNECT waits too. A newer CONNECT of the same
client id takes the place of one that waits; that one is told nothing [MQTT-3.2.0-1]. Whoever ends without its CONNACK
has changed nothing: the session that it found is what it was (`_Before`), one that it made is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from broker.context.sessions import own_bytes
from pyx.core.steps import Steps

if TYPE_CHECKING:
    from broker.clients.authenticating import Entrant
    from broker.clients.capacity import Capacity
    from broker.clients.endings import Endings
    from broker.clients.wills import Wills
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from broker.persistence.state_records import StateRecords
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Will

__all__ = ["Occupants", "PendingConnack"]


class _Before(NamedTuple):
    """What an offline session was when a CONNECT found it."""

    expiry_interval: int
    version: int
    username: str | None
    will: Will | None
    will_due: int
    """ms of the router's clock, if there is one."""

    @classmethod
    def of(cls, session: Session) -> _Before:
        """What it is now."""
        details: Details = session.details
        due = 0 if details.will_handle is None else details.will_handle.deadline
        return cls(details.expiry_interval, session.version, details.username, details.will, due)


class PendingConnack:
    """Of a connection whose session is made or resumed. `before`: the session that was there."""

    __slots__ = ("before", "entrant", "granted", "keep_alive", "session")

    def __init__(
        self,
        entrant: Entrant,
        session: Session,
        before: _Before | None,
        granted: dict[str, Any] | None,
        keep_alive: int,
    ) -> None:
        self.entrant = entrant
        self.session = session
        self.before = before
        self.granted = granted
        self.keep_alive = keep_alive

    @property
    def present(self) -> bool:
        """Of Session Present."""
        return self.before is not None


class Occupants:
    """Of one worker's sessions."""

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
        self.open = 0
        """How many are open."""
        self._awaiting: dict[Connection, PendingConnack] = {}

    def __len__(self) -> int:
        return self.open + len(self._awaiting)

    def of(self, session: Session) -> Connection | None:
        """The connection that a newer one of this client id would take the place of."""
        return session.connection or session.details.awaiting

    def count(self) -> None:
        """Say how many there are."""
        self._capacity.connections(len(self))

    def enter(
        self, entrant: Entrant, session: Session | None, granted: dict[str, Any] | None, keep_alive: int
    ) -> PendingConnack:
        """It resumes this session, or begins one (None): until its CONNACK, whatever fails, `withdraw` takes all of it
        back.
        """
        before = None
        if session is None:
            session = self._sessions.new(entrant.client_id, entrant.packet.version)
        else:
            self._sessions.release()
            self._sessions.came(session)
            before = _Before.of(session)
        pending = PendingConnack(entrant, session, before, granted, keep_alive)
        session.details.awaiting = entrant.conn
        self._awaiting[entrant.conn] = pending
        return pending

    def opened(self, pending: PendingConnack) -> None:
        """Its CONNACK is in the outbox."""
        del self._awaiting[pending.entrant.conn]
        pending.session.details.awaiting = None
        self.open += 1

    def is_pending(self, pending: PendingConnack) -> bool:
        """Whether it has not gone meanwhile."""
        return self._awaiting.get(pending.entrant.conn) is pending

    def awaiting(self) -> list[Connection]:
        """Those whose CONNACK waits for the disk."""
        return list(self._awaiting)

    def awaited(self, conn: Connection) -> str | None:
        """The client id of a connection whose CONNACK waits for the store."""
        pending = self._awaiting.get(conn)
        return None if pending is None else pending.entrant.client_id

    def withdraw(self, conn: Connection) -> None:
        """If a CONNACK waits for the store: it will not be sent. The client was told nothing, so its will is none, a
        session that was made for it ends, and one that was there is what it was.
        """
        if self._capacity.waiting:
            self._capacity.forget(conn)
        if self._endings.clients:
            self._endings.forget(conn)
        pending = self._awaiting.pop(conn, None)
        if pending is None:
            return
        steps = Steps()
        steps.do(self.count)
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
