"""Sessions that move to another host: their windows and unsent messages as pages, on both sides.

A page is a sequence of records, in the order in which the client is sent them:

    u8 kind, u16 Packet Identifier, u8 state | OF_ITS_OWN_COPY, u32 length, and a record of family Q
    (`pyx.delivery.windows`) that contains its message; none if the length is 0

    IN_FLIGHT   a message of the outgoing window, with its Packet Identifier; none if it waits for its PUBCOMP
    ARRIVED     the Packet Identifier of a QoS 2 PUBLISH of the client without its PUBREL
    UNSENT      of the session's own queue, or of the log
    SEEN        what it has had (`pyx.delivery.seen_messages`): u64 each, no message

OF_ITS_OWN_COPY: a share of a group, or a retained message that a SUBSCRIBE has asked for: the session may have the same
message as a subscriber, too, and gets both.

Packing changes nothing: the session has everything until the other host owns it. What comes is queued for the session
alone, before what this worker has logged for it since it has its subscriptions here. Both may have the same message:
it is known by its mark (`Session.seen`), and not sent again.

The bounds of the session's queue apply to what has come: the oldest is dropped.

A host that is not the owner any more may still have messages for a client: they are *handed over*, to be sent after
what the session of the owner has, if that has not had them itself.
"""
cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pyx.core cimport counters as count
from pyx.core.limits cimport QueueRule
from pyx.core.little_endian cimport get16, get32, put16, put32
from pyx.core.work cimport COPY, KIBI, OBJECT, PLACE, VISIT, work
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.restoring import unpack_queued
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.seen_messages cimport SeenMessages, mark_of
from pyx.delivery.session cimport (
    FREE, Inflight, Queued, RETAINED_COPY, SHARED_COPY, Session, WAIT_PUBACK, WAIT_PUBCOMP, WAIT_PUBREC, is_stored,
)
from pyx.delivery.windows cimport FORM_2, OWN_RECORD, QUEUED_HEAD_BYTES, Windows
from pyx.protocol.message cimport Message
from pyx.storage.entries cimport Packed
from pyx.storage.records cimport Batch, lies_within


cdef enum:
    IN_FLIGHT = 1
    ARRIVED = 2
    UNSENT = 3
    SEEN = 4
    HEAD_BYTES = 8
    OF_ITS_OWN_COPY = 0x80
    # stages of a departure
    MARKS = 0
    WINDOW = 1
    QUEUE = 2
    LOG = 3
    DONE = 4
    RECORDS_MAX = 500           # of a page, and messages that are dropped at once
    MARKS_BYTES = 1 << 15       # of a record


# noexcept: only C is called
cdef inline uint8_t own_copy(uint8_t flags) noexcept:
    return OF_ITS_OWN_COPY if flags & (SHARED_COPY | RETAINED_COPY) else 0


cdef inline uint64_t copy_mark(Message m, uint8_t state) noexcept:
    return mark_of(&m.content) ^ (state & OF_ITS_OWN_COPY)


