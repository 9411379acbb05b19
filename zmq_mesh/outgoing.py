"""The sending side of a link: makes messages from the stream, from unnumbered parts, and from the state of both
directions. While the transport refuses them, they are held back.

- QoS 0 (the volatile part) has no number and is never sent twice.
- Every message has a rising `frame` number, the peer's frame seen last, and the number up to which the stream was
  received. So a sender knows what is lost, not merely late: number `received + 1` was last sent in a frame that the
  peer has already passed (GAP is set). Nothing is sent again on suspicion, no timer is needed: heartbeats have frame
  numbers too.
- The outbox counts sequenced bytes until they are acked, and volatile bytes until the peer has seen their frame (which
  it reports with any message, at the latest after an eighth of the limit). Interest, acks and greetings do
  not count.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from pyx.core.peer import Peer
from pyx.core.work import STEP, spend
from zmq_mesh import envelope
from zmq_mesh.contract import LinkEvents, LinkLimits, LinkTraffic, Payload, Undelivered
from zmq_mesh.envelope import (
    ACK,
    BATCH,
    GAP,
    GREETING,
    HEAD,
    INLINE_BYTES_MAX,
    LAST,
    MORE,
    REFUSAL,
    SEQUENCED,
    SEQUENCED_FRAME,
    SNAPSHOT,
    U64,
    VOLATILE_FRAME,
    Buffer,
)
from zmq_mesh.incoming import Incoming
from zmq_mesh.interest import Publisher
from zmq_mesh.stream import Stream, Unacknowledged

__all__ = ["Outgoing"]

# Waiting items examined in one go.
PUMP_ITEMS: Final = 100


class Outgoing:
    """The sending side of one link. See `Link` for the arguments; `prefix` is for all messages until it is replaced."""

    def __init__(
        self,
        peer: Peer,
        stream: Stream,
        incoming: Incoming,
        publisher: Publisher,
        events: LinkEvents,
        send: Callable[[list[Buffer]], bool],
        limits: LinkLimits,
        traffic: LinkTraffic,
        prefix: bytes,
        now: float,
    ) -> None:
        self._peer = peer
        self._stream = stream
        self._incoming = incoming
        self._publisher = publisher
        self._events = events
        self._send = send
        self._traffic = traffic
        self._outbox_bytes_max = limits.peer_outbox_bytes_max
        self._outbox_low = limits.peer_outbox_bytes_max // 2
        self.prefix = prefix
        self.now = now
        self.is_open = False  # whether batches may be sent
        self.away = False
        self.full = False  # the router should stop reading publishers that match this peer
        self.full_since = now
        self.blocked = False  # the transport refused; try again at flush
        self.waits_for_welcome = 0  # greeting to answer before anything else
        self.said_at = now
        self.frame = 0  # last number given out
        self.interest_sent = 0
        self.waiting: deque[tuple[Buffer, list[Payload], int]] = deque()  # volatile parts the transport did not take
        self.flight: deque[tuple[int, int]] = deque()  # (frame, volatile bytes), until the peer has seen the frame
        self._volatile_bytes = 0  # of both

    @property
    def outbox_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._stream.outbox_bytes + self._volatile_bytes

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
    ) -> bool:
        """Send a batch (at most one per tick). The link owns the buffers, lists and payloads from now on: the caller
        must not change them. Return whether the outbox is full.

        ticket: rising; only a batch with a sequenced part is ever acknowledged. entries_*: number of entries of the
        parts, -1 = counted by the link if it has to drop them. hold: the sequenced part is stored in the hand-off log
        (which must exist) before it is sent: if this worker dies, its successor sends it.
        """
        stream = self._stream
        volatile_bytes = nbytes = 0
        if entries_volatile > 0:
            self._traffic.messages_sent += entries_volatile
        if entries_sequenced > 0:
            self._traffic.messages_sent += entries_sequenced
        if volatile is not None:
            volatile_bytes = len(volatile)
            for payload in payloads_volatile:
                volatile_bytes += memoryview(payload).nbytes
        kept: Unacknowledged | None = None
        if sequenced is not None:
            nbytes = len(sequenced)
            for payload in payloads_sequenced:
                nbytes += memoryview(payload).nbytes
            if self.is_open and not self.away:
                kept = stream.add(sequenced, payloads_sequenced, nbytes, ticket, entries_sequenced, self.now, hold)
            else:
                stream.add_absent(sequenced, payloads_sequenced, nbytes, ticket, entries_sequenced, self.now, self.away)
        if self.is_open and not stream.unsent and not self.waiting and not self.blocked and not stream.holds:
            if kept is not None:
                if not self._transmit_batch(kept, volatile, payloads_volatile, volatile_bytes):
                    stream.unsent = 1
                    if volatile is not None:
                        self._wait(volatile, payloads_volatile, volatile_bytes, entries_volatile)
            elif volatile is not None and not self._transmit_volatile(volatile, payloads_volatile, volatile_bytes):
                self._wait(volatile, payloads_volatile, volatile_bytes, entries_volatile)
        else:
            if kept is not None:
                stream.unsent += 1
            if volatile is not None:
                self._wait(volatile, payloads_volatile, volatile_bytes, entries_volatile)
        if not self.full and stream.outbox_bytes + self._volatile_bytes >= self._outbox_bytes_max and not self.away:
            self.full = True
            self.full_since = self.now
        return self.full

    # ------------------------------------------------------------ without a number

    def _wait(self, part: Buffer, payloads: list[Payload], nbytes: int, entries: int) -> None:
        """Keep a volatile part that cannot be sent now, for a peer that is there, up to twice the limit."""
        if self.is_open and not self.away and self.outbox_bytes < 2 * self._outbox_bytes_max:
            self.waiting.append((part, payloads, entries))
            self._volatile_bytes += nbytes
        else:
            self._traffic.volatile_dropped += envelope.count_entries(part) if entries < 0 else entries

    def drop_volatile(self) -> None:
        """Drop waiting volatile parts: the peer is away, or gone."""
        while self.waiting:
            part, payloads, entries = self.waiting.popleft()
            self._volatile_bytes -= len(part) + sum(memoryview(payload).nbytes for payload in payloads)
            self._traffic.volatile_dropped += envelope.count_entries(part) if entries < 0 else entries
        while self.flight:
            self._volatile_bytes -= self.flight.popleft()[1]

    def land(self, frames_seen: int) -> None:
        """Note that the peer has seen frames up to this one."""
        flight = self.flight
        while flight and flight[0][0] <= frames_seen:
            self._volatile_bytes -= flight.popleft()[1]
        if self.full:
            self._look_for_room()

    def _look_for_room(self) -> None:
        self.full = self.outbox_bytes > self._outbox_low

    # ------------------------------------------------------------ with a number

    def advance(self, committed: int) -> None:
        """Process the peer's cumulative ack."""
        stream = self._stream
        ticket = stream.advance(committed)
        if stream.unsent and stream.waits_for_room:
            self._pump()
        if self.full:
            self._look_for_room()
        if ticket >= 0:
            self._events.acknowledged(self._peer, ticket)

    def take_refusals(self, packed: Buffer) -> None:
        """Report entries that the peer has refused."""
        self._incoming.owe = True  # so that the peer can stop repeating them
        spend(len(packed) // REFUSAL.size * STEP // 2)
        stream = self._stream
        for sequence, of_batch in groupby(REFUSAL.iter_unpack(packed), itemgetter(0)):
            kept = stream.find(sequence) if sequence > stream.acknowledged else None
            if kept is not None and kept.sequence == sequence and kept.kind == BATCH:
                batch = Undelivered(kept.ticket, *stream.content(kept), kept.entries, sent=True)
                self._events.refused(self._peer, batch, [(position, reason) for _, position, reason in of_batch])

    def resend(self, received: int, frames_seen: int) -> None:
        """Go back to `received + 1`, which the peer misses, if it has seen a frame after its last transmission."""
        if self._stream.misses(received, frames_seen):
            self._stream.go_back(received)
            self._pump()

    def _tell_interest(self) -> None:
        """Queue changes of our interest that the peer has not been sent; they are sent in order with the batches."""
        for told in self._publisher.since(self.interest_sent):
            number = U64.pack(told.number)
            for i, part in enumerate(told.parts):
                spend(2 * STEP)
                flags = SEQUENCED | (SNAPSHOT if told.snapshot else 0) | (LAST if i == len(told.parts) - 1 else 0)
                self._stream.add_interest(number + part, flags, self.now)
            self.interest_sent = told.number

    def flush(self) -> None:
        """Send interest, messages that the transport refused before, and acks, if batches may be sent."""
        if self.interest_sent != self._publisher.number and not self.waits_for_welcome:
            self._tell_interest()
        if self._stream.unsent or self.waiting:
            self.blocked = False
            self._pump()
        if self._incoming.owe and not self.blocked:
            self.ack()

    def _pump(self) -> None:
        """Send waiting messages until the transport refuses."""
        if not self.is_open or self.waits_for_welcome:
            return
        while self.waiting:
            part, payloads, _ = self.waiting[0]
            nbytes = len(part) + sum(memoryview(payload).nbytes for payload in payloads)
            if not self._transmit_volatile(part, payloads, nbytes):
                return
            self.waiting.popleft()
            self._volatile_bytes -= nbytes  # counted again as in flight
        stream = self._stream
        while stream.unsent:
            for item in stream.next(PUMP_ITEMS):
                spend(3 * STEP)
                if not stream.may_leave(item):
                    return
                if item.kind == BATCH:
                    if not self._transmit_batch(item, None, [], 0):
                        return
                elif not self._transmit_other(item):
                    return
                stream.unsent -= 1

    # ------------------------------------------------------------ messages

    def ack(self) -> None:
        """Send only the state of both directions: an ack, a heartbeat."""
        if not self._transmit(ACK, 0, None, (), (), 0, 0, 0, 0, 0):
            self._incoming.owe = True

    def greet(self, kind: int, greeting: int, versions: int, prefix: bytes) -> bool:
        """Send HELLO or WELCOME of that number. Return False if the transport did not take it."""
        body = GREETING.pack(self._stream.id, self._incoming.stream, self._publisher.number, greeting)
        former, self.prefix = self.prefix, prefix
        try:
            return self._transmit(kind, 0, None, (body,), (), versions, 0, 0, 0, 0)
        finally:
            self.prefix = former

    def _transmit_batch(
        self, kept: Unacknowledged, volatile: Buffer | None, payloads_volatile: list[Payload], volatile_bytes: int
    ) -> bool:
        flags = SEQUENCED
        part, payloads = self._stream.content(kept)
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
            self._stream.just_read = None
            if kept.unloaded:
                self._stream.was_read(kept)
        return is_sent

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

    def _transmit_other(self, kept: Unacknowledged) -> bool:
        """Send interest or SKIP: one part, no payloads."""
        if len(kept.part) > INLINE_BYTES_MAX:
            return self._transmit(
                kept.kind, kept.flags | SEQUENCED_FRAME, kept, (), [kept.part], 0, len(kept.part), 0, 0, 0
            )
        return self._transmit(kept.kind, kept.flags, kept, (kept.part,), (), 0, len(kept.part), 0, 0, 0)

    def _transmit(
        self,
        kind: int,
        flags: int,
        kept: Unacknowledged | None,
        inline: Sequence[Buffer],
        frames: Sequence[Buffer],
        volatile_part_bytes: int,
        sequenced_part_bytes: int,
        payloads_volatile: int,
        payloads_sequenced: int,
        volatile_bytes: int,
    ) -> bool:
        """Send one message with the state of both directions. Return False, with nothing changed, if it was refused."""
        stream, incoming, traffic = self._stream, self._incoming, self._traffic
        if frames:
            flags |= MORE
        if incoming.highest > incoming.received:
            flags |= GAP
        frame = self.frame + 1
        committed, refusals, refused = incoming.news(kind) if incoming.refused else (incoming.committed, 0, b"")
        head = HEAD.pack(
            kind, flags, refusals, volatile_part_bytes, sequenced_part_bytes, payloads_volatile, payloads_sequenced,
            frame, stream.sent if kept is None else kept.sequence, incoming.received, committed,
            stream.acknowledged, incoming.frames_seen, incoming.interest_acked,
        )  # fmt: skip
        message: list[Buffer] = [b"".join((self.prefix, head, refused, *inline))]
        if frames:
            message += frames
        if not self._send(message):
            self.blocked = True
            return False
        self.blocked = False
        self.frame = frame
        incoming.owe = False
        incoming.unsaid_bytes = 0
        self.said_at = self.now
        if kept is not None:
            if kept.frame:
                traffic.resent += 1
            kept.frame = frame
            if kept.sequence > stream.sent:
                stream.sent = kept.sequence
            traffic.bytes_sent += kept.nbytes
        if kind == BATCH:
            traffic.batches_sent += 1
        if volatile_bytes:
            self.flight.append((frame, volatile_bytes))
            self._volatile_bytes += volatile_bytes
            traffic.bytes_sent += volatile_bytes
        return True
