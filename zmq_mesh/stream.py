"""The stream to one peer: its numbered messages, which are kept until the peer has acknowledged them.

Accepted is not delivered: a transport takes a message and may still lose it with its connection. So everything that
must not be lost has a number in the *stream* and is kept.

    kept:   | logged (peer was away, publishers acked) | sent, not acked | not sent |      one deque, one order
            ^ acknowledged + 1                                           ^ unsent from the right end

- Batches with a sequenced part (QoS >= 1, retained) and interest share one numbering; the receiver passes them on in
  order, without gap or duplicate.
- While a peer is away, kept and new batches are logged (bounded, publishers are acked at the next flush) and sent in
  order when it is back: until then everything queues behind them. After its return new batches queue behind
  the log too, but wait for the peer's own ack again.
- A log that outlives this worker has its entries stored, and entries that can be read back from there leave the memory.
  Without one, batches kept for a peer that is gone are `lost`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Final

from pyx.core.peer import Peer
from pyx.core.work import STEP, spend
from zmq_mesh import envelope
from zmq_mesh.contract import WHOLE_BATCH, HandoffLog, LinkEvents, LinkLimits, LinkTraffic, Payload, Undelivered
from zmq_mesh.envelope import BATCH, INTEREST, SEQUENCED, SKIP, U64, Buffer, Refusal

__all__ = ["Stream", "Unacknowledged"]

_U64_MASK: Final = (1 << 64) - 1
# After a restart the stream continues above every number that a former incarnation may have used without logging it: an
# incarnation is the time of its fork in us (shards.supervisor), and none uses so many numbers in a us. So they differ
# from those of its predecessor even if that was killed before its own reservation was stored.
NUMBERS_PER_MICROSECOND: Final = 1 << 10
# ... or, if the clock was set back, so far above what is stored.
RESTART_SKIP: Final = 1 << 32


class Unacknowledged:
    """One number of the stream, until it is acked. A SKIP may cover a range that ends with its number."""

    __slots__ = (
        "at",
        "entries",
        "flags",
        "frame",
        "kind",
        "lasts",
        "logged",
        "nbytes",
        "part",
        "payloads",
        "read",
        "sequence",
        "stored",
        "ticket",
        "unloaded",
        "unloading",
    )  # fmt: skip

    def __init__(
        self,
        sequence: int,
        part: Buffer,
        payloads: Sequence[Payload],
        nbytes: int,
        ticket: int,
        entries: int,
        at: float,
        kind: int = BATCH,
        flags: int = SEQUENCED,
    ) -> None:
        self.sequence = sequence
        self.part = part
        self.payloads = payloads
        self.nbytes = nbytes  # counted in the outbox or in the log; 0 for interest
        self.ticket = ticket  # -1 = not a batch, or its ticket is done already
        self.entries = entries  # -1 = counted on demand
        self.at = at
        self.kind = kind
        self.flags = flags
        self.frame = 0  # frame of the last transmission, 0 = never sent
        self.logged = False
        self.stored = False  # in the hand-off log, though it may be `sent, not acked` as well
        self.lasts = False  # it can be read back from there
        self.unloading = False  # it leaves the memory when it is stored
        self.unloaded = False  # part and payloads are only there, or with the peer
        self.read = False  # and were read back and sent: it counts in read_bytes until it is acked


class Stream:
    """The stream of one link. See `Link` for the arguments."""

    def __init__(
        self,
        peer: Peer,
        incarnation: int,
        events: LinkEvents,
        limits: LinkLimits,
        traffic: LinkTraffic,
        handoff: HandoffLog | None,
        now: float,
    ) -> None:
        self._peer = peer
        self._incarnation = incarnation
        self._events = events
        self._log_bytes_max = limits.handoff_log_bytes_max
        self._window_bytes_max = limits.peer_outbox_bytes_max // 8
        self._traffic = traffic
        self._handoff = handoff
        self.id = self._new_id(0) if handoff is None else handoff.stream
        self._ids = 0
        self.sequence = 0  # last number given out
        self.sent = 0  # highest number ever sent
        self.acknowledged = 0
        self.kept: deque[Unacknowledged] = deque()
        self.unsent = 0  # number of unsent items at the right end of kept
        self.holds: deque[int] = deque()  # numbers not stored yet: neither they nor later ones may be sent
        self.outbox_bytes = 0  # of batches that are kept and not logged
        self.handoff_bytes = 0
        self.loaded_bytes = 0  # of batches in memory
        self.read_bytes = 0  # read back from the hand-off log, sent and not acked
        self.just_read: tuple[int, Buffer, Sequence[Payload]] | None = None  # read back, and refused by the transport
        self.unloadable: list[Unacknowledged] = []  # to be unloaded once stored: handled at flush
        self.released = -1  # ticket whose batches are in the log: reported at flush
        self.done: list[Undelivered] = []  # reported as lost at flush
        self.over: list[Undelivered] = []  # refused by the full log: reported at flush
        if handoff is not None:
            self._restore(handoff, now)

    def _new_id(self, count: int) -> int:
        return ((self._incarnation * 0x9E3779B97F4A7C15 + count) & _U64_MASK) or 1

    @property
    def survives(self) -> bool:
        """Whether kept batches outlive this worker, and an incarnation of the peer."""
        return self._handoff is not None

    @property
    def cannot_store(self) -> bool:
        """Whether batches wait for a log that has failed."""
        return bool(self.holds) and self._handoff is not None and self._handoff.failed

    # ------------------------------------------------------------ adding

    def add(
        self, part: Buffer, payloads: list[Payload], nbytes: int, ticket: int, entries: int, now: float, hold: bool
    ) -> Unacknowledged:
        """Add a sequenced part for a peer that is there, to be sent now or later (`unsent`)."""
        self.sequence = sequence = self.sequence + 1
        kept = Unacknowledged(sequence, part, payloads, nbytes, ticket, entries, now)
        self.kept.append(kept)
        self.loaded_bytes += nbytes
        self.outbox_bytes += nbytes
        if hold:
            self._hold(kept)
        if self.loaded_bytes > self._window_bytes_max:
            self._put_behind()
        return kept

    def add_absent(
        self, part: Buffer, payloads: list[Payload], nbytes: int, ticket: int, entries: int, now: float, is_away: bool
    ) -> None:
        """Add a sequenced part for a peer that is away (log it), gone (log it if it survives), or has a full log."""
        if self._handoff is None and not is_away:
            entries = envelope.count_entries(part) if entries < 0 else entries
            self.done.append(Undelivered(ticket, part, payloads, entries, sent=False))
        elif not self._lasts and self.handoff_bytes + nbytes > self._log_bytes_max:
            entries = envelope.count_entries(part) if entries < 0 else entries
            self.over.append(Undelivered(ticket, part, payloads, entries, sent=False))
        else:
            self.sequence += 1
            item = Unacknowledged(self.sequence, part, payloads, nbytes, ticket, entries, now)
            self.kept.append(item)
            self.loaded_bytes += nbytes
            self.unsent += 1
            self._log(item)

    def add_interest(self, part: Buffer, flags: int, now: float) -> None:
        """Add an interest update, which is sent in order with the batches."""
        self.sequence += 1
        self.kept.append(Unacknowledged(self.sequence, part, (), 0, -1, 0, now, INTEREST, flags))
        self.unsent += 1

    # ------------------------------------------------------------ sending

    def next(self, most: int) -> list[Unacknowledged]:
        """Return the items to be sent next."""
        begin = len(self.kept) - self.unsent
        return list(islice(self.kept, begin, begin + most))

    def may_leave(self, item: Unacknowledged) -> bool:
        """Whether it may be sent: not before it is stored, if it must be, nor with much read back and not acked."""
        if self.holds and item.sequence >= self.holds[0]:
            return False
        return not item.unloaded or self.read_bytes < self._window_bytes_max

    def content(self, kept: Unacknowledged) -> tuple[Buffer, Sequence[Payload]]:
        """Return part and payloads of a batch."""
        if not kept.unloaded:
            return kept.part, kept.payloads
        assert self._handoff is not None
        if self.just_read is None or self.just_read[0] != kept.sequence:
            self.just_read = kept.sequence, *self._handoff.read(kept.sequence)
        return self.just_read[1:]

    def was_read(self, kept: Unacknowledged) -> None:
        """Note that the transport has taken a batch that `content` has read back."""
        kept.read = True
        self.read_bytes += kept.nbytes

    # ------------------------------------------------------------ acks

    def advance(self, committed: int) -> int:
        """Process the peer's cumulative ack. Return the highest ticket that is done by it; -1: none."""
        kept = self.kept
        ticket = -1
        while kept and kept[0].sequence <= committed:
            spend(STEP)
            item = kept.popleft()
            self._unload_one(item)
            if item.read:
                self.read_bytes -= item.nbytes
            if item.logged:
                self.handoff_bytes -= item.nbytes
            else:
                self.outbox_bytes -= item.nbytes
                if item.ticket >= 0:
                    ticket = item.ticket
        if self.unsent > len(kept):
            self.unsent = len(kept)
        self.acknowledged = committed
        if self._handoff is not None:
            self._handoff.trim(committed)
        return ticket

    @property
    def waits_for_room(self) -> bool:
        """Whether the next item must be read back, for which an ack may have made room."""
        return bool(self.unsent) and self._handoff is not None and self.kept[-self.unsent].unloaded

    def find(self, sequence: int) -> Unacknowledged | None:
        """Return the kept item that has, or covers, this number."""
        index = self._index(sequence)
        return self.kept[index] if index < len(self.kept) else None

    def _index(self, sequence: int) -> int:
        """Return the index in kept of the first number >= sequence. Only SKIPs make holes, so a guess mostly hits."""
        kept = self.kept
        if not kept:
            return 0
        guess = sequence - kept[0].sequence
        if 0 <= guess < len(kept) and kept[guess].sequence == sequence:
            return guess
        return next((i for i, item in enumerate(kept) if item.sequence >= sequence), len(kept))

    def misses(self, received: int, frames_seen: int) -> bool:
        """Whether the peer has already passed the last transmission of the item after `received`."""
        index = self._index(received + 1)
        return index < len(self.kept) - self.unsent and self.kept[index].frame <= frames_seen

    def go_back(self, received: int | None = None) -> None:
        """Mark everything after that number, or everything kept, as unsent."""
        index = 0 if received is None else self._index(received + 1)
        self.unsent = len(self.kept) - index
        spend(self.unsent * STEP // 4)
        for item in islice(self.kept, index, None):
            if item.read:
                item.read = False
                self.read_bytes -= item.nbytes

    # ------------------------------------------------------------ the hand-off log

    @property
    def _lasts(self) -> bool:
        return self._handoff is not None and self._handoff.lasts

    def _log(self, item: Unacknowledged) -> None:
        item.logged = True
        self.handoff_bytes += item.nbytes
        if item.ticket >= 0:
            self.released = item.ticket
        self._store(item)
        self._unload_when_stored(item)

    def log_all(self) -> None:
        """Log everything kept: the peer is away."""
        spend(len(self.kept) * STEP)
        for item in self.kept:
            if not item.logged and item.kind == BATCH:
                self.outbox_bytes -= item.nbytes
                self._log(item)

    def _store(self, item: Unacknowledged) -> None:
        if self._handoff is not None and not item.stored:
            item.stored = True
            item.lasts = self._handoff.append(item.sequence, item.part, list(item.payloads), item.entries)

    def _store_all(self) -> None:
        """Store everything that is not acked: if this worker dies, nothing of its log may be sent without its
        publishers' earlier messages.
        """
        earlier = takewhile(lambda each: not each.stored, reversed(self.kept))
        for each in reversed([each for each in earlier if each.kind == BATCH]):
            self._store(each)

    def _put_behind(self) -> None:
        """Let the peer read from the log, if there is one with room, because it is slower than its messages arrive. Its
        acks are waited for as before, and unacked batches count in the outbox as before.
        """
        if not self._lasts or self._handoff is None or self._handoff.full:
            return
        self._traffic.batches_behind += 1
        self._store_all()
        for each in takewhile(lambda each: not each.unloading, reversed(self.kept)):
            self._unload_when_stored(each)

    def _hold(self, item: Unacknowledged) -> None:
        assert self._handoff is not None
        self._store_all()
        self.holds.append(item.sequence)
        self._handoff.when_stored(lambda: self._let_go(item.sequence))

    def _let_go(self, sequence: int) -> None:
        """Release a batch that is stored: it is sent with the next flush."""
        while self.holds and self.holds[0] <= sequence:
            self.holds.popleft()

    def _unload_when_stored(self, item: Unacknowledged) -> None:
        if item.lasts and not item.unloading:
            item.unloading = True
            self.unloadable.append(item)

    def unload(self) -> None:
        """Unload batches in the hand-off log that can be read back, as soon as they are stored."""
        assert self._handoff is not None
        items, self.unloadable = self.unloadable, []

        def stored() -> None:
            for item in items:
                if not item.unloaded and item.entries < 0:
                    item.entries = envelope.count_entries(item.part)
                self._unload_one(item)

        self._handoff.when_stored(stored)

    def _unload_one(self, item: Unacknowledged) -> None:
        if not item.unloaded:
            item.part, item.payloads, item.unloaded = b"", (), True
            self.loaded_bytes -= item.nbytes

    def _restore(self, handoff: HandoffLog, now: float) -> None:
        """Take over the log of a former incarnation of this worker; numbers missing in it become SKIP."""
        at = handoff.acknowledged
        self.acknowledged = at
        for sequence, nbytes, entries in handoff.found():
            if sequence > at + 1:
                self._keep_skip(at + 1, sequence - 1, now)
            item = Unacknowledged(sequence, b"", (), nbytes, -1, entries, now)
            item.logged = item.stored = item.lasts = item.unloading = item.unloaded = True
            self.handoff_bytes += nbytes
            self.kept.append(item)
            at = sequence
        # An incarnation that died before any ack came may have used numbers that are not in the log.
        number, known = self._incarnation * NUMBERS_PER_MICROSECOND, max(at, handoff.reserved)
        handoff.reserve(number if number > known else known + RESTART_SKIP)
        self._keep_skip(at + 1, handoff.reserved, now)
        self.sequence = self.kept[-1].sequence
        self.unsent = len(self.kept)

    def begin_anew(self, advance: Callable[[int], object], committed: int) -> None:
        """Begin another stream, because the peer has numbers of this one that were lost here, and would be given out
        again. What this worker added is sent in the new one, and what the log has, unless the peer has `committed` it:
        it may have received some of that already.
        """
        assert self._handoff is not None
        if (done := min(committed, self._handoff.reserved)) > self.acknowledged:
            advance(done)
        self.id = self._handoff.renew()
        self.go_back()

    def _keep_skip(self, start: int, end: int, now: float) -> None:
        self.kept.append(Unacknowledged(end, U64.pack(start), (), 0, -1, 0, now, SKIP))

    # ------------------------------------------------------------ reports

    def end_incarnation(self) -> None:
        """Handle the death of the peer's incarnation: its successor gets the entries of a log, all else is lost."""
        spend(len(self.kept) * STEP)
        if self._handoff is not None:
            for item in self.kept:
                if item.kind == INTEREST:
                    item.kind, item.flags, item.part = SKIP, SEQUENCED, U64.pack(item.sequence)
                elif item.kind == BATCH and not item.logged:
                    self.outbox_bytes -= item.nbytes
                    self._log(item)
            self.go_back()
            return
        for item in self.kept:
            if item.kind == BATCH:
                entries = envelope.count_entries(item.part) if item.entries < 0 else item.entries
                self.done.append(Undelivered(item.ticket, item.part, item.payloads, entries, item.frame != 0))
        self.kept.clear()
        self.unsent = self.sequence = self.sent = self.acknowledged = 0
        self.outbox_bytes = self.handoff_bytes = self.loaded_bytes = 0
        self._ids += 1
        self.id = self._new_id(self._ids)

    def tell_done(self) -> None:
        """Report tickets that `add_absent` and the peer's end have left."""
        if self.over:
            over, self.over = self.over, []
            for batch in over:
                self._events.refused(self._peer, batch, [(WHOLE_BATCH, Refusal.HANDOFF_FULL)])
            self.released = max(self.released, over[-1].ticket)  # everything before it is in the log
        if self.done:
            done, self.done = self.done, []
            self.released = -1
            self._events.lost(self._peer, done, max(batch.ticket for batch in done))
        if self.released >= 0:
            ticket, self.released = self.released, -1
            if self._handoff is None:
                self._events.acknowledged(self._peer, ticket)
            else:
                self._handoff.when_stored(lambda: self._events.acknowledged(self._peer, ticket))
