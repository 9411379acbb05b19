"""The sending half of a link: the stream's numbers, what is kept until it is acked, messages made and given to the
transport.

The theory is told in zmq_mesh.links, which adds the receiving half, the greeting, and who is away or gone.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from struct import Struct
from typing import Final

from pyx.core.peer import Peer
from pyx.core.work import STEP, spend
from zmq_mesh import envelope
from zmq_mesh.contract import Events, HandoffLog, LinkLimits, Payload, Undelivered
from zmq_mesh.envelope import (
    GAP,
    HEAD,
    INLINE_BYTES_MAX,
    LAST,
    MORE,
    REFUSAL,
    SEQUENCED,
    SEQUENCED_FRAME,
    SNAPSHOT,
    VOLATILE_FRAME,
    Buffer,
    Kind,
)
from zmq_mesh.interest import Publisher

# Members of an IntEnum cost more than ints on the way of each batch.
BATCH: Final = int(Kind.BATCH)
ACK: Final = int(Kind.ACK)
HELLO: Final = int(Kind.HELLO)
WELCOME: Final = int(Kind.WELCOME)
INTEREST: Final = int(Kind.INTEREST)
SKIP: Final = int(Kind.SKIP)
U64: Final = Struct("<Q")
_U64_MASK: Final = (1 << 64) - 1
# After a restart the stream goes on beyond every number the former incarnation may have used without logging it.
RESTART_SKIP: Final = 1 << 32
# What is looked at in one go of what waits.
PUMP_ITEMS: Final = 100
# Refusals one message carries, if they are of more than one batch: an ack of a batch must carry all that are of it.
REFUSALS_MAX: Final = 1000
REFUSED: Final = Struct("<IB")  # position, reason


def pack_refused(refused: Iterable[tuple[int, int]]) -> bytes:
    """(position, reason) of entries of one batch."""
    return b"".join(REFUSED.pack(*each) for each in refused)


class Kept:
    """One number of the stream, until it is acked. A SKIP may stand for a range that ends with its number."""

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
        self.entries = entries  # -1 = to be counted when somebody asks
        self.at = at
        self.kind = kind
        self.flags = flags
        self.frame = 0  # of the last transmission, 0 = never sent
        self.logged = False
        self.stored = False  # in the hand-off log, though it may be `sent, not acked` as well
        self.lasts = False  # there it can be read back
        self.unloading = False  # it leaves the memory when it is stored
        self.unloaded = False  # part and payloads are there alone, or with the peer
        self.read = False  # and were read back and sent: it counts in _read_bytes until it is acked


class Outgoing:
    """What a link has to say, and what it has said without an answer yet. See `Link` for the arguments."""

    messages_sent = 0  # entries that were submitted with their number
    batches_behind = 0  # batches that went to the hand-off log although the peer is there: it is behind
    _loaded_bytes = 0  # of batches with a number that are in memory
    _read_bytes = 0  # read back from the hand-off log, sent and not acked
    _just_read: tuple[int, Buffer, Sequence[Payload]] | None = None  # read back, and refused by the transport

    def __init__(
        self,
        own: Peer,
        peer: Peer,
        incarnation: int,
        publisher: Publisher,
        events: Events,
        send: Callable[[list[Buffer]], bool],
        limits: LinkLimits,
        now: float,
        *,
        reconnect: Callable[[], None] | None = None,
        handoff: HandoffLog | None = None,
        received: tuple[int, int] = (0, 0),
        refusals: Iterable[tuple[int, list[tuple[int, int]]]] = (),
        versions: tuple[int, int] = (envelope.OLDEST_VERSION, envelope.VERSION),
    ) -> None:
        self.own = own
        self.peer = peer
        self.incarnation = incarnation
        self.peer_incarnation = 0  # 0 = none alive is known
        self.versions = versions
        self.version = 0  # in which the two speak; 0 = not agreed yet
        self.limits = limits
        self._publisher = publisher
        self._events = events
        self._send = send
        self._reconnect = reconnect
        self._handoff = handoff
        self._outbox_low = limits.peer_outbox_bytes_max // 2
        self._window_bytes_max = limits.peer_outbox_bytes_max // 8

        # Where the peer stands.
        self.ready = False
        self.away = False
        self.confirming = False  # greeted after a pause of ours, not ready again yet
        self.full = False  # the router stops reading the publishers that match this peer
        self._stalled = False  # away, but it speaks: sending goes on
        self._open = False  # batches may be sent
        self._welcomed = False
        self._answered = False  # it may go by the interest of our last WELCOME, though it is not ready here
        self._greeting = 1
        self._interest_wanted = 0  # ready once this much of the peer's interest was taken
        self._dead = 0  # incarnations up to this one are refused
        self.now = now
        self.heard_at = now
        self._said_at = now
        self._hello_at = float("-inf")
        self._full_since = now

        # Sending.
        self._expected = b""  # the prefix of every valid message from the peer
        self._prefix = envelope.pack_prefix(own, peer, incarnation, 0)
        self._stream = self._stream_id(0) if handoff is None else handoff.stream
        self._streams = 0
        self._frame = self._sequence = 0  # last number given
        self._sent = 0  # highest number ever sent
        self._acknowledged = 0
        self._kept: deque[Kept] = deque()
        self._unsent = 0  # the last so many of kept
        self._holds: deque[int] = deque()  # numbers that the store does not have yet: neither they nor others leave
        self._waiting: deque[tuple[Buffer, list[Payload], int]] = deque()  # volatile parts the transport did not take
        self._flight: deque[tuple[int, int]] = deque()  # (frame, volatile bytes), until the peer has seen the frame
        self.outbox_bytes = 0
        self.handoff_bytes = 0
        self._unloadable: list[Kept] = []  # when the store has them: told at flush
        self._blocked = False  # the transport refused; look again at flush
        self._seen_by_peer = 0  # highest of our frames it has seen
        self._stall_frame = 0
        self._owe = False  # something the peer waits for is unsaid
        self._owe_hello = False
        self._owe_welcome = 0  # greeting to answer
        self._interest_sent = self._taken = 0
        self._released = -1  # ticket whose batches are in the log: told at flush
        self._done: list[Undelivered] = []  # told as lost at flush
        self._over: list[Undelivered] = []  # refused by the full log: told at flush

        # Receiving.
        self._stream_in, self._received = received
        self._committed = self._received
        self._highest = self._received  # number of the stream known to have been sent
        self._last_batch = self._received
        self._offset = 0  # number for the node - number of the stream
        self._floor = 0  # numbers for the node up to here belong to a former stream
        self._frames_seen = 0
        self._acknowledged_in = 0
        self._unsaid_bytes = 0
        self._interest_heard = 0
        self._in_snapshot = False  # its last part has not come
        self._refusals = deque((number, pack_refused(refused)) for number, refused in refusals)  # of batches

        # Counters.
        self.batches_sent = 0
        self.bytes_sent = self.bytes_received = 0
        self.resent = 0
        self.duplicates = 0
        self.frames_refused = 0  # of or for a former incarnation
        self.volatile_dropped = 0  # entries of QoS 0 that were not sent: peer away or gone, outbox far over its limit
        if handoff is not None:
            self._restore(handoff)

    def submit(
        self,
        volatile: Buffer | None,
        sequenced: Buffer | None,
        payloads_volatile: list[Payload],
        payloads_sequenced: list[Payload],
        ticket: int,
        entries_volatile: int = -1,
        entries_sequenced: int = -1,
        hold: bool = False,
    ) -> None:
        """Send a batch (at most one per tick). The buffers, lists and payloads are the link's from now on: not changed
        after.

        ticket: rising; only a batch with a sequenced part is ever acknowledged. entries_*: how many entries the parts
        have, -1 = counted by the link should it have to drop them. hold: the sequenced part goes to the hand-off log
        and waits there until that is stored (there must be one): should this worker die, it is sent all the same.
        """
        volatile_bytes = nbytes = 0
        if entries_volatile > 0:
            self.messages_sent += entries_volatile
        if entries_sequenced > 0:
            self.messages_sent += entries_sequenced
        if volatile is not None:
            volatile_bytes = len(volatile)
            for payload in payloads_volatile:
                volatile_bytes += memoryview(payload).nbytes
        kept: Kept | None = None
        if sequenced is not None:
            nbytes = len(sequenced)
            for payload in payloads_sequenced:
                nbytes += memoryview(payload).nbytes
            if self._open and not self.away:
                self._sequence = sequence = self._sequence + 1
                kept = Kept(sequence, sequenced, payloads_sequenced, nbytes, ticket, entries_sequenced, self.now)
                self._keep(kept)
                self.outbox_bytes += nbytes
                if hold:
                    self._hold(kept)
                if self._loaded_bytes > self._window_bytes_max:
                    self._put_behind()
            else:
                self._submit_absent(sequenced, payloads_sequenced, nbytes, ticket, entries_sequenced)
        if self._open and not self._unsent and not self._waiting and not self._blocked and not self._holds:
            if kept is not None:
                if not self._transmit_batch(kept, volatile, payloads_volatile, volatile_bytes):
                    self._unsent = 1
                    if volatile is not None:
                        self._wait(volatile, payloads_volatile, volatile_bytes, entries_volatile)
            elif volatile is not None and not self._transmit_volatile(volatile, payloads_volatile, volatile_bytes):
                self._wait(volatile, payloads_volatile, volatile_bytes, entries_volatile)
        else:
            if kept is not None:
                self._unsent += 1
            if volatile is not None:
                self._wait(volatile, payloads_volatile, volatile_bytes, entries_volatile)
        if not self.full and self.outbox_bytes >= self.limits.peer_outbox_bytes_max and not self.away:
            self.full = True
            self._full_since = self.now

    @property
    def _lasts(self) -> bool:
        return self._handoff is not None and self._handoff.lasts

    def _submit_absent(self, part: Buffer, payloads: list[Payload], nbytes: int, ticket: int, entries: int) -> None:
        """A sequenced part for a peer that is away (log it), gone (log it if the log survives), or its log is full."""
        if self._handoff is None and not self.away:
            entries = envelope.count_entries(part) if entries < 0 else entries
            self._done.append(Undelivered(ticket, part, payloads, entries, sent=False))
        elif not self._lasts and self.handoff_bytes + nbytes > self.limits.handoff_log_bytes_max:
            entries = envelope.count_entries(part) if entries < 0 else entries
            self._over.append(Undelivered(ticket, part, payloads, entries, sent=False))
        else:
            self._sequence += 1
            item = Kept(self._sequence, part, payloads, nbytes, ticket, entries, self.now)
            self._keep(item)
            self._unsent += 1
            self._log(item)

    def _keep(self, batch: Kept) -> None:
        self._kept.append(batch)
        self._loaded_bytes += batch.nbytes

    def _log(self, item: Kept) -> None:
        item.logged = True
        self.handoff_bytes += item.nbytes
        if item.ticket >= 0:
            self._released = item.ticket
        self._store(item)
        self._unload_when_stored(item)

    def _store(self, item: Kept) -> None:
        if self._handoff is not None and not item.stored:
            item.stored = True
            item.lasts = self._handoff.append(item.sequence, item.part, list(item.payloads), item.entries)

    def _unload_when_stored(self, item: Kept) -> None:
        if item.lasts and not item.unloading:
            item.unloading = True
            self._unloadable.append(item)

    def _store_all(self) -> None:
        """All that is not acked: should this worker die, nothing of its log is sent without what its publishers had
        sent earlier.
        """
        earlier = takewhile(lambda each: not each.stored, reversed(self._kept))
        for each in reversed([each for each in earlier if each.kind == BATCH]):
            self._store(each)

    def _put_behind(self) -> None:
        """The peer is there and takes less than comes: it becomes a reader of the log, if there is one that has room.
        Its ack is waited for as before, and what it has not acked counts in the outbox as before.
        """
        if not self._lasts or self._handoff is None or self._handoff.full:
            return
        self.batches_behind += 1
        self._store_all()
        for each in takewhile(lambda each: not each.unloading, reversed(self._kept)):
            self._unload_when_stored(each)

    def _hold(self, item: Kept) -> None:
        assert self._handoff is not None
        self._store_all()
        self._holds.append(item.sequence)
        self._handoff.when_stored(lambda: self._let_go(item.sequence))

    def _let_go(self, sequence: int) -> None:
        """The store has it: it leaves with the next flush."""
        while self._holds and self._holds[0] <= sequence:
            self._holds.popleft()

    def _restore(self, handoff: HandoffLog) -> None:
        """Take the log of a former incarnation of this worker; numbers that are not in it become SKIP."""
        at = handoff.acknowledged
        self._acknowledged = at
        for sequence, nbytes, entries in handoff.found():
            if sequence > at + 1:
                self._keep_skip(at + 1, sequence - 1)
            item = Kept(sequence, b"", (), nbytes, -1, entries, self.now)
            item.logged = item.stored = item.lasts = item.unloading = item.unloaded = True
            self.handoff_bytes += nbytes
            self._kept.append(item)
            at = sequence
        # An incarnation that died before any ack came may have used numbers of which the log knows nothing.
        handoff.reserve(max(at, handoff.reserved) + RESTART_SKIP)
        self._keep_skip(at + 1, handoff.reserved)
        self._sequence = self._kept[-1].sequence
        self._unsent = len(self._kept)

    def _keep_skip(self, start: int, end: int) -> None:
        self._kept.append(Kept(end, U64.pack(start), (), 0, -1, 0, self.now, SKIP))

    def _drop_volatile(self) -> None:
        while self._waiting:
            part, payloads, entries = self._waiting.popleft()
            self.outbox_bytes -= len(part) + sum(memoryview(payload).nbytes for payload in payloads)
            self.volatile_dropped += envelope.count_entries(part) if entries < 0 else entries
        while self._flight:
            self.outbox_bytes -= self._flight.popleft()[1]

    def _stream_id(self, count: int) -> int:
        return ((self.incarnation * 0x9E3779B97F4A7C15 + count) & _U64_MASK) or 1

    def _wait(self, part: Buffer, payloads: list[Payload], nbytes: int, entries: int) -> None:
        """A volatile part that cannot leave now: kept for a peer that is there, up to twice the limit."""
        if self._open and not self.away and self.outbox_bytes < 2 * self.limits.peer_outbox_bytes_max:
            self._waiting.append((part, payloads, entries))
            self.outbox_bytes += nbytes
        else:
            self.volatile_dropped += envelope.count_entries(part) if entries < 0 else entries

    def _pump(self) -> None:
        """Send what waits until the transport refuses."""
        if not self._open or self._owe_welcome:
            return
        while self._waiting:
            part, payloads, _ = self._waiting[0]
            nbytes = len(part) + sum(memoryview(payload).nbytes for payload in payloads)
            if not self._transmit_volatile(part, payloads, nbytes):
                return
            self._waiting.popleft()
            self.outbox_bytes -= nbytes  # counted again as in flight
        while self._unsent:
            begin = len(self._kept) - self._unsent
            for item in list(islice(self._kept, begin, begin + PUMP_ITEMS)):
                spend(3 * STEP)
                if self._holds and item.sequence >= self._holds[0]:
                    return
                if item.unloaded and self._read_bytes >= self._window_bytes_max:
                    return  # until more of it is acked
                if item.kind == BATCH:
                    if not self._transmit_batch(item, None, [], 0):
                        return
                elif not self._transmit_other(item):
                    return
                self._unsent -= 1

    def _transmit_batch(
        self, kept: Kept, volatile: Buffer | None, payloads_volatile: list[Payload], volatile_bytes: int
    ) -> bool:
        flags = SEQUENCED
        part, payloads = self._content(kept)
        frames: list[Buffer] = []
        inline: list[Buffer] = []
        if volatile is not None:
            if len(volatile) > INLINE_BYTES_MAX:
                flags |= VOLATILE_FRAME
                frames.append(volatile)
            else:
                inline.append(volatile)
        if len(part) > INLINE_BYTES_MAX:
            flags |= SEQUENCED_FRAME
            frames.append(part)
        else:
            inline.append(part)
        if payloads_volatile:
            frames += payloads_volatile
        if payloads:
            frames += payloads
        is_sent = self._transmit(
            BATCH, flags, kept, inline, frames,
            len(volatile) if volatile is not None else 0, len(part), len(payloads_volatile), len(payloads),
            volatile_bytes,
        )  # fmt: skip
        if is_sent:
            self._just_read = None
            if kept.unloaded:
                kept.read = True
                self._read_bytes += kept.nbytes
        return is_sent

    def _content(self, kept: Kept) -> tuple[Buffer, Sequence[Payload]]:
        """Part and payloads of a batch."""
        if not kept.unloaded:
            return kept.part, kept.payloads
        assert self._handoff is not None
        if self._just_read is None or self._just_read[0] != kept.sequence:
            self._just_read = kept.sequence, *self._handoff.read(kept.sequence)
        return self._just_read[1:]

    def _unload(self) -> None:
        """What is in the hand-off log and can be read back leaves the memory as soon as it is stored."""
        assert self._handoff is not None
        items, self._unloadable = self._unloadable, []

        def stored() -> None:
            for item in items:
                if not item.unloaded and item.entries < 0:
                    item.entries = envelope.count_entries(item.part)
                self._unload_one(item)

        self._handoff.when_stored(stored)

    def _unload_one(self, item: Kept) -> None:
        if not item.unloaded:
            item.part, item.payloads, item.unloaded = b"", (), True
            self._loaded_bytes -= item.nbytes

    def _transmit_volatile(self, volatile: Buffer, payloads: list[Payload], volatile_bytes: int) -> bool:
        flags = 0
        inline: Sequence[Buffer]
        if len(volatile) > INLINE_BYTES_MAX:
            flags = VOLATILE_FRAME
            frames = [volatile, *payloads]
            inline = ()
        else:
            frames = payloads
            inline = (volatile,)
        return self._transmit(BATCH, flags, None, inline, frames, len(volatile), 0, len(payloads), 0, volatile_bytes)

    def _transmit_other(self, kept: Kept) -> bool:
        """Interest or SKIP: one part, no payloads."""
        if len(kept.part) > INLINE_BYTES_MAX:
            return self._transmit(
                kept.kind, kept.flags | SEQUENCED_FRAME, kept, (), [kept.part], 0, len(kept.part), 0, 0, 0
            )
        return self._transmit(kept.kind, kept.flags, kept, (kept.part,), (), 0, len(kept.part), 0, 0, 0)

    def _transmit(
        self,
        kind: int,
        flags: int,
        kept: Kept | None,
        inline: Sequence[Buffer],
        frames: Sequence[Buffer],
        volatile_part_bytes: int,
        sequenced_part_bytes: int,
        payloads_volatile: int,
        payloads_sequenced: int,
        volatile_bytes: int,
    ) -> bool:
        """One message with the state of both directions. -> False: the transport did not take it, nothing changed."""
        if frames:
            flags |= MORE
        if self._highest > self._received:
            flags |= GAP
        frame = self._frame + 1
        refusals = 0
        committed = self._committed
        refused: list[tuple[int, bytes]] = []
        if self._refusals and kind > WELCOME:
            for number, packed in self._refusals:
                many = len(packed) // REFUSED.size
                if refusals and refusals + many > REFUSALS_MAX:  # the rest goes with the acks that belong to it
                    committed = number - 1
                    break
                refusals += many
                refused.append((number, packed))
        elif self._refusals:  # a greeting has no room for them: their entries must not be acked by it
            committed = min(committed, self._refusals[0][0] - 1)
        head = HEAD.pack(
            kind, flags, refusals, volatile_part_bytes, sequenced_part_bytes, payloads_volatile, payloads_sequenced,
            frame, self._sent if kept is None else kept.sequence, self._received, committed,
            self._acknowledged, self._frames_seen, self._interest_heard,
        )  # fmt: skip
        if refusals:
            spend(refusals * STEP // 2)
            head += b"".join(
                REFUSAL.pack(number, *each) for number, packed in refused for each in REFUSED.iter_unpack(packed)
            )
        message: list[Buffer] = [b"".join((self._prefix, head, *inline))]
        if frames:
            message += frames
        if not self._send(message):
            self._blocked = True
            return False
        self._blocked = False
        self._frame = frame
        self._owe = False
        self._unsaid_bytes = 0
        self._said_at = self.now
        if kept is not None:
            if kept.frame:
                self.resent += 1
            kept.frame = frame
            if kept.sequence > self._sent:
                self._sent = kept.sequence
            self.bytes_sent += kept.nbytes
        if kind == BATCH:
            self.batches_sent += 1
        if volatile_bytes:
            self._flight.append((frame, volatile_bytes))
            self.outbox_bytes += volatile_bytes
            self.bytes_sent += volatile_bytes
        return True

    def _tell_interest(self) -> None:
        """Queue what the peer has not been told of our interest; it goes out in order with the batches."""
        for told in self._publisher.since(self._interest_sent):
            number = U64.pack(told.number)
            for i, part in enumerate(told.parts):
                spend(2 * STEP)
                flags = SEQUENCED | (SNAPSHOT if told.snapshot else 0) | (LAST if i == len(told.parts) - 1 else 0)
                self._sequence += 1
                self._kept.append(Kept(self._sequence, number + part, (), 0, -1, 0, self.now, INTEREST, flags))
                self._unsent += 1
            self._interest_sent = told.number

    def _find(self, sequence: int) -> Kept | None:
        """The kept item that is, or covers, this number."""
        index = self._index(sequence)
        return self._kept[index] if index < len(self._kept) else None

    def _index(self, sequence: int) -> int:
        """Where in kept the first number >= sequence is. There are no holes but SKIPs, so a guess mostly hits."""
        kept = self._kept
        if not kept:
            return 0
        guess = sequence - kept[0].sequence
        if 0 <= guess < len(kept) and kept[guess].sequence == sequence:
            return guess
        return next((i for i, item in enumerate(kept) if item.sequence >= sequence), len(kept))

    def _land(self, frames_seen: int) -> None:
        flight = self._flight
        while flight and flight[0][0] <= frames_seen:
            self.outbox_bytes -= flight.popleft()[1]
        if self.full and self.outbox_bytes <= self._outbox_low:
            self.full = False

    def _advance(self, committed: int) -> None:
        """The peer's cumulative ack."""
        kept = self._kept
        ticket = -1
        while kept and kept[0].sequence <= committed:
            spend(STEP)
            item = kept.popleft()
            self._unload_one(item)
            if item.read:
                self._read_bytes -= item.nbytes
            if item.logged:
                self.handoff_bytes -= item.nbytes
            else:
                self.outbox_bytes -= item.nbytes
                if item.ticket >= 0:
                    ticket = item.ticket
        if self._unsent > len(kept):
            self._unsent = len(kept)
        self._acknowledged = committed
        if self._handoff is not None:
            self._handoff.trim(committed)
            if self._unsent and kept[-self._unsent].unloaded:
                self._pump()  # there is room to read on
        if self.full and self.outbox_bytes <= self._outbox_low:
            self.full = False
        if ticket >= 0:
            self._events.acknowledged(self.peer, ticket)

    def _resend(self, received: int, frames_seen: int) -> None:
        """The peer misses `received + 1`: go back to it if its last transmission is behind the peer already."""
        index = self._index(received + 1)
        if index < len(self._kept) - self._unsent and self._kept[index].frame <= frames_seen:
            self._go_back(index)
            self._pump()

    def _go_back(self, index: int = 0) -> None:
        """What is kept from there on is to be sent, whether it was or not."""
        self._unsent = len(self._kept) - index
        spend(self._unsent * STEP // 4)
        for item in islice(self._kept, index, None):
            if item.read:
                item.read = False
                self._read_bytes -= item.nbytes
