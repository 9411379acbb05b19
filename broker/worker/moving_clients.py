"""Clients that this host sends to other ones because it has more than its share, as the leader of the cluster plans.

Each is told which host (DISCONNECT 0x9C with its address as the Server Reference), and takes its session along where it
connects. Nobody is sent away who cannot be told, or would lose by it: clients before MQTT 5, bridges, sessions that
read the archive, or that this host is not known to own. First go those that nobody misses: whose session lasts, without
a will that is due at once. A client that has come back is not told again, as long as its hash is remembered.

    control -> worker   MoveClients (`broker.admin.requests`): how many clients to which address, for the plan with a
    number

A plan is carried out once: the same number again changes nothing, also after it was taken back. It is given up when the
control process takes it back, or when it takes far longer than it should.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from broker.config.bridges import LOCAL_IDS
from pyx.core import counters as count
from pyx.core.work import STEP, spend
from pyx.protocol.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.admin.requests import MoveClients
    from broker.clients.closing import Closing
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from pyx.delivery.session import Session

__all__ = ["TOLD_MAX", "MovingClients"]

_LOOKED_AT: Final = 200
"""Sessions that are looked at in one callback."""
TOLD_MAX: Final = 65_536
"""Clients of which the worker remembers that they were told to go; the earliest is forgotten first."""
_LATE_SECONDS: Final = 30.0
"""Time beyond twice what a plan needs at its pace."""
_WHY: Final = "another host has fewer clients"


class MovingClients:
    """One worker's part. is_leaving: whether a session is on its way already."""

    def __init__(
        self, context: Context, sessions: Sessions, closing: Closing, is_leaving: Callable[[str], bool]
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._closing = closing
        self._is_leaving = is_leaving
        self._plan = 0
        self._places: list[tuple[str, int]] = []
        """Addresses, each with how many clients are still to be told it."""
        self._per_second = 0.0
        self._until = 0.0
        self._walk: Iterator[str] = iter(())
        self._takes_all = False
        """Whether the walk takes those, too, that somebody misses."""
        self._room = 0.0
        """How many may be sent away now."""
        self._looked_at = 0.0
        self._told: dict[int, None] = {}
        """Hashes of client ids, the earliest first."""

    @property
    def left(self) -> int:
        """How many clients are still to be sent away."""
        return sum(clients for _, clients in self._places)

    def take(self, request: MoveClients) -> int:
        """Carry out a plan, or give it up. Return how many clients are still to be sent away."""
        if not request.to:
            self._places = []
        elif request.plan != self._plan:
            self._plan, self._places = request.plan, list(request.to)
            now = self._now()
            self._per_second = request.per_second
            self._until = now + (2 * self.left / request.per_second if request.per_second else 0.0) + _LATE_SECONDS
            self._room, self._looked_at = 0.0, now
            self._begin_walk(takes_all=False)
        return self.left

    def _now(self) -> float:
        return self._context.router.state.now_ms / 1000

    def _begin_walk(self, takes_all: bool) -> None:
        self._takes_all = takes_all
        self._walk = iter(self._sessions.clients())
        spend(len(self._sessions))

    def tick(self, now: float) -> None:
        """Send away as many as may go now."""
        if not self._places:
            return
        if now >= self._until:
            self._places = []
            return
        self._room = min(self._room + (now - self._looked_at) * self._per_second, max(1.0, self._per_second))
        self._looked_at = now
        for _ in range(_LOOKED_AT):
            if self._room < 1 or not self._places:
                return
            client_id = next(self._walk, None)
            if client_id is None and not self._takes_all:
                self._begin_walk(takes_all=True)
                return
            if client_id is None:
                self._places = []  # nobody is left who may go
                return
            spend(STEP)
            session = self._sessions.get(client_id)
            if session is not None and self._may_go(session):
                self._context.guard_client(client_id, self._send_away, session)

    def _may_go(self, session: Session) -> bool:
        conn, client_id, details = session.connection, session.client_id, session.details
        if conn is None or conn.version != 5 or client_id.startswith(LOCAL_IDS) or not details.epoch:
            return False
        if session.replays or hash(client_id) in self._told or self._is_leaving(client_id):
            return False
        return self._takes_all or _is_missed_by_nobody(details)

    def _send_away(self, session: Session) -> None:
        conn = session.connection
        if conn is None:  # `_may_go` has seen one
            return
        address, clients = self._places[0]
        self._places[0] = address, clients - 1
        if clients == 1:
            del self._places[0]
        self._room -= 1
        self._told[hash(session.client_id)] = None
        if len(self._told) > TOLD_MAX:
            del self._told[next(iter(self._told))]
        self._context.counters.add(count.CLIENTS_SENT_AWAY)
        self._closing.end_connection(conn, ReasonCode.USE_ANOTHER_SERVER, _WHY, server=address)


def _is_missed_by_nobody(details: Details) -> bool:
    """Whether the session outlives the connection, and its will, if it has one, waits for the client."""
    will = details.will
    return details.expiry_interval > 0 and (will is None or will.delay_interval > 0)
