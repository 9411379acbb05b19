r"""What this worker's archive gives to replays: those of its own sessions, and those of siblings.

A question names a Topic Filter and a number, and is answered by a page of what lies behind that number. One that finds
nothing is *held*: of each commit it is asked whether it may have such a topic (a summary,
`pyx.delivery.archived.Watch`), and it is read for again only then. So readers of what does not come cost next to
nothing, however many they are. Meanwhile whoever asked is told a few times a second that there was nothing (a *beat*),
and up to which number that holds: this worker gives no number at or below it any more. So a subscriber's position goes
on, however silent a worker is.

    read    b"r"    u64 question | u64 behind | u64 known start | u32 bytes | u8 1 = a beat is wanted at once
                    | Topic Filter
    page    b"R"    u64 question | u64 up to | u64 start | u8 1 = that was all, 2 = something behind the number is gone,
                    4 = it cannot be read | stored messages
    beat    b"b"    u64 up to | u64 question, ...
    so far  b"s"    u64 question, u64 up to | ...: nothing was found for these up to there, and they are being read for
    end     b"c"    u64 question, ...: nobody waits for these
    probe   b"o"    u64 question | u16 length, Topic Filter, ...
    start   b"O"    u64 question | u64 the last number given | u64 start, ...: by filter

All but the last two may be lost: `broker.replay.replaying` asks again. No number raises this worker's: those of a host
are of one clock (`pyx.core.clock`), and a client may name any. `start`: what lies up to this number may be gone;
whoever asks says up to where it knows that.

What is read is read in `step`, one page at a time; `broker.replay.replaying` says when. A worker has it read by a
thread (`Sources.background`): then a second `step` answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leveldb_store.contract import FallenBehind
from pyx.core import counters as count
from pyx.core.peer import Peer
from pyx.delivery.archived import Watch, may_match
from pyx.delivery.router import expiry_offset
from pyx.storage.stored import pack_stored, unpack_stored

if TYPE_CHECKING:
    from broker.context.context import Context
    from leveldb_store.contract import Archive, Page
    from pyx.protocol.message import Message

__all__ = ["Answer", "Question", "Sources", "page_of", "probe_of", "read_of", "so_far_of", "starts_of"]

_READ = Struct("<QQQIB")
_PAGE = Struct("<QQQB")
_NUMBER = Struct("<Q")
_TWO = Struct("<QQ")
_LENGTH = Struct("<H")
_AT_ONCE = 1
_IS_END, _IS_LOST, _IS_DAMAGE = 1, 2, 4
_BEAT_SECONDS = 0.2
_SO_FAR_MS = 800
_SAY_AGAIN_MS = 60_000


def read_of(question: Question, at_once: bool) -> bytes:
    """The word b"r"."""
    head = _READ.pack(question.number, question.after, question.start, question.bytes_max, _AT_ONCE if at_once else 0)
    return head + question.filter


class Answer(NamedTuple):
    """A page, as whoever asked gets it."""

    number: int
    """Of the question."""
    up_to: int
    """Everything up to this number has come with it."""
    start: int | None
    """Something is gone up to this number; None: nothing is, or it was known."""
    is_damage: bool
    """It is not gone by rule: it cannot be read."""
    is_end: bool
    """That was all."""
    messages: list[Message]


def page_of(payload: bytes) -> Answer:
    """Of the word b"R". Raises MqttError where a message is damaged."""
    number, up_to, start, flags = _PAGE.unpack_from(payload)
    messages = unpack_stored(payload[_PAGE.size :], expiry_offset)
    return Answer(
        number, up_to, start if flags & _IS_LOST else None, bool(flags & _IS_DAMAGE), bool(flags & _IS_END), messages
    )


def so_far_of(payload: bytes) -> list[tuple[int, int]]:
    """Of the word b"s": (question, up to)."""
    return list(_TWO.iter_unpack(payload))


def probe_of(number: int, filters: list[bytes]) -> bytes:
    """The word b"o"."""
    return _NUMBER.pack(number) + b"".join(_LENGTH.pack(len(text)) + text for text in filters)


def starts_of(payload: bytes) -> tuple[int, int, list[int]]:
    """Of the word b"O": (question, last number, start by filter)."""
    number, last = _TWO.unpack_from(payload)
    return number, last, [start for (start,) in _NUMBER.iter_unpack(payload[_TWO.size :])]


class Question:
    """One that was not answered yet. `peer`: who asks; this worker's own number: its own sessions."""

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
        """Known to whoever asks: what lies up to this number may be gone."""
        self.bytes_max = bytes_max
        self.gone: int | None = None
        """What was asked for may have been removed up to this number, and that is not known."""
        self.is_damage = False
        """It is not gone by rule: it cannot be read."""
        self.failed: Exception | None = None
        """Why nothing can be read for it."""
        self.promise = 0
        """When it was queued, whatever had a number up to here was durable."""
        self.page: Page | None = None
        """What was read and not looked at yet."""
        self.queued = False
        self.said_ms = 0
        """Monotonic ms of the last sign of life."""


