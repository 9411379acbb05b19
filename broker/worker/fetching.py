"""Sessions that come from other hosts, and what former owners hand over (`broker.worker.moves`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.context.piecework import AT_ONCE
from broker.context.sessions import NEVER, own_bytes
from broker.worker.other_owners import AWAY_SECONDS_MAX
from broker.worker.session_parts import (
    ALL_THERE,
    CANCEL,
    DONE,
    GIVE,
    GIVE_TERMS,
    GO_ON,
    LAST,
    LAST_FOR_NOW,
    MORE,
    NOTHING,
    ONE_AWAY,
    PAGE,
    STATE,
    GiveKind,
    PartHead,
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
    from broker.worker.other_owners import OtherOwners
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Subscription

__all__ = ["Fetched", "Fetching", "Send"]

Send = Callable[[int, bytes, int, str, bytes], bool]
"""send(host, kind, number, client id, rest): sends a message to the home of a client id at a host, and returns whether
it is linked."""
_SILENCE_SECONDS: Final = 5.0
"""Time without a part after which a move has failed."""
_REMEMBER_SECONDS: Final = 60.0
"""Time for which a session remembers what it has had, after it has begun or come; longer while a host is away."""
_FORGETS_MAX: Final = 200
"""Sessions that forget it at once."""
_ENDED_MAX: Final = 10_000
"""Sessions of which it is known that they have ended and were owed something; of others what is owed is taken."""
_ARRIVING_MAX: Final = 1000
"""Sessions that come to a worker at a time."""
_SUBSCRIBE_MS: Final = 1000
"""Time after the beginning of a session in which its client subscribes."""
_LATE_SECONDS: Final = 60.0
"""Time for which it is known what was handed over, after the last part."""


class Fetched(Enum):
    """What has come from an owner."""

    SESSION = 0
    NOTHING = 1
    """It has none."""
    FAILED = 2
    """The session stays there."""


class _Arrival:
    """A session that comes here. then, unreachable: see `Fetching.fetch`."""

    __slots__ = (
        "client_id", "due", "gone", "host", "is_known", "is_offered", "is_subscribed", "is_whole", "number", "parts",
        "session", "subscriptions", "terms", "then", "unreachable",
    )  # fmt: skip

    def __init__(
        self,
        client_id: str,
        number: int,
        host: int,
        then: Callable[[Fetched], None],
        unreachable: Callable[[], None],
        is_offered: bool,
    ) -> None:
        self.client_id = client_id
        self.number = number
        self.host = host
        self.then = then
        self.unreachable = unreachable
        self.is_offered = is_offered
        self.due = 0.0
        self.parts = 0
        """Number of the next part."""
        self.session: Session | None = None
        self.subscriptions: list[tuple[Subscription, int]] = []
        """Those of the owner, each with its Subscription Identifier."""
        self.terms: SessionTerms | None = None
        """Those of the owner, for a session that was left behind here."""
        self.gone: list[bytes] = []
        """Subscriptions of that which it has no more."""
        self.is_subscribed = False
        """Whether it has these subscriptions, and waits until hosts know them."""
        self.is_known = False
        """Whether all workers and hosts that are there know them."""
        self.is_whole: bool | None = None
        """Whether no host is away from any worker; None: not known yet."""


class _Late:
    """What a former owner hands over."""

    __slots__ = ("number", "parts", "until")

    def __init__(self) -> None:
        self.number = 0
        self.parts = 0
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
        others: OtherOwners,
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
        self._others = others
        self._send = send
        self._numbers = numbers
        self._arriving: dict[str, _Arrival] = {}
        """By client id."""
        self._late: dict[tuple[str, int], _Late] = {}
        """By client id and host."""
        self._remembering: dict[str, float] = {}
        """Client ids of sessions that remember what they have had, and until when, the earliest first."""
        self._owed: dict[str, dict[int, float]] = {}
        """By client id: the hosts that have said that they may have more for its session, and when."""
        self._ended: dict[str, tuple[int, float]] = {}
        """By client id: the beginning of a session that was owed something when its client ended it, and until when
        that is known, the earliest first."""
        self.stays_behind: Callable[[str], None] = lambda _client_id: None
        """Called with the client id of a session that was left behind, and does not come back after all."""

    def begun(self, session: Session) -> None:
        """Let a session that begins remember what it has: a host that is away may have a former one of its client. Its
        Packet Identifiers begin anywhere: a client that comes back to the former one takes a PUBLISH of QoS 2 for
        repeated whose identifier it knows of this one.
        """
        if session.durable and not session.details.began_clean:
            self._router.moving.begin(session, random.randint(1, 65535))
            self._remember(session, is_old=False)

    def _remember(self, session: Session, is_old: bool) -> None:
        self._router.moving.remember(session, is_old)
        self._remembering.pop(session.client_id, None)
        self._remembering[session.client_id] = self._now() + _REMEMBER_SECONDS

    def _forget(self, now: float) -> None:
        """Let sessions forget what they have had if no other host can have messages for them any more."""
        has_away = self._others.has_away()
        for _ in range(min(_FORGETS_MAX, len(self._remembering))):
            client_id = next(iter(self._remembering))
            if self._remembering[client_id] > now:
                return
            del self._remembering[client_id]
            session = self._sessions.get(client_id)
            if session is None:
                self._owed.pop(client_id, None)
            elif has_away or self._is_owed(client_id, now) or not self._router.moving.forget(session):
                self._remembering[client_id] = now + _REMEMBER_SECONDS
        while self._ended and next(iter(self._ended.values()))[1] <= now:
            del self._ended[next(iter(self._ended))]

    def _is_owed(self, client_id: str, now: float) -> bool:
        hosts = self._owed.get(client_id)
        if hosts is None:
            return False
        for host in [host for host, since in hosts.items() if now - since > AWAY_SECONDS_MAX]:
            del hosts[host]
        if not hosts:
            del self._owed[client_id]
        return bool(hosts)

    def _note_owed(self, client_id: str, host: int, place: int) -> None:
        if place == LAST_FOR_NOW:
            self._owed.setdefault(client_id, {})[host] = self._now()
        elif place == LAST and client_id in self._owed:
            self._owed[client_id].pop(host, None)

    def ended(self, session: Session) -> None:
        """Take nothing more for a session that its client has ended, or that has expired."""
        if self._owed.pop(session.client_id, None):
            self._ended.pop(session.client_id, None)
            self._ended[session.client_id] = session.details.began, self._now() + AWAY_SECONDS_MAX
            if len(self._ended) > _ENDED_MAX:
                del self._ended[next(iter(self._ended))]

    def fetch(
        self,
        client_id: str,
        host: int,
        epoch: int,
        then: Callable[[Fetched], None],
        unreachable: Callable[[], None],
        wanted: GiveKind = GiveKind.SESSION,
    ) -> None:
        """Bring the session of a client from the host that owns it since this epoch. then: called with what has come.
        unreachable: called instead if that host does not answer. One that was offered, for which no client waits, makes
        no other session make room.
        """
        if len(self._arriving) >= _ARRIVING_MAX:
            self._context.counters.add(count.MOVES_REFUSED)
            then(Fetched.FAILED)
            return
        number = next(self._numbers)
        if not self._send(host, GIVE, number, client_id, GIVE_TERMS.pack(epoch, wanted)):
            unreachable()
            return
        arrival = self._arriving[client_id] = _Arrival(
            client_id, number, host, then, unreachable, wanted is GiveKind.OFFERED
        )
        self._renew(arrival)

    def _is_on_its_way(self, arrival: _Arrival) -> bool:
        return self._arriving.get(arrival.client_id) is arrival

    def _renew(self, arrival: _Arrival) -> None:
        arrival.due = self._now() + _SILENCE_SECONDS

    def _now(self) -> float:
        return self._router.state.now_ms / 1000

    def _state_came(self, arrival: _Arrival, is_last: bool, part: bytes) -> None:
        if arrival.session is None:
            terms, part = SessionTerms.decode(part)
            left_behind = self._left_behind(arrival.client_id, terms)
            if left_behind is not None:  # what has come for it meanwhile is part of the session
                arrival.session, arrival.terms = left_behind, terms
                self._remember(left_behind, is_old=True)
            else:
                self.end_former(arrival.client_id)  # its client began anew
                # a former session may still be being cleared
                if arrival.client_id in self._endings.clients or not self._begin(arrival, terms):
                    self._fail(arrival)
                    return
        arrival.subscriptions += decode_subscriptions(part)
        if is_last:
            arrival.parts = 0
            self._context.in_pieces(self._subscribe(arrival))

    def _left_behind(self, client_id: str, terms: SessionTerms) -> Session | None:
        """Return the session that was left behind here: it is the same, or one that would be handed over to it."""
        session = self._sessions.get(client_id)
        if session is None or not session.details.left_behind:
            return None
        if terms.began_clean and session.details.began != terms.began:
            return None
        return session

    def end_former(self, client_id: str) -> None:
        """End the session that this host has of a time when it was the owner: another one counts."""
        session = self._sessions.get(client_id)
        if session is not None:
            self._closing.taken_over_elsewhere(session)
        session = self._sessions.get(client_id)
        if session is not None:
            self._endings.end_moved(session)

    def _begin(self, arrival: _Arrival, terms: SessionTerms) -> bool:
        """Make the session, if there is room for it."""
        if not self._capacity.for_session(makes_room=not arrival.is_offered):
            self._context.counters.add(count.SESSIONS_OVER_MAX)
            return False
        session = arrival.session = self._sessions.new(arrival.client_id, terms.version)
        session.durable = True
        self._router.restoring.restore(session, None, {}, {})
        self._sessions.left(session)
        self._take_terms(session, terms)
        return True

    def _take_terms(self, session: Session, terms: SessionTerms) -> None:
        details: Details = session.details
        details.expiry_interval, details.username = terms.expiry, terms.username
        details.own_bytes = own_bytes(session.client_id, details.username, None)
        details.began, details.began_clean = terms.began, terms.began_clean
        self._remember(session, is_old=True)
        gone = 0 if terms.expiry == NEVER else min(terms.gone_ms, terms.expiry * 1000)
        self._endings.expire_in(session, terms.expiry - gone / 1000)
        self._state_records.connected(session)
        self._state_records.disconnected(session, gone)

    def _subscribe(self, arrival: _Arrival) -> Iterator[None]:
        session, subscriptions = arrival.session, arrival.subscriptions
        assert session is not None
        spend((len(subscriptions) + session.subscriptions) * STEP)
        kept = {item.filter for item, _ in subscriptions}
        arrival.gone = [named for named in session.subscribed(0, session.subscriptions) if named not in kept]
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

        def seen(is_whole: bool) -> None:  # also by the siblings, which have other links
            arrival.is_whole = is_whole
            self._go_on(arrival)

        def known() -> None:
            arrival.is_known = True
            self._context.guard_client(arrival.client_id, self._go_on, arrival)

        self._others.flush(seen)
        self._router.answering.when_known(self._context.another_interest_number(), known)

    def _go_on(self, arrival: _Arrival) -> None:
        is_whole = arrival.is_whole
        if self._is_on_its_way(arrival) and arrival.is_subscribed and arrival.is_known and is_whole is not None:
            arrival.is_subscribed = False
            self._renew(arrival)
            self._send(arrival.host, GO_ON, arrival.number, arrival.client_id, ALL_THERE if is_whole else ONE_AWAY)

    def _page_came(self, arrival: _Arrival, place: int, wall_ms: int, page: bytes) -> None:
        session = arrival.session
        if session is None or self._sessions.get(arrival.client_id) is not session:
            self._fail(arrival)
            return
        self._router.moving.take(session, page, self._router.state.wall_ms - wall_ms)
        self._note_owed(arrival.client_id, arrival.host, place)
        if place != MORE:
            self._router.journal.when_durable(partial(self._is_here, arrival))

    def _is_here(self, arrival: _Arrival) -> None:
        if not self._is_on_its_way(arrival):
            return
        session = arrival.session
        if session is None or self._sessions.get(arrival.client_id) is not session:
            self._fail(arrival)
            return
        del self._arriving[arrival.client_id]
        if arrival.terms is not None:
            self._take_terms(session, arrival.terms)
            self._context.in_pieces(self._drop(session, arrival.gone))
        self._context.counters.add(count.SESSIONS_MOVED)
        self._context.guard_client(arrival.client_id, arrival.then, Fetched.SESSION)

    def _drop(self, session: Session, gone: list[bytes]) -> Iterator[None]:
        """Drop the subscriptions that the client has ended elsewhere."""
        for first in range(0, len(gone), AT_ONCE):
            if self._sessions.get(session.client_id) is not session:
                return
            spend(AT_ONCE * 4 * STEP)
            self._subscribing.drop(session, gone[first : first + AT_ONCE])
            yield

    def _fail(self, arrival: _Arrival) -> None:
        """Leave it where it is."""
        if not self._is_on_its_way(arrival):
            return
        del self._arriving[arrival.client_id]
        self._send(arrival.host, CANCEL, arrival.number, arrival.client_id, b"")
        if self._sessions.get(arrival.client_id) is arrival.session:
            self.end_vain(arrival.client_id)
        arrival.then(Fetched.FAILED)

    def end_vain(self, client_id: str) -> None:
        """End a session that has come in vain; one that was left behind here before stays so."""
        session = self._sessions.get(client_id)
        if session is None or session.connection is not None:
            return
        if session.details.left_behind:
            self._endings.expire_in(session, AWAY_SECONDS_MAX)
            self.stays_behind(client_id)
        else:
            self._endings.end_moved(session)

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

    def late_came(self, client_id: str, host: int, number: int, rest: bytes) -> bool:
        """Take a part of what a former owner hands over. Return False: not now, the session here may go again."""
        head, page = PartHead.decode(rest)
        session = self._sessions.get(client_id)
        if session is not None and not session.details.epoch:
            return False
        late = self._late.setdefault((client_id, host), _Late())
        late.until = self._now() + _LATE_SECONDS
        if head.number == 0:
            late.number, late.parts = number, 0
        if (number, head.number) != (late.number, late.parts):
            return True  # all of it is sent again
        late.parts += 1
        if session is None:  # the other host may keep it
            if head.place != MORE:
                self._send(host, NOTHING, number, client_id, b"")
            return True
        self._note_owed(client_id, host, head.place)
        details: Details = session.details
        is_same = head.began == details.began
        has_ended = self._ended.get(client_id, (0, 0.0))[0] == head.began
        if is_same or not (details.began_clean or has_ended):
            self._remember(session, is_old=True)
            absent_from = max(head.absent_from, _number_at(details.began + _SUBSCRIBE_MS))
            absent_until = 0 if head.is_left_behind else head.absent_until
            ahead = self._router.state.wall_ms - head.wall_ms
            self._router.moving.take_late(session, page, ahead, absent_from, absent_until)
        if head.place != MORE:

            def done(is_whole: bool) -> None:
                self._send(host, DONE, number, client_id, ALL_THERE if is_whole else ONE_AWAY)

            self._router.journal.when_durable(partial(self._others.flush, done))
        return True

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
            head, part = PartHead.decode(rest)
            if head.number != arrival.parts:
                raise ValueError(f"part {head.number} of a session came, not {arrival.parts}")
            arrival.parts += 1
            if kind == STATE:
                self._state_came(arrival, head.place != MORE, part)
            else:
                self._page_came(arrival, head.place, head.wall_ms, part)
        elif kind == CANCEL:
            self._fail(arrival)
        else:
            del self._arriving[arrival.client_id]
            arrival.then(Fetched.NOTHING)

    def tick(self, now: float) -> None:
        """Give up what is silent."""
        for client_id, arrival in list(self._arriving.items()):
            if arrival.due <= now:
                self._context.guard_client(client_id, self._fail, arrival)
        self._forget(now)
        for key in [key for key, late in self._late.items() if late.until <= now]:
            del self._late[key]


def _number_at(ms: int) -> int:
    """Return the lowest number of messages that are published from a Unix time in ms on."""
    return max(0, ms * 1000 << 8)
