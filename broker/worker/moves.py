"""A session moves to the host to which its client has connected.

The new host asks, the present owner gives:

    new -> owner    GIVE       end its connection, and give its session
    owner -> new    NOTHING    there is none, or it has ended with its connection
                    STATE      its terms and subscriptions, in parts
    new -> owner    GO_ON      all workers and hosts know the subscriptions of the new one
    owner -> new    PAGE       what it has for its client, in parts (`pyx.delivery.moving`)
    new -> owner    CANCEL     keep it

The new host has a session with these subscriptions before it says GO_ON, and the owner waits for what is on its way to
it (`broker.worker.flushing`) before the first page. So whatever is published is either in a page, or comes to the new
host, or both; what comes twice is known by its fingerprint, and sent once. When all is stored, the new host takes the
ownership (`broker.worker.owning`), and the former owner ends its session when it hears that. Until then the former
owner has all of it: if one of the two ends on the way, its session is the one that counts. If it does not hear how it
went, it asks who owns the client id.

The will is not moved: with the connection it is due, or waits for its delay, and then the client is back. Not moved
either: replays of the archive, which has another one on each host, and what is still to be sent of the retained
messages that a SUBSCRIBE has asked for.

A message has a head of u32 host, u64 number of the move, u16 length of the client id, and the client id.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.context.piecework import AT_ONCE
from broker.context.sessions import own_bytes
from pyx.core import counters as count
from pyx.core.work import STEP, spend
from pyx.protocol.packets import Subscription
from pyx.protocol.topics import parse_share

if TYPE_CHECKING:
    from broker.clients.capacity import Capacity
    from broker.clients.closing import Closing
    from broker.clients.endings import Endings
    from broker.clients.subscribing import Subscribing
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from broker.persistence.recording import Recording
    from broker.persistence.state_records import StateRecords
    from broker.worker.owning import OtherOwners
    from pyx.delivery.connection import Connection
    from pyx.delivery.moving import Departure
    from pyx.delivery.session import Session

__all__ = ["CANCEL", "GIVE", "GO_ON", "NOTHING", "PAGE", "STATE", "SessionMoves"]

GIVE: Final = b"G"
NOTHING: Final = b"N"
STATE: Final = b"S"
GO_ON: Final = b"C"
PAGE: Final = b"P"
CANCEL: Final = b"X"

_FORMAT: Final = 1
_TERMS: Final = struct.Struct("<BBIH")
"""Format, MQTT version, Session Expiry Interval, bytes of the user name; _NO_NAME: none."""
_NO_NAME: Final = 0xFFFF
_SUBSCRIPTION: Final = struct.Struct("<HBI")
"""Bytes of the filter as the client named it, options, Subscription Identifier."""
_PART: Final = struct.Struct("<IBq")
"""Number of the part of a STATE or PAGE, whether it is the last one, and the sender's time in ms."""
_PAGE_BYTES: Final = 64 << 10
_PAUSE_SECONDS: Final = 0.01
_OUTBOX_SHARE: Final = 8
"""Pages fill this fraction (1 / ...) of a link's outbox: what is published meanwhile has the rest."""
_SILENCE_SECONDS: Final = 5.0
"""Time without a part after which a move has failed."""
_BROUGHT_SECONDS: Final = 2.0
"""Time after the last page in which a message may still come that was in one."""
_SERVE_SECONDS: Final = 0.02
_RETAIN_HANDLING: Final = 0x30
_NEVER_RETAINED: Final = 0x20


class _Arrival:
    """A session that comes here. then: called with whether it is here, or there was none; False: it stays."""

    __slots__ = ("conn", "due", "host", "parts", "seen", "session", "subscriptions", "then")

    def __init__(self, host: int, conn: Connection, then: Callable[[bool], None]) -> None:
        self.host = host
        self.conn = conn
        self.then = then
        self.due = 0.0
        self.parts = 0
        """Number of the next part."""
        self.session: Session | None = None
        self.subscriptions: list[tuple[Subscription, int]] = []
        """Those of the owner, each with its Subscription Identifier."""
        self.seen: set[int] = set()
        """Fingerprints of the messages that have come."""


class _Leaving:
    """A session that goes to another host."""

    __slots__ = ("departure", "due", "host", "number", "pages", "session")

    def __init__(self, session: Session, host: int, number: int, due: float) -> None:
        self.session = session
        self.host = host
        self.number = number
        self.due = due
        self.departure: Departure | None = None
        self.pages = 0


