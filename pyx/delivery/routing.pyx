"""The ground of the router: its state, and what every layer above it uses (see the .pxd)."""
from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from pyx.core cimport counters as count
from pyx.core.hashing cimport hash_bytes
from pyx.core.limits cimport DISCONNECT_WHEN_FULL
from pyx.core.little_endian cimport put64
from pyx.core.outbox cimport iovec, outbox_clear, outbox_gather, outbox_reserve, outbox_sent
from pyx.core.work cimport Mark, OBJECT, PYTHON, RECORD, STORED, VISIT, callback_begins, callback_ends, work
from pyx.delivery.connection cimport CLOSED, CLOSING, OPEN
from pyx.delivery.session cimport has_slot, may_go_on
from pyx.delivery.unread cimport Unread
from pyx.matching.subscriptions cimport filter_text
from pyx.protocol.aliases cimport ALIAS_BYTES, ALIAS_TOPIC_BYTES_MIN, alias_for
from pyx.protocol.frames cimport put_head, remaining_length
from pyx.protocol.message cimport message_adopt, message_copy
from pyx.protocol.properties cimport MESSAGE_EXPIRY_INTERVAL, find_property
from pyx.protocol.topics cimport topic_matches
from pyx.protocol.wire cimport varint_size
from pyx.storage.records cimport ENTRY_CONTROL, Packed

cdef enum:
    NUMBER_KEPT = 1_000_000 << NUMBER_WORKER_BITS       # a second

cdef bytes NUMBER_KEY = b"\0number"             # leveldb_store.format.schema.NUMBER


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


cdef void free_pointers(Pointers* p) noexcept:
    cdef uint32_t i
    for i in range(p.count):
        Py_XDECREF(p.items[i])
    free(p.items)
    p.items = NULL
    p.count = p.cap = 0


cdef int32_t find_expiry(const Content* c) except -2:
    """Where the Message Expiry Interval's value stands in properties that were checked when they came in, or -1.
    ValueError: they are damaged."""
    cdef int64_t at = find_property(c.props, c.props_len, MESSAGE_EXPIRY_INTERVAL)
    if at >= 0 and c.props_len - at < 4:
        raise ValueError("properties are cut off")
    return <int32_t>at


cdef bytes number_value(uint64_t number):
    cdef uint8_t[8] value
    put64(value, number)
    return PyBytes_FromStringAndSize(<char*>value, 8)


cdef inline bint lies_in(Connection conn, const uint8_t* p) noexcept:
    return conn.part != NULL and conn.part <= p <= conn.part + conn.part_len


@cython.final
cdef class Peer:
    def __cinit__(self):
        self.volatile_payloads = []
        self.sequenced_payloads = []
        self.cut = []


