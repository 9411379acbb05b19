"""One worker's router.

A publish comes from a connection, a peer, a will or the broker. Matching gives Filters; each of their subscribers is a
session. A session that is in sync and has room gets the message at once: its bytes go into the connection's outbox and,
at QoS 1 and 2, a slot of its window. One that has no room, or is offline, is *behind*: the message is written once into
the log of this tick, under the index of the filter, and the session reads it from there when it has room, until it has
caught up. So a message is held once however many sessions are behind, and a session in sync costs no log.

Siblings are subscribers too: a Filter says which of them want it, and each gets the entry once, in the batch of this
tick. What came from a sibling is never forwarded to one.

The publisher's ack waits for what it promises: the log's commit where something was logged, and the cumulative link ack
of every sibling that was given the message. Acks of one connection leave in the order of the packets they answer.

Copies are counted where they are born, here: matched = delivered + expired + dropped + waiting. A copy that waits in a
log is counted as matched when it leaves it.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stdlib cimport realloc
from libc.string cimport memcmp, memcpy

from pyx cimport counters as count
from pyx.codec cimport put_ack
from pyx.connection cimport OPEN
from pyx.frames cimport Frame, frame_make, put_head, remaining_length
from pyx.message cimport Content, content_bytes
from pyx.outbox cimport outbox_reserve, outbox_share
from pyx.packets cimport PUBREL
from pyx.placement cimport owner_of
from pyx.records cimport Block, ENTRY_RETAINED_ONLY, LogKey
from pyx.routing cimport (
    ABSENCES_MAX, IDENTIFIERS_MAX, NUMBER_WORKER_BITS, RETAINED_COPY, SHARED_COPY, WATCHED_MAX, Identifier, Merged,
    find_expiry, put_identifier,
)
from pyx.session cimport FREE, Inflight, Queued, WAIT_PUBACK, WAIT_PUBCOMP, WAIT_PUBREC
from pyx.subscriptions cimport Membership, Subscriber, SubscriberList, filter_text
from pyx.wire cimport put_u16, varint_size


cdef uint32_t plain_offline(const Filter* f) noexcept nogil:
    # offline sessions that hold the filter itself with QoS > 0: members of its groups do not count
    cdef uint32_t n = f.offline_durable
    cdef const Group* g = f.groups
    while g != NULL:
        n -= g.offline_durable
        g = g.next
    return n


@cython.final
cdef class Router(Siblings):
    """Routes publishes of one worker. `worker` and `workers`: which of how many; `limits`, `counters`, `timers`: shared
    with the rest of the worker; `store` and `handler` are set before the first connection."""

    cpdef uint64_t next_number(self):
        """A message number: (microseconds << 8 | worker), its time part max(last used + 1, now)."""
        cdef uint64_t t = self.wall_ms * 1000
        if t <= self.last_number:
            t = self.last_number + 1
        self.last_number = t
        return t << NUMBER_WORKER_BITS | <uint64_t>self.worker

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
                # an entry names one group, so that a refusal does; plain interest of that sibling is served by the
                # first of them: it matches again there
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
        cdef Merged *e, *grown
        cdef Session s
        cdef uint32_t i, k, cap, n = 0, ids_len
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
            ids_len = self.put_identifiers(e, ids) if e.identifier else 0
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

    cdef uint32_t put_identifiers(self, Merged* e, uint8_t* ids) noexcept:
        # room for IDENTIFIERS_MAX of them
        cdef uint32_t n = put_identifier(ids, e.identifier)
        cdef int32_t at = e.more
        while at >= 0 and n + 5 <= IDENTIFIERS_MAX * 5:
            n += put_identifier(ids + n, self.identifiers[at].value)
            at = self.identifiers[at].next
        return n

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

    cdef int deliver(self, Session s, uint8_t qos, uint8_t first, const uint8_t* ids, uint32_t ids_len,
                     uint8_t flags) except -1:
        # one copy for one session; 1: sent or dropped, 0: the session is behind and the message must be logged
        cdef const Content* c = self.content
        cdef Connection conn = <Connection>s.connection
        cdef Frame* f
        cdef Inflight* slot = NULL
        cdef uint8_t* p
        cdef uint32_t remaining, n, v5
        cdef uint16_t packet_id = 0
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
        if f.total > conn.packet_bytes_max or \
                ids_len and self.packet_total(c, True, qos != 0, ids_len) > conn.packet_bytes_max:
            return self.drop(conn, count.DROPPED_PACKET_TOO_LARGE)
        if qos:
            slot = s.open_slot()
            packet_id = slot.packet_id
            slot.state = WAIT_PUBACK if qos == 1 else WAIT_PUBREC
            slot.flags = qos | (4 if first & 1 else 0) | flags
            if s.durable or flags & SHARED_COPY:
                self.fill(slot, ids, ids_len)
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
            n = 1 + varint_size(remaining) + remaining
            n -= c.payload_len if c.payload_len >= self.limits.share_large_bytes else 0
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

    cdef int fill(self, Inflight* slot, const uint8_t* ids, uint32_t ids_len) except -1:
        # what may have to be sent again
        cdef bytes identifiers
        self.hold()
        if ids_len:
            identifiers = PyBytes_FromStringAndSize(<const char*>ids, ids_len)
            Py_INCREF(identifiers)
            slot.identifiers = <PyObject*>identifiers
        Py_INCREF(self.held)
        slot.message = <PyObject*>self.held
        return 0

    cdef int keep(self) except -2:
        # set or clear the retained message of the publish in hand [MQTT-3.3.1-5, 3.3.1-6]; returns its owner if that is
        # a sibling, else -1
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

    def commit(self):
        """Give the tick's records to the store. Acks of this tick wait for its ticket, unless it is durable already."""
        if self.next_position != self.block.first:
            keys = self.block.keys
            self.last_ticket = self.store.append(self.block)
            self.block = Block(self.next_position)
            self.sweep_grown(keys)

    def finish_tick(self):
        """Commit, let sessions read on, hand what peers get to `forward_now`, release acks. The outboxes are for the
        caller."""
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
        """Add or replace a subscription. `text`: a valid Topic Filter without $share; `options`: the wire byte. True:
        it is new."""
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
        """Send retained messages to a session that subscribed, at the subscription's QoS, through its own queue
        [MQTT-3.3.1-6]."""
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
        """Forget the session: its subscriptions, what it waits for. Shares of a group that it had not acknowledged go
        to others."""
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

    def publish_message(self, Message m not None, Session origin=None):
        """Route a message of the broker itself (a will, $SYS). Returns the peers that were given it."""
        self.adoptable = None
        self.begin(&m.content, origin, m.publisher, NULL, 0, -1, 0)
        self.held = m
        self.publish(self.subscriptions.match(m.content.topic, m.content.topic_len))
        return self.mask

    def peer_answered(self, int peer):
        """A peer may serve by what it was told of our interest until now: SUBACKs wait for it."""
        self.live_for_interest |= <uint64_t>1 << peer


def expiry_offset(bytes properties not None):
    """Where the Message Expiry Interval's value stands in checked PUBLISH properties, or -1."""
    cdef Content c
    c.props = <const uint8_t*><const char*>properties
    c.props_len = <uint32_t>len(properties)
    return find_expiry(&c)


def order_of(tuple pair):
    """Sort key: the order in which copies were sent."""
    return pair[0]