@cython.final
cdef class Departure:
    """What a session without a connection has for its client, page by page."""

    def page(self, uint32_t most):
        """Return the next records, about `most` bytes of them; None: that was all. May be empty."""
        cdef Packed packed
        if self.stage == DONE:
            return None
        packed = Packed.__new__(Packed)
        if not self.fill(packed, most):
            self.stage += 1
            self.at = 0
        return (<const char*>packed.at)[:packed.size] if packed.size else b""

    def gone(self):
        """Note that another host has what was packed: of its shares of groups, those are not handed on when the session
        ends here."""
        cdef Session s = self.session
        cdef Inflight* slot
        cdef uint32_t i, many = self.queued if self.stage > QUEUE else self.at if self.stage == QUEUE else 0
        work((len(self.identifiers) + many) * PLACE)
        for packet_id in self.identifiers:
            slot = s.slot(<uint16_t>packet_id)
            if slot != NULL:
                slot.flags &= ~SHARED_COPY
        for i in range(min(many, s.queue_count)):
            s.queue[(s.queue_head + i) & (s.queue_cap - 1)].flags &= ~SHARED_COPY

    cdef bint fill(self, Packed packed, uint32_t most) except -1:
        # False: this stage is done
        cdef Session s = self.session
        cdef Queued* q
        cdef Inflight* slot
        cdef uint32_t many = 0, n
        if self.stage == MARKS:
            n = min(<uint32_t>len(self.marks) - self.at, MARKS_BYTES)
            if n:
                self.moving.pack_marks(packed, self.marks, self.at, n)
                self.at += n
            return self.at < <uint32_t>len(self.marks)
        if self.stage == WINDOW:
            while self.at < <uint32_t>len(self.identifiers):
                if packed.size >= most or many == RECORDS_MAX:
                    return True
                many += 1
                slot = s.slot(<uint16_t>self.identifiers[self.at])
                self.at += 1
                if slot != NULL:
                    self.pack_slot(packed, slot)
            while self.arrived and many < RECORDS_MAX:
                many += 1
                self.moving.pack(packed, ARRIVED, self.arrived.pop(), 0, 0, None, None)
            return len(self.arrived) != 0
        if self.stage == QUEUE:
            while self.at < self.queued and self.at < s.queue_count:
                if packed.size >= most or many == RECORDS_MAX:
                    return True
                many += 1
                q = &s.queue[(s.queue_head + self.at) & (s.queue_cap - 1)]
                self.at += 1
                self.messages += 1
                self.moving.pack(packed, UNSENT, 0, own_copy(q.flags), q.flags & 7,
                                 <bytes>q.identifiers if q.identifiers != NULL else None, <Message>q.message)
            return False
        return self.read_on(packed, most)

    def drop(self):
        """Drop from the session what was packed, because another host has it. Return whether there is more of it to be
        dropped."""
        cdef Session s = self.session
        cdef Windows windows = self.moving.windows
        cdef Inflight* slot
        cdef Queued* q
        cdef uint64_t number, dropped = 0, unread
        cdef uint32_t many = 0
        for _ in range(RECORDS_MAX):
            if self.identifiers:
                slot = s.slot(<uint16_t>self.identifiers.pop())
                if slot != NULL:
                    dropped += 1
                    windows.finish_slot(s, slot)
            elif self.unreleased:
                s.leave(<uint16_t>self.unreleased.pop())
            elif self.queued and s.queue_count:
                self.queued -= 1
                q = &s.queue[s.queue_head]
                number = q.number
                s.dequeue()
                dropped += 1
                if number:
                    windows.forget_queued(s, number)
            else:
                if s.behind and s.cursor < self.cursor:
                    unread = self.moving.backlog.bounding.backlog(s)[0]
                    s.cursor = self.cursor
                    s.batch = None
                    s.batch_at = 0
                    unread -= self.moving.backlog.bounding.backlog(s)[0]
                    self.moving.counters.at[count.MATCHED] += unread
                    dropped += unread
                break
            many += 1
        work(many * COPY)
        self.moving.counters.at[count.DROPPED_SESSION_ENDED] += dropped
        self.moving.state.drops.add(s, count.DROPPED_SESSION_ENDED, dropped)
        if self.moving.state.keeps and is_stored(s):
            windows.mark_dirty(s)
        return many == RECORDS_MAX

    cdef int pack_slot(self, Packed packed, Inflight* slot) except -1:
        cdef bytes identifiers = <bytes>slot.identifiers if slot.identifiers != NULL else None
        cdef Message m = <Message>slot.message if slot.message != NULL else None
        if slot.state == WAIT_PUBCOMP:
            m = None
        if m is not None or slot.state == WAIT_PUBCOMP:
            self.messages += 1
            self.moving.pack(packed, IN_FLIGHT, slot.packet_id, slot.state | own_copy(slot.flags), slot.flags & 7,
                             identifiers, m)
        return 0

    cdef bint read_on(self, Packed packed, uint32_t most) except -1:
        # from the log, as `Backlog.serve` does it; False: there is nothing more at present
        cdef Session s = self.session
        cdef Backlog backlog = self.moving.backlog
        cdef RouterState state = self.moving.state
        cdef uint64_t cursor = s.cursor
        cdef object unread = s.unread
        cdef Batch b
        cdef Message m
        cdef uint8_t options, qos
        cdef int length
        cdef uint32_t i
        s.cursor = self.cursor
        s.unread = None                         # the indexes of its filters are merged, however many there are
        backlog.keeps_formers = True
        try:
            b = backlog.read_log(s)
            if b is None:
                return False
            for i in range(b.count):
                work(VISIT)
                m = <Message>b.messages[i]
                s.cursor = self.cursor = b.positions[i]
                if s.holes is not None and lies_within(s.holes, self.cursor):
                    continue
                if s.seen is not None and s.seen.has(mark_of(&m.content)):
                    continue
                options = 0
                length = backlog.options_of(s, m, self.cursor, &options)
                qos = min(options & 3, m.content.qos)
                if length < 0 or qos == 0 and (s.absences is None or not lies_within(s.absences, self.cursor)):
                    continue
                if m.content.expires and state.wall_ms >= m.content.expires:
                    continue
                self.messages += 1
                self.moving.pack(packed, UNSENT, 0, 0, qos | (4 if m.content.retain and options & 8 else 0),
                                 backlog.in_hand.ids[:length] if length else None, m)
                if packed.size >= most:
                    break
            return True
        finally:
            s.cursor = cursor
            s.unread = unread
            backlog.keeps_formers = False


