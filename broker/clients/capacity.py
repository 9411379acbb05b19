"""How many connections and sessions all workers together may have, and who gives way for another one.

Both bounds (connections_max, sessions_max) are of the broker and exact: every worker says in its counter row what it
has and looks at those of all (`pyx.core.claims`). A worker that dies gives its connections back at once, and its
sessions when its successor begins where they were in its memory; those in its store count on.

At sessions_max, `sessions_full` decides about a CONNECT that would begin another session. `refuse`: CONNACK 0x97 (v3:
3). `end_oldest`: the session that has been offline for longest ends, of this worker if it has any, else of the next
sibling that has one: the CONNECT waits for that, for as many tries as it takes to ask each of them. Where nobody is
offline it is refused as well. After a start, or a reload, with a smaller bound each worker ends its part of what is too
much, a few in each tick; with `refuse` all of them stay, and there are no new ones until there is room.
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

_ASKED_AGAIN = 0.1  # seconds until a CONNECT that waits for a sibling's session to end looks again
_TRIES = 3  # times that each sibling is asked
_ENDED_AT_ONCE = 64  # sessions that one worker ends in a tick


class Capacity:
    """Of one worker."""

    def __init__(self, context: Context, sessions: Sessions, recording: Recording, endings: Endings) -> None:
        self._context = context
        self._sessions = sessions
        self._recording = recording
        self._endings = endings
        self._connections = Claims([bytearray(ROW_BYTES)], 0, claims.CONNECTIONS)
        self.waiting: dict[Connection, tuple[str, int]] = {}
        """Client ids of those that wait for another session to end, and how often they have looked."""
        self._asked = 0
        self._sweeps = 0

    def share(self, rows: Sequence[Any]) -> None:
        """These are the counter rows of all workers; of this one nothing has begun, or all is recovered."""
        self._connections = Claims(rows, self._context.index, claims.CONNECTIONS)
        self._connections.set(0)
        self._sessions.share(Claims(rows, self._context.index, claims.SESSIONS))

    # ------------------------------------------------------------ connections

    def for_connection(self, *, taking_over: bool) -> bool:
        """There is room for one more, or it takes the place of another: it is counted."""
        most = 0 if taking_over else self._context.settings.limits.connections_max
        return self._connections.take(most)

    def connections(self, number: int) -> None:
        """So many are there."""
        self._connections.set(number)

    # ------------------------------------------------------------ sessions

    def waiting_for(self, client_id: str) -> list[Connection]:
        """Those of this client id that wait for another session to end."""
        if not self.waiting:
            return []
        spend(len(self.waiting) * STEP)
        return [conn for conn, (other, _) in self.waiting.items() if other == client_id]

    def for_session(self) -> bool:
        """There is room for a new session, by the end of an offline one of this worker if need be: it is counted."""
        settings = self._context.settings
        most = settings.limits.sessions_max
        if self._sessions.reserve(most):
            return True
        return settings.sessions_full == "end_oldest" and self._end_oldest() and self._sessions.reserve(most)

    def wait(self, conn: Connection, client_id: str, tries: int, again: Callable[[], None]) -> bool:
        """No session of this worker is offline: a sibling may have one. `again`, when it may have ended. False: nobody
        has one.
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
        """It waits no longer."""
        self.waiting.pop(conn, None)

    def asked(self) -> None:
        """A sibling has a client that waits for room, and no session of its own that could end."""
        limits = self._context.settings.limits
        if limits.sessions_max and self._sessions.held >= limits.sessions_max:
            self._end_oldest()

    def sweep(self) -> None:
        """Once a second: nothing is counted that is not there, and what is too much ends."""
        self._sessions.recount()
        settings, workers = self._context.settings, self._context.workers
        most = settings.limits.sessions_max
        self._sweeps += 1
        over = self._sessions.held - most
        if most and over > 0 and settings.sessions_full == "end_oldest":
            # the parts of all workers are what is too much; who has the odd ones changes
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
