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

In a cluster the archives of all hosts are read (`broker.replay.reading`): each host archives what is published there. A
host that is away is not waited for; what it has comes when it is back, and until then the position says so.

Stored (family O, `leveldb_store.format.replay_schema`): the position, in one batch with the copies of QoS 1 and 2 up to
there, in records of their own (family Q). After a crash these are sent, and reading continues behind them. If all
copies were of QoS 0, the position is stored a little later, when they have been sent.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from broker.replay.host_archives import HostArchives
from broker.replay.host_starts import reads_others, starts_now, stored_starts
from broker.replay.noting import Noting
from broker.replay.offsets import before, tag_of
from broker.replay.questions import Answer, Question, page_of, read_of, so_far_of
from broker.replay.reading import HostRead, Replay, Start, one_host_alone
from broker.replay.sources import Sources
from leveldb_store.format.replay_schema import StoredReplay, replay_key
from pyx.core import counters as count
from pyx.core.peer import Peer, host_of, is_sibling, worker_of
from pyx.core.work import STEP, spend
from pyx.delivery.replay import drop_queued, has_room, write_position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.context.context import Context
    from broker.persistence.state_records import StateRecords
    from broker.replay.host_messages import HostMessage
    from pyx.delivery.session import Session

__all__ = ["Replaying"]