@cython.final
cdef class Moving:
    """Packs and takes in sessions."""

    def __cinit__(self, RouterState state not None, Backlog backlog not None, Windows windows not None):
        self.state = state
        self.counters = state.counters
        self.backlog = backlog
        self.windows = windows

    def leave(self, Session s not None):
        """Return what a session without a connection has for its client, as a `Departure`. What is logged for it until
        the last page is part of it."""
        cdef Departure d = Departure.__new__(Departure)
        cdef uint32_t i
        cdef list slots = []
        d.moving = self
        d.session = s
        work(s.window_cap * PLACE + s.inflight * OBJECT + s.arrived_cap * PLACE)
        for i in range(s.window_cap):
            if s.window[i].state != FREE:
                slots.append((s.window[i].order, s.window[i].packet_id))
        slots.sort()
        d.identifiers = [packet_id for _, packet_id in slots]
        d.arrived = [s.arrived[i] & 0xFFFF for i in range(s.arrived_cap) if s.arrived[i]]
        d.unreleased = list(d.arrived)
        d.queued = s.queue_count
        d.marks = s.seen.packed() if s.seen is not None else b""
        d.cursor = s.cursor if s.behind else self.state.next_position - 1
        return d

    cdef int pack(self, Packed packed, uint8_t kind, uint16_t packet_id, uint8_t state, uint8_t flags,
                  bytes identifiers, Message m) except -1:
        cdef uint32_t at = packed.size, n = <uint32_t>len(identifiers) if identifiers is not None else 0
        cdef uint8_t* p = packed.room(HEAD_BYTES)
        work(COPY)
        p[0] = kind
        p = put16(p + 1, packet_id)
        p[0] = state
        if m is None:
            put32(p + 1, 0)
            return 0
        p = packed.room(QUEUED_HEAD_BYTES + n)
        p[0] = flags | FORM_2
        p = put32(put32(p + 1, 0), n)
        if n:
            memcpy(p, <const char*>identifiers, n)
        self.windows.put_message(packed, m)
        work(m.content.payload_len // 1024 * KIBI)
        put32(packed.at + at + 4, packed.size - at - HEAD_BYTES)
        return 0

    cdef int pack_marks(self, Packed packed, bytes marks, uint32_t at, uint32_t n) except -1:
        cdef uint8_t* p = packed.room(HEAD_BYTES + n)
        work(n // 1024 * KIBI + COPY)
        p[0] = SEEN
        put32(put16(p + 1, 0) + 1, n)
        p[3] = 0
        memcpy(p + HEAD_BYTES, <const char*>marks + at, n)
        return 0

    def remember(self, Session s not None, bint is_old):
        """Let a session remember from now on which messages it has had: those are not sent again. is_old: it has had
        others before, if it does not remember yet."""
        if s.seen is None:
            s.seen = SeenMessages.__new__(SeenMessages)
            s.seen.has_forgotten = is_old

    def begin(self, Session s not None, uint16_t packet_id):
        """Let a session that begins remember what it has, and give its first message this Packet Identifier."""
        self.remember(s, False)
        s.next_id = packet_id

    def forget(self, Session s not None):
        """Let a session remember no more what it has had. Return whether it does so: not while it is behind, when some
        of that may be in the log, too."""
        if s.behind and s.seen is not None and s.seen.newer.count:
            return False
        s.seen = None
        return True

    def take(self, Session s not None, bytes page not None, int64_t ahead):
        """Give a session without a connection, which remembers what it has had, what a page has. ahead: ms by which the
        clock of this host is ahead of the other one's. ValueError: the page is damaged."""
        cdef const uint8_t* p = <const uint8_t*><const char*>page
        cdef size_t at = 0, n = len(page)
        cdef uint32_t length
        cdef Message m
        while at < n:
            length = self.check_record(p + at, n - at)
            if p[at] == ARRIVED:
                s.arrive(<uint16_t>get16(p + at + 1))
            elif p[at] == SEEN:
                s.seen.unpack(p + at + HEAD_BYTES, length)
            else:
                m = self.take_in(s, p[at], <uint16_t>get16(p + at + 1), p[at + 3] & ~OF_ITS_OWN_COPY,
                                 page[at + HEAD_BYTES:at + HEAD_BYTES + length] if length else None, ahead)
                if m is not None:
                    s.seen.is_again(copy_mark(m, p[at + 3]))
            at += HEAD_BYTES + length
        self.bound(s)
        if self.state.keeps and is_stored(s):
            self.windows.mark_dirty(s)

    cdef int bound(self, Session s) except -1:
        # what has come is in the session's own queue, which may not be longer than what it would be sent from the log
        cdef const QueueRule* rule = self.backlog.bounding.rule_of(s)
        cdef uint64_t number
        while s.queue_count and (rule.messages_max and s.queue_count > rule.messages_max or
                                 rule.bytes_max and s.queue_bytes > rule.bytes_max):
            work(COPY)
            number = s.queue[s.queue_head].number
            s.dequeue()
            if number:
                self.windows.forget_queued(s, number)
            self.counters.at[count.DROPPED_QUEUE_FULL] += 1
            self.state.drops.add(s, count.DROPPED_QUEUE_FULL, 1)
        return 0

    def take_late(self, Session s not None, bytes page not None, int64_t ahead, uint64_t absent_from,
                  uint64_t absent_until):
        """Queue for a session, which remembers what it has had, the messages of a page of a former owner that it has
        not had. If it has forgotten some, those numbered between the two count as had: the former owner was not there,
        so another host has published them, for both. ValueError: the page is damaged."""
        cdef const uint8_t* p = <const uint8_t*><const char*>page
        cdef size_t at = 0, n = len(page)
        cdef uint32_t length
        cdef uint64_t number
        cdef Message m
        while at < n:
            length = self.check_record(p + at, n - at)
            if length and p[at] != SEEN:
                work(COPY)
                flags, _, identifiers, m = unpack_queued(page[at + HEAD_BYTES:at + HEAD_BYTES + length])
                number = m.content.number
                if not (s.seen.has_forgotten and absent_from < number < absent_until or
                        s.seen.is_again(copy_mark(m, p[at + 3]))):
                    if m.content.expires:
                        m.content.expires = max(<int64_t>m.content.expires + ahead, 1)
                    self.backlog.queue_for(s, m, flags & 3, flags & 4 != 0, identifiers, 0, 0)
                    self.counters.at[count.MESSAGES_HANDED_OVER] += 1
            at += HEAD_BYTES + length
        self.bound(s)

    cdef uint32_t check_record(self, const uint8_t* p, size_t n) except? 0xFFFFFFFF:
        # the length of a record behind its head
        cdef uint32_t length
        if n < HEAD_BYTES:
            raise ValueError("a page of a session is cut off")
        length = get32(p + 4)
        if length > n - HEAD_BYTES:
            raise ValueError("a page of a session is cut off")
        if not (p[0] == ARRIVED and length == 0 or p[0] == UNSENT and length or p[0] == SEEN and length % 8 == 0 or
                p[0] == IN_FLIGHT and (length == 0) == (p[3] & ~OF_ITS_OWN_COPY == WAIT_PUBCOMP)):
            raise ValueError("a page of a session is damaged")
        return length

    cdef Message take_in(self, Session s, uint8_t kind, uint16_t packet_id, uint8_t window_state, bytes record,
                         int64_t ahead):
        cdef Message m = None
        cdef Inflight* slot
        cdef uint8_t flags = 2
        cdef bytes identifiers = None
        cdef PyObject* held = NULL
        work(COPY)
        if record is not None:
            flags, _, identifiers, m = unpack_queued(record)
            if m.content.expires:
                m.content.expires = max(<int64_t>m.content.expires + ahead, 1)
            held = <PyObject*>identifiers if identifiers is not None else NULL
        if kind == UNSENT:
            self.backlog.queue_for(s, m, flags & 3, flags & 4 != 0, identifiers, 0, 0)
            return m
        if not (window_state == WAIT_PUBCOMP or flags & 3 == 1 and window_state == WAIT_PUBACK or
                flags & 3 == 2 and window_state == WAIT_PUBREC):
            raise ValueError("a message of a session is in no state")
        slot = s.place_slot(packet_id)
        slot.state = window_state
        slot.flags = flags & 7
        slot.group = 0
        slot.position = 0
        if m is not None:
            if self.state.keeps and is_stored(s):
                slot.position = self.windows.keep_queued(s, m, slot.flags, 0, held)
                slot.flags |= OWN_RECORD
            s.keep_in(slot, m, held)
        self.counters.at[count.MATCHED] += 1
        return m
