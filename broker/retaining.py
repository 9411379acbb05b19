r"""Retained messages for a new subscription, wherever on the host they live.

Each topic has one owner among the workers (pyx.placement). After a SUBACK every owner is asked: this worker answers
itself in pages, siblings are sent a question over the link and answer in pages of entries. A sibling that is away is
asked when it is back, as long as the session still wants it.

    question    topic b"?"      payload: u64 number | Topic Filter | NUL + last topic of the last page, or nothing
    answer      topic b"!"      payload: u64 number | u8 1 = more | entries
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from broker.sys_topics import is_sys
from pyx.records import pack_messages, unpack_messages
from pyx.router import expiry_offset

if TYPE_CHECKING:
    from broker.node import Node
    from pyx.message import Message
    from pyx.session import Session

_QUESTION = Struct("<Q")
_ANSWER = Struct("<QB")
_PAGE = 500
_PAGE_BYTES = 1 << 20
_QUEUED_MAX = 2 * _PAGE
"""A session that has so much in its queue is sent no further page until it has taken some of it."""
_LATER_SECONDS = 0.05


class Question:
    """One filter of one session, put to one sibling."""

    __slots__ = ("after", "filter", "peer", "session")

    def __init__(self, session: Session, filter: bytes, peer: int) -> None:
        self.session = session
        self.filter = filter
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
        self._number = 0

    def send(self, session: Session, filters: list[bytes]) -> None:
        """The SUBACK is out: send what is retained for these filters."""
        if session.connection is None:
            return
        session.ask_again()
        for text in filters:
            if is_sys(text):  # every worker has these itself
                self._node.sys_topics.send(session, text)
                continue
            self._send_own(session, text, None)
            for peer in self._node.siblings:
                self._ask(Question(session, text, peer))

    def _send_own(self, session: Session, text: bytes, after: bytes | None) -> None:
        if session.connection is None:
            return
        if session.queued >= _QUEUED_MAX:
            self._node.call_later(_LATER_SECONDS, lambda: self._send_own(session, text, after))
            return
        found = self._retained.match(text, after, _PAGE)
        if not found:
            return
        self._queue(session, text, [message for _, message in found])
        if len(found) == _PAGE:
            last = found[-1][0]
            self._node.soon(lambda: self._send_own(session, text, last))

    def _queue(self, session: Session, text: bytes, messages: list[Message]) -> None:
        if session.connection is not None:
            self._router.queue_retained(session, messages, text)

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
        for count, (_, message) in enumerate(found, 1):
            size += len(message.payload)
            if size > _PAGE_BYTES and count < len(found):
                del found[count:]
                more = True
                break
        packed = pack_messages([message for _, message in found])
        self._router.tell(peer, b"!", _ANSWER.pack(number, more) + packed)

    def answered(self, peer: int, payload: bytes) -> None:
        """A page of a sibling's answer: queue it, and ask for the next."""
        number, more = _ANSWER.unpack_from(payload)
        question = self._questions.get(number)
        if question is None or question.peer != peer:
            return  # asked before this worker or the link started anew
        messages = unpack_messages(payload[_ANSWER.size :], expiry_offset)
        session = question.session
        if messages:
            self._queue(session, question.filter, messages)
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
            self._node.call_later(_LATER_SECONDS, lambda: self._go_on(number, question))
        else:
            self._put(number, question)

    def _close(self, number: int) -> None:
        self._questions.pop(number).session.unwatch()

    @property
    def open_questions(self) -> int:
        """Questions that siblings have not answered yet."""
        return len(self._questions)
