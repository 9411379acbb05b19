"""A host that drains: its clients go to other hosts, and so do the sessions of those that are not connected.

A client is told to use another server (DISCONNECT 0x9C, with the addresses of the others if they say them; MQTT 3 just
loses its connection), and takes its session along where it connects. A session whose client is not connected is offered
to another host:

    former -> other   OFFER   you may take the session of this client id, which is owned here since this epoch

The other host brings it as if its client had connected there (`broker.worker.moves`), or does nothing. A client that
was told to go has time to take its session itself. Both are paced by `cluster.drain_per_second`, and nobody is sent
away while no other host takes clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.config.bridges import LOCAL_IDS, local_ids
from pyx.core import counters as count
from pyx.core.work import STEP, spend
from pyx.protocol.reasons import ReasonCode

if TYPE_CHECKING:
    from broker.clients.closing import Closing
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session

__all__ = ["OFFER", "Draining", "Taker"]

OFFER: Final = b"A"
_LOOKED_AT: Final = 200
"""Sessions that are looked at in one callback."""
_OFFERED_MAX: Final = 64
"""Sessions that are offered, and have not gone yet."""
_OFFER_SECONDS: Final = 10.0
"""Time for a session to go; then it is offered to another host."""
_CLIENT_SECONDS: Final = 10.0
"""Time in which a client that was told to go may take its session along."""
_AGAIN_SECONDS: Final = 0.5
"""Pause between two walks over all sessions."""
_WHY: Final = "this host takes no clients at present"


class Taker(NamedTuple):
    """A host that takes clients. client_address: where, as clients are told; "": it does not say."""

    number: int
    client_address: str


class Draining:
    """One worker of a host that may drain. offer(host, epoch, client id): sends an OFFER, and returns whether that
    host is linked. is_leaving: whether a session is on its way already. left_behind: how many sessions only wait for
    hosts that are away (`broker.worker.giving`). coming: how many clients and sessions are on their way to this worker.
    """

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        closing: Closing,
        offer: Callable[[int, int, str], bool],
        is_leaving: Callable[[str], bool],
        left_behind: Callable[[], int],
        coming: Callable[[], int],
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._closing = closing
        self._offer = offer
        self._is_leaving = is_leaving
        self._left_behind = left_behind
        self._coming = coming
        self.is_on = False
        """Whether clients and sessions are sent away."""
        self._takers: list[Taker] = []
        self._next = 0
        """Counts offers, which go to each of the takers in turn."""
        self._walk: Iterator[str] = iter(())
        self._walk_at = 0.0
        self._room = 0.0
        """How many may be sent away now."""
        self._looked_at = 0.0
        self._told: dict[str, float] = {}
        """By client id: until when a client that was told to go may take its session, the earliest first."""
        self._offered: dict[str, float] = {}
        """By client id: until when a session is offered, the earliest first."""

    def set(self, drains: bool, takers: list[Taker]) -> None:
        """Note whether this host drains, and which hosts take its clients."""
        self._takers = takers
        is_on = drains and bool(takers)
        self._closing.other_servers = " ".join(filter(None, (each.client_address for each in takers))) if is_on else ""
        if is_on == self.is_on:
            return
        self.is_on = is_on
        self._told.clear()
        self._offered.clear()
        self._walk, self._walk_at = iter(()), 0.0
        self._room, self._looked_at = 0.0, self._context.router.state.now_ms / 1000

    def refuse(self, conn: Connection, client_id: str) -> None:
        """Refuse a client that connects meanwhile."""
        servers = self._closing.other_servers or self._context.settings.protocol.redirect
        self._closing.refuse(conn, ReasonCode.USE_ANOTHER_SERVER, _WHY, servers, client=client_id)

    def report(self) -> dict[str, int | bool]:
        """Return what is left here."""
        row, settings = self._context.counters, self._context.settings
        of_bridges = [self._sessions.get(each) for *_, each in local_ids(settings.bridges, settings.cluster.node_id)]
        stay = [each for each in of_bridges if each is not None]
        connected = row.get(count.CONNECTIONS_OPENED) - row.get(count.CONNECTIONS_CLOSED)
        return {
            "on": self.is_on,
            "connected": max(0, connected - sum(each.connection is not None for each in stay)),
            "sessions": len(self._sessions) - len(stay),
            "left_behind": self._left_behind(),
            "coming": self._coming(),
        }

    def tick(self, now: float) -> None:
        """Send away as many as may go now."""
        if not self.is_on:
            return
        per_second = self._context.settings.cluster.drain_per_second / self._context.workers
        self._room = min(self._room + (now - self._looked_at) * per_second, max(1.0, per_second))
        self._looked_at = now
        for waits in (self._told, self._offered):
            while waits and next(iter(waits.values())) <= now:
                del waits[next(iter(waits))]
        for client_id in [client_id for client_id in self._offered if self._sessions.get(client_id) is None]:
            del self._offered[client_id]
        for _ in range(_LOOKED_AT):
            if self._room < 1:
                return
            looked_at = next(self._walk, None)
            if looked_at is None and now >= self._walk_at:
                self._walk, self._walk_at = iter(self._sessions.clients()), now + _AGAIN_SECONDS
                spend(len(self._sessions))
                looked_at = next(self._walk, None)
            if looked_at is None:
                return
            spend(STEP)
            session = self._sessions.get(looked_at)
            if session is not None:
                self._context.guard_client(looked_at, self._send_away, session, now)

    def _send_away(self, session: Session, now: float) -> None:
        client_id, details = session.client_id, session.details
        if client_id.startswith(LOCAL_IDS):  # bridges are not for other hosts
            return
        if session.connection is not None:
            self._room -= 1
            self._told.pop(client_id, None)
            self._told[client_id] = now + _CLIENT_SECONDS
            self._context.counters.add(count.CLIENTS_SENT_AWAY)
            self._closing.end_connection(session.connection, ReasonCode.USE_ANOTHER_SERVER, _WHY)
        elif self._may_be_offered(client_id, details):
            self._room -= 1
            taker = self._takers[self._next % len(self._takers)]
            self._next += 1
            if self._offer(taker.number, details.epoch, client_id):
                self._offered[client_id] = now + _OFFER_SECONDS
                self._context.counters.add(count.SESSIONS_OFFERED)

    def _may_be_offered(self, client_id: str, details: Details) -> bool:
        if not details.epoch or details.awaiting is not None or len(self._offered) >= _OFFERED_MAX:
            return False
        if details.will is not None:  # it waits for its delay, and would not come along
            return False
        return not (client_id in self._told or client_id in self._offered or self._is_leaving(client_id))
