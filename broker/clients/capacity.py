"""The bounds on connections and sessions of all workers together, and the choice of a session to end for another.

Both bounds (connections_max, sessions_max) hold for the whole broker and are exact: every worker publishes its counts
in its counter row and reads those of all (`pyx.core.claims`). When a worker dies, its connections are released at once,
and its sessions in memory when its successor begins; sessions in its store keep counting.

At sessions_max, `sessions_full` decides about a CONNECT that would create a session. `refuse`: CONNACK 0x97 (v3: 3).
`end_oldest`: the session that has been offline for longest ends: one of this worker if it has any, else of the next
sibling that has one. The CONNECT waits for that, for as many tries as it takes to ask each sibling. If no session is
offline, it is refused as well. After a start or reload with a smaller bound, `end_oldest` makes each worker end its
share of the excess, a few in each tick; with `refuse` all sessions stay, and no new one is admitted until there is
room.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker.context.piecework import AT_ONCE
from pyx.core import claims
from pyx.core import counters as count
from pyx.core.claims import Claims
from pyx.core.counters import ROW_BYTES
from pyx.core.work import STEP, spend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.clients.endings import Endings
    from broker.context.context import Context
    from broker.context.sessions import Sessions
    from broker.persistence.recording import Recording
    from pyx.delivery.connection import Connection

__all__ = ["Capacity"]

_ASKED_AGAIN = 0.1  # seconds between two tries of a CONNECT that waits for a sibling's session to end
_TRIES = 3  # times that each sibling is asked
_ENDED_AT_ONCE = 64  # sessions that one worker ends per tick


class Capacity:
    """Admission of one worker's connections and sessions."""

    def __init__(self, context: Context, sessions: Sessions, recording: Recording, endings: Endings) -> None:
        self._context = context
        self._sessions = sessions
        self._recording = recording
        self._endings = endings
        self._claim_connections(Claims([bytearray(ROW_BYTES)], 0, claims.CONNECTIONS))
        self.waiting: dict[Connection, tuple[str, int]] = {}
        """Client ids of connections that wait for another session to end, and the number of their tries."""
        self._asked = 0
        self._sweeps = 0

    def share(self, rows: Sequence[Any]) -> None:
        """Set the counter rows of all workers; called when this one is still empty or has recovered everything."""
        self._claim_connections(Claims(rows, self._context.index, claims.CONNECTIONS))
        self.set_connections(0)
        self._sessions.share(Claims(rows, self._context.index, claims.SESSIONS))

    # ------------------------------------------------------------ connections

    def _claim_connections(self, claims: Claims) -> None:
        self._connections = claims
        self.set_connections: Callable[[int], None] = claims.set
        self.connection_ended: Callable[[], None] = claims.give_back
        """Correct the number of connections."""

    def for_connection(self, taking_over: bool) -> bool:
        """Claim room for a connection, and count it; return whether there is. Always, if it takes another's place."""
        most = 0 if taking_over else self._context.limits.connections_max
        return self._connections.take(most)

    # ------------------------------------------------------------ sessions

    def waiting_for(self, client_id: str) -> list[Connection]:
        """Return the connections of this client id that wait for another session to end."""
        spend(len(self.waiting) * STEP)
        return [conn for conn, (other, _) in self.waiting.items() if other == client_id]

    def for_session(self, makes_room: bool = True) -> bool:
        """Claim room for a new session, ending an offline one of this worker if needed and wished; return whether there
        is.
        """
        most = self._context.limits.sessions_max
        if self._sessions.reserve(most):
            return True
        ends_oldest = makes_room and self._context.settings.sessions_full == "end_oldest"
        return ends_oldest and self._end_oldest() and self._sessions.reserve(most)

    def wait(self, conn: Connection, client_id: str, tries: int, again: Callable[[], None]) -> bool:
        """Wait for a sibling to end an offline session, because this worker has none; call `again` then. Return False
        if no sibling is left to ask.
        """
        context = self._context
        siblings = context.siblings
        if context.settings.sessions_full != "end_oldest" or tries >= len(siblings) * _TRIES:
            return False
        self._asked += 1
        context.router.peers.tell(siblings[self._asked % len(siblings)], b"e", b"")
        self.waiting[conn] = client_id, tries + 1
        context.call_later(_ASKED_AGAIN, partial(context.guard, conn, self._again, conn, again))
        return True

    def _again(self, conn: Connection, again: Callable[[], None]) -> None:
        if self.waiting.pop(conn, None) is not None:
            again()
            self._context.dispatch.resume(conn)

    def forget(self, conn: Connection) -> None:
        """Remove a connection that no longer waits."""
        self.waiting.pop(conn, None)

    def asked(self) -> None:
        """End an offline session for a sibling, which has a waiting client and no session of its own to end."""
        limits = self._context.limits
        if limits.sessions_max and self._sessions.held >= limits.sessions_max:
            self._end_oldest()

    def sweep(self) -> None:
        """Correct the counts and end excess sessions; called once a second."""
        self._sessions.recount()
        most, workers = self._context.limits.sessions_max, self._context.workers
        self._sweeps += 1
        over = self._sessions.held - most
        if most and over > 0 and self._context.settings.sessions_full == "end_oldest":
            # the excess is divided among all workers; the remainder goes to another one each time
            place = (self._context.index + self._sweeps) % workers
            self._end_some(over // workers + (place < over % workers))

    def _end_some(self, left: int) -> None:
        subscriptions = self._context.router.state.subscriptions
        before = subscriptions.count
        for _ in range(min(left, _ENDED_AT_ONCE)):
            if not self._end_oldest():
                return
            left -= 1
            if before - subscriptions.count >= AT_ONCE:
                break
        if left:
            self._context.soon(partial(self._end_some, left))

    def _end_oldest(self) -> bool:
        session = self._sessions.longest_offline()
        if session is None:
            return False
        self._context.counters.add(count.SESSIONS_ENDED_FOR_ROOM)
        self._context.log.warning("session_ended_for_room", client=session.client_id)
        self._recording.session_ended(session, "sessions_max")
        self._endings.end(session)
        return True
