"""Replays: subscriptions that begin at a position of the archive and continue with newly published messages.

SUBSCRIBE with the user property `mqttd-offset` makes one for each of its Topic Filters. It is not among the
subscriptions that publishes are matched with: all its messages, also new ones, come from the archives of every worker,
after the commit. The home of the session asks all workers for pages (`broker.replay.sources`, itself included), merges
them (`pyx.delivery.replay`), and puts the messages into the session's own queue when that is empty. So the client's
Receive Maximum and its outbox pace the replay, and nothing is requested while it is not connected.

    opening     a position must not lie before the start of any log, and `latest` begins behind all numbers that the
                workers have given out: reachable siblings are asked before the SUBACK (`probe`)
    feeding     about two pages are in memory, the next ones are requested when half of that is used
    resting     paused, without a connection: only the position is kept

Fairness: `run` does one piece of work, reading a page or queueing some messages, in turn for all sessions that have
work; its caller then pauses for twice the time of that piece. So replays have a third of a worker, in small pieces.

Stored (family O, `leveldb_store.format.replay_schema`): the position, in one batch with the copies of QoS 1 and 2 up to
there, in records of their own (family Q). After a crash these are sent, and reading continues behind them. If all
copies were of QoS 0, the position is stored a little later, when they have been sent.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from broker.replay.offsets import tag_of
from broker.replay.sources import Answer, Question, Sources, page_of, read_of, so_far_of
from leveldb_store.format.replay_schema import ALL, StoredReplay, encode_replay, replay_key
from pyx.core import counters as count
from pyx.core.peer import Peer, sibling
from pyx.delivery.replay import Merge, drop_queued, has_room, write_position

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.context.context import Context
    from broker.persistence.state_records import StateRecords
    from pyx.delivery.session import Session

__all__ = ["Replay", "Replaying"]

_SLICE_MESSAGES = 256
_SLICE_BYTES = 64 * 1024
_PAGE_BYTES_LEAST = 4096
_LAG_SECONDS = 0.1
_NOTED_AT_ONCE = 256
_NOTED_APART = 10_000_000 << 8
"""A position newer than the stored one by this much (ten seconds) is stored without a delivery."""
_AGAIN_MS = 3000
"""A question without a sign of life for this long is asked again."""


class Replay:
    """One subscription that replays."""

    __slots__ = (
        "asked", "fresh", "gone", "heard", "identifier", "is_dirty", "is_queued", "is_resting", "merge", "noted",
        "sizes", "starts", "text", "whole",
    )  # fmt: skip

    def __init__(self, merge: Merge, text: bytes, identifier: int, sources: int, fresh: bool) -> None:
        self.merge = merge
        self.text = text
        """Topic Filter."""
        self.identifier = identifier
        self.asked = [0] * sources
        """By source: the number of the open question, or 0."""
        self.heard = [0] * sources
        """By source: monotonic ms of its last sign of life."""
        self.sizes = [0] * sources
        """By source: messages of the last page."""
        self.starts = [0] * sources
        """By source: the number up to which messages may be missing, as announced by it."""
        self.fresh = set(range(sources)) if fresh else set()
        """Sources that were asked for all they have: nothing can be missing before their first page."""
        self.whole = merge.state()
        """The position delivered when its session's queue was last seen empty, ..."""
        self.gone: list[int] = []
        """... and by source the number up to which its client knows by then that messages may be missing, as stored."""
        self.emptied()
        self.noted = self.whole[0]
        """The position that is stored or about to be."""
        self.is_resting = True
        self.is_queued = False
        self.is_dirty = False
        """Whether the stored record is out of date."""

    def emptied(self) -> None:
        """Note that its session has taken all messages queued so far."""
        self.whole = self.merge.state()
        if self.merge.lost is None:  # else the client has not been told of a gap yet
            self.gone = [ALL if source in self.fresh else start for source, start in enumerate(self.starts)]

    @property
    def session(self) -> Session:
        """The session that it belongs to."""
        return self.merge.session


