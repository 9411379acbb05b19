"""Sessions that go to other hosts (`broker.worker.moves`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from broker.context.piecework import AT_ONCE
from broker.worker.other_owners import AWAY_SECONDS_MAX
from broker.worker.session_parts import (
    CANCEL,
    LAST,
    LAST_FOR_NOW,
    LATE,
    MORE,
    NOTHING,
    PAGE,
    PAGE_BYTES,
    STATE,
    GiveKind,
    PartHead,
    SessionTerms,
    encode_subscription,
    split_named,
)
from pyx.core.work import STEP, spend

if TYPE_CHECKING:
    from broker.clients.closing import Closing
    from broker.clients.endings import Endings
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from broker.worker.fetching import Send
    from broker.worker.other_owners import OtherOwners
    from pyx.delivery.moving import Departure
    from pyx.delivery.session import Session

__all__ = ["Giving", "LateOutcome"]

_PAUSE_SECONDS: Final = 0.01
_OUTBOX_SHARE: Final = 8
"""Pages fill this fraction (1 / ...) of a link's outbox: what is published meanwhile has the rest."""
_LOOK_SECONDS: Final = 4.0
"""Time until it is looked again whether hosts are away."""
_LOOKS_MAX: Final = 200
"""Sessions that are looked after at once."""
_SILENCE_SECONDS: Final = 10.0
"""Time without a message after which the other host is not waited for: longer than that waits."""


_COUNTED_MAX: Final = 1000
"""Sessions that were left behind, and are looked at to count them."""


class LateOutcome(Enum):
    """What has become of a session that was to be handed over."""

    DONE = 0
    """The owner's session has what it had, and it has ended."""
    NOT_NOW = 1
    NOT_WANTED = 2
    """The owner has no session: it is kept."""


class _Leaving:
    """A session that goes to another host. then: what it has is handed over, for a session that is there already;
    called with what has become of it. `is_whole`: no host is away that may have messages for it. `is_known`: all hosts
    knew the subscriptions of the session there before it was sent.
    """

    __slots__ = ("departure", "due", "expires", "host", "is_known", "is_whole", "number", "pages", "session", "then")

    def __init__(
        self, session: Session, host: int, number: int, due: float, then: Callable[[LateOutcome], None] | None = None
    ) -> None:
        self.session = session
        handle = session.details.expiry_handle
        self.expires: int | None = None if handle is None else handle.deadline
        """When it ends if it stays, by the router's clock in ms."""
        self.host = host
        self.number = number
        self.due = due
        self.departure: Departure | None = None
        self.pages = 0
        self.is_whole = True
        self.is_known = then is None
        self.then = then


