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
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from collections import deque
from itertools import groupby
from operator import itemgetter
from struct import Struct

from pyx.core.little_endian cimport put32, put64
from pyx.core.work cimport KIBI, OBJECT, PYTHON, spend_in_c, work
from pyx.mesh.contract import Undelivered
from pyx.mesh.envelope cimport (
    ACK, BATCH, GAP, GREETING_BYTES, HEAD_END, Head, INLINE_BYTES_MAX, LAST, MORE, PREFIX_BYTES, REFUSAL_BYTES,
    SEQUENCED, SEQUENCED_FRAME, SNAPSHOT, VOLATILE_FRAME, write_head,
)
from pyx.mesh.sockets cimport Push
from pyx.storage.entries cimport Packed, count_entries

cdef enum:
    OUTBOX_BATCHES_MAX = 8192       # when the peer dies or is silent, all of them are logged in one callback

_REFUSAL = Struct("<QIB")           # number of the batch, position, reason


cdef uint64_t size_of(object part) except? 0:
    if isinstance(part, Packed):
        return (<Packed>part).size
    if isinstance(part, bytes):
        return <uint64_t>len(<bytes>part)
    return <uint64_t>memoryview(part).nbytes


cdef uint64_t size_of_all(list payloads) except? 0:
    cdef uint64_t size = 0
    for payload in payloads:
        size += size_of(payload)
    return size


cdef uint8_t* put_part(uint8_t* p, object part) except NULL:
    cdef const uint8_t[::1] view
    cdef uint64_t size = size_of(part)
    if not size:
        return p
    if isinstance(part, Packed):
        memcpy(p, (<Packed>part).at, size)
    elif isinstance(part, bytes):
        memcpy(p, PyBytes_AS_STRING(part), size)
    else:
        view = part
        memcpy(p, &view[0], size)
    return p + size


