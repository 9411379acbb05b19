"""The stream to one peer: its numbered messages, which are kept until the peer has acknowledged them.

Accepted is not delivered: a transport takes a message and may still lose it with its connection. So everything that
must not be lost has a number in the *stream* and is kept.

    kept:   | logged (peer was away, publishers acked) | sent, not acked | not sent |      one queue, one order
            ^ acknowledged + 1                                           ^ unsent from the right end

- Batches with a sequenced part (QoS >= 1, retained) and interest share one numbering; the receiver passes them on in
  order, without gap or duplicate.
- While a peer is away, kept and new batches are logged (bounded, publishers are acked at the next flush) and sent in
  order when it is back: until then everything queues behind them. After its return new batches queue behind
  the log too, but wait for the peer's own ack again.
- A log that outlives this worker has its entries stored, and entries that can be read back from there leave the memory.
  Without one, batches kept for a peer that is gone are `lost`.
"""
cimport cython
from libc.stdint cimport int64_t, uint64_t

from collections import deque

from pyx.core.little_endian cimport put64
from pyx.core.work cimport PYTHON, spend_in_c
from pyx.mesh.contract import Undelivered, WHOLE_BATCH
from pyx.mesh.envelope cimport BATCH, INTEREST, SEQUENCED, SKIP
from pyx.storage.entries cimport count_entries

cdef enum:
    HANDOFF_FULL = 3                # zmq_mesh.envelope.Refusal
    SQUEEZE_MIN = 64                # items acked until their places are given back
    KEPT_BATCH_BYTES = 512          # that a batch in memory costs beside its contents
    # After a restart the stream continues above every number that a former incarnation may have used without logging
    # it: an incarnation is the time of its fork in us (shards.supervisor), and none uses so many numbers in a us. So
    # they differ from those of its predecessor even if that was killed before its own reservation was stored.
    NUMBERS_PER_MICROSECOND_ = 1 << 10

# ... or, if the clock was set back, so far above what is stored
cdef uint64_t RESTART_SKIP_ = <uint64_t>1 << 32

NUMBERS_PER_MICROSECOND = <int>NUMBERS_PER_MICROSECOND_
RESTART_SKIP = RESTART_SKIP_

cdef bytes packed(uint64_t number):
    cdef uint8_t[8] p
    put64(p, number)
    return p[:8]


@cython.final
cdef class LinkTraffic:
    """The counters of a link, since its start."""


@cython.final
@cython.freelist(64)
cdef class Unacknowledged:
    """One number of the stream, until it is acked. A SKIP may cover a range that ends with its number."""


cdef Unacknowledged unacknowledged(uint64_t sequence, object part, object payloads, uint64_t nbytes, int64_t ticket,
                                   int64_t entries, double at, uint8_t kind, uint8_t flags):
    cdef Unacknowledged item = Unacknowledged.__new__(Unacknowledged)
    item.sequence = sequence
    item.part = part
    item.payloads = payloads
    item.nbytes = nbytes
    item.ticket = ticket
    item.entries = entries
    item.at = at
    item.kind = kind
    item.flags = flags
    return item