class Giving:
    """The sessions that leave one worker. resolve: finds out who owns a client id whose session may have gone."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        endings: Endings,
        closing: Closing,
        others: OtherOwners,
        send: Send,
        resolve: Callable[[str], None],
        numbers: Iterator[int],
    ) -> None:
        self._context = context
        self._router = context.router
        self._sessions = sessions
        self._endings = endings
        self._closing = closing
        self._others = others
        self._send = send
        self._resolve = resolve
        self._numbers = numbers
        self._leaving: dict[str, _Leaving] = {}
        self._left_behind: dict[str, float] = {}
        """Sessions that stay for what hosts that are away may have, and when to look; the earliest first."""
        self._free: dict[str, float] = {}
        """Client ids without a session, which another host may take, and until when that is heard; earliest first."""
        self._dropping: set[str] = set()
        """Client ids of sessions that are losing what another host has."""
        state = self._router.state
        self._absent = state.stored_number, state.next_number() if state.stored_number else 0

    def is_leaving(self, client_id: str) -> bool:
        """Whether its session may be on its way to another host."""
        return client_id in self._leaving or client_id in self._dropping

    def left_behind(self) -> int:
        """Return how many sessions have nothing, and stay only for what hosts that are away may have for them; of very
        many some.
        """
        if not self._others.has_away():
            return 0
        found = 0
        for client_id in islice(self._left_behind, _COUNTED_MAX):
            session = self._sessions.get(client_id)
            found += int(session is not None and session.details.left_behind and not self._has_messages(session))
        spend(min(len(self._left_behind), _COUNTED_MAX) * STEP)
        return found

    def _has_messages(self, session: Session) -> bool:
        return bool(session.queued or session.unacknowledged or self._router.bounding.backlog(session)[0])

    def gone(self, session: Session) -> None:
        """Forget a session that has ended: the host to which it was to go does not get it."""
        client_id = session.client_id
        self._left_behind.pop(client_id, None)
        leaving = self._leaving.get(client_id)
        if leaving is not None and leaving.session is session and leaving.then is None:
            del self._leaving[client_id]
            self._send(leaving.host, CANCEL, leaving.number, client_id, b"")

    def _until(self) -> float:
        return self._router.state.now_ms / 1000 + _SILENCE_SECONDS

    def give(self, client_id: str, number: int, host: int, epoch: int, wanted: GiveKind) -> None:
        """Begin to give a session to a host that knows this one as its owner since that epoch. If it was offered, its
        client may have come back since, and stays.
        """
        former = self._leaving.get(client_id)
        session = self._sessions.get(client_id)
        is_busy = client_id in self._dropping or (former is not None and former.then is not None)
        if wanted is GiveKind.OFFERED and session is not None:
            is_busy |= session.connection is not None or session.details.awaiting is not None
        if session is not None and (session.details.epoch != epoch or is_busy):
            self._send(host, CANCEL, number, client_id, b"")
            return
        if session is not None:
            self._closing.taken_over_elsewhere(session)
            session = self._sessions.get(client_id)
        if session is None:
            self._send(host, NOTHING, number, client_id, b"")
            self._free.pop(client_id, None)
            self._free[client_id] = self._until()
            return
        leaving = self._leaving[client_id] = _Leaving(session, host, number, self._until())
        if former is not None and former.session is session and leaving.expires is None:
            leaving.expires = former.expires
        self._endings.hold(session)
        if wanted is GiveKind.NOTHING:
            self._send(host, NOTHING, number, client_id, b"")
        else:
            self._context.in_pieces(self._send_state(leaving))

    def _send_state(self, leaving: _Leaving) -> Iterator[None]:
        session, host, number = leaving.session, leaving.host, leaving.number
        details: Details = session.details
        gone = 0
        if leaving.expires is not None:
            gone = max(0, details.expiry_interval * 1000 - leaving.expires + self._router.state.now_ms)
        terms = SessionTerms(
            session.version, details.expiry_interval, details.began, details.began_clean, gone, details.username
        )
        part = bytearray(terms.encode())
        total, number_of_part = session.subscriptions, 0
        for first in range(0, total, AT_ONCE):
            if first:
                yield
            spend(AT_ONCE * STEP)
            for named in session.subscribed(first, AT_ONCE):
                group, text = split_named(named)
                options = self._router.subscribing.terms(session, text, group)
                if options is not None:
                    part += encode_subscription(named, *options)
            if len(part) >= PAGE_BYTES and first + AT_ONCE < total:
                self._send_part(host, STATE, number, session, number_of_part, MORE, part)
                number_of_part += 1
                part = bytearray()
        self._send_part(host, STATE, number, session, number_of_part, LAST, part)

    def _send_part(
        self,
        host: int,
        kind: bytes,
        number: int,
        session: Session,
        number_of_part: int,
        place: int,
        part: bytes | bytearray,
    ) -> None:
        details: Details = session.details
        head = PartHead(
            number_of_part, place, self._router.state.wall_ms, details.began, details.left_behind, *self._absent
        )
        self._send(host, kind, number, session.client_id, head.encode() + part)

    def go_on(self, client_id: str, number: int, is_whole: bool = True) -> None:
        """Send what a session has, behind what is on its way to it. is_whole: no host is away from the other one."""
        self._others.flush(partial(self._leave, client_id, number, is_whole))

    def _leave(self, client_id: str, number: int, is_whole_there: bool, is_whole: bool) -> None:
        leaving = self._leaving.get(client_id)
        if leaving is not None and leaving.number == number:
            leaving.is_whole = is_whole_there and is_whole
            leaving.departure = self._router.moving.leave(leaving.session)
            self._context.in_pieces(self._send_pages(client_id, leaving, leaving.departure))

    def _send_pages(self, client_id: str, leaving: _Leaving, departure: Departure) -> Iterator[None]:
        """Send pages until the link has enough of them, then go on later."""
        while self._leaving.get(client_id) is leaving and self._sessions.get(client_id) is leaving.session:
            link = self._others.link_of(leaving.host)
            if link is None:
                self._lost(client_id, leaving)
                return
            if link.full or link.outbox_bytes * _OUTBOX_SHARE > self._context.limits.peer_outbox_bytes_max:
                rest = self._send_pages(client_id, leaving, departure)
                self._context.call_later(_PAUSE_SECONDS, partial(self._context.in_pieces, rest))
                return
            leaving.due = self._until()
            page = departure.page(PAGE_BYTES)
            last = LAST if leaving.is_whole else LAST_FOR_NOW
            self._send_part(
                leaving.host,
                PAGE if leaving.then is None else LATE,
                leaving.number,
                leaving.session,
                leaving.pages,
                MORE if page is not None else last,
                page or b"",
            )
            leaving.pages += 1
            if page is None:
                return
            yield

    def hand_over(self, client_id: str, host: int, then: Callable[[LateOutcome], None], is_known: bool = False) -> None:
        """Hand over what a session has that is another host's by now, and end it; not before hosts that are away have
        sent what they have for it. It takes two passes: what was published while the first one was on its way may have
        been published for this session alone.
        """
        session = self._sessions.get(client_id)
        if session is not None:
            self._closing.taken_over_elsewhere(session)
            session = self._sessions.get(client_id)
        if session is None:
            then(LateOutcome.DONE)
        elif self.is_leaving(client_id):
            then(LateOutcome.NOT_NOW)
        else:
            self._left_behind.pop(client_id, None)
            number = next(self._numbers)
            leaving = self._leaving[client_id] = _Leaving(session, host, number, self._until(), then)
            self._endings.hold(session)
            leaving.is_known = is_known
            self.go_on(client_id, number)

    def is_done(self, client_id: str, number: int, is_whole: bool) -> None:
        """End a session whose messages the owner has. is_whole: no host is away from that."""
        leaving = self._leaving.get(client_id)
        if leaving is None or leaving.number != number or leaving.then is None:
            return
        leaving.is_whole &= is_whole
        session = leaving.session
        if self._sessions.get(client_id) is not session or session.connection is not None or session.details.epoch:
            self._lost(client_id, leaving)
        elif leaving.is_whole and not leaving.is_known:
            then = leaving.then
            self._lose(client_id, leaving, lambda: self.hand_over(client_id, leaving.host, then, is_known=True))
        else:
            if not self.stays_behind(client_id):
                self._endings.end_moved(session)
            leaving.then(LateOutcome.DONE)

    def is_not_wanted(self, client_id: str, number: int) -> None:
        """Keep a session that was to be handed over to an owner that has none."""
        leaving = self._leaving.get(client_id)
        if leaving is not None and leaving.number == number and leaving.then is not None:
            self._keep(client_id)
            leaving.then(LateOutcome.NOT_WANTED)

    def stays_behind(self, client_id: str) -> bool:
        """Forget a move that is done: the session is the new owner's. Return whether its shell stays here, with its
        subscriptions and without what the new owner has, for what hosts that are away have for it.
        """
        leaving = self._leaving.get(client_id)
        if leaving is None or leaving.departure is None:
            self._leaving.pop(client_id, None)
            return False
        session = leaving.session
        if leaving.is_whole or self._sessions.get(client_id) is not session:
            del self._leaving[client_id]
            leaving.departure.gone()
            return False
        self._endings.will_moved(session)
        session.details.left_behind = True
        self._endings.expire_in(session, AWAY_SECONDS_MAX)
        self._lose(client_id, leaving, lambda: self.look_later(client_id))
        return True

    def _lose(self, client_id: str, leaving: _Leaving, then: Callable[[], None]) -> None:
        """Let a session lose what another host has, then call `then`."""
        departure = leaving.departure
        assert departure is not None
        del self._leaving[client_id]
        departure.gone()

        def pieces() -> Iterator[None]:
            try:
                while self._sessions.get(client_id) is leaving.session and departure.drop():
                    yield
            finally:
                self._dropping.discard(client_id)
            then()

        self._dropping.add(client_id)
        self._context.in_pieces(pieces())

    def look_later(self, client_id: str) -> None:
        """Hand over what has come for a session that has stayed behind, once no host is away."""
        self._left_behind.pop(client_id, None)
        self._left_behind[client_id] = self._router.state.now_ms / 1000 + _LOOK_SECONDS

    def has_sent(self, client_id: str, host: int) -> bool:
        """Whether that host was sent what a session has, and nothing was decided since."""
        leaving = self._leaving.get(client_id)
        is_move = leaving is not None and leaving.then is None and leaving.departure is not None
        return is_move and leaving is not None and leaving.host == host

    def keep(self, client_id: str) -> bool:
        """Keep a session that does not move: it is an offline one again. Return False if it is being handed over."""
        leaving = self._leaving.get(client_id)
        if leaving is not None and leaving.then is not None:
            return False
        self._keep(client_id)
        return True

    def _keep(self, client_id: str) -> None:
        leaving = self._leaving.pop(client_id, None)
        session = self._sessions.get(client_id)
        if leaving is not None and session is leaving.session and session is not None and session.connection is None:
            details: Details = session.details
            left: float = details.expiry_interval
            if details.left_behind:
                left = AWAY_SECONDS_MAX
            elif leaving.expires is not None:
                left = max(0.0, (leaving.expires - self._router.state.now_ms) / 1000)
            self._endings.expire_in(session, left)

    def cancelled(self, client_id: str, number: int, host: int) -> None:
        """Keep a session that the other host does not take, or not now. number: 0: whichever move."""
        leaving = self._leaving.get(client_id)
        if leaving is None or leaving.host != host:
            return
        if leaving.then is None and number in (0, leaving.number):
            self._keep(client_id)
        elif number == leaving.number:
            self._lost(client_id, leaving)

    def host_away(self, host: int) -> None:
        """Keep what is being handed over to a host that does not answer."""
        for client_id, leaving in list(self._leaving.items()):
            if leaving.host == host:
                self._lost(client_id, leaving)

    def _lost(self, client_id: str, leaving: _Leaving) -> None:
        """Keep a session that is being handed over; of one that may have moved it is asked later who owns it."""
        if leaving.then is not None:
            self._keep(client_id)
            self._context.guard_client(client_id, leaving.then, LateOutcome.NOT_NOW)

    def tick(self, now: float) -> None:
        """Give up what is silent, and hand over what has come since for the sessions that have stayed behind."""
        for client_id, leaving in list(self._leaving.items()):
            if leaving.due <= now:
                leaving.due = self._until()
                if leaving.then is None:
                    self._resolve(client_id)
                else:
                    self._lost(client_id, leaving)
        self._look_at_free(now)
        has_away = self._others.has_away()
        for _ in range(min(_LOOKS_MAX, len(self._left_behind))):
            client_id = next(iter(self._left_behind))
            if self._left_behind[client_id] > now:
                break
            if has_away:
                self.look_later(client_id)
            else:
                del self._left_behind[client_id]
                if self._sessions.get(client_id) is not None:
                    self._resolve(client_id)

    def _look_at_free(self, now: float) -> None:
        """Find out who owns the client ids whose session began here after another host was told that there is none."""
        for _ in range(min(_LOOKS_MAX, len(self._free))):
            client_id = next(iter(self._free))
            if self._free[client_id] > now:
                break
            del self._free[client_id]
            session = self._sessions.get(client_id)
            if session is not None and session.details.epoch and not self.is_leaving(client_id):
                self._resolve(client_id)
