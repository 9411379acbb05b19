"""The receiving side of a link: the position in the peer's stream, and the acks and refusals that are due to it.

- `received` is the number up to which the stream was passed to the node; `committed` is the cumulative ack. When a peer
  begins a new stream, its numbers start again: `offset` is the difference to the node's numbers.
- Refused entries are repeated until the peer's `acknowledged` has passed their batch, and are sent with the ack of
  their batch or before it: so an entry is never acked because its refusal was lost.
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from collections import deque
from struct import Struct

from pyx.core.little_endian cimport get64
from pyx.core.work cimport PYTHON, spend_in_c
from pyx.mesh.contract import EnvelopeError
from pyx.mesh.envelope cimport BATCH, INTEREST, LAST, SKIP, SNAPSHOT, WELCOME
from pyx.mesh.receiver cimport view_of

cdef enum:
    REFUSALS_MAX = 1000             # per message if of more than one batch: an ack must include all refusals of a batch

_REFUSED = Struct("<IB")            # position, reason
_REFUSAL = Struct("<QIB")           # number of the batch, position, reason


cdef bytes packed(object refused):
    return b"".join([_REFUSED.pack(*each) for each in refused])


@cython.final
cdef class Incoming:
    """The receiving side of one link. See `Link` for the arguments; `unsaid_bytes_max`: unnumbered bytes received until
    their receipt is reported."""

    def __cinit__(self, peer, events, BatchReceiver batches not None, decode, LinkTraffic traffic not None,
                  uint64_t unsaid_bytes_max, barrier, received, refusals):
        self.peer = peer
        self.events = events
        self.batches = batches
        self.decode = decode
        self.traffic = traffic
        self.unsaid_bytes_max = unsaid_bytes_max
        self.stream, self.received = received
        self.committed = self.highest = self.last_batch = self.received
        self.barrier = barrier
        self.refused = deque([(number, packed(refused)) for number, refused in refusals])

    # ------------------------------------------------------------ calls of the node

    cdef int commit(self, uint64_t sequence, object refused) except -1:
        cdef uint64_t number
        if sequence <= self.floor:
            return 0
        number = sequence - self.offset
        if refused:
            spend_in_c(len(refused) * PYTHON // 4)
            self.refused.append((number, packed(refused)))
        if number > self.committed:
            # interest after the last batch needs no commit of its own
            self.committed = self.received if number >= self.last_batch else number
            self.owe = True
        return 0

    @property
    def refusals(self):
        """Return (number, [(position, reason), ...]) of batches with refused entries that the peer may not know yet.

        A store keeps them (until `LinkEvents.refusals_known`), because they would count as taken after a restart."""
        return [(number, [(position, reason) for position, reason in _REFUSED.iter_unpack(each)])
                for number, each in self.refused]

    # ------------------------------------------------------------ acks

    cdef bytes news(self, uint8_t kind, uint64_t* committed, uint64_t* count):
        cdef uint64_t many
        cdef list found = []
        committed[0] = self.committed
        count[0] = 0
        if not self.refused:
            return b""
        if kind <= WELCOME:             # a greeting has no room for refusals: it must not ack their entries
            committed[0] = min(self.committed, <uint64_t>self.refused[0][0] - 1)
            return b""
        for number, each in self.refused:
            many = <uint64_t>len(each) // _REFUSED.size
            if count[0] and count[0] + many > REFUSALS_MAX:     # the rest is sent with the acks that belong to it
                committed[0] = number - 1
                break
            count[0] += many
            found.extend([_REFUSAL.pack(number, *refused) for refused in _REFUSED.iter_unpack(each)])
        spend_in_c(count[0] * PYTHON // 2)
        return b"".join(found)

    cdef int forget_refusals(self, uint64_t acknowledged) except -1:
        # forget refusals up to this number, which the peer knows
        self.acknowledged = acknowledged
        if self.refused and self.refused[0][0] <= acknowledged:
            while self.refused and self.refused[0][0] <= acknowledged:
                self.refused.popleft()
            self.owe = self.owe or bool(self.refused)   # the next ones are due, with the acks that wait for them
            self.events.refusals_known(self.peer, acknowledged)
        return 0

    # ------------------------------------------------------------ messages received

    cdef int count(self, list frames, bint volatile) except -1:
        # count a message; volatile: it has a part without a number
        cdef uint64_t size = 0
        for frame in frames:
            size += <uint64_t>len(<bytes>frame) if isinstance(frame, bytes) else <uint64_t>memoryview(frame).nbytes
        self.traffic.bytes_received += size
        if volatile:
            self.unsaid_bytes += size
            if self.unsaid_bytes > self.unsaid_bytes_max:
                self.owe = True
        return 0

    cdef bint deliver(self, Head* head, const Part* volatile, const Part* part, list payloads, double now) except -1:
        cdef uint64_t number
        if head.kind == BATCH:
            self.received = self.last_batch = head.sequence
            self.batches.take_batch(<uint32_t>self.peer, volatile, part, payloads, head.sequence + self.offset)
            return False
        if part.data == NULL or part.size < 8:
            raise EnvelopeError(f"kind {head.kind} without its number")
        number = get64(part.data)
        if head.kind == SKIP and not number <= self.received + 1 <= head.sequence:
            self.owe = True
            return False
        if self.committed == self.received:
            self.committed = head.sequence
        self.received = head.sequence
        self.owe = True
        return head.kind == INTEREST and self.take_interest(number, head.flags, view_of(part)[8:], now)

    cdef bint take_interest(self, uint64_t number, uint8_t flags, object part, double now) except -1:
        cdef bint first, last
        cdef list changes = []
        try:
            for change in self.decode(part):
                changes.append(change)
        except EnvelopeError:
            self.traffic.frames_refused += 1    # what can be read counts, and whoever waits for it is answered
        if flags & SNAPSHOT:
            first = not self.in_snapshot
            last = flags & LAST
            self.in_snapshot = not last
            self.events.interest_snapshot(self.peer, changes, first, last)
            if not last:
                return False
        else:
            self.events.interest(self.peer, changes)
        self.interest_heard = number
        if self.barrier is None:
            self.interest_acked = number
        else:
            self.barrier.interest_arrived(self.peer, number, now)
        return True

    # ------------------------------------------------------------ the peer's incarnation

    cdef int end_incarnation(self) except -1:
        # the incarnation is dead: nothing is due to it
        self.owe = False
        self.interest_heard = self.interest_acked = 0
        if self.barrier is not None:
            self.barrier.forget(self.peer)
        self.in_snapshot = False
        return 0

    cdef bint greeted(self, uint64_t stream, Head* head) except -1:
        cdef bint is_new = stream != self.stream
        self.frames_seen = max(self.frames_seen, head.frame)
        if is_new:
            self.begin_stream(stream, head.acknowledged)
        elif head.acknowledged > self.received:
            # acked by a former incarnation of this worker: interest after the last batch in its store
            self.received = self.committed = head.acknowledged
        self.highest = max(self.highest, self.received, head.sequence)
        return is_new

    cdef int begin_stream(self, uint64_t stream, uint64_t acknowledged) except -1:
        self.floor = self.received + self.offset
        self.offset = self.floor - acknowledged
        self.stream = stream
        self.received = self.committed = self.highest = self.last_batch = self.acknowledged = acknowledged
        if self.refused:
            self.refused.clear()
            self.events.refusals_known(self.peer, (1 << 64) - 1)
        return 0
