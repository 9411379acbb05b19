"""The mechanics of a session: see the .pxd. Decisions (may it be resumed, when does it end) are made in broker."""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdlib cimport calloc, free, malloc


from pyx.core.placement cimport fixed_hash
from pyx.core.work cimport PLACE, OBJECT, VISIT, work
from pyx.delivery.watched_topics cimport WatchedTopics
from pyx.matching.filters cimport Former, Formers, Membership, filter_text
from pyx.matching.memberships cimport add_former
from pyx.protocol.message cimport content_bytes

cdef enum:
    WINDOW_FIRST = 8
    WINDOW_LAST = 65536
    INFLIGHT_BYTES = 16 << 20       # until its first CONNECT sets another bound


@cython.final
cdef class Hold:
    pass


@cython.final
cdef class Session:
    """The session of a client [MQTT-4.1]: lives as long as its connection, or until its Session Expiry Interval has
    passed."""

    def __cinit__(self, str client_id not None, int version=4):
        cdef bytes name = client_id.encode("utf-8", "surrogatepass")
        self.client_id = client_id
        self.identity = fixed_hash(<const uint8_t*><const char*>name, len(name))
        self.version = <uint8_t>version
        self.connection = None
        self.next_id = 1
        self.inflight_max = self.slots_max = 100
        self.inflight_room = INFLIGHT_BYTES
        self.batch = None
        self.holes = None
        self.absences = None
        self.unread = None
        self.search = None
        self.releases = None
        self.resend = None
        self.hold = None
        self.watched = None
        self.replays = None
        self.details = None

    def __dealloc__(self):
        # memberships must have been removed: the filters hold a pointer to this object
        self.clear()
        free(self.drops)
        free(self.pages)
        free(self.rule)

    cdef Inflight* open_slot(self) except NULL:
        # a free slot with the next Packet Identifier; the caller has checked `has_slot`: inflight < slots_max <= 65,535
        cdef Inflight* s
        cdef uint32_t tries = 0
        if self.inflight * 2 >= self.window_cap and self.window_cap < WINDOW_LAST:
            self.grow_window()
        while True:
            work(PLACE)
            s = &self.window[self.next_id & (self.window_cap - 1)]
            if s.state == FREE and self.next_id:
                s.packet_id = self.next_id
                s.position = 0
                s.order = self.order
                self.order += 1
                self.next_id += 1
                if self.next_id == 0:
                    self.next_id = 1
                self.inflight += 1
                out_changes(self, s.packet_id)
                return s
            self.next_id += 1
            tries += 1
            if tries > 131072:
                raise AssertionError("no free Packet Identifier although the window has room")

    cdef int grow_window(self) except -1:
        cdef uint32_t cap = self.window_cap * 2 if self.window_cap else WINDOW_FIRST, i
        cdef Inflight* old = self.window
        cdef Inflight* new = <Inflight*>calloc(cap, sizeof(Inflight))
        if new == NULL:
            raise MemoryError
        for i in range(self.window_cap):
            if old[i].state != FREE:
                new[old[i].packet_id & (cap - 1)] = old[i]      # distinct in the smaller table, so in this one too
        free(old)
        self.window = new
        self.window_cap = cap
        return 0

    cdef Inflight* place_slot(self, uint16_t packet_id) except NULL:
        cdef Inflight* s
        if self.slot(packet_id) != NULL or packet_id == 0:
            raise ValueError("a window has a Packet Identifier twice, or 0")
        while self.window_cap == 0 or self.window[packet_id & (self.window_cap - 1)].state != FREE:
            self.grow_window()                                  # at 65,536 all are distinct
        s = &self.window[packet_id & (self.window_cap - 1)]
        s.packet_id = packet_id
        s.order = self.order
        self.order += 1
        self.inflight += 1
        out_changes(self, packet_id)
        return s

    cdef Inflight* slot(self, uint16_t packet_id) noexcept:
        cdef Inflight* s
        if self.window_cap == 0:
            return NULL
        s = &self.window[packet_id & (self.window_cap - 1)]
        if s.state == FREE or s.packet_id != packet_id:
            return NULL
        return s

    cdef void release(self, Inflight* s) noexcept:
        if s.state == WAIT_PUBCOMP and s.group:
            self.released -= 1
        self.let_go(s)
        s.state = FREE
        self.inflight -= 1
        out_changes(self, s.packet_id)

    cdef int keep_in(self, Inflight* slot, Message message, PyObject* identifiers) except -1:
        Py_INCREF(message)
        slot.message = <PyObject*>message
        Py_XINCREF(identifiers)
        slot.identifiers = identifiers
        self.inflight_room -= content_bytes(&message.content)
        return 0

    cdef void let_go(self, Inflight* slot) noexcept:
        if slot.message == NULL:
            return
        self.inflight_room += content_bytes(&(<Message>slot.message).content)
        Py_DECREF(<object>slot.message)
        Py_XDECREF(slot.identifiers)
        slot.message = NULL
        slot.identifiers = NULL

    def bound_inflight(self, uint16_t slots_max, uint16_t inflight_max, int64_t bytes_max):
        """Bound what is in flight from now on: by our own bound, the client's (Receive Maximum), and in bytes; the
        message that reaches the last may exceed it.
        """
        cdef uint32_t i
        work(self.window_cap * PLACE)
        self.slots_max = slots_max
        self.inflight_max = inflight_max
        self.inflight_room = bytes_max
        for i in range(self.window_cap):
            if self.window[i].state != FREE and self.window[i].message != NULL:
                self.inflight_room -= content_bytes(&(<Message>self.window[i].message).content)

    cdef bint put_up_again(self) except -1:
        cdef uint32_t i
        cdef list resend = [], releases = []
        work(self.window_cap * PLACE + self.inflight * (10 * OBJECT))
        self.released = 0
        for i in range(self.window_cap):
            if self.window[i].state == WAIT_PUBCOMP:
                self.window[i].group = 1
                self.released += 1
                releases.append((self.window[i].order, self.window[i].packet_id))
            elif self.window[i].state != FREE:
                resend.append((self.window[i].order, self.window[i].packet_id))
        resend.sort(reverse=True)
        releases.sort(reverse=True)
        self.resend = resend or None
        self.releases = releases or None
        return self.inflight != 0

    cdef uint16_t next_again(self) except? 0:
        cdef list those = <list>(self.resend if self.releases is None else self.releases)
        cdef uint16_t packet_id = those.pop()[1]
        if not those:
            if self.releases is None:
                self.resend = None
            else:
                self.releases = None
        return packet_id

    cdef int arrive(self, uint16_t packet_id) except -1:
        cdef uint32_t* new
        cdef uint32_t cap, i, k, v = packet_id | 0x10000u
        if self.arrived_count * 2 >= self.arrived_cap and self.arrived_cap < 131072:
            cap = self.arrived_cap * 2 if self.arrived_cap else 8
            new = <uint32_t*>calloc(cap, sizeof(uint32_t))
            if new == NULL:
                raise MemoryError
            for i in range(self.arrived_cap):
                if self.arrived[i]:
                    k = self.arrived[i] & (cap - 1)
                    while new[k]:
                        k = (k + 1) & (cap - 1)
                    new[k] = self.arrived[i]
            free(self.arrived)
            self.arrived = new
            self.arrived_cap = cap
        k = v & (self.arrived_cap - 1)
        while self.arrived[k]:
            work(PLACE)
            if self.arrived[k] == v:
                return 0
            k = (k + 1) & (self.arrived_cap - 1)
        self.arrived[k] = v
        self.arrived_count += 1
        arrived_changes(self, packet_id)
        return 1

    cdef bint leave(self, uint16_t packet_id) noexcept:
        cdef uint32_t mask, k, j, home, v = packet_id | 0x10000u
        if self.arrived_count == 0:
            return False
        arrived_changes(self, packet_id)
        mask = self.arrived_cap - 1
        k = v & mask
        while self.arrived[k] != v:
            work(PLACE)
            if self.arrived[k] == 0:
                return False
            k = (k + 1) & mask
        # linear probing without tombstones: move back the entries that would become unreachable
        j = k
        while True:
            self.arrived[k] = 0
            while True:
                j = (j + 1) & mask
                work(PLACE)
                if self.arrived[j] == 0:
                    self.arrived_count -= 1
                    return True
                home = self.arrived[j] & mask
                if ((j - home) & mask) >= ((j - k) & mask):
                    break
            self.arrived[k] = self.arrived[j]
            k = j

    cdef int enqueue(self, Message message, PyObject* identifiers, uint8_t flags, uint32_t origin,
                     uint64_t number, uint64_t behind) except -1:
        cdef Queued* ring
        cdef Queued* q
        cdef uint32_t cap, i
        if self.queue_count == self.queue_cap:
            cap = self.queue_cap * 2 if self.queue_cap else 8
            ring = <Queued*>malloc(cap * sizeof(Queued))
            if ring == NULL:
                raise MemoryError
            for i in range(self.queue_count):
                ring[i] = self.queue[(self.queue_head + i) & (self.queue_cap - 1)]
            free(self.queue)
            self.queue = ring
            self.queue_cap = cap
            self.queue_head = 0
        q = &self.queue[(self.queue_head + self.queue_count) & (self.queue_cap - 1)]
        q.message = <PyObject*>message
        Py_INCREF(message)
        q.identifiers = identifiers
        Py_XINCREF(identifiers)
        q.flags = flags
        q.origin = origin
        q.number = number
        q.behind = behind
        self.queue_count += 1
        self.queue_bytes += content_bytes(&message.content)
        return 0

    cdef void dequeue(self) noexcept:
        cdef Queued* q = &self.queue[self.queue_head]
        self.queue_bytes -= content_bytes(&(<Message>q.message).content)
        Py_XDECREF(q.message)
        Py_XDECREF(q.identifiers)
        self.queue_head = (self.queue_head + 1) & (self.queue_cap - 1)
        self.queue_count -= 1
        if self.queue_count == 0:
            free(self.queue)
            self.queue = NULL
            self.queue_cap = self.queue_head = 0

    cdef list take_queued(self, uint32_t origin, uint8_t kind):
        cdef uint32_t i, kept = 0
        cdef Queued* q
        cdef list taken = []
        work(self.queue_count * VISIT)
        for i in range(self.queue_count):
            q = &self.queue[(self.queue_head + i) & (self.queue_cap - 1)]
            if q.origin != origin or not q.flags & kind:
                self.queue[(self.queue_head + kept) & (self.queue_cap - 1)] = q[0]
                kept += 1
                continue
            taken.append((<object>q.message, q.number))
            self.queue_bytes -= content_bytes(&(<Message>q.message).content)
            Py_XDECREF(q.message)
            Py_XDECREF(q.identifiers)
        self.queue_count = kept
        self.end_watching()
        if kept == 0:
            free(self.queue)
            self.queue = NULL
            self.queue_cap = self.queue_head = 0
        return taken

    cdef int clear(self) except -1:
        # drop all messages that wait or are in flight
        cdef uint32_t i
        work(self.window_cap * PLACE + self.inflight * VISIT + self.queue_count * (3 * VISIT))
        for i in range(self.window_cap):
            if self.window[i].state != FREE:
                self.release(&self.window[i])
        free(self.window)
        self.window = NULL
        self.window_cap = self.released = 0
        free(self.arrived)
        self.arrived = NULL
        self.arrived_cap = self.arrived_count = 0
        while self.queue_count:
            self.dequeue()
        self.batch = None
        self.batch_at = 0
        self.unread = None
        self.search = None
        self.holes = None
        self.absences = None
        self.watched = None
        return 0

    cdef int begin_watching(self) except -1:
        if self.watched is None:
            self.watched = WatchedTopics.__new__(WatchedTopics)
        return 0

    cdef void end_watching(self) noexcept:
        if self.watched is not None and self.watched.requests == 0 and self.watched.deferred == 0 and \
                self.queue_count == 0:
            self.watched = None

    def watch(self):
        """Remember from now on the topics of messages with RETAIN that are sent live: an older message of such a topic
        will not be sent as retained."""
        self.begin_watching()
        self.watched.requests += 1

    def ask(self, uint64_t position=0):
        """Note a SUBSCRIBE that asks for retained messages; return its number. Messages sent live before it do not
        answer it; a message with RETAIN that is sent live from now on replaces an older one of its topic. `position`:
        the last one of the log."""
        self.begin_watching()
        self.watched.ask(position, self.cursor if self.behind else position)
        return self.watched.asked

    def unwatch(self):
        """Note that one request for retained messages has been answered."""
        if self.watched is not None:                # else the session has ended
            self.watched.requests -= 1
            self.end_watching()

    cdef int keep_former(self, Subscriptions subscriptions, Membership* e, uint8_t options, uint64_t last) except -1:
        if not self.behind or last <= self.cursor or last <= e.since or options & 3 == 0 and self.absences is None:
            return 0
        add_former(&subscriptions.formers, e, options, e.since, last)
        e.since = last
        return 0

    cdef list formers(self, const Formers* formers, const Membership* e):
        # [(options, position behind which it begins, position with which it ends)] of the spans of the log that are
        # still to be sent under former options
        cdef const Former* former
        cdef uint32_t i = e.former
        cdef list found = []
        while i:
            former = &formers.items[i]
            if self.behind and former.up_to > self.cursor:
                found.append((former.options, former.since, former.up_to))
            i = former.next
        return found

    cdef bint wants_formers(self, const Formers* formers, const Membership* e, set spans) except -1:
        cdef const Former* former
        cdef uint32_t i = e.former
        cdef bint wanted = False
        while i:
            former = &formers.items[i]
            if former.up_to > self.cursor:
                work(OBJECT)
                spans.add((max(self.cursor, former.since), former.up_to))
                wanted = True
            i = former.next
        return wanted

    def filters(self):
        """Return the Topic Filters of its subscriptions, without shares of groups."""
        cdef uint32_t i
        cdef list found = []
        work(self.own.count * (VISIT + OBJECT))
        for i in range(self.own.count):
            if self.own.items[i].group == NULL:
                found.append(filter_text(self.own.items[i].filter)[:self.own.items[i].filter.length])
        return found

    def subscribed(self, uint32_t first=0, uint32_t most=0xFFFFFFFF):
        """Return its subscriptions as the client named them: Topic Filters, and $share/GROUP/FILTER for shares of a
        group; at most `most`, from number `first` on."""
        cdef uint32_t i, end = first + min(most, self.own.count - min(first, self.own.count))
        cdef Membership* e
        cdef bytes text
        cdef list found = []
        work((end - first) * (VISIT + 3 * OBJECT))
        for i in range(first, end):
            e = &self.own.items[i]
            text = filter_text(e.filter)[:e.filter.length]
            if e.group != NULL:
                text = b"$share/" + e.group.name[:e.group.name_length] + b"/" + text
            found.append(text)
        return found

    @property
    def client_id_bytes(self):
        """The length of its client id in UTF-8."""
        cdef Py_ssize_t size
        PyUnicode_AsUTF8AndSize(self.client_id, &size)
        return size

    @property
    def subscriptions(self):
        """The number of its subscriptions."""
        return self.own.count

    @property
    def unacknowledged(self):
        """The number of outgoing messages without their last ack."""
        return self.inflight

    @property
    def queued(self):
        """The number of messages in its own queue (retained or replayed ones, shares of a group)."""
        return self.queue_count

    @property
    def extent(self):
        """The number of its subscriptions, queued and unacknowledged messages together."""
        return self.own.count + self.queue_count + self.inflight

    @property
    def queued_bytes(self):
        """The bytes of their topics, properties and payloads."""
        return self.queue_bytes

    def held(self):
        """Return [(Message, QoS, of a share group)] of its window and its queue: for tests."""
        cdef uint32_t i
        cdef Queued* q
        out = []
        for i in range(self.window_cap):
            if self.window[i].state != FREE and self.window[i].message != NULL:
                out.append((<object>self.window[i].message, self.window[i].flags & 3, bool(self.window[i].flags & 8)))
        for i in range(self.queue_count):
            q = &self.queue[(self.queue_head + i) & (self.queue_cap - 1)]
            out.append((<object>q.message, q.flags & 3, bool(q.flags & 8)))
        return out

    @property
    def is_behind(self):
        return bool(self.behind)

    @property
    def is_watching(self):
        """Whether it remembers topics sent live, because retained messages are on their way."""
        return self.watched is not None

    @property
    def watched_topics(self):
        """The number of topics that it remembers."""
        return 0 if self.watched is None else self.watched.count