_SLICE_MESSAGES = 256
_SLICE_BYTES = 64 * 1024
_PAGE_BYTES_LEAST = 4096
_SWEPT_AT_ONCE = 5000
_AGAIN_MS = 3000
"""A question without a sign of life for this long is asked again."""


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
        self._active: dict[Replay, None] = {}
        """Replays that do not rest, in the order of their start."""
        self._is_sweeping = False
        self.count = 0
        self.archive = context.store.archive
        self.tag = tag_of(self.archive.epoch) if self.archive is not None else b""
        self._noting = Noting(context, state_records, self.tag)
        hosts = self.hosts = HostArchives(context, self.tag)
        hosts.when_changed.append(self._hosts_changed)
        hosts.heard_kinds = {b"R": self._host_answered, b"b": self._host_beat, b"s": self._host_progress}
        self.sources: Sources | None = None
        if self.archive is not None:
            sources = self.sources = Sources(context, self, self.archive, self._queue, hosts)
            hosts.heard_kinds[b"r"], hosts.heard_kinds[b"c"] = sources.asked_by_host, sources.ended_by_host
            hosts.heard_kinds[b"o"] = sources.probed_by_host
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
        starts: Sequence[Start],
        begins: int,
        number: int = 0,
    ) -> Replay:
        """Make a replay, which rests; a former one of this Topic Filter ends. starts: by host that it reads; begins:
        where it begins with others.
        """
        if number == 0:
            number = 1 + max((each.merge.number for each in (session.replays or {}).values()), default=0)
        self.stop(session, text)
        is_of_hosts = not one_host_alone(starts, self.tag, self.hosts.is_used)
        replay = Replay(session, text, options, identifier, number, begins, starts, is_of_hosts)
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
        self._noting.forget(replay)
        if self._state_records.stores(session):
            self._router.journal.delete_record(replay_key(session.client_id, text))
        return True

    def begin(self, replay: Replay) -> None:
        """Request messages, if its session is connected."""
        if replay.session.connection is None or not replay.is_resting or not self._is_there(replay):
            return
        self._read_hosts(replay)
        replay.is_resting = False
        self._active[replay] = None
        for source in range(len(replay.peers)):
            self._ask(replay, source, at_once=True)

    def attached(self, session: Session) -> None:
        """Start the replays of a session that has a connection."""
        for replay in (session.replays or {}).values():
            self.begin(replay)

    def detached(self, session: Session) -> None:
        """Let its replays rest: the connection has ended, and open questions are dropped."""
        for replay in (session.replays or {}).values():
            self._rest(replay)
            self._noting.now(replay)

    def ended(self, session: Session) -> None:
        """Forget the replays of an ended session. (Its records are deleted with it.)"""
        for replay in (session.replays or {}).values():
            self._rest(replay)
            self._noting.forget(replay)
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
                self._forget(replay.peers[source], number)
        replay.asked = [0] * len(replay.asked)

    # ------------------------------------------------------------ hosts

    def _read_hosts(self, replay: Replay) -> None:
        """Let a replay read the archives that can be read now. Those that cannot are not waited for; it is told."""
        by_tag = self.hosts.by_tag
        if reads_others(replay, self.hosts, self.tag):
            self._rest(replay)
            replay.read_anew(starts_now(replay, self.hosts, self.tag))
            replay.is_dirty = True
        for at, host in enumerate(replay.hosts):
            is_away = host.tag != self.tag and host.tag not in by_tag
            if is_away and not host.is_away and not host.waits:
                self._lost_host(replay, host)
            if is_away != host.is_away:
                host.is_away = is_away
                replay.merge.set_away(at, is_away)

    def _lost_host(self, replay: Replay, host: HostRead) -> None:
        merge = replay.merge
        self._row.add(count.REPLAY_HOSTS_LOST)
        client, name = replay.session.client_id, self.hosts.name_of(host.host)
        self._context.log.warning("replay_host_lost", client=client, filter=replay.text, host=name)
        if merge.lost is None:
            merge.lost = merge.text()

    def _hosts_changed(self) -> None:
        self._context.in_pieces(self._change_hosts())

    def _change_hosts(self) -> Iterator[None]:
        for replay in list(self._active):
            if replay.is_resting:
                continue
            for source, peer in enumerate(replay.peers):
                if not is_sibling(peer) and replay.asked[source] and not self.hosts.is_ready(peer):
                    self._forget(peer, replay.asked[source])
                    replay.asked[source] = 0
            was = replay.merge
            self._read_hosts(replay)
            replay.is_resting = False
            self._active[replay] = None
            for source, number in enumerate(replay.asked):
                if not number and (was is not replay.merge or not is_sibling(replay.peers[source])):
                    self._ask(replay, source, at_once=True)
            self._noting.later(replay)
            if replay.merge.is_due:
                self._due(replay)
            spend(len(replay.peers) * 4 * STEP)
            yield

    def _host_answered(self, message: HostMessage) -> None:
        """Handle a page of another host. Raises ValueError, struct.error, MqttError."""
        answer = page_of(message.content)
        replay, source = self._questions.get(answer.number, (None, -1))
        if replay is None or replay.peers[source] != message.sender:
            return
        ahead_ms = message.wall_ms - self._router.state.wall_ms
        merge = replay.merge
        if answer.up_to < merge.up_to(source) or not merge.takes(
            source, answer.messages, answer.up_to, replay.text, ahead_ms
        ):
            raise ValueError("a page has messages that were not asked for")
        self.page(answer)

    def _host_beat(self, message: HostMessage) -> None:
        """Handle the message b"b" of another host. Raises ValueError."""
        if not message.content or len(message.content) % 8:
            raise ValueError("a beat is cut off")
        self.beat_received(message.sender, message.content)

    def _host_progress(self, message: HostMessage) -> None:
        """Handle the message b"s" of another host. Raises struct.error."""
        self.progress_received(message.sender, message.content)

    # ------------------------------------------------------------ questions

    def _ask(self, replay: Replay, source: int, at_once: bool = False) -> None:
        """Ask a source for the next messages. `at_once`: if it has none, it answers at once how far that holds."""
        context, peer = self._context, replay.peers[source]
        is_here = is_sibling(peer)
        if peer != context.own and not (context.is_ready(peer) if is_here else self.hosts.is_ready(peer)):
            return  # `sweep` will ask again
        self._number += 1
        number = self._number
        self._questions[number] = replay, source
        replay.asked[source] = number
        replay.heard[source] = self._router.state.now_ms
        merge = replay.merge
        after = merge.up_to(source)
        bytes_max = max(_PAGE_BYTES_LEAST, 2 * context.limits.replay_page_bytes // (1 + len(replay.peers)))
        question = Question(context.own, number, replay.text, after, replay.starts[source], bytes_max)
        if peer == context.own:
            assert self.sources is not None
            self.sources.ask(question, at_once)
        else:
            self._tell(peer, b"r", read_of(question, at_once))

    def _tell(self, peer: Peer, kind: bytes, content: bytes) -> None:
        if is_sibling(peer):
            self._router.peers.tell_unkept(peer, kind, content)
        else:
            self.hosts.ask(peer, kind, content)

    def _forget(self, peer: Peer, number: int) -> None:
        # if this message is lost: the worker's next message about the question is answered with it again
        self._questions.pop(number, None)
        if peer != self._context.own:
            self._tell(peer, b"c", number.to_bytes(8, "little"))
        elif self.sources is not None:
            self.sources.forget(peer, number)

    def _ask_more(self, replay: Replay) -> None:
        for source, number in enumerate(replay.asked):
            if not number and replay.merge.waiting(source) <= replay.sizes[source] // 2:
                self._ask(replay, source)

    def answered(self, peer: Peer, payload: bytes) -> None:
        """Handle the message b"R" of a sibling: a page."""
        answer = page_of(payload)
        replay, source = self._questions.get(answer.number, (None, -1))
        if replay is not None and replay.peers[source] == peer:
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
            worker_of=worker_of(replay.peers[source]),
            host=None if is_sibling(replay.peers[source]) else self.hosts.name_of(host_of(replay.peers[source])),
            behind=merge.delivered(source),
            start=start,
            damage=is_damage,
        )
        if merge.lost is None:
            merge.lost = merge.text()

    def beat_received(self, peer: Peer, payload: bytes) -> None:
        """Handle the message b"b" of a sibling."""
        up_to, *numbers = memoryview(payload).cast("Q")
        self._end(peer, self.beat(peer, up_to, numbers))

    def progress_received(self, peer: Peer, payload: bytes) -> None:
        """Handle the message b"s" of a sibling."""
        self._end(peer, self.so_far(peer, so_far_of(payload)))

    def _end(self, peer: Peer, over: list[int]) -> None:
        if over:
            self._tell(peer, b"c", b"".join(number.to_bytes(8, "little") for number in over))

    def so_far(self, peer: Peer, pairs: list[tuple[int, int]]) -> list[int]:
        """Note that these questions have nothing up to these numbers so far; return those that are not open."""
        over = []
        for number, up_to in pairs:
            replay, source = self._questions.get(number, (None, -1))
            if replay is None or replay.peers[source] != peer:
                over.append(number)
                continue
            replay.merge.add(source, [], up_to, False)
            if up_to:
                replay.fresh.discard(source)
            replay.heard[source] = self._router.state.now_ms
            self._noting.progress(replay)
            if replay.merge.is_due:
                self._due(replay)
        return over

    def beat(self, peer: Peer, up_to: int, numbers: list[int]) -> list[int]:
        """Note that these questions have nothing up to this number; return those that are not open."""
        over = []
        for number in numbers:
            replay, source = self._questions.get(number, (None, -1))
            if replay is None or replay.peers[source] != peer:
                over.append(number)
                continue
            merge = replay.merge
            merge.add(source, [], up_to, True)
            replay.fresh.discard(source)
            replay.heard[source] = self._router.state.now_ms
            self._noting.progress(replay)
            if merge.is_due:
                self._due(replay)
        return over

    def peer_ready(self, peer: Peer) -> None:
        """Ask again: a sibling is back, and has none of our questions."""
        for replay in list(self._active):
            source = replay.source_of(peer)
            if source is not None:
                if replay.asked[source]:
                    self._forget(peer, replay.asked[source])
                self._ask(replay, source, at_once=True)

    def peer_gone(self, peer: Peer) -> None:
        """Forget the questions of a sibling that is dead."""
        if self.sources is not None:
            self.sources.forget_all(peer)

    def sweep(self) -> None:
        """Repeat questions that were not answered; called once a second."""
        self.hosts.look()
        if self._active and not self._is_sweeping:
            self._is_sweeping = True
            self._context.in_pieces(self._sweep())

    def _sweep(self) -> Iterator[None]:
        try:
            done = 0
            for replay in list(self._active):
                if done >= _SWEPT_AT_ONCE:
                    yield
                    done = 0
                done += len(replay.peers)
                spend(len(replay.peers) * STEP)
                if not replay.is_resting:
                    self._ask_again(replay)
        finally:
            self._is_sweeping = False

    def _ask_again(self, replay: Replay) -> None:
        late = self._router.state.now_ms - _AGAIN_MS
        for source, number in enumerate(replay.asked):
            if number and replay.heard[source] < late:
                self._forget(replay.peers[source], number)
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
            self._noting.now(replay)
        elif session.durable:
            self._noting.later(replay)
        self._ask_more(replay)
        if not session.queued and merge.is_due:  # none of the messages was for it
            self._due(replay)

    # ------------------------------------------------------------ stored state

    def keep(self, replay: Replay) -> None:
        """Store a new replay: the SUBACK waits for its record."""
        self._noting.keep(replay)

    def restore(self, session: Session, text: bytes, stored: StoredReplay) -> None:
        """Restore a replay that an earlier worker has stored, for a session without a connection."""
        starts = stored_starts(stored, self.hosts, self.tag)
        if not starts:
            return
        begins = stored.begins if stored.hosts is not None else before(stored.position)
        replay = self.make(session, text, stored.options, stored.identifier, starts, begins, stored.number)
        replay.emptied()
        if stored.lost_at:
            replay.merge.lost = stored.lost_at
        elif stored.lost:
            replay.merge.lost = write_position(self.tag, stored.lost)