cdef class Routing:
    """What the layers of a Router have in common."""

    def __cinit__(self, int worker, int workers, Subscriptions subscriptions not None, Limits limits not None,
                  Row counters not None,
                  TimerWheel timers not None, retained=None):
        if not 0 <= worker < workers <= 64:
            raise ValueError("worker out of range")
        self.worker = worker
        self.workers = workers
        self.subscriptions = subscriptions
        self.round_until = ROUND
        subscriptions.counters = counters
        self.limits = limits
        self.counters = counters
        self.timers = timers
        self.clock = Clock()
        self.retained = retained
        self.peers = [Peer() if i != worker else None for i in range(workers)]
        self.keys = []
        self.paused = []
        self.resumed = []
        self.closing = []
        self.after_acks = deque()
        self.when_stored = deque()
        self.on_durable = None
        self.drained = []
        self.retained_changes = {}
        self.drops = Drops(0)
        self.prefixes = Prefixes(0, 0)
        self.next_position = 1
        self.block = Block(1)
        self.laid_at_once = LAID
        self.batch_turn = TURN
        self.tick = 1

    def __dealloc__(self):
        cdef int i
        for i in range(4):
            free(self.frames[i].store)
        free(self.merged)
        free(self.identifiers)
        free(self.ids)
        free_pointers(&self.dirty)
        free_pointers(&self.ready)
        free_pointers(&self.waiting)

    def set_time(self, uint64_t monotonic_ms, uint64_t wall_ms=0, uint64_t clock_us=0):
        """The clocks of this tick. `wall_ms`: the broker's time, given once, at start: it goes on with the monotonic
        one. `clock_us`: what the wall clock says now, where that is another time."""
        if wall_ms:
            self.wall_offset = wall_ms - monotonic_ms
        self.now_ms = monotonic_ms
        self.wall_ms = monotonic_ms + self.wall_offset
        self.clock.us = clock_us if clock_us else self.wall_ms * 1000

    cpdef uint64_t next_number(self):
        """A message number: (microseconds << 8 | worker); what the microseconds are, pyx.core.clock says."""
        return self.new_number()

    def numbers_behind(self, uint64_t number):
        """Every number from now on is greater than this one, which the store has."""
        self.clock.behind(number >> NUMBER_WORKER_BITS)

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
        """The connections that have output since the last call: for tests and the simulation (the reactor walks the
        list)."""
        cdef uint32_t i
        out = []
        for i in range(self.dirty.count):
            (<Connection>self.dirty.items[i]).dirty = False
            out.append(<object>self.dirty.items[i])
            Py_DECREF(<object>self.dirty.items[i])
        self.dirty.count = 0
        return out

    def take_output(self, Connection conn not None):
        """All bytes of its outbox, which is empty then; its session may read on. The kernel's part in tests and in the
        simulation (see the reactor's flush)."""
        cdef iovec[64] v
        cdef size_t total = 0
        cdef int n, i
        cdef Session s = <Session>conn.session
        pieces = []
        while conn.out.pending:
            n = outbox_gather(&conn.out, v, 64, &total)
            for i in range(n):
                pieces.append(PyBytes_FromStringAndSize(<char*>v[i].iov_base, <Py_ssize_t>v[i].iov_len))
            self.output_taken(conn, total)
        if conn.state == OPEN and s is not None and may_go_on(s):
            self.set_ready(s)
        return b"".join(pieces)

    cdef int output_taken(self, Connection conn, size_t n) except -1:
        # somebody took n bytes of its outbox
        cdef Session s = <Session>conn.session
        conn.bytes_out += n
        if s is not None and s.awaits_outbox and \
                conn.out.pending - n <= self.limits.outbox_bytes_max // <uint32_t>OUTBOX_PART:
            s.awaits_outbox = False
            self.drained.append(s)
        self.counters.at[count.BYTES_SENT] += n
        self.counters.at[count.DELIVERED_QOS0] += outbox_sent(&conn.out, n)
        return 0

    cpdef int discard_output(self, Connection conn) except -1:
        """The connection is no more: what nobody took of its outbox is dropped."""
        self.counters.at[count.DROPPED_CONNECTION_CLOSED] += conn.out.qos0
        self.drops.add(conn.had, count.DROPPED_CONNECTION_CLOSED, conn.out.qos0)
        conn.had = None
        outbox_clear(&conn.out)
        return 0

    def write(self, Connection conn not None, bytes packet not None):
        """Put a packet into the outbox at once, before acks that still wait."""
        cdef uint32_t n = <uint32_t>len(packet)
        if n and conn.state != CLOSED:
            self.counters.at[count.ANSWERS_SENT] += 1
            memcpy(outbox_reserve(&conn.out, n), <const char*>packet, n)
            self.set_dirty(conn)

    def close(self, Connection conn not None, int reason=0, str why=""):
        """Ask for the connection's end; it is closed at the end of the tick, after its output left."""
        if conn.state < CLOSING:
            conn.state = CLOSING
            self.closing.append((conn, reason, why))

    cpdef int fail(self, Connection conn, error) except -1:
        """The one door: an error of ours (whatever raised it) while something of this client's was handled. Its
        connection ends, those of others go on."""
        self.counters.at[count.INTERNAL_ERRORS] += 1
        self.handler.internal_error(conn, error)
        return 0

    cdef int fail_session(self, Session s, error) except -1:
        if s.connection is not None:
            return self.fail(<Connection>s.connection, error)
        self.counters.at[count.INTERNAL_ERRORS] += 1
        self.handler.defect(s.client_id, error)
        return 0

    @property
    def worked(self):
        """What publishes have cost, in nanoseconds of work, nominal: only rises."""
        return self.effort()

    @property
    def turn_ends(self):
        """What `worked` has reached when the turn of a batch that begins now is over; it is over at once while no
        publish is taken."""
        return self.effort() + (0 if self.takes_none else self.batch_turn)

    def is_round_over(self):
        """Whether publishes have cost so much in this tick that the next ones wait for the next."""
        return self.effort() > self.round_until

    cdef int begin(self, const Content* c, Session origin, object publisher, const uint8_t* raw, uint32_t raw_len,
                   int raw_kind,
                   uint32_t raw_id_at) except -1:
        # raw: the packet as it came; raw_kind: which frame it is byte for byte (but for first byte and identifier), -1
        # = none
        cdef Frame* f
        self.content = c
        self.origin = origin
        self.publisher = publisher
        self.held = None
        self.alias_hash = 0
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

    cdef int drop(self, Connection conn, int counter) except -1:
        self.counters.at[counter] += 1
        self.note_drops(conn, counter, 1)
        if self.limits.rules[0].full == DISCONNECT_WHEN_FULL and counter == count.DROPPED_OUTBOX_FULL:
            self.close(conn, QUOTA_EXCEEDED, "outbox full")
        return 1

    cdef int note_drops(self, Connection conn, int counter, uint64_t dropped) except -1:
        # the reactor says when they have ended: nothing waits in the outbox and nothing in the session
        conn.drops += dropped
        self.drops.add(conn.session, counter, dropped)
        if not conn.dropping:
            conn.dropping = True
            self.handler.dropping(conn, counter)
        return 0

    cdef uint64_t all_dropped(self) noexcept:
        cdef uint64_t total = 0
        cdef int i
        for i in range(count.DROPPED_EXPIRED, count.DROPPED_WORKER_LOST + 1):
            total += self.counters.at[i]
        return total

    cdef int fell_behind(self, Session s) except -1:
        # from in sync to behind: nothing that is in the log is for it
        if s.connection is not None and not has_slot(s):
            self.counters.at[count.INFLIGHT_FULL] += 1
        if s.own.count > MERGED_MAX and s.unread is None:
            s.unread = Unread()
        return 0

    cdef uint64_t packet_total(self, const Content* c, bint v5, bint with_id, uint32_t ids_len) noexcept:
        cdef uint64_t remaining = remaining_length(c, v5, with_id, ids_len if v5 else 0)
        if remaining > 268_435_455:
            return <uint64_t>-1                 # no packet can say it
        return 1 + varint_size(<uint32_t>remaining) + remaining

    cdef uint8_t* ids_room(self, uint32_t n) except NULL:
        # the buffer for Subscription Identifiers, with room for n of them; what is in it stays
        cdef uint8_t* grown
        if self.ids_cap < n * IDENTIFIER_BYTES_MAX:
            grown = <uint8_t*>realloc(self.ids, 2 * n * IDENTIFIER_BYTES_MAX)
            if grown == NULL:
                raise MemoryError
            self.ids = grown
            self.ids_cap = 2 * n * IDENTIFIER_BYTES_MAX
        return self.ids

    cdef int put_publish(self, Connection conn, const Content* c, uint8_t first, uint16_t packet_id, bint with_id,
                         const uint8_t* ids, uint32_t ids_len, uint64_t* hash_) except -1:
        cdef bint v5 = conn.version == 5
        cdef bint share = c.payload_len >= self.limits.share_large_bytes
        cdef int32_t alias = 0
        cdef uint32_t remaining, n
        cdef uint8_t* p
        # a packet that would be too large by its alias goes without
        if conn.topic_alias_out_max and c.topic_len >= ALIAS_TOPIC_BYTES_MIN and \
                self.packet_total(c, True, with_id, ids_len + ALIAS_BYTES) <= conn.packet_bytes_max:
            if hash_[0] == 0:
                hash_[0] = hash_bytes(&self.subscriptions.key, c.topic, c.topic_len)
            alias = alias_for(&conn.aliases_out, conn.topic_alias_out_max, c.topic, c.topic_len, <uint32_t>hash_[0])
        remaining = <uint32_t>remaining_length(c, v5, with_id, ids_len + (ALIAS_BYTES if alias else 0))
        if alias > 0:
            remaining -= c.topic_len
            self.counters.at[count.PUBLISH_SENT_BY_ALIAS] += 1
        n = 1 + varint_size(remaining) + remaining - (c.payload_len if share else 0)
        p = outbox_reserve(&conn.out, n)
        p = put_head(p, c, first, remaining, v5, packet_id, with_id, alias, ids, ids_len, self.wall_ms)
        if not share:
            memcpy(p, c.payload, c.payload_len)
        return 0

    cdef LogKey key_of(self, Filter* f):
        cdef LogKey key
        if f.index == NULL:
            key = LogKey(filter_text(f)[:f.length])
            key.place = <uint32_t>len(self.keys)
            self.keys.append(key)               # the strong reference
            f.index = <void*>key
        return <LogKey>f.index

    cdef int drop_key(self, LogKey key) except -1:
        # nobody needs the index any more. The last key takes its place: a walk that goes down misses none
        cdef LogKey last = self.keys.pop()
        if last is not key:
            last.place = key.place
            self.keys[key.place] = last
        self.store.forget(key.name)
        return 0

    cdef int log(self, Filter* f) except -1:
        cdef LogKey key = self.key_of(f)
        work(RECORD)
        self.spent += RECORD if key.count else NAMED
        if not self.logged:
            self.block.add(self.hold())
            self.next_position += 1
            self.logged = True
            if self.durabilities is not None:
                self.settle_durability(self.content)
        self.block.index(key, <uint32_t>(self.here - self.block.first))
        return 0

    def durable(self, uint64_t ticket):
        """The store's callback: everything up to this ticket is as safe as the store promises."""
        cdef Mark mark
        callback_begins(&mark)
        self.durable_ticket = ticket
        self.acks_due = True
        while self.when_stored and <uint64_t>self.when_stored[0][0] <= ticket:
            work(PYTHON)
            _, callback, conn = self.when_stored.popleft()
            if conn is None:
                callback()
            else:
                self.attempt(conn, callback)
        if self.on_durable is not None:
            self.on_durable()
        callback_ends(&mark, STORED)

    cdef uint64_t next_ticket(self) noexcept:
        # under which all that was decided until now will be durable; 0: it is
        cdef uint64_t ticket = self.last_ticket
        if not self.keeps:
            return 0
        if self.recorded or self.archive_awaited or self.next_position != self.block.first:
            ticket += 1
        return ticket if ticket > self.durable_ticket else 0

    def set_durabilities(self, list rules not None, bint others):
        """Which messages are to be on the disk itself before they count as durable, and which at the operating system:
        [(Topic Filter, is it the disk), ...], the first that matches the topic counts; `others`: where none does. State
        records are for the disk, where anything is; a retained message is one of its topic."""
        self.durabilities = rules or None
        self.others_synced = others

    cdef int settle_durability(self, const Content* c) except -1:
        # does the batch have to be on the disk itself for this message
        cdef bytes text
        if self.synced:
            return 0
        for text, fsync in self.durabilities:
            work(OBJECT)
            if topic_matches(<const uint8_t*><const char*>text, len(text), c.topic, c.topic_len):
                self.synced = fsync
                return 0
        self.synced = self.others_synced
        return 0

    def set_archive(self, archive):
        """What this worker archives (`leveldb_store.contract.Archive`); before the first publish. Numbers go on above
        those that it has."""
        if archive is not None:
            self.numbers_behind(archive.highest)
            if archive.archiver.filters:
                self.archiver = archive.archiver

    cdef int archive(self, const Matches* m, uint32_t matches, bint is_full) except -1:
        # the publish in hand, which so many subscriptions here match; is_full: the store takes nothing new
        cdef const Content* c = self.content
        cdef Archiver archiver = self.archiver
        cdef int32_t rule = archiver.rule_of(c.topic, c.topic_len, m.topic_hash)
        if rule < 0:
            return 0
        if c.qos == 0 and (is_full or archiver.pending_bytes > archiver.pending_bytes_max):
            self.counters.at[count.ARCHIVE_DROPPED] += 1
            return 0
        archiver.append(rule, c, self.publisher, matches)
        self.counters.at[count.ARCHIVED_MESSAGES] += 1
        self.archive_due = True
        if c.qos:
            self.archive_awaited = self.logged = True       # the ack waits for it
            if self.durabilities is not None:
                self.settle_durability(c)
        return 0

    def archived_up_to(self):
        """A number: whatever this worker archives with it or a lower one is durable. Without an archive 0. (Of one that
        archives nothing it rises with the clock.)"""
        cdef uint64_t number
        archive = self.store.archive
        if archive is None:
            return 0
        if not archive.is_settled:
            return archive.last
        number = self.new_number()
        if number + NUMBER_KEPT // 2 > self.number_kept:
            # somebody relies on it that nothing comes below: after a restart with a clock that was put back, too
            self.number_kept = number + NUMBER_KEPT
            self.put_record(NUMBER_KEY, number_value(self.number_kept), False)
        return number

    def put_record(self, bytes key not None, bytes value not None, bint waited=True):
        """Store a state record (`leveldb_store.format.schema`) with all else that this tick stores. Nothing without a
        disk. Not `waited`: nobody relies on it more than on what else the tick stores.
        """
        if self.keeps:
            self.store.put(key, value)
            self.recorded = True
            if waited:
                self.synced = True

    def delete_record(self, bytes key not None, bint waited=True):
        """Delete a state record with all else that this tick stores. Nothing without a disk. `waited`: see
        put_record."""
        if self.keeps:
            self.store.delete(key)
            self.recorded = True
            if waited:
                self.synced = True

    def when_durable(self, callback not None, Connection conn=None):
        """Call it once, when everything that was stored or decided until now is durable: at once if it is, else from
        within `durable`. `conn`: for whom it is, and who ends if it fails."""
        cdef uint64_t ticket = self.next_ticket()
        if ticket:
            self.when_stored.append((ticket, callback, conn))
        else:
            callback()

    cdef int attempt(self, Connection conn, callback) except -1:
        try:
            callback()
        except Exception as error:
            self.fail(conn, error)
        return 0

    def abandon(self):
        """Let go of the connections and sessions that lists here hold, and of their acks: the collector cannot see into
        these. For a worker that is thrown away while its process lives (the simulation, tests)."""
        cdef uint32_t i
        for i in range(self.waiting.count):
            (<Connection>self.waiting.items[i]).drop_acks()
        free_pointers(&self.dirty)
        free_pointers(&self.ready)
        free_pointers(&self.waiting)

    cdef int pause(self, Connection conn) except -1:
        if not conn.paused:
            conn.paused = True
            self.paused.append(conn)
            self.counters.at[count.READING_PAUSED] += 1
        return 0

    cdef int sample(self, const Matches* m, bint answered) except -1:
        # the publish in hand is one whose durations are measured; answered: its ack is in the outbox, or it has none
        # (else the ack takes the time along). Siblings measure until their own delivery: one clock serves all
        # processes of a host. The reactor reads it when what is to be measured has happened
        cdef Content c
        cdef uint64_t peers = self.matched_peers
        cdef uint32_t i
        cdef int p = 0
        self.sample_ms = self.now_ms + SAMPLE_MS
        if answered:
            self.finished_since = self.tick_ns
        for i in range(m.count):
            work(VISIT)
            if m.filters[i].plain.online or m.filters[i].groups != NULL:
                self.delivered_since = self.tick_ns
                break
        if not peers or not self.tick_ns:
            return 0
        memset(&c, 0, sizeof(c))
        c.topic = <const uint8_t*>b"~"
        c.topic_len = 1
        c.payload = <const uint8_t*>&self.tick_ns
        c.payload_len = sizeof(self.tick_ns)
        while peers:
            if peers & 1:
                self.tell_in_passing(p, &c)
            peers >>= 1
            p += 1
        return 0

    cdef int tell_in_passing(self, int peer, const Content* c) except -1:
        # a word for the broker of a sibling that may be lost, and costs no message of its own when a batch leaves
        cdef Peer p = <Peer>self.peers[peer]
        if p.volatile_entries is None:
            p.volatile_entries = Packed.__new__(Packed)
        p.volatile_entries.entry(c, ENTRY_CONTROL, NULL)
        return 0