@cython.final
cdef class Outgoing:
    """The sending side of one link. See `Link` for the arguments."""

    def __cinit__(self, peer, Stream stream not None, Incoming incoming not None, publisher, events, send, limits,
                  LinkTraffic traffic not None, bytes prefix not None, double now):
        self.peer = peer
        self.stream = stream
        self.incoming = incoming
        self.publisher = publisher
        self.events = events
        self.send = send
        self.traffic = traffic
        self.outbox_bytes_max = limits.peer_outbox_bytes_max
        self.prefix = prefix
        self.now = self.full_since = self.said_at = now
        self.waiting = deque()
        self.flight = deque()

    cdef bint is_idle(self, uint64_t taken) except -1:
        # Whether nothing waits to be sent, or to be acknowledged by the peer, and nothing is owed to it. `taken`: the
        # number of our interest that it has taken
        if self.away or self.full or self.blocked or self.waits_for_welcome or \
                isinstance(self.send, Push) and (<Push>self.send).connection is None:
            return False
        return taken == self.interest_sent and not self.stream.count() and not self.volatile_bytes \
            and not self.incoming.owe

    cdef bint is_due(self) except -1:
        # whether the link's `flush` has something to do
        return self.incoming.owe or self.waits_for_welcome or self.stream.unsent or self.stream.done or \
            self.stream.over or self.stream.released >= 0 or self.stream.unloadable or self.waiting

    cdef uint64_t outbox(self) noexcept:
        # bytes that the peer has not taken yet
        return self.stream.outbox_bytes + self.volatile_bytes

    cdef bint submit(self, object volatile, object sequenced, list payloads_volatile, list payloads_sequenced,
                     int64_t ticket, int64_t entries_volatile, int64_t entries_sequenced, bint hold) except -1:
        cdef Stream stream = self.stream
        cdef uint64_t volatile_bytes = 0, nbytes
        cdef Unacknowledged item = None
        cdef bint is_sent
        if entries_volatile > 0:
            self.traffic.messages_sent += entries_volatile
        if entries_sequenced > 0:
            self.traffic.messages_sent += entries_sequenced
        if volatile is not None:
            volatile_bytes = size_of(volatile) + size_of_all(payloads_volatile)
        if sequenced is not None:
            nbytes = size_of(sequenced) + size_of_all(payloads_sequenced)
            if self.is_open and not self.away:
                item = stream.add(sequenced, payloads_sequenced, nbytes, ticket, entries_sequenced, self.now, hold)
            else:
                stream.add_absent(sequenced, payloads_sequenced, nbytes, ticket, entries_sequenced, self.now, self.away,
                                  hold)
        if self.is_open and not stream.unsent and not self.waiting and not self.blocked and not stream.holds:
            is_sent = True
            if item is not None:
                is_sent = self.transmit_batch(item, volatile, payloads_volatile, volatile_bytes)
                if not is_sent:
                    stream.unsent = 1
            elif volatile is not None:
                is_sent = self.transmit_batch(None, volatile, payloads_volatile, volatile_bytes)
            if not is_sent and volatile is not None:
                self.wait(volatile, payloads_volatile, volatile_bytes, entries_volatile)
        else:
            if item is not None:
                stream.unsent += 1
            if volatile is not None:
                self.wait(volatile, payloads_volatile, volatile_bytes, entries_volatile)
        if not self.full and not self.away and \
                (self.outbox() >= self.outbox_bytes_max or stream.outbox_batches >= OUTBOX_BATCHES_MAX):
            self.full = True
            self.full_since = self.now
        return self.full

    # ------------------------------------------------------------ without a number

    cdef int wait(self, object part, list payloads, uint64_t nbytes, int64_t entries) except -1:
        # keep a volatile part that cannot be sent now, for a peer that is there, up to twice the limit
        if self.is_open and not self.away and self.outbox() < 2 * self.outbox_bytes_max:
            self.waiting.append((part, payloads, entries))
            self.volatile_bytes += nbytes
        else:
            self.traffic.volatile_dropped += count_entries(part) if entries < 0 else entries
        return 0

    cdef int drop_volatile(self) except -1:
        # drop waiting volatile parts: the peer is away, or gone
        while self.waiting:
            part, payloads, entries = self.waiting.popleft()
            self.volatile_bytes -= size_of(part) + size_of_all(payloads)
            self.traffic.volatile_dropped += count_entries(part) if entries < 0 else <int64_t>entries
        while self.flight:
            self.volatile_bytes -= <uint64_t>self.flight.popleft()[1]
        return 0

    cdef int land(self, uint64_t frames_seen) except -1:
        # the peer has seen frames up to this one
        while self.flight and <uint64_t>self.flight[0][0] <= frames_seen:
            self.volatile_bytes -= <uint64_t>self.flight.popleft()[1]
        if self.full:
            self.look_for_room()
        return 0

    cdef void look_for_room(self) noexcept:
        self.full = self.outbox() > self.outbox_bytes_max // 2 or \
            self.stream.outbox_batches > OUTBOX_BATCHES_MAX // 2

    # ------------------------------------------------------------ with a number

    cdef int advance(self, uint64_t committed) except -1:
        # process the peer's cumulative ack
        cdef int64_t ticket = self.stream.advance(committed)
        if self.stream.unsent and self.stream.waits_for_room():
            self.pump()
        if self.full:
            self.look_for_room()
        if ticket >= 0:
            self.events.acknowledged(self.peer, ticket)
        return 0

    cdef int take_refusals(self, bytes packed) except -1:
        # report entries that the peer has refused
        cdef Unacknowledged item
        self.incoming.owe = True            # so that the peer can stop repeating them
        spend_in_c(len(packed) // REFUSAL_BYTES * PYTHON // 2)
        for sequence, of_batch in groupby(_REFUSAL.iter_unpack(packed), itemgetter(0)):
            item = self.stream.find(sequence) if sequence > self.stream.acknowledged else None
            if item is not None and item.sequence == sequence and item.kind == BATCH:
                part, payloads = self.stream.content(item)
                batch = Undelivered(item.ticket, part, payloads, item.entries, True)
                self.events.refused(self.peer, batch, [(position, reason) for _, position, reason in of_batch])
        return 0

    cdef int resend(self, uint64_t received, uint64_t frames_seen) except -1:
        # go back to `received + 1`, which the peer misses, if it has seen a frame after its last transmission
        if self.stream.misses(received, frames_seen):
            self.stream.go_back(self.stream.index(received + 1))
            self.pump()
        return 0

    cdef int tell_interest(self) except -1:
        # queue changes of our interest that the peer has not been sent; they are sent in order with the batches
        cdef uint8_t[8] number
        cdef uint8_t flags
        for told in self.publisher.since(self.interest_sent):
            put64(number, told.number)
            for i, part in enumerate(told.parts):
                spend_in_c(2 * PYTHON)
                flags = SEQUENCED | (SNAPSHOT if told.snapshot else 0) | (LAST if i == len(told.parts) - 1 else 0)
                self.stream.add_interest(number[:8] + part, flags, self.now)
            self.interest_sent = told.number
        return 0

    cdef int flush(self) except -1:
        # send interest, messages that the transport refused before, and acks, if batches may be sent
        if self.interest_sent != <uint64_t>self.publisher.number and not self.waits_for_welcome:
            self.tell_interest()
        if self.stream.unsent or self.waiting:
            self.blocked = False
            self.pump()
        if self.incoming.owe and not self.blocked:
            self.ack()
        return 0

    cdef int pump(self) except -1:
        # send waiting messages until the transport refuses
        cdef Unacknowledged item
        cdef uint64_t nbytes
        cdef Stream stream = self.stream
        if not self.is_open or self.waits_for_welcome:
            return 0
        while self.waiting:
            part, payloads, _ = self.waiting[0]
            nbytes = size_of(part) + size_of_all(payloads)
            if not self.transmit_batch(None, part, payloads, nbytes):
                return 0
            self.waiting.popleft()
            self.volatile_bytes -= nbytes   # counted again as in flight
        while stream.unsent:
            item = stream.item(stream.count() - stream.unsent)
            spend_in_c(PYTHON)
            if not stream.may_leave(item):
                return 0
            if item.kind == BATCH:
                if not self.transmit_batch(item, None, None, 0):
                    return 0
            elif not self.transmit_other(item):
                return 0
            stream.unsent -= 1
        return 0

    # ------------------------------------------------------------ messages

    cdef int ack(self) except -1:
        # send only the state of both directions: an ack, a heartbeat
        if not self.transmit(ACK, 0, None, None, None, None, 0, 0, 0, 0, 0):
            self.incoming.owe = True
        return 0

    def acknowledge(self):
        """Send an ack now."""
        self.ack()

    cdef bint greet(self, uint8_t kind, uint32_t greeting, uint32_t versions, bytes prefix) except -1:
        # send HELLO or WELCOME of that number; returns False if the transport did not take it
        cdef uint8_t[GREETING_BYTES] body
        cdef bytes former = self.prefix
        put32(put64(put64(put64(body, self.stream.id), self.incoming.stream), self.publisher.number), greeting)
        self.prefix = prefix
        try:
            return self.transmit(kind, 0, None, body[:GREETING_BYTES], None, None, versions, 0, 0, 0, 0)
        finally:
            self.prefix = former

    cdef bint transmit_batch(self, Unacknowledged item, object volatile, list payloads_volatile,
                             uint64_t volatile_bytes) except -1:
        cdef uint8_t flags = 0
        cdef uint64_t first_bytes = 0, second_bytes = 0
        cdef Py_ssize_t many = 0
        cdef object first = None, second = None, part = None, payloads = None
        cdef list frames = None
        cdef bint is_sent
        if item is not None:
            flags = SEQUENCED
            part, payloads = self.stream.content(item)
            second_bytes = size_of(part)
        if volatile is not None:
            first_bytes = size_of(volatile)
            if first_bytes > INLINE_BYTES_MAX:
                flags |= VOLATILE_FRAME
                frames = [volatile]
            else:
                first = volatile
        if part is not None:
            if second_bytes > INLINE_BYTES_MAX:
                flags |= SEQUENCED_FRAME
                if frames is None:
                    frames = []
                frames.append(part)
            else:
                second = part
        if payloads_volatile:
            frames = frames + payloads_volatile if frames is not None else payloads_volatile
        if payloads:
            many = len(payloads)
            frames = frames + list(payloads) if frames is not None else list(payloads)
        is_sent = self.transmit(
            BATCH, flags, item, first, second, frames, first_bytes, second_bytes,
            len(payloads_volatile) if payloads_volatile is not None else 0, many, volatile_bytes
        )
        if is_sent and item is not None:
            self.stream.just_read = None
            if item.unloaded:
                self.stream.was_read(item)
        return is_sent

    cdef bint transmit_other(self, Unacknowledged item) except -1:
        # send interest or SKIP: one part, no payloads
        cdef uint64_t nbytes = size_of(item.part)
        if nbytes > INLINE_BYTES_MAX:
            return self.transmit(
                item.kind, item.flags | SEQUENCED_FRAME, item, None, None, [item.part], 0, nbytes, 0, 0, 0
            )
        return self.transmit(item.kind, item.flags, item, None, item.part, None, 0, nbytes, 0, 0, 0)

    cdef bint transmit(self, uint8_t kind, uint8_t flags, Unacknowledged item, object first, object second,
                       list frames, uint64_t first_bytes, uint64_t second_bytes, Py_ssize_t payloads_volatile,
                       Py_ssize_t payloads_sequenced, uint64_t volatile_bytes) except -1:
        # send one message with the state of both directions; `first` and `second` follow the head. Returns False, with
        # nothing changed, if the transport refused it
        cdef Stream stream = self.stream
        cdef Incoming incoming = self.incoming
        cdef Head head
        cdef bytes refused = None, whole
        cdef uint64_t count = 0, size
        cdef uint8_t* p
        memset(&head, 0, sizeof(head))
        head.committed = incoming.committed
        if incoming.refused:
            refused = incoming.news(kind, &head.committed, &count)
        if frames is not None:
            flags |= MORE
        if incoming.highest > incoming.received:
            flags |= GAP
        head.kind = kind
        head.flags = flags
        head.refusals = <uint16_t>count
        head.volatile_bytes = <uint32_t>first_bytes
        head.sequenced_bytes = <uint32_t>second_bytes
        head.payloads_volatile = <uint32_t>payloads_volatile
        head.payloads_sequenced = <uint32_t>payloads_sequenced
        head.frame = self.frame + 1
        head.sequence = stream.sent if item is None else item.sequence
        head.received = incoming.received
        head.acknowledged = stream.acknowledged
        head.frames_seen = incoming.frames_seen
        head.taken = incoming.interest_acked
        size = HEAD_END + count * REFUSAL_BYTES + (size_of(first) if first is not None else 0)
        if second is not None:
            size += size_of(second)
        work(OBJECT + size // 1024 * KIBI)
        whole = PyBytes_FromStringAndSize(NULL, size)
        p = <uint8_t*>PyBytes_AS_STRING(whole)
        memcpy(p, PyBytes_AS_STRING(self.prefix), PREFIX_BYTES)
        write_head(p + PREFIX_BYTES, &head)
        p += HEAD_END
        if count:
            p = put_part(p, refused)
        if first is not None:
            p = put_part(p, first)
        if second is not None:
            put_part(p, second)
        frames = [whole] if frames is None else [whole, *frames]
        self.blocked = not ((<Push>self.send).send(frames) if isinstance(self.send, Push) else self.send(frames))
        if self.blocked:
            return False
        self.frame = head.frame
        incoming.owe = False
        incoming.unsaid_bytes = 0
        self.said_at = self.now
        if item is not None:
            if item.frame:
                self.traffic.resent += 1
            item.frame = head.frame
            if item.sequence > stream.sent:
                stream.sent = item.sequence
            self.traffic.bytes_sent += item.nbytes
        if kind == BATCH:
            self.traffic.batches_sent += 1
        if volatile_bytes:
            self.flight.append((head.frame, volatile_bytes))
            self.volatile_bytes += volatile_bytes
            self.traffic.bytes_sent += volatile_bytes
        return True
