"""SUBSCRIBE and UNSUBSCRIBE: one reason code per Topic Filter, interest to the siblings, then the retained messages.

A SUBACK is sent when every live sibling routes by the new interest, so that a publish that begins after it, on any
worker, reaches the subscriber; and when the subscriptions of a lasting session are stored, which also holds for an
UNSUBACK. Retained messages follow the SUBACK.

A packet with thousands of Topic Filters is processed in pieces (`broker.context.piecework`): each subscription takes
effect and is stored with its piece, the answer is sent with the last one, and the client is not read meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from broker.config.queues import first_rule
from broker.context.piecework import AT_ONCE
from broker.replay.opening import requested_offsets
from pyx.core import counters as count
from pyx.core.work import HELD, STEP, spend
from pyx.delivery.ending import Remains
from pyx.protocol.codec import encode_suback, encode_unsuback
from pyx.protocol.reasons import MalformedPacket, ReasonCode
from pyx.protocol.topics import contains_wildcard, is_topic_filter, levels, parse_share, wrong_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.clients.authorising import Authorising
    from broker.clients.closing import Closing
    from broker.clients.retaining import Retaining
    from broker.clients.unanswered import Unanswered
    from broker.config.settings import QueueRule
    from broker.context.context import Context
    from broker.context.sessions import Asks, Details, Sessions
    from broker.persistence.recording import Recording
    from broker.persistence.state_records import StateRecords
    from broker.replay.opening import Opening
    from broker.replay.replaying import Replaying
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Subscribe, Subscription, Unsubscribe

_QOS = 0x03
_RETAIN_HANDLING = 0x30
_NEVER_RETAINED = 0x20
_ONLY_IF_NEW = 0x10
_SHARED = b"$share/"
_PIECE = AT_ONCE * 10 * STEP
"""ns of work per piece when a configuration change is applied."""
_Named = tuple[bytes, bytes, bytes | None]
"""A subscription: its name as the client sent it, its Topic Filter, its share group."""
_WHY = {
    ReasonCode.TOPIC_FILTER_INVALID: "is no Topic Filter, or beyond topic_bytes_max, topic_levels_max or "
    "share_name_bytes_max",
    ReasonCode.NOT_AUTHORIZED: "is not authorised",
    ReasonCode.QUOTA_EXCEEDED: "is beyond filters_per_session_max, session_bytes_max, filters_max, "
    "wildcard_arrangements_max or worker_memory_bytes_max, or cannot be stored at present",
    ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: "has a wildcard, and there are none here",
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "is shared, and nothing is shared here",
    ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: "has a Subscription Identifier, and there are none here",
}


class Subscribing:
    """Decides about subscriptions."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        state_records: StateRecords,
        recording: Recording,
        authorising: Authorising,
        closing: Closing,
        retaining: Retaining,
        replaying: Replaying,
        opening: Opening,
        unanswered: Unanswered,
    ) -> None:
        self._context = context
        self._router = context.router
        self._sessions = sessions
        self._state_records = state_records
        self._recording = recording
        self._authorising = authorising
        self._closing = closing
        self._retaining = retaining
        self._replaying = replaying
        self._opening = opening
        self._unanswered = unanswered
        self._queue_rules = [rule.filter.encode() for rule in context.settings.queue]
        self._ruled: Session | None = None
        self._unruled: set[bytes] = set()
        """Topic Filters, not yet examined, of the session for which the rules are being re-evaluated."""

    def set_queue_rules(self, rules: Sequence[QueueRule]) -> Iterator[None]:
        """Apply the configured rules, in pieces: every session has the first rule that covers one of its subscriptions.
        A session keeps its former rule until it has been examined. A newer configuration cancels the rest.
        """
        sessions = self._sessions
        self._queue_rules = [rule.filter.encode() for rule in rules]
        sessions.ruling += 1
        return self._rule_anew(sessions.ruling, (1 + len(rules)) * STEP)

    def _rule_anew(self, ruling: int, each: int) -> Iterator[None]:
        done = 0
        for session in self._sessions:
            if session.subscriptions > AT_ONCE and done:  # building the list of its filters is a piece of its own
                yield
                done = 0
            if ruling != self._sessions.ruling:
                return
            details: Details = session.details
            if details.ruling != ruling:
                details.ruling = ruling
                details.queue_rules = None
                self._ruled, self._unruled = session, set(session.filters() if self._queue_rules else ())
                spend(STEP + len(self._unruled) * HELD)
                done += STEP + len(self._unruled) * HELD
                while self._unruled:
                    if done > _PIECE:
                        yield
                        done = 0
                        if ruling != self._sessions.ruling:
                            return
                        continue
                    self._count_under(details, self._unruled.pop(), 1)
                    spend(each)
                    done += each
                self._ruled = None
                self._router.bounding.set_rule(session, min(details.queue_rules or (), default=0))
            if done > _PIECE:
                yield
                done = 0

    def _count_rule(self, session: Session, text: bytes, one: int) -> None:
        details: Details = session.details
        if details.ruling != self._sessions.ruling:
            return  # it will be examined
        if session is self._ruled:
            if one > 0:
                self._unruled.add(text)
            elif text in self._unruled:
                self._unruled.remove(text)
            else:
                self._count_under(details, text, one)
            return
        self._count_under(details, text, one)
        self._router.bounding.set_rule(session, min(details.queue_rules or (), default=0))

    def _count_under(self, details: Details, text: bytes, one: int) -> None:
        number = first_rule(self._queue_rules, text)
        if not number:
            return
        counts = details.queue_rules
        if counts is None:
            counts = details.queue_rules = {}
        counts[number] = counts.get(number, 0) + one
        if not counts[number]:
            del counts[number]

    def subscribe(self, conn: Connection, session: Session, packet: Subscribe) -> None:
        """Add or replace each subscription, in order [MQTT-3.8.4-5]; then SUBACK, then retained messages.

        Raises MalformedPacket.
        """
        self._check_form(conn.version, (item.filter for item in packet.filters))
        if conn.version == 5 and (missing := self._not_offered(packet)):
            # using a feature that CONNACK declared unavailable is a protocol error (MQTT 5, 3.2.2.3.11 to .13)
            self._closing.protocol_error_reason(conn, missing, f"a subscription {_WHY[missing]}")
            return
        if conn.version == 5 and (offsets := requested_offsets(packet)):
            self._opening.subscribe(conn, session, packet, offsets)
            return
        self._context.piecework.answer(conn, self._subscribe(conn, session, packet))

    def _subscribe(self, conn: Connection, session: Session, packet: Subscribe) -> Iterator[None]:
        filters, identifier, packet_id = packet.filters, packet.identifier, packet.packet_id
        del packet  # do not keep it while its answer waits
        codes: list[int] = []
        made: list[_Named] = []
        asks: Asks = []  # filters whose retained messages are sent
        retaining = self._retaining
        for first in range(0, len(filters), AT_ONCE):
            if first:
                yield
            piece = filters[first : first + AT_ONCE]
            spend(len(piece) * 4 * STEP)
            wanted: list[bytes] = []
            for item in piece:
                codes.append(self._subscribe_one(session, item, identifier, wanted, made))
            if wanted and self._context.settings.protocol.retain_available:
                if not asks:
                    self._unanswered.begin(session)
                asks.append((self._unanswered.ask(session, wanted), wanted))
        suback = encode_suback(conn.version, packet_id, codes, self._reason_string(conn, codes), conn.packet_bytes_max)
        interest = 0  # siblings need no update for filters that were all refused
        if asks:
            # what is on its way to the owners of retained topics must be there before they are asked, also where this
            # worker gets it already for another subscription
            interest = self._context.another_interest_number()
        elif min(codes) <= _QOS:
            interest = self._context.interest_number()
        self._answer(
            conn,
            suback,
            interest,
            (lambda: retaining.send(session, asks)) if asks else None,
            lambda conn: self._take_back(conn, packet_id, codes, made, bool(asks)),
        )

    def bring(self, session: Session, subscriptions: Sequence[tuple[Subscription, int]]) -> None:
        """Make these subscriptions, each with its Subscription Identifier, of a session that comes from another host,
        as far as they are allowed here. No retained messages are sent.
        """
        for item, identifier in subscriptions:
            self._subscribe_one(session, item, identifier, [], [])

    def drop(self, session: Session, filters: Sequence[bytes]) -> None:
        """End these subscriptions of a session that has come back without them."""
        remains = Remains()
        try:
            for named in filters:
                self._unsubscribe_one(session, named, remains)
        finally:
            self._hand_on(session, remains)

    def _subscribe_one(
        self, session: Session, item: Subscription, identifier: int, wanted: list[bytes], made: list[_Named]
    ) -> int:
        """Make one subscription; return its reason code."""
        named = text = item.filter
        options, most = item.options, self._context.settings.protocol.maximum_qos
        refused = self.check(session, text, options & _QOS)
        if refused:
            return refused
        group = None
        if text.startswith(_SHARED):
            share = parse_share(text)
            assert share is not None  # checked
            group, text = share
        if options & _QOS > most:  # [MQTT-3.2.2-10]
            options = options & ~_QOS | most
        if group is None:
            self._end_replay(session, text)
        new = self._router.subscribing.subscribe(session, text, options, identifier, group)
        handling = options & _RETAIN_HANDLING
        asks = group is None and handling != _NEVER_RETAINED and (new or handling != _ONLY_IF_NEW)
        owed = self._retaining.owed(session, text, asks) if group is None else []
        self._state_records.subscribed(session, text, group, options, identifier, named, owed)
        self._recording.subscribed(session, named, options, identifier)
        if new:
            made.append((named, text, group))
            session.details.filter_bytes += len(named)
            if group is None and self._queue_rules:
                self._count_rule(session, text, 1)
        if asks:
            wanted.append(text)
        return options & _QOS

    def _take_back(
        self, conn: Connection, packet_id: int, codes: list[int], made: list[_Named], asks: bool
    ) -> bytes | None:
        """Undo the subscriptions of a SUBACK that has waited for a failing disk; return a SUBACK that says so. None:
        some have replaced earlier ones, and cannot be undone.
        """
        session = conn.session
        if session is None or len(made) < sum(code <= _QOS for code in codes):
            return None
        if asks:
            self._unanswered.answered(session)
        self._context.piecework.answer(conn, self._remove(session, made))
        refused = [ReasonCode.QUOTA_EXCEEDED if code <= _QOS else code for code in codes]
        properties = self._reason_string(conn, refused)
        return encode_suback(conn.version, packet_id, refused, properties, conn.packet_bytes_max)

    def _remove(self, session: Session, made: list[_Named]) -> Iterator[None]:
        for number, each in enumerate(made, 1):
            spend(2 * STEP)
            self.remove(session, *each)
            if number % AT_ONCE == 0:
                yield

    def _not_offered(self, packet: Subscribe) -> ReasonCode | None:
        protocol = self._context.settings.protocol
        if (
            protocol.subscription_identifier_available
            and protocol.shared_subscription_available
            and protocol.wildcard_subscription_available
        ):
            return None
        if packet.identifier and not protocol.subscription_identifier_available:
            return ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
        for item in packet.filters:
            if not protocol.shared_subscription_available and item.filter.startswith(_SHARED):
                return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
            if not protocol.wildcard_subscription_available and contains_wildcard(item.filter):
                return ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        return None

    def _check_form(self, version: int, filters: Iterable[bytes]) -> None:
        # checked first: 0x8F is for filters that are well-formed and not allowed (MQTT 5, table 2-6)
        if self._context.settings.protocol.lenient:
            return
        for number, text in enumerate(filters, 1):
            spend(STEP // 2)
            if wrong := wrong_filter(text, version):
                raise MalformedPacket(f"filter {number}: {wrong}")

    def check(self, session: Session, text: bytes, qos: int) -> int:
        """Return 0, or the reason code that refuses this filter with the requested QoS."""
        limits, protocol = self._context.limits, self._context.settings.protocol
        size, group = len(text), None
        if text.startswith(_SHARED):
            share = parse_share(text)
            if share is None:
                return ReasonCode.TOPIC_FILTER_INVALID
            if not protocol.shared_subscription_available:
                return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
            group, text = share
            if len(group) > limits.share_name_bytes_max:
                self._context.counters.add(count.SHARE_NAMES_TOO_LONG)
                return ReasonCode.TOPIC_FILTER_INVALID
        if not is_topic_filter(text) or not self._fits(text):
            return ReasonCode.TOPIC_FILTER_INVALID
        if not protocol.wildcard_subscription_available and contains_wildcard(text):
            return ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        if not self._authorising.may_subscribe(session, text, qos, group):
            self._context.counters.add(count.SUBSCRIPTIONS_NOT_AUTHORISED)
            return ReasonCode.NOT_AUTHORIZED
        full = self._full(session, text, size)
        if full is not None and not self._has(session, text, group):  # a replacement takes no room [MQTT-3.8.4-3]
            self._context.counters.add(full)
            return ReasonCode.QUOTA_EXCEEDED
        state_records = self._state_records
        if state_records.stores(session) and state_records.refuses():
            return ReasonCode.QUOTA_EXCEEDED
        return 0

    def _full(self, session: Session, text: bytes, size: int) -> int | None:
        """Return the counter of the bound that this filter, of `size` bytes with its group, would exceed, or None."""
        limits, details = self._context.limits, session.details
        subscriptions = session.subscriptions + len(session.replays or ())
        # the record of each subscription has the client id in its key
        named = details.filter_bytes + size + (subscriptions + 1) * session.client_id_bytes
        if details.own_bytes + named > limits.session_bytes_max:
            return count.SESSIONS_TOO_LARGE
        there = self._router.state.subscriptions
        full = subscriptions >= limits.filters_per_session_max or there.count >= limits.filters_max
        arranged = there.arrangements
        if full or (0 < limits.wildcard_arrangements_max <= arranged.count and arranged.brings(text)):
            return count.FILTERS_REFUSED
        return count.MEMORY_REFUSED if self._router.back_pressure.is_memory_full else None

    def _has(self, session: Session, text: bytes, group: bytes | None) -> bool:
        return self._router.subscribing.has(session, text, group) or (group is None and text in (session.replays or ()))

    def _fits(self, text: bytes) -> bool:
        limits, row = self._context.limits, self._context.counters
        if len(text) > limits.topic_bytes_max:
            row.add(count.TOPICS_TOO_LONG)
            return False
        if levels(text) > limits.topic_levels_max:
            row.add(count.TOPICS_TOO_DEEP)
            return False
        return True

    def unsubscribe(self, conn: Connection, session: Session, packet: Unsubscribe) -> None:
        """Remove each subscription; a missing one is no error [MQTT-3.10.4-5].

        For a shared one the answer is sent when the siblings know: later messages go to other members.
        Raises MalformedPacket.
        """
        self._check_form(conn.version, packet.filters)
        self._context.piecework.answer(conn, self._unsubscribe(conn, session, packet.filters, packet.packet_id))

    def _unsubscribe(self, conn: Connection, session: Session, filters: list[bytes], packet_id: int) -> Iterator[None]:
        codes: list[int] = []
        for first in range(0, len(filters), AT_ONCE):
            if first:
                yield
            piece, remains = filters[first : first + AT_ONCE], Remains()
            spend(len(piece) * 2 * STEP)
            try:
                for named in piece:
                    codes.append(self._unsubscribe_one(session, named, remains))
            finally:  # no other session has these messages
                self._hand_on(session, remains)
            while len(remains):
                yield
        unsuback = self._unsuback(conn, packet_id, codes)
        shared = any(named.startswith(_SHARED) for named in filters)
        self._answer(
            conn,
            unsuback,
            self._context.interest_number() if shared else 0,
            unstored=lambda conn: self._not_ended(conn, packet_id, codes),
        )

    def _hand_on(self, session: Session, remains: Remains) -> None:
        """Pass messages of share groups on to other members, even if the session that left them ends meanwhile."""
        if not len(remains):
            return
        pieces = self._hand_on_some(session, remains)
        for _ in pieces:
            self._context.piecework.add(pieces, lambda error: self._context.defect(session.client_id, error))
            return

    def _hand_on_some(self, session: Session, remains: Remains) -> Iterator[None]:
        while len(remains):
            self._context.guard_session(session, self._router.ending.clear, remains, AT_ONCE)
            if len(remains):
                yield

    def _unsubscribe_one(self, session: Session, named: bytes, remains: Remains) -> int:
        """Remove one subscription; return its reason code."""
        text, group = named, None
        if text.startswith(_SHARED):
            share = parse_share(text)
            if share is None:
                return ReasonCode.TOPIC_FILTER_INVALID
            group, text = share
        if not is_topic_filter(text):
            return ReasonCode.TOPIC_FILTER_INVALID
        found = self.remove(session, named, text, group, remains)
        if group is None:
            found = self._end_replay(session, text) or found
        return ReasonCode.SUCCESS if found else ReasonCode.NO_SUBSCRIPTION_EXISTED

    def _end_replay(self, session: Session, text: bytes) -> bool:
        self._opening.cancel(session, text)
        found = self._replaying.stop(session, text)
        if found:
            self._recording.unsubscribed(session, text)
        return found

    def remove(
        self, session: Session, named: bytes, text: bytes, group: bytes | None, remains: Remains | None = None
    ) -> bool:
        """End a subscription that is not a replay. Return False if there was none. `remains`: as in `unsubscribe`."""
        found = self._router.subscribing.unsubscribe(session, text, group, remains)
        if found:
            session.details.filter_bytes -= len(named)
            self._state_records.unsubscribed(session, named)
            self._recording.unsubscribed(session, named)
            if group is None:
                self._retaining.unsubscribed(session, text)
                if self._queue_rules:
                    self._count_rule(session, text, -1)
        return found

    def _unsuback(self, conn: Connection, packet_id: int, codes: list[int]) -> bytes:
        properties = self._reason_string(conn, codes)
        return encode_unsuback(conn.version, packet_id, codes, properties, conn.packet_bytes_max)

    def _not_ended(self, conn: Connection, packet_id: int, codes: list[int]) -> bytes | None:
        """Return the UNSUBACK after waiting for a failing disk. The subscriptions have ended, but may reappear after a
        crash: 0x80, "could not be completed"; None: before MQTT 5 there is no such code.
        """
        if conn.version != 5:
            return None
        failed = [ReasonCode.UNSPECIFIED_ERROR if code == ReasonCode.SUCCESS else code for code in codes]
        return self._unsuback(conn, packet_id, failed)

    def _answer(
        self,
        conn: Connection,
        packet: bytes,
        interest: int,
        then: Callable[[], None] | None = None,
        unstored: Callable[[Connection], bytes | None] | None = None,
    ) -> None:
        if len(packet) > conn.packet_bytes_max:  # [MQTT-3.1.2-24]: the client asked for a longer answer than it takes
            self.too_large(conn)
            return
        self._router.answering.answer_packet(conn, packet, interest, then, unstored)

    def too_large(self, conn: Connection) -> None:
        """End a connection for which the answer is beyond its Maximum Packet Size."""
        why = "the answer is beyond Maximum Packet Size"
        self._closing.protocol_error_reason(conn, ReasonCode.PACKET_TOO_LARGE, why)

    def _reason_string(self, conn: Connection, codes: list[int]) -> dict[str, str] | None:
        """Return a Reason String for the first refused filter, if there is one and the client wants it."""
        if conn.version == 5 and conn.problem_information:
            for number, code in enumerate(codes, 1):
                if code >= ReasonCode.UNSPECIFIED_ERROR:
                    return {"reason_string": f"filter {number} {self.why(code)}"}
        return None

    def why(self, code: int) -> str:
        """Return why a filter is refused with this reason code."""
        return _WHY.get(ReasonCode(code), "is refused")
