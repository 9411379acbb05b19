"""One peer of a group that agrees on keys: it follows a leader, or leads, or looks for one. Without sockets and clocks.

The rules are Raft's, with two differences. A ballot belongs to one run of one process, so nobody votes twice with the
same. And nothing but what is kept is on a disk: a process that starts has forgotten what it has voted and what it had.
So it does not vote until a leader has proven to a quorum of others, after the process began, that it leads, and has
sent it everything; and not within the time in which an election may be under way that it has voted in before
(`PeerTiming.forgets`).

If fewer than a quorum have the keys, as at the first start of all, they are gone. Then a quorum of all who are there
*founds* the group anew, with what is kept and without any lease, from whoever has the newest of what is kept. Hosts
that had a lease may rely on it for up to `PeerTiming.settle`, so it waits for so long, unless every peer of the list is
there and none has had a lease since it started.

Where the quorum may be no majority, each side of a network that is cut may have a leader. When it is whole the one with
the higher ballot stays. The others take over its keys, and count that (`Replica.discards`): what they had agreed on
meanwhile has not happened.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from broker.cluster.contract import Entry
from broker.cluster.peers.leading import GroupRules, Leading, Reply
from broker.cluster.peers.messages import (
    Acked,
    Append,
    Hello,
    MessageHead,
    Page,
    Paged,
    PeerAnswer,
    PeerMessage,
    PeerQuestion,
    Poll,
    Polled,
)
from broker.cluster.peers.presence import PeerPresence, SeenPeer
from broker.cluster.peers.records import NOWHERE, TAG_BITS, Ballot, Position, revision_after
from broker.cluster.peers.replica import Replica

__all__ = ["GroupEvents", "GroupMember"]


class GroupEvents(Protocol):
    """What a member tells. Called in the middle of its work: it must not be called back at once."""

    def send(self, address: str, message: PeerMessage) -> None:
        """Send a message to another peer, or lose it."""

    def applied(self) -> None:
        """Keys have changed, or the answer to a read may be there."""

    def leader_changed(self, node: str) -> None:
        """Another peer leads, of this host. "": none does."""

    def founded(self, peers: int, kept: int) -> None:
        """The peer has begun anew with that many keys that are kept, agreed by that many peers."""

    def address_shared(self, address: str) -> None:
        """Two processes answer at an address in turns."""


@dataclass(slots=True)
class _Election:
    ballot: Ballot
    founds: bool
    began: float
    is_vote: bool = False
    granted: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    is_refused: bool = False


@dataclass(slots=True)
class _Incoming:
    """All keys of a leader, as they come. `next`: the number of the page that is missing."""

    at: Position
    kept_at: Position
    leases: dict[int, int]
    entries: list[Entry] = field(default_factory=list)
    next: int = 0


class GroupMember:
    """One peer. run: a name that no other process has had. is_fresh: its host has had no lease since its start. clock:
    seconds, also over a suspension; wall: seconds since 1970.
    """

    def __init__(
        self,
        run: str,
        node: str,
        is_fresh: bool,
        rules: GroupRules,
        events: GroupEvents,
        clock: Callable[[], float],
        wall: Callable[[], float],
        chance: random.Random,
    ) -> None:
        self.run = run
        self.node = node
        self.is_fresh = is_fresh
        self.rules = rules
        self.replica = Replica()
        self.votes = False
        self.written = 0
        """The revision up to which what is kept is on the disk of this host."""
        self.leader = ""
        """The run of the leader; "": none is known."""
        self._events = events
        self._clock = clock
        self._wall = wall
        self._chance = chance
        self._tag = zlib.crc32(run.encode()) & ((1 << TAG_BITS) - 1)
        self._leading: Leading | None = None
        self._promised = Ballot(0, "")
        self._highest = 0  # the highest term that was heard of
        self._presence = PeerPresence(rules.timing.silence, events.address_shared, self._forget)
        now = clock()
        self._began = self._led_until = self._ticked_at = now
        self._heard_at = now
        self._matched = 0
        self._append_number = self._append_round = self._ticks = 0
        self._incoming: _Incoming | None = None
        self._election: _Election | None = None
        self._elects_at = now + rules.timing.forgets + chance.uniform(0, rules.timing.silence / 2)

    # ------------------------------------------------------------ what others ask of it

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses of all peers, the own ones among them."""
        return self._presence.addresses

    @property
    def own_addresses(self) -> Collection[str]:
        """Those at which others reach this peer, as far as it knows."""
        return self._presence.own

    @property
    def unlisted(self) -> int:
        """Messages of peers at addresses that are not listed."""
        return self._presence.unlisted

    @property
    def head(self) -> MessageHead:
        """Who says what this peer sends, without the receiver's address."""
        address = min(self.own_addresses, default="")
        return MessageHead(self.run, self.node, address, "", self.votes, self.is_fresh, self._highest)

    @property
    def leads(self) -> bool:
        """Whether this peer leads."""
        return self._leading is not None

    @property
    def leader_address(self) -> str:
        """Where the leader is asked; "": there is none, or it is this peer."""
        seen = self._presence.get(self.leader)
        return "" if seen is None else seen.address

    def listed(self, addresses: Collection[str]) -> None:
        """Take these as the addresses of all peers, the own ones among them."""
        self._presence.listed(addresses)

    def _forget(self, run: str) -> None:
        if self._leading is not None:
            self._leading.forget(run)

    def start_with(self, kept_at: Position, kept: list[Entry]) -> None:
        """Take what was kept on disk, before anything else."""
        self.replica.keys.reset(NOWHERE, kept_at, kept, {})
        self._highest = kept_at.ballot.term
        self.written = kept_at.revision

    def has_written(self, revision: int) -> None:
        """Note that what is kept is on disk, as of this revision."""
        self.written = max(self.written, revision)
        leader = self._presence.get(self.leader)
        if leader is not None:
            self._send_acked(leader, self._matched)

    def ask(self, question: PeerQuestion, reply: Reply) -> None:
        """Answer a question, now or later; "elsewhere" if this peer does not lead."""
        if self._leading is None:
            reply(PeerAnswer(0, "elsewhere"))
        else:
            self._leading.ask(question, reply)

    def flush(self) -> None:
        """Send what has gathered. After each `ask` and `receive`, or once for many that came together."""
        if self._leading is not None:
            self._leading.flush()

    def peers(self) -> list[tuple[str, str, bool]]:
        """Return (address, host, whether it was heard just now) of all listed peers; host "": it was never heard."""
        return self._presence.report(self.node, self._clock())

    def reason(self) -> str:
        """Return why there is no leader, in words."""
        if not self.addresses:
            return "the addresses of the peers are not known"
        there = self._presence.there(self._clock())
        if not self.own_addresses:
            return f"no peer reaches this one at a listed address ({len(there)} others were heard)"
        count, quorum = 1 + len(there), self.rules.quorum
        said = f"{count} of {len(self.addresses)} peers reach each other"
        now = self._clock()
        if count < quorum:
            return f"{said}, {quorum} are needed"
        if self._voters(now) < quorum and not self._may_found(now):
            seconds = self.rules.timing.settle - (now - self._led_until)
            return f"{said}; those that are missing may rely on leases for {max(seconds, 0):.0f} s yet"
        return f"{said}; they elect the one that keeps the keys"

    # ------------------------------------------------------------ messages

    def receive(self, head: MessageHead, message: PeerMessage) -> None:
        """Take a message, but no Ask and no PeerAnswer."""
        now = self._clock()
        self._notice_pause(now)
        peer = self._presence.hear(head, self.run, now)
        if peer is None:
            return
        self._highest = max(self._highest, head.term)
        match message:
            case Hello():
                if self._leading is not None:
                    self._leading.greet(peer.run, peer.address)
            case Append():
                self._on_append(peer, message, now)
            case Acked():
                self._on_acked(peer, message)
            case Page():
                self._on_page(peer, message, now)
            case Paged():
                if self._leading is not None and message.ballot == self._leading.ballot:
                    self._leading.paged(peer.run, message)
            case Poll():
                self._on_poll(peer, message, now)
            case Polled():
                self._on_polled(peer, message, now)

    def _on_append(self, peer: SeenPeer, append: Append, now: float) -> None:
        if not self._follows(peer, append.ballot, now):
            refusal = Acked(append.ballot, self._promised, 0, self.replica.keys.at, 0, append.round, append.number)
            self._events.send(peer.address, refusal)
            return
        self._append_number, self._append_round = append.number, append.round
        if not self.replica.accept(append.behind, append.records):
            self._send_acked(peer, 0)
            return
        self._matched = max(self._matched, append.records[-1].revision if append.records else append.behind.revision)
        if append.may_vote and now - self._began >= self.rules.timing.forgets:
            self.votes = True
        if self.replica.commit(min(append.commit, self._matched)):
            self._events.applied()
        self._send_acked(peer, self._matched)

    def _follows(self, peer: SeenPeer, ballot: Ballot, now: float) -> bool:
        """Whether the sender leads, as far as this peer knows; then it follows."""
        if ballot < self._promised or ballot.run != peer.run:
            return False
        if ballot > self._promised or self.leader != peer.run:
            self._step_down(now)
            self._promised, self.leader = ballot, peer.run
            self._matched, self._incoming, self._election = 0, None, None
            self._events.leader_changed(peer.node)
        self._heard_at = self._led_until = now
        self.is_fresh = False
        return True

    def _send_acked(self, peer: SeenPeer, matched: int) -> None:
        at = self.replica.keys.at
        acked = Acked(
            self._promised, self._promised, matched, at, self.written, self._append_round, self._append_number
        )
        self._events.send(peer.address, acked)

    def _on_acked(self, peer: SeenPeer, acked: Acked) -> None:
        leading = self._leading
        if leading is None or acked.ballot != leading.ballot:
            return
        if acked.promised > leading.ballot:
            self._step_down(self._clock())
            self._promised = max(self._promised, acked.promised)
            return
        leading.greet(peer.run, peer.address)
        leading.acked(peer.run, peer.votes, acked)

    def _on_page(self, peer: SeenPeer, page: Page, now: float) -> None:
        if not self._follows(peer, page.ballot, now):
            return
        incoming = self._incoming
        if page.number == 0 and (incoming is None or incoming.at != page.at):
            incoming = self._incoming = _Incoming(page.at, page.kept_at, dict(page.leases))
        if incoming is None or incoming.at != page.at or page.number > incoming.next:
            return
        if page.number == incoming.next:
            incoming.entries += page.entries
            incoming.next += 1
            if page.is_last:
                self._incoming = None
                self.replica.reset(incoming.at, incoming.kept_at, incoming.entries, incoming.leases)
                self._matched = incoming.at.revision
                self._events.applied()
                self._send_acked(peer, self._matched)
                return
        self._events.send(peer.address, Paged(page.ballot, page.at.revision, page.number))

    # ------------------------------------------------------------ elections

    def _pause(self) -> float:
        return self._chance.uniform(self.rules.timing.silence, 2 * self.rules.timing.silence)

    def _is_led(self, now: float) -> bool:
        """Whether a leader is there."""
        if self._leading is not None:
            return self._leading.in_contact(now)
        return bool(self.leader) and now - self._heard_at < self.rules.timing.silence

    def _on_poll(self, peer: SeenPeer, poll: Poll, now: float) -> None:
        granted, refuses = self._judge(poll, now)
        if granted and poll.is_vote:
            self._step_down(now)
            self._promised, self.leader = poll.ballot, ""
            self._elects_at = now + self._pause()
        self._events.send(peer.address, Polled(poll.ballot, poll.is_vote, granted, refuses))

    def _judge(self, poll: Poll, now: float) -> tuple[bool, bool]:
        """Return whether this peer is for a candidate, and whether that one must not lead."""
        if self._is_led(now) or poll.ballot <= self._promised:
            return False, True
        if now - self._began < self.rules.timing.forgets or not self.own_addresses:
            return False, False
        if not poll.founds:
            is_newer = self.votes and self.replica.last > poll.last
            return self.votes and not is_newer, is_newer
        if self._may_found(now):
            is_newer = self.replica.keys.kept_at > poll.kept
            return not is_newer, is_newer
        return False, self._voters(now) >= self.rules.quorum

    def _voters(self, now: float) -> int:
        return self.votes + sum(each.votes for each in self._presence.there(now))

    def _may_found(self, now: float) -> bool:
        if self._voters(now) >= self.rules.quorum or 1 + len(self._presence.there(now)) < self.rules.quorum:
            return False
        nobody_relies = self.is_fresh and self._presence.all_are_fresh(now)
        return nobody_relies or now - self._led_until >= self.rules.timing.settle

    def _stand(self, now: float) -> None:
        """Ask the others whether they would vote for this peer, if that may lead to something."""
        self._elects_at = now + self._pause()
        if not self.own_addresses or now - self._began < self.rules.timing.forgets:
            return
        founds = self._may_found(now)
        if not founds and (not self.votes or self._voters(now) < self.rules.quorum):
            return
        self._highest += 1
        ballot = Ballot(self._highest, self.run)
        self._election = _Election(ballot, founds, now)
        self._poll_all(self._election)
        self._count(now)

    def _poll_all(self, election: _Election) -> None:
        poll = Poll(election.ballot, self.replica.last, self.replica.keys.kept_at, election.founds, election.is_vote)
        for address in self._presence.others:
            self._events.send(address, poll)

    def _on_polled(self, peer: SeenPeer, polled: Polled, now: float) -> None:
        election = self._election
        if election is None or polled.ballot != election.ballot or polled.is_vote != election.is_vote:
            return
        election.answered.add(peer.run)
        election.is_refused |= polled.refuses
        if polled.granted:
            election.granted.add(peer.run)
        self._count(now)

    def _count(self, now: float) -> None:
        """See what has become of the election."""
        election = self._election
        assert election is not None
        is_over = now - election.began >= self.rules.timing.window
        has_quorum = 1 + len(election.granted) >= self.rules.quorum
        if self.rules.waits_for_all:
            there = {each.run for each in self._presence.there(now)}
            has_quorum = has_quorum and not election.is_refused and (is_over or there <= election.answered)
            is_over = now - election.began >= 2 * self.rules.timing.window
        if has_quorum and not is_over:
            self._go_on(election, now)
        elif is_over or (self.rules.waits_for_all and election.is_refused):
            self._election = None

    def _go_on(self, election: _Election, now: float) -> None:
        is_own = election.is_vote and election.ballot == self._promised
        if election.ballot <= self._promised and not is_own:  # it has voted for another one meanwhile
            self._election = None
            return
        if not election.is_vote:
            self._promised, self.leader = election.ballot, ""
            self._election = _Election(election.ballot, election.founds, now, is_vote=True)
            self._poll_all(self._election)
            self._count(now)
            return
        self._election = None
        self._lead(election, now)

    def _lead(self, election: _Election, now: float) -> None:
        if election.founds:
            revision = revision_after(max(self.replica.last.revision, self.written), self._wall(), self._tag)
            self.replica.found(Position(election.ballot, revision))
            self._events.founded(1 + len(election.granted), len(self.replica.keys.kept))
        self.votes, self.is_fresh, self.leader = True, False, self.run
        self._led_until = now
        founders = frozenset(election.granted) if election.founds else frozenset()
        self._leading = Leading(
            election.ballot, self.replica, self.rules, self, founders, self._tag, self._clock, self._wall
        )
        self._events.leader_changed(self.node)
        self._leading.begin()
        for each in self._presence.there(now):
            self._leading.greet(each.run, each.address)

    def send(self, address: str, message: PeerMessage) -> None:
        """Implements LeaderEvents."""
        self._events.send(address, message)

    def applied(self) -> None:
        """Implements LeaderEvents."""
        self._events.applied()

    # ------------------------------------------------------------ time

    def _notice_pause(self, now: float) -> None:
        """After a pause of this process nothing is as it was."""
        if now - self._ticked_at >= self.rules.timing.silence:
            self._election = None
            if self._leading is not None:
                self._step_down(now)
        self._ticked_at = now

    def _step_down(self, now: float) -> None:
        if self._leading is not None:
            leading, self._leading = self._leading, None
            self.leader = ""
            self._led_until = self._heard_at = now
            self._elects_at = now + self._pause()
            leading.end()
            self._events.leader_changed("")

    def tick(self) -> None:
        """Look at the time: about every `PeerTiming.beat`."""
        now = self._clock()
        self._notice_pause(now)
        leading = self._leading
        if leading is not None:
            self._lead_on(leading, now)
            return
        if self.leader and now - self._heard_at >= self.rules.timing.silence:
            self.leader = ""
            self._elects_at = now + self._chance.uniform(0, self.rules.timing.silence)
            self._events.leader_changed("")
        self._ticks += 1
        if not self.leader or not self._ticks % 2:  # so that all know who is there when the leader has gone
            for address in sorted(self.addresses):
                self._events.send(address, Hello())
        if self.leader:
            return
        if self._election is not None:
            self._count(now)
        if self._election is None and now >= self._elects_at:
            self._stand(now)

    def _lead_on(self, leading: Leading, now: float) -> None:
        if not leading.in_contact(now):
            self._step_down(now)
            return
        self._led_until = now
        there = {each.address for each in self._presence.there(now)}
        for address in [each for each in self._presence.others if each not in there]:
            self._events.send(address, Hello())
        leading.tick(now)
