"""One link to one peer, without sockets: numbers, acks, resend, hand-off, back-pressure, greeting.

Accepted is not delivered: a transport takes a message and may still lose it with its connection. So what must not be
lost has a number in the *stream* towards the peer and is kept until the peer's ack has come.

    kept:   | logged (peer was away, publishers acked) | sent, not acked | not sent |      one deque, one order
            ^ acknowledged + 1                                           ^ unsent from the right end

- Stream: batches with a sequenced part (QoS >= 1, retained) and interest share one numbering; the receiver hands them
  over in order, without gap or duplicate. QoS 0 (the volatile part) has no number and is never sent twice.
- Every message has a rising `frame` number, and says which frame of the peer was seen last and up to which number the
  stream was received. So a sender knows what is lost, not merely late: number `received + 1` was last sent in a frame
  that the peer has already passed (GAP is set). Nothing is sent again on suspicion, no timer is needed: heartbeats have
  frame numbers too.
- `committed` is the cumulative ack. Refused entries are repeated until the peer's `acknowledged` has passed their
  batch, and are read before the ack of the same message: an entry is never acked by a lost refusal.
- HELLO introduces an incarnation, WELCOME answers it; both say what was received of which stream, and which versions
  of the mesh its sender speaks: a rolling restart mixes two releases. The newest that both speak is that of everything
  else; a peer that speaks none of ours counts as one that is not there. A message of or for another incarnation is
  refused and counted. Interest starts with a snapshot for each new incarnation.
- ready: the peer answered a greeting of ours made now, and all its interest as of then was taken.
- away: silent for too long (stopped), or too long too full. Its interest stays in force; what was kept and what comes
  is logged here (bounded, publishers are acked at the next flush) and goes out in order when it is back: until then
  everything queues behind it. After its return new batches queue behind the log too, but wait for the peer's own ack
  again.
- gone: reaped, or replaced by a new incarnation. Without a surviving hand-off log what was kept is `lost`.
- The outbox counts sequenced bytes until they are acked, and volatile bytes until the peer has seen their frame (it
  says so with whatever it sends, at the latest when an eighth of the limit is unsaid). Interest, acks and greetings do
  not count.

Nothing here looks at a clock or a socket: `now` (seconds, monotonic) and `send` are given. Events are called
synchronously from receive, tick, flush, down and greet, never from submit or commit.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from pyx.core.work import STEP, callback, spend
from zmq_mesh import envelope
from zmq_mesh.contract import WHOLE_BATCH, Events, HandoffLog, LinkLimits, Payload, Undelivered
from zmq_mesh.envelope import (
    GAP,
    GREETING,
    HEAD,
    HEAD_END,
    LAST,
    PREFIX_BYTES,
    REFUSAL,
    SEQUENCED,
    SNAPSHOT,
    Buffer,
    EnvelopeError,
    Greeting,
    Refusal,
    take_apart,
)
from zmq_mesh.interest import decode_changes
from zmq_mesh.outgoing import ACK, BATCH, HELLO, INTEREST, REFUSED, SKIP, U64, WELCOME, Outgoing, pack_refused

__all__ = ["WHOLE_BATCH", "Events", "HandoffLog", "Link", "LinkLimits", "Payload"]

_HIGHEST: Final = (1 << 64) - 1
VERSION_AT: Final = 1  # in a prefix


class Link(Outgoing):
    """The state of one directed pair of workers, both directions.

    own, peer: pyx.core.peer. incarnation: of this worker, greater than that of every earlier one. send: takes
    the frames of one message and says whether the transport accepted it (False = try again later). reconnect: asks the
    transport for a new connection now instead of after its back-off (the peer has just been restarted). handoff: a log
    that outlives the worker; None = memory. received: (stream, sequence) the store of this worker has committed of the
    peer's stream, (0, 0) = nothing (see `position`). refusals: what that store has of `refusals`,
    as (number, [(position, reason), ...]) of each batch. versions: the oldest and the newest that are spoken here.
    """

    _foreign = 0  # incarnation of the peer that speaks no version of ours

    def commit(self, sequence: int, refused: Sequence[tuple[int, int]] = ()) -> None:
        """The last record of the batch with this number (from events.batch), and of all before it, is committed.

        refused: (position, reason) of entries of this very batch that were not accepted. A number of a peer that is
        gone is ignored. The ack leaves with the next message, at the latest with `flush`.
        """
        if sequence <= self._floor:
            return
        number = sequence - self._offset
        if refused:
            spend(len(refused) * STEP // 4)
            self._refusals.append((number, pack_refused(refused)))
        if number > self._committed:
            # What follows the last batch (interest) needs no commit of its own.
            self._committed = self._received if number >= self._last_batch else number
            self._owe = True

    def position(self, sequence: int) -> tuple[int, int]:
        """(stream, number) of events.batch's `sequence`: a store writes it with the records; `received` at restart."""
        return self._stream_in, sequence - self._offset

    @property
    def refusals(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """(number, [(position, reason), ...]) of batches with refused entries of which the peer may not know yet.

        A store has them (`Events.refusals_known` says how long), or they would count as taken after a restart.
        """
        return [
            (number, [(position, reason) for position, reason in REFUSED.iter_unpack(packed)])
            for number, packed in self._refusals
        ]

    def flush(self, now: float) -> bool:
        """End of the tick: interest, what the transport refused before, acks; then events that submit left.

        -> True when something still waits for the transport (call again when its descriptor is readable).
        """
        self.now = now
        if self._owe_welcome:
            self._say_welcome()
        if self._owe_hello and not self._blocked:
            self._say_hello()
        if self._open:
            if self._interest_sent != self._publisher.number and not self._owe_welcome:
                self._tell_interest()
            if self._unsent or self._waiting:
                self._blocked = False
                self._pump()
            if self._owe and not self._blocked:
                self._say_ack()
        if self._done or self._over or self._released >= 0:
            self._tell_done()
        if self._unloadable:
            self._unload()
        return bool(self._unsent or self._waiting) and self._open and not self._holds

    def tick(self, now: float) -> None:
        """Time passes: heartbeat, silence, stall, greeting. Call it at least every link_silence_seconds_max / 10."""
        self.now = now
        silence = self.limits.link_silence_seconds_max
        if (
            self.peer_incarnation
            and now - self.heard_at > silence
            and (not self.away or self._stalled or self._answered or self.confirming)
        ):
            self._leave(stalled=False)
        elif self.confirming and not self.peer_incarnation and now - self.heard_at > silence:
            self._confirm_no_longer()
        elif self.full and now - self._full_since > self.limits.peer_stall_seconds_max:
            self._leave(stalled=True)
        elif self._stalled:
            self._check_stall_over()
        pause = silence / 5.0
        if not self._welcomed and now - self._hello_at >= (pause if self.away else pause / 3.0):
            self._say_hello()
        elif self._open and now - self._said_at >= pause * 0.75:
            self._say_ack()
        self.flush(now)

    def writable(self, now: float) -> bool:
        """The transport may take messages again (its descriptor was readable). -> as `flush`."""
        self._blocked = False
        return self.flush(now)

    def greet(self, now: float) -> None:
        """After a pause of our own: not ready until the peer has answered now and its interest is taken.

        What the peer said meanwhile may still lie in the socket, so silence starts anew; also that of a peer which was
        away when the pause began: it may have come back, and given SUBACKs that did not wait for this worker. Where
        sessions outlive their worker that is true of one that is dead by now, too: then its successor must be heard.
        """
        self.now = now
        self.heard_at = now
        self._full_since = now
        self.ready = False
        self.confirming = self.peer_incarnation != 0 or self._handoff is not None
        self._welcomed = False
        self._greeting += 1
        self._say_hello()

    def down(self, incarnation: int) -> None:
        """The supervisor has reaped that incarnation of the peer: nothing of it is accepted any more."""
        self._dead = max(self._dead, incarnation)
        if self.peer_incarnation and self.peer_incarnation <= incarnation:
            self._gone()
        self._tell_done()

    @property
    def unacknowledged(self) -> int:
        """Batches and interest the peer has not acked yet, the hand-off log included."""
        return len(self._kept)

    def oldest_seconds(self, now: float) -> float:
        """Age of the oldest of them; 0.0 when there is none. As exact as the times given to tick and flush."""
        return now - self._kept[0].at if self._kept else 0.0

    @callback("mesh")
    def receive(self, frames: Sequence[Payload], now: float) -> None:
        """One message, the frames of which this link may keep.

        Raises EnvelopeError when it is none; nothing has happened then.
        """
        first: Buffer = frames[0]
        if first[:PREFIX_BYTES] != self._expected:
            self._receive_unexpected(first, now)
            return
        if len(first) < HEAD_END:
            raise EnvelopeError(f"{len(first)} bytes are too few for a mesh message")
        (
            kind, flags, refusals, volatile_bytes, sequenced_bytes, payloads_volatile, payloads_sequenced,
            frame, sequence, received, committed, acknowledged, frames_seen, taken,
        ) = HEAD.unpack_from(first, PREFIX_BYTES)  # fmt: skip
        if kind <= WELCOME:
            self._greeted(self.peer_incarnation, first, now)
            return
        if kind > SKIP or committed > self._sequence or received > self._sequence or frames_seen > self._frame:
            raise EnvelopeError(f"peer {self.peer}: kind {kind}, acks {received}, {committed} of {self._sequence} sent")
        volatile, sequenced, index = take_apart(
            first, frames, HEAD_END + REFUSAL.size * refusals, flags, volatile_bytes, sequenced_bytes,
            payloads_volatile + payloads_sequenced,
        )  # fmt: skip

        self.heard_at = self.now = now
        if frame > self._frames_seen:
            fresh = True
            self._frames_seen = frame
        else:
            fresh = False
        if sequence > self._highest:
            self._highest = sequence
        # The peer's news for us, then ours of it: an ack may free what a batch will need.
        self._seen_by_peer = max(self._seen_by_peer, frames_seen)
        if acknowledged > self._acknowledged_in:
            self._forget_refusals(acknowledged)
        if self._flight:
            self._land(frames_seen)
        if committed > self._acknowledged:
            if refusals:
                self._take_refusals(first, refusals)
            self._advance(committed)
            if self._stalled:
                self._check_stall_over()
        if taken > self._taken:
            self._taken = taken
            self._events.interest_taken(self.peer, taken)
        if flags & GAP:
            self._resend(received, frames_seen)

        if kind == ACK:
            if self._highest > self._received:
                self._owe = True
            return
        self._count_received(frames, volatile is not None)
        if not fresh and volatile is not None:
            volatile = None
            index += payloads_volatile
        if flags & SEQUENCED and (sequence == self._received + 1 or kind == SKIP):
            self._deliver(kind, flags, sequence, volatile, sequenced, list(frames[index:]))
            return
        if flags & SEQUENCED:
            self._owe = True
            if sequence <= self._received:
                self.duplicates += 1
        if volatile is not None:
            self._events.batch(self.peer, volatile, None, list(frames[index : index + payloads_volatile]), 0)

    def _count_received(self, frames: Sequence[Payload], volatile: bool) -> None:
        nbytes = len(frames[0])
        for i in range(1, len(frames)):
            nbytes += memoryview(frames[i]).nbytes
        self.bytes_received += nbytes
        if volatile:
            self._unsaid_bytes += nbytes
            if self._unsaid_bytes > self._window_bytes_max:
                self._owe = True

    def _deliver(
        self,
        kind: int,
        flags: int,
        sequence: int,
        volatile: memoryview | None,
        part: memoryview | None,
        payloads: list[Payload],
    ) -> None:
        """The next number of the stream (or a SKIP, which may be a range that covers the next)."""
        if kind == BATCH:
            self._received = self._last_batch = sequence
            self._events.batch(self.peer, volatile, part, payloads, sequence + self._offset)
            return
        if part is None or len(part) < U64.size:
            raise EnvelopeError(f"kind {kind} without its number")
        number = U64.unpack_from(part)[0]
        if kind == SKIP and not number <= self._received + 1 <= sequence:
            self._owe = True
            return
        if self._committed == self._received:
            self._committed = sequence
        self._received = sequence
        self._owe = True
        if kind == INTEREST:
            self._take_interest(number, flags, part[U64.size :])

    def _take_interest(self, number: int, flags: int, part: memoryview) -> None:
        changes = list(decode_changes(part))
        if flags & SNAPSHOT:
            first, last = not self._in_snapshot, bool(flags & LAST)
            self._in_snapshot = not last
            self._events.interest_snapshot(self.peer, changes, first, last)
            if not last:
                return
        else:
            self._events.interest(self.peer, changes)
        self._interest_heard = number
        self._check_ready()

    def _take_refusals(self, first: Buffer, refusals: int) -> None:
        self._owe = True  # so that the peer need not repeat them
        spend(refusals * STEP // 2)
        found = REFUSAL.iter_unpack(first[HEAD_END : HEAD_END + refusals * REFUSAL.size])
        for sequence, of_batch in groupby(found, itemgetter(0)):
            kept = self._find(sequence) if sequence > self._acknowledged else None
            if kept is not None and kept.sequence == sequence and kept.kind == BATCH:
                batch = Undelivered(kept.ticket, *self._content(kept), kept.entries, sent=True)
                self._events.refused(self.peer, batch, [(position, reason) for _, position, reason in of_batch])

    def _forget_refusals(self, acknowledged: int) -> None:
        self._acknowledged_in = acknowledged
        if self._refusals and self._refusals[0][0] <= acknowledged:
            while self._refusals and self._refusals[0][0] <= acknowledged:
                self._refusals.popleft()
            self._owe = self._owe or bool(self._refusals)  # the next ones, and the acks that wait for them
            self._events.refusals_known(self.peer, acknowledged)

    def _check_stall_over(self) -> None:
        """The peer has taken all that was under way when it stalled, and the log is empty: back to direct."""
        if not self.handoff_bytes and self._seen_by_peer >= self._stall_frame:
            self._stalled = self.away = False
            self._check_ready()

    def _receive_unexpected(self, first: Buffer, now: float) -> None:
        """Not the prefix of a known pair: a greeting of a new incarnation, or something to refuse."""
        prefix = envelope.unpack_prefix(first)
        head = envelope.unpack_head(first)
        if prefix.receiver != self.own or prefix.sender != self.peer:
            raise EnvelopeError(
                f"message of {prefix.sender} for {prefix.receiver} came to {self.own}, link {self.peer}"
            )
        is_greeting = first[VERSION_AT] == envelope.VERSION_OF_GREETINGS and (
            head.kind == HELLO or (head.kind == WELCOME and prefix.receiver_incarnation == self.incarnation)
        )
        if is_greeting:
            self._greeted(prefix.sender_incarnation, first, now)
        else:
            self.frames_refused += 1

    def _greeted(self, sender_incarnation: int, first: Buffer, now: float) -> None:
        head = envelope.unpack_head(first)
        if len(first) != HEAD_END + GREETING.size or head.kind not in (HELLO, WELCOME):
            raise EnvelopeError(f"greeting of kind {head.kind} and {len(first)} bytes")
        greeting = Greeting._make(GREETING.unpack_from(first, HEAD_END))
        if sender_incarnation <= self._dead or sender_incarnation < self.peer_incarnation:
            self.frames_refused += 1
            return
        oldest, newest = envelope.unpack_versions(head.volatile_bytes)
        version = min(newest, self.versions[1])
        if version < max(oldest, self.versions[0]):
            self._refuse_version(sender_incarnation, oldest, newest)
            return
        new = sender_incarnation != self.peer_incarnation
        # After a restart the transport's own back-off would cost up to half a second.
        reconnect = new and (self._blocked or self.peer_incarnation != 0)
        if new:
            if self.peer_incarnation:
                self._gone()
                self._tell_done()
            self._adopt(sender_incarnation, version)
        self.heard_at = self.now = now
        self._frames_seen = max(self._frames_seen, head.frame)
        if greeting.stream != self._stream_in:
            self._begin_stream(greeting.stream, head.acknowledged)
        elif head.acknowledged > self._received:
            # Acked by a former incarnation of this worker: interest behind the last batch its store knows of.
            self._received = self._committed = head.acknowledged
        self._highest = max(self._highest, self._received, head.sequence)
        if greeting.your_stream == self._stream and head.received <= self._sequence:
            if head.committed > self._acknowledged:
                self._advance(head.committed)
            if new:
                self._go_back(self._index(head.received + 1))
            elif head.received < self._sent:
                self._resend(head.received, head.frames_seen)
        else:
            self._go_back()
        if head.kind == HELLO:
            self._owe_welcome = greeting.greeting
            if reconnect and self._reconnect is not None:
                self._reconnect()
            self._say_welcome()
        if new or (head.kind == WELCOME and greeting.greeting == self._greeting):
            self._welcomed = True
            self._interest_wanted = greeting.interest
            if self.away and not self._stalled:
                self.away = False
            self._open = True
            self._check_ready()
        elif not self._welcomed and self._hello_at < now:
            self._say_hello()  # it speaks again: ask now, not at the next heartbeat
        self.flush(now)

    def _refuse_version(self, sender_incarnation: int, oldest: int, newest: int) -> None:
        self.frames_refused += 1
        if sender_incarnation != self._foreign:
            self._foreign = sender_incarnation
            self._events.incompatible(self.peer, oldest, newest)

    def _begin_stream(self, stream: int, acknowledged: int) -> None:
        """The peer numbers anew, or we know nothing of its numbering: it keeps what follows `acknowledged`."""
        self._floor = self._received + self._offset
        self._offset = self._floor - acknowledged
        self._stream_in = stream
        self._prefix = self._prefix_of(self.version)
        self._received = self._committed = self._highest = self._last_batch = acknowledged
        self._acknowledged_in = acknowledged
        if self._refusals:
            self._refusals.clear()
            self._events.refusals_known(self.peer, _HIGHEST)

    def _prefix_of(self, version: int) -> bytes:
        return envelope.pack_prefix(
            self.own, self.peer, self.incarnation, self.peer_incarnation, self._stream_in, version
        )

    def _adopt(self, incarnation: int, version: int) -> None:
        self.peer_incarnation = incarnation
        self.version = version
        self._prefix = self._prefix_of(version)
        self._expected = envelope.pack_prefix(self.peer, self.own, incarnation, self.incarnation, self._stream, version)
        self._frames_seen = 0
        self._blocked = False

    def _check_ready(self) -> None:
        if not self.ready and self._welcomed and not self.away and self._interest_heard >= self._interest_wanted:
            self.ready = True
            self.confirming = self._answered = False
            self._events.ready(self.peer)

    def _leave(self, stalled: bool) -> None:
        """The peer is away: what is kept goes to the log, what waits of QoS 0 is dropped."""
        told = not self.away or self._answered
        self.away = True
        self._answered = False
        self.ready = False
        self._stalled = stalled
        self._stall_frame = self._frame
        if not stalled:
            self._open = False
            self._welcomed = False
            self._greeting += 1
        self._drop_volatile()
        spend(len(self._kept) * STEP)
        for item in self._kept:
            if not item.logged and item.kind == BATCH:
                self.outbox_bytes -= item.nbytes
                self._log(item)
        self.full = False
        if told:
            self._events.away(self.peer)
        if self.confirming:
            self._confirm_no_longer()

    def _confirm_no_longer(self) -> None:
        self.confirming = False
        self._events.unconfirmed(self.peer)

    def _gone(self) -> None:
        """That incarnation of the peer is dead."""
        incarnation, self.peer_incarnation = self.peer_incarnation, 0
        self._dead = max(self._dead, incarnation)
        self.ready = self.away = self.full = False
        self.confirming = self.confirming and self._handoff is not None
        self._open = self._welcomed = self._stalled = self._answered = False
        self._greeting += 1
        self._hello_at = float("-inf")
        self._expected = b""
        self._prefix = envelope.pack_prefix(self.own, self.peer, self.incarnation, 0)
        self._drop_volatile()
        self._interest_sent = self._taken = self._interest_heard = self._interest_wanted = 0
        self._in_snapshot = False
        self._owe = self._owe_hello = False
        self._owe_welcome = 0
        spend(len(self._kept) * STEP)
        if self._handoff is not None:
            for item in self._kept:
                if item.kind == INTEREST:
                    item.kind, item.flags, item.part = SKIP, SEQUENCED, U64.pack(item.sequence)
                elif item.kind == BATCH and not item.logged:
                    self.outbox_bytes -= item.nbytes
                    self._log(item)
            self._go_back()
        else:
            for item in self._kept:
                if item.kind == BATCH:
                    entries = envelope.count_entries(item.part) if item.entries < 0 else item.entries
                    self._done.append(Undelivered(item.ticket, item.part, item.payloads, entries, item.frame != 0))
            self._kept.clear()
            self._unsent = self._sequence = self._sent = self._acknowledged = 0
            self.outbox_bytes = self.handoff_bytes = self._loaded_bytes = 0
            self._streams += 1
            self._stream = self._stream_id(self._streams)
        self._events.gone(self.peer, incarnation)

    def _tell_done(self) -> None:
        """Events about tickets that submit and the peer's end have left."""
        if self._over:
            over, self._over = self._over, []
            for batch in over:
                self._events.refused(self.peer, batch, [(WHOLE_BATCH, Refusal.HANDOFF_FULL)])
            self._released = max(self._released, over[-1].ticket)  # whatever came before is in the log
        if self._done:
            done, self._done = self._done, []
            self._released = -1
            self._events.lost(self.peer, done, max(batch.ticket for batch in done))
        if self._released >= 0:
            ticket, self._released = self._released, -1
            if self._handoff is None:
                self._events.acknowledged(self.peer, ticket)
            else:
                self._handoff.when_stored(lambda: self._events.acknowledged(self.peer, ticket))

    def _say_ack(self) -> None:
        if not self._transmit(ACK, 0, None, (), (), 0, 0, 0, 0, 0):
            self._owe = True

    def _say_hello(self) -> None:
        self._owe_hello = not self._say_greeting(HELLO, self._greeting)
        self._hello_at = self.now

    def _say_welcome(self) -> None:
        self._publisher.seal()  # what waits to be told is part of the answer
        if self._say_greeting(WELCOME, self._owe_welcome):
            self._owe_welcome = 0
            if not self.ready:
                self._answered = True
                self._events.answered(self.peer)

    def _say_greeting(self, kind: int, greeting: int) -> bool:
        body = GREETING.pack(self._stream, self._stream_in, self._publisher.number, greeting)
        versions = envelope.pack_versions(*self.versions)
        prefix = self._prefix
        if self.peer_incarnation:
            self._prefix = self._prefix_of(envelope.VERSION_OF_GREETINGS)
        try:
            return self._transmit(kind, 0, None, (body,), (), versions, 0, 0, 0, 0)
        finally:
            self._prefix = prefix
