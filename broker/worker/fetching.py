"""Sessions that come from other hosts, and what former owners hand over (`broker.worker.moves`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.context.piecework import AT_ONCE
from broker.context.sessions import own_bytes
from broker.worker.session_parts import (
    CANCEL,
    DONE,
    EPOCH,
    GIVE,
    GO_ON,
    NOTHING,
    PAGE,
    PART,
    STATE,
    SessionTerms,
    decode_subscriptions,
)
from pyx.core import counters as count
from pyx.core.work import STEP, spend

if TYPE_CHECKING:
    from broker.clients.capacity import Capacity
    from broker.clients.closing import Closing
    from broker.clients.endings import Endings
    from broker.clients.subscribing import Subscribing
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from broker.persistence.state_records import StateRecords
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Subscription

__all__ = ["Fetching", "Send"]

Send = Callable[[int, bytes, int, str, bytes], bool]
"""send(host, kind, number, client id, rest): sends a message to the home of a client id at a host, and returns whether
it is linked."""
_SILENCE_SECONDS: Final = 5.0
"""Time without a part after which a move has failed."""
_BROUGHT_SECONDS: Final = 2.0
"""Time after the last page in which a message may still come that was in one."""
_SERVE_SECONDS: Final = 0.02
_ARRIVING_MAX: Final = 1000
"""Sessions that come to a worker at a time."""
_CLOCKS_SECONDS: Final = 120
"""More than clocks of hosts may differ: what is published later has no lower number."""
_SUBSCRIBE_MS: Final = 1000
"""Time after the beginning of a session in which its client subscribes."""
_LATE_SECONDS: Final = 60.0
"""Time for which it is known what was handed over, after the last part."""


class _Arrival:
    """A session that comes here. then, unreachable: see `Fetching.fetch`."""

    __slots__ = (
        "client_id", "conn", "due", "host", "is_subscribed", "number", "parts", "seen", "session", "subscriptions",
        "then", "unreachable",
    )  # fmt: skip

    def __init__(
        self,
        client_id: str,
        number: int,
        host: int,
        conn: Connection,
        then: Callable[[bool], None],
        unreachable: Callable[[], None],
    ) -> None:
        self.client_id = client_id
        self.number = number
        self.host = host
        self.conn = conn
        self.then = then
        self.unreachable = unreachable
        self.due = 0.0
        self.parts = 0
        """Number of the next part."""
        self.session: Session | None = None
        self.subscriptions: list[tuple[Subscription, int]] = []
        """Those of the owner, each with its Subscription Identifier."""
        self.is_subscribed = False
        """Whether it has these subscriptions, and waits until hosts know them."""
        self.seen: set[int] = set()
        """Fingerprints of the messages that have come."""


class _Late:
    """What a former owner hands over."""

    __slots__ = ("number", "parts", "seen", "until")

    def __init__(self) -> None:
        self.number = 0
        self.parts = 0
        self.seen: set[int] = set()
        self.until = 0.0


class Fetching:
    """The sessions that come to one worker."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        state_records: StateRecords,
        endings: Endings,
        capacity: Capacity,
        closing: Closing,
        subscribing: Subscribing,
        send: Send,
        numbers: Iterator[int],
    ) -> None:
        self._context = context
        self._router = context.router
        self._sessions = sessions
        self._state_records = state_records
        self._endings = endings
        self._capacity = capacity
        self._closing = closing
        self._subscribing = subscribing
        self._send = send
        self._numbers = numbers
        self._arriving: dict[str, _Arrival] = {}
        """By client id."""
        self._late: dict[tuple[str, int], _Late] = {}
        """By client id and host."""

    def fetch(
        self,
        client_id: str,
        host: int,
        epoch: int,
        conn: Connection,
        then: Callable[[bool], None],
        unreachable: Callable[[], None],
    ) -> None:
        """Bring the session of a client from the host that owns it since this epoch. conn: the connection that waits
        for it. then: called with whether it is here, or there was none; False: it stays there. unreachable: called
        instead if that host does not answer.
        """
        if len(self._arriving) >= _ARRIVING_MAX:
            self._context.counters.add(count.MOVES_REFUSED)
            then(False)
            return
        number = next(self._numbers)
        if not self._send(host, GIVE, number, client_id, EPOCH.pack(epoch)):
            unreachable()
            return
        arrival = self._arriving[client_id] = _Arrival(client_id, number, host, conn, then, unreachable)
        self._renew(arrival)

    def go_on_for(self, client_id: str, conn: Connection) -> None:
        """Let another connection wait for a session that may be on its way: the one that has waited may have gone."""
        arrival = self._arriving.get(client_id)
        if arrival is not None:
            arrival.conn = conn
            if arrival.is_subscribed:
                self._wait_for_hosts(arrival)

    def _is_on_its_way(self, arrival: _Arrival) -> bool:
        return self._arriving.get(arrival.client_id) is arrival

    def _renew(self, arrival: _Arrival) -> None:
        arrival.due = self._now() + _SILENCE_SECONDS

    def _now(self) -> float:
        return self._router.state.now_ms / 1000

    def _state_came(self, arrival: _Arrival, is_last: bool, part: bytes) -> None:
        if arrival.session is None:
            self._end_former(arrival.client_id)  # of a time when this host was the owner
            terms, part = SessionTerms.decode(part)
            # a former session may still be being cleared
            if arrival.client_id in self._endings.clients or not self._begin(arrival, terms):
                self._fail(arrival)
                return
        arrival.subscriptions += decode_subscriptions(part)
        if is_last:
            arrival.parts = 0
            self._context.in_pieces(self._subscribe(arrival))

    def _end_former(self, client_id: str) -> None:
        session = self._sessions.get(client_id)
        if session is not None:
            self._closing.taken_over_elsewhere(session)
        session = self._sessions.get(client_id)
        if session is not None:
            self._endings.end_moved(session)

    def _begin(self, arrival: _Arrival, terms: SessionTerms) -> bool:
        """Make the session, if there is room for it."""
        if not self._capacity.for_session():
            self._context.counters.add(count.SESSIONS_OVER_MAX)
            return False
        session = arrival.session = self._sessions.new(arrival.client_id, terms.version)
        details: Details = session.details
        session.durable = True
        details.expiry_interval, details.username = terms.expiry, terms.username
        details.own_bytes = own_bytes(arrival.client_id, details.username, None)
        details.began, details.began_clean = terms.began, terms.began_clean
        self._router.restoring.restore(session, None, {}, {})
        self._sessions.left(session)
        self._endings.expire_in(session, terms.expiry)
        self._state_records.connected(session)
        return True

    def _subscribe(self, arrival: _Arrival) -> Iterator[None]:
        session, subscriptions = arrival.session, arrival.subscriptions
        assert session is not None
        for first in range(0, len(subscriptions), AT_ONCE):
            if first:
                yield
            if not self._is_on_its_way(arrival):
                return
            piece = subscriptions[first : first + AT_ONCE]
            spend(len(piece) * 4 * STEP)
            self._subscribing.bring(session, piece)
        arrival.subscriptions, arrival.is_subscribed = [], True
        self._renew(arrival)
        self._wait_for_hosts(arrival)

    def _wait_for_hosts(self, arrival: _Arrival) -> None:
        """Ask for the messages when all workers and hosts know the subscriptions."""

        def known() -> None:
            if self._is_on_its_way(arrival) and arrival.is_subscribed:
                arrival.is_subscribed = False
                self._renew(arrival)
                self._send(arrival.host, GO_ON, arrival.number, arrival.client_id, b"")

        self._router.answering.answer_packet(arrival.conn, b"", self._context.another_interest_number(), known)

    def _page_came(self, arrival: _Arrival, is_last: bool, wall_ms: int, page: bytes) -> None:
        session = arrival.session
        if session is None or self._sessions.get(arrival.client_id) is not session:
            self._fail(arrival)
            return
        now = self._router.state.wall_ms
        since = _number_at(now - 1000 * _CLOCKS_SECONDS)
        self._router.moving.take(session, page, now - wall_ms, arrival.seen, since)
        if is_last:
            session.brought = arrival.seen
            self._router.journal.when_durable(partial(self._is_here, arrival))

    def _is_here(self, arrival: _Arrival) -> None:
        if not self._is_on_its_way(arrival):
            return
        del self._arriving[arrival.client_id]
        self._context.counters.add(count.SESSIONS_MOVED)
        self._serve(arrival.session, self._now() + _BROUGHT_SECONDS)
        self._context.guard_client(arrival.client_id, arrival.then, True)

    def _serve(self, session: Session | None, until: float) -> None:
        """Let it read its log now and then, while messages that it has brought may come again."""
        if session is None or self._sessions.get(session.client_id) is not session:
            return
        if self._now() >= until:
            session.brought = None
        else:
            self._context.call_later(_SERVE_SECONDS, partial(self._serve, session, until), session)
        self._router.moving.serve(session)

    def _fail(self, arrival: _Arrival) -> None:
        """Leave it where it is."""
        if not self._is_on_its_way(arrival):
            return
        del self._arriving[arrival.client_id]
        self._send(arrival.host, CANCEL, arrival.number, arrival.client_id, b"")
        session = arrival.session
        if session is not None and self._sessions.get(arrival.client_id) is session and session.connection is None:
            self._endings.end_moved(session)
        arrival.then(False)

    def host_away(self, host: int) -> None:
        """Give up what is asked of a host that does not answer: what has not begun to come does not come."""
        for client_id, arrival in list(self._arriving.items()):
            if arrival.host != host:
                continue
            if arrival.session is None:
                del self._arriving[client_id]
                self._context.guard_client(client_id, arrival.unreachable)
            else:
                self._context.guard_client(client_id, self._fail, arrival)

    def late_came(self, client_id: str, host: int, number: int, rest: bytes) -> None:
        """Take a part of what a former owner hands over."""
        part, is_last, wall_ms = PART.unpack_from(rest)
        late = self._late.setdefault((client_id, host), _Late())
        late.until = self._now() + _LATE_SECONDS
        if part == 0:
            late.number, late.parts = number, 0
        if (number, part) != (late.number, late.parts):
            return  # all of it is sent again
        late.parts += 1
        session = self._sessions.get(client_id)
        if session is None:  # the other host may keep it
            if is_last:
                self._send(host, NOTHING, number, client_id, b"")
            return
        if not session.details.began_clean:
            before = _number_at(session.details.began + _SUBSCRIBE_MS)
            ahead = self._router.state.wall_ms - wall_ms
            self._router.moving.take_late(session, rest[PART.size :], ahead, late.seen, before)
        if is_last:
            self._router.journal.when_durable(partial(self._send, host, DONE, number, client_id, b""))

    def came(self, kind: bytes, host: int, number: int, client_id: str, rest: bytes) -> None:
        """Take an answer of the owner."""
        arrival = self._arriving.get(client_id)
        if arrival is None or (arrival.host, arrival.number) != (host, number):
            return  # given up
        self._renew(arrival)
        try:
            self._take(kind, arrival, rest)
        except Exception:  # whatever it is: the move has failed, and the one door hears of it
            self._fail(arrival)
            raise

    def _take(self, kind: bytes, arrival: _Arrival, rest: bytes) -> None:
        if kind in (STATE, PAGE):
            part, is_last, wall_ms = PART.unpack_from(rest)
            if part != arrival.parts:
                raise ValueError(f"part {part} of a session came, not {arrival.parts}")
            arrival.parts += 1
            if kind == STATE:
                self._state_came(arrival, is_last, rest[PART.size :])
            else:
                self._page_came(arrival, is_last, wall_ms, rest[PART.size :])
        elif kind == CANCEL:
            self._fail(arrival)
        else:
            del self._arriving[arrival.client_id]
            self._end_former(arrival.client_id)  # the owner's session counts, and it has none
            arrival.then(True)

    def tick(self, now: float) -> None:
        """Give up what is silent."""
        for client_id, arrival in list(self._arriving.items()):
            if arrival.due <= now:
                self._context.guard_client(client_id, self._fail, arrival)
        for key in [key for key, late in self._late.items() if late.until <= now]:
            del self._late[key]


def _number_at(ms: int) -> int:
    """Return the lowest number of messages that are published from a Unix time in ms on."""
    return max(0, ms * 1000 << 8)