class Replaying:
    """The replays of one worker's sessions, and the pages that its archive sends to those of others."""

    def __init__(self, context: Context, state_records: StateRecords) -> None:
        self._context = context
        self._router = context.router
        self._row = context.counters
        self._state_records = state_records
        self._questions: dict[int, tuple[Replay, int]] = {}
        # not a number used by a former incarnation: its answer may still arrive
        self._number = context.router.state.wall_ms * 1000
        self._work: deque[Question | Replay] = deque()
        self._dirty: set[Replay] = set()
        self._active: dict[Replay, None] = {}
        """Replays that do not rest, in the order of their start."""
        self._lags = False
        self.count = 0
        self.archive = context.store.archive
        self.tag = tag_of(self.archive.epoch) if self.archive is not None else b""
        self.sources = Sources(context, self, self.archive, self._queue) if self.archive is not None else None
        self.wake: Callable[[], None] = lambda: None
        """Called when `run` gets something to do and had nothing."""

    # ------------------------------------------------------------ work

    @property
    def has_work(self) -> bool:
        """Whether `run` has something to do."""
        return bool(self._work)

    @property
    def replayed(self) -> int:
        """Number of messages queued for clients since the broker was started."""
        return self._row.get(count.REPLAYED_MESSAGES)

    def run(self) -> None:
        """Do one piece of work."""
        if not self._work:
            return
        work = self._work.popleft()
        if isinstance(work, Question):
            assert self.sources is not None
            self.sources.step(work)
        else:
            work.is_queued = False
            self._feed(work)

    def _queue(self, work: Question | Replay) -> None:
        self._work.append(work)
        if len(self._work) == 1:
            self.wake()

    def _due(self, replay: Replay) -> None:
        if not replay.is_queued and not replay.is_resting:
            replay.is_queued = True
            self._queue(replay)

    # ------------------------------------------------------------ start and end

    def make(
        self,
        session: Session,
        text: bytes,
        options: int,
        identifier: int,
        after: list[int],
        *,
        fresh: bool = False,
        number: int = 0,
        floors: dict[int, int] | None = None,
    ) -> Replay:
        """Make a replay, which rests; a former one of this Topic Filter ends. `after`: by worker, the number up to
        which messages are not for it.
        """
        if number == 0:
            number = 1 + max((each.merge.number for each in (session.replays or {}).values()), default=0)
        self.stop(session, text)
        merge = Merge(session, options, identifier, number, self.tag, after, floors or {})
        replay = Replay(merge, text, identifier, len(after), fresh)
        if session.replays is None:
            session.replays = {}
        session.replays[text] = replay
        self.count += 1
        return replay

    def stop(self, session: Session, text: bytes) -> bool:
        """End a replay, with its waiting messages and its record. Return False if there is none."""
        replay: Replay | None = (session.replays or {}).pop(text, None)
        if replay is None:
            return False
        if not session.replays:
            session.replays = None
        self.count -= 1
        self._rest(replay)
        drop_queued(self._router.backlog, session, replay.merge.number)
        self._dirty.discard(replay)
        if self._state_records.stores(session):
            self._router.journal.delete_record(replay_key(session.client_id, text))
        return True

    def begin(self, replay: Replay) -> None:
        """Request messages, if its session is connected."""
        if replay.session.connection is None or not replay.is_resting or not self._is_there(replay):
            return
        replay.is_resting = False
        self._active[replay] = None
        for source in range(self._context.workers):
            self._ask(replay, source, at_once=True)

    def attached(self, session: Session) -> None:
        """Start the replays of a session that has a connection."""
        for replay in (session.replays or {}).values():
            self.begin(replay)

    def detached(self, session: Session) -> None:
        """Let its replays rest: the connection has ended, and open questions are dropped."""
        for replay in (session.replays or {}).values():
            self._rest(replay)
            self._note(replay)

    def ended(self, session: Session) -> None:
        """Forget the replays of an ended session. (Its records are deleted with it.)"""
        for replay in (session.replays or {}).values():
            self._rest(replay)
            self._dirty.discard(replay)
            self.count -= 1
        session.replays = None

    def _is_there(self, replay: Replay) -> bool:
        return (replay.session.replays or {}).get(replay.text) is replay

    def _rest(self, replay: Replay) -> None:
        replay.is_resting = True
        self._active.pop(replay, None)
        replay.merge.rest()
        for source, number in enumerate(replay.asked):
            if number:
                self._forget(source, number)
        replay.asked = [0] * len(replay.asked)

    # ------------------------------------------------------------ questions

    def _ask(self, replay: Replay, source: int, at_once: bool = False) -> None:
        """Ask that worker for the next messages. `at_once`: if it has none, it answers at once how far that holds."""
        context = self._context
        if source != context.index and not context.is_ready(sibling(source)):
            return  # `sweep` will ask again
        self._number += 1
        number = self._number
        self._questions[number] = replay, source
        replay.asked[source] = number
        replay.heard[source] = self._router.state.now_ms
        merge = replay.merge
        after = merge.up_to(source)
        bytes_max = max(_PAGE_BYTES_LEAST, 2 * context.limits.replay_page_bytes // (1 + context.workers))
        question = Question(context.own, number, replay.text, after, replay.starts[source], bytes_max)
        if source == context.index:
            assert self.sources is not None
            self.sources.ask(question, at_once)
        else:
            self._router.peers.tell_unkept(source, b"r", read_of(question, at_once))

    def _forget(self, source: int, number: int) -> None:
        # if this message is lost: the sibling's next message about the question is answered with it again
        self._questions.pop(number, None)
        if source != self._context.index:
            self._router.peers.tell_unkept(source, b"c", number.to_bytes(8, "little"))
        elif self.sources is not None:
            self.sources.forget(sibling(source), number)

    def _ask_more(self, replay: Replay) -> None:
        for source, number in enumerate(replay.asked):
            if not number and replay.merge.waiting(source) <= replay.sizes[source] // 2:
                self._ask(replay, source)

    def answered(self, peer: Peer, payload: bytes) -> None:
        """Handle the message b"R" of a sibling: a page."""
        answer = page_of(payload)
        if self._questions.get(answer.number, (None, -1))[1] == peer:
            self.page(answer)

    def page(self, answer: Answer) -> None:
        """Take in a page, see `broker.replay.sources`."""
        found = self._questions.pop(answer.number, None)
        if found is None:
            return
        replay, source = found
        replay.asked[source] = 0
        replay.sizes[source] = len(answer.messages)
        if answer.start is not None:
            replay.starts[source] = answer.start
            if source not in replay.fresh or answer.is_damage:
                self._fell_behind(replay, source, answer.start, answer.is_damage)
        replay.fresh.discard(source)
        replay.merge.add(source, answer.messages, answer.up_to, answer.is_end)
        self._ask_more(replay)
        self._due(replay)

    def _fell_behind(self, replay: Replay, source: int, start: int, is_damage: bool) -> None:
        merge = replay.merge
        self._row.add(count.REPLAYS_FALLEN_BEHIND)
        self._context.log.warning(
            "replay_fallen_behind",
            client=replay.session.client_id,
            filter=replay.text,
            worker_of=source,
            behind=merge.delivered(source),
            start=start,
            damage=is_damage,
        )
        if merge.lost is None:
            merge.lost = write_position(self.tag, merge.position)

    def beat_received(self, peer: Peer, payload: bytes) -> None:
        """Handle the message b"b" of a sibling."""
        up_to, *numbers = memoryview(payload).cast("Q")
        self._end(peer, self.beat(peer, up_to, numbers))

    def progress_received(self, peer: Peer, payload: bytes) -> None:
        """Handle the message b"s" of a sibling."""
        self._end(peer, self.so_far(peer, so_far_of(payload)))

    def _end(self, peer: Peer, over: list[int]) -> None:
        if over:
            self._router.peers.tell_unkept(peer, b"c", b"".join(number.to_bytes(8, "little") for number in over))

    def so_far(self, source: int, pairs: list[tuple[int, int]]) -> list[int]:
        """Note that these questions have nothing up to these numbers so far; return those that are not open."""
        over = []
        for number, up_to in pairs:
            replay, asked = self._questions.get(number, (None, -1))
            if replay is None or asked != source:
                over.append(number)
                continue
            replay.merge.add(source, [], up_to, False)
            if up_to:
                replay.fresh.discard(source)
            replay.heard[source] = self._router.state.now_ms
            self._note_progress(replay)
            if replay.merge.is_due:
                self._due(replay)
        return over

    def beat(self, source: int, up_to: int, numbers: list[int]) -> list[int]:
        """Note that these questions have nothing up to this number; return those that are not open."""
        over = []
        for number in numbers:
            replay, asked = self._questions.get(number, (None, -1))
            if replay is None or asked != source:
                over.append(number)
                continue
            merge = replay.merge
            merge.add(source, [], up_to, True)
            replay.fresh.discard(source)
            replay.heard[source] = self._router.state.now_ms
            self._note_progress(replay)
            if merge.is_due:
                self._due(replay)
        return over

    def peer_ready(self, peer: Peer) -> None:
        """Ask again: a sibling is back, and has none of our questions."""
        for replay in list(self._active):
            if replay.asked[peer]:
                self._forget(peer, replay.asked[peer])
            self._ask(replay, peer, at_once=True)

    def peer_gone(self, peer: Peer) -> None:
        """Forget the questions of a sibling that is dead."""
        if self.sources is not None:
            self.sources.forget_all(peer)

    def sweep(self) -> None:
        """Repeat questions that were not answered; called once a second."""
        late = self._router.state.now_ms - _AGAIN_MS
        for replay in list(self._active):
            for source, number in enumerate(replay.asked):
                if number and replay.heard[source] < late:
                    self._forget(source, number)
                    replay.asked[source] = number = 0
                if not number and replay.merge.waiting(source) <= replay.sizes[source] // 2:
                    self._ask(replay, source, at_once=True)

    # ------------------------------------------------------------ feeding

    def drained(self, sessions: list[Session]) -> None:
        """Continue: these sessions' own queues are empty, or their outboxes mostly sent."""
        for session in sessions:
            for replay in (session.replays or {}).values():
                if replay.is_dirty or replay.merge.is_due:
                    self._due(replay)

    def _feed(self, replay: Replay) -> None:
        session, merge = replay.session, replay.merge
        if replay.is_resting:
            return
        if not has_room(self._router.backlog, session):
            return  # `drained` will continue
        replay.emptied()
        if not merge.feed(self._router.backlog, _SLICE_MESSAGES, _SLICE_BYTES):
            return
        replay.is_dirty = True
        if merge.take_kept() and session.durable:
            replay.emptied()
            self._note(replay)
        elif session.durable:
            self._note_later(replay)
        self._ask_more(replay)
        if not session.queued and merge.is_due:  # none of the messages was for it
            self._due(replay)

    # ------------------------------------------------------------ stored state

    def _note(self, replay: Replay) -> None:
        """Store the position, with the other records of this tick."""
        session = replay.session
        if replay.is_dirty and not session.queued:
            replay.emptied()
        replay.is_dirty = False
        replay.noted = replay.whole[0]
        self._dirty.discard(replay)
        if self._state_records.stores(session):
            key = replay_key(session.client_id, replay.text)
            self._router.journal.put_record(key, encode_replay(self._stored(replay)), waited=False)

    def keep(self, replay: Replay) -> None:
        """Store a new replay: the SUBACK waits for its record."""
        session = replay.session
        if self._state_records.stores(session):
            self._router.journal.put_record(
                replay_key(session.client_id, replay.text), encode_replay(self._stored(replay))
            )

    def _stored(self, replay: Replay) -> StoredReplay:
        position, floors = replay.whole
        merge = replay.merge
        lost = int(merge.lost[len(self.tag) :], 16) if merge.lost is not None else 0
        gone = replay.gone if max(replay.gone) > position else []  # else the position alone says it
        return StoredReplay(merge.options, replay.identifier, merge.number, position, lost, floors, gone)

    def _note_later(self, replay: Replay) -> None:
        if not self._state_records.stores(replay.session):
            return
        self._dirty.add(replay)
        if not self._lags:
            self._lags = True
            self._context.call_later(_LAG_SECONDS, self._note_all)

    def _note_all(self) -> None:
        self._lags = False
        for replay in list(self._dirty)[:_NOTED_AT_ONCE]:
            self._note(replay)
        if self._dirty:
            self._lags = True
            self._context.call_later(_LAG_SECONDS, self._note_all)

    def _note_progress(self, replay: Replay) -> None:
        # it advanced without a delivery: a restart must not begin with a much older position
        session, merge = replay.session, replay.merge
        if merge.position < replay.noted + _NOTED_APART or session.queued or not session.durable:
            return
        replay.emptied()
        replay.noted = merge.position
        self._note_later(replay)

    def restore(self, session: Session, text: bytes, stored: StoredReplay) -> None:
        """Restore a replay that an earlier worker has stored, for a session without a connection."""
        if self.archive is None:
            return
        replay = self.make(
            session,
            text,
            stored.options,
            stored.identifier,
            [stored.position] * self._context.workers,  # after repartitioning an archive has numbers of several workers
            fresh=stored.position == 0,
            number=stored.number,
            floors=stored.floors,
        )
        if len(stored.gone) == self._context.workers:  # with another number of workers gaps are announced again
            replay.fresh = {source for source, start in enumerate(stored.gone) if start == ALL}
            replay.starts = [0 if start == ALL else start for start in stored.gone]
        replay.emptied()
        if stored.lost:
            replay.merge.lost = write_position(self.tag, stored.lost)
