"""The links of one worker together: where each message goes, how much is taken in a round, and the end of a round.

The transports (`zmq_mesh.contract`) call `received` for each message, and `may_receive` before they read. A sibling
that has sent more than its share of a round waits for the next one, as do all when the round is over.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.little_endian cimport get32
from pyx.mesh.contract import EnvelopeError
from pyx.mesh.envelope cimport PREFIX_BYTES, WELCOME
from pyx.mesh.sockets cimport Push

cdef enum:
    SENDER_AT = 4                   # in the prefix


@cython.final
cdef class Links(Receiver):
    """The links by peer. `publisher`: of this worker's interest; `drain_bytes_max`: bytes of one peer per round;
    `batches`: takes what they bring, None: their batches are events of the links. `host_publisher`: of the interest of
    this worker's host, for rails; None: there are none."""

    def __cinit__(self, publisher, uint64_t drain_bytes_max, BatchReceiver batches=None):
        self.by_peer = {}
        self.by_number = {}
        self.links = []
        self.batches = batches
        self.waiting = ()
        self.publisher = publisher
        self.flushes = []
        self.drain_bytes_max = drain_bytes_max
        self.go_on = self.when_sealed = _nothing

    def add(self, Link link not None, barrier, flush=None):
        """Add a link. `barrier`: of all links to siblings, see `zmq_mesh.barrier`. `flush` sends what its transport has
        gathered; None: it sends at once."""
        if barrier is not None:
            self.barrier = barrier
            self.waiting = barrier.waiting
        self.by_peer[link.peer] = link
        self.by_number[link.number] = link
        self.links.append(link)
        if flush is not None:
            self.flushes.append(flush)

    def remove(self, Link link not None):
        """Forget a link without `flush`: its messages are malformed from now on."""
        del self.by_peer[link.peer]
        del self.by_number[link.number]
        self.links.remove(link)

    # ------------------------------------------------------------ receiving

    cpdef bint begin(self, double now) except -1:
        """Begin a round: every sibling has its share again, and what was left in the last one is taken. Return whether
        anything was. `now`: the time of all that happens until the next call."""
        cdef bint stopped = self.stopped
        self.now = now
        self.rounds += 1
        self.stopped = False
        if stopped:
            self.go_on()
        return stopped

    cdef bint is_full(self) except -1:
        return self.batches is not None and self.batches.is_full()

    cpdef bint may_receive(self) except -1:
        """Return whether anything more should be read. A sibling that is not read is not silent."""
        cdef Link link
        if not self.is_full():
            return True
        for link in self.links:
            link.heard_at = self.now
        self.stopped = True
        return False

    cpdef bint received(self, list frames) except -1:
        """Process a message. Return True if no more of its sender should be taken in this round."""
        cdef bytes first = frames[0]
        cdef Link link = None
        self.heard = True
        try:
            link = self.of(first)
            if len(first) > PREFIX_BYTES and <uint8_t>first[PREFIX_BYTES] <= WELCOME:
                self.greetings += 1
            link.take(frames, self.now)
        except EnvelopeError:
            self.malformed += 1
        except Exception as error:
            if self.defect is None:
                raise
            self.defect(error)              # of this message alone: neither the worker nor the sibling has to end
        if link is None:
            return False
        if link.owe_hello or link.out.is_due():
            self.is_due = True
        if link.drained_in != self.rounds:
            link.drained_in = self.rounds
            link.drained = 0
        for frame in frames:
            link.drained += <uint64_t>len(<bytes>frame)
        if link.drained >= self.drain_bytes_max or \
                self.batches is not None and (self.batches.is_sated() or self.batches.is_full()):
            self.stopped = True
            return True
        return False

    cdef Link of(self, bytes first):
        cdef uint32_t number
        if len(first) < PREFIX_BYTES:
            raise EnvelopeError(f"{len(first)} bytes are too few for a mesh message")
        number = get32(<const uint8_t*>PyBytes_AS_STRING(first) + SENDER_AT)
        link = self.by_number.get(number)
        if link is None:
            raise EnvelopeError(f"no peer has the number {number}")
        return <Link>link

    cpdef trust(self):
        """Note that it is certain now that no sibling has given up waiting for this worker."""
        self.trusts += 1
        self.greetings_trusted = self.greetings

    cpdef bint end_reading(self) except -1:
        """End the reading of a round. Return whether messages were taken in it."""
        cdef bint heard = self.heard
        self.heard = False
        if self.waiting:
            self.is_due = True
            self.barrier.check(self.now)
        return heard

    # ------------------------------------------------------------ sending

    cpdef flush(self, double now):
        """End a tick, when the links have all of it: seal its interest, then send what each link has."""
        cdef Link link
        if self.host_publisher is not None:
            self.seal_both()
        elif self.publisher.unsealed:
            self.publisher.seal()
        if self.waiting:
            self.barrier.submitted(now)
        self.is_due = False
        for link in self.links:
            link.flush(now)
        self.look_idle(now)
        self.send()

    cdef int seal_both(self) except -1:
        # a greeting may have sealed one of them before
        cdef uint64_t own = self.publisher.seal() if self.publisher.unsealed else self.publisher.number
        cdef uint64_t host = self.host_publisher.seal() if self.host_publisher.unsealed else self.host_publisher.number
        if own != self.sealed or host != self.host_sealed:
            self.sealed = own
            self.host_sealed = host
            self.when_sealed()
        return 0

    cpdef bint look_idle(self, double now) except -1:
        """Return whether all links are idle and all siblings are read."""
        cdef Link link
        self.is_idle = not self.stopped and not self.is_full()
        for link in self.links:
            if not link.look_idle(now):
                self.is_idle = False
        return self.is_idle

    def tick(self, double now):
        """Advance the time of all links. While siblings are not read, each is told that this worker lives."""
        cdef Link link
        cdef bint says = self.stopped or self.is_full()
        if self.host_publisher is not None:
            self.seal_both()
        else:
            self.publisher.seal()
        for link in self.links:
            link.tick(now, says)
        self.look_idle(now)

    cpdef send(self):
        """Send what the transports have gathered."""
        cdef Link link
        for link in self.links:
            if isinstance(link.out.send, Push):
                (<Push>link.out.send).flush()
        for each in self.flushes:
            each()


def _nothing():
    pass
