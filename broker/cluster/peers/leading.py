"""What the leader of a group of peers does: decides questions, makes records, and brings them to the others.

A record counts when a quorum of peers that vote has it, and then it is applied. Where a quorum is no majority it also
waits for every other peer that votes and was heard in the last moments, so that whichever of them leads next has it.

Questions are decided against the keys as they will be when all records are applied. What is answered waits for those
records, and for a quorum to say, after the question came, that it still follows this leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from broker.cluster.contract import Delete, Entry, Put
from broker.cluster.peers.messages import Acked, Append, Page, Paged, PeerAnswer, PeerMessage, PeerQuestion
from broker.cluster.peers.records import (
    Ballot,
    EndLease,
    GrantLease,
    Position,
    Record,
    RecordOperation,
    revision_after,
)
from broker.cluster.peers.replica import Replica

__all__ = ["BATCH_BYTES_MAX", "QUESTIONS_MAX", "GroupRules", "Leading", "PeerTiming", "Reply"]

QUESTIONS_MAX: Final = 10_000
"""Questions that wait at a leader; more are not decided."""
BATCH_BYTES_MAX: Final = 1 << 20
"""Of the records, or the keys, in one message, unless one alone is larger."""
_APPENDS_MAX: Final = 32
"""Messages with records under way to a peer."""
_ESCAPED: Final = 6
"""Bytes of JSON for a byte of a key, at most."""

Reply = Callable[[PeerAnswer], None]


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """Seconds. beat: between the messages of a leader. silence: after so long without one, there is no leader; a
    candidate waits for up to as long again. window: time for an election. settle: longer than any host relies on a
    lease that it cannot renew.
    """

    beat: float = 0.5
    silence: float = 2.0
    window: float = 1.0
    settle: float = 10.5

    @property
    def forgets(self) -> float:
        """After so long no election is under way that somebody may have voted in and forgotten."""
        return self.silence + self.window


@dataclass(frozen=True, slots=True)
class GroupRules:
    """quorum: peers that have to agree. waits_for_all: it may be no majority."""

    quorum: int
    waits_for_all: bool
    timing: PeerTiming = PeerTiming()


def record_bytes(operations: Iterable[RecordOperation]) -> int:
    """Return how many bytes a message needs for operations, at most."""
    size = 64
    for each in operations:
        size += 64
        if isinstance(each, Put):
            size += _ESCAPED * (len(each.key) + len(each.value))
        elif isinstance(each, Delete):
            size += _ESCAPED * len(each.key)
    return size


@dataclass(slots=True)
class _Paging:
    """All keys on their way to a follower. `begin`, `end`: of the page under way."""

    at: Position
    kept_at: Position
    entries: list[Entry]
    leases: list[tuple[int, int]]
    number: int = 0
    begin: int = 0
    end: int = 0
    sent_at: float = 0.0


@dataclass(slots=True)
class _Follower:
    run: str
    address: str
    heard_at: float
    joined_round: int
    votes: bool = False
    sent: Position | None = None
    """Up to where its log surely is, or will be when all that was sent has come; None: it is not known."""
    probed: Position | None = None
    matched: int = 0
    written: int = 0
    round: int = 0
    sent_round: int = 0
    sent_commit: int = 0
    sent_at: float = -1e9
    number: int = 0
    acked_number: int = 0
    reset_number: int = 0
    paging: _Paging | None = None


@dataclass(slots=True)
class _Waiter:
    revision: int
    round: int
    written: int
    reply: Reply
    answer: PeerAnswer


class LeaderEvents(Protocol):
    """What a leader needs of the peer that it is. `written`: the revision up to which what is kept is on its disk."""

    written: int

    def send(self, address: str, message: PeerMessage) -> None:
        """Send a message, or lose it."""

    def applied(self) -> None:
        """Records were applied."""


@dataclass(slots=True)
class Leading:
    """One peer's time as the leader. founders: runs that have voted to begin anew, and so may vote at once."""

    ballot: Ballot
    replica: Replica
    rules: GroupRules
    events: LeaderEvents
    founders: Collection[str]
    tag: int
    clock: Callable[[], float]
    wall: Callable[[], float]
    followers: dict[str, _Follower] = field(default_factory=dict)
    _foreseen: dict[bytes, tuple[int, Entry | None]] = field(default_factory=dict)
    _leases: dict[int, int] = field(default_factory=dict)
    _ending: set[int] = field(default_factory=set)
    _expires: dict[int, float] = field(default_factory=dict)
    _waiters: deque[_Waiter] = field(default_factory=deque)
    _round: int = 0
    _wants_round: bool = False
    _own_from: int = 0
    _commit: int = 0
    _began_at: float = 0.0

    def begin(self) -> None:
        """Lead: with the records of the former leader that are not applied yet, and every lease for its full time."""
        self._commit = self.replica.keys.at.revision
        self._leases = dict(self.replica.keys.leases)
        for record in self.replica.pending:
            self._foresee(record)
        now = self._began_at = self.clock()
        self._expires = {lease: now + seconds for lease, seconds in self._leases.items()}
        self._own_from = self._propose(()).revision
        self.flush()

    def end(self) -> None:
        """Lead no longer: what waits may be done, or not."""
        while self._waiters:
            waiter = self._waiters.popleft()
            waiter.reply(PeerAnswer(0, "unknown"))

    # ------------------------------------------------------------ records

    def _propose(self, operations: tuple[RecordOperation, ...]) -> Record:
        last = self.replica.last
        revision = revision_after(last.revision, self.wall(), self.tag)
        record = Record(Position(self.ballot, revision), operations, record_bytes(operations))
        self.replica.append(record)
        self._foresee(record)
        return record

    def _foresee(self, record: Record) -> None:
        for each in record.operations:
            if isinstance(each, Put):
                former = self._entry(each.key)
                created = record.revision if former is None else former.created
                entry = Entry(each.key, each.value, created, record.revision, each.lease)
                self._foreseen[each.key] = record.revision, entry
            elif isinstance(each, Delete):
                self._foreseen[each.key] = record.revision, None
            elif isinstance(each, GrantLease):
                self._leases[record.revision] = each.seconds
                self._expires[record.revision] = self.clock() + each.seconds
            elif self._leases.pop(each.lease, None) is not None:
                self._ending.add(each.lease)
                self._expires.pop(each.lease, None)

    def _entry(self, key: bytes) -> Entry | None:
        """Return a key's entry as it will be when all records are applied."""
        foreseen = self._foreseen.get(key)
        entry = self.replica.keys.entries.get(key) if foreseen is None else foreseen[1]
        return None if entry is not None and entry.lease in self._ending else entry

    def _settle(self, record: Record) -> None:
        """Forget what was foreseen of a record that is applied."""
        for each in record.operations:
            if isinstance(each, Put | Delete):
                foreseen = self._foreseen.get(each.key)
                if foreseen is not None and foreseen[0] == record.revision:
                    del self._foreseen[each.key]
            elif isinstance(each, EndLease):
                self._ending.discard(each.lease)

    # ------------------------------------------------------------ questions

    def ask(self, question: PeerQuestion, reply: Reply) -> None:
        """Decide a question. It is answered later."""
        if len(self._waiters) >= QUESTIONS_MAX:
            reply(PeerAnswer(0, "elsewhere"))
        elif question.kind == "transact":
            self._transact(question, reply)
        elif question.kind == "grant":
            revision = self._propose((GrantLease(question.value),)).revision
            self._wait(reply, PeerAnswer(0, "done", revision), revision)
        elif question.kind == "renew" and question.value in self._leases:
            seconds = self._leases[question.value]
            self._expires[question.value] = self.clock() + seconds
            self._wait(reply, PeerAnswer(0, "done", seconds))
        elif question.kind == "revoke" and question.value in self._leases:
            revision = self._propose((EndLease(question.value),)).revision
            self._wait(reply, PeerAnswer(0, "done", revision), revision)
        elif question.kind == "renew":
            self._wait(reply, PeerAnswer(0, "lease_ended"))
        else:
            self._wait(reply, PeerAnswer(0, "done", self.replica.last.revision))

    def _transact(self, question: PeerQuestion, reply: Reply) -> None:
        found = [self._entry(each.key) for each in question.conditions]
        for condition, entry in zip(question.conditions, found, strict=True):
            if condition.changed != (0 if entry is None else entry.changed):
                self._wait(reply, PeerAnswer(0, "refused", self.replica.last.revision, found))
                return
        for each in question.operations:
            if isinstance(each, Put) and each.lease and each.lease not in self._leases:
                self._wait(reply, PeerAnswer(0, "lease_ended"))
                return
        changes = [each for each in question.operations if isinstance(each, Put) or self._entry(each.key) is not None]
        if not changes:
            self._wait(reply, PeerAnswer(0, "done", self.replica.last.revision))
            return
        keeps = any(isinstance(each, Put) and not each.lease for each in changes)
        revision = self._propose(tuple(changes)).revision
        self._wait(reply, PeerAnswer(0, "done", revision), revision, written=revision if keeps else 0)

    def _wait(self, reply: Reply, answer: PeerAnswer, revision: int = 0, written: int = 0) -> None:
        """Answer when this revision counts; 0: when all until now does, and a quorum has said that it follows still."""
        if revision:
            self._waiters.append(_Waiter(revision, 0, written, reply, answer))
        else:
            self._wants_round = True
            self._waiters.append(_Waiter(self.replica.last.revision, self._round + 1, 0, reply, answer))

    # ------------------------------------------------------------ followers

    def greet(self, run: str, address: str) -> None:
        """Take up a peer that follows nobody."""
        now = self.clock()
        follower = self.followers.get(run)
        if follower is None:
            self._wants_round = True
            follower = self.followers[run] = _Follower(run, address, now, self._round + 1)
            self._send(follower, now)
        follower.address = address

    def forget(self, run: str) -> None:
        """Forget a peer whose process has ended."""
        self.followers.pop(run, None)

    def in_contact(self, now: float) -> bool:
        """Whether a quorum follows, or may not have heard of this leader yet."""
        if now - self._began_at < self.rules.timing.silence:
            return True
        heard = sum(each.votes for each in self._in_view(now))
        return 1 + heard >= self.rules.quorum

    def _in_view(self, now: float) -> list[_Follower]:
        return [each for each in self.followers.values() if now - each.heard_at < self.rules.timing.silence]

    def acked(self, run: str, votes: bool, acked: Acked) -> None:
        """Take what a follower says that it has."""
        follower = self.followers.get(run)
        if follower is None:
            return
        now = self.clock()
        follower.heard_at, follower.votes = now, votes
        follower.round = max(follower.round, acked.round)
        follower.written = max(follower.written, acked.written)
        follower.acked_number = max(follower.acked_number, acked.number)
        if acked.matched:
            self._has_matched(follower, acked.matched)
        elif acked.number > follower.reset_number and follower.paging is None:
            follower.reset_number = follower.acked_number = follower.number
            if self.replica.behind(acked.at, 0) is None:
                self._page_to(follower, now)
            else:
                follower.sent = acked.at

    def _has_matched(self, follower: _Follower, matched: int) -> None:
        follower.matched = max(follower.matched, matched)
        if follower.paging is not None and matched >= follower.paging.at.revision:
            follower.sent, follower.paging = follower.paging.at, None
        elif follower.sent is None and follower.paging is None:
            probed = follower.probed
            follower.sent = probed if probed is not None and matched >= probed.revision else None

    def _page_to(self, follower: _Follower, now: float) -> None:
        keys = self.replica.keys
        follower.sent = None
        follower.paging = _Paging(keys.at, keys.kept_at, list(keys.entries.values()), list(keys.leases.items()))
        self._send_page(follower, follower.paging, now)

    def _send_page(self, follower: _Follower, paging: _Paging, now: float) -> None:
        size, end = 0, paging.begin
        while end < len(paging.entries) and size < BATCH_BYTES_MAX:
            entry = paging.entries[end]
            size += 128 + _ESCAPED * (len(entry.key) + len(entry.value))
            end += 1
        paging.end, paging.sent_at = end, now
        leases = paging.leases if paging.number == 0 else []
        is_last = end == len(paging.entries)
        entries = paging.entries[paging.begin : end]
        page = Page(self.ballot, paging.at, paging.kept_at, paging.number, entries, leases, is_last)
        self.events.send(follower.address, page)

    def paged(self, run: str, paged: Paged) -> None:
        """Send the next page to a follower that has one."""
        follower = self.followers.get(run)
        paging = None if follower is None else follower.paging
        if follower is None or paging is None or paged.revision != paging.at.revision or paged.number != paging.number:
            return
        now = follower.heard_at = self.clock()
        if paging.end < len(paging.entries):
            paging.number, paging.begin = paging.number + 1, paging.end
            self._send_page(follower, paging, now)

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """End leases, and remind the followers of this leader."""
        for lease in [lease for lease, ends in self._expires.items() if ends <= now]:
            self._propose((EndLease(lease),))
        beat = self.rules.timing.beat
        for follower in self.followers.values():
            if follower.paging is not None and now - follower.paging.sent_at >= 2 * beat:
                self._send_page(follower, follower.paging, now)
        self.flush()

    def flush(self) -> None:
        """Send what is new, and answer what may be answered."""
        now = self.clock()
        if self._wants_round:
            self._round += 1
            self._wants_round = False
        self._send_all(now)
        if self._advance(now):
            self._send_all(now)

    def _send_all(self, now: float) -> None:
        last, beat = self.replica.last.revision, self.rules.timing.beat
        for each in self.followers.values():
            is_behind = each.sent is not None and each.sent.revision < last
            is_new = each.sent_round < self._round or (each.sent is not None and each.sent_commit < self._commit)
            has_room = each.number - each.acked_number < _APPENDS_MAX
            if ((is_behind or is_new) and has_room) or now - each.sent_at >= beat * 0.99:
                self._send(each, now)
                while is_behind and has_room and each.sent is not None and each.sent.revision < last:
                    self._send(each, now)
                    has_room = each.number - each.acked_number < _APPENDS_MAX

    def _send(self, follower: _Follower, now: float) -> None:
        records: list[Record] = []
        behind = follower.sent
        if behind is None:
            behind = follower.probed = self.replica.last if follower.paging is None else follower.paging.at
        elif follower.number - follower.acked_number < _APPENDS_MAX:
            known = self.replica.behind(behind, BATCH_BYTES_MAX)
            if known is None:  # it was away for so long that what it lacks is forgotten
                self._page_to(follower, now)
            else:
                records = known
                follower.sent = records[-1].position if records else behind
        follower.number += 1
        follower.sent_at, follower.sent_round, follower.sent_commit = now, self._round, self._commit
        may_vote = follower.run in self.founders or self._confirmed(now) >= follower.joined_round
        append = Append(self.ballot, behind, records, self._commit, self._round, follower.number, may_vote)
        self.events.send(follower.address, append)

    # ------------------------------------------------------------ what counts

    def _agreed(self, now: float, own: int, of: Callable[[_Follower], int]) -> int:
        """Return the value that a quorum has reached."""
        values = sorted([own, *(of(each) for each in self.followers.values() if each.votes)], reverse=True)
        if len(values) < self.rules.quorum:
            return 0
        agreed = values[self.rules.quorum - 1]
        if self.rules.waits_for_all:
            view = (each for each in self._in_view(now) if each.votes and each.sent is not None)
            agreed = min([agreed, own, *map(of, view)])
        return agreed

    def _confirmed(self, now: float) -> int:
        return self._agreed(now, self._round, lambda each: each.round)

    def _advance(self, now: float) -> bool:
        """Apply what counts. Return whether there was something."""
        counts = self._agreed(now, self.replica.last.revision, lambda each: each.matched)
        has_applied = False
        if counts >= self._own_from and counts > self._commit:
            newly = [each for each in self.replica.pending if each.revision <= counts]
            self._commit = counts
            has_applied = self.replica.commit(counts)
            for record in newly:
                self._settle(record)
            self.events.applied()
        confirmed = self._confirmed(now)
        written = self._agreed(now, self.events.written, lambda each: each.written)
        while self._waiters:
            waiter = self._waiters[0]
            if waiter.revision > self._commit or waiter.round > confirmed or waiter.written > written:
                break
            self._waiters.popleft()
            waiter.reply(waiter.answer)
        return has_applied
