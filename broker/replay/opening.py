"""SUBSCRIBE with the user property `mqttd-offset`: decides whether a replay is possible and where it begins; SUBACK.

All Topic Filters of the packet begin at the same place. A position is refused if any worker has removed something
behind it; `latest` begins behind every number given out when the SUBSCRIBE arrived, so that a publish that begins after
the SUBACK reaches the subscriber. Each worker knows both only for itself: reachable siblings are asked first, and the
SUBACK waits for their answers, and so do later answers to the client. A sibling that goes away meanwhile is no longer
waited for. Until then earlier subscriptions stay as they are.

In a cluster the archives of all hosts are read. All workers of the hosts whose archives can be read are asked, for at
most five seconds. A position that names a host that cannot be read is refused (`broker.replay.beginning`): its client
decides whether it waits for that host.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from broker.context.piecework import AT_ONCE
from broker.replay.beginning import Beginning, Found, beginning_of
from broker.replay.offsets import (
    NAME,
    HostPosition,
    OffsetError,
    RequestedStart,
    requested_start,
)
from broker.replay.questions import host_starts_of, probe_of, question_number_of, starts_of
from broker.replay.reading import written
from pyx.core import counters as count
from pyx.core.peer import OWN_HOST, Peer, host_of, is_sibling
from pyx.core.work import STEP, spend
from pyx.protocol.codec import encode_suback
from pyx.protocol.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.context.context import Context
    from broker.persistence.recording import Recording
    from broker.replay.host_messages import HostMessage
    from broker.replay.replaying import Replaying
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Subscribe, Subscription

__all__ = ["Opening", "requested_offsets"]

_QOS = 0x03
_CANNOT = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
_BEYOND = "is beyond replays_per_session_max or replays_max"
_PIECE = 5000 * STEP
_HOSTS_SECONDS_MAX = 5.0
"""Time for which the SUBACK waits for other hosts."""


def requested_offsets(packet: Subscribe) -> list[str]:
    """Return the values of the user property."""
    properties: list[tuple[str, str]] = packet.properties.get("user_property", [])
    return [value for name, value in properties if name == NAME]


class _Wanted:
    """One Topic Filter of the packet. `code`: the granted QoS, or the reason code that refuses it."""

    __slots__ = ("allowed", "code", "first", "is_covered", "options", "starts", "text", "why")

    def __init__(self, text: bytes, options: int, code: int, why: str, first: _Wanted | None) -> None:
        self.first = first
        """The same filter earlier in the packet: only the first one is examined, with the options of the last."""
        self.text = text
        self.options = options
        self.code = code
        self.why = why
        self.allowed = 1 << (options & _QOS)
        """A bit for each QoS that the rules allow."""
        self.starts: dict[int, int] = {}
        """By host (0: this one): the highest removed number, of all its workers."""
        self.is_covered = False
        """Whether a table of any host covers it."""


class _Waiting:
    """A SUBSCRIBE whose SUBACK is pending."""

    __slots__ = (
        "answer",
        "conn",
        "found",
        "fresh",
        "identifier",
        "packet_id",
        "peers",
        "possible",
        "requested",
        "session",
        "wanted",
    )

    def __init__(self, conn: Connection, session: Session, packet: Subscribe, wanted: list[_Wanted]) -> None:
        self.conn = conn
        self.session = session
        self.packet_id = packet.packet_id
        self.identifier = packet.identifier
        self.wanted = wanted
        self.possible: dict[bytes, _Wanted] = {}
        """The filters that this worker finds possible, each once: not many."""
        self.fresh = 0
        """Number of these that replace no other replay."""
        self.requested = RequestedStart()
        self.answer: list[Any] | None = None
        self.peers: set[Peer] = set()
        """Workers that have not answered."""
        self.found = Found()
        """What workers have answered."""


class OrdinarySubscriptions(Protocol):
    """The interface to ordinary subscriptions, and to the rules for all (`broker.clients.subscribing`)."""

    def check(self, session: Session, text: bytes, qos: int) -> int:
        """Return 0, or the reason code that refuses this filter with the requested QoS."""

    def why(self, code: int) -> str:
        """Return why a filter is refused with this reason code."""

    def remove(self, session: Session, named: bytes, text: bytes, group: bytes | None) -> bool:
        """End a subscription. Return False if there was none."""

    def too_large(self, conn: Connection) -> None:
        """End a connection for which the answer is beyond its Maximum Packet Size."""


class Replays(Protocol):
    """The interface to authorisation of replays (`broker.clients.authorising`)."""

    def may_replay(self, session: Session, topic_filter: bytes) -> bool:
        """Whether this subscription may begin in the archive."""


class Opening:
    """Opens replays."""

    def __init__(self, context: Context, recording: Recording, replaying: Replaying, rights: Replays) -> None:
        self._context = context
        self._router = context.router
        self._recording = recording
        self._replaying = replaying
        self._rights = rights
        self.subscriptions: OrdinarySubscriptions
        """Set once, by the code that passes SUBSCRIBEs here."""
        self._waiting: dict[int, _Waiting] = {}
        self._wanted: dict[Session, dict[bytes, list[_Wanted]]] = {}
        """Pending requests by Topic Filter."""
        self._number = context.router.state.wall_ms * 1000
        replaying.hosts.heard_kinds[b"O"] = self._host_started
        replaying.hosts.when_changed.append(self._hosts_changed)

    def subscribe(self, conn: Connection, session: Session, packet: Subscribe, values: list[str]) -> None:
        """Answer it with a SUBACK, now or when siblings have answered."""
        self._context.piecework.answer(conn, self._subscribe(conn, session, packet, values))

    def _subscribe(self, conn: Connection, session: Session, packet: Subscribe, values: list[str]) -> Iterator[None]:
        replaying = self._replaying
        number = self._router.state.next_number()
        waiting = _Waiting(conn, session, packet, [])
        wrong = ""
        if replaying.archive is None and not replaying.hosts.is_used:
            wrong = "nothing is archived here"
        else:
            try:
                waiting.requested = requested_start(values, replaying.tag, number)  # all messages of a client are older
            except OffsetError as error:
                wrong = str(error)
        for first in range(0, len(packet.filters), AT_ONCE):
            if first:
                yield
            self._judge_all(waiting, packet.filters[first : first + AT_ONCE], wrong)
        if waiting.possible:
            self._begin(waiting, number)
        else:
            self._finish(waiting)

    def _judge_all(self, waiting: _Waiting, filters: list[Subscription], wrong: str) -> None:
        """Decide which filters are possible."""
        most = self._context.settings.protocol.maximum_qos
        spend(len(filters) * 4 * STEP)
        for item in filters:
            options = item.options if item.options & _QOS <= most else item.options & ~_QOS | most
            text, qos = item.filter, item.options & _QOS
            first = waiting.possible.get(text)
            if first is not None:
                refused = 0 if first.allowed >> qos & 1 else self.subscriptions.check(waiting.session, text, qos)
                if not refused:
                    first.options = options
                    first.allowed |= 1 << qos
                waiting.wanted.append(_Wanted(text, options, refused or options & _QOS, "", None if refused else first))
                continue
            code, why = (int(_CANNOT), wrong) if wrong else self._judge(waiting, text, qos)
            wanted = _Wanted(text, options, code or options & _QOS, why, None)
            waiting.wanted.append(wanted)
            if not code:
                waiting.possible[text] = wanted
                waiting.fresh += text not in (waiting.session.replays or {})

    def _begin(self, waiting: _Waiting, number: int) -> None:
        """Begin, because at least one filter is possible."""
        context = self._context
        waiting.found.number = number
        self._look_here(waiting)
        if waiting.requested.is_position or waiting.requested.is_latest:
            waiting.peers = {peer for peer in context.siblings if context.is_ready(peer)}
        of_hosts = [peer for archive in self._replaying.hosts.by_tag.values() for peer in archive.peers]
        waiting.peers.update(of_hosts)
        if not waiting.peers:
            self._finish(waiting)
            return
        self._number += 1
        self._waiting[self._number] = waiting
        of_session = self._wanted.setdefault(waiting.session, {})
        for wanted in waiting.possible.values():
            of_session.setdefault(wanted.text, []).append(wanted)
        waiting.answer = self._router.late_answers.answer_later(waiting.conn)
        spend(len(waiting.peers) * STEP)
        probe = probe_of(self._number, list(waiting.possible))
        for peer in waiting.peers:
            if is_sibling(peer):
                self._router.peers.tell(peer, b"o", probe)
            else:
                self._replaying.hosts.ask(peer, b"o", probe)
        if of_hosts:
            self._context.call_later(_HOSTS_SECONDS_MAX, partial(self._out_of_time, self._number))

    def _judge(self, waiting: _Waiting, text: bytes, qos: int) -> tuple[int, str]:
        """Return (0 or the reason code, why) for a Topic Filter."""
        if text.startswith(b"$share/"):
            return _CANNOT, f"is shared: {NAME} is for subscriptions of one client"
        refused = self.subscriptions.check(waiting.session, text, qos)
        if refused:
            return refused, ""
        if not self._rights.may_replay(waiting.session, text):
            self._context.counters.add(count.SUBSCRIPTIONS_NOT_AUTHORISED)
            return ReasonCode.NOT_AUTHORIZED, ""
        archive = self._replaying.archive
        if not self._replaying.hosts.is_used and not (archive is not None and archive.covers(text)):
            return _CANNOT, "is not archived: no [[archive]] table covers it"
        return self._room(waiting.session, text, waiting.fresh)

    def _room(self, session: Session, text: bytes, beside: int) -> tuple[int, str]:
        """Do the same for the limits. `beside`: number of other replays about to be made."""
        limits, replays = self._context.limits, session.replays or {}
        if text not in replays and (
            len(replays) + beside >= limits.replays_per_session_max
            or self._replaying.count + beside >= limits.replays_max
        ):
            return ReasonCode.QUOTA_EXCEEDED, _BEYOND
        return 0, ""

    def _look_here(self, waiting: _Waiting) -> None:
        archive = self._replaying.archive
        if archive is not None:
            for wanted in waiting.possible.values():
                wanted.starts[OWN_HOST] = archive.start(wanted.text)
                wanted.is_covered = archive.covers(wanted.text)

    # ------------------------------------------------------------ siblings

    def started(self, peer: Peer, payload: bytes) -> None:
        """Handle the message b"O" of a sibling."""
        number, last, starts = starts_of(payload)
        waiting = self._waiting.get(number)
        if waiting is None or peer not in waiting.peers:
            return
        waiting.found.last[peer] = last
        for wanted, start in zip(waiting.possible.values(), starts, strict=True):
            wanted.starts[OWN_HOST] = max(wanted.starts.get(OWN_HOST, 0), start)
        self._answered(number, waiting, peer)

    # ------------------------------------------------------------ other hosts

    def _host_started(self, message: HostMessage) -> None:
        """Handle the message b"O" of a worker of another host. Raises ValueError, struct.error."""
        peer, number = message.sender, question_number_of(message.content)
        waiting = self._waiting.get(number)
        if waiting is None or peer not in waiting.peers:
            return
        _, last, starts, has_room, covers = host_starts_of(message.content, len(waiting.possible))
        host = host_of(peer)
        waiting.found.last[peer] = last
        if not has_room:
            waiting.found.full.add(host)
        for wanted, start, is_covered in zip(waiting.possible.values(), starts, covers, strict=True):
            wanted.starts[host] = max(wanted.starts.get(host, 0), start)
            wanted.is_covered |= is_covered
        self._context.guard(waiting.conn, self._answered, number, waiting, peer)

    def _hosts_changed(self) -> None:
        for number in list(self._waiting):
            self._give_up(number, lambda peer: not self._replaying.hosts.is_ready(peer))

    def _out_of_time(self, number: int) -> None:
        self._give_up(number, lambda _peer: True)

    def _give_up(self, number: int, gone: Callable[[Peer], bool]) -> None:
        """Stop waiting for those workers of other hosts."""
        waiting = self._waiting.get(number)
        for peer in list(waiting.peers) if waiting is not None else ():
            if waiting is not None and not is_sibling(peer) and gone(peer):
                waiting.found.silent.add(host_of(peer))
                self._context.guard(waiting.conn, self._answered, number, waiting, peer)

    def peer_away(self, peer: Peer) -> None:
        """Stop waiting for a sibling that is silent or dead."""
        self._context.in_pieces(self._without(peer))

    def _without(self, peer: Peer) -> Iterator[None]:
        done = len(self._waiting) * STEP // 10
        spend(done)
        for number in list(self._waiting):
            if done >= _PIECE:
                yield
                done = 0
            waiting = self._waiting.get(number)
            spend(STEP)
            done += STEP
            if waiting is not None and peer in waiting.peers:
                done += len(waiting.wanted) * 20 * STEP
                self._context.guard(waiting.conn, self._answered, number, waiting, peer)

    def _answered(self, number: int, waiting: _Waiting, peer: Peer) -> None:
        waiting.peers.discard(peer)
        if not waiting.peers:
            del self._waiting[number]
            self._let_go(waiting)
            self._finish(waiting)

    def _let_go(self, waiting: _Waiting) -> None:
        of_session = self._wanted.get(waiting.session, {})
        for text, wanted in waiting.possible.items():
            same = of_session.get(text, [])
            if wanted in same:
                same.remove(wanted)
            if not same:
                of_session.pop(text, None)
        if not of_session:
            self._wanted.pop(waiting.session, None)

    def cancel(self, session: Session, text: bytes) -> None:
        """Drop the pending request: the client has since subscribed or unsubscribed the filter otherwise."""
        of_session = self._wanted.get(session)
        if of_session is None:
            return
        for wanted in of_session.pop(text, ()):
            spend(STEP)
            wanted.text = b""
        if not of_session:
            del self._wanted[session]

    # ------------------------------------------------------------ the answer

    def _finish(self, waiting: _Waiting) -> None:
        conn, session = waiting.conn, waiting.session
        if session.connection is not conn:
            return  # the client has gone, so it gets no answer
        made: list[bytes] = []
        spend(len(waiting.wanted) * STEP // 2)
        beginning = beginning_of(self._replaying, waiting.requested, waiting.found)
        earliest: dict[bytes, HostPosition] = {}
        replaced = False
        for wanted in waiting.possible.values():
            if not wanted.text:
                continue
            code, why = self._room(session, wanted.text, 0)  # others may have been made meanwhile
            if not code:
                code, why = beginning.code, beginning.why
            if not code and not wanted.is_covered:
                code, why = int(_CANNOT), "is not archived: no [[archive]] table covers it"
            if not code and (lost := beginning.before_start(wanted.starts)):
                code, why = int(_CANNOT), f"{NAME} lies before the start of the archive"
                for each in lost:
                    known = earliest.get(each.tag, each)
                    earliest[each.tag] = max(known, each, key=lambda position: position.number)
            if code:
                wanted.code, wanted.why = code, why
                continue
            replaced = self._make(waiting, wanted, beginning) or replaced
            made.append(wanted.text)
        for wanted in waiting.wanted:
            if wanted.first is not None and wanted.first.code > _QOS:
                wanted.code, wanted.why = wanted.first.code, wanted.first.why
        codes = [wanted.code for wanted in waiting.wanted]
        self._context.counters.add(count.REPLAYS_REFUSED, sum(code > _QOS for code in codes))
        suback = self._suback(waiting, codes, beginning.offered(earliest))

        def then() -> None:
            for text in made:
                replay = (session.replays or {}).get(text)
                if replay is not None:
                    self._replaying.begin(replay)

        def unstored(conn: Connection) -> bytes | None:
            if replaced:
                return None
            for text in made:
                if self._replaying.stop(session, text):
                    self._recording.unsubscribed(session, text)
            refused = [int(ReasonCode.QUOTA_EXCEEDED) if code <= _QOS else code for code in codes]
            return encode_suback(5, waiting.packet_id, refused, None, conn.packet_bytes_max)

        if len(suback) > conn.packet_bytes_max:  # [MQTT-3.1.2-24]
            self.subscriptions.too_large(conn)
        elif waiting.answer is None:
            self._router.answering.answer_packet(conn, suback, 0, then, unstored)
        else:
            self._router.late_answers.settle_answer(conn, waiting.answer, suback, then, unstored)

    def _make(self, waiting: _Waiting, wanted: _Wanted, beginning: Beginning) -> bool:
        """Make the replay. Return True if it replaces another subscription."""
        session, text = waiting.session, wanted.text
        replaced = self.subscriptions.remove(session, text, text, None)
        replaced = text in (session.replays or {}) or replaced
        replay = self._replaying.make(
            session, text, wanted.options, waiting.identifier, beginning.starts, beginning.begins
        )
        if beginning.lacks:
            replay.merge.lost = replay.merge.text()
        self._replaying.keep(replay)
        self._recording.subscribed(session, text, wanted.options, waiting.identifier)
        return replaced

    def _suback(self, waiting: _Waiting, codes: list[int], offered: tuple[str, list[HostPosition]]) -> bytes:
        properties: dict[str, Any] = {}
        conn, replaying = waiting.conn, self._replaying
        if conn.problem_information:
            for number, wanted in enumerate(waiting.wanted, 1):
                if wanted.code > _QOS:
                    why = wanted.why or self.subscriptions.why(wanted.code)
                    properties["reason_string"] = why if why.startswith(NAME) else f"filter {number} {why}"
                    break
            name, positions = offered
            if positions and any(code == _CANNOT for code in codes):
                text = written(positions, replaying.tag, replaying.hosts.is_used)
                properties["user_property"] = [(name, text)]
        return encode_suback(5, waiting.packet_id, codes, properties or None, conn.packet_bytes_max)