class Asker(Protocol):
    """Who asks for this worker's own sessions (`broker.replay.replaying`)."""

    def page(self, answer: Answer) -> None:
        """A page has come."""

    def so_far(self, source: int, pairs: list[tuple[int, int]]) -> list[int]:
        """For these questions there is nothing up to these numbers, so far. -> those that nobody waits for."""

    def beat(self, source: int, up_to: int, numbers: list[int]) -> list[int]:
        """For these questions there is nothing up to that number. -> those that nobody waits for."""


class Sources:
    """Answers for one worker's archive. `asker`: of its own sessions' questions."""

    def __init__(self, context: Context, asker: Asker, archive: Archive, step: Callable[[Question], None]) -> None:
        self._context = context
        self._router = context.router
        self._asker = asker
        self._archive = archive
        self._queue = step
        """Has `step` called for a question when it is its turn."""
        self._open: dict[tuple[Peer, int], Question] = {}
        """By who asks and the question."""
        self._held: dict[tuple[Peer, int], Question] = {}
        """Those that have found nothing: neither up to what they asked for nor up to ..."""
        self._held_up_to = 0
        """... this number."""
        self._watch = Watch()
        """Their Topic Filters."""
        self._timed = False
        self._silent_until = 0
        """Monotonic ms: until then it is not said again that something cannot be read."""
        self.background: Callable[[Callable[[], None], Callable[[], None]], None] | None = None
        """Has the first done by a thread and calls the second; None: pages are read at once."""

    @property
    def open(self) -> int:
        """Questions that are not answered."""
        return len(self._open)

    @property
    def held(self) -> int:
        """Questions that wait for something to be archived."""
        return len(self._held)

    # ------------------------------------------------------------ questions

    def asked(self, peer: Peer, payload: bytes) -> None:
        """The word b"r" of a sibling."""
        number, after, start, bytes_max, at_once = _READ.unpack_from(payload)
        self.ask(Question(peer, number, payload[_READ.size :], after, start, bytes_max), bool(at_once))

    def ask(self, question: Question, at_once: bool) -> None:
        """A question of a sibling or of our own."""
        self._open[question.peer, question.number] = question
        self._archive.watch(True)
        question.said_ms = self._router.state.now_ms
        self._want(question)
        self._start_timer()
        if at_once:
            question.promise = self._router.journal.archived_up_to()

    def _want(self, question: Question) -> None:
        key = question.peer, question.number
        if self._held.pop(key, None) is not None:
            self._watch.discard(key)
            question.after = max(question.after, self._held_up_to)
        if not question.queued:
            question.queued = True
            self._queue(question)

    def end(self, peer: Peer, payload: bytes) -> None:
        """The word b"c": nobody waits for these answers."""
        for (number,) in _NUMBER.iter_unpack(payload):
            self.forget(peer, number)

    def forget(self, peer: Peer, number: int) -> None:
        """Nobody waits for this answer."""
        self._open.pop((peer, number), None)
        self._held.pop((peer, number), None)
        self._watch.discard((peer, number))

    def forget_all(self, peer: Peer) -> None:
        """That worker is dead."""
        for asker, number in list(self._open):
            if asker == peer:
                self.forget(asker, number)

    def probed(self, peer: Peer, payload: bytes) -> None:
        """The word b"o": where does the log begin, and what is the last number."""
        starts, at = [], _NUMBER.size
        while at < len(payload):
            (length,) = _LENGTH.unpack_from(payload, at)
            at += _LENGTH.size + length
            starts.append(self._archive.start(payload[at - length : at]))
        (number,) = _NUMBER.unpack_from(payload)
        answer = _TWO.pack(number, self._router.state.next_number()) + b"".join(map(_NUMBER.pack, starts))
        self._router.peers.tell(peer, b"O", answer)

    # ------------------------------------------------------------ answers

    def step(self, question: Question) -> None:
        """Read a page for it. Answer it, or hold it."""
        key = question.peer, question.number
        if self._open.get(key) is not question:
            question.queued = False
            return
        if question.page is None:
            self._context.counters.add(count.REPLAY_PAGES)
            if self.background is not None:
                self.background(partial(self._read, question), partial(self._queue, question))
                return
            self._read(question)
        question.queued = False
        if question.failed is not None:
            self._failed(key, question)
            return
        page, question.page = question.page, None
        assert page is not None
        if page.messages or question.gone is not None:
            del self._open[key]
            up_to = max(page.up_to, question.after, question.promise if page.is_end else 0)
            self._answer(question, page.messages, up_to, page.is_end)
            return
        question.after = max(page.up_to, question.after)
        if not page.is_end:
            self._want(question)
            return
        if self._has_come(question):  # while it was read, or waited for that
            self._want(question)
            return
        if not self._held:
            self._held_up_to = self._archive.last
        self._held[key] = question
        self._watch.add(key, question.filter)
        self._router.journal.on_durable = self._progress
        if question.promise:
            promise, question.promise = question.promise, 0
            question.after = max(question.after, promise)
            self._send_beat(question.peer, promise, [question.number])
        self._start_timer()

    def _has_come(self, question: Question) -> bool:
        """Whether something may have become durable for it behind what was read."""
        if self._archive.last <= question.after:
            return False
        noted = self._archive.noted(question.after)
        return noted is None or any(may_match(topics, question.filter) for _, topics in noted)

    def _read(self, question: Question) -> None:
        # perhaps in a thread of its own; what goes wrong is the question's alone
        with_gaps = False
        try:
            while question.page is None:
                try:
                    question.page = self._archive.read([question.filter], question.after, question.bytes_max, with_gaps)
                except FallenBehind as fallen:  # a second time, if more damage is found behind it
                    with_gaps = True
                    if fallen.earliest > question.start:
                        question.gone = question.start = fallen.earliest
                        question.is_damage = fallen.is_damage
        except Exception as error:  # noqa: BLE001
            question.failed = error

    def _failed(self, key: tuple[Peer, int], question: Question) -> None:
        # it is not answered: whoever asked does so again, later
        del self._open[key]
        now = self._router.state.now_ms
        if now >= self._silent_until:
            self._silent_until = now + _SAY_AGAIN_MS
            self._context.log.error(
                "replay_cannot_read", filter=question.filter, behind=question.after, error=str(question.failed)
            )

    def _answer(self, question: Question, messages: list[Message], up_to: int, is_end: bool) -> None:
        if question.peer == self._context.index:
            gone, is_damage = question.gone, question.is_damage
            self._asker.page(Answer(question.number, up_to, gone, is_damage, is_end, messages))
            return
        flags = (_IS_END if is_end else 0) | (_IS_LOST if question.gone is not None else 0)
        flags |= _IS_DAMAGE if question.is_damage else 0
        head = _PAGE.pack(question.number, up_to, question.gone or 0, flags)
        self._router.peers.tell_unkept(question.peer, b"R", head + pack_stored(messages))

    def _progress(self) -> None:
        """Something is durable that was not."""
        noted = self._archive.noted(self._held_up_to)
        if noted is None:
            for question in list(self._held.values()):
                self._want(question)
        else:
            for up_to, topics in noted:
                for key in self._watch.found(topics):
                    self._want(self._held[key])
                self._held_up_to = max(self._held_up_to, up_to)
        self._held_up_to = max(self._held_up_to, self._archive.last)
        if not self._open:
            self._router.journal.on_durable = None
            self._archive.watch(False)

    # ------------------------------------------------------------ beats

    def _start_timer(self) -> None:
        if self._open and not self._timed:
            self._timed = True
            self._context.call_later(_BEAT_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        self._timed = False
        self._start_timer()
        self._say_so_far()
        up_to = self._router.journal.archived_up_to()
        self._progress()
        self._held_up_to = max(self._held_up_to, up_to)  # or retention would pass them
        silent: dict[Peer, list[int]] = {}
        for peer, number in self._held:
            silent.setdefault(peer, []).append(number)
        for peer, numbers in silent.items():
            self._send_beat(peer, up_to, numbers)

    def _say_so_far(self) -> None:
        # to those whose question takes long: what it has come to is not read for them again
        late = self._router.state.now_ms - _SO_FAR_MS
        found: dict[Peer, list[tuple[int, int]]] = {}
        for key, question in self._open.items():
            if key not in self._held and question.said_ms <= late:
                question.said_ms = self._router.state.now_ms
                found.setdefault(question.peer, []).append((question.number, question.after))
        for peer, pairs in found.items():
            if peer == self._context.index:
                for number in self._asker.so_far(peer, pairs):
                    self.forget(peer, number)
            else:
                self._router.peers.tell_unkept(peer, b"s", b"".join(_TWO.pack(*pair) for pair in pairs))

    def _send_beat(self, peer: Peer, up_to: int, numbers: list[int]) -> None:
        if peer == self._context.index:
            for number in self._asker.beat(peer, up_to, numbers):
                self.forget(peer, number)
        else:
            self._router.peers.tell_unkept(peer, b"b", _NUMBER.pack(up_to) + b"".join(map(_NUMBER.pack, numbers)))
