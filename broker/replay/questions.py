"""Questions of replays to the archive of one worker, and what answers them: their bytes (`broker.replay.sources`)."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from pyx.core.peer import Peer
from pyx.delivery.router import expiry_offset
from pyx.storage.stored import pack_stored, unpack_stored

if TYPE_CHECKING:
    from leveldb_store.contract import Page
    from pyx.protocol.message import Message

__all__ = [
    "NUMBER",
    "Answer",
    "Question",
    "asked_of",
    "beat_of",
    "filters_of",
    "host_starts_of",
    "page_of",
    "page_with",
    "probe_of",
    "question_number_of",
    "read_of",
    "so_far_of",
    "so_far_with",
    "starts_of",
    "starts_with",
]

_READ = Struct("<QQQIB")
_PAGE = Struct("<QQQB")
NUMBER = Struct("<Q")
_TWO = Struct("<QQ")
_LENGTH = Struct("<H")
_AT_ONCE = 1
_IS_END, _IS_LOST, _IS_DAMAGE = 1, 2, 4


def read_of(question: Question, at_once: bool) -> bytes:
    """Return the message b"r" for a question."""
    head = _READ.pack(question.number, question.after, question.start, question.bytes_max, _AT_ONCE if at_once else 0)
    return head + question.filter


class Answer(NamedTuple):
    """A page, in the form that the asker gets."""

    number: int
    """Number of the question."""
    up_to: int
    """Everything up to this number is included."""
    start: int | None
    """Messages are missing up to this number; None: none are, or it was known."""
    is_damage: bool
    """They were not removed by retention, but are unreadable."""
    is_end: bool
    """There is no more at present."""
    messages: list[Message]


def page_of(payload: bytes) -> Answer:
    """Parse the message b"R". Raises MqttError where a message in it is damaged."""
    number, up_to, start, flags = _PAGE.unpack_from(payload)
    messages = unpack_stored(payload[_PAGE.size :], expiry_offset)
    return Answer(
        number, up_to, start if flags & _IS_LOST else None, bool(flags & _IS_DAMAGE), bool(flags & _IS_END), messages
    )


def so_far_of(payload: bytes) -> list[tuple[int, int]]:
    """Parse the message b"s" into (question, up to)."""
    return list(_TWO.iter_unpack(payload))


def probe_of(number: int, filters: list[bytes]) -> bytes:
    """Return the message b"o"."""
    return NUMBER.pack(number) + b"".join(_LENGTH.pack(len(text)) + text for text in filters)


def host_starts_of(content: bytes, filters: int) -> tuple[int, int, list[int], bool, list[bool]]:
    """Parse the message b"O" of another host into (question, last number, start by filter, whether there is room for
    another replay, whether a table covers it by filter). Raises ValueError.
    """
    size = _TWO.size + filters * NUMBER.size
    if len(content) != size + 1 + filters:
        raise ValueError("a host says something unreadable about the start of its archive")
    number, last, starts = starts_of(content[:size])
    return number, last, starts, bool(content[size]), [bool(each) for each in content[size + 1 :]]


def question_number_of(content: bytes) -> int:
    """Return the number of the question that a b"O" answers. Raises struct.error."""
    return int(NUMBER.unpack_from(content)[0])


def starts_of(payload: bytes) -> tuple[int, int, list[int]]:
    """Parse the message b"O" into (question, last number, start by filter)."""
    number, last = _TWO.unpack_from(payload)
    return number, last, [start for (start,) in NUMBER.iter_unpack(payload[_TWO.size :])]


class Question:
    """A question not answered yet. `peer`: the asker; this worker's own number for its own sessions."""

    __slots__ = (
        "after", "bytes_max", "failed", "filter", "gone", "is_damage", "number", "page", "peer", "promise",
        "queued", "said_ms", "start",
    )  # fmt: skip

    def __init__(self, peer: Peer, number: int, text: bytes, after: int, start: int, bytes_max: int) -> None:
        self.peer = peer
        self.number = number
        self.filter = text
        self.after = after
        self.start = start
        """Messages up to this number may be missing, which the asker knows."""
        self.bytes_max = bytes_max
        self.gone: int | None = None
        """Messages up to this number may have been removed, which the asker does not know yet."""
        self.is_damage = False
        """They were not removed by retention, but are unreadable."""
        self.failed: Exception | None = None
        """The error that prevented reading."""
        self.promise = 0
        """All numbers up to this one were durable when it was queued."""
        self.page: Page | None = None
        """Messages read and not processed yet."""
        self.queued = False
        self.said_ms = 0
        """Monotonic ms of the last sign of life."""


def filters_of(probe: bytes) -> list[bytes]:
    """Return the Topic Filters of a b"o". Raises ValueError, struct.error."""
    filters, at = [], NUMBER.size
    while at < len(probe):
        (length,) = _LENGTH.unpack_from(probe, at)
        at += _LENGTH.size + length
        filters.append(probe[at - length : at])
    if at > len(probe) or at == NUMBER.size:
        raise ValueError("a question about the start of an archive is cut off")
    return filters


def asked_of(payload: bytes) -> tuple[int, int, int, int, bool, bytes]:
    """Parse the message b"r" into (question, behind, known start, bytes, whether a beat is wanted at once, Topic
    Filter). Raises struct.error.
    """
    number, after, start, bytes_max, at_once = _READ.unpack_from(payload)
    return number, after, start, bytes_max, bool(at_once), payload[_READ.size :]


def page_with(question: Question, messages: list[Message], up_to: int, is_end: bool) -> bytes:
    """Return the message b"R"."""
    flags = (_IS_END if is_end else 0) | (_IS_LOST if question.gone is not None else 0)
    flags |= _IS_DAMAGE if question.is_damage else 0
    return _PAGE.pack(question.number, up_to, question.gone or 0, flags) + pack_stored(messages)


def starts_with(probe: bytes, last: int, starts: list[int]) -> bytes:
    """Return the message b"O" for a b"o"."""
    return _TWO.pack(question_number_of(probe), last) + b"".join(map(NUMBER.pack, starts))


def so_far_with(pairs: list[tuple[int, int]]) -> bytes:
    """Return the message b"s"."""
    return b"".join(_TWO.pack(*pair) for pair in pairs)


def beat_of(up_to: int, numbers: list[int]) -> bytes:
    """Return the message b"b"."""
    return NUMBER.pack(up_to) + b"".join(map(NUMBER.pack, numbers))
