"""The stored windows of sessions, and the packets that are sent only once their window is on the disk.

A store on disk keeps, for each session that outlives its connection:

- in the log, every message at QoS 1 and 2 for it, whether it is connected or not;
- its *window* (family V of `leveldb_store.format.schema`; a large one has pages as well, `pyx.delivery.pages`): the
  position up to which the log was sent to it, the messages in flight with their Packet Identifiers and states, and the
  Packet Identifiers of its own QoS 2 publishes without PUBREL. So: messages behind `cursor` were never sent; messages
  before it that are not in flight are finished;
- a record of its own (family Q) for each message that is in none of the indexes it reads: shares of a group, retained
  messages for its SUBSCRIBEs, and messages in flight of a subscription that has ended. A large message that may wait
  for several sessions is stored once for all of them (family J of `leveldb_store.format.queued_messages`).

State that the client may rely on after a crash is stored before the packet leaves: for a QoS 2 PUBLISH with its Packet
Identifier and a PUBREL (*deferred*: they wait in one ring, by the ticket of their tick), a PUBREC and a PUBCOMP (in
the ring of acks). These make the session's window *dirty*: it is stored with the tick. A QoS 1 PUBLISH and its PUBACK
only make it *lazy*: it is stored within LAZY_MS, and nothing waits for that. So after a crash a QoS 1 message may be
sent again, but never one of QoS 2.

`pyx.delivery.restoring` restores all of that after a start.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy

from pyx.core.little_endian cimport put16, put32, put64
from pyx.core.work cimport OBJECT, PLACE, PYTHON, VISIT, work
from pyx.delivery.connection cimport Connection
from pyx.delivery.journal cimport Journal
from pyx.delivery.pages cimport ARRIVED_IN_PAGES, OUT_IN_PAGES, forget_pages, store_pages
from pyx.delivery.router_state cimport RouterState, free_pointers, pointers_push
from pyx.delivery.session cimport (
    FREE, Inflight, Queued, RETAINED_COPY, SHARED_COPY, Session, WAIT_PUBCOMP, is_stored, out_changes,
)
from pyx.matching.subscriptions cimport Filter
from pyx.protocol.message cimport Message, content_bytes
from pyx.storage.entries cimport Packed
from pyx.storage.records cimport Block, LogKey


cdef enum:
    LAZY_MS = 100               # a stored window may lag the acks by at most this
    LAZY_WINDOWS_MAX = 1000     # stored in one tick
    CONTIGUOUS = 4096           # positions: an older message in flight is kept alone, without those behind it
    ONCE_BYTES = 1024           # from this size on a message is stored once for all sessions


cdef int by_order(const void* a, const void* b) noexcept nogil:
    cdef uint64_t x = (<Inflight**>a)[0].order, y = (<Inflight**>b)[0].order
    return (x > y) - (x < y)


cdef bytes whole(Packed p):
    return PyBytes_FromStringAndSize(<char*>p.at, p.size)


cdef bytes window_key(Session s):
    return b"V" + s.client_id.encode("utf-8", "surrogatepass")


cdef bytes queued_prefix(Session s):
    return b"Q" + s.client_id.encode("utf-8", "surrogatepass") + b"\0"


cdef bytes queued_key(Session s, uint64_t number):
    cdef object wide = number
    return queued_prefix(s) + wide.to_bytes(8, "big")


cdef bytes message_key(uint64_t number):
    cdef object wide = number
    return b"J" + wide.to_bytes(8, "big")


cdef class Sender:
    cdef int drop_deferred(self, Session s) except -1:
        raise NotImplementedError

    cdef int send_one_deferred(self, Session s, Connection conn, Inflight* slot) except -1:
        raise NotImplementedError

    cdef bytes identifiers_of(self, Session s, Message m):
        raise NotImplementedError


@cython.final
cdef class Windows:
    """The stored windows: stores them, and defers the packets that wait for them."""

    def __cinit__(self, RouterState state not None, Journal journal not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.journal = journal
        self.moved = {}
        self.messages = {}
        self.message_of = {}

    def __dealloc__(self):
        while self.deferred_count:
            self.pop_deferred()
        free(self.deferred)
        free_pointers(&self.dirty_windows)
        free_pointers(&self.lazy_windows)
        free_pointers(&self.awaiting)

    # ------------------------------------------------------------ waiting for the disk

    cdef int mark_dirty(self, Session s) except -1:
        # its window is stored with this tick; packets that depend on it are sent after that
        if not s.window_dirty:
            s.window_dirty = True
            pointers_push(&self.dirty_windows, s)
        s.committing = self.journal.last_ticket + 1
        self.journal.recorded = self.journal.synced = True
        return 0

    def stored_together(self, Session s not None):
        """Store the session's window in this tick too: other records of it are valid only together with its position in
        the log."""
        if self.state.keeps and is_stored(s) and not s.over:
            self.mark_dirty(s)

    cdef int mark_lazy(self, Session s) except -1:
        if not s.window_lazy:
            s.window_lazy = True
            if self.lazy_windows.count == 0:
                self.lazy_due = self.state.now_ms + LAZY_MS
            pointers_push(&self.lazy_windows, s)
        return 0

    cdef int wake(self, Session s) except -1:
        # the next sweep of the log examines the indexes it reads
        cdef uint32_t i
        cdef Filter* f
        work(s.own.count * VISIT)
        for i in range(s.own.count):
            f = s.own.items[i].filter
            if f.index != NULL:
                (<LogKey>f.index).rests = False
        return 0

    cdef int await_window(self, Session s) except -1:
        if not s.awaiting:
            s.awaiting = True
            pointers_push(&self.awaiting, s)
        return 0

    cdef int defer(self, Session s, Connection conn, Inflight* slot) except -1:
        # send the slot's PUBLISH or PUBREL once its session's window is durable
        cdef Deferred* ring
        cdef Deferred* d
        cdef uint32_t cap, i
        if self.deferred_count == self.deferred_cap:
            cap = self.deferred_cap * 2 if self.deferred_cap else 64
            ring = <Deferred*>malloc(cap * sizeof(Deferred))
            if ring == NULL:
                raise MemoryError
            work(self.deferred_count * (2 * PLACE))
            for i in range(self.deferred_count):
                ring[i] = self.deferred[(self.deferred_head + i) & (self.deferred_cap - 1)]
            free(self.deferred)
            self.deferred = ring
            self.deferred_cap = cap
            self.deferred_head = 0
        d = &self.deferred[(self.deferred_head + self.deferred_count) & (self.deferred_cap - 1)]
        d.ticket = s.committing
        d.order = slot.order
        d.packet_id = slot.packet_id
        d.state = slot.state
        d.connection = <PyObject*>conn
        Py_INCREF(conn)
        self.deferred_count += 1
        return 0

    cdef int pop_deferred(self) except -1:
        cdef Deferred* d = &self.deferred[self.deferred_head]
        Py_DECREF(<object>d.connection)
        self.deferred_head = (self.deferred_head + 1) & (self.deferred_cap - 1)
        self.deferred_count -= 1
        return 0

    cdef int send_deferred(self) except -1:
        # send packets whose window is on the disk by now; if their connection is gone they are sent again on the next
        cdef Deferred d
        cdef Connection conn
        cdef Session s
        cdef Inflight* slot
        cdef uint32_t i
        while self.deferred_count and self.deferred[self.deferred_head].ticket <= self.journal.durable_ticket:
            work(2 * VISIT)
            d = self.deferred[self.deferred_head]
            conn = <Connection>d.connection
            s = <Session>conn.session
            if s is not None and s.connection is conn:
                slot = s.slot(d.packet_id)
                if slot != NULL and slot.order == d.order and slot.state == d.state:
                    try:
                        self.sender.send_one_deferred(s, conn, slot)
                    except Exception as error:
                        self.state.fail(conn, error)
            self.pop_deferred()
        i = 0
        while i < self.awaiting.count:
            work(VISIT)
            s = <Session>self.awaiting.items[i]
            if s.committing > self.journal.durable_ticket:
                i += 1
                continue
            s.awaiting = False
            self.state.set_ready(s)
            self.awaiting.count -= 1
            self.awaiting.items[i] = self.awaiting.items[self.awaiting.count]
            Py_DECREF(s)
        return 0

    # ------------------------------------------------------------ windows

    cdef int store_lazy_windows(self) except -1:
        # at the end of a tick, when LAZY_MS have passed
        cdef uint32_t i, n = self.lazy_windows.count
        cdef Session s
        if n > LAZY_WINDOWS_MAX:
            n = LAZY_WINDOWS_MAX
        for i in range(n):
            s = <Session>self.lazy_windows.items[i]
            if not s.window_dirty:
                self.try_to_store(s)
            s.window_lazy = False
            Py_DECREF(s)
        work(self.lazy_windows.count * PLACE)
        for i in range(n, self.lazy_windows.count):
            self.lazy_windows.items[i - n] = self.lazy_windows.items[i]
        self.lazy_windows.count -= n
        self.journal.recorded = True
        return 0

    cdef int store_windows(self) except -1:
        # store the windows that became dirty in this tick
        cdef uint32_t i
        cdef Session s
        for i in range(self.dirty_windows.count):
            s = <Session>self.dirty_windows.items[i]
            self.try_to_store(s)
            s.window_dirty = False
            Py_DECREF(s)
        self.dirty_windows.count = 0
        return 0

    cdef int try_to_store(self, Session s) except -1:
        try:
            self.store_window(s)
        except Exception as error:
            self.state.fail_session(s, error)
        return 0

    cdef int store_window(self, Session s) except -1:
        cdef Packed packed = Packed.__new__(Packed)
        cdef uint8_t* p
        cdef uint64_t cursor = s.cursor if s.behind else self.state.next_position - 1
        cdef int flags
        cdef uint32_t i
        if s.over or not is_stored(s):
            return 0
        self.moved[s] = None
        flags = store_pages(self.journal.store, s)
        work(2 * PYTHON)
        p = packed.room(HEAD_BYTES)
        p = put64(p, <uint64_t>1 << WINDOW_2_BIT)
        p = put16(p, s.next_id)
        p[0] = <uint8_t>flags
        put16(put16(p + 1, 0 if flags & OUT_IN_PAGES else s.inflight),
              0 if flags & ARRIVED_IN_PAGES else s.arrived_count)
        if not flags & OUT_IN_PAGES:
            self.put_out(packed, s)
        if not flags & ARRIVED_IN_PAGES:
            work(s.arrived_cap * PLACE)
            p = packed.room(2 * s.arrived_count)
            for i in range(s.arrived_cap):
                if s.arrived[i]:
                    p = put16(p, s.arrived[i] & 0xFFFF)
        put64(packed.room(8), cursor)
        self.put_rest(packed, s)
        self.journal.store.put(window_key(s), whole(packed))
        s.kept = True
        return 0

    cdef int put_out(self, Packed packed, Session s) except -1:
        # the messages in flight, in order
        cdef Inflight** out = <Inflight**>malloc((s.inflight + 1) * sizeof(Inflight*))
        cdef uint8_t* p
        cdef uint32_t i, n = 0
        if out == NULL:
            raise MemoryError
        work(s.window_cap * PLACE + s.inflight * (6 * VISIT))
        try:
            for i in range(s.window_cap):
                if s.window[i].state != FREE:
                    out[n] = &s.window[i]
                    n += 1
            qsort(out, n, sizeof(Inflight*), by_order)
            p = packed.room(n * OUT_BYTES)
            for i in range(n):
                p = put16(p, out[i].packet_id)
                p[0] = out[i].flags & ~RETAINED_COPY
                p[1] = out[i].state
                p = put64(p + 2, out[i].position)
        finally:
            free(out)
        return 0

    cdef int put_rest(self, Packed packed, Session s) except -1:
        # holes and absences
        cdef list spans
        cdef uint32_t n
        for spans in (s.holes, s.absences):
            work(OBJECT + (<uint64_t>len(spans) * OBJECT if spans is not None else 0))
            n = <uint32_t>len(spans) if spans is not None else 0
            put16(packed.room(2), n)
            for a, z in spans or ():
                put64(put64(packed.room(16), a), z)
        return 0

    cdef int forget_window(self, Session s) except -1:
        # the session ends: delete its window and queued messages from the store
        cdef uint32_t i
        cdef Queued* q
        s.over = True
        if not s.kept:
            return 0
        work(s.window_cap * PLACE + s.queue_count * VISIT)
        for i in range(s.window_cap):
            if s.window[i].state != FREE and s.window[i].flags & OWN_RECORD:
                self.forget_queued(s, s.window[i].position)
        for i in range(s.queue_count):
            q = &s.queue[(s.queue_head + i) & (s.queue_cap - 1)]
            if q.number:
                self.forget_queued(s, q.number)
        forget_pages(self.journal.store, s)
        self.journal.store.delete(window_key(s))
        self.journal.recorded = self.journal.synced = True
        return 0

    cdef uint64_t in_flight_since(self, Session s, set spans) except? 0xFFFFFFFFFFFFFFFF:
        # the position behind which the session still needs the log for its messages in flight; those far back go into
        # `spans` instead: a client that never acknowledges one message must not keep the whole log behind it
        cdef uint64_t last = self.journal.block.first - 1, lowest = last
        cdef uint64_t near = last - CONTIGUOUS if last > CONTIGUOUS else 0
        cdef Inflight* slot
        cdef uint32_t i
        work(s.window_cap * PLACE)
        for i in range(s.window_cap):
            slot = &s.window[i]
            if slot.state == FREE or slot.state == WAIT_PUBCOMP or slot.flags & OWN_RECORD or slot.position == 0:
                continue
            if slot.position <= near:
                work(2 * OBJECT)
                spans.add((slot.position - 1, slot.position))
            elif slot.position <= lowest:
                lowest = slot.position - 1
        return lowest

    # ------------------------------------------------------------ records of one message

    cdef uint64_t keep_queued(self, Session s, Message m, uint8_t flags, uint32_t origin,
                              PyObject* identifiers) except? 0:
        # store a message that is in no index; returns its number
        cdef Packed packed = Packed.__new__(Packed)
        cdef uint64_t number = self.state.new_number()
        cdef uint32_t n = <uint32_t>len(<bytes>identifiers) if identifiers != NULL else 0
        cdef uint8_t* p = packed.room(QUEUED_HEAD_BYTES + n)
        # a share of a group has one member only
        cdef bint is_once = not flags & SHARED_COPY and m.content.number and content_bytes(&m.content) >= ONCE_BYTES
        work(3 * PYTHON)
        p[0] = flags | FORM_2 | (OF_ITS_OWN if is_once else 0)
        p = put32(put32(p + 1, origin), n)
        if n:
            memcpy(p, <const char*><bytes>identifiers, n)
        if is_once:
            put64(packed.room(8), m.content.number)
            self.keep_message(m)
            self.count_message(number, m.content.number)
        else:
            self.put_message(packed, m)
        self.journal.store.put(queued_key(s, number), whole(packed))
        self.journal.recorded = s.kept = True
        if self.journal.durabilities is not None:
            self.journal.settle_durability(&m.content)
        return number

    cdef int put_message(self, Packed packed, Message m) except -1:
        cdef bytes publisher
        cdef uint32_t n
        packed.entry(&m.content, 0, NULL)
        if isinstance(m.publisher, str):
            publisher = m.publisher.encode("utf-8", "surrogatepass")
            n = <uint32_t>len(publisher)
            memcpy(put32(packed.room(4 + n), n + 1), <const char*>publisher, n)
        else:
            put32(packed.room(4), 0)
        return 0

    cdef int keep_message(self, Message m) except -1:
        # store it in a record of its own, if it has none yet
        cdef Packed packed
        if m.content.number not in self.messages:
            work(2 * PYTHON)
            packed = Packed.__new__(Packed)
            self.put_message(packed, m)
            self.journal.store.put(message_key(m.content.number), whole(packed))
        return 0

    cdef int count_message(self, uint64_t number, uint64_t message) except -1:
        work(2 * OBJECT)
        self.messages[message] = self.messages.get(message, 0) + 1
        self.message_of[number] = message
        return 0

    cdef int forget_queued(self, Session s, uint64_t number) except -1:
        cdef uint64_t left
        work(2 * PYTHON)
        self.journal.store.delete(queued_key(s, number))
        self.journal.recorded = True
        message = self.message_of.pop(number, None)
        if message is not None:
            work(2 * PYTHON)
            left = self.messages[message] - 1
            if left:
                self.messages[message] = left
            else:
                del self.messages[message]
                self.journal.store.delete(message_key(message))
        return 0

    cdef int finish_slot(self, Session s, Inflight* slot) except -1:
        # a message in flight is finished
        if self.state.keeps and is_stored(s):
            if slot.flags & OWN_RECORD and slot.state != WAIT_PUBCOMP:
                self.forget_queued(s, slot.position)
            self.mark_lazy(s)
        s.release(slot)
        return 0

    cdef int keep_unsubscribed(self, Session s) except -1:
        # a subscription ends, and perhaps the index that contains its messages in flight [MQTT-3.10.4-3]
        cdef uint32_t i
        cdef Inflight* slot
        work(s.window_cap * PLACE)
        for i in range(s.window_cap):
            slot = &s.window[i]
            if slot.state != FREE and slot.message != NULL and not slot.flags & OWN_RECORD and slot.position:
                slot.position = self.keep_queued(s, <Message>slot.message, slot.flags, slot.group, slot.identifiers)
                slot.flags |= OWN_RECORD
                out_changes(s, slot.packet_id)
                self.mark_dirty(s)
        return 0

    def abandon(self):
        """Release the references in C lists: see `Router.abandon`."""
        while self.deferred_count:
            self.pop_deferred()
        free_pointers(&self.dirty_windows)
        free_pointers(&self.lazy_windows)
        free_pointers(&self.awaiting)
        self.moved.clear()
        self.messages.clear()
        self.message_of.clear()

    # ------------------------------------------------------------ at a start

    def go_on_behind(self, uint64_t position):
        """Continue behind this position, the last one in the store. Call it before anything is logged."""
        self.state.next_position = position + 1
        self.journal.block = Block(self.state.next_position)

    def restore_queued(self, uint64_t number, uint64_t message):
        """Note that the queued message `number` has its content in the existing record of `message`."""
        self.count_message(number, message)

    @property
    def position(self):
        """The position of the last logged message."""
        return self.state.next_position - 1
