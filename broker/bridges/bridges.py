"""The bridges of one worker: the connections whose client id has its home here."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.bridges.bridge_connection import BridgeConnection
from broker.config.bridges import LOCAL_IDS, local_ids, remote_ids
from pyx.core import counters as count
from pyx.core.work import STEP, spend
from pyx.io.connections import OF_BRIDGES
from shards.placement import home

if TYPE_CHECKING:
    from broker.clients.authenticating import Authenticating
    from broker.clients.closing import Closing
    from broker.config.settings import Settings
    from broker.context.context import Context
    from broker.context.sessions import Sessions
    from pyx.core.limits import Limits
    from pyx.io.reactor import Reactor

__all__ = ["Bridges"]

_TICK_SECONDS: Final = 1.0
_AT_ONCE: Final = 1000
_CONNECT_MS: Final = 10_000


class Bridges:
    """Those of one worker. Implements `broker.bridges.bridge_connection.ThisBroker`."""

    def __init__(
        self, context: Context, sessions: Sessions, authenticating: Authenticating, closing: Closing, reactor: Reactor
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._authenticating = authenticating
        self._closing = closing
        self._reactor = reactor
        self._connections: list[BridgeConnection] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._counted = [0, 0, 0]

    def start(self) -> None:
        """Begin to connect, and end the sessions of bridges that are configured no more."""
        cluster, host = self.settings.cluster, socket.gethostname()
        wanted = set()
        for name, number, client_id in local_ids(self.settings.bridges, cluster.node_id):
            if home(client_id, self._context.workers) != self._context.index:
                continue
            wanted.add(client_id)
            bridge = self.settings.bridges[name]
            remote_id = remote_ids(bridge, name, cluster.node_id or host)[number]
            self._connections.append(
                BridgeConnection(self, self._context.log, name, number, bridge, client_id, remote_id)
            )
        self._context.in_pieces(self._end_others(wanted))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each.run()) for each in self._connections]
        if self._tasks:
            self._tick()

    async def stop(self) -> None:
        """End all connections."""
        if self._timer is not None:
            self._timer.cancel()
        for each in self._tasks:
            each.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def report(self) -> list[dict[str, Any]]:
        """Return what is known of each connection."""
        found = []
        for each in self._connections:
            status, session = each.status(), self._sessions.get(each.local_id)
            waiting = 0 if session is None else self._context.router.bounding.backlog(session)[0]
            found.append({"bridge": each.name, "connection": each.number, **status._asdict(), "waiting": waiting})
        return found

    def _end_others(self, wanted: set[str]) -> Iterator[None]:
        """End the sessions of former bridges: what waits for them would wait for ever."""
        for at, client_id in enumerate(self._sessions.clients(), 1):
            if client_id.startswith(LOCAL_IDS) and client_id not in wanted:
                session = self._sessions.get(client_id)
                if session is not None:
                    waiting = self._context.router.bounding.backlog(session)[0]
                    self._context.log.warning("bridge_session_ended", client=client_id, messages=waiting)
                    self._closing.delete(client_id)
            if at % _AT_ONCE == 0:
                spend(STEP)
                yield

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now, totals, connected = loop.time(), [0, 0, 0], 0
        for each in self._connections:
            each.tick(now)
            status = each.status()
            connected += status.is_connected
            for at, number in enumerate((status.messages_out, status.messages_in, status.refused)):
                totals[at] += number
        row = self._context.counters
        row.set(count.BRIDGES_CONNECTED, connected)
        for at, which in enumerate((count.BRIDGE_MESSAGES_OUT, count.BRIDGE_MESSAGES_IN, count.BRIDGE_REFUSED)):
            if totals[at] != self._counted[at]:
                row.add(which, totals[at] - self._counted[at])
        self._counted = totals
        self._timer = loop.call_later(_TICK_SECONDS, self._tick)

    # ------------------------------------------------------------ for the connections

    @property
    def settings(self) -> Settings:
        """The present settings."""
        return self._context.settings

    @property
    def limits(self) -> Limits:
        """What it takes of clients."""
        return self._context.router.state.limits

    def adopt(self, connected: socket.socket) -> None:
        """Serve this socket, whose other end is a bridge's."""
        self._authenticating.trust(self._reactor.adopt(connected.detach(), b"", _CONNECT_MS, OF_BRIDGES))

    def subscribed(self, client_id: str) -> Sequence[bytes]:
        """Return the Topic Filters of a session; none if there is no such session."""
        session = self._sessions.get(client_id)
        return [] if session is None else session.subscribed(0, session.subscriptions)

    def defect(self, client_id: str, error: Exception) -> None:
        """Report an internal error."""
        self._context.counters.add(count.INTERNAL_ERRORS)
        self._context.defect(client_id, error)
