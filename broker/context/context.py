"""The Context that all parts of a worker share, and small services that need no other part.

A part gets a Context and, by name, the other parts that it calls. A Context knows none of the parts, so that the code
for a client is never reached through it. `settings` and `limits` are replaced at a reload, `links` when the mesh
exists: read them each time that they are used.
"""

from __future__ import annotations

import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from broker.config.data_path import fill
from broker.config.share_groups import rule_of
from broker.context.piecework import Piecework
from pyx.core import counters as count
from pyx.core.counters import Row
from pyx.core.limits import Limits
from pyx.core.peer import Peer, sibling, siblings
from pyx.core.timers import TimerWheel
from pyx.delivery.router import EVEN_FLAG, SPREAD_FLAG, STRATEGIES, WAITS_FLAG, Router
from pyx.io.connections import OF_BRIDGES
from pyx.io.dispatch import Dispatch
from pyx.matching.retained import Retained
from pyx.matching.subscriptions import Subscriptions
from zmq_mesh.interest import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from broker.config.limits import Limits as BrokerLimits
    from broker.config.settings import Settings
    from broker.logs import Log
    from leveldb_store.contract import Store
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session

__all__ = ["Context"]


class _Plain:
    """The limits, as they are read most quickly: each CONNECT reads many, and CPython takes five times as long for an
    attribute of a pydantic model, or of a SimpleNamespace, as for one of a plain class.
    """

    def __init__(self, limits: BrokerLimits) -> None:
        self.__dict__.update(limits)


class Context:
    """Shared state of one worker. `now_ms`: monotonic ms at start; `wall_ms`: the broker's time (`shards.clock`);
    `row`: its counters; `clock_cell`: that of its host (`pyx.core.clock`).
    """

    def __init__(
        self,
        index: int,
        workers: int,
        settings: Settings,
        store: Store,
        log: Log,
        now_ms: int,
        wall_ms: int,
        row: Any = None,
        clock_cell: memoryview | None = None,
    ) -> None:
        self.index = index
        self.workers = workers
        self.own = sibling(index)
        """This worker's number among its siblings."""
        self.siblings = list(siblings(index, workers))
        self.use(settings)
        self._listeners = [each.name for each in settings.listeners]  # a reload does not change them
        self.store = store
        self.log = log
        self.counters = Row(row) if row is not None else Row()
        self.timers = TimerWheel(now_ms)
        self.retained = Retained()
        self.router = Router(
            index, workers, Subscriptions(), fill(Limits(), settings), self.counters, self.timers, self.retained
        )
        if clock_cell is not None:
            self.router.state.clock.share(clock_cell)
        self.router.state.set_time(now_ms, wall_ms)
        self._give_store()
        self.router.enrolling.strategy_of = self._strategy_of
        self.dispatch = Dispatch(self.router)
        self.links: Mapping[Peer, Any] = {}
        """By sibling: any object with the interface of `pyx.mesh.link.Link` (submit, commit, ready, away, full)."""
        self.piecework = Piecework(self.router)
        tells = workers > 1 or settings.cluster.is_on
        self.interest = self.router.peers.interest = Publisher(in_pieces=self.tell_in_pieces) if tells else None

    def use(self, settings: Settings) -> None:
        """Replace the settings: they are those of the start, or of the last reload."""
        self.settings = settings
        self.limits = cast("BrokerLimits", _Plain(settings.limits))
        """Their limits."""

    def _give_store(self) -> None:
        router, store, settings = self.router, self.store, self.settings
        router.journal.store = store
        router.state.keeps = store.keeps
        router.journal.set_durabilities(
            [(rule.filter.encode(), rule.durability == "fsync") for rule in settings.topic],
            settings.durability == "fsync",
        )
        router.windows.go_on_behind(store.last_position)
        router.journal.set_archive(store.archive)

    def _strategy_of(self, group: bytes, topic_filter: bytes) -> int:
        rule = rule_of(self.settings.shared, group, topic_filter)
        if rule is None:
            return STRATEGIES["round_robin"]
        flags = WAITS_FLAG * (rule.when_full == "wait") | EVEN_FLAG * (rule.hosts == "even")
        flags |= SPREAD_FLAG * rule.spread
        return STRATEGIES[rule.strategy] | flags

    def listener_of(self, conn: Connection) -> str:
        """Return the name of the listener that accepted the connection."""
        return "bridges" if conn.listener == OF_BRIDGES else self._listeners[conn.listener]

    # ------------------------------------------------------------ time

    def call_later(self, seconds: float, callback: Callable[[], None], session: Session | None = None) -> Any:
        """Call once after this running time; the returned handle has cancel(). `session`: the session that it concerns,
        if it is one client's.
        """
        call = callback if session is None else partial(self.guard_session, session, callback)
        self.router.state.is_active = True
        return self.timers.call(self.router.state.now_ms + int(seconds * 1000), call)

    def soon(self, callback: Callable[[], None], session: Session | None = None) -> None:
        """Call it in a later tick, as a piece of long work."""
        self.call_later(0, callback, session)

    def in_pieces(self, pieces: Iterator[None]) -> None:
        """Run work that belongs to no client in pieces: the first now, the others in later ticks."""
        self.piecework.begin(pieces, partial(self.defect, None))

    # ------------------------------------------------------------ siblings

    def is_ready(self, peer: Peer) -> bool:
        """Whether that sibling can be asked now."""
        link = self.links.get(peer)
        return link is not None and link.ready and not link.away

    def interest_number(self) -> int:
        """Return the number by which siblings will know all present subscriptions; 0 without siblings."""
        if self.interest is None:
            return 0
        return self.interest.next

    def another_interest_number(self) -> int:
        """Return a number that siblings acknowledge when what they have sent until then has arrived; 0 without
        siblings.
        """
        if self.interest is None:
            return 0
        self.router.peers.links_due = True
        return self.interest.touch()

    def tell_in_pieces(self, pieces: Iterator[None]) -> None:
        """Make the rest of a snapshot of interest for peers, who get it in the tick of the last piece."""

        def telling() -> Iterator[None]:
            for _ in pieces:
                self.router.peers.links_due = True
                yield

        self.piecework.add(telling(), lambda error: self.defect(None, error))

    # ------------------------------------------------------------ internal errors

    def defect(self, client: str | None, error: Exception, address: str | None = None) -> None:
        """Log and count an internal error that affects only this client."""
        try:
            trace = "".join(traceback.format_exception(error))
            self.log.error("internal_error", client=client, address=address, traceback=trace)
        except Exception:  # noqa: BLE001  an error that cannot be logged has been counted
            return

    def guard(self, conn: Connection, call: Callable[..., object], *arguments: Any) -> None:
        """Call something for this connection, outside of its packets; if it fails, close the connection."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001  the one door
            self.router.state.fail(conn, error)

    def guard_session(self, session: Session, call: Callable[..., object], *arguments: Any) -> None:
        """Do the same for a session: if it fails, close its connection, if it has one."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001  the one door
            if session.connection is not None:
                self.router.state.fail(session.connection, error)
            else:
                self._client_failed(session.client_id, error)

    def guard_client(self, client_id: str | None, call: Callable[..., object], *arguments: Any) -> None:
        """Do the same for a client that may have neither, or for none: the error is counted and logged."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001  the one door
            self._client_failed(client_id, error)

    def _client_failed(self, client_id: str | None, error: Exception) -> None:
        self.counters.add(count.INTERNAL_ERRORS)
        self.defect(client_id, error)
