"""What the links to the siblings tell this worker (`zmq_mesh.links.Events`), turned into calls of the router; and what
a tick has for the siblings, given to the links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from leveldb_store.format import link_schema, schema
from pyx.core import counters as count
from pyx.core.peer import Peer
from pyx.core.work import STEP, callback, spend
from zmq_mesh.contract import WHOLE_BATCH
from zmq_mesh.envelope import OLDEST_VERSION, VERSION, Refusal

if TYPE_CHECKING:
    from broker.clients.retaining import Retaining
    from broker.context.context import Context
    from broker.replay.opening import Opening
    from broker.replay.replaying import Replaying
    from broker.worker.words import Words
    from pyx.delivery.router import Router
    from pyx.matching.interest import WholeInterest
    from zmq_mesh.contract import Undelivered
    from zmq_mesh.interest import Change

__all__ = ["Peering"]

_CHOOSE_AGAIN = (Refusal.NO_MEMBER, Refusal.OFFLINE)
_REFUSED_MAX = 0xFFFF
_WAITING_BYTES_MAX = 1 << 20
_HEARD_SECONDS = 5.0
"""So long a worker that has just started waits to hear from all siblings which members their share groups have."""


def _apply(router: Router, peer: Peer, change: Change) -> None:
    text, group, members, _, online, full, member, since = change
    if member:
        assert group is not None
        router.siblings.set_member(peer, text, group, member, members > 0, since)
    else:
        router.siblings.set_interest(peer, text, members, group, online, full)


class _Batch:
    """One that was not taken in whole: what is left of it."""

    __slots__ = ("at", "parts", "payloads", "peer", "place", "position", "refused", "sequence", "size", "taken", "used")

    def __init__(
        self, peer: Peer, volatile: memoryview | None, sequenced: memoryview | None, payloads: list[Any], sequence: int
    ) -> None:
        self.peer = peer
        self.parts: list[tuple[bool, memoryview]] = []
        """(is it sequenced, its entries), the next one last."""
        if sequenced is not None:
            self.parts.append((True, sequenced))
        if volatile is not None:
            self.parts.append((False, volatile))
        self.payloads = payloads
        self.used = 0
        """Payloads."""
        self.at = self.position = 0
        """Of the next part: bytes, and entries."""
        self.taken = 0
        """Entries of the sequenced part that an earlier worker has taken."""
        self.refused: list[tuple[int, int]] = []
        """Of the sequenced part."""
        self.sequence = sequence
        self.place: tuple[int, int] | None = None
        """(stream, number) as the store has it; None: it has none of it."""
        self.size = sum(len(part) for _, part in self.parts) + sum(len(each) for each in payloads)


class Peering:
    """Implements `zmq_mesh.links.Events` for one node. Everything here runs once per batch or more rarely."""

    def __init__(
        self, context: Context, words: Words, retaining: Retaining, replaying: Replaying, opening: Opening
    ) -> None:
        self._context = context
        self._router = context.router
        self._row = context.counters
        self._words = words
        self._retaining = retaining
        self._replaying = replaying
        self._opening = opening
        self.flush: Callable[[], None] = lambda: None
        """Sends what the links were given; the worker delays it to gather more."""
        self.changed: Callable[[], None] = lambda: None
        """Called when a sibling is ready, away or gone."""
        self._commits: list[tuple[Peer, int, Any]] = []
        self._told_anew: dict[int, WholeInterest] = {}
        """By peer: of which not all parts have come."""
        self._keeps: bool = context.store.keeps
        self._refused: dict[int, deque[int]] = {}
        """By peer: numbers of batches of which the store has refusals."""
        self._interest_came = False
        self._unheard = set(context.siblings)
        """Siblings whose interest is not known since this worker began; empty as well when it waits no longer."""
        self._early: list[tuple[Peer, Undelivered, list[tuple[int, int]]]] = []
        """What `refused` was told meanwhile."""
        self._waiting: dict[int, deque[_Batch]] = {}
        """By peer: a batch that is taken in pieces, and those behind it."""
        self._waiting_bytes = 0
        self._begun: dict[int, link_schema.PeerPosition] = {}
        """By peer: of a batch an earlier worker has taken the first entries."""

    @callback("mesh")
    def batch(
        self, peer: Peer, volatile: memoryview | None, sequenced: memoryview | None, payloads: list[Any], sequence: int
    ) -> None:
        """Route a batch. Its ack leaves when the tick's log is committed (`commit`). Where that is much work it is done
        in pieces, and those that come behind it wait.
        """
        router = self._router
        used = 0
        self._row.add(count.MESH_BATCHES_RECEIVED)
        if (self._waiting and peer in self._waiting) or (self._begun and sequence and peer in self._begun):
            self._wait(_Batch(peer, volatile, sequenced, payloads, sequence))
            return
        refused = left = None
        if volatile is not None:
            used, refused, left = router.siblings.ingest(peer, volatile, payloads, 0)
            if refused:  # QoS 0 is not chosen again
                self._drop(count.DROPPED_NO_MEMBER, len(refused))
            refused = None
            if left is not None:
                self._wait(_Batch(peer, volatile, sequenced, payloads, sequence), used, left)
                return
        if sequenced is not None:
            used, refused, left = router.siblings.ingest(peer, sequenced, payloads, used)
            if left is not None:
                self._wait(_Batch(peer, None, sequenced, payloads, sequence), used, left, refused)
                return
        if sequence:
            self._taken(peer, sequence, refused)

    def _taken(
        self, peer: Peer, sequence: int, refused: list[tuple[int, int]] | None, place: tuple[int, int] | None = None
    ) -> None:
        """All of the batch was. `place`: what the link has said of the sequence, if that was asked before."""
        if refused and len(refused) > _REFUSED_MAX:  # more than a message can say; only of a log from earlier releases
            self._drop(count.DROPPED_NO_MEMBER, len(refused) - _REFUSED_MAX)
            del refused[_REFUSED_MAX:]
        self._commits.append((peer, sequence, refused or ()))
        if self._keeps:
            self._record_position(peer, place or self._context.links[peer].position(sequence), refused or [])

    def _record_position(self, peer: Peer, place: tuple[int, int], refused: list[tuple[int, int]]) -> None:
        # stored together with what the batch brought: a worker that comes back takes neither again nor misses any
        stream, number = place
        self._router.journal.put_record(schema.peer_key(peer), link_schema.encode_peer(stream, number), waited=False)
        if refused:
            record = link_schema.encode_refusals(refused)
            self._router.journal.put_record(schema.refusals_key(peer, number), record, waited=False)
            self._refused.setdefault(peer, deque()).append(number)

    # ------------------------------------------------------------ batches in pieces

    def is_full(self) -> bool:
        """Whether so much has come, and is not taken in whole, that siblings are not read."""
        return self._waiting_bytes >= _WAITING_BYTES_MAX

    def began(self, peer: Peer, taken: link_schema.PeerPosition) -> None:
        """At the start: of the batch behind this one the store has the first entries."""
        self._begun[peer] = taken

    def _wait(
        self,
        batch: _Batch,
        used: int = 0,
        left: tuple[int, int] = (0, 0),
        refused: list[tuple[int, int]] | None = None,
    ) -> None:
        batch.used, (batch.at, batch.position), batch.refused = used, left, refused or []
        if batch.sequence and self._keeps:
            batch.place = self._context.links[batch.peer].position(batch.sequence)  # the link may start anew meanwhile
            begun = self._begun.pop(batch.peer, None)
            if begun is not None and (begun.stream, begun.number + 1) == batch.place:
                batch.taken, batch.refused = begun.taken, list(begun.refused)
        self._waiting_bytes += batch.size
        waiting = self._waiting.get(batch.peer)
        if waiting is not None:
            waiting.append(batch)
            return
        self._waiting[batch.peer] = deque((batch,))
        self._note_entries(batch)
        self._go_on(batch.peer)

    def _go_on(self, peer: Peer) -> None:
        self._context.piecework.add(self._rest(peer), lambda error: self._failed(peer, error))

    def _rest(self, peer: Peer) -> Iterator[None]:
        waiting = self._waiting[peer]
        until = self._router.state.turn_ends
        while waiting:
            while not self._take_piece(waiting[0], until):
                yield
                until = self._router.state.turn_ends
            self._end_batch(peer)

    def _end_batch(self, peer: Peer) -> None:
        waiting = self._waiting[peer]
        self._waiting_bytes -= waiting.popleft().size
        if not waiting:
            del self._waiting[peer]

    def _failed(self, peer: Peer, error: Exception) -> None:
        """Of this batch no more is taken; the others are not to blame."""
        self._context.defect(None, error)
        self._end_batch(peer)
        if peer in self._waiting:
            self._go_on(peer)

    def _take_piece(self, batch: _Batch, until: int) -> bool:
        """False: some of it is left."""
        while batch.parts:
            if self._router.state.worked >= until:
                return False
            is_sequenced, part = batch.parts[-1]
            batch.used, refused, left = self._router.siblings.ingest(
                batch.peer, part, batch.payloads, batch.used, batch.at, batch.position, batch.taken, until
            )
            if is_sequenced:
                batch.refused += refused or ()
            elif refused:
                self._drop(count.DROPPED_NO_MEMBER, len(refused))
            if left is not None:
                batch.at, batch.position = left
                self._note_entries(batch)
                return False
            batch.parts.pop()
            batch.at = batch.position = 0
        if batch.sequence:
            self._taken(batch.peer, batch.sequence, batch.refused, batch.place)
        return True

    def _note_entries(self, batch: _Batch) -> None:
        """As the store is to have it, together with what they brought."""
        if batch.place is None or not batch.position or not batch.parts[-1][0]:
            return
        stream, number = batch.place
        record = link_schema.encode_peer(stream, number - 1, batch.position, batch.refused)
        self._router.journal.put_record(schema.peer_key(batch.peer), record, waited=False)

    # ------------------------------------------------------------ what siblings get

    def forward(self) -> None:
        """End of a tick with something for siblings: give it to the links, then let them send."""
        router = self._router
        if router.is_laying:  # some of it may have to be stored first: when that can be, all of it leaves
            router.peers.interest_due = True
            return
        dirty = router.peers.dirty_peers
        for peer in self._context.siblings:
            if dirty >> peer & 1:
                self._submit(peer)
        router.peers.interest_due = False
        self.flush()

    def hold(self, peers: int) -> None:
        """What these siblings (a bit for each) get of this tick must not be lost with this worker: it is stored with
        the tick, and leaves after that.
        """
        for peer in self._context.siblings:
            if peers >> peer & 1:
                self._submit(peer, hold=True)

    def _submit(self, peer: Peer, hold: bool = False) -> None:
        """Give the link what the tick has for that sibling."""
        link = self._context.links.get(peer)
        while (taken := self._router.peers.take(peer)) is not None and link is not None:
            volatile, sequenced, payloads_volatile, payloads_sequenced, tick = taken
            link.submit(
                volatile,
                sequenced,
                payloads_volatile,
                payloads_sequenced,
                tick,
                volatile.entry_count if volatile is not None else 0,
                sequenced.entry_count if sequenced is not None else 0,
                hold,
            )
        if link is not None and link.full:
            self._router.peers.peer_full(peer, True)

    # ------------------------------------------------------------ acks

    def refusals_kept(self, peer: Peer, numbers: list[int]) -> None:
        """At the start: of these batches the store has refusals, rising."""
        self._refused[peer] = deque(numbers)

    def refusals_known(self, peer: Peer, number: int) -> None:
        """The peer knows of all up to this number: they need not be kept."""
        numbers = self._refused.get(peer)
        while numbers and numbers[0] <= number:
            self._router.journal.delete_record(schema.refusals_key(peer, numbers.popleft()), waited=False)

    def commit(self) -> bool:
        """The tick is committed: say so for its batches, when the store has them. True: some sibling waits for our
        word now.
        """
        owed, self._interest_came = self._interest_came, False
        if not self._commits:
            return owed
        commits, self._commits = self._commits, []
        if self._keeps:
            self._router.journal.when_durable(lambda: self._say(commits))
            return owed
        self._say(commits)
        return True

    def _say(self, commits: list[tuple[Peer, int, Any]]) -> None:
        links = self._context.links
        for peer, sequence, refused in commits:
            links[peer].commit(sequence, refused)
        if self._keeps:
            self._router.peers.interest_due = True  # the links are flushed with this tick

    def acknowledged(self, peer: Peer, ticket: int) -> None:
        """Acks of publishers that waited for this peer may leave."""
        self._router.peers.peer_acknowledged(peer, ticket)

    def refused(self, peer: Peer, batch: Undelivered, refusals: Sequence[tuple[int, int]]) -> None:
        """Entries were not taken, or (position WHOLE_BATCH) a whole batch, because the hand-off log is full. What was
        for a share group goes to another member.
        """
        if refusals[0][0] == WHOLE_BATCH:
            lost = self._again(peer, batch)
        else:
            again = [each for each in refusals if each[1] in _CHOOSE_AGAIN]
            lost = len(refusals) - len(again)
            if again and self._unheard and batch.ticket < 0:  # of a former worker: no publisher waits
                if not self._early:
                    self._context.call_later(_HEARD_SECONDS, self._all_heard)
                self._early.append((peer, batch, again))
            elif again:
                self._choose_again(peer, batch, again)
        if lost:
            self._drop(count.DROPPED_PEER_LOST, lost)
            self._context.log.warning("peer_refused", peer=peer, messages=lost, reason=refusals[-1][1])

    def _choose_again(self, peer: Peer, batch: Undelivered, refusals: list[tuple[int, int]]) -> None:
        part, payloads = memoryview(batch.part), list(batch.payloads)
        self._router.handing_on.choose_again(peer, max(batch.ticket, 0), part, payloads, refusals)

    def _all_heard(self) -> None:
        self._unheard.clear()
        early, self._early = self._early, []
        for peer, batch, refusals in early:
            self._choose_again(peer, batch, refusals)

    def _again(self, peer: Peer, batch: Undelivered) -> int:
        """Choose another member for shares of a group. -> how many copies nobody gets."""
        part, payloads = memoryview(batch.part), list(batch.payloads)
        return self._router.handing_on.choose_again_lost(peer, max(batch.ticket, 0), part, payloads, batch.sent)

    def _drop(self, reason: int, copies: int) -> None:
        # nobody matched them, so they are born here, for the sum to be right
        self._row.add(count.MATCHED, copies)
        self._row.add(reason, copies)

    def lost(self, peer: Peer, batches: list[Undelivered], ticket: int) -> None:
        """What waited for a worker that died (memory store). Publishers' acks wait for those that are chosen
        instead.
        """
        lost = sum(self._again(peer, batch) for batch in batches)
        if lost:
            self._drop(count.DROPPED_PEER_LOST, lost)
            self._context.log.warning("peer_lost", peer=peer, messages=lost)
        self._router.peers.peer_acknowledged(peer, ticket)

    def interest(self, peer: Peer, changes: list[Change]) -> None:
        """The peer wants, or no longer wants, filters: its SUBACKs wait until we say that we know."""
        self._interest_came = True
        router = self._router
        spend(len(changes) * STEP)
        for change in changes:
            _apply(router, peer, change)

    def interest_snapshot(self, peer: Peer, entries: list[Change], first: bool, last: bool) -> None:
        """All that the peer wants, in parts. What it does not want any more is forgotten after the last one."""
        if first:
            self._told_anew[peer] = self._router.siblings.begin_interest(peer)
        self.interest(peer, entries)
        if last:
            self._forget(self._told_anew.pop(peer))
            if self._unheard:
                self._unheard.discard(peer)
                if not self._unheard:
                    self._all_heard()

    def _forget(self, whole: WholeInterest) -> None:
        """What was not named in it: some now, the rest in pieces."""
        if self._router.siblings.forget_unnamed(whole):
            self._context.piecework.add(self._forget_rest(whole), lambda error: self._context.defect(None, error))

    def _forget_rest(self, whole: WholeInterest) -> Iterator[None]:
        while self._router.siblings.forget_unnamed(whole):
            yield

    def interest_taken(self, peer: Peer, number: int) -> None:
        """SUBACKs that waited for this peer may leave."""
        self._router.peers.peer_took_interest(peer, number)

    def answered(self, peer: Peer) -> None:
        """The peer may serve by our interest as of now: SUBACKs wait for it."""
        self._router.peers.peer_answered(peer)

    def ready(self, peer: Peer) -> None:
        """The peer is heard and its interest is complete here."""
        self._router.peers.peer_live(peer, True)
        self._context.log.debug("peer_ready", peer=peer)
        self._words.greet(peer)
        self._retaining.peer_ready(peer)
        self._replaying.peer_ready(peer)
        self.changed()

    def away(self, peer: Peer) -> None:
        """Stopped or stalled: SUBACKs do not wait for it; its interest stays, what it should get is logged for it."""
        self._context.log.warning("peer_away", peer=peer)
        self._row.add(count.PEERS_AWAY)
        self._router.peers.peer_away(peer)
        self._router.back_pressure.forget_holds(peer)
        self._opening.peer_away(peer)
        self._retaining.peer_away(peer)
        self.changed()

    def unconfirmed(self, peer: Peer) -> None:
        """What it wants may have grown while this worker was paused: it gets everything until it has told us."""
        self._router.peers.peer_unsure(peer)

    def incompatible(self, peer: Peer, oldest: int, newest: int) -> None:
        """Another release, with which this one cannot speak."""
        spoken = f"{OLDEST_VERSION} to {VERSION}"
        self._context.log.error("peer_incompatible", peer=peer, versions=f"{oldest} to {newest}", spoken_here=spoken)

    def gone(self, peer: Peer, incarnation: int) -> None:
        """That incarnation is dead; with the memory store its sessions, and with them its interest, are gone. With a
        store that keeps its successor has them: what they want until then goes to the hand-off log.
        """
        self._context.log.warning("peer_gone", peer=peer)
        self._router.peers.peer_live(peer, False)
        self._router.back_pressure.forget_holds(peer)
        self._opening.peer_away(peer)
        self._retaining.peer_away(peer)
        self._replaying.peer_gone(peer)
        if not self._keeps:
            self._forget(self._router.siblings.begin_interest(peer))
            self._submit(peer)  # what this tick has for it is told as lost together with the rest
        self.changed()
