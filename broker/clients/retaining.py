r"""Retained messages for new subscriptions, collected from all workers.

Each topic has one owner among the workers (pyx.core.placement). After a SUBACK every owner is asked: this worker reads
its own messages in pages, siblings get a question over the link and answer in pages. A sibling that is away is asked
when it is back, as long as the session still wants the messages. The walk of a lasting session pauses while it is
offline.

A message published after the SUBACK arrives twice: live, from its publisher's worker, and in the answer of its topic's
owner, which may be faster. The live copy is the one to send [MQTT-3.3.1-12]. So an answer with such messages waits
until the workers that published them have sent this one everything that was due before (`_Held`).

All work is done in pieces (`run`, at the pace of `broker.replay.scheduler`): a piece looks at a bounded number of
topics, whatever the filters, and all sessions and siblings take turns. `broker.clients.questions`: what is sent.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple

from broker.admin.sys_topics import is_sys
from broker.clients import questions
from broker.context.sessions import NO_WALKS, NONE_WAITING, RetainedWalk
from pyx.core import counters as count
from pyx.core.peer import Peer, publisher_of, sibling
from pyx.core.work import HELD, PACKED, STEP, spend
from pyx.delivery.router import expiry_offset
from pyx.storage.stored import unpack_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.admin.sys_topics import SysTopics
    from broker.clients.authorising import Authorising
    from broker.clients.unanswered import Unanswered
    from broker.context.context import Context
    from broker.context.sessions import Asks, Details
    from broker.persistence.state_records import StateRecords
    from pyx.delivery.session import Session
    from pyx.protocol.message import Message

_PAGE = 500
_PAGE_BYTES = 128 << 10
_QUEUED_MAX = 2 * _PAGE
"""A session with this much in its queue gets no further page until it has taken some of it."""
_QUEUED_BYTES_MAX = 2 << 20
_LATER_SECONDS = 0.05
_AT_ONCE = 500
"""Questions, or messages that wait for a sibling's word, handled in a piece."""
_STEPS = 4000
"""Topics examined in a piece of work: about a millisecond."""
_BEGIN_STEPS = 200
"""Cost of beginning a walk or a question, in such steps."""
_MESSAGE_STEPS = 20
"""Cost of queueing or packing one message."""
_SWEEP_STEPS = 2000
"""Topics examined per second to find expired messages."""


class _Put(NamedTuple):
    """A question to be put (again)."""

    number: int


class _Asked(NamedTuple):
    """A question of a sibling."""

    peer: Peer
    question: questions.PageQuestion


class _Held(NamedTuple):
    """An answer to the question `number`, held until these siblings have sent everything that was due before it."""

    number: int
    siblings: set[Peer]
    at: bytes | None
    messages: list[Message]


