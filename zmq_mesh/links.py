"""One link to one peer, without sockets: who the peer is, where it stands, and what of its messages goes where.

What has a number and is kept until the peer has it: `zmq_mesh.stream`. What is said: `zmq_mesh.outgoing`. What came:
`zmq_mesh.incoming`. Here they are brought together:

- HELLO introduces an incarnation, WELCOME answers it; both say what was received of which stream, and which versions
  of the mesh its sender speaks: a rolling restart mixes two releases. The newest that both speak is that of everything
  else; a peer that speaks none of ours counts as one that is not there. A message of or for another incarnation is
  refused and counted. Interest starts with a snapshot for each new incarnation.
- ready: the peer answered a greeting of ours made now, and all its interest as of then was taken.
- away: silent for too long (stopped), or too long too full. Its interest stays in force.
- gone: reaped, or replaced by a new incarnation.

Nothing here looks at a clock or a socket: `now` (seconds, monotonic) and `send` are given. Events are called
synchronously from receive, tick, flush, down and greet, never from submit or commit.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from pyx.core.peer import Peer
from pyx.core.work import STEP, callback, spend
from zmq_mesh import envelope
from zmq_mesh.contract import WHOLE_BATCH, Events, HandoffLog, LinkLimits, Payload, Traffic, Undelivered
from zmq_mesh.envelope import (
    ACK,
    BATCH,
    GAP,
    GREETING,
    HEAD,
    HEAD_END,
    HELLO,
    PREFIX_BYTES,
    REFUSAL,
    SEQUENCED,
    SKIP,
    WELCOME,
    Buffer,
    EnvelopeError,
    Greeting,
    take_apart,
)
from zmq_mesh.incoming import Incoming
from zmq_mesh.interest import Publisher
from zmq_mesh.outgoing import Outgoing
from zmq_mesh.stream import Stream

__all__ = ["WHOLE_BATCH", "Events", "HandoffLog", "Link", "LinkLimits", "Payload"]

VERSION_AT: Final = 1  # in a prefix


class Link:
    """The state of one directed pair of workers, both directions.

    own, peer: pyx.core.peer. incarnation: of this worker, greater than that of every earlier one. send: takes
    the frames of one message and says whether the transport accepted it (False = try again later). reconnect: asks the
    transport for a new connection now instead of after its back-off (the peer has just been restarted). handoff: a log
    that outlives the worker; None = memory. received: (stream, sequence) the store of this worker has committed of the
    peer's stream, (0, 0) = nothing (see `position`). refusals: what that store has of `refusals`,
    as (number, [(position, reason), ...]) of each batch. versions: the oldest and the newest that are spoken here.
    """

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
        self.traffic = Traffic()
        self._publisher = publisher
        self._events = events
        self._reconnect = reconnect
        unsaid_bytes_max = limits.peer_outbox_bytes_max // 8
        prefix = envelope.pack_prefix(own, peer, incarnation, 0)
        self._stream = Stream(peer, incarnation, events, limits, self.traffic, handoff, now)
        self._in = Incoming(peer, events, self.traffic, unsaid_bytes_max, received, refusals)
        self._out = Outgoing(peer, self._stream, self._in, publisher, events, send, limits, self.traffic, prefix, now)
        self.submit = self._out.submit
        self.commit, self.position = self._in.commit, self._in.position

        # Where the peer stands.
        self.ready = False
        self.confirming = False  # greeted after a pause of ours, not ready again yet
        self._stalled = False  # away, but it speaks: sending goes on
        self._stall_frame = 0
        self._welcomed = False
        self._answered = False  # it may go by the interest of our last WELCOME, though it is not ready here
        self._greeting = 1
        self._owe_hello = False
        self._interest_wanted = 0  # ready once this much of the peer's interest was taken
        self._taken = 0  # of ours, by the peer
        self._dead = 0  # incarnations up to this one are refused
        self._foreign = 0  # incarnation of the peer that speaks no version of ours
        self._expected = b""  # the prefix of every valid message from the peer
        self._seen_by_peer = 0  # highest of our frames it has seen
        self.heard_at = now
        self._hello_at = float("-inf")

    @property
    def away(self) -> bool:
        """Silent or stalled: what it is to get is logged."""
        return self._out.away

    @property
    def full(self) -> bool:
        """The router stops reading the publishers that match this peer."""
        return self._out.full

    @property
    def outbox_bytes(self) -> int:
        """What the peer has not taken yet, the hand-off log left out."""
        return self._out.outbox_bytes

    @property
    def handoff_bytes(self) -> int:
        """What the hand-off log has."""
        return self._stream.handoff_bytes

    @property
    def refusals(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """See `Incoming`."""
        return self._in.refusals

    @property
    def unacknowledged(self) -> int:
        """Batches and interest the peer has not acked yet, the hand-off log included."""
        return len(self._stream.kept)

    def oldest_seconds(self, now: float) -> float:
        """Age of the oldest of them; 0.0 when there is none. As exact as the times given to tick and flush."""
        return now - self._stream.kept[0].at if self._stream.kept else 0.0

    # ------------------------------------------------------------ time and transport

    def flush(self, now: float) -> bool:
        """End of the tick: interest, what the transport refused before, acks; then events that submit left.

        -> True when something still waits for the transport (call again when its descriptor is readable).
        """
        out, stream = self._out, self._stream
        out.now = now
        if out.waits_for_welcome:
            self._say_welcome()
        if self._owe_hello and not out.blocked:
            self._say_hello()
        if out.is_open:
            out.flush()
        if stream.done or stream.over or stream.released >= 0:
            stream.tell_done()
        if stream.unloadable:
            stream.unload()
        return bool(stream.unsent or out.waiting) and out.is_open and not stream.holds

    def tick(self, now: float) -> None:
        """Time passes: heartbeat, silence, stall, greeting. Call it at least every link_silence_seconds_max / 10."""
        out = self._out
        out.now = now
        silence = self.limits.link_silence_seconds_max
        if (
            self.peer_incarnation
            and now - self.heard_at > silence
            and (not out.away or self._stalled or self._answered or self.confirming)
        ):
            self._leave(stalled=False)
        elif self.confirming and not self.peer_incarnation and now - self.heard_at > silence:
            self._confirm_no_longer()
        elif out.full and now - out.full_since > self.limits.peer_stall_seconds_max:
            self._leave(stalled=True)
        elif self._stalled:
            self._check_stall_over()
        pause = silence / 5.0
        if not self._welcomed and now - self._hello_at >= (pause if out.away else pause / 3.0):
            self._say_hello()
        elif out.is_open and now - out.said_at >= pause * 0.75:
            out.ack()
        self.flush(now)

    def writable(self, now: float) -> bool:
        """The transport may take messages again (its descriptor was readable). -> as `flush`."""
        self._out.blocked = False
        return self.flush(now)

    # ------------------------------------------------------------ what comes

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
        stream, incoming, out = self._stream, self._in, self._out
        if kind > SKIP or committed > stream.sequence or received > stream.sequence or frames_seen > out.frame:
            raise EnvelopeError(
                f"peer {self.peer}: kind {kind}, acks {received}, {committed} of {stream.sequence} sent"
            )
        volatile, sequenced, index = take_apart(
            first, frames, HEAD_END + REFUSAL.size * refusals, flags, volatile_bytes, sequenced_bytes,
            payloads_volatile + payloads_sequenced,
        )  # fmt: skip

        self.heard_at = out.now = now
        fresh = incoming.saw(frame, sequence)
        # The peer's news for us, then ours of it: an ack may free what a batch will need.
        self._seen_by_peer = max(self._seen_by_peer, frames_seen)
        if acknowledged > incoming.acknowledged:
            incoming.forget_refusals(acknowledged)
        if out.flight:
            out.land(frames_seen)
        if committed > stream.acknowledged:
            if refusals:
                self._take_refusals(first, refusals)
            out.advance(committed)
            if self._stalled:
                self._check_stall_over()
        if taken > self._taken:
            self._taken = taken
            self._events.interest_taken(self.peer, taken)
        if flags & GAP:
            out.resend(received, frames_seen)

        if kind == ACK:
            if incoming.highest > incoming.received:
                incoming.owe = True
            return
        incoming.count(frames, volatile is not None)
        if not fresh and volatile is not None:
            volatile = None
            index += payloads_volatile
        if flags & SEQUENCED and (sequence == incoming.received + 1 or kind == SKIP):
            if incoming.deliver(kind, flags, sequence, volatile, sequenced, list(frames[index:])):
                self._check_ready()
            return
        if flags & SEQUENCED:
            incoming.owe = True
            if sequence <= incoming.received:
                self.traffic.duplicates += 1
        if volatile is not None:
            self._events.batch(self.peer, volatile, None, list(frames[index : index + payloads_volatile]), 0)

    def _take_refusals(self, first: Buffer, refusals: int) -> None:
        self._in.owe = True  # so that the peer need not repeat them
        spend(refusals * STEP // 2)
        stream = self._stream
        found = REFUSAL.iter_unpack(first[HEAD_END : HEAD_END + refusals * REFUSAL.size])
        for sequence, of_batch in groupby(found, itemgetter(0)):
            kept = stream.find(sequence) if sequence > stream.acknowledged else None
            if kept is not None and kept.sequence == sequence and kept.kind == BATCH:
                batch = Undelivered(kept.ticket, *stream.content(kept), kept.entries, sent=True)
                self._events.refused(self.peer, batch, [(position, reason) for _, position, reason in of_batch])

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
            self.traffic.frames_refused += 1

    def _greeted(self, sender_incarnation: int, first: Buffer, now: float) -> None:
        head = envelope.unpack_head(first)
        if len(first) != HEAD_END + GREETING.size or head.kind not in (HELLO, WELCOME):
            raise EnvelopeError(f"greeting of kind {head.kind} and {len(first)} bytes")
        greeting = Greeting._make(GREETING.unpack_from(first, HEAD_END))
        if sender_incarnation <= self._dead or sender_incarnation < self.peer_incarnation:
            self.traffic.frames_refused += 1
            return
        oldest, newest = envelope.unpack_versions(head.volatile_bytes)
        version = min(newest, self.versions[1])
        if version < max(oldest, self.versions[0]):
            self._refuse_version(sender_incarnation, oldest, newest)
            return
        stream, out = self._stream, self._out
        new = sender_incarnation != self.peer_incarnation
        # After a restart the transport's own back-off would cost up to half a second.
        reconnect = new and (out.blocked or self.peer_incarnation != 0)
        if new:
            if self.peer_incarnation:
                self._gone()
                stream.tell_done()
            self._adopt(sender_incarnation, version)
        self.heard_at = out.now = now
        if self._in.greeted(greeting.stream, head):
            out.prefix = self._prefix_of(self.version)
        if greeting.your_stream == stream.id and head.received <= stream.sequence:
            if head.committed > stream.acknowledged:
                out.advance(head.committed)
            if new:
                stream.go_back(head.received)
            elif head.received < stream.sent:
                out.resend(head.received, head.frames_seen)
        else:
            stream.go_back()
        if head.kind == HELLO:
            out.waits_for_welcome = greeting.greeting
            if reconnect and self._reconnect is not None:
                self._reconnect()
            self._say_welcome()
        if new or (head.kind == WELCOME and greeting.greeting == self._greeting):
            self._welcomed = True
            self._interest_wanted = greeting.interest
            if out.away and not self._stalled:
                out.away = False
            out.is_open = True
            self._check_ready()
        elif not self._welcomed and self._hello_at < now:
            self._say_hello()  # it speaks again: ask now, not at the next heartbeat
        self.flush(now)

    def _refuse_version(self, sender_incarnation: int, oldest: int, newest: int) -> None:
        self.traffic.frames_refused += 1
        if sender_incarnation != self._foreign:
            self._foreign = sender_incarnation
            self._events.incompatible(self.peer, oldest, newest)

    def _prefix_of(self, version: int) -> bytes:
        return envelope.pack_prefix(
            self.own, self.peer, self.incarnation, self.peer_incarnation, self._in.stream, version
        )

    def _adopt(self, incarnation: int, version: int) -> None:
        self.peer_incarnation = incarnation
        self.version = version
        self._out.prefix = self._prefix_of(version)
        self._expected = envelope.pack_prefix(
            self.peer, self.own, incarnation, self.incarnation, self._stream.id, version
        )
        self._in.frames_seen = 0
        self._out.blocked = False

    # ------------------------------------------------------------ greetings of ours

    def greet(self, now: float) -> None:
        """After a pause of our own: not ready until the peer has answered now and its interest is taken.

        What the peer said meanwhile may still lie in the socket, so silence starts anew; also that of a peer which was
        away when the pause began: it may have come back, and given SUBACKs that did not wait for this worker. Where
        sessions outlive their worker that is true of one that is dead by now, too: then its successor must be heard.
        """
        self._out.now = self._out.full_since = self.heard_at = now
        self.ready = False
        self.confirming = self.peer_incarnation != 0 or self._stream.survives
        self._welcomed = False
        self._greeting += 1
        self._say_hello()

    def _say_hello(self) -> None:
        self._owe_hello = not self._say_greeting(HELLO, self._greeting)
        self._hello_at = self._out.now

    def _say_welcome(self) -> None:
        self._publisher.seal()  # what waits to be told is part of the answer
        if self._say_greeting(WELCOME, self._out.waits_for_welcome):
            self._out.waits_for_welcome = 0
            if not self.ready:
                self._answered = True
                self._events.answered(self.peer)

    def _say_greeting(self, kind: int, greeting: int) -> bool:
        versions = envelope.pack_versions(*self.versions)
        prefix = self._prefix_of(envelope.VERSION_OF_GREETINGS) if self.peer_incarnation else self._out.prefix
        return self._out.greet(kind, greeting, versions, prefix)

    # ------------------------------------------------------------ where the peer stands

    def _check_ready(self) -> None:
        heard = self._in.interest_heard
        if not self.ready and self._welcomed and not self._out.away and heard >= self._interest_wanted:
            self.ready = True
            self.confirming = self._answered = False
            self._events.ready(self.peer)

    def _check_stall_over(self) -> None:
        """The peer has taken all that was under way when it stalled, and the log is empty: back to direct."""
        if not self.handoff_bytes and self._seen_by_peer >= self._stall_frame:
            self._stalled = self._out.away = False
            self._check_ready()

    def _leave(self, stalled: bool) -> None:
        """The peer is away: what is kept goes to the log, what waits of QoS 0 is dropped."""
        out = self._out
        told = not out.away or self._answered
        out.away = True
        self._answered = False
        self.ready = False
        self._stalled = stalled
        self._stall_frame = out.frame
        if not stalled:
            out.is_open = False
            self._welcomed = False
            self._greeting += 1
        out.drop_volatile()
        self._stream.log_all()
        out.full = False
        if told:
            self._events.away(self.peer)
        if self.confirming:
            self._confirm_no_longer()

    def _confirm_no_longer(self) -> None:
        self.confirming = False
        self._events.unconfirmed(self.peer)

    def down(self, incarnation: int) -> None:
        """The supervisor has reaped that incarnation of the peer: nothing of it is accepted any more."""
        self._dead = max(self._dead, incarnation)
        if self.peer_incarnation and self.peer_incarnation <= incarnation:
            self._gone()
        self._stream.tell_done()

    def _gone(self) -> None:
        """That incarnation of the peer is dead."""
        out = self._out
        incarnation, self.peer_incarnation = self.peer_incarnation, 0
        self._dead = max(self._dead, incarnation)
        self.ready = out.away = out.full = False
        self.confirming = self.confirming and self._stream.survives
        out.is_open = self._welcomed = self._stalled = self._answered = False
        self._greeting += 1
        self._hello_at = float("-inf")
        self._expected = b""
        out.prefix = envelope.pack_prefix(self.own, self.peer, self.incarnation, 0)
        out.drop_volatile()
        out.interest_sent = self._taken = self._interest_wanted = 0
        self._in.end_incarnation()
        self._owe_hello = False
        out.waits_for_welcome = 0
        self._stream.end_incarnation()
        self._events.gone(self.peer, incarnation)
