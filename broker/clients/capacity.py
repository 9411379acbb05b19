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

from broker.piecework import AT_ONCE
from pyx.core import claims
from pyx.core import counters as count
from pyx.core.claims import Claims
from pyx.core.counters import ROW_BYTES
from pyx.core.work import STEP, spend
from pyx.protocol.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.clients.authenticating import Entrant
    from broker.worker.core import Node
    from pyx.delivery.connection import Connection

__all__ = ["Room"]

_ASKED_AGAIN = 0.1  # seconds until a CONNECT that waits for a sibling's session to end looks again
_TRIES = 3  # times that each sibling is asked
_ENDED_AT_ONCE = 64  # sessions that one worker ends in a tick


class Room:
    """Of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sessions = node.sessions
        self._connections = Claims([bytearray(ROW_BYTES)], 0, claims.CONNECTIONS)
        self.waiting: dict[Connection, tuple[str, int]] = {}
        """Client ids of those that wait for another session to end, and how often they have looked."""
        self._asked = 0
        self._sweeps = 0

    def share(self, rows: Sequence[Any]) -> None:
        """These are the counter rows of all workers; of this one nothing has begun, or all is recovered."""
        self._connections = Claims(rows, self._node.index, claims.CONNECTIONS)
        self._connections.set(0)
        self._sessions.share(Claims(rows, self._node.index, claims.SESSIONS))

    # ------------------------------------------------------------ connections

    def for_connection(self, *, taking_over: bool) -> bool:
        """There is room for one more, or it takes the place of another: it is counted."""
        most = 0 if taking_over else self._node.settings.limits.connections_max
        return self._connections.take(most)

    def connections(self, number: int) -> None:
        """So many are there."""
        self._connections.set(number)

    # ------------------------------------------------------------ sessions

    def for_session(self, client_id: str) -> bool:
        """There is room for a new session, by the end of an offline one of this worker if need be: it is counted."""
        settings = self._node.settings
        most = settings.limits.sessions_max
        if self.waiting:
            spend(len(self.waiting) * STEP)
            for conn, (other, _) in list(self.waiting.items()):
                if other == client_id:  # it was told nothing yet [MQTT-3.2.0-1]
                    self._node.connecting.give_up(conn, "a newer connection of this client id was faster")
        if self._sessions.reserve(most):
            return True
        return settings.sessions_full == "end_oldest" and self._end_oldest() and self._sessions.reserve(most)

    def wait(self, entrant: Entrant, tries: int, again: Callable[[], None]) -> bool:
        """No session of this worker is offline: a sibling may have one. `again`, when it may have ended. False: nobody
        has one.
        """
        node = self._node
        if node.settings.sessions_full != "end_oldest" or tries >= len(node.siblings) * _TRIES:
            return False
        self._asked += 1
        node.router.tell(node.siblings[self._asked % len(node.siblings)], b"e", b"")
        conn = entrant.conn
        self.waiting[conn] = entrant.client_id, tries + 1
        node.call_later(_ASKED_AGAIN, partial(node.guard, conn, self._again, conn, again))
        return True

    def _again(self, conn: Connection, again: Callable[[], None]) -> None:
        if self.waiting.pop(conn, None) is not None:
            again()
            self._node.dispatch.resume(conn)

    def forget(self, conn: Connection) -> None:
        """It waits no longer."""
        self.waiting.pop(conn, None)

    def refuse(self, entrant: Entrant) -> None:
        """There is no room for its session."""
        node = self._node
        node.counters.add(count.SESSIONS_OVER_MAX)
        node.log.warning("sessions_max_reached", sessions_max=node.settings.limits.sessions_max)
        node.connecting.refuse(entrant.conn, ReasonCode.QUOTA_EXCEEDED, "too many sessions", client=entrant.client_id)

    def asked(self) -> None:
        """A sibling has a client that waits for room, and no session of its own that could end."""
        limits = self._node.settings.limits
        if limits.sessions_max and self._sessions.held >= limits.sessions_max:
            self._end_oldest()

    def sweep(self) -> None:
        """Once a second: nothing is counted that is not there, and what is too much ends."""
        self._sessions.recount()
        settings, workers = self._node.settings, self._node.workers
        most = settings.limits.sessions_max
        self._sweeps += 1
        over = self._sessions.held - most
        if most and over > 0 and settings.sessions_full == "end_oldest":
            # the parts of all workers are what is too much; who has the odd ones changes
            place = (self._node.index + self._sweeps) % workers
            self._end_some(over // workers + (place < over % workers))

    def _end_some(self, left: int) -> None:
        subscriptions = self._node.router.subscriptions
        before = subscriptions.count
        for _ in range(min(left, _ENDED_AT_ONCE)):
            if not self._end_oldest():
                return
            left -= 1
            if before - subscriptions.count >= AT_ONCE:
                break
        if left:
            self._node.soon(partial(self._end_some, left))

    def _end_oldest(self) -> bool:
        node = self._node
        session = self._sessions.longest_offline()
        if session is None:
            return False
        node.counters.add(count.SESSIONS_ENDED_FOR_ROOM)
        node.log.warning("session_ended_for_room", client=session.client_id)
        node.recording.session_ended(session, "sessions_max")
        node.endings.end(session)
        return True
