"""One link to one peer, without sockets: the peer's incarnation and state, and the dispatch of its messages.

Numbered messages that are kept until the peer has them: `zmq_mesh.stream`. Sending: `zmq_mesh.outgoing`. Receiving:
`zmq_mesh.incoming`. Here they are combined:

- HELLO introduces an incarnation, WELCOME answers it; both state the position in the other's stream, and the versions
  of the mesh that the sender speaks: a rolling restart mixes two releases. Everything else is in the newest version
  that both speak; a peer that speaks none of ours counts as absent. A message from or for another incarnation is
  refused and counted. Interest starts with a snapshot for each new incarnation.
- ready: the peer answered a greeting made now, and all its interest as of then was taken.
- away: silent for too long (stopped), or full for too long. Its interest stays in force.
- gone: reaped, or replaced by a new incarnation.

Nothing here reads a clock or a socket: `now` (seconds, monotonic) and `send` are arguments. Events are called
synchronously from receive, tick, flush, down and greet, never from submit or commit.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pyx.core.peer import Peer
from pyx.core.work import callback
from zmq_mesh import envelope
from zmq_mesh.barrier import Barrier
from zmq_mesh.contract import WHOLE_BATCH, HandoffLog, LinkEvents, LinkLimits, LinkTraffic, Payload
from zmq_mesh.envelope import (
    ACK,
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
    split_parts,
)
from zmq_mesh.incoming import Incoming
from zmq_mesh.interest import Publisher
from zmq_mesh.outgoing import Outgoing
from zmq_mesh.stream import Stream

__all__ = ["WHOLE_BATCH", "HandoffLog", "Link", "LinkEvents", "LinkLimits", "Payload"]

VERSION_AT: Final = 1  # offset in a prefix


class Link:
    """The state of one directed pair of workers, both directions.

    own, peer: pyx.core.peer. incarnation: of this worker, greater than that of every earlier one. send: takes the
    frames of one message and returns whether the transport accepted it (False = try again later). reconnect: asks the
    transport for a new connection now instead of after its back-off (the peer has just been restarted). handoff: a log
    that outlives the worker; None = memory. received: (stream, sequence) of the peer's stream that this worker's store
    has committed, (0, 0) = nothing (see `position`). refusals: the stored `refusals`, as (number, [(position, reason),
    ...]) of each batch. versions: the oldest and the newest spoken here. barrier: shared by all links of a worker;
    None: interest is acknowledged at once.
    """

    def __init__(
        self,
        own: Peer,
        peer: Peer,
        incarnation: int,
        publisher: Publisher,
        events: LinkEvents,
        send: Callable[[list[Buffer]], bool],
        limits: LinkLimits,
        now: float,
        *,
        reconnect: Callable[[], None] | None = None,
        handoff: HandoffLog | None = None,
        received: tuple[int, int] = (0, 0),
        refusals: Iterable[tuple[int, list[tuple[int, int]]]] = (),
        versions: tuple[int, int] = (envelope.OLDEST_VERSION, envelope.VERSION),
        barrier: Barrier | None = None,
    ) -> None:
        self.own = own
        self.peer = peer
        self.incarnation = incarnation
        self.peer_incarnation = 0  # 0 = no living one is known
        self.versions = versions
        self.version = 0  # agreed version; 0 = not agreed yet
        self.limits = limits
        self.traffic = LinkTraffic()
        self._publisher = publisher
        self._events = events
        self._reconnect = reconnect
        unsaid_bytes_max = limits.peer_outbox_bytes_max // 8
        prefix = envelope.pack_prefix(own, peer, incarnation, 0)
        self._stream = Stream(peer, incarnation, events, limits, self.traffic, handoff, now)
        self._in = Incoming(peer, events, self.traffic, unsaid_bytes_max, barrier, received, refusals)
        self._out = Outgoing(peer, self._stream, self._in, publisher, events, send, limits, self.traffic, prefix, now)
        self.submit = self._out.submit
        self.commit, self.position = self._in.commit, self._in.position

        # The peer's state.
        self.ready = False
        self.confirming = False  # greeted after a pause of ours, not ready again yet
        self._stalled = False  # away, but not silent: sending continues
        self._stall_frame = 0
        self._welcomed = False
        self._answered = False  # it may serve by the interest of our last WELCOME, though it is not ready here
        self._greeting = 1
        self._owe_hello = False
        self._interest_wanted = 0  # ready once this number of the peer's interest was taken
        self._taken = 0  # number of our interest that the peer has taken
        self._dead = 0  # incarnations up to this one are refused
        self._foreign = 0  # incarnation of the peer that speaks no version of ours
        self._expected = b""  # the prefix of every valid message from the peer
        self._seen_by_peer = 0  # highest of our frames that it has seen
        self._received_by_peer = 0  # number of our stream up to which it has everything
        self.heard_at = now
        self._hello_at = float("-inf")

    @property
    def away(self) -> bool:
        """Silent or stalled: entries for it are logged."""
        return self._out.away

    @property
    def full(self) -> bool:
        """Whether the router should stop reading publishers that match this peer."""
        return self._out.full

    @property
    def outbox_bytes(self) -> int:
        """Bytes that the peer has not taken yet, without the hand-off log."""
        return self._out.outbox_bytes

    @property
    def handoff_bytes(self) -> int:
        """Bytes in the hand-off log."""
        return self._stream.handoff_bytes

    @property
    def refusals(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """See `Incoming.refusals`."""
        return self._in.refusals

    @property
    def unacknowledged(self) -> int:
        """Number of batches and interest updates that the peer has not acked yet, including the hand-off log."""
        return len(self._stream.kept)

    def oldest_seconds(self, now: float) -> float:
        """Return the age of the oldest of them; 0.0: there is none. As exact as the times passed to tick and flush."""
        return now - self._stream.kept[0].at if self._stream.kept else 0.0

    # ------------------------------------------------------------ time and transport

    def flush(self, now: float) -> bool:
        """Send, at the end of the tick, interest, messages that the transport refused before, and acks; then call
        events left by submit.

        Return True when something still waits for the transport (call again when its descriptor is readable).
        """
        out, stream = self._out, self._stream
        out.now = now
        if out.waits_for_welcome:
            self._say_welcome()
        if self._owe_hello and not out.blocked:
            self._say_hello()
        if out.is_open and (
            self._in.owe or stream.unsent or out.waiting or out.interest_sent != self._publisher.number
        ):
            out.flush()
        if stream.done or stream.over or stream.released >= 0:
            stream.tell_done()
        if stream.unloadable:
            stream.unload()
        return bool(stream.unsent or out.waiting) and out.is_open and not stream.holds

    def outstanding(self) -> int:
        """Return the last number that the peer has to receive; 0: it has all, or is not waited for."""
        number = self._stream.sequence
        return number if self.lacks(number) else 0

    def lacks(self, number: int) -> bool:
        """Whether the peer is waited for and has not received that number. It is not if it is away or gone, nor if what
        it should receive waits for a store that has failed.
        """
        stream = self._stream
        return self._received_by_peer < number and self._out.is_open and not self._out.away and not stream.cannot_store

    def acknowledge_interest(self, number: int) -> None:
        """Acknowledge the peer's interest up to this number, with the next message."""
        self._in.interest_acked = number
        self._in.owe = True

    def tick(self, now: float) -> None:
        """Check heartbeat, silence, stall and greeting. Call it at least every link_silence_seconds_max / 10."""
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
            self.confirm_no_longer()
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
        """Send again: the transport may take messages (its descriptor was readable). Returns the same as `flush`."""
        self._out.blocked = False
        return self.flush(now)

    # ------------------------------------------------------------ receiving

    @callback("mesh")
    def receive(self, frames: Sequence[Payload], now: float) -> None:
        """Process one message, whose frames this link may keep.

        Raises EnvelopeError when it is invalid; nothing has happened then.
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
            raise EnvelopeError(f"{self.peer}: kind {kind}, acks {received}, {committed} of {stream.sequence} sent")
        volatile, sequenced, index = split_parts(
            first, frames, HEAD_END + REFUSAL.size * refusals, flags, volatile_bytes, sequenced_bytes,
            payloads_volatile + payloads_sequenced,
        )  # fmt: skip
        self.heard_at = out.now = now
        fresh = frame > incoming.frames_seen
        if fresh:
            incoming.frames_seen = frame
        if sequence > incoming.highest:
            incoming.highest = sequence
        # First the peer's acks for us, then ours for it: an ack may free room that a batch will need.
        if frames_seen > self._seen_by_peer:
            self._seen_by_peer = frames_seen
        if received > self._received_by_peer:
            self._received_by_peer = received
        if acknowledged > incoming.acknowledged:
            incoming.forget_refusals(acknowledged)
        if out.flight:
            out.land(frames_seen)
        if committed > stream.acknowledged:
            if refusals:
                out.take_refusals(first[HEAD_END : HEAD_END + REFUSAL.size * refusals])
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
            if incoming.deliver(kind, flags, sequence, volatile, sequenced, list(frames[index:]), now):
                self._check_ready()
            return
        if flags & SEQUENCED:
            incoming.owe = True
            if sequence <= incoming.received:
                self.traffic.duplicates += 1
        if volatile is not None:
            self._events.batch(self.peer, volatile, None, list(frames[index : index + payloads_volatile]), 0)

    def _receive_unexpected(self, first: Buffer, now: float) -> None:
        """Process a message whose prefix is not that of the known pair: a new incarnation's greeting, or to refuse."""
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
        # After a restart the transport's own back-off would take up to half a second.
        reconnect = new and (out.blocked or self.peer_incarnation != 0)
        if new:
            if self.peer_incarnation:
                self._gone()
                stream.tell_done()
            self._adopt(sender_incarnation, version)
        self.heard_at = out.now = now
        if self._in.greeted(greeting.stream, head):
            out.prefix = self._prefix_of(self.version)
        if greeting.your_stream == stream.id and head.received > stream.sequence and stream.survives:
            self._begin_anew(head)
        elif greeting.your_stream == stream.id and head.received <= stream.sequence:
            self._received_by_peer = head.received
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
            self._say_hello()  # it is heard again: ask now, not at the next heartbeat
        self.flush(now)

    def _begin_anew(self, head: envelope.Head) -> None:
        """Begin another stream: our store has lost numbers that the peer has."""
        self._stream.begin_anew(self._out.advance, head.committed)
        self._received_by_peer = 0
        self._set_expected()
        if head.kind == WELCOME:  # the peer must know the stream first; a HELLO is answered with it
            self._say_hello()

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
        self._set_expected()
        self._in.frames_seen = 0
        self._out.blocked = False

    def _set_expected(self) -> None:
        self._expected = envelope.pack_prefix(
            self.peer, self.own, self.peer_incarnation, self.incarnation, self._stream.id, self.version
        )

    # ------------------------------------------------------------ our greetings

    def greet(self, now: float) -> None:
        """Greet after a pause of our own: the link is not ready until the peer has answered and its interest is taken.

        Messages of the peer may still be in the socket, so its silence is measured anew; also for a peer that was away
        when the pause began: it may have come back, and sent SUBACKs that did not wait for this worker. Where sessions
        outlive their worker, that also holds for a peer that is dead by now: then its successor must be heard.
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
        self._publisher.seal()  # unsealed changes are part of the answer
        if self._say_greeting(WELCOME, self._out.waits_for_welcome):
            self._out.waits_for_welcome = 0
            if not self.ready:
                self._answered = True
                self._events.answered(self.peer)

    def _say_greeting(self, kind: int, greeting: int) -> bool:
        versions = envelope.pack_versions(*self.versions)
        prefix = self._prefix_of(envelope.VERSION_OF_GREETINGS) if self.peer_incarnation else self._out.prefix
        return self._out.greet(kind, greeting, versions, prefix)

    # ------------------------------------------------------------ the peer's state

    def _check_ready(self) -> None:
        heard = self._in.interest_heard
        if not self.ready and self._welcomed and not self._out.away and heard >= self._interest_wanted:
            self.ready = True
            self.confirming = self._answered = False
            self._events.ready(self.peer)

    def _check_stall_over(self) -> None:
        """Return to direct sending: the peer has taken all batches in flight at the stall, and the log is empty."""
        if not self.handoff_bytes and self._seen_by_peer >= self._stall_frame:
            self._stalled = self._out.away = False
            self._check_ready()

    def _leave(self, stalled: bool) -> None:
        """Treat the peer as away: kept batches go to the log, waiting QoS 0 is dropped."""
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
        self.confirm_no_longer()

    def confirm_no_longer(self) -> None:
        """Wait no longer for the answer to `greet`."""
        if self.confirming:
            self.confirming = False
            self._events.unconfirmed(self.peer)

    def down(self, incarnation: int) -> None:
        """Note that the supervisor has reaped that incarnation of the peer: its messages are refused from now on."""
        self._dead = max(self._dead, incarnation)
        if self.peer_incarnation and self.peer_incarnation <= incarnation:
            self._gone()
        self._stream.tell_done()

    def _gone(self) -> None:
        """Note that the peer's incarnation is dead."""
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
        out.interest_sent = self._taken = self._interest_wanted = self._received_by_peer = 0
        self._in.end_incarnation()
        self._owe_hello = False
        out.waits_for_welcome = 0
        self._stream.end_incarnation()
        self._events.gone(self.peer, incarnation)
