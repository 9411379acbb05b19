"""The end of sessions, in one step or in many.

A session ends at once: it cannot be found any more, nothing is sent to it, and the store has the end. What it leaves
(the names of its subscriptions, their records, its share groups' messages for others) may be much; then it is cleared
in pieces (`pyx.delivery.ending`, `broker.context.piecework`), and a CONNECT of the same client waits for the last of
them, so that a new session never meets remains of a former one.

On the disk the record of such a session is changed to end with its connection, as of now, and is kept until its last
subscription is deleted. After a crash in between, the next start finds an expired session with its remains, and ends it
(`broker.worker.recovery`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.context.piecework import AT_ONCE
from broker.context.sessions import NEVER
from pyx.core import counters as count
from pyx.core.steps import Steps
from pyx.delivery.ending import Remains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.clients.retaining import Retaining
    from broker.clients.wills import Wills
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from broker.persistence.recording import Recording
    from broker.persistence.state_records import StateRecords
    from broker.replay.replaying import Replaying
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session

__all__ = ["Endings"]


class Endings:
    """Ends the sessions of one worker."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        state_records: StateRecords,
        recording: Recording,
        wills: Wills,
        retaining: Retaining,
        replaying: Replaying,
    ) -> None:
        self._context = context
        self._router = context.router
        self._sessions = sessions
        self._state_records = state_records
        self._recording = recording
        self._wills = wills
        self._retaining = retaining
        self._replaying = replaying
        self.clients: dict[str, dict[Connection, Callable[[], None]]] = {}
        """Client ids whose former session is not cleared yet: the connections that wait for it, and the callbacks for
        them.
        """

    # ------------------------------------------------------------ expiry

    def expiry_granted(self, asked: int) -> int:
        """Limit a requested Session Expiry Interval to session_expiry_seconds_max, if that is set."""
        most = self._context.limits.session_expiry_seconds_max
        if not most or asked <= most:
            return asked
        self._context.counters.add(count.SESSION_EXPIRIES_SHORTENED)
        return most

    def expire_in(self, session: Session, seconds: float) -> None:
        """End an offline session after this time (NEVER: not at all)."""
        self.hold(session)
        if seconds != NEVER:
            session.details.expiry_handle = self._context.call_later(seconds, lambda: self._expire(session), session)

    def _expire(self, session: Session) -> None:
        session.details.expiry_handle = None
        self._context.counters.add(count.SESSIONS_EXPIRED)
        steps = Steps()
        steps.do(self._recording.session_expired, session)
        steps.do(self.end, session)
        steps.finish()

    # ------------------------------------------------------------ the end

    def end(self, session: Session) -> None:
        """End an offline session: its will, if it still waits for its delay, is due now [MQTT-3.1.2-8]."""
        details: Details = session.details
        self.hold(session)
        steps = Steps()
        steps.do(self._sessions.remove, session)
        steps.do(self.delete_state, session, self._router.ending.end_session)
        if details.will_handle is not None:
            details.will_handle.cancel()
            steps.do(self._wills.due, session)
        steps.finish()

    def end_moved(self, session: Session) -> None:
        """End a session without a connection that another host has."""
        self.will_moved(session)
        session.details.epoch = 0  # nothing is released
        self._recording.session_ended(session, "moved to another host")
        self.end(session)

    def will_moved(self, session: Session) -> None:
        """Forget the will of a session without a connection that another host has: it is that one's, too."""
        details: Details = session.details
        details.will = None
        if details.will_handle is not None:
            details.will_handle.cancel()
            details.will_handle = None
        self._state_records.will_gone(session)

    def hold(self, session: Session) -> None:
        """Let an offline session not expire for now: `expire_in` does."""
        details: Details = session.details
        if details.expiry_handle is not None:
            details.expiry_handle.cancel()
            details.expiry_handle = None

    def delete_state(self, session: Session, let_go: Callable[[Session, Remains | None], None]) -> None:
        """Delete and forget its state; `let_go` is the router's part."""
        large = is_large(session)
        if not large and not self._state_records.keeps and not self.works_for(session):
            let_go(session, None)  # the common case: nothing of it concerns others
            return
        remains = Remains() if large else None
        kept = remains is not None and self._state_records.stores(session)
        steps = Steps()
        steps.do(self._state_records.ends_slowly if kept else self._state_records.ends, session)
        steps.do(let_go, session, remains)
        if remains is not None:
            steps.do(self._clear, session, remains, kept)
        steps.do(self._nothing_is_done_for, session)
        steps.finish()

    def works_for(self, session: Session) -> bool:
        """Whether piecewise work for the session is in progress."""
        details: Details = session.details
        return bool(session.replays or details.walks or details.walks_waiting or details.unanswered)

    def _nothing_is_done_for(self, session: Session) -> None:
        """Stop counting work for a session that has been cleared."""
        steps = Steps()
        steps.do(self._replaying.ended, session)
        steps.do(self._retaining.ended, session)
        steps.finish()

    def _clear(self, session: Session, remains: Remains, kept: bool) -> None:
        client_id = session.client_id
        self.clients[client_id] = {}
        self._context.piecework.add(
            self._pieces(session, remains, kept), lambda error: self._context.defect(client_id, error)
        )

    def _pieces(self, session: Session, remains: Remains, kept: bool) -> Iterator[None]:
        client_id = session.client_id
        while len(remains):
            self._context.guard_session(session, self._clear_some, client_id, remains, kept)
            yield
        if kept:
            self._state_records.ended(client_id)
        for conn, again in self.clients.pop(client_id).items():
            self._context.guard(conn, again)
            self._context.dispatch.resume(conn)

    def _clear_some(self, client_id: str, remains: Remains, kept: bool) -> None:
        names = self._router.ending.clear(remains, AT_ONCE)
        if kept:
            self._state_records.clear(client_id, names)

    # ------------------------------------------------------------ connections that wait

    def is_awaited(self, client_id: str) -> bool:
        """Whether a connection of this client waits for that."""
        return bool(self.clients.get(client_id))

    def waiting(self, client_id: str) -> list[Connection]:
        """Return the connections that wait for that."""
        return list(self.clients[client_id])

    def wait(self, conn: Connection, client_id: str, again: Callable[[], None]) -> None:
        """Call `again` when the former session is cleared."""
        self.clients[client_id][conn] = again

    def forget(self, conn: Connection) -> None:
        """Remove a connection that no longer waits."""
        for waiting in self.clients.values():
            waiting.pop(conn, None)


def is_large(session: Session) -> bool:
    """Whether a session has more than is cleared at once."""
    return session.extent > AT_ONCE
