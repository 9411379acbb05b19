"""One worker's router.

A publish comes from a connection, a peer, a will or the broker. Matching gives Filters; each of their subscribers is a
session. A session that is in sync and has room gets the message at once: its bytes go into the connection's outbox and, at
QoS 1 and 2, a slot of its window. One that has no room, or is offline, is *behind*: the message is written once into the
log of this tick, under the index of the filter, and the session reads it from there when it has room, until it has caught
up. So a message is held once however many sessions are behind, and a session in sync costs no log.

Siblings are subscribers too: a Filter says which of them want it, and each gets the entry once, in the batch of this tick.
What came from a sibling is never forwarded to one.

The publisher's ack waits for what it promises: the log's commit where something was logged, and the cumulative link ack of
every sibling that was given the message. Acks of one connection leave in the order of the packets they answer.

Copies are counted where they are born, here: matched = delivered + expired + dropped + waiting. A copy that waits in a log
is counted as matched when it leaves it.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from pyx cimport counters as count
from pyx.codec cimport put_ack
from pyx.connection cimport CLOSED, CLOSING, OPEN, PendingAck
from pyx.frames cimport frame_make, put_head, remaining_length
from pyx.message cimport content_bytes, message_adopt, message_borrow, message_copy
from pyx.outbox cimport outbox_reserve, outbox_share
from pyx.packets cimport PUBLISH, PUBREL
from pyx.placement cimport owner_of
from pyx.properties cimport Property, next_property
from pyx.records cimport (Batch, ENTRY_CONTROL, ENTRY_OWN_FRAME, ENTRY_RETAINED_ONLY, Entry, merge_batches, read_entry)
from pyx.session cimport FREE, Queued, WAIT_PUBACK, WAIT_PUBCOMP, WAIT_PUBREC
from pyx.subscriptions cimport Membership, filter_text
from pyx.wire cimport Cursor, put_u16, put_varint, varint_size

cdef enum:
    SHARED_COPY = 8                 # flag of an in-flight or queued message: it belongs to a share group
    RETAINED_COPY = 16              # of a queued message: a retained one, sent because of a SUBSCRIBE
    READ_BYTES_MAX = 262144         # of a log, at once
    OWN_FRAME_BYTES = 8192          # mesh payloads from here on travel in a frame of their own
    IDENTIFIERS_MAX = 64            # Subscription Identifiers in one delivery
    NUMBER_WORKER_BITS = 8
    WATCHED_MAX = 65536             # topics a session remembers while it waits for retained messages
    ABSENCES_MAX = 64               # disconnections a session remembers before it has caught up
    QUOTA_EXCEEDED = 0x97
    REFUSED_NO_MEMBER = 1           # zmq_mesh.envelope.Refusal


cdef int pointers_push(Pointers* list_, object item) except -1:
    cdef uint32_t cap
    cdef PyObject** p
    if list_.count == list_.cap:
        cap = list_.cap * 2 if list_.cap else 64
        p = <PyObject**>realloc(list_.items, cap * sizeof(PyObject*))
        if p == NULL:
            raise MemoryError
        list_.items = p
        list_.cap = cap
    Py_INCREF(item)
    list_.items[list_.count] = <PyObject*>item
    list_.count += 1
    return 0


cdef bint topic_matches(const uint8_t* f, size_t fn, const uint8_t* t, size_t tn) noexcept nogil:
    """Does a valid Topic Filter match a valid Topic Name [MQTT-4.7.1-2, 4.7.1-3, 4.7.2-1]."""
    cdef size_t i = 0, k = 0
    if tn and t[0] == c'$' and fn and (f[0] == c'+' or f[0] == c'#'):
        return False
    while i < fn:
        if f[i] == c'#':
            return True
        if f[i] == c'+':
            while k < tn and t[k] != c'/':
                k += 1
            i += 1
        else:
            while i < fn and f[i] != c'/':
                if k >= tn or t[k] != f[i]:
                    return False
                i += 1
                k += 1
            if k < tn and t[k] != c'/':
                return False
        if i >= fn:
            return k >= tn
        # f[i] is '/'
        if k >= tn:
            return fn - i == 2 and f[i + 1] == c'#'
        i += 1
        k += 1
        if i >= fn:                 # the filter ends with an empty level
            return k >= tn
    return k >= tn


cdef uint32_t put_identifier(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = 0x0B
    return <uint32_t>(put_varint(p + 1, value) - p)


cdef int32_t find_expiry(const Content* c) except -2:
    """Where the Message Expiry Interval's value stands in props that a sibling has checked, or -1."""
    cdef Cursor cursor
    cdef Property p
    cdef uint64_t seen = 0
    cdef const uint8_t* at
    cursor.at = c.props
    cursor.end = c.props + c.props_len
    while cursor.at < cursor.end:
        at = cursor.at
        next_property(&cursor, &p, &seen, PUBLISH, True)
        if at[0] == 0x02:
            return <int32_t>(at + 1 - c.props)
    return -1


cdef uint32_t plain_offline(const Filter* f) noexcept nogil:
    # offline sessions that hold the filter itself with QoS > 0: members of its groups do not count
    cdef uint32_t n = f.offline_durable
    cdef const Group* g = f.groups
    while g != NULL:
        n -= g.offline_durable
        g = g.next
    return n


cdef inline bint lies_in(Connection conn, const uint8_t* p) noexcept:
    return conn.part != NULL and conn.part <= p <= conn.part + conn.part_len


@cython.final
cdef class Peer:
    def __cinit__(self):
        self.volatile_payloads = []
        self.sequenced_payloads = []


