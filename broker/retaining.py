r"""Retained messages for a new subscription, wherever on the host they live.

Each topic has one owner among the workers (pyx.placement). After a SUBACK every owner is asked: this worker answers
itself in pages, siblings are sent a question over the link and answer in pages of entries. A sibling that is away is
asked when it is back, as long as the session still wants it.

    question    topic b"?"      payload: u64 number | Topic Filter | NUL + last topic of the last page, or nothing
    answer      topic b"!"      payload: u64 number | u8 1 = more | messages as a store has them, with their publishers
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING

from broker.sys_topics import is_sys
from pyx import counters as count
from pyx.router import expiry_offset
from pyx.stored import pack_stored, unpack_stored
from pyx.work import PACKED, STEP, spend

if TYPE_CHECKING:
    from broker.node import Node
    from broker.sessions import Details
    from pyx.message import Message
    from pyx.session import Session

_QUESTION = Struct("<Q")
_ANSWER = Struct("<QB")
_PAGE = 500
_PAGE_BYTES = 1 << 20
_QUEUED_MAX = 2 * _PAGE
"""A session that has so much in its queue is sent no further page until it has taken some of it."""
_LATER_SECONDS = 0.05
_SWEEP_STEPS = 2000
"""Topics looked at in a second to find messages that have expired."""


class Walk:
    """The look-up for one filter of one session: an own part, and one of each sibling."""

    __slots__ = ("asked", "filter", "parts", "session")

    def __init__(self, session: Session, filter: bytes, asked: int, parts: int) -> None:
        self.session = session
        self.filter = filter
        self.asked = asked
        self.parts = parts


class Question:
    """The part of a walk that is put to one sibling."""

    __slots__ = ("after", "filter", "peer", "session", "walk")

    def __init__(self, walk: Walk, peer: int) -> None:
        self.walk = walk
        self.session = walk.session
        self.filter = walk.filter
        self.peer = peer
        self.after = b""
        """The last topic of the last page."""


class Retaining:
    """Finds retained messages here and at the siblings, and answers the siblings' questions."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._router = node.router
        self._retained = node.retained
        self._questions: dict[int, Question] = {}
        # not a number that a former incarnation of this worker has used: its answer may still come
        self._number = node.router.wall_ms * 1000
        self._swept: bytes | None = None

    def sweep(self) -> None:
        """Called every second: forget what has expired, a part of the topics at a time. (Those that begin with $ are
        left to who asks for them.)
        """
        found, self._swept = self._retained.page(b"#", self._swept, _PAGE, _SWEEP_STEPS)
        self._live(found)

    def _live(self, found: list[tuple[bytes, Message]]) -> list[Message]:
        """Those that have not expired; the others are gone from now on."""
        now = self._router.wall_ms
        live = []
        spend(len(found) * PACKED)
        for _, message in found:
            if message.expires and message.expires <= now:
                self._router.expire_retained(message)
            else:
                live.append(message)
        return live

    def send(self, session: Session, filters: list[bytes]) -> None:
        """The SUBACK is out: send what is retained for these filters, a bounded number of them at a time."""
        if session.connection is None:
            return
        asked = session.ask(self._router.position)
        details: Details = session.details
        most = self._node.settings.limits.retained_walks_per_session_max
        spend(len(filters) * 2 * STEP)
        for text in filters:
            if is_sys(text):  # every worker has these itself
                self._node.sys_topics.send(session, text, asked)
                continue
            if details.walks < most and not details.walks_waiting:
                self._begin(session, text, asked)
                continue
            if details.walks_waiting is None:
                details.walks_waiting = deque()
            details.walks_waiting.append((text, asked))
            session.watch()
            self._node.counters.add(count.RETAINED_WALKS_DEFERRED)

    def _begin(self, session: Session, text: bytes, asked: int) -> None:
        session.details.walks += 1
        walk = Walk(session, text, asked, 1 + len(self._node.siblings))
        for peer in self._node.siblings:
            self._ask(Question(walk, peer))
        self._send_own(walk, None)

    def _part_done(self, walk: Walk) -> None:
        walk.parts -= 1
        if walk.parts:
            return
        details: Details = walk.session.details
        details.walks -= 1
        if details.walks_waiting:
            self._node.soon(lambda: self._begin_waiting(walk.session), walk.session)

    def _begin_waiting(self, session: Session) -> None:
        details: Details = session.details
        waiting = details.walks_waiting
        while waiting and (
            session.connection is None or details.walks < self._node.settings.limits.retained_walks_per_session_max
        ):
            text, asked = waiting.popleft()
            if session.connection is not None:
                self._begin(session, text, asked)
            session.unwatch()
        if not waiting:
            details.walks_waiting = None

    def _send_own(self, walk: Walk, after: bytes | None) -> None:
        session, text = walk.session, walk.filter
        if session.connection is None:
            self._part_done(walk)
            return
        if session.queued >= _QUEUED_MAX:
            self._node.call_later(_LATER_SECONDS, lambda: self._send_own(walk, after), session)
            return
        found = self._retained.match(text, after, _PAGE)
        self._queue(walk, self._live(found))
        if len(found) == _PAGE:
            last = found[-1][0]
            self._node.soon(lambda: self._send_own(walk, last), session)
        else:
            self._part_done(walk)

    def _queue(self, walk: Walk, messages: list[Message]) -> None:
        if messages and walk.session.connection is not None:
            self._router.queue_retained(walk.session, messages, walk.filter, walk.asked)

    def _ask(self, question: Question) -> None:
        self._number += 1
        self._questions[self._number] = question
        question.session.watch()
        if self._node.is_ready(question.peer):
            self._put(self._number, question)

    def _put(self, number: int, question: Question) -> None:
        after = b"\0" + question.after if question.after else b""
        self._router.tell(question.peer, b"?", _QUESTION.pack(number) + question.filter + after)

    def peer_ready(self, peer: int) -> None:
        """A sibling is back: what it did not answer is asked again."""
        spend(len(self._questions) * STEP)
        for number, question in list(self._questions.items()):
            if question.peer == peer:
                if question.session.connection is None:
                    self._close(number)
                else:
                    self._put(number, question)

    def asked(self, peer: int, payload: bytes) -> None:
        """A sibling asks: answer one page."""
        (number,) = _QUESTION.unpack_from(payload)
        text, _, after = payload[_QUESTION.size :].partition(b"\0")
        found = self._retained.match(text, after or None, _PAGE)
        more = len(found) == _PAGE
        size = 0
        for number_of, (_, message) in enumerate(found, 1):
            size += len(message.payload)
            if size > _PAGE_BYTES and number_of < len(found):
                del found[number_of:]
                more = True
                break
        packed = pack_stored(self._live(found))
        self._router.tell(peer, b"!", _ANSWER.pack(number, more) + packed)

    def answered(self, peer: int, payload: bytes) -> None:
        """A page of a sibling's answer: queue it, and ask for the next."""
        number, more = _ANSWER.unpack_from(payload)
        question = self._questions.get(number)
        if question is None or question.peer != peer:
            return  # asked before this worker or the link started anew
        self._node.guard_session(question.session, self._take_page, number, question, payload, bool(more))

    def _take_page(self, number: int, question: Question, payload: bytes, more: bool) -> None:
        messages = unpack_stored(payload[_ANSWER.size :], expiry_offset)
        session = question.session
        if messages:
            self._queue(question.walk, messages)
            question.after = messages[-1].topic
        if more and session.connection is not None:
            self._go_on(number, question)
        else:
            self._close(number)

    def _go_on(self, number: int, question: Question) -> None:
        if self._questions.get(number) is not question:
            return
        if question.session.connection is None:
            self._close(number)
        elif question.session.queued >= _QUEUED_MAX:
            self._node.call_later(_LATER_SECONDS, lambda: self._go_on(number, question), question.session)
        else:
            self._put(number, question)

    def _close(self, number: int) -> None:
        question = self._questions.pop(number)
        question.session.unwatch()
        self._part_done(question.walk)

    @property
    def open_questions(self) -> int:
        """Questions that siblings have not answered yet."""
        return len(self._questions)