class Retaining:
    """Finds retained messages here and at the siblings, and answers the siblings' questions."""

    def __init__(
        self,
        context: Context,
        state_records: StateRecords,
        sys_topics: SysTopics,
        authorising: Authorising,
        unanswered: Unanswered,
    ) -> None:
        self._context = context
        self._authorising = authorising
        self._router = context.router
        self._retained = context.retained
        self._state_records = state_records
        self._sys_topics = sys_topics
        self._unanswered = unanswered
        self._questions: dict[int, tuple[RetainedWalk, Peer]] = {}
        self._held: dict[int, _Held] = {}
        """By the number of the question to the siblings."""
        # not a number used by a former incarnation of this worker: its answer may still arrive
        self._number = context.router.state.wall_ms * 1000
        self._swept: bytes | None = None
        self._work: deque[RetainedWalk | _Put | _Asked] = deque()
        self.wake: Callable[[], None] = lambda: None
        """Called when `run` gets something to do and had nothing."""
        self.when_taken: Callable[[Callable[[], None]], None] = lambda call: call()
        """See `broker.worker.peering`: a subscriber relies on the retained messages that have arrived here and wait."""
        self.replayed = 0
        """For `broker.replay.scheduler`: this work reads nothing from an archive."""

    # ------------------------------------------------------------ work

    @property
    def has_work(self) -> bool:
        """Whether `run` has something to do."""
        return bool(self._work)

    def run(self) -> None:
        """Do one piece of work."""
        steps = _STEPS
        while self._work and steps > 0:
            work = self._work.popleft()
            before = self._retained.spent
            steps -= _BEGIN_STEPS
            spend(2 * STEP)
            if isinstance(work, RetainedWalk):
                work.is_queued = False
                self._context.guard_session(work.session, self._send_own, work)
            elif isinstance(work, _Asked):
                self._answer(work)
            elif work.number in self._questions:
                self._context.guard_session(self._questions[work.number][0].session, self._put_anew, work.number)
            steps -= self._retained.spent - before

    def _put_work(self, work: RetainedWalk | _Put | _Asked) -> None:
        self._work.append(work)
        if len(self._work) == 1:
            self.wake()

    def _due(self, walk: RetainedWalk) -> None:
        if not walk.is_queued and not walk.over:
            walk.is_queued = True
            self._put_work(walk)

    def _page(self, text: bytes, after: bytes) -> tuple[list[Message], bytes | None]:
        """Return the messages that match behind `after`, and where the next page begins (None: there is none)."""
        found, at = self._retained.page(text, after or None, _PAGE, _STEPS)
        size = 0
        for number, (topic, message) in enumerate(found, 1):
            size += len(topic) + len(message.properties) + len(message.payload)
            if size > _PAGE_BYTES and number < len(found):
                del found[number:]
                at = topic
                break
        return self._live(found), at

    def sweep(self) -> None:
        """Remove expired messages, a part of the topics at a time; called every second. (Topics that begin with $ are
        only checked when they are asked for.)
        """
        found, self._swept = self._retained.page(b"#", self._swept, _PAGE, _SWEEP_STEPS)
        self._live(found)

    def _live(self, found: list[tuple[bytes, Message]]) -> list[Message]:
        """Return those that have not expired; remove the others."""
        now = self._router.state.wall_ms
        live = []
        spend(len(found) * PACKED)
        for _, message in found:
            if message.expires and message.expires <= now:
                self._router.retaining.expire_retained(message)
            else:
                live.append(message)
        return live

    # ------------------------------------------------------------ walks

    def send(self, session: Session, asks: Asks) -> None:
        """Send the retained messages that SUBSCRIBEs ask for after the SUBACK: a bounded number of filters at once."""
        if session.connection is not None:
            steps = _STEPS
            for asked, filters in asks:
                steps = self._send(session, filters, asked, steps)
            self._begin_waiting(session)
            self._context.counters.add(count.RETAINED_WALKS_DEFERRED, len(session.details.walks_waiting))
        self._unanswered.answered(session)

    def _send(self, session: Session, filters: list[bytes], asked: int, steps: int) -> int:
        """Note these filters, or look them up with some of so many steps. Return the steps that are left."""
        details: Details = session.details
        spend(len(filters) * STEP)
        all_of_it = asked, self._router.state.next_number(), None  # one tuple for all: there may be a hundred thousand
        each = _MESSAGE_STEPS if self._state_records.keeps and session.durable else 1
        for text in filters:
            waits = text in details.walks_waiting
            if not waits and steps > 0:
                before = self._retained.spent
                nothing = self._finds_nothing(text, steps)
                steps -= self._retained.spent - before + each
                if nothing:
                    self._note_all(session, text)
                    continue
            if waits:  # a filter is looked up once, for its last SUBSCRIBE
                del details.walks_waiting[text]
            else:
                session.watch()
            self._wait(session, text, all_of_it)
        return steps

    def _finds_nothing(self, text: bytes, steps: int) -> bool:
        """Whether it is already clear that nothing is retained for this filter, as is usual."""
        if self._context.workers > 1 or is_sys(text):
            return False
        if not self._retained.count:
            return True
        found, at = self._retained.page(text, None, 1, steps)
        return not found and at is None

    def _wait(self, session: Session, text: bytes, what: tuple[int, int, dict[Peer, bytes] | None]) -> None:
        details: Details = session.details
        if details.walks_waiting is NONE_WAITING:
            details.walks_waiting = OrderedDict()
        details.walks_waiting[text] = what

    def _parts(self, text: bytes) -> dict[Peer, bytes]:
        context = self._context
        return dict.fromkeys((context.own,) if is_sys(text) else (context.own, *context.siblings), b"")

    def owed(self, session: Session, text: bytes, asks: bool) -> list[tuple[Peer, bytes]]:
        """Return what the store keeps as not yet sent for a subscription: all, if it `asks` now, or the rest."""
        if not self._state_records.keeps or is_sys(text) or not self._context.settings.protocol.retain_available:
            return []
        if asks:
            return list(self._parts(text).items())
        details: Details = session.details
        if text in details.walks_waiting:
            return list((details.walks_waiting[text][2] or self._parts(text)).items())
        walks = [walk for walk in details.walks if walk.filter == text]
        return list(walks[-1].parts.items()) if walks else []

    def restore(self, session: Session, text: bytes, owed: list[tuple[int, bytes]]) -> None:
        """Restore a walk that an earlier worker has stored; it continues when the client is back."""
        session.watch()
        since = self._router.state.next_number()
        parts = {sibling(worker): at for worker, at in owed}
        self._wait(session, text, (session.ask(self._router.windows.position), since, parts))

    def _note(self, walk: RetainedWalk) -> None:
        """Store the progress, after a page was queued or the last one, together with the queued messages."""
        if self._state_records.keeps and walk.session.durable and not is_sys(walk.filter):
            self._state_records.owes(walk.session, walk.filter, self.owed(walk.session, walk.filter, False))

    def _note_all(self, session: Session, text: bytes) -> None:
        """Store that there was nothing for this filter."""
        if self._state_records.keeps and session.durable:
            self._state_records.owes(session, text, self.owed(session, text, False))

    def _begin_waiting(self, session: Session) -> None:
        details: Details = session.details
        most = self._context.limits.retained_walks_per_session_max
        while session.connection is not None and details.walks_waiting and len(details.walks) < most:
            text, (asked, since, parts) = details.walks_waiting.popitem(last=False)
            walk = RetainedWalk(session, text, asked, since, parts or self._parts(text))
            if details.walks is NO_WALKS:
                details.walks = {}
            details.walks[walk] = None
            self._go(walk)
        if not details.walks_waiting:
            details.walks_waiting = NONE_WAITING  # frees its memory

    def _go(self, walk: RetainedWalk) -> None:
        spend(len(walk.parts) * 2 * STEP)
        for worker in walk.parts:
            if worker == self._context.index:
                self.when_taken(lambda: self._due(walk))
            elif worker not in walk.numbers:
                self._ask(walk, worker)

    def resumed(self, session: Session) -> None:
        """Continue the walks of a session that has a connection again."""
        details: Details = session.details
        for walk in list(details.walks):
            self._go(walk)
        self._begin_waiting(session)
        self._unanswered.resume(session, self.send)

    def unsubscribed(self, session: Session, text: bytes) -> None:
        """Drop the walk for a filter that was unsubscribed."""
        details: Details = session.details
        self._unanswered.unsubscribed(session, text)
        if details.walks_waiting.pop(text, None) is not None:
            session.unwatch()
        for walk in [each for each in details.walks if each.filter == text]:
            self._end(walk)

    def ended(self, session: Session) -> None:
        """Drop all walks of a session that has ended."""
        details: Details = session.details
        details.walks_waiting = NONE_WAITING
        for walk in list(details.walks):
            self._end(walk)

    def _end(self, walk: RetainedWalk) -> None:
        walk.over = True
        for number in walk.numbers.values():
            self._questions.pop(number, None)
        walk.numbers.clear()
        details: Details = walk.session.details
        del details.walks[walk]
        if not details.walks:
            details.walks = NO_WALKS
        walk.session.unwatch()
        self._begin_waiting(walk.session)

    def _part_done(self, walk: RetainedWalk, worker: Peer) -> None:
        del walk.parts[worker]
        if not walk.parts:
            self._end(walk)
        self._note(walk)

    def _rests(self, walk: RetainedWalk) -> bool:
        """Whether nothing can be sent now; without a lasting session the walk ends."""
        if walk.session.connection is not None:
            return False
        if not walk.session.durable:
            self._end(walk)
        return True

    def _is_full(self, session: Session) -> bool:
        return session.queued >= _QUEUED_MAX or session.queued_bytes >= _QUEUED_BYTES_MAX

    def _send_own(self, walk: RetainedWalk) -> None:
        session, here = walk.session, self._context.own
        if walk.over or here not in walk.parts or self._rests(walk):
            return
        if self._is_full(session):
            self._later(walk, here)
            return
        if is_sys(walk.filter):  # every worker has the topics of $SYS itself
            self._queue(walk, self._sys_topics.said(walk.filter))
            self._part_done(walk, here)
            return
        found, at = self._page(walk.filter, walk.parts[here])
        self._queue(walk, found)
        if at is None:
            self._part_done(walk, here)
        else:
            walk.parts[here] = at
            self._note(walk)
            self._due(walk)

    def _later(self, walk: RetainedWalk, worker: Peer) -> None:
        """Try again later, because there is no room; the first try has set the timer."""
        if worker not in walk.waits:
            walk.waits.add(worker)
            self._context.call_later(_LATER_SECONDS, lambda: self._try_again(walk, worker), walk.session)

    def _try_again(self, walk: RetainedWalk, worker: Peer) -> None:
        # the client may have been away and back meanwhile, and the walk continued or ended here
        walk.waits.discard(worker)
        if worker == self._context.index:
            self._due(walk)
        elif worker in walk.numbers:
            self._go_on(walk.numbers[worker])

    def _queue(self, walk: RetainedWalk, messages: list[Message]) -> None:
        messages = self._authorising.receivable(walk.session, messages)
        if messages:
            self._router.retaining.queue_retained(walk.session, messages, walk.filter, walk.asked)

    # ------------------------------------------------------------ questions

    def _ask(self, walk: RetainedWalk, peer: Peer) -> None:
        self._number += 1
        self._questions[self._number] = walk, peer
        walk.numbers[peer] = self._number
        self._put(self._number)

    def _put(self, number: int) -> None:
        walk, peer = self._questions[number]
        if self._context.is_ready(peer):
            self._router.peers.tell(
                peer, questions.QUESTION, questions.pack_question(number, walk.filter, walk.parts[peer])
            )

    def _go_on(self, number: int) -> None:
        """Put the question once the session can take an answer."""
        if number not in self._questions:
            return
        walk, peer = self._questions[number]
        if self._rests(walk):
            self._questions.pop(number, None)
            walk.numbers.pop(peer, None)
        elif self._is_full(walk.session):
            self._later(walk, peer)
        else:
            self._put(number)

    def _put_anew(self, number: int) -> None:
        """Ask again under another number: the sibling may have answered already, and only one answer must count."""
        self._number += 1
        walk, peer = self._questions[self._number] = self._questions.pop(number)
        walk.numbers[peer] = self._number
        self._go_on(self._number)

    def peer_ready(self, peer: Peer) -> None:
        """Repeat the open questions to a sibling that is back."""
        self._context.in_pieces(self._ask_anew(peer))

    def _ask_anew(self, peer: Peer) -> Iterator[None]:
        spend(len(self._questions) * HELD)
        for at, number in enumerate(list(self._questions), 1):
            spend(STEP)
            question = self._questions.get(number)
            if question is not None and question[1] == peer:
                self._put_work(_Put(number))
            if at % _AT_ONCE == 0:
                yield

    def asked(self, peer: Peer, payload: bytes) -> None:
        """Queue a question of a sibling."""
        asked = _Asked(peer, questions.unpack_question(payload))
        self.when_taken(lambda: self._put_work(asked))

    def _answer(self, asked: _Asked) -> None:
        number, text, after = asked.question
        found, at = self._page(text, after) if text else ([], None)
        self._router.peers.tell(asked.peer, questions.ANSWER, questions.pack_answer(number, at, found))

    def answered(self, peer: Peer, payload: bytes) -> None:
        """Queue a page of a sibling's answer, and ask for the next."""
        number, at, messages = questions.unpack_answer(payload)
        if number in self._held:
            self._earlier_received(number, peer)
            return
        walk, whom = self._questions.get(number, (None, -1))
        if walk is None or whom != peer:
            return  # asked before this worker or the link restarted, or not wanted any more
        self._context.guard_session(walk.session, self._take_page, number, at, messages)

    def _take_page(self, number: int, at: bytes | None, payload: bytes) -> None:
        walk, peer = self._questions[number]
        messages = unpack_stored(payload, expiry_offset)
        # the live copy of a message that the answering sibling published came before this answer
        siblings = {publisher_of(message.number) for message in messages if message.number > walk.since}
        siblings = {each for each in siblings - {peer, self._context.index} if self._context.is_ready(each)}
        if not siblings or walk.session.connection is None:
            self._queue_page(number, at, messages)
            return
        self._number += 1
        self._held[self._number] = _Held(number, siblings, at, messages)
        for each in siblings:
            self._router.peers.tell(each, questions.QUESTION, questions.pack_question(self._number))

    def _earlier_received(self, number: int, peer: Peer) -> None:
        """The sibling has sent everything that was due before the question, or cannot send any more."""
        held = self._held[number]
        held.siblings.discard(peer)
        if held.siblings:
            return
        del self._held[number]
        walk, _ = self._questions.get(held.number, (None, -1))
        if walk is not None:  # else it was asked for anew, or is not wanted any more
            self._context.guard_session(walk.session, self._queue_page, held.number, held.at, held.messages)

    def peer_away(self, peer: Peer) -> None:
        """Stop waiting for a sibling that is away, perhaps for long: held messages may then arrive twice."""
        self._context.in_pieces(self._wait_no_more(peer))

    def _wait_no_more(self, peer: Peer) -> Iterator[None]:
        spend(len(self._held) * HELD)
        done = 0
        for number in list(self._held):
            spend(STEP)
            held = self._held.get(number)
            if held is not None and peer in held.siblings:
                done += len(held.messages)
                self._earlier_received(number, peer)
            done += 1
            if done >= _AT_ONCE:
                yield
                done = 0

    def _queue_page(self, number: int, at: bytes | None, messages: list[Message]) -> None:
        walk, peer = self._questions[number]
        if walk.session.connection is None:
            self._go_on(number)
            return
        self._queue(walk, messages)
        if at is None:
            del self._questions[number], walk.numbers[peer]
            self._part_done(walk, peer)
        else:
            walk.parts[peer] = at
            self._note(walk)
            self._go_on(number)