@cython.final
cdef class Router:
    """Routes publishes of one worker. `worker` and `workers`: which of how many; `limits`, `counters`, `timers`: shared
    with the rest of the worker; `store` and `handler` are set before the first connection."""

    def __cinit__(self, int worker, int workers, Subscriptions subscriptions not None, Limits limits not None, Row counters not None,
                  TimerWheel timers not None, retained=None):
        if not 0 <= worker < workers <= 64:
            raise ValueError("worker out of range")
        self.worker = worker
        self.workers = workers
        self.subscriptions = subscriptions
        self.limits = limits
        self.counters = counters
        self.timers = timers
        self.retained = retained
        self.peers = [Peer() if i != worker else None for i in range(workers)]
        self.keys = {}
        self.paused = []
        self.resumed = []
        self.closing = []
        self.after_acks = []
        self.next_position = 1
        self.block = Block(1)
        self.tick = 1

    def __dealloc__(self):
        cdef int i
        for i in range(4):
            free(self.frames[i].store)
        free(self.merged)
        free(self.identifiers)
        free_pointers(&self.dirty)
        free_pointers(&self.ready)
        free_pointers(&self.waiting)

    # ------------------------------------------------------------ time and numbers

    def set_time(self, uint64_t monotonic_ms, uint64_t wall_ms=0):
        """The clock of this tick. `wall_ms` is given once, at start: later steps of the wall clock change nothing here."""
        if wall_ms:
            self.wall_offset = wall_ms - monotonic_ms
        self.now_ms = monotonic_ms
        self.wall_ms = monotonic_ms + self.wall_offset

    cpdef uint64_t next_number(self):
        """A message number: (microseconds << 8 | worker), its time part max(last used + 1, now)."""
        cdef uint64_t t = self.wall_ms * 1000
        if t <= self.last_number:
            t = self.last_number + 1
        self.last_number = t
        return t << NUMBER_WORKER_BITS | <uint64_t>self.worker

    # ------------------------------------------------------------ lists of the tick

    cdef int set_dirty(self, Connection conn) except -1:
        if not conn.dirty:
            conn.dirty = True
            pointers_push(&self.dirty, conn)
        return 0

    cdef int set_ready(self, Session s) except -1:
        if not s.ready:
            s.ready = True
            pointers_push(&self.ready, s)
        return 0

    def take_dirty(self):
        """The connections that have output since the last call: for tests and the simulation (the reactor walks the list)."""
        cdef uint32_t i
        out = []
        for i in range(self.dirty.count):
            (<Connection>self.dirty.items[i]).dirty = False
            out.append(<object>self.dirty.items[i])
            Py_DECREF(<object>self.dirty.items[i])
        self.dirty.count = 0
        return out

    def outbox_taken(self, Connection conn not None):
        """Its output was taken (`Connection.take_output`): its session may read on. For the simulation (see the reactor's flush)."""
        cdef Session s = <Session>conn.session
        if conn.state == OPEN and s is not None and s.behind and (s.inflight < s.inflight_max or s.resend is not None):
            self.set_ready(s)

    def write(self, Connection conn not None, bytes packet not None):
        """Put a packet into the outbox at once, before acks that still wait."""
        cdef uint32_t n = <uint32_t>len(packet)
        if n and conn.state != CLOSED:
            memcpy(outbox_reserve(&conn.out, n), <const char*>packet, n)
            self.set_dirty(conn)

    def close(self, Connection conn not None, int reason=0, str why=""):
        """Ask for the connection's end; it is closed at the end of the tick, after its output left."""
        if conn.state < CLOSING:
            conn.state = CLOSING
            self.closing.append((conn, reason, why))

    # ------------------------------------------------------------ a publish

    cdef int begin(self, const Content* c, Session origin, object publisher, const uint8_t* raw, uint32_t raw_len, int raw_kind,
                   uint32_t raw_id_at) except -1:
        # raw: the packet as it came; raw_kind: which frame it is byte for byte (but for first byte and identifier), -1 = none
        cdef Frame* f
        self.content = c
        self.origin = origin
        self.publisher = publisher
        self.held = None
        self.logged = False
        self.here = self.next_position
        self.mask = 0
        self.matched_peers = 0
        self.frames[0].ready = self.frames[1].ready = self.frames[2].ready = self.frames[3].ready = False
        if raw_kind >= 0:
            f = &self.frames[raw_kind]
            f.data = raw
            f.total = raw_len
            f.length = raw_len if c.payload_len < self.limits.share_large_bytes else raw_len - c.payload_len
            f.id_at = raw_id_at
            f.ready = True
        return 0

    cdef Message hold(self):
        cdef Connection conn
        if self.held is None:
            conn = self.adoptable
            # a topic that an alias stands for, and properties without their alias, lie elsewhere
            if conn is not None and lies_in(conn, self.content.payload) and lies_in(conn, self.content.topic) and \
                    (self.content.props_len == 0 or lies_in(conn, self.content.props)):
                self.held = message_adopt(self.content, conn.part, self.publisher)
                conn.part = NULL
                conn.part_len = conn.part_cap = conn.part_want = 0
            else:
                self.held = message_copy(self.content, self.publisher)
        return self.held

    cdef int publish(self, Matches* m) except -1:
        cdef const Content* c = self.content
        cdef uint32_t i
        cdef uint64_t siblings = 0, served = 0
        cdef bint groups = False
        cdef Group* g
        cdef int owner
        cdef list choices
        for i in range(m.count):
            siblings |= m.filters[i].siblings
            if m.filters[i].groups != NULL:
                groups = True
        if m.count == 1:
            self.fan_out(m.filters[0])
        elif m.count:
            self.fan_out_merged(m)
        if c.retain:
            owner = self.keep()
            if owner >= 0:
                if siblings >> owner & 1 == 0:
                    self.entry(owner, ENTRY_RETAINED_ONLY, None)
                    self.mask |= <uint64_t>1 << owner
        if groups:
            choices = []
            for i in range(m.count):
                g = m.filters[i].groups
                while g != NULL:
                    self.choose_worker(g, choices)
                    g = g.next
            for owner, choice in choices:
                # an entry names one group, so that a refusal does; plain interest of that sibling is served by the first
                # of them: it matches again there
                self.entry(owner, ENTRY_RETAINED_ONLY if served >> owner & 1 else 0, choice)
                served |= <uint64_t>1 << owner
                if c.qos:
                    self.mask |= <uint64_t>1 << owner
            siblings &= ~served
        if siblings:
            self.forward(siblings)
        self.held = None
        if m.count == 0:
            self.counters.at[count.PUBLISH_UNMATCHED] += 1
            return 0
        return 1

    cdef int forward(self, uint64_t siblings) except -1:
        cdef int p = 0
        while siblings:
            if siblings & 1:
                self.entry(p, 0, None)
                if self.content.qos or self.content.retain:
                    self.mask |= <uint64_t>1 << p
            siblings >>= 1
            p += 1
        return 0

    cdef int entry(self, int peer, uint8_t flags, bytes choice) except -1:
        # one mesh entry for a peer; choice: the packed "group/filter" for which it was chosen, or None
        cdef Peer p = <Peer>self.peers[peer]
        cdef const Content* c = self.content
        cdef bint sequenced = c.qos != 0 or c.retain
        cdef bint own_frame = c.payload_len >= OWN_FRAME_BYTES
        cdef const uint8_t* packed = NULL
        cdef uint32_t packed_len = 0
        if choice is not None:
            packed = <const uint8_t*><const char*>choice
            packed_len = <uint32_t>len(choice)
        if own_frame:
            flags |= ENTRY_OWN_FRAME
        if sequenced:
            if p.sequenced is None:
                p.sequenced = Packed.__new__(Packed)
            p.sequenced.entry(c, flags, packed, packed_len, packed != NULL)
            if own_frame:
                p.sequenced_payloads.append(self.hold())
            p.sent = self.tick
        else:
            if p.volatile_entries is None:
                p.volatile_entries = Packed.__new__(Packed)
            p.volatile_entries.entry(c, flags, packed, packed_len, packed != NULL)
            if own_frame:
                p.volatile_payloads.append(self.hold())
        self.dirty_peers |= <uint64_t>1 << peer
        self.matched_peers |= <uint64_t>1 << peer
        self.counters.at[count.MESH_ENTRIES_SENT] += 1
        return 0

    cdef int fan_out(self, Filter* f) except -1:
        cdef const Content* c = self.content
        cdef SubscriberList* l = &f.plain
        cdef Subscriber* sub
        cdef Session s
        cdef uint32_t i, n = l.online
        cdef uint8_t options, qos, first
        cdef uint8_t[8] ids
        cdef bint want = False
        for i in range(n):
            sub = &l.items[i]
            options = <uint8_t>(sub.slot_options >> 24)
            s = <Session>sub.session
            if options & 4 and s is self.origin:
                continue
            qos = options & 3
            if qos > c.qos:
                qos = c.qos
            first = 0x30 | qos << 1 | (c.retain if options & 8 else 0)
            if not self.deliver(s, qos, first, ids, put_identifier(ids, sub.identifier) if sub.identifier else 0, 0):
                if s.own_key is not None:
                    self.log_own(s)
                else:
                    want = True
        if l.count > n:
            if self.offline(f, l.count - n):
                want = True
        if want:
            self.log(f)
        return 0

    cdef int fan_out_merged(self, Matches* m) except -1:
        # several filters: a session that holds more than one of them gets one copy
        cdef const Content* c = self.content
        cdef SubscriberList* l
        cdef Subscriber* sub
        cdef Merged* e
        cdef Merged* grown
        cdef Session s
        cdef uint32_t i, k, cap, n = 0, ids_len
        cdef int32_t at
        cdef uint8_t options, qos
        cdef uint8_t[IDENTIFIERS_MAX * 5] ids
        cdef uint64_t want = 0
        self.stamp += 1
        self.identifiers_count = 0
        for i in range(m.count):
            l = &m.filters[i].plain
            for k in range(l.online):
                sub = &l.items[k]
                options = <uint8_t>(sub.slot_options >> 24)
                s = <Session>sub.session
                if options & 4 and s is self.origin:
                    continue
                if s.stamp != self.stamp:
                    if n == self.merged_cap:
                        cap = self.merged_cap * 2 if self.merged_cap else 64
                        grown = <Merged*>realloc(self.merged, cap * sizeof(Merged))
                        if grown == NULL:
                            raise MemoryError
                        self.merged = grown
                        self.merged_cap = cap
                    s.stamp = self.stamp
                    s.merged = n
                    e = &self.merged[n]
                    n += 1
                    e.session = <PyObject*>s
                    e.identifier = sub.identifier
                    e.more = -1
                    e.options = options & 0x0B
                    e.filters = 0
                else:
                    e = &self.merged[s.merged]
                    if options & 3 > e.options & 3:
                        e.options = (e.options & 8) | (options & 3)
                    e.options |= options & 8
                    if sub.identifier:
                        if e.identifier == 0:
                            e.identifier = sub.identifier
                        else:
                            e.more = self.chain_identifier(sub.identifier, e.more)
                if options & 3:
                    e.filters |= <uint64_t>1 << (i if i < 63 else 63)
            if l.count > l.online:
                if self.offline(m.filters[i], l.count - l.online):
                    want |= <uint64_t>1 << (i if i < 63 else 63)
        for k in range(n):
            e = &self.merged[k]
            s = <Session>e.session
            ids_len = 0
            if e.identifier:
                ids_len = put_identifier(ids, e.identifier)
                at = e.more
                while at >= 0 and ids_len + 5 <= sizeof(ids):
                    ids_len += put_identifier(ids + ids_len, self.identifiers[at].value)
                    at = self.identifiers[at].next
            qos = e.options & 3
            if qos > c.qos:
                qos = c.qos
            if not self.deliver(s, qos, 0x30 | qos << 1 | (c.retain if e.options & 8 else 0), ids, ids_len, 0):
                if s.own_key is not None:
                    self.log_own(s)
                else:
                    want |= e.filters
        if want:
            for i in range(m.count):
                if want >> (i if i < 63 else 63) & 1:
                    self.log(m.filters[i])
        return 0

    cdef int32_t chain_identifier(self, uint32_t value, int32_t after) except -1:
        cdef Identifier* grown
        cdef uint32_t cap
        if self.identifiers_count == self.identifiers_cap:
            cap = self.identifiers_cap * 2 if self.identifiers_cap else 64
            grown = <Identifier*>realloc(self.identifiers, cap * sizeof(Identifier))
            if grown == NULL:
                raise MemoryError
            self.identifiers = grown
            self.identifiers_cap = cap
        self.identifiers[self.identifiers_count].value = value
        self.identifiers[self.identifiers_count].next = after
        self.identifiers_count += 1
        return <int32_t>(self.identifiers_count - 1)

    cdef bint offline(self, Filter* f, uint32_t sessions) noexcept:
        # so many offline sessions hold this filter; True: somebody must find the message in the log
        cdef uint32_t wanted
        if self.limits.queue_qos0:
            return True
        wanted = plain_offline(f) if self.content.qos else 0
        self.counters.at[count.MATCHED] += sessions - wanted
        self.counters.at[count.DROPPED_OFFLINE_QOS0] += sessions - wanted
        return wanted != 0

    cdef int deliver(self, Session s, uint8_t qos, uint8_t first, const uint8_t* ids, uint32_t ids_len, uint8_t flags) except -1:
        # one copy for one session; 1: done with it (sent or dropped), 0: the session is behind and the message must be logged
        cdef const Content* c = self.content
        cdef Connection conn = <Connection>s.connection
        cdef Frame* f
        cdef Inflight* slot = NULL
        cdef uint8_t* p
        cdef uint32_t remaining, n
        cdef uint32_t v5
        cdef uint16_t packet_id = 0
        cdef bytes identifiers
        if qos:
            if s.behind:
                return 0
            if conn is None or s.inflight >= s.inflight_max or conn.out.pending > self.limits.outbox_bytes_max:
                s.behind = True
                s.cursor = self.here - 1
                self.fell_behind(s)
                return 0
            self.counters.at[count.MATCHED] += 1
        else:
            if conn is None and self.limits.queue_qos0:
                return 0
            self.counters.at[count.MATCHED] += 1
            if conn is None:
                self.counters.at[count.DROPPED_OFFLINE_QOS0] += 1
                return 1
            if conn.out.pending > self.limits.outbox_bytes_max:
                return self.drop(conn, count.DROPPED_OUTBOX_FULL)
        if s.watched is not None and len(s.watched) < WATCHED_MAX:
            s.watched[PyBytes_FromStringAndSize(<const char*>c.topic, c.topic_len)] = c.number
        v5 = 1 if conn.version == 5 else 0
        if not v5:
            ids_len = 0
        f = &self.frames[v5 | (2 if qos else 0)]
        if not f.ready:
            frame_make(f, c, v5, qos != 0, c.payload_len < self.limits.share_large_bytes, self.wall_ms)
        if f.total > conn.packet_bytes_max or ids_len and self.packet_total(c, True, qos != 0, ids_len) > conn.packet_bytes_max:
            return self.drop(conn, count.DROPPED_PACKET_TOO_LARGE)
        if qos:
            slot = s.open_slot()
            packet_id = slot.packet_id
            slot.state = WAIT_PUBACK if qos == 1 else WAIT_PUBREC
            slot.flags = qos | (4 if first & 1 else 0) | flags
            if s.durable or flags & SHARED_COPY:
                self.hold()
                Py_INCREF(self.held)
                slot.message = <PyObject*>self.held
                if ids_len:
                    identifiers = PyBytes_FromStringAndSize(<const char*>ids, ids_len)
                    Py_INCREF(identifiers)
                    slot.identifiers = <PyObject*>identifiers
        else:
            self.counters.at[count.DELIVERED_QOS0] += 1
        if ids_len == 0:
            p = outbox_reserve(&conn.out, f.length)
            memcpy(p, f.data, f.length)
            p[0] = first
            if qos:
                put_u16(p + f.id_at, packet_id)
        else:
            remaining = <uint32_t>remaining_length(c, True, qos != 0, ids_len)
            n = 1 + varint_size(remaining) + remaining - c.payload_len
            if c.payload_len < self.limits.share_large_bytes:
                n += c.payload_len
            p = outbox_reserve(&conn.out, n)
            p = put_head(p, c, first, remaining, True, packet_id, qos != 0, ids, ids_len, self.wall_ms)
            if c.payload_len < self.limits.share_large_bytes:
                memcpy(p, c.payload, c.payload_len)
        if c.payload_len >= self.limits.share_large_bytes:
            self.hold()
            outbox_share(&conn.out, self.held.content.payload, c.payload_len, self.held)
        conn.messages_out += 1
        self.counters.at[count.PUBLISH_SENT] += 1
        if not conn.dirty:
            self.set_dirty(conn)
        return 1

    cdef int fell_behind(self, Session s) except -1:
        # from in sync to behind: above 64 filters it gets a log index of its own, so that no filter's index must be merged
        if s.own.count > 64 and s.own_key is None:
            s.own_key = LogKey(b"\0" + s.client_id.encode())
            (<LogKey>s.own_key).session = <void*>s
        return 0

    cdef int drop(self, Connection conn, int counter) except -1:
        self.counters.at[counter] += 1
        self.note_drops(conn, counter, 1)
        if self.limits.disconnect_when_full and counter == count.DROPPED_OUTBOX_FULL:
            self.close(conn, QUOTA_EXCEEDED, "outbox full")
        return 1

    cdef int note_drops(self, Connection conn, int counter, uint64_t dropped) except -1:
        # the reactor says when they have ended: nothing waits in the outbox and nothing in the session
        conn.drops += dropped
        if not conn.dropping:
            conn.dropping = True
            self.handler.dropping(conn, counter)
        return 0

    # ------------------------------------------------------------ retained messages

    cdef int keep(self) except -2:
        # set or clear the retained message of the publish in hand [MQTT-3.3.1-5, 3.3.1-6]; returns its owner if that is a sibling, else -1
        cdef const Content* c = self.content
        cdef int owner
        cdef uint64_t had = 0
        cdef bytes topic
        if self.workers > 1:
            owner = owner_of(c.topic, c.topic_len, self.workers)
            if owner != self.worker:
                return owner
        topic = PyBytes_FromStringAndSize(<const char*>c.topic, c.topic_len)
        old = self.retained.get(topic)
        if old is not None:
            had = content_bytes(&(<Message>old).content)
        if c.payload_len == 0:
            if self.retained.clear(topic, c.number):
                self.retained_bytes -= had
        elif old is None and <uint64_t>self.retained.count >= self.limits.retained_messages_max or \
                self.retained_bytes - had + content_bytes(c) > self.limits.retained_bytes_max:
            self.counters.at[count.RETAINED_REFUSED] += 1
            self.handler.retained_full(topic)
        elif self.retained.set(topic, c.number, self.hold()):
            self.retained_bytes += content_bytes(c) - had
        self.counters.at[count.RETAINED_MESSAGES] = self.retained.count
        self.counters.at[count.RETAINED_BYTES] = self.retained_bytes
        return -1

    # ------------------------------------------------------------ shared subscriptions

    cdef int choose_worker(self, Group* g, list choices) except -1:
        # one worker per group, in proportion to its members; then that worker chooses the member
        if g.siblings == 0:
            g.turn += 1
            return self.choose_local(g, g.turn)
        return self.choose_among(g, -1, choices)

    cdef int choose_among(self, Group* g, int refused, list choices) except -1:
        # the same where siblings have members; refused: a sibling that has none any more, whatever it said
        cdef uint32_t total = g.members.count, at
        cdef int p, chosen = -1
        for p in range(self.workers):
            if g.siblings >> p & 1 and p != refused:
                total += g.sibling_members[p]
        if total == 0:
            return 0
        g.turn += 1
        at = g.turn % total
        if at < g.members.count:
            return self.choose_local(g, at)
        at -= g.members.count
        for p in range(self.workers):
            if g.siblings >> p & 1 and p != refused:
                chosen = p
                if at < g.sibling_members[p]:
                    break
                at -= g.sibling_members[p]
        name = g.name[:g.name_length] + b"/" + filter_text(g.filter)[:g.filter.length]
        choices.append((chosen, bytes((len(name) & 255, len(name) >> 8)) + name))
        return 1

    cdef int choose_local(self, Group* g, uint32_t turn) except -1:
        # 1: given to a member (or queued for one, or dropped with a reason), 0: no member
        cdef SubscriberList* l = &g.members
        cdef const Content* c = self.content
        cdef Subscriber* sub
        cdef Session s
        cdef Connection conn
        cdef uint32_t i, k
        cdef uint8_t options, qos, first
        cdef uint8_t[8] ids
        if l.count == 0:
            return 0
        for i in range(l.online):
            k = (turn + i) % l.online
            sub = &l.items[k]
            s = <Session>sub.session
            conn = <Connection>s.connection
            options = <uint8_t>(sub.slot_options >> 24)
            qos = options & 3
            if qos > c.qos:
                qos = c.qos
            if conn is None or conn.out.pending > self.limits.outbox_bytes_max:
                continue
            if qos and (s.behind or s.inflight >= s.inflight_max):
                continue
            first = 0x30 | qos << 1 | (c.retain if options & 8 else 0)
            return self.deliver(s, qos, first, ids, put_identifier(ids, sub.identifier) if sub.identifier else 0, SHARED_COPY)
        # nobody can take it now: it waits with one of them
        if c.qos == 0:
            self.counters.at[count.MATCHED] += 1
            self.counters.at[count.DROPPED_OUTBOX_FULL if l.online else count.DROPPED_OFFLINE_QOS0] += 1
            return 1
        for i in range(l.count):
            # an online member first: it will be served soonest
            k = (turn + i) % l.online if i < l.online else i
            sub = &l.items[k]
            s = <Session>sub.session
            options = <uint8_t>(sub.slot_options >> 24)
            if options & 3 == 0 or s.queue_count >= self.limits.queue_messages_max or s.queue_bytes >= self.limits.queue_bytes_max:
                continue
            qos = options & 3
            if qos > c.qos:
                qos = c.qos
            identifiers = None
            if sub.identifier:
                identifiers = PyBytes_FromStringAndSize(<const char*>ids, put_identifier(ids, sub.identifier))
            self.queue_for(s, self.hold(), qos, c.retain and options & 8 != 0, identifiers, SHARED_COPY)
            return 1
        self.counters.at[count.MATCHED] += 1
        self.counters.at[count.DROPPED_QUEUE_FULL] += 1
        return 1

    cdef int queue_for(self, Session s, Message m, uint8_t qos, bint retain, object identifiers, uint8_t flags) except -1:
        # for this session alone; it is behind until it has been sent
        self.counters.at[count.MATCHED] += 1
        s.enqueue(m, <PyObject*>identifiers if identifiers is not None else NULL, qos | (4 if retain else 0) | flags)
        if not s.behind:
            s.behind = True
            s.cursor = self.next_position - 1
            self.fell_behind(s)
        if s.connection is not None:
            self.set_ready(s)
        return 0

    # ------------------------------------------------------------ the log

    cdef LogKey key_of(self, Filter* f):
        cdef LogKey key
        if f.index == NULL:
            key = LogKey(filter_text(f)[:f.length])
            self.keys[key.name] = key           # the strong reference
            f.index = <void*>key
        return <LogKey>f.index

    cdef int log(self, Filter* f) except -1:
        cdef LogKey key = self.key_of(f)
        if not self.logged:
            self.block.add(self.hold())
            self.next_position += 1
            self.logged = True
        self.block.index(key, <uint32_t>(self.here - self.block.first))
        return 0

    cdef int log_own(self, Session s) except -1:
        if not self.logged:
            self.block.add(self.hold())
            self.next_position += 1
            self.logged = True
        self.block.index(<LogKey>s.own_key, <uint32_t>(self.here - self.block.first))
        return 0

    def commit(self):
        """Give the tick's records to the store. Acks of this tick wait for its ticket, unless it is durable already."""
        if self.next_position != self.block.first:
            keys = self.block.keys
            self.last_ticket = self.store.append(self.block)
            self.block = Block(self.next_position)
            self.sweep_grown(keys)

    def durable(self, uint64_t ticket):
        """The store's callback: everything up to this ticket is as safe as the store promises."""
        self.durable_ticket = ticket
        self.acks_due = True

    # ------------------------------------------------------------ acks to publishers

    cdef int answer(self, Connection conn, uint8_t packet_type, uint16_t packet_id, uint8_t reason, uint64_t mask) except -1:
        cdef PendingAck a
        cdef uint8_t* p
        cdef uint64_t ticket = self.last_ticket + 1 if self.logged and not self.store.immediate else 0
        if conn.ack_count == 0 and mask == 0 and ticket == 0:
            p = outbox_reserve(&conn.out, 5)
            if put_ack(p, packet_type, packet_id, reason, conn.version == 5) - p == 4:
                conn.out.tail -= 1
                conn.out.pending -= 1
            self.set_dirty(conn)
            return 0
        memset(&a, 0, sizeof(a))
        a.tick = self.tick
        a.mask = mask
        a.ticket = ticket
        a.packet_id = packet_id
        a.packet_type = packet_type
        a.reason = reason
        conn.push_ack(&a)
        if packet_type == 4:
            conn.unanswered += 1
        if not conn.waiting:
            conn.waiting = True
            pointers_push(&self.waiting, conn)
        return 0

    def answer_packet(self, Connection conn not None, bytes packet not None, uint64_t interest=0, then=None):
        """A SUBACK, UNSUBACK, ...: leaves after the acks before it, and when every live peer has taken our interest up to number
        `interest`; then `then()` is called."""
        cdef PendingAck a
        cdef tuple waits
        if conn.ack_count == 0 and (interest == 0 or self.live_for_interest == 0):
            self.write(conn, packet)
            if then is not None:
                then()
            return
        memset(&a, 0, sizeof(a))
        a.interest = interest
        waits = (packet, then)
        a.packet = <PyObject*>waits
        self.acks_due = True                # the peers may have taken that much already
        conn.push_ack(&a)
        if not conn.waiting:
            conn.waiting = True
            pointers_push(&self.waiting, conn)

    def finish_tick(self):
        """Commit, let sessions read on, hand what peers get to `forward_now`, release acks. The outboxes are for the caller."""
        if self.next_position != self.block.first:
            self.commit()
        if self.ready.count:
            self.serve_ready()
        if self.dirty_peers or self.interest_due:
            self.forward_now()
        self.tick += 1
        if self.acks_due and self.waiting.count:
            self.release_acks()
            if self.ready.count:
                self.serve_ready()

    cdef int release_acks(self) except -1:
        cdef uint32_t i, kept = 0
        cdef Connection conn
        cdef PendingAck* a
        cdef uint64_t[64] acknowledged
        cdef Peer peer
        cdef uint64_t mask, interest = <uint64_t>-1
        cdef int p
        cdef bytes packet
        cdef uint8_t* at
        if self.waiting.count == 0 or not self.acks_due:
            return 0
        self.acks_due = False
        for p in range(self.workers):
            peer = <Peer>self.peers[p] if self.peers[p] is not None else None
            acknowledged[p] = peer.acknowledged if peer is not None else 0
            if peer is None or not self.live_peers >> p & 1 or peer.acknowledged >= peer.sent:
                acknowledged[p] = <uint64_t>-1              # it has everything there is
            if peer is not None and self.live_for_interest >> p & 1 and peer.interest < interest:
                interest = peer.interest
        for i in range(self.waiting.count):
            conn = <Connection>self.waiting.items[i]
            while conn.ack_count:
                a = &conn.acks[conn.ack_head]
                if a.ticket > self.durable_ticket or a.interest > interest:
                    break
                mask = a.mask
                p = 0
                while mask:
                    if mask & 1 and acknowledged[p] < a.tick:
                        break
                    mask >>= 1
                    p += 1
                if mask:
                    break
                if a.packet != NULL:
                    packet = (<tuple>a.packet)[0]
                    if (<tuple>a.packet)[1] is not None:
                        self.after_acks.append((<tuple>a.packet)[1])
                    at = outbox_reserve(&conn.out, <uint32_t>len(packet))
                    memcpy(at, <const char*>packet, len(packet))
                    Py_XDECREF(a.packet)
                else:
                    at = outbox_reserve(&conn.out, 5)
                    if put_ack(at, a.packet_type, a.packet_id, a.reason, conn.version == 5) - at == 4:
                        conn.out.tail -= 1
                        conn.out.pending -= 1
                    if a.packet_type == 4:
                        conn.unanswered -= 1
                conn.ack_head = (conn.ack_head + 1) & (conn.ack_cap - 1)
                conn.ack_count -= 1
                self.set_dirty(conn)
            if conn.ack_count:
                self.waiting.items[kept] = <PyObject*>conn
                kept += 1
            else:
                conn.waiting = False
                Py_DECREF(conn)
        self.waiting.count = kept
        while self.after_acks:
            self.after_acks.pop(0)()
        return 0

    # ------------------------------------------------------------ answers of subscribers

    cdef int puback(self, Session s, uint16_t packet_id, uint8_t reason) except -1:
        cdef Inflight* slot = s.slot(packet_id)
        if slot == NULL or slot.state != WAIT_PUBACK:
            return 0
        s.release(slot)
        self.counters.at[count.DELIVERED_QOS1 if reason < 0x80 else count.DROPPED_REFUSED] += 1
        if s.behind:
            self.set_ready(s)
        return 1

    cdef int pubrec(self, Session s, Connection conn, uint16_t packet_id, uint8_t reason) except -1:
        cdef Inflight* slot = s.slot(packet_id)
        cdef uint8_t* p
        if slot != NULL and slot.state == WAIT_PUBREC:
            if reason >= 0x80:
                s.release(slot)
                self.counters.at[count.DROPPED_REFUSED] += 1
                if s.behind:
                    self.set_ready(s)
                return 0
            slot.state = WAIT_PUBCOMP
            Py_XDECREF(slot.message)
            Py_XDECREF(slot.identifiers)
            slot.message = NULL
            slot.identifiers = NULL
            reason = 0
        elif slot != NULL and slot.state == WAIT_PUBCOMP:
            reason = 0
        elif reason >= 0x80:
            return 0
        else:
            reason = 0x92
        p = outbox_reserve(&conn.out, 5)
        if put_ack(p, PUBREL, packet_id, reason, conn.version == 5) - p == 4:
            conn.out.tail -= 1
            conn.out.pending -= 1
        self.set_dirty(conn)
        return 0

    cdef int pubcomp(self, Session s, uint16_t packet_id) except -1:
        cdef Inflight* slot = s.slot(packet_id)
        if slot == NULL or slot.state != WAIT_PUBCOMP:
            return 0
        s.release(slot)
        self.counters.at[count.DELIVERED_QOS2] += 1
        if s.behind:
            self.set_ready(s)
        return 1

    # ------------------------------------------------------------ sessions that are behind

    def serve_ready(self):
        """Let the sessions that are behind and have room read on. After `commit`: what was logged in this tick can be read."""
        cdef uint32_t i, n
        cdef Session s
        # serve may not add to the list: it is walked once
        n = self.ready.count
        for i in range(n):
            s = <Session>self.ready.items[i]
            s.ready = False
            self.serve(s)
            Py_DECREF(s)
        if self.ready.count > n:
            for i in range(n, self.ready.count):
                self.ready.items[i - n] = self.ready.items[i]
        self.ready.count -= n

    cdef int serve(self, Session s) except -1:
        cdef Connection conn
        cdef Queued* q
        cdef Batch b
        cdef Message m
        cdef uint64_t position
        cdef uint8_t flags, qos
        cdef object identifiers
        while s.behind:
            conn = <Connection>s.connection
            if conn is None or conn.state != OPEN or conn.out.pending > self.limits.outbox_bytes_max:
                return 0
            if s.resend is not None:
                if s.inflight - <uint32_t>len(s.resend) >= s.inflight_max:
                    return 0
                self.resend_next(s, conn)
                continue
            if s.queue_count:
                q = &s.queue[s.queue_head]
                flags = q.flags
                qos = flags & 3
                if qos and s.inflight >= s.inflight_max:
                    return 0
                m = <Message>q.message
                identifiers = <object>q.identifiers if q.identifiers != NULL else None
                s.dequeue()
                if s.watched is not None:
                    number = s.watched.get(PyBytes_FromStringAndSize(<const char*>m.content.topic, m.content.topic_len), 0)
                    if s.watching == 0 and s.queue_count == 0:
                        s.watched = None
                    if flags & RETAINED_COPY and m.content.number <= number:
                        # a newer message of that topic is there already
                        self.counters.at[count.MATCHED] -= 1
                        continue
                self.send_copy(s, conn, m, qos, flags & 4 != 0, identifiers, flags & SHARED_COPY)
                continue
            if s.inflight >= s.inflight_max:
                return 0
            b = <Batch>s.batch
            if b is None or s.batch_at >= b.count:
                b = self.read_log(s)
                if b is None:
                    self.caught_up(s)
                    return 0
                s.batch = b
                s.batch_at = 0
            position = b.positions[s.batch_at]
            m = <Message>b.messages[s.batch_at]
            s.batch_at += 1
            s.cursor = position
            if s.holes is not None and self.in_hole(s, position):
                continue
            self.deliver_logged(s, conn, m)
        return 0

    cdef Batch read_log(self, Session s):
        # the next messages of the session's backlog, or None: it has everything
        cdef uint32_t i
        cdef Membership* e
        cdef Batch b
        cdef list batches
        cdef bytes name
        cdef uint64_t after
        if s.own_key is not None:
            b = self.store.read((<LogKey>s.own_key).name, s.cursor, READ_BYTES_MAX)
            return b if b.count else None
        batches = []
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL or e.filter.index == NULL:
                continue
            if (e.filter.plain.items[e.index].slot_options >> 24) & 3 == 0 and s.absences is None:
                continue
            name = (<LogKey>e.filter.index).name
            after = s.cursor
            if s.since is not None:
                after = max(after, <uint64_t>s.since.get(name, 0))
            b = self.store.read(name, after, READ_BYTES_MAX)
            if b.count:
                batches.append(b)
        return merge_batches(batches) if batches else None

    cdef int caught_up(self, Session s) except -1:
        cdef Connection conn = <Connection>s.connection
        if conn.dropping:
            self.set_dirty(conn)
        s.behind = False
        s.batch = None
        s.batch_at = 0
        s.since = None
        s.holes = None
        s.absences = None
        if s.own_key is not None:
            (<LogKey>s.own_key).session = NULL
            self.store.forget((<LogKey>s.own_key).name)
            s.own_key = None
        return 0

    cdef bint was_absent(self, Session s, uint64_t position):
        # a QoS 0 copy is found in the log by sessions that were online when it was published, too: they had it then
        cdef uint64_t a, z
        while s.absences:
            a, z = s.absences[0]
            if position <= a:
                return False
            if position <= z:
                return True
            del s.absences[0]
        return False

    cdef bint in_hole(self, Session s, uint64_t position):
        cdef uint64_t a, z
        while s.holes:
            a, z = s.holes[0]
            if position <= a:
                return False
            if position <= z:
                return True
            del s.holes[0]
        s.holes = None
        return False

    cdef int deliver_logged(self, Session s, Connection conn, Message m) except -1:
        # which of its subscriptions match it now: their options and identifiers count [subscription options are those in force
        # when the message is sent]
        cdef Content* c = &m.content
        cdef Membership* e
        cdef Subscriber* sub
        cdef uint32_t i, ids_len = 0
        cdef uint8_t options = 0, o, qos
        cdef uint8_t[IDENTIFIERS_MAX * 5] ids
        cdef bint found = False
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL:
                continue
            if s.own.count > 1 and not topic_matches(<const uint8_t*>filter_text(e.filter), e.filter.length, c.topic, c.topic_len):
                continue
            sub = &e.filter.plain.items[e.index]
            o = <uint8_t>(sub.slot_options >> 24)
            if o & 4 and m.publisher is not None and m.publisher == s.client_id:
                continue
            found = True
            if o & 3 > options & 3:
                options = (options & 8) | (o & 3)
            options |= o & 8
            if sub.identifier and ids_len + 5 <= sizeof(ids):
                ids_len += put_identifier(ids + ids_len, sub.identifier)
        if not found:
            return 0
        qos = options & 3
        if qos > c.qos:
            qos = c.qos
        if qos == 0 and not self.was_absent(s, s.cursor):
            return 0
        self.counters.at[count.MATCHED] += 1
        identifiers = PyBytes_FromStringAndSize(<const char*>ids, ids_len) if ids_len and conn.version == 5 else None
        return self.send_copy(s, conn, m, qos, c.retain and options & 8 != 0, identifiers, 0)

    cdef int send_copy(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, object identifiers, uint8_t flags) except -1:
        # a copy that waited leaves; the caller has seen room in the window
        cdef Inflight* slot
        cdef uint16_t packet_id = 0
        cdef PyObject* ids = <PyObject*>identifiers if identifiers is not None else NULL
        cdef uint32_t ids_len = <uint32_t>len(<bytes>identifiers) if identifiers is not None else 0
        if m.content.expires and self.wall_ms >= m.content.expires:
            self.counters.at[count.DROPPED_EXPIRED] += 1
            return 0
        if self.packet_total(&m.content, conn.version == 5, qos != 0, ids_len) > conn.packet_bytes_max:
            return self.drop(conn, count.DROPPED_PACKET_TOO_LARGE)
        if qos:
            slot = s.open_slot()
            packet_id = slot.packet_id
            slot.state = WAIT_PUBACK if qos == 1 else WAIT_PUBREC
            slot.flags = qos | (4 if retain else 0) | flags
            if s.durable or flags & SHARED_COPY:
                slot.message = <PyObject*>m
                Py_INCREF(m)
                slot.identifiers = ids
                Py_XINCREF(ids)
        else:
            self.counters.at[count.DELIVERED_QOS0] += 1
        self.send_held(s, conn, m, qos, retain, False, packet_id, ids)
        return 0

    cdef uint64_t packet_total(self, const Content* c, bint v5, bint with_id, uint32_t ids_len) noexcept:
        cdef uint64_t remaining = remaining_length(c, v5, with_id, ids_len if v5 else 0)
        if remaining > 268_435_455:
            return <uint64_t>-1                 # no packet can say it
        return 1 + varint_size(<uint32_t>remaining) + remaining

    cdef int send_held(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, bint dup, uint16_t packet_id, PyObject* ids) except -1:
        cdef Content* c = &m.content
        cdef bint v5 = conn.version == 5
        cdef bint share = c.payload_len >= self.limits.share_large_bytes
        cdef const uint8_t* idp = NULL
        cdef uint32_t ids_len = 0, remaining, n
        cdef uint8_t* p
        if ids != NULL and v5:
            idp = <const uint8_t*><const char*><bytes>ids
            ids_len = <uint32_t>len(<bytes>ids)
        remaining = <uint32_t>remaining_length(c, v5, qos != 0, ids_len)
        n = 1 + varint_size(remaining) + remaining - (c.payload_len if share else 0)
        p = outbox_reserve(&conn.out, n)
        p = put_head(p, c, 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0), remaining, v5, packet_id, qos != 0, idp, ids_len, self.wall_ms)
        if share:
            outbox_share(&conn.out, c.payload, c.payload_len, m)
        else:
            memcpy(p, c.payload, c.payload_len)
        conn.messages_out += 1
        self.counters.at[count.PUBLISH_SENT] += 1
        self.set_dirty(conn)
        return 0

    # ------------------------------------------------------------ for the slow paths (broker)

    cdef int tell_interest(self, Filter* f, Group* g, bytes text, bytes group, bint durable) except -1:
        # siblings learn how many local holders (filter, group) has
        cdef uint32_t members = 0
        if g != NULL:
            members = g.members.count
        elif f != NULL:
            members = 1 if f.plain.count else 0
        self.interest.change(text, group, members, durable)
        self.interest_due = True
        return 0

    def subscribe(self, Session s not None, bytes text not None, int options, uint32_t identifier=0, bytes group=None):
        """Add or replace a subscription. `text`: a valid Topic Filter without $share; `options`: the wire byte. True: it is new."""
        cdef Filter* f = self.subscriptions.hold(<const uint8_t*><const char*>text, len(text))
        cdef Group* g = NULL
        cdef int new, held
        cdef bint wanted = False            # at QoS > 0 before
        if group is not None:
            g = self.subscriptions.hold_group(f, <const uint8_t*><const char*>group, len(group))
        else:
            held = self.subscriptions.membership(f, NULL, <void*>s, &s.own)
            wanted = held >= 0 and (f.plain.items[s.own.items[held].index].slot_options >> 24) & 3 != 0
        new = self.subscriptions.add(f, g, <void*>s, &s.own, <uint8_t>options, identifier, s.connection is not None)
        if group is None and s.behind and s.own_key is None and (new or not wanted and s.absences is None):
            # what is in the log already was not for it, or was sent at QoS 0
            if s.since is None:
                s.since = {}
            s.since[text] = self.next_position - 1
        if new and self.interest is not None and (group is not None or f.plain.count == 1):
            self.tell_interest(f, g, text, group, s.durable)
        self.counters.at[count.SUBSCRIPTIONS] = self.subscriptions.count
        self.counters.at[count.FILTERS] = self.subscriptions.filters
        return bool(new)

    cdef Group* group_of(self, Filter* f, bytes name) noexcept:
        cdef Group* g = f.groups if f != NULL else NULL
        while g != NULL and (g.name_length != len(name) or memcmp(g.name, <const char*>name, len(name)) != 0):
            g = g.next
        return g

    def unsubscribe(self, Session s not None, bytes text not None, bytes group=None):
        """Remove a subscription; False: there was none."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef Group* g = NULL
        cdef int i
        if f == NULL:
            return False
        if group is not None:
            g = self.group_of(f, group)
            if g == NULL:
                return False
        i = self.subscriptions.membership(f, g, <void*>s, &s.own)
        if i < 0:
            return False
        if s.behind and group is None and s.own_key is None and f.index != NULL:
            messages = self.store.backlog((<LogKey>f.index).name, s.cursor)[0]
            if s.own.count == 1:
                self.counters.at[count.MATCHED] += messages
                self.counters.at[count.DROPPED_UNSUBSCRIBED] += messages
        self.subscriptions.remove(&s.own, <uint32_t>i)
        if self.interest is not None:
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            g = self.group_of(f, group) if group is not None else NULL
            if group is not None or f == NULL or f.plain.count == 0:
                self.tell_interest(f, g, text, group, False)
        if s.since is not None:
            s.since.pop(text, None)
        s.batch = None                  # read again without it
        s.batch_at = 0
        self.counters.at[count.SUBSCRIPTIONS] = self.subscriptions.count
        self.counters.at[count.FILTERS] = self.subscriptions.filters
        return True

    def queue_retained(self, Session s not None, list messages not None, bytes text not None, bytes group=None):
        """Send retained messages to a session that subscribed, at the subscription's QoS, through its own queue [MQTT-3.3.1-6]."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef int i
        cdef Subscriber* sub
        cdef Message m
        cdef uint8_t options, qos
        cdef uint8_t[8] ids
        cdef object identifiers = None
        if f == NULL or group is not None:
            return
        i = self.subscriptions.membership(f, NULL, <void*>s, &s.own)
        if i < 0:
            return
        sub = &f.plain.items[s.own.items[i].index]
        options = <uint8_t>(sub.slot_options >> 24)
        if sub.identifier:
            identifiers = PyBytes_FromStringAndSize(<const char*>ids, put_identifier(ids, sub.identifier))
        if messages and s.watched is None:
            s.watched = {}
        for m in messages:
            qos = min(options & 3, m.content.qos)
            self.queue_for(s, m, qos, True, identifiers, RETAINED_COPY)

    def attach(self, Session s not None, Connection conn not None):
        """The session has this connection from now on; what is in flight is sent again [MQTT-4.4.0-1]."""
        cdef uint32_t i
        cdef list again = []
        conn.session = s
        conn.state = OPEN
        s.connection = conn
        s.version = conn.version
        if s.own_key is None:
            self.subscriptions.set_online(&s.own)
        for i in range(s.window_cap):
            if s.window[i].state != FREE:
                again.append((s.window[i].order, s.window[i].packet_id))
        if again:
            again.sort(reverse=True)
            s.resend = again
            if not s.behind:
                s.behind = True
                s.cursor = self.next_position - 1
                self.fell_behind(s)
        if s.absences is not None:
            s.absences[len(s.absences) - 1] = (s.absences[len(s.absences) - 1][0], self.next_position - 1)
        if s.behind:
            self.set_ready(s)

    cdef int resend_next(self, Session s, Connection conn) except -1:
        cdef Inflight* slot
        cdef uint8_t* p
        cdef uint16_t packet_id
        packet_id = (<list>s.resend).pop()[1]
        if not s.resend:
            s.resend = None
        slot = s.slot(packet_id)
        if slot == NULL:
            return 0
        if slot.state == WAIT_PUBCOMP:
            p = outbox_reserve(&conn.out, 4)
            put_ack(p, PUBREL, packet_id, 0, False)
            self.set_dirty(conn)
            return 0
        if slot.message == NULL:
            s.release(slot)
            self.counters.at[count.DROPPED_SESSION_ENDED] += 1
            return 0
        if self.packet_total(&(<Message>slot.message).content, conn.version == 5, True,
                             <uint32_t>len(<bytes>slot.identifiers) if slot.identifiers != NULL else 0) > conn.packet_bytes_max:
            s.release(slot)
            return self.drop(conn, count.DROPPED_PACKET_TOO_LARGE)
        self.counters.at[count.REDELIVERED] += 1
        self.send_held(s, conn, <Message>slot.message, slot.flags & 3, slot.flags & 4 != 0, True, packet_id, slot.identifiers)
        return 0

    def detach(self, Session s not None):
        """The session has no connection any more. One that is not durable ends."""
        s.connection = None
        s.resend = None
        s.batch = None
        s.batch_at = 0
        if s.durable:
            if not s.behind:
                s.behind = True
                s.cursor = self.next_position - 1
                self.fell_behind(s)
            if self.limits.queue_qos0:
                if s.absences is None:
                    s.absences = []
                if len(s.absences) >= ABSENCES_MAX:
                    s.absences[0] = (s.absences[0][0], s.absences[1][1])
                    del s.absences[1]
                s.absences.append((self.next_position - 1, <uint64_t>-1))
            if s.own_key is None:
                self.subscriptions.set_offline(&s.own)
        else:
            self.end_session(s)

    def end_session(self, Session s not None):
        """Forget the session: its subscriptions, what it waits for. Shares of a group that it had not acknowledged go to others."""
        cdef list shares = []
        cdef uint32_t i, dropped = 0
        cdef Filter* f
        cdef bytes text, name
        cdef Queued* q
        cdef Message m
        cdef list groups = [], plain = []
        cdef Membership* e
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group == NULL:
                if self.interest is not None and e.filter.plain.count == 1:
                    plain.append(filter_text(e.filter)[:e.filter.length])
            else:
                groups.append((filter_text(e.filter)[:e.filter.length], e.group.name[:e.group.name_length]))
        for i in range(s.window_cap):
            if s.window[i].state == FREE:
                continue
            if s.window[i].flags & SHARED_COPY and s.window[i].state == WAIT_PUBACK and s.window[i].message != NULL:
                shares.append((s.window[i].order, <object>s.window[i].message))
            else:
                dropped += 1
        shares.sort(key=order_of)
        for i in range(s.queue_count):
            q = &s.queue[(s.queue_head + i) & (s.queue_cap - 1)]
            if q.flags & SHARED_COPY:
                shares.append((0, <object>q.message))
            else:
                dropped += 1
        if s.behind:
            unread = self.backlog(s)[0]
            dropped += unread
            self.counters.at[count.MATCHED] += unread
        self.counters.at[count.DROPPED_SESSION_ENDED] += dropped
        s.connection = None
        s.resend = None
        self.subscriptions.remove_all(&s.own)
        s.clear()
        if s.own_key is not None:
            (<LogKey>s.own_key).session = NULL
            (<LogKey>s.own_key).count = 0
            self.store.forget((<LogKey>s.own_key).name)
            s.own_key = None
        s.behind = False
        self.counters.at[count.SUBSCRIPTIONS] = self.subscriptions.count
        self.counters.at[count.FILTERS] = self.subscriptions.filters
        if self.interest is not None:
            for text in plain:
                self.interest.change(text, None, 0, False)
            for text, name in groups:
                f = self.subscriptions.find(<const uint8_t*><const char*><bytes>text, len(<bytes>text))
                self.tell_interest(f, self.group_of(f, name), text, name, False)
            if plain:
                self.interest_due = True
        for _, m in shares:
            self.counters.at[count.MATCHED] -= 1        # the copy was born before: it changes hands
            if not self.share_again(m, groups):
                self.counters.at[count.MATCHED] += 1
                self.counters.at[count.DROPPED_NO_MEMBER] += 1

    cdef int share_again(self, Message m, list groups) except -1:
        cdef Filter* f
        cdef Group* g
        cdef bytes text, name
        for text, name in groups:
            if not topic_matches(<const uint8_t*><const char*>text, len(text), m.content.topic, m.content.topic_len):
                continue
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            if f == NULL:
                continue
            g = f.groups
            while g != NULL:
                if g.name_length == len(name) and memcmp(g.name, <const char*>name, len(name)) == 0 and g.members.count:
                    self.begin(&m.content, None, None, NULL, 0, -1, 0)
                    self.held = m
                    g.turn += 1
                    self.choose_local(g, g.turn)
                    self.held = None
                    return 1
                g = g.next
        return 0

    def backlog(self, Session s not None):
        """(messages, bytes) in logs that the session has not read; its own queue not included. A message that several of its
        filters match counts for each."""
        cdef uint64_t gone, gone_bytes = 0
        if not s.behind:
            return 0, 0
        messages, size = self.backlog_after(s, s.cursor)
        gone = self.in_holes(s, &gone_bytes)
        return messages - gone, size - gone_bytes

    def publish_message(self, Message m not None, Session origin=None):
        """Route a message of the broker itself (a will, $SYS). Returns the peers that were given it."""
        self.adoptable = None
        self.begin(&m.content, origin, m.publisher, NULL, 0, -1, 0)
        self.held = m
        self.publish(self.subscriptions.match(m.content.topic, m.content.topic_len))
        return self.mask

    # ------------------------------------------------------------ log upkeep

    def sweep(self):
        """Bound the backlogs and forget what nobody needs any more: for every log index that is held."""
        cdef LogKey key
        for key in list(self.keys.values()):
            self.sweep_key(key)

    cdef int sweep_grown(self, list keys) except -1:
        # the same for those of `keys` that have grown by a thirty-second of a session's limit since their last sweep
        cdef LogKey key
        cdef uint64_t many = self.limits.queue_messages_max // 32 + 1, much = self.limits.queue_bytes_max // 32 + 1
        for key in keys:
            if key.grown < many and key.grown_bytes < much:
                continue
            if key.session == NULL:
                self.sweep_key(key)
            else:
                key.grown = 0
                key.grown_bytes = 0
                self.bound(<Session>key.session)
                self.store.trim(key.name, (<Session>key.session).cursor)
                if self.needed_up_to(<Session>key.session) < self.block.first - 1:
                    self.store.cut(key.name, self.needed_up_to(<Session>key.session))
        return 0

    cdef uint64_t needed_up_to(self, Session s) except? 0xFFFFFFFFFFFFFFFF:
        # the last position the session still wants: what it drops at its limit (drop_newest) would else be held until it has read the rest
        cdef uint64_t last = self.block.first - 1
        if s.holes:
            a, z = s.holes[len(s.holes) - 1]
            if <uint64_t>z >= last:
                return a
        return last

    cdef int sweep_key(self, LogKey key) except -1:
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>key.name, len(key.name))
        cdef uint64_t lowest, over, highest = 0
        cdef uint32_t i
        cdef Session s
        cdef bint needed = False
        key.grown = 0
        key.grown_bytes = 0
        if f == NULL:
            self.keys.pop(key.name, None)
            self.store.forget(key.name)
            return 0
        lowest = self.block.first - 1
        over = self.store.position_of_last(key.name, self.limits.queue_messages_max, self.limits.queue_bytes_max)
        for i in range(f.plain.count):
            s = <Session>f.plain.items[i].session
            if not s.behind or s.own_key is not None:
                continue
            if (f.plain.items[i].slot_options >> 24) & 3 == 0 and s.absences is None:
                continue
            if s.cursor < over or s.own.count > 1 and s.cursor < self.block.first - 1:
                self.bound(s)
            needed = True
            if s.cursor < lowest:
                lowest = s.cursor
            highest = max(highest, self.needed_up_to(s))
        if key.count:
            needed = True
        if needed:
            self.store.trim(key.name, lowest)
            if highest < self.block.first - 1:
                self.store.cut(key.name, highest)
        else:
            self.keys.pop(key.name, None)
            self.store.forget(key.name)
            f.index = NULL
            self.subscriptions.drop_if_unused(f)
        return 0

    cdef int bound(self, Session s) except -1:
        # the session's backlog over its limit: the cursor moves (drop_oldest) or a hole is made (drop_newest)
        cdef uint64_t lo, hi, mid, messages, size, last = self.block.first - 1, dropped
        cdef uint64_t total, total_bytes
        total, total_bytes = self.backlog_after(s, s.cursor)
        if total <= self.limits.queue_messages_max and total_bytes <= self.limits.queue_bytes_max:
            return 0
        if self.limits.drop_oldest:
            lo = s.cursor
            hi = last
            while lo < hi:
                mid = (lo + hi) // 2
                messages, size = self.backlog_after(s, mid)
                if messages <= self.limits.queue_messages_max and size <= self.limits.queue_bytes_max:
                    hi = mid
                else:
                    lo = mid + 1
            dropped = total - self.backlog_after(s, lo)[0]
            s.cursor = lo
            s.batch = None
            s.batch_at = 0
        else:
            dropped = self.make_hole(s, total, total_bytes, last)
        if dropped:
            self.counters.at[count.MATCHED] += dropped
            self.counters.at[count.DROPPED_QUEUE_FULL] += dropped
            if s.connection is not None:
                self.note_drops(<Connection>s.connection, count.DROPPED_QUEUE_FULL, dropped)
            self.handler.queue_full(s, dropped)
        return 0

    cdef uint64_t make_hole(self, Session s, uint64_t total, uint64_t total_bytes, uint64_t last) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t lo, hi, mid, messages, size, gone, gone_bytes = 0
        gone = self.in_holes(s, &gone_bytes)
        if total - gone <= self.limits.queue_messages_max and total_bytes - gone_bytes <= self.limits.queue_bytes_max:
            return 0
        # keep the first ones up to the limit: everything behind position lo is the hole
        lo = s.holes[len(s.holes) - 1][1] if s.holes else s.cursor
        hi = last
        while lo < hi:
            mid = (lo + hi + 1) // 2
            messages, size = self.backlog_after(s, mid)
            if total - gone - messages <= self.limits.queue_messages_max and total_bytes - gone_bytes - size <= self.limits.queue_bytes_max:
                lo = mid
            else:
                hi = mid - 1
        messages = self.backlog_after(s, lo)[0]
        if s.holes is None:
            s.holes = []
        if s.holes and (s.holes[len(s.holes) - 1][1] == lo or len(s.holes) >= 64):
            # never more than 64 holes: then what lies between is dropped as well
            a, z = s.holes[len(s.holes) - 1]
            messages += self.backlog_after(s, z)[0] - self.backlog_after(s, lo)[0] if z < lo else 0
            s.holes[len(s.holes) - 1] = (a, last)
        else:
            s.holes.append((lo, last))
        return messages

    cdef tuple backlog_after(self, Session s, uint64_t position):
        # what lies behind `position` in the indexes it reads, holes included
        cdef uint64_t messages = 0, size = 0, after
        cdef uint32_t i
        cdef Membership* e
        cdef bytes name
        if s.own_key is not None:
            return self.store.backlog((<LogKey>s.own_key).name, position)
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL or e.filter.index == NULL:
                continue
            if (e.filter.plain.items[e.index].slot_options >> 24) & 3 == 0 and s.absences is None:
                continue
            name = (<LogKey>e.filter.index).name
            after = position
            if s.since is not None:
                after = max(after, <uint64_t>s.since.get(name, 0))
            a, b = self.store.backlog(name, after)
            messages += a
            size += b
        return messages, size

    cdef uint64_t in_holes(self, Session s, uint64_t* size) except? 0xFFFFFFFFFFFFFFFF:
        # how much of that was dropped before, and counted
        cdef uint64_t messages = 0
        for a, z in s.holes or ():
            x = self.backlog_after(s, max(<uint64_t>a, s.cursor))
            y = self.backlog_after(s, max(<uint64_t>z, s.cursor))
            messages += x[0] - y[0]
            size[0] += x[1] - y[1]
        return messages

    # ------------------------------------------------------------ peers

    def tell(self, int peer, bytes kind not None, bytes payload not None):
        """Something for the broker of a sibling, in order with the messages for it: arrives as `handler.told(peer, kind, payload)`."""
        cdef Content c
        memset(&c, 0, sizeof(c))
        c.topic = <const uint8_t*><const char*>kind
        c.topic_len = <uint16_t>len(kind)
        c.payload = <const uint8_t*><const char*>payload
        c.payload_len = <uint32_t>len(payload)
        cdef Peer p = <Peer>self.peers[peer]
        if p.sequenced is None:
            p.sequenced = Packed.__new__(Packed)
        p.sequenced.entry(&c, ENTRY_CONTROL, NULL, 0, 0)
        p.sent = self.tick
        self.dirty_peers |= <uint64_t>1 << peer

    def set_interest(self, int peer, bytes text not None, int members, bytes group=None):
        """A sibling's interest in a filter, or in a group of it: how many members it has (0: none any more)."""
        cdef Filter* f
        cdef Group* g
        if members == 0:
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            if f == NULL:
                return
        else:
            f = self.subscriptions.hold(<const uint8_t*><const char*>text, len(text))
        if group is None:
            self.subscriptions.set_sibling(f, peer, members > 0)
        else:
            g = self.subscriptions.hold_group(f, <const uint8_t*><const char*>group, len(group))
            self.subscriptions.set_sibling_members(f, g, peer, <uint32_t>members)

    def forget_interest(self, int peer):
        """Every interest of a sibling is gone."""
        self.subscriptions.forget_sibling(peer)

    def take(self, int peer):
        """(volatile, sequenced, volatile payloads, sequenced payloads, tick) for a link to send, or None. `tick` comes back in
        `peer_acknowledged` when the peer has everything up to and with this batch: what comes after it is of another tick."""
        cdef Peer p = <Peer>self.peers[peer]
        self.dirty_peers &= ~(<uint64_t>1 << peer)
        if p.volatile_entries is None and p.sequenced is None:
            return None
        out = (p.volatile_entries, p.sequenced, p.volatile_payloads, p.sequenced_payloads, self.tick)
        p.volatile_entries = None
        p.sequenced = None
        p.volatile_payloads = []
        p.sequenced_payloads = []
        self.tick += 1
        return out

    def peer_acknowledged(self, int peer, uint64_t tick):
        """The peer has taken everything of the ticks up to `tick`: acks that waited for it may leave."""
        cdef Peer p = <Peer>self.peers[peer]
        if tick > p.acknowledged:
            p.acknowledged = tick
            self.acks_due = True

    def peer_took_interest(self, int peer, uint64_t number):
        """The peer routes by our interest up to `number`: SUBACKs that waited for it may leave."""
        cdef Peer p = <Peer>self.peers[peer]
        if number > p.interest:
            p.interest = number
            self.acks_due = True

    def peer_live(self, int peer, bint live):
        """Acks wait for live peers only."""
        if live:
            self.live_peers |= <uint64_t>1 << peer
            self.live_for_interest |= <uint64_t>1 << peer
        else:
            self.live_peers &= ~(<uint64_t>1 << peer)
            self.live_for_interest &= ~(<uint64_t>1 << peer)
            self.acks_due = True

    def peer_answered(self, int peer):
        """A peer may serve by what it was told of our interest until now: SUBACKs wait for it."""
        self.live_for_interest |= <uint64_t>1 << peer

    def peer_away(self, int peer):
        """A peer that is stopped: SUBACKs do not wait for it, its entries are acknowledged by its link's hand-off log."""
        self.live_for_interest &= ~(<uint64_t>1 << peer)
        self.acks_due = True

    def peer_full(self, int peer, bint full):
        """While a peer's outbox is full, connections that publish to it are not read."""
        if full:
            self.full_peers |= <uint64_t>1 << peer
        elif self.full_peers >> peer & 1:
            self.full_peers &= ~(<uint64_t>1 << peer)
            self.resumed.extend(self.paused)
            self.paused = []

    cdef uint64_t unacknowledged_peers(self) noexcept:
        cdef int p
        cdef uint64_t mask = 0
        for p in range(self.workers):
            if p != self.worker and (<Peer>self.peers[p]).acknowledged < (<Peer>self.peers[p]).sent:
                mask |= <uint64_t>1 << p
        return mask

    cdef int pause(self, Connection conn) except -1:
        if not conn.paused:
            conn.paused = True
            self.paused.append(conn)
            self.counters.at[count.READING_PAUSED] += 1
        return 0

    def ingest(self, int peer, const uint8_t[::1] entries not None, list payloads not None, int used=0):
        """Route a batch of a sibling: `entries` packed, `payloads` the frames of large ones, of which `used` are taken already.
        Returns (payloads taken, [(position, reason)] of entries refused)."""
        cdef size_t at = 0, n = <size_t>entries.shape[0]
        cdef Entry e
        cdef uint32_t position = 0
        cdef Matches* m
        cdef list refused = None
        self.adoptable = None
        while at < n:
            at += read_entry(&entries[at], n - at, &e)
            if e.flags & ENTRY_CONTROL:
                self.handler.told(peer, PyBytes_FromStringAndSize(<const char*>e.content.topic, e.content.topic_len),
                                  PyBytes_FromStringAndSize(<const char*>e.content.payload, e.content.payload_len))
                position += 1
                continue
            self.counters.at[count.MESH_ENTRIES_RECEIVED] += 1
            used = self.begin_entry(&e, payloads, used)
            if e.content.retain and not e.choices_count:
                self.keep()
            if not e.flags & ENTRY_RETAINED_ONLY:
                m = self.subscriptions.cached(e.content.topic, e.content.topic_len)
                if m == NULL:
                    m = self.subscriptions.match(e.content.topic, e.content.topic_len)
                if m.count == 1:
                    self.fan_out(m.filters[0])
                elif m.count:
                    self.fan_out_merged(m)
            if e.choices_count and not self.chosen(&e):
                if refused is None:
                    refused = []
                refused.append((position, REFUSED_NO_MEMBER))
            self.held = None
            position += 1
        return used, refused

    cdef int begin_entry(self, Entry* e, list payloads, int used) except -1:
        # the publish in hand is a sibling's; returns how many of the payload frames are taken now
        cdef const uint8_t[::1] view
        if e.content.expires:
            e.content.expiry_offset = find_expiry(&e.content)
        self.begin(&e.content, None, None, NULL, 0, -1, 0)
        if not e.flags & ENTRY_OWN_FRAME:
            return used
        if used >= len(payloads):
            raise ValueError("mesh entry without its payload frame")
        owner = payloads[used]
        view = owner
        if view.shape[0] != e.content.payload_len:
            raise ValueError("mesh payload frame of another size than its entry says")
        e.content.payload = &view[0] if view.shape[0] else <const uint8_t*>b""
        # topic and properties are copied aside, the body is not
        self.held = self.borrow(&e.content, owner)
        return used + 1

    def choose_again(self, int peer, uint64_t tick, const uint8_t[::1] entries not None, list payloads not None, int position):
        """A sibling refused the entry at `position` of the batch of that tick: it has no member of the group any more. A member
        here or another worker is chosen, and the publisher's ack waits for that one too."""
        cdef size_t at = 0, n = <size_t>entries.shape[0]
        cdef Entry e
        cdef Group* g
        cdef const uint8_t* p
        cdef uint32_t length
        cdef int used = 0
        cdef list choices = []
        while at < n:
            at += read_entry(&entries[at], n - at, &e)
            if position == 0:
                break
            position -= 1
            if e.flags & ENTRY_OWN_FRAME:
                used += 1
        if position or n == 0 or e.flags & ENTRY_CONTROL:
            raise ValueError("no such mesh entry")
        self.adoptable = None
        self.begin_entry(&e, payloads, used)
        p = e.choices
        for _ in range(e.choices_count):
            length = p[0] | <uint32_t>p[1] << 8
            g = self.named(p + 2, length)
            if g == NULL or not self.choose_among(g, peer, choices):
                self.counters.at[count.MATCHED] += 1
                self.counters.at[count.DROPPED_NO_MEMBER] += 1
            p += 2 + length
        for other, choice in choices:
            self.entry(other, ENTRY_RETAINED_ONLY, choice)
            self.wait_longer(peer, tick, other)
        self.held = None

    cdef int wait_longer(self, int peer, uint64_t tick, int other) except -1:
        # whoever waits for `peer` to acknowledge `tick` waits for `other` to acknowledge this one as well. More publishers than
        # the one that is meant: this is rare
        cdef uint32_t i, k
        cdef Connection conn
        cdef PendingAck* a
        for i in range(self.waiting.count):
            conn = <Connection>self.waiting.items[i]
            for k in range(conn.ack_count):
                a = &conn.acks[(conn.ack_head + k) & (conn.ack_cap - 1)]
                if a.mask >> peer & 1 and a.tick <= tick:
                    a.mask |= <uint64_t>1 << other
                    a.tick = self.tick
        return 0

    cdef Message borrow(self, const Content* c, object owner):
        cdef bytes head = PyBytes_FromStringAndSize(<const char*>c.topic, c.topic_len) + PyBytes_FromStringAndSize(<const char*>c.props, c.props_len)
        cdef Message m = message_borrow(c, (owner, head))
        m.content.topic = <const uint8_t*><const char*>head
        m.content.props = m.content.topic + c.topic_len
        return m

    cdef bint chosen(self, Entry* e) except -1:
        # a sibling chose this worker for these groups: we choose the member. False: one of them has no member any more
        cdef const uint8_t* p = e.choices
        cdef uint32_t n
        cdef Group* g
        cdef bint all_found = True
        for _ in range(e.choices_count):
            n = p[0] | <uint32_t>p[1] << 8
            g = self.named(p + 2, n)
            if g == NULL:
                all_found = False
            else:
                g.turn += 1
                if not self.choose_local(g, g.turn):
                    all_found = False
            p += 2 + n
        return all_found

    cdef Group* named(self, const uint8_t* name, uint32_t n) noexcept:
        # the group of b"group/filter": a ShareName has no slash
        cdef uint32_t slash = 0
        cdef Filter* f
        cdef Group* g
        while slash < n and name[slash] != c'/':
            slash += 1
        f = self.subscriptions.find(name + slash + 1, n - slash - 1) if slash < n else NULL
        g = f.groups if f != NULL else NULL
        while g != NULL and (g.name_length != slash or memcmp(g.name, name, slash) != 0):
            g = g.next
        return g

def expiry_offset(bytes properties not None):
    """Where the Message Expiry Interval's value stands in checked PUBLISH properties, or -1."""
    cdef Content c
    c.props = <const uint8_t*><const char*>properties
    c.props_len = <uint32_t>len(properties)
    return find_expiry(&c)


def order_of(tuple pair):
    """Sort key: the order in which copies were sent."""
    return pair[0]


cdef void free_pointers(Pointers* p) noexcept:
    cdef uint32_t i
    for i in range(p.count):
        Py_XDECREF(p.items[i])
    free(p.items)
    p.items = NULL
    p.count = p.cap = 0
