r"""The archive's side of replays: one worker answers questions of its own sessions' replays and of siblings.

A question has a Topic Filter and a number, and is answered by a page of the messages behind that number. A question
that finds nothing is *held*: each commit is checked for topics that may match (a summary,
`pyx.delivery.archived.Watch`), and only then is it read for again. So readers that wait cost next to nothing, however
many they are. Meanwhile the asker is told a few times a second that there was nothing (a *beat*), and up to which
number that holds: this worker gives out no number at or below it any more. So a subscriber's position advances, however
silent a worker is.

    read    b"r"    u64 question | u64 behind | u64 known start | u32 bytes | u8 1 = a beat is wanted at once
                    | Topic Filter
    page    b"R"    u64 question | u64 up to | u64 start | u8 1 = the last page for now, 2 = messages behind the number
                    are missing, 4 = they are unreadable | stored messages
    beat    b"b"    u64 up to | u64 question, ...
    so far  b"s"    u64 question, u64 up to | ...: nothing was found up to there, and reading continues
    end     b"c"    u64 question, ...: these are not waited for any more
    probe   b"o"    u64 question | u16 length, Topic Filter, ...
    start   b"O"    u64 question | u64 the last number given | u64 start, ...: by filter

Workers of other hosts ask and are answered in the same way, by messages of `broker.replay.host_messages`. No more than
`replays_for_hosts_max` of their questions are open at a time, and no page is read for a host whose link has not the
room for it (`HostArchives.has_room`).

All but the last two may be lost: `broker.replay.replaying` asks again. A number in a question never raises this
worker's clock: the numbers of a host are of one clock (`pyx.core.clock`), and a client may name any. `start`: messages
up to this number may be missing; the asker states up to where it already knows that.

Reading is done in `step`, one page at a time, when `broker.replay.replaying` schedules it. A worker reads in a thread
(`Sources.background`): then a second `step` answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.replay.questions import (
    NUMBER,
    Answer,
    Question,
    asked_of,
    beat_of,
    filters_of,
    page_with,
    so_far_with,
    starts_with,
)
from leveldb_store.contract import FallenBehind
from pyx.core import counters as count
from pyx.core.peer import Peer, host_of, is_sibling
from pyx.core.work import STEP, spend
from pyx.delivery.archived import Watch, may_match
from pyx.protocol.topics import wrong_filter

if TYPE_CHECKING:
    from broker.context.context import Context
    from broker.replay.host_archives import HostArchives
    from broker.replay.host_messages import HostMessage
    from leveldb_store.contract import Archive
    from pyx.delivery.router import Router
    from pyx.protocol.message import Message

__all__ = ["Sources"]

_BEAT_SECONDS = 0.2
_SO_FAR_MS = 800
_SAY_AGAIN_MS = 60_000
_NO_ROOM_SECONDS = 0.05
_PAGE_BYTES_MAX = 4 << 20
"""Bytes of a page, whatever another host asks for: the most that `replay_page_bytes` can be, all in one."""
_PROBED_MAX = 100_000
"""Topic Filters in one SUBSCRIBE: more do not fit into a packet that is answered."""


class Asker(Protocol):
    """The asker for this worker's own sessions (`broker.replay.replaying`)."""

    def page(self, answer: Answer) -> None:
        """Take in a page."""

    def so_far(self, peer: Peer, pairs: list[tuple[int, int]]) -> list[int]:
        """Note that these questions have nothing up to these numbers so far; return those that are not open."""

    def beat(self, peer: Peer, up_to: int, numbers: list[int]) -> list[int]:
        """Note that these questions have nothing up to this number; return those that are not open."""


def _starts(archive: Archive, router: Router, probe: bytes, filters: list[bytes]) -> bytes:
    """Return the message b"O" for a b"o"."""
    spend(len(filters) * STEP)
    return starts_with(probe, router.state.next_number(), [archive.start(text) for text in filters])