class SessionMoves:
    """The moves of one worker's sessions. send(host, kind, number, client id, rest): sends a message to the home of a
    client id at a host, and returns whether it is linked. resolve: finds out who owns a client id whose session may
    have gone.
    """

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        state_records: StateRecords,
        recording: Recording,
        endings: Endings,
        capacity: Capacity,
        closing: Closing,
        subscribing: Subscribing,
        others: OtherOwners,
        send: Callable[[int, bytes, int, str, bytes], bool],
        resolve: Callable[[str], None],
    ) -> None:
        self._context = context
        self._router = context.router
        self._sessions = sessions
        self._state_records = state_records
        self._recording = recording
        self._endings = endings
        self._capacity = capacity
        self._closing = closing
        self._subscribing = subscribing
        self._others = others
        self._send = send
        self._resolve = resolve
        self._numbers = itertools.count(self._router.state.wall_ms << 16)  # rise over restarts
        self._arriving: dict[tuple[str, int], _Arrival] = {}
        """By client id and number of the move."""
        self._leaving: dict[str, _Leaving] = {}

    def is_leaving(self, client_id: str) -> bool:
        """Whether its session may be on its way to another host."""
        return client_id in self._leaving

    # ------------------------------------------------------------ to this host

    def fetch(self, client_id: str, host: int, conn: Connection, then: Callable[[bool], None]) -> bool:
        """Bring the session of a client from its owner. conn: the connection that waits for it. Return False if that
        host is not linked.
        """
        number = next(self._numbers)
        if not self._send(host, GIVE, number, client_id, b""):
            return False
        arrival = self._arriving[client_id, number] = _Arrival(host, conn, then)
        self._renew(arrival)
        return True

    def _renew(self, arrival: _Arrival) -> None:
        arrival.due = self._now() + _SILENCE_SECONDS

    def _now(self) -> float:
        return self._router.state.now_ms / 1000

    def _state_came(self, client_id: str, number: int, arrival: _Arrival, is_last: bool, part: bytes) -> None:
        if arrival.session is None:
            self._end_former(client_id)  # of a time when this host was the owner
            if client_id in self._endings.clients:  # it is being cleared
                again = partial(self._state_came, client_id, number, arrival, is_last, part)
                self._endings.wait(arrival.conn, client_id, again)
                return
            part = self._begin(client_id, arrival, part)
            if arrival.session is None:
                self._fail(client_id, number)
                return
        arrival.subscriptions += _subscriptions(part)
        if is_last:
            arrival.parts = 0
            self._context.in_pieces(self._subscribe(client_id, number, arrival))

    def _end_former(self, client_id: str) -> None:
        session = self._sessions.get(client_id)
        if session is not None:
            self._closing.taken_over_elsewhere(session)
        session = self._sessions.get(client_id)
        if session is not None:
            self.end(session)

    def _begin(self, client_id: str, arrival: _Arrival, part: bytes) -> bytes:
        """Make the session, if there is room for it. Return the rest of the part."""
        version, mqtt, expiry, length = _TERMS.unpack_from(part)
        if version != _FORMAT:
            raise ValueError(f"the state of a session has format {version}, this release reads {_FORMAT}")
        at = _TERMS.size + (0 if length == _NO_NAME else length)
        if not self._capacity.for_session():
            self._context.counters.add(count.SESSIONS_OVER_MAX)
            return b""
        session = arrival.session = self._sessions.new(client_id, mqtt)
        details: Details = session.details
        session.durable = True
        details.expiry_interval = expiry
        details.username = None if length == _NO_NAME else part[_TERMS.size : at].decode()
        details.own_bytes = own_bytes(client_id, details.username, None)
        self._router.restoring.restore(session, None, {}, {})
        self._sessions.left(session)
        self._endings.expire_in(session, expiry)
        self._state_records.connected(session)
        return part[at:]

    def _subscribe(self, client_id: str, number: int, arrival: _Arrival) -> Iterator[None]:
        session, subscriptions = arrival.session, arrival.subscriptions
        assert session is not None
        for first in range(0, len(subscriptions), AT_ONCE):
            if first:
                yield
            if (client_id, number) not in self._arriving:
                return
            piece = subscriptions[first : first + AT_ONCE]
            spend(len(piece) * 4 * STEP)
            self._subscribing.bring(session, piece)
        arrival.subscriptions = []
        self._renew(arrival)

        def known() -> None:
            if (client_id, number) in self._arriving:
                self._renew(arrival)
                self._send(arrival.host, GO_ON, number, client_id, b"")

        self._router.answering.answer_packet(arrival.conn, b"", self._context.another_interest_number(), known)

    def _page_came(
        self, client_id: str, number: int, arrival: _Arrival, is_last: bool, wall_ms: int, page: bytes
    ) -> None:
        session = arrival.session
        if session is None or self._sessions.get(client_id) is not session:
            self._fail(client_id, number)
            return
        self._router.moving.take(session, page, self._router.state.wall_ms - wall_ms, arrival.seen)
        if is_last:
            session.brought = arrival.seen
            self._router.journal.when_durable(partial(self._is_here, client_id, number))

    def _is_here(self, client_id: str, number: int) -> None:
        arrival = self._arriving.pop((client_id, number), None)
        if arrival is None:
            return
        self._context.counters.add(count.SESSIONS_MOVED)
        self._serve(arrival.session, self._now() + _BROUGHT_SECONDS)
        self._context.guard_client(client_id, arrival.then, True)

    def _serve(self, session: Session | None, until: float) -> None:
        """Let it read its log now and then, while messages that it has brought may come again."""
        if session is None or self._sessions.get(session.client_id) is not session:
            return
        if self._now() >= until:
            session.brought = None
        else:
            self._context.call_later(_SERVE_SECONDS, partial(self._serve, session, until), session)
        self._router.moving.serve(session)

    def _fail(self, client_id: str, number: int) -> None:
        """Leave it where it is."""
        arrival = self._arriving.pop((client_id, number), None)
        if arrival is None:
            return
        self._send(arrival.host, CANCEL, number, client_id, b"")
        session = arrival.session
        if session is not None and self._sessions.get(client_id) is session and session.connection is None:
            self.end(session)
        arrival.then(False)

    def cancel(self, client_id: str, host: int | None) -> None:
        """Let the former owner keep a session that has come: another host has taken the client id meanwhile."""
        if host is not None:
            self._send(host, CANCEL, 0, client_id, b"")
        session = self._sessions.get(client_id)
        if session is not None and session.connection is None:
            self.end(session)

    # ------------------------------------------------------------ to another host

    def _give(self, client_id: str, number: int, host: int) -> None:
        session = self._sessions.get(client_id)
        if session is not None:
            self._closing.taken_over_elsewhere(session)
            session = self._sessions.get(client_id)
        if session is None:
            self._send(host, NOTHING, number, client_id, b"")
            return
        details: Details = session.details
        if details.expiry_handle is not None:
            details.expiry_handle.cancel()
            details.expiry_handle = None
        self._leaving[client_id] = _Leaving(session, host, number, self._now() + 2 * _SILENCE_SECONDS)
        self._context.in_pieces(self._send_state(client_id, session, host, number))

    def _send_state(self, client_id: str, session: Session, host: int, number: int) -> Iterator[None]:
        details: Details = session.details
        name = (details.username or "").encode()
        length = _NO_NAME if details.username is None else len(name)
        part = bytearray(_TERMS.pack(_FORMAT, session.version, details.expiry_interval, length) + name)
        total, number_of_part = session.subscriptions, 0
        for first in range(0, total, AT_ONCE):
            if first:
                yield
            spend(AT_ONCE * STEP)
            for named in session.subscribed(first, AT_ONCE):
                group, text = parse_share(named) or (None, named) if named.startswith(b"$share/") else (None, named)
                terms = self._router.subscribing.terms(session, text, group)
                if terms is not None:
                    part += _SUBSCRIPTION.pack(len(named), *terms) + named
            if len(part) >= _PAGE_BYTES and first + AT_ONCE < total:
                self._send_part(host, STATE, number, client_id, number_of_part, False, part)
                number_of_part += 1
                part = bytearray()
        self._send_part(host, STATE, number, client_id, number_of_part, True, part)

    def _send_part(
        self,
        host: int,
        kind: bytes,
        number: int,
        client_id: str,
        number_of_part: int,
        is_last: bool,
        part: bytes | bytearray,
    ) -> None:
        head = _PART.pack(number_of_part, is_last, self._router.state.wall_ms)
        self._send(host, kind, number, client_id, head + part)

    def _go_on(self, client_id: str, number: int) -> None:
        self._others.flush(partial(self._leave, client_id, number))

    def _leave(self, client_id: str, number: int) -> None:
        leaving = self._leaving.get(client_id)
        if leaving is not None and leaving.number == number:
            leaving.departure = self._router.moving.leave(leaving.session)
            self._context.in_pieces(self._send_pages(client_id, leaving, leaving.departure))

    def _send_pages(self, client_id: str, leaving: _Leaving, departure: Departure) -> Iterator[None]:
        """Send pages until the link has enough of them, then go on later."""
        while self._leaving.get(client_id) is leaving and self._sessions.get(client_id) is leaving.session:
            link = self._others.link_of(leaving.host)
            if link is None:
                return  # it is asked later who owns the client id
            if link.full or link.outbox_bytes * _OUTBOX_SHARE > self._context.limits.peer_outbox_bytes_max:
                rest = self._send_pages(client_id, leaving, departure)
                self._context.call_later(_PAUSE_SECONDS, partial(self._context.in_pieces, rest))
                return
            leaving.due = self._now() + 2 * _SILENCE_SECONDS
            page = departure.page(_PAGE_BYTES)
            self._send_part(leaving.host, PAGE, leaving.number, client_id, leaving.pages, page is None, page or b"")
            leaving.pages += 1
            if page is None:
                return
            yield

    def taken(self, client_id: str) -> None:
        """Forget a move that is done: the session is the new owner's."""
        leaving = self._leaving.pop(client_id, None)
        if leaving is not None and leaving.departure is not None:
            leaving.departure.gone()

    def keep(self, client_id: str) -> None:
        """Keep a session that does not go: it is an offline one again."""
        leaving = self._leaving.pop(client_id, None)
        session = self._sessions.get(client_id)
        if leaving is not None and session is leaving.session and session is not None and session.connection is None:
            self._endings.expire_in(session, session.details.expiry_interval)

    def end(self, session: Session) -> None:
        """End a session without a connection that is another host's: its will is that one's, too."""
        details: Details = session.details
        details.will = None
        if details.will_handle is not None:
            details.will_handle.cancel()
            details.will_handle = None
        self._state_records.will_gone(session)
        details.epoch = 0  # nothing is released
        self._recording.session_ended(session, "moved to another host")
        self._endings.end(session)

    # ------------------------------------------------------------ messages, and time

    def heard(self, kind: bytes, host: int, number: int, client_id: str, rest: bytes) -> None:
        """Take a message of another host about a client id whose home this worker is."""
        if kind == GIVE:
            self._give(client_id, number, host)
        elif kind == GO_ON:
            self._go_on(client_id, number)
        elif kind == CANCEL:
            leaving = self._leaving.get(client_id)
            if leaving is not None and leaving.host == host and number in (0, leaving.number):
                self.keep(client_id)
        else:
            arrival = self._arriving.get((client_id, number))
            if arrival is None or arrival.host != host:
                return  # given up
            self._renew(arrival)
            try:
                self._came(kind, client_id, number, arrival, rest)
            except Exception:
                self._fail(client_id, number)
                raise

    def _came(self, kind: bytes, client_id: str, number: int, arrival: _Arrival, rest: bytes) -> None:
        if kind in (STATE, PAGE):
            number_of_part, is_last, wall_ms = _PART.unpack_from(rest)
            if number_of_part != arrival.parts:
                raise ValueError(f"part {number_of_part} of a session came, not {arrival.parts}")
            arrival.parts += 1
            if kind == STATE:
                self._state_came(client_id, number, arrival, is_last, rest[_PART.size :])
            else:
                self._page_came(client_id, number, arrival, is_last, wall_ms, rest[_PART.size :])
        else:
            del self._arriving[client_id, number]
            self._end_former(client_id)  # the owner's session counts, and it has none
            arrival.then(True)

    def tick(self, now: float) -> None:
        """Give up what is silent."""
        for (client_id, number), arrival in list(self._arriving.items()):
            if arrival.due <= now:
                self._context.guard_client(client_id, self._fail, client_id, number)
        for client_id, leaving in list(self._leaving.items()):
            if leaving.due <= now:
                leaving.due = now + 2 * _SILENCE_SECONDS
                self._resolve(client_id)


def _subscriptions(part: bytes) -> list[tuple[Subscription, int]]:
    found, at = [], 0
    while at < len(part):
        length, options, identifier = _SUBSCRIPTION.unpack_from(part, at)
        at += _SUBSCRIPTION.size + length
        options = options & ~_RETAIN_HANDLING | _NEVER_RETAINED  # its client has been sent them
        found.append((Subscription(part[at - length : at], options), identifier))
    return found