@cython.final
cdef class Stream:
    """The stream of one link. See `Link` for the arguments."""

    def __cinit__(self, peer, uint64_t incarnation, events, limits, LinkTraffic traffic, handoff, double now):
        self.peer = peer
        self.incarnation = incarnation
        self.events = events
        self.log_bytes_max = limits.handoff_log_bytes_max
        self.window_bytes_max = limits.peer_outbox_bytes_max // 8
        self.traffic = traffic
        self.handoff = handoff
        self.id = self.new_id() if handoff is None else handoff.stream
        self.items = []
        self.holds = deque()
        self.unloadable = []
        self.released = -1
        self.done = []
        self.over = []
        if handoff is not None:
            self.restore(now)

    cdef uint64_t new_id(self) noexcept:
        cdef uint64_t number = self.incarnation * <uint64_t>0x9E3779B97F4A7C15 + self.ids
        return number if number else 1

    @property
    def kept(self):
        """Return what is not acked, oldest first."""
        return self.items[self.first:]

    cdef Py_ssize_t count(self) except -1:
        return len(self.items) - self.first

    cdef Unacknowledged item(self, Py_ssize_t i):
        return <Unacknowledged>self.items[self.first + i]

    cdef bint cannot_store(self) except -1:
        # whether batches wait for a log that has failed
        return len(self.holds) and self.handoff is not None and self.handoff.failed

    # ------------------------------------------------------------ adding

    cdef Unacknowledged add(self, object part, object payloads, uint64_t nbytes, int64_t ticket, int64_t entries,
                            double now, bint hold):
        # add a sequenced part for a peer that is there, to be sent now or later (`unsent`)
        cdef Unacknowledged item
        self.sequence += 1
        item = unacknowledged(self.sequence, part, payloads, nbytes, ticket, entries, now, BATCH, SEQUENCED)
        self.items.append(item)
        self.loaded_bytes += nbytes
        self.outbox_bytes += nbytes
        self.outbox_batches += 1
        if hold:
            self.hold(item)
        if self.loaded_bytes > self.window_bytes_max:
            self.put_behind()
        return item

    cdef int add_absent(self, object part, object payloads, uint64_t nbytes, int64_t ticket, int64_t entries,
                        double now, bint is_away, bint hold) except -1:
        # add a sequenced part for a peer that is away (log it), gone (log it if it survives), or has a full log
        cdef Unacknowledged item
        if not self.lasts():
            nbytes += KEPT_BATCH_BYTES          # a peer may be away for minutes: many small ones must not cost more
        if self.handoff is None and not is_away:
            entries = count_entries(part) if entries < 0 else entries
            self.done.append(Undelivered(ticket, part, payloads, entries, False))
        elif not self.lasts() and self.handoff_bytes + nbytes > self.log_bytes_max:
            entries = count_entries(part) if entries < 0 else entries
            self.over.append(Undelivered(ticket, part, payloads, entries, False))
        else:
            self.sequence += 1
            if not self.lasts():
                part = bytes(part)              # without the room that its buffer has left
            item = unacknowledged(self.sequence, part, payloads, nbytes, ticket, entries, now, BATCH, SEQUENCED)
            self.items.append(item)
            self.loaded_bytes += nbytes
            self.unsent += 1
            self.log(item)
            if hold and self.handoff is not None:
                self.hold(item)             # it may be sent at once: to a peer that is stalled, or that comes back
        return 0

    cdef int add_interest(self, object part, uint8_t flags, double now) except -1:
        # an interest update, which is sent in order with the batches
        self.sequence += 1
        self.items.append(unacknowledged(self.sequence, part, (), 0, -1, 0, now, INTEREST, flags))
        self.unsent += 1
        return 0

    # ------------------------------------------------------------ sending

    cdef bint may_leave(self, Unacknowledged item) except -1:
        # may it be sent: not before it is stored, if it must be, nor with much read back and not acked
        if len(self.holds) and item.sequence >= <uint64_t>self.holds[0]:
            return False
        return not item.unloaded or self.read_bytes < self.window_bytes_max

    cdef tuple content(self, Unacknowledged item):
        # (part, payloads) of a batch
        if not item.unloaded:
            return item.part, item.payloads
        if self.just_read is None or self.just_read[0] != item.sequence:
            self.just_read = (item.sequence, *self.handoff.read(item.sequence))
        return self.just_read[1:]

    cdef int was_read(self, Unacknowledged item) except -1:
        # the transport has taken a batch that `content` has read back
        item.read = True
        self.read_bytes += item.nbytes
        return 0

    # ------------------------------------------------------------ acks

    cdef int64_t advance(self, uint64_t committed) except -2:
        cdef int64_t ticket = -1
        cdef bint was_stored = False
        cdef Unacknowledged item
        cdef Py_ssize_t n = len(self.items)
        while self.first < n:
            item = <Unacknowledged>self.items[self.first]
            if item.sequence > committed:
                break
            spend_in_c(PYTHON // 4)
            self.items[self.first] = None
            self.first += 1
            was_stored = was_stored or item.stored
            self.unload_one(item)
            if item.read:
                self.read_bytes -= item.nbytes
            if item.logged:
                self.handoff_bytes -= item.nbytes
            else:
                self.outbox_bytes -= item.nbytes
                self.outbox_batches -= item.kind == BATCH
                if item.ticket >= 0:
                    ticket = item.ticket
        if self.first == n:
            self.items.clear()
            self.first = 0
        elif self.first >= SQUEEZE_MIN and 2 * self.first >= n:
            del self.items[:self.first]
            self.first = 0
        if self.unsent > self.count():
            self.unsent = self.count()
        self.acknowledged = committed
        if was_stored:
            self.handoff.trim(committed)
        return ticket

    cdef bint waits_for_room(self) except -1:
        # whether the next item must be read back, for which an ack may have made room
        return self.unsent and self.handoff is not None and self.item(self.count() - self.unsent).unloaded

    cdef Unacknowledged find(self, uint64_t sequence):
        # the kept item that has, or covers, this number; None: there is none
        cdef Py_ssize_t index = self.index(sequence)
        return self.item(index) if index < self.count() else None

    cdef Py_ssize_t index(self, uint64_t sequence) except -1:
        # the index of the first number >= sequence. Numbers rise; only SKIPs make holes
        cdef Py_ssize_t low = 0, high = self.count(), middle
        cdef uint64_t guess
        if not high or sequence <= self.item(0).sequence:
            return 0
        guess = sequence - self.item(0).sequence
        if guess < <uint64_t>high and self.item(guess).sequence == sequence:
            return guess
        while low < high:
            middle = (low + high) // 2
            if self.item(middle).sequence < sequence:
                low = middle + 1
            else:
                high = middle
        return low

    cdef bint misses(self, uint64_t received, uint64_t frames_seen) except -1:
        # whether the peer has already passed the last transmission of the item after `received`
        cdef Py_ssize_t index = self.index(received + 1)
        return index < self.count() - self.unsent and self.item(index).frame <= frames_seen

    cdef int go_back(self, Py_ssize_t index) except -1:
        # mark everything from this index on as unsent: what is unsent already has not been read back
        cdef Py_ssize_t i, sent = self.count() - self.unsent
        cdef Unacknowledged item
        self.unsent = self.count() - index
        if sent > index:
            spend_in_c((sent - index) * PYTHON // 4)
        for i in range(index, sent):
            item = self.item(i)
            if item.read:
                item.read = False
                self.read_bytes -= item.nbytes
        return 0

    # ------------------------------------------------------------ the hand-off log

    cdef bint lasts(self) except -1:
        return self.handoff is not None and self.handoff.lasts

    cdef int log(self, Unacknowledged item) except -1:
        item.logged = True
        self.handoff_bytes += item.nbytes
        if item.ticket >= 0:
            self.released = item.ticket
        self.store(item)
        return self.unload_when_stored(item)

    cdef int log_all(self) except -1:
        # log everything kept: the peer is away
        cdef Py_ssize_t i
        cdef Unacknowledged item
        spend_in_c(self.count() * PYTHON)
        for i in range(self.count()):
            item = self.item(i)
            if not item.logged and item.kind == BATCH:
                self.outbox_bytes -= item.nbytes
                self.outbox_batches -= 1
                self.log(item)
        return 0

    cdef int store(self, Unacknowledged item) except -1:
        if self.handoff is not None and not item.stored:
            item.stored = True
            item.lasts = self.handoff.append(item.sequence, item.part, list(item.payloads), item.entries)
        return 0

    cdef int store_all(self) except -1:
        # store everything that is not acked: if this worker dies, nothing of its log may be sent without its
        # publishers' earlier messages
        cdef Py_ssize_t i = self.count()
        cdef Unacknowledged item
        while i > 0 and not self.item(i - 1).stored:
            i -= 1
        for i in range(i, self.count()):
            item = self.item(i)
            if item.kind == BATCH:
                self.store(item)
        return 0

    cdef int put_behind(self) except -1:
        # let the peer read from the log, if there is one with room, because it is slower than its messages arrive. Its
        # acks are waited for as before, and unacked batches count in the outbox as before
        cdef Py_ssize_t i
        if not self.lasts() or self.handoff.full:
            return 0
        self.traffic.batches_behind += 1
        self.store_all()
        i = self.count()
        while i > 0 and not self.item(i - 1).unloading:
            i -= 1
            self.unload_when_stored(self.item(i))
        return 0

    cdef int hold(self, Unacknowledged item) except -1:
        cdef uint64_t sequence = item.sequence
        self.store_all()
        self.holds.append(sequence)
        self.handoff.when_stored(lambda: self.let_go(sequence))
        return 0

    def let_go(self, uint64_t sequence):
        """Release a batch that is stored: it is sent with the next flush."""
        while self.holds and self.holds[0] <= sequence:
            self.holds.popleft()

    cdef int unload_when_stored(self, Unacknowledged item) except -1:
        if item.lasts and not item.unloading:
            item.unloading = True
            self.unloadable.append(item)
        return 0

    cdef int unload(self) except -1:
        # unload batches in the hand-off log that can be read back, as soon as they are stored
        cdef list items = self.unloadable
        self.unloadable = []
        self.handoff.when_stored(lambda: self.unload_all(items))
        return 0

    def unload_all(self, list items):
        """Unload these: they are stored."""
        cdef Unacknowledged item
        for item in items:
            if not item.unloaded and item.entries < 0:
                item.entries = count_entries(item.part)
            self.unload_one(item)

    cdef int unload_one(self, Unacknowledged item) except -1:
        if not item.unloaded:
            item.part = b""
            item.payloads = ()
            item.unloaded = True
            self.loaded_bytes -= item.nbytes
        return 0

    cdef int restore(self, double now) except -1:
        # take over the log of a former incarnation of this worker; numbers missing in it become SKIP
        cdef uint64_t at = self.handoff.acknowledged, number, known
        cdef Unacknowledged item
        self.acknowledged = at
        for sequence, nbytes, entries in self.handoff.found():
            if sequence > at + 1:
                self.keep_skip(at + 1, sequence - 1, now)
            item = unacknowledged(sequence, b"", (), nbytes, -1, entries, now, BATCH, SEQUENCED)
            item.logged = item.stored = item.lasts = item.unloading = item.unloaded = True
            self.handoff_bytes += nbytes
            self.items.append(item)
            at = sequence
        # an incarnation that died before any ack came may have used numbers that are not in the log
        known = max(at, <uint64_t>self.handoff.reserved)
        number = self.incarnation * <uint64_t>NUMBERS_PER_MICROSECOND_
        self.handoff.reserve(number if number > known else known + RESTART_SKIP_)
        self.keep_skip(at + 1, self.handoff.reserved, now)
        self.sequence = self.item(self.count() - 1).sequence
        self.unsent = self.count()
        return 0

    cdef int begin_anew(self) except -1:
        # begin another stream, because the peer has numbers of this one that were lost here, and would be given out
        # again. What this worker added is sent in the new one, and what the log has, unless the peer has committed it
        # (`advance`): it may have received some of that already
        self.id = self.handoff.renew()
        return self.go_back(0)

    cdef int keep_skip(self, uint64_t start, uint64_t end, double now) except -1:
        self.items.append(unacknowledged(end, packed(start), (), 0, -1, 0, now, SKIP, SEQUENCED))
        return 0

    # ------------------------------------------------------------ reports

    cdef int end_incarnation(self) except -1:
        # the death of the peer's incarnation: its successor gets the entries of a log, all else is lost
        cdef Py_ssize_t i
        cdef Unacknowledged item
        spend_in_c(self.count() * PYTHON)
        if self.handoff is not None:
            for i in range(self.count()):
                item = self.item(i)
                if item.kind == INTEREST:
                    item.kind, item.flags, item.part = SKIP, SEQUENCED, packed(item.sequence)
                elif item.kind == BATCH and not item.logged:
                    self.outbox_bytes -= item.nbytes
                    self.outbox_batches -= 1
                    self.log(item)
            return self.go_back(0)
        for i in range(self.count()):
            item = self.item(i)
            if item.kind == BATCH:
                entries = count_entries(item.part) if item.entries < 0 else item.entries
                self.done.append(Undelivered(item.ticket, item.part, item.payloads, entries, item.frame != 0))
        self.items.clear()
        self.first = self.unsent = 0
        self.sequence = self.sent = self.acknowledged = 0
        self.outbox_bytes = self.outbox_batches = self.handoff_bytes = self.loaded_bytes = 0
        self.ids += 1
        self.id = self.new_id()
        return 0

    cdef int tell_done(self) except -1:
        # report tickets that `add_absent` and the peer's end have left
        cdef int64_t ticket
        if self.over:
            over, self.over = self.over, []
            for batch in over:
                self.events.refused(self.peer, batch, [(WHOLE_BATCH, <int>HANDOFF_FULL)])
            self.released = max(self.released, <int64_t>over[len(over) - 1].ticket)     # all before it is in the log
        if self.done:
            done, self.done = self.done, []
            self.released = -1
            self.events.lost(self.peer, done, max([batch.ticket for batch in done]))
        if self.released >= 0:
            ticket = self.released
            self.released = -1
            if self.handoff is None:
                self.events.acknowledged(self.peer, ticket)
            else:
                self.handoff.when_stored(lambda: self.events.acknowledged(self.peer, ticket))
        return 0
