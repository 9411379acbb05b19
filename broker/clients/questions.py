"""The form of questions for retained messages, and of answers, between siblings (`broker.clients.retaining`).

question    topic b"?"      payload: u64 number | Topic Filter | NUL + end of the last page, or nothing
                            (without a Topic Filter: only an answer is asked for)
answer      topic b"!"      payload: u64 number | u8 1 = more | u16 length | end of this page
                            | messages in the store's form, with their publishers
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from pyx.storage.stored import pack_stored

if TYPE_CHECKING:
    from pyx.protocol.message import Message

__all__ = [
    "ANSWER",
    "QUESTION",
    "PageAnswer",
    "PageQuestion",
    "pack_answer",
    "pack_question",
    "unpack_answer",
    "unpack_question",
]

QUESTION: Final = b"?"
ANSWER: Final = b"!"
_QUESTION = Struct("<Q")
_ANSWER = Struct("<QBH")


class PageQuestion(NamedTuple):
    """A question. `after`: the end of the last page, or nothing."""

    number: int
    filter: bytes
    after: bytes


class PageAnswer(NamedTuple):
    """A page. `at`: where the next one begins (None: there is none); `messages`: as `unpack_stored` takes them."""

    number: int
    at: bytes | None
    messages: bytes


def pack_question(number: int, text: bytes = b"", after: bytes = b"") -> bytes:
    """Return the payload of a question."""
    return _QUESTION.pack(number) + text + (b"\0" + after if after else b"")


def unpack_question(payload: bytes) -> PageQuestion:
    """Return the question of a payload."""
    (number,) = _QUESTION.unpack_from(payload)
    text, _, after = payload[_QUESTION.size :].partition(b"\0")
    return PageQuestion(number, text, after)


def pack_answer(number: int, at: bytes | None, messages: list[Message]) -> bytes:
    """Return the payload of an answer."""
    head = _ANSWER.pack(number, at is not None, len(at or b"")) + (at or b"")
    return head + pack_stored(messages)


def unpack_answer(payload: bytes) -> PageAnswer:
    """Return the answer of a payload."""
    number, more, length = _ANSWER.unpack_from(payload)
    begin = _ANSWER.size + length
    return PageAnswer(number, payload[_ANSWER.size : begin] if more else None, payload[begin:])
