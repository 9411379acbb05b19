"""One link to one peer, without sockets: the peer's incarnation and state, and the dispatch of its messages.

Numbered messages that are kept until the peer has them: `pyx.mesh.stream`. Sending: `pyx.mesh.outgoing`. Receiving:
`pyx.mesh.incoming`. Here they are combined:

- HELLO introduces an incarnation, WELCOME answers it; both state the position in the other's stream, and the versions
  of the mesh that the sender speaks: a rolling restart mixes two releases. Everything else is in the newest version
  that both speak; a peer that speaks none of ours counts as absent. A message from or for another incarnation is
  refused and counted. Interest starts with a snapshot for each new incarnation.
- ready: the peer answered a greeting made now, and all its interest as of then was taken.
- away: silent for too long (stopped), or full for too long. Its interest stays in force.
- gone: reaped, or replaced by a new incarnation.

Nothing here reads a clock or a socket: `now` (seconds, monotonic) and `send` are arguments. Events are called
synchronously from receive, tick, flush, writable, down and confirm_no_longer, and when the hand-off log is stored;
never from submit, commit or greet. No Python code runs for a batch.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from pyx.core.work cimport MESH, Mark, callback_begins, callback_ends
from pyx.mesh.contract import EnvelopeError
from pyx.mesh.envelope cimport (
    ACK, GAP, Greeting, HEAD_END, HELLO, OLDEST_VERSION, PREFIX_BYTES, Prefix, REFUSAL_BYTES, SEQUENCED, SKIP, VERSION,
    VERSION_OF_GREETINGS, WELCOME, pack_prefix, read_greeting, read_head, read_prefix, split_parts,
)
from pyx.mesh.receiver cimport EventReceiver, Part


@cython.final
cdef class Link:
    """What a worker knows of one peer, for both directions.

    own: this worker's number in messages (pyx.core.peer). peer: what events and the node call the other one; its number
    in messages, unless that is given. incarnation: of this worker, greater than that of every earlier one. publisher:
    of this worker's interest; it also decodes the peer's. send: takes the frames of one message and returns whether the
    transport accepted it (False = try again later). reconnect: asks the transport for a new connection now instead of
    after its back-off (the peer has just been restarted). handoff: a log that outlives the worker; None = memory.
    received: (stream, sequence) of the peer's stream that this worker's store has committed, (0, 0) = nothing (see
    `position`). refusals: the stored ones, as (number, [(position, reason), ...]) of each batch. versions: the
    oldest and the newest spoken here. barrier, batches: shared by all links of a worker; None: interest is acknowledged
    at once, batches are events. rests: an idle link sends no heartbeats, and expects none."""

    def __cinit__(self, own, peer, uint64_t incarnation, publisher, events, send, limits, double now, *,
                  reconnect=None, handoff=None, received=(0, 0), refusals=(),
                  versions=(<int>OLDEST_VERSION, <int>VERSION), barrier=None, rests=False, batches=None, number=None):
        self.own, self.peer, self.number = own, peer, peer if number is None else number
        self.incarnation = incarnation
        self.versions = versions
        self.silence = limits.link_silence_seconds_max
        self.stall = limits.peer_stall_seconds_max
        self.traffic = LinkTraffic()
        self.publisher = publisher
        self.events = events
        self.reconnect = reconnect
        self.stream = Stream(peer, incarnation, events, limits, self.traffic, handoff, now)
        self.incoming = Incoming(
            peer, events, batches if batches is not None else EventReceiver(events), publisher.decode, self.traffic,
            limits.peer_outbox_bytes_max // 8, barrier, received, refusals
        )
        self.out = Outgoing(
            peer, self.stream, self.incoming, publisher, events, send, limits, self.traffic,
            self.prefix_of(VERSION_OF_GREETINGS, False), now
        )
        self.greeting = 1
        self.rests = rests
        self.expected = b""
        self.heard_at = now
        self.hello_at = -INFINITY

    @property
    def away(self):
        """Silent or stalled: entries for it are logged."""
        return self.out.away

    @property
    def full(self):
        """Whether the router should stop reading publishers that match this peer."""
        return self.out.full

    @property
    def outbox_bytes(self):
        """Bytes that the peer has not taken yet, without the hand-off log."""
        return self.out.outbox()

    @property
    def handoff_bytes(self):
        """Bytes in the hand-off log."""
        return self.stream.handoff_bytes

    @property
    def unacknowledged(self):
        """Number of batches and interest updates that the peer has not acked yet, including the hand-off log."""
        return self.stream.count()

    def oldest_seconds(self, double now):
        """Return the age of the oldest unacknowledged one, by the times of tick and flush; 0.0: there is none."""
        return now - self.stream.item(0).at if self.stream.count() else 0.0

    # ------------------------------------------------------------ calls of the node

    cpdef bint submit(self, object volatile, object sequenced, list payloads_volatile, list payloads_sequenced,
                      int64_t ticket, int64_t entries_volatile=-1, int64_t entries_sequenced=-1,
                      bint hold=False) except -1:
        """Send a batch (at most one per tick). The link owns the buffers, lists and payloads from now on: the caller
        must not change them. Return whether the outbox is full.

        ticket: rising; only a batch with a sequenced part is ever acknowledged. entries_*: number of entries of the
        parts, -1 = counted by the link if it has to drop them. hold: the sequenced part is stored in the hand-off log
        (which must exist) before it is sent: if this worker dies, its successor sends it."""
        return self.out.submit(volatile, sequenced, payloads_volatile, payloads_sequenced, ticket, entries_volatile,
                               entries_sequenced, hold)

    cpdef commit(self, uint64_t sequence, object refused=()):
        """Note that the batch with this number (from events.batch), and all before it, are committed in full.

        refused: (position, reason) of entries of this batch that were not accepted. A number of a peer that is gone is
        ignored. The ack is sent with the next message, at the latest with `flush`."""
        self.incoming.commit(sequence, refused)

    def position(self, uint64_t sequence):
        """Return (stream, number) of events.batch's `sequence`: stored with the records, `received` after a restart."""
        return self.incoming.stream, sequence - self.incoming.offset

    # ------------------------------------------------------------ time and transport

    cpdef bint flush(self, double now) except -1:
        """Send, at the end of the tick, interest, messages that the transport refused before, and acks; then call
        events left by submit.

        Return True when something still waits for the transport: then `writable` is to be called when it has room."""
        cdef Outgoing out = self.out
        cdef Stream stream = self.stream
        out.now = now
        if out.waits_for_welcome:
            self.say_welcome()
        if self.owe_hello and not out.blocked:
            self.say_hello()
        if out.is_open and (
            self.incoming.owe or stream.unsent or out.waiting or out.interest_sent != <uint64_t>self.publisher.number
        ):
            out.flush()
        if stream.done or stream.over or stream.released >= 0:
            stream.tell_done()
        if stream.unloadable:
            stream.unload()
        return (stream.unsent or out.waiting) and out.is_open and not stream.holds

    def outstanding(self):
        """Return the last number that the peer has to receive; 0: it has all, or is not waited for."""
        return self.stream.sequence if self.lacks(self.stream.sequence) else 0

    def lacks(self, uint64_t number):
        """Whether the peer is waited for and has not received that number. It is not if it is away or gone, nor if what
        it should receive waits for a store that has failed."""
        return self.received_by_peer < number and self.out.is_open and not self.out.away \
            and not self.stream.cannot_store()

    def acknowledge_interest(self, uint64_t number):
        """Acknowledge the peer's interest up to this number, with the next message."""
        self.incoming.interest_acked = number
        self.incoming.owe = True

    def tick(self, double now, bint says=True):
        """Check heartbeat, silence, stall, greeting: ten times per silence, unless idle. says: heartbeat anyway."""
        cdef Outgoing out = self.out
        cdef double pause = self.silence / 5.0
        out.now = now
        if self.look_idle(now):
            self.heard_at = now
        if self.peer_incarnation and now - self.heard_at > self.silence and \
                (not out.away or self.stalled or self.has_answered or self.confirming):
            self.leave(False)
        elif self.confirming and not self.peer_incarnation and now - self.heard_at > self.silence:
            self.confirm_no_longer()
        elif out.full and now - out.full_since > self.stall:
            self.leave(True)
        elif self.stalled:
            self.check_stall_over()
        if not self.welcomed and now - self.hello_at >= (pause if out.away else pause / 3.0):
            self.say_hello()
        elif out.is_open and now - out.said_at >= pause * 0.75 and (says or not self.is_idle):
            out.ack()
        self.flush(now)

    def writable(self, double now):
        """Send again: the transport may take messages. Returns the same as `flush`."""
        self.out.blocked = False
        return self.flush(now)

    # ------------------------------------------------------------ receiving

    def receive(self, list frames not None, double now):
        """Process one message, whose frames this link may keep. EnvelopeError: nothing but its acks was taken."""
        self.take(frames, now)

    cdef int take(self, list frames, double now) except -1:
        cdef bytes first = frames[0]
        cdef Head head
        cdef Mark mark
        callback_begins(&mark)
        if len(first) < PREFIX_BYTES or len(self.expected) != PREFIX_BYTES or \
                memcmp(PyBytes_AS_STRING(first), PyBytes_AS_STRING(self.expected), PREFIX_BYTES) != 0:
            self.take_unexpected(first, now)
        elif len(first) < HEAD_END:
            raise EnvelopeError(f"{len(first)} bytes are too few for a mesh message")
        else:
            read_head(<const uint8_t*>PyBytes_AS_STRING(first) + PREFIX_BYTES, &head)
            if head.kind <= WELCOME:
                self.greeted(self.peer_incarnation, first, now)
            else:
                self.take_known(first, frames, &head, now)
        callback_ends(&mark, MESH)
        return 0

    cdef int take_known(self, bytes first, list frames, Head* head, double now) except -1:
        cdef Stream stream = self.stream
        cdef Incoming incoming = self.incoming
        cdef Outgoing out = self.out
        cdef Part volatile, sequenced
        cdef Py_ssize_t index
        cdef bint fresh
        if head.kind > SKIP or head.committed > stream.sequence or head.received > stream.sequence or \
                head.frames_seen > out.frame:
            raise EnvelopeError(
                f"{self.peer}: kind {head.kind}, acks {head.received}, {head.committed} of {stream.sequence} sent"
            )
        index = split_parts(frames, head, &volatile, &sequenced)
        self.heard_at = out.now = now
        self.is_asked = False
        if now - out.said_at >= self.silence / 10.0:
            incoming.owe = True             # it may be waiting for a sign of life
        fresh = head.frame > incoming.frames_seen
        if fresh:
            incoming.frames_seen = head.frame
        if head.sequence > incoming.highest:
            incoming.highest = head.sequence
        # first the peer's acks for us, then ours for it: an ack may free room that a batch will need
        if head.frames_seen > self.seen_by_peer:
            self.seen_by_peer = head.frames_seen
        if head.received > self.received_by_peer:
            self.received_by_peer = head.received
        if head.acknowledged > incoming.acknowledged:
            incoming.forget_refusals(head.acknowledged)
        if out.flight:
            out.land(head.frames_seen)
        if head.committed > stream.acknowledged:
            if head.refusals:
                out.take_refusals(first[HEAD_END:HEAD_END + REFUSAL_BYTES * head.refusals])
            out.advance(head.committed)
            if self.stalled:
                self.check_stall_over()
        if head.taken > self.taken:
            self.taken = head.taken
            self.events.interest_taken(self.peer, head.taken)
        if head.flags & GAP:
            out.resend(head.received, head.frames_seen)

        if head.kind == ACK:
            if incoming.highest > incoming.received:
                incoming.owe = True
            return 0
        incoming.count(frames, volatile.data != NULL)
        if not fresh and volatile.data != NULL:
            volatile.data = NULL
            index += head.payloads_volatile
        if head.flags & SEQUENCED and (head.sequence == incoming.received + 1 or head.kind == SKIP):
            if incoming.deliver(head, &volatile, &sequenced, frames[index:], now):
                self.check_ready()
            return 0
        if head.flags & SEQUENCED:
            incoming.owe = True
            if head.sequence <= incoming.received:
                self.traffic.duplicates += 1
        if volatile.data != NULL:
            sequenced.data = NULL
            frames = frames[index:index + head.payloads_volatile]
            incoming.batches.take_batch(<uint32_t>self.peer, &volatile, &sequenced, frames, 0)
        return 0

    cdef int take_unexpected(self, bytes first, double now) except -1:
        # a message whose prefix is not that of the known pair: a new incarnation's greeting, or to be refused
        cdef Head head
        cdef Prefix prefix
        read_prefix(first, self.own, self.number, &prefix)
        read_head(<const uint8_t*>PyBytes_AS_STRING(first) + PREFIX_BYTES, &head)
        if prefix.version != VERSION_OF_GREETINGS or \
                head.kind != HELLO and (head.kind != WELCOME or prefix.receiver_incarnation != self.incarnation):
            self.traffic.frames_refused += 1
            return 0
        return self.greeted(prefix.sender_incarnation, first, now)

    cdef int greeted(self, uint64_t sender_incarnation, bytes first, double now) except -1:
        cdef Head head
        cdef Greeting greeting
        cdef bint new, reconnect
        cdef int version
        cdef Stream stream = self.stream
        cdef Outgoing out = self.out
        read_head(<const uint8_t*>PyBytes_AS_STRING(first) + PREFIX_BYTES, &head)
        read_greeting(first, &head, &greeting)
        if sender_incarnation <= self.dead or sender_incarnation < self.peer_incarnation:
            self.traffic.frames_refused += 1
            return 0
        version = min(greeting.newest, <int>self.versions[1])
        if version < max(greeting.oldest, <int>self.versions[0]):
            self.traffic.frames_refused += 1
            if sender_incarnation != self.foreign:
                self.foreign = sender_incarnation
                self.events.incompatible(self.peer, greeting.oldest, greeting.newest)
            return 0
        new = sender_incarnation != self.peer_incarnation
        # after a restart the transport's own back-off would take up to half a second
        reconnect = new and (out.blocked or self.peer_incarnation != 0)
        if new:
            if self.peer_incarnation:
                self.end()
                stream.tell_done()
            self.adopt(sender_incarnation, version)
        self.heard_at = out.now = now
        if self.incoming.greeted(greeting.stream, &head):
            out.prefix = self.prefix_of(self.version, True)
        if greeting.your_stream == stream.id and head.received > stream.sequence and stream.handoff is not None:
            self.begin_anew(&head)
        elif greeting.your_stream == stream.id and head.received <= stream.sequence:
            self.received_by_peer = head.received
            if head.committed > stream.acknowledged:
                out.advance(head.committed)
            if new:
                stream.go_back(stream.index(head.received + 1))
            elif head.received < stream.sent:
                out.resend(head.received, head.frames_seen)
        else:
            stream.go_back(0)
        if head.kind == HELLO:
            out.waits_for_welcome = greeting.number
            if reconnect and self.reconnect is not None:
                self.reconnect()
            self.say_welcome()
        if new or head.kind == WELCOME and greeting.number == self.greeting:
            self.welcomed = True
            self.interest_wanted = greeting.interest
            if out.away and not self.stalled:
                out.away = False
            out.is_open = True
            self.check_ready()
        elif not self.welcomed and self.hello_at < now:
            self.say_hello()                # it is heard again: ask now, not at the next heartbeat
        self.flush(now)
        return 0

    cdef int begin_anew(self, Head* head) except -1:
        # begin another stream: our store has lost numbers that the peer has
        cdef uint64_t done = min(head.committed, <uint64_t>self.stream.handoff.reserved)
        if done > self.stream.acknowledged:
            self.out.advance(done)
        self.stream.begin_anew()
        self.received_by_peer = 0
        self.set_expected()
        if head.kind == WELCOME:            # the peer must know the stream first; a HELLO is answered with it
            self.say_hello()
        return 0

    cdef bytes prefix_of(self, int version, bint is_known):
        # of our messages; is_known: the peer's incarnation and stream are
        return pack_prefix(version, self.incoming.stream if is_known else 0, self.own, self.number, self.incarnation,
                           self.peer_incarnation if is_known else 0)

    cdef int adopt(self, uint64_t incarnation, int version) except -1:
        self.peer_incarnation = incarnation
        self.version = version
        self.out.prefix = self.prefix_of(version, True)
        self.set_expected()
        self.incoming.frames_seen = 0
        self.out.blocked = False
        return 0

    cdef int set_expected(self) except -1:
        self.expected = pack_prefix(self.version, self.stream.id, self.number, self.own, self.peer_incarnation,
                                    self.incarnation)
        return 0

    # ------------------------------------------------------------ our greetings

    def greet(self, double now):
        """Greet after a pause of our own: the link is not ready until the peer has answered and its interest is taken.

        Messages of the peer may still be in the socket, so its silence is measured anew; also for a peer that was away
        when the pause began: it may have come back, and sent SUBACKs that did not wait for this worker. Where sessions
        outlive their worker, that also holds for a peer that is dead by now: then its successor must be heard."""
        self.out.now = self.out.full_since = self.heard_at = now
        self.ready = False
        self.confirming = self.peer_incarnation != 0 or self.stream.handoff is not None
        self.welcomed = False
        self.greeting += 1
        self.say_hello()

    cdef int say_hello(self) except -1:
        self.owe_hello = not self.say_greeting(HELLO, self.greeting)
        self.hello_at = self.out.now
        return 0

    cdef int say_welcome(self) except -1:
        self.publisher.seal()               # unsealed changes are part of the answer
        if self.say_greeting(WELCOME, self.out.waits_for_welcome):
            self.out.waits_for_welcome = 0
            if not self.ready:
                self.has_answered = True
                self.events.answered(self.peer)
        return 0

    cdef bint say_greeting(self, uint8_t kind, uint32_t greeting) except -1:
        return self.out.greet(kind, greeting, <uint32_t>self.versions[0] | <uint32_t>self.versions[1] << 8,
                              self.prefix_of(VERSION_OF_GREETINGS, True) if self.peer_incarnation else self.out.prefix)

    # ------------------------------------------------------------ the peer's state

    cdef int check_ready(self) except -1:
        if not self.ready and self.welcomed and not self.out.away and \
                self.incoming.interest_heard >= self.interest_wanted:
            self.ready = True
            self.confirming = self.has_answered = False
            self.events.ready(self.peer)
        return 0

    cdef bint look_idle(self, double now) except -1:
        # Whether neither side waits for the other. One that waits is silent from now on at the earliest
        cdef Outgoing out = self.out
        cdef bint idle = self.rests and self.ready and not self.is_asked and not self.confirming and not self.owe_hello
        idle = idle and self.received_by_peer >= self.stream.sequence and out.is_idle(self.taken)
        if self.is_idle and not idle:
            self.heard_at = now
        self.is_idle = idle
        return idle

    cdef int check_stall_over(self) except -1:
        # return to direct sending: the peer has taken all batches in flight at the stall, and the log is empty
        if not self.stream.handoff_bytes and self.seen_by_peer >= self.stall_frame:
            self.stalled = self.out.away = False
            self.check_ready()
        return 0

    cdef int leave(self, bint stalled) except -1:
        # treat the peer as away: kept batches go to the log, waiting QoS 0 is dropped
        cdef Outgoing out = self.out
        cdef bint told = not out.away or self.has_answered
        out.away = True
        self.has_answered = False
        self.ready = False
        self.stalled = stalled
        self.stall_frame = out.frame
        if not stalled:
            out.is_open = False
            self.welcomed = False
            self.greeting += 1
        out.drop_volatile()
        self.stream.log_all()
        out.full = False
        if told:
            self.events.away(self.peer)
        self.confirm_no_longer()
        return 0

    def confirm_no_longer(self):
        """Wait no longer for the answer to `greet`."""
        if self.confirming:
            self.confirming = False
            self.events.unconfirmed(self.peer)

    def down(self, uint64_t incarnation):
        """Note that the supervisor has reaped that incarnation of the peer: its messages are refused from now on."""
        self.dead = max(self.dead, incarnation)
        if self.peer_incarnation and self.peer_incarnation <= incarnation:
            self.end()
        self.stream.tell_done()

    cdef int end(self) except -1:
        # the peer's incarnation is dead
        cdef Outgoing out = self.out
        cdef uint64_t incarnation = self.peer_incarnation
        self.peer_incarnation = 0
        self.dead = max(self.dead, incarnation)
        self.ready = out.away = out.full = False
        self.confirming = self.confirming and self.stream.handoff is not None
        out.is_open = self.welcomed = self.stalled = self.has_answered = False
        self.greeting += 1
        self.hello_at = -INFINITY
        self.expected = b""
        out.prefix = self.prefix_of(VERSION_OF_GREETINGS, False)
        out.drop_volatile()
        out.interest_sent = self.taken = self.interest_wanted = self.received_by_peer = 0
        self.incoming.end_incarnation()
        self.owe_hello = False
        out.waits_for_welcome = 0
        self.stream.end_incarnation()
        self.events.gone(self.peer, incarnation)
        return 0