class Sources:
    """Answers questions to one worker's archive. `asker`: gets the answers for its own sessions; `hosts`: the way to
    workers of other hosts.
    """

    def __init__(
        self,
        context: Context,
        asker: Asker,
        archive: Archive,
        step: Callable[[Question], None],
        hosts: HostArchives,
    ) -> None:
        self._context = context
        self._router = context.router
        self._asker = asker
        self._archive = archive
        self._hosts = hosts
        self._of_hosts = 0
        """Number of questions of other hosts that are open."""
        self._queue = step
        """Schedules a call of `step` for a question."""
        self._open: dict[tuple[Peer, int], Question] = {}
        """By asker and question."""
        self._held: dict[tuple[Peer, int], Question] = {}
        """Held questions: they found nothing up to their number, nor up to ..."""
        self._held_up_to = 0
        """... this number."""
        self._watch = Watch()
        """The Topic Filters of held questions."""
        self._timed = False
        self._silent_until = 0
        """Monotonic ms until which unreadable data is not logged again."""
        self.background: Callable[[Callable[[], None], Callable[[], None]], None] | None = None
        """Runs the first in a thread and then calls the second; None: pages are read in the loop."""

    @property
    def open(self) -> int:
        """Number of questions not answered yet."""
        return len(self._open)

    @property
    def held(self) -> int:
        """Number of questions that wait for a message to be archived."""
        return len(self._held)

    # ------------------------------------------------------------ questions

    def asked(self, peer: Peer, payload: bytes) -> None:
        """Handle the message b"r" of a sibling."""
        number, after, start, bytes_max, at_once, text = asked_of(payload)
        self.ask(Question(peer, number, text, after, start, bytes_max), at_once)

    def asked_by_host(self, message: HostMessage) -> None:
        """Handle the message b"r" of a worker of another host. Raises ValueError, struct.error."""
        number, after, start, bytes_max, at_once, text = asked_of(message.content)
        if wrong_filter(text, 5) is not None:
            raise ValueError("a host asks for a Topic Filter that is none")
        if (message.sender, number) in self._open:
            return
        if not self.has_room_for_hosts:
            self._hosts.questions_refused(host_of(message.sender))
            return
        self.ask(Question(message.sender, number, text, after, start, min(bytes_max, _PAGE_BYTES_MAX)), at_once)

    @property
    def has_room_for_hosts(self) -> bool:
        """Whether another question of a host can be taken."""
        return self._of_hosts < self._context.limits.replays_for_hosts_max

    @property
    def of_hosts(self) -> int:
        """Number of questions of other hosts that are not answered yet."""
        return self._of_hosts

    def ask(self, question: Question, at_once: bool) -> None:
        """Take in a question of a sibling, of another host, or of our own."""
        self._open[question.peer, question.number] = question
        self._of_hosts += not is_sibling(question.peer)
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
        """Handle the message b"c": these questions are not waited for any more."""
        for (number,) in NUMBER.iter_unpack(payload):
            self.forget(peer, number)

    def ended_by_host(self, message: HostMessage) -> None:
        """Handle the same of a worker of another host. Raises struct.error."""
        self.end(message.sender, message.content)

    def forget(self, peer: Peer, number: int) -> None:
        """Drop a question that is not waited for any more."""
        if self._open.pop((peer, number), None) is not None:
            self._of_hosts -= not is_sibling(peer)
        self._held.pop((peer, number), None)
        self._watch.discard((peer, number))

    def forget_all(self, peer: Peer) -> None:
        """Drop all questions of a worker that is dead."""
        for asker, number in list(self._open):
            if asker == peer:
                self.forget(asker, number)

    def _forget_lost_hosts(self) -> None:
        if self._of_hosts:
            for asker, number in list(self._open):
                if not is_sibling(asker) and not self._hosts.is_linked(host_of(asker)):
                    self.forget(asker, number)  # it asks again when it is back

    def probed(self, peer: Peer, payload: bytes) -> None:
        """Handle the message b"o": answer with the starts of the log and the last number."""
        self._router.peers.tell(peer, b"O", _starts(self._archive, self._router, payload, filters_of(payload)))

    def probed_by_host(self, message: HostMessage) -> None:
        """Handle the same of a worker of another host. Raises ValueError, struct.error."""
        filters = filters_of(message.content)
        if len(filters) > _PROBED_MAX or any(wrong_filter(text, 5) is not None for text in filters):
            raise ValueError("a host asks for a Topic Filter that is none")
        covers = bytes(self._archive.covers(text) for text in filters)
        answer = (
            _starts(self._archive, self._router, message.content, filters) + bytes([self.has_room_for_hosts]) + covers
        )
        self._hosts.answer(message.sender, b"O", answer)

    # ------------------------------------------------------------ answers

    def step(self, question: Question) -> None:
        """Read a page for a question; answer or hold it."""
        key = question.peer, question.number
        if self._open.get(key) is not question:
            question.queued = False
            return
        if question.page is None:
            if not is_sibling(question.peer) and not self._hosts.has_room(host_of(question.peer)):
                self._context.call_later(_NO_ROOM_SECONDS, partial(self._queue, question))
                return
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
            self.forget(*key)
            up_to = max(page.up_to, question.after, question.promise if page.is_end else 0)
            self._answer(question, page.messages, up_to, page.is_end)
            return
        question.after = max(page.up_to, question.after)
        if not page.is_end:
            self._want(question)
            return
        if self._has_come(question):  # a message was archived during the reading, or the wait for it
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
        """Whether matching messages may have become durable behind those read."""
        if self._archive.last <= question.after:
            return False
        noted = self._archive.noted(question.after)
        return noted is None or any(may_match(topics, question.filter) for _, topics in noted)

    def _read(self, question: Question) -> None:
        # perhaps in a thread; an error affects only this question
        with_gaps = False
        try:
            while question.page is None:
                try:
                    question.page = self._archive.read([question.filter], question.after, question.bytes_max, with_gaps)
                except FallenBehind as fallen:  # again if more damage is found behind it
                    with_gaps = True
                    if fallen.earliest > question.start:
                        question.gone = question.start = fallen.earliest
                        question.is_damage = fallen.is_damage
        except Exception as error:  # noqa: BLE001
            question.failed = error

    def _failed(self, key: tuple[Peer, int], question: Question) -> None:
        # it is not answered: the asker repeats it later
        self.forget(*key)
        now = self._router.state.now_ms
        if now >= self._silent_until:
            self._silent_until = now + _SAY_AGAIN_MS
            self._context.log.error(
                "replay_read_failed", filter=question.filter, behind=question.after, error=str(question.failed)
            )

    def _answer(self, question: Question, messages: list[Message], up_to: int, is_end: bool) -> None:
        if question.peer == self._context.index:
            gone, is_damage = question.gone, question.is_damage
            self._asker.page(Answer(question.number, up_to, gone, is_damage, is_end, messages))
            return
        if not is_sibling(question.peer):
            self._context.counters.add(count.REPLAY_PAGES_FOR_HOSTS)
        self._tell(question.peer, b"R", page_with(question, messages, up_to, is_end))

    def _tell(self, peer: Peer, kind: bytes, content: bytes) -> None:
        if is_sibling(peer):
            self._router.peers.tell_unkept(peer, kind, content)
        else:
            self._hosts.answer(peer, kind, content)

    def _progress(self) -> None:
        """Check held questions against messages that have become durable."""
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
        self._forget_lost_hosts()
        self._start_timer()
        self._say_so_far()
        up_to = self._router.journal.archived_up_to()
        self._progress()
        self._held_up_to = max(self._held_up_to, up_to)  # else retention would overtake them
        silent: dict[Peer, list[int]] = {}
        for peer, number in self._held:
            silent.setdefault(peer, []).append(number)
        for peer, numbers in silent.items():
            self._send_beat(peer, up_to, numbers)

    def _say_so_far(self) -> None:
        # for questions that take long to read: the asker need not have the same range read again
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
                self._tell(peer, b"s", so_far_with(pairs))

    def _send_beat(self, peer: Peer, up_to: int, numbers: list[int]) -> None:
        if peer == self._context.index:
            for number in self._asker.beat(peer, up_to, numbers):
                self.forget(peer, number)
        else:
            self._tell(peer, b"b", beat_of(up_to, numbers))
