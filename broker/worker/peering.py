"""Connects the links to siblings (`zmq_mesh.contract.LinkEvents`) with the router: events become calls of the router,
and a tick's entries for siblings are submitted to the links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from leveldb_store.format import link_schema, schema
from pyx.core import counters as count
from pyx.core.peer import Peer
from pyx.core.work import STEP, spend
from pyx.delivery.batches import Batches
from zmq_mesh.contract import WHOLE_BATCH
from zmq_mesh.envelope import OLDEST_VERSION, VERSION, Refusal

if TYPE_CHECKING:
    from broker.clients.retaining import Retaining
    from broker.context.context import Context
    from broker.replay.opening import Opening
    from broker.replay.replaying import Replaying
    from broker.worker.sibling_messages import SiblingMessages
    from pyx.delivery.router import Router
    from pyx.matching.interest import WholeInterest
    from zmq_mesh.contract import Undelivered
    from zmq_mesh.interest import Change

__all__ = ["Peering"]

_CHOOSE_AGAIN = (Refusal.NO_MEMBER, Refusal.OFFLINE)
_HEARD_SECONDS = 5.0
"""Time that a new worker waits to hear from all siblings which members their share groups have."""


def _apply(router: Router, peer: Peer, change: Change) -> None:
    text, group, members, _, online, full, member, since = change
    if member:
        if group is None:
            raise ValueError(f"a member of no group of the filter {text!r}")
        router.siblings.set_member(peer, text, group, member, members > 0, since)
    else:
        router.siblings.set_interest(peer, text, members, group, online, full)


class _Batch:
    """A batch not completely taken: its remaining entries."""

    __slots__ = (
        "after", "at", "parts", "payloads", "peer", "place", "position", "refused", "sequence", "size", "taken", "used",
    )  # fmt: skip

    def __init__(
        self, peer: Peer, volatile: memoryview | None, sequenced: memoryview | None, payloads: list[Any], sequence: int
    ) -> None:
        self.peer = peer
        self.parts: list[tuple[bool, memoryview]] = []
        """(is it sequenced, its entries), reversed: the next part is last."""
        if sequenced is not None:
            self.parts.append((True, sequenced))
        if volatile is not None:
            self.parts.append((False, volatile))
        self.payloads = payloads
        self.used = 0
        """Payloads."""
        self.at = self.position = 0
        """Position in the next part: bytes, and entries."""
        self.taken = 0
        """Number of entries of the sequenced part that an earlier worker has taken."""
        self.refused: list[tuple[int, int]] = []
        """Refused entries of the sequenced part."""
        self.sequence = sequence
        self.place: tuple[int, int] | None = None
        """(stream, number) in the store; None: the store has nothing of it."""
        self.size = sum(len(part) for _, part in self.parts) + sum(len(each) for each in payloads)
        self.after: list[Callable[[], None]] = []
        """To be called when it has been taken."""


class Peering:
    """Implements `zmq_mesh.contract.LinkEvents` for one node. Every method runs once per batch or more rarely."""

    def __init__(
        self,
        context: Context,
        sibling_messages: SiblingMessages,
        retaining: Retaining,
        replaying: Replaying,
        opening: Opening,
    ) -> None:
        self._context = context
        self._router = context.router
        self._row = context.counters
        self._sibling_messages = sibling_messages
        self._retaining = retaining
        self._replaying = replaying
        self._opening = opening
        self.changed: Callable[[], None] = lambda: None
        """Called when a sibling becomes ready, away or gone."""
        self._whole_interest: dict[int, WholeInterest] = {}
        """By peer: interest snapshots of which parts are missing."""
        self._keeps: bool = context.store.keeps
        self._refused: dict[int, deque[int]] = {}
        """By peer: numbers of batches whose refusals are stored."""
        self.unheard = set(context.siblings)
        """Siblings whose interest is not known since this worker began."""
        self.when_all_heard: Callable[[], None] = lambda: None
        """Called when there are none any more."""
        self._early: list[tuple[Peer, Undelivered, list[tuple[int, int]]]] = []
        """Calls of `refused` postponed meanwhile."""
        self._is_late = False
        """Whether they are not postponed any more."""
        router = context.router
        keys = {peer: schema.peer_key(peer) for peer in context.siblings}
        self.batches = Batches(router.state, router.peers, router.siblings, router.journal, keys, self)
        self.carries_rails = False
        """Whether siblings have links with other hosts."""
        self.numbers: dict[Peer, Peer] = {}
        """By place of a rail: the number of that peer, by which the store knows it."""
        self._waiting: dict[int, deque[_Batch]] = self.batches.waiting
        """By peer: a batch that is taken in pieces, and those behind it."""
        self.batch, self.forward, self.hold = self.batches.batch, self.batches.forward, self.batches.hold
        self.commit = self.batches.commit
        self.acknowledged, self.interest_taken = router.peers.peer_acknowledged, router.peers.peer_took_interest

    def later(
        self,
        peer: Peer,
        volatile: memoryview | None,
        sequenced: memoryview | None,
        payloads: list[Any],
        sequence: int,
        used: int = 0,
        left: tuple[int, int] = (0, 0),
        refused: list[tuple[int, int]] | None = None,
    ) -> None:
        """Take the rest of a batch in pieces, behind the batches of this peer that wait already."""
        self._wait(_Batch(peer, volatile, sequenced, payloads, sequence), used, left, refused)

    def store_refusals(self, peer: Peer, place: tuple[int, int], refused: list[tuple[int, int]]) -> None:
        """Store refused entries of a batch, which the peer may not know yet."""
        number = place[1]
        record = link_schema.encode_refusals(refused)
        self._router.journal.put_record(self._refusals_key(peer, number), record, waited=False)
        self._refused.setdefault(peer, deque()).append(number)

    # ------------------------------------------------------------ batches in pieces

    def began(self, peer: Peer, taken: link_schema.PeerPosition) -> None:
        """At the start: the store has the first entries of the batch after this one."""
        self.batches.begun[peer] = taken

    def _wait(
        self,
        batch: _Batch,
        used: int = 0,
        left: tuple[int, int] = (0, 0),
        refused: list[tuple[int, int]] | None = None,
    ) -> None:
        batch.used, (batch.at, batch.position), batch.refused = used, left, refused or []
        if batch.sequence and self._keeps:
            batch.place = self._context.links[batch.peer].position(batch.sequence)  # the link may restart meanwhile
            begun = self.batches.begun.pop(batch.peer, None)
            if begun is not None and (begun.stream, begun.number + 1) == batch.place:
                batch.taken, batch.refused = begun.taken, list(begun.refused)
        self.batches.waiting_bytes += batch.size
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
        batch = waiting.popleft()
        self.batches.waiting_bytes -= batch.size
        if not waiting:
            del self._waiting[peer]
        spend(len(batch.after) * STEP)
        for each in batch.after:
            try:
                each()
            except Exception as error:  # noqa: BLE001  not of the next batch, which waits
                self._context.defect(None, error)

    def when_taken(self, call: Callable[[], None]) -> None:
        """Call it when all batches received until now have been taken, from whatever sibling; at once if they have."""
        last = [waiting[-1] for waiting in self._waiting.values()]
        left = len(last)

        def taken() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                call()

        for batch in last:
            batch.after.append(taken)
        if not last:
            call()

    def malformed(self, error: Exception) -> None:
        """Report and count something that a sibling has said and that cannot be read."""
        if self.batches.together is not None:
            self.batches.together.malformed += 1
        self._context.defect(None, error)

    def _failed(self, peer: Peer, error: Exception) -> None:
        """Drop the rest of a failed batch, which would fail again; the other batches go on."""
        self.malformed(error)
        batch = self._waiting[peer][0]
        if batch.sequence:
            self.batches.taken(batch.peer, batch.sequence, batch.refused, batch.place)
        self._end_batch(peer)
        if peer in self._waiting:
            self._go_on(peer)

    def _take_piece(self, batch: _Batch, until: int) -> bool:
        """Take a piece. Return False if some of it is left."""
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
                self.drop(count.DROPPED_NO_MEMBER, len(refused))
            if left is not None:
                batch.at, batch.position = left
                self._note_entries(batch)
                return False
            batch.parts.pop()
            batch.at = batch.position = 0
        if batch.sequence:
            self.batches.taken(batch.peer, batch.sequence, batch.refused, batch.place)
        return True

    def _note_entries(self, batch: _Batch) -> None:
        """Store the number of entries taken, together with their messages."""
        if batch.place is None or not batch.position or not batch.parts[-1][0]:
            return
        stream, number = batch.place
        record = link_schema.encode_peer(stream, number - 1, batch.position, batch.refused)
        key = schema.peer_key(self.numbers.get(batch.peer, batch.peer))
        self._router.journal.put_record(key, record, waited=False)

    def _refusals_key(self, peer: Peer, number: int) -> bytes:
        return schema.refusals_key(self.numbers.get(peer, peer), number)

    # ------------------------------------------------------------ acks

    def refusals_kept(self, peer: Peer, numbers: list[int]) -> None:
        """At the start: the store has refusals of these batches, in order."""
        self._refused[peer] = deque(numbers)

    def refusals_known(self, peer: Peer, number: int) -> None:
        """Delete stored refusals up to this number: the peer knows them."""
        numbers = self._refused.get(peer)
        while numbers and numbers[0] <= number:
            self._router.journal.delete_record(self._refusals_key(peer, numbers.popleft()), waited=False)

    def refused(self, peer: Peer, batch: Undelivered, refusals: Sequence[tuple[int, int]]) -> None:
        """Handle entries that the peer refused, or (position WHOLE_BATCH) a whole batch refused because the hand-off
        log is full. Messages of share groups go to another member.
        """
        if refusals[0][0] == WHOLE_BATCH:
            lost = self._again(peer, batch)
        else:
            again = [each for each in refusals if each[1] in _CHOOSE_AGAIN]
            lost = len(refusals) - len(again)
            # of a former worker: no publisher waits
            if again and self.unheard and not self._is_late and batch.ticket < 0:
                if not self._early:
                    self._context.call_later(_HEARD_SECONDS, self._all_heard)
                self._early.append((peer, batch, again))
            elif again:
                self._choose_again(peer, batch, again)
        if lost:
            self.drop(count.DROPPED_PEER_LOST, lost)
            self._context.log.warning("peer_refused", peer=peer, messages=lost, reason=refusals[-1][1])

    def _wait_for_successor(self, peer: Peer) -> None:
        """Let SUBACKs wait for a sibling whose worker has ended: hosts learn over its rails alone what it is told."""
        self._router.peers.peer_answered(peer)

        def enough() -> None:
            if not self._context.is_ready(peer):
                self._router.peers.peer_away(peer)

        self._context.call_later(self._context.settings.limits.link_silence_seconds_max, enough)

    def _choose_again(self, peer: Peer, batch: Undelivered, refusals: list[tuple[int, int]]) -> None:
        part, payloads = memoryview(batch.part), list(batch.payloads)
        try:
            self._router.handing_on.choose_again(peer, max(batch.ticket, 0), part, payloads, refusals)
        except Exception as error:  # noqa: BLE001  else the refusals would be repeated, and come here, for ever
            self.malformed(error)

    def _all_heard(self) -> None:
        """Wait no longer for all siblings with the refusals that have come."""
        self._is_late = True
        early, self._early = self._early, []
        for peer, batch, refusals in early:
            self._choose_again(peer, batch, refusals)
        if not self.unheard:
            self.when_all_heard()

    def _again(self, peer: Peer, batch: Undelivered) -> int:
        """Choose another member for messages of share groups; return the number of copies without one."""
        part, payloads = memoryview(batch.part), list(batch.payloads)
        return self._router.handing_on.choose_again_lost(peer, max(batch.ticket, 0), part, payloads, batch.sent)

    def drop(self, reason: int, copies: int) -> None:
        """Count copies that nobody gets. They were never counted as matched, so they are now, to keep the sum right."""
        self._row.add(count.MATCHED, copies)
        self._row.add(reason, copies)

    def lost(self, peer: Peer, batches: list[Undelivered], ticket: int) -> None:
        """Handle batches for a worker that died (memory store). Publishers' acks wait for the members chosen
        instead.
        """
        lost = sum(self._again(peer, batch) for batch in batches)
        if lost:
            self.drop(count.DROPPED_PEER_LOST, lost)
            self._context.log.warning("peer_lost", peer=peer, messages=lost)
        self._router.peers.peer_acknowledged(peer, ticket)

    def interest(self, peer: Peer, changes: list[Change]) -> None:
        """Apply changed interest of a peer: its SUBACKs wait until we confirm."""
        self.batches.interest_came = True
        router = self._router
        spend(len(changes) * STEP)
        for change in changes:
            try:
                _apply(router, peer, change)
            except Exception as error:  # noqa: BLE001  of this change alone: the others count
                self.malformed(error)

    def interest_snapshot(self, peer: Peer, entries: list[Change], first: bool, last: bool) -> None:
        """Apply a part of the peer's complete interest. After the last part, filters not named are forgotten."""
        if first:
            self._whole_interest[peer] = self._router.siblings.begin_interest(peer)
        self.interest(peer, entries)
        if last:
            self._forget(self._whole_interest.pop(peer))
            if self.unheard:
                self.unheard.discard(peer)
                if not self.unheard:
                    self._all_heard()

    def forget_interest(self, peer: Peer, then: Callable[[], None] = lambda: None) -> None:
        """Forget what a peer wanted whose sessions are gone with it, and call `then`."""
        self.batches.submit_now(peer)  # so that this tick's entries are reported as lost together with the rest
        self._forget(self._router.siblings.begin_interest(peer), then)  # `then` may free its place at once

    def _forget(self, whole: WholeInterest, then: Callable[[], None] = lambda: None) -> None:
        """Forget the filters not named: some now, the rest in pieces."""
        self._context.in_pieces(self._forget_rest(whole, then))

    def _forget_rest(self, whole: WholeInterest, then: Callable[[], None]) -> Iterator[None]:
        while self._router.siblings.forget_unnamed(whole):
            yield
        then()

    def answered(self, peer: Peer) -> None:
        """Let SUBACKs wait for this peer from now on: it may serve by our present interest."""
        self._router.peers.peer_answered(peer)

    def ready(self, peer: Peer) -> None:
        """Note that the peer is heard and its interest is complete here."""
        self._router.peers.peer_live(peer, True)
        self._context.log.debug("peer_ready", peer=peer)
        self._sibling_messages.greet(peer)
        self._retaining.peer_ready(peer)
        self._replaying.peer_ready(peer)
        self.changed()

    def away(self, peer: Peer) -> None:
        """Note that the peer is stopped or stalled: SUBACKs do not wait for it; its messages are logged for it."""
        self._context.log.warning("peer_away", peer=peer)
        self._row.add(count.PEERS_AWAY)
        self._router.peers.peer_away(peer)
        self._router.back_pressure.forget_holds(peer)
        self._opening.peer_away(peer)
        self._retaining.peer_away(peer)
        self.changed()

    def unconfirmed(self, peer: Peer) -> None:
        """Send the peer everything until its interest is confirmed: it may have grown while this worker was paused."""
        self._router.peers.peer_unsure(peer)

    def incompatible(self, peer: Peer, oldest: int, newest: int) -> None:
        """Log that a peer is of another release with an incompatible protocol."""
        spoken = f"{OLDEST_VERSION} to {VERSION}"
        self._context.log.error("peer_incompatible", peer=peer, versions=f"{oldest} to {newest}", spoken_here=spoken)

    def gone(self, peer: Peer, incarnation: int) -> None:
        """Note that an incarnation is dead. With the memory store its sessions and their interest are gone; with a
        store on disk its successor has them: until then their messages go to the hand-off log.
        """
        self._context.log.warning("peer_gone", peer=peer)
        self._router.peers.peer_live(peer, False)
        if self.carries_rails:
            self._wait_for_successor(peer)
        self._router.back_pressure.forget_holds(peer)
        self._opening.peer_away(peer)
        self._retaining.peer_away(peer)
        self._replaying.peer_gone(peer)
        if not self._keeps:
            self.forget_interest(peer)
        self.changed()
