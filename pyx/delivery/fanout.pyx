"""Fan-out of a match to its subscribers: one copy for each session, into its outbox and window, or into the log.

A Filter's subscribers are in one array, connected ones first. If several filters match, a session that subscribes to
more than one of them gets one copy with the highest granted QoS and all Subscription Identifiers (`Merged`).
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pyx.core cimport counters as count
from pyx.core.outbox cimport outbox_reserve, outbox_share
from pyx.core.work cimport COPY, KIBI, VISIT, work
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.connection cimport Connection
from pyx.delivery.journal cimport Journal
from pyx.delivery.publish_in_hand cimport Merged, PublishInHand
from pyx.delivery.router_state cimport RouterState, put_identifier
from pyx.delivery.session cimport Inflight, SHARED_COPY, Session, WAIT_PUBACK, WAIT_PUBREC, has_slot, is_stored
from pyx.delivery.unread cimport Unread
from pyx.delivery.windows cimport OWN_RECORD, Windows
from pyx.matching.subscriptions cimport Filter, Group, Matches, Subscriber, SubscriberList
from pyx.protocol.frames cimport Frame, frame_make
from pyx.protocol.message cimport Content, content_bytes
from pyx.protocol.wire cimport put_u16


cdef uint32_t plain_offline(const Filter* f) noexcept nogil:
    # offline sessions that subscribe to the filter itself with QoS > 0, without members of its groups
    cdef uint32_t n = f.offline_durable
    cdef const Group* g = f.groups
    while g != NULL:
        n -= g.offline_durable
        g = g.next
    return n


@cython.final
cdef class FanOut:
    """The delivery of the publish in hand to the subscribers of this worker."""

    def __cinit__(self, RouterState state not None, PublishInHand in_hand not None, Journal journal not None,
                  Windows windows not None, Bounding bounding not None, Backlog backlog not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.in_hand = in_hand
        self.journal = journal
        self.windows = windows
        self.bounding = bounding
        self.backlog = backlog

    cdef int fan_out(self, Filter* f) except -1:
        cdef const Content* c = self.in_hand.content
        cdef SubscriberList* l = &f.plain
        cdef Subscriber* sub
        cdef Session s
        cdef uint32_t i, n = l.online
        cdef uint8_t options, qos, first
        cdef uint8_t[8] ids
        cdef int logged
        cdef bint want = False
        work(n * VISIT)
        for i in range(n):
            sub = &l.items[i]
            options = <uint8_t>(sub.slot_options >> 24)
            s = <Session>sub.session
            if options & 4 and s is self.in_hand.origin:
                continue
            qos = options & 3
            if qos > c.qos:
                qos = c.qos
            first = 0x30 | qos << 1 | (c.retain if options & 8 else 0)
            logged = self.deliver(s, qos, first, ids, put_identifier(ids, sub.identifier) if sub.identifier else 0, 0)
            if logged != 1:
                want = True
                if logged == 0 and s.unread is not None:
                    self.note_unread(s, f)
        if l.count > n:
            if self.offline(f, l.count - n):
                want = True
        if want:
            self.journal.log(f)
        return 0

    cdef int fan_out_merged(self, Matches* m) except -1:
        # several filters: a session that subscribes to more than one of them gets one copy
        cdef const Content* c = self.in_hand.content
        cdef SubscriberList* l
        cdef Subscriber* sub
        cdef Merged* e
        cdef Session s
        cdef uint32_t i, k, n = 0, ids_len
        cdef uint8_t options, qos
        cdef uint8_t* ids = self.in_hand.ids_room(m.count)
        cdef uint64_t want = 0
        cdef int logged
        self.in_hand.stamp += 1
        self.in_hand.identifiers_count = 0
        for i in range(m.count):
            l = &m.filters[i].plain
            work(VISIT + l.online * (2 * VISIT))
            for k in range(l.online):
                sub = &l.items[k]
                options = <uint8_t>(sub.slot_options >> 24)
                s = <Session>sub.session
                if options & 4 and s is self.in_hand.origin:
                    continue
                if s.stamp != self.in_hand.stamp:
                    if n == self.in_hand.merged_cap:
                        self.in_hand.grow_merged()
                    s.stamp = self.in_hand.stamp
                    s.merged = n
                    e = &self.in_hand.merged[n]
                    n += 1
                    e.session = <PyObject*>s
                    e.identifier = sub.identifier
                    e.more = -1
                    e.options = options & 0x0B
                    e.filters = 0
                    e.first = i
                else:
                    e = &self.in_hand.merged[s.merged]
                    if options & 3 > e.options & 3:
                        e.options = (e.options & 8) | (options & 3)
                    e.options |= options & 8
                    if sub.identifier:
                        if e.identifier == 0:
                            e.identifier = sub.identifier
                        else:
                            e.more = self.in_hand.chain_identifier(sub.identifier, e.more)
                if options & 3:
                    if e.filters == 0:
                        e.first = i
                    e.filters |= <uint64_t>1 << (i if i < 63 else 63)
            if l.count > l.online:
                if self.offline(m.filters[i], l.count - l.online):
                    want |= <uint64_t>1 << (i if i < 63 else 63)
        for k in range(n):
            e = &self.in_hand.merged[k]
            s = <Session>e.session
            ids_len = self.in_hand.put_identifiers(e, ids) if e.identifier else 0
            qos = e.options & 3
            if qos > c.qos:
                qos = c.qos
            logged = self.deliver(s, qos, 0x30 | qos << 1 | (c.retain if e.options & 8 else 0), ids, ids_len, 0)
            if logged != 1:
                want |= e.filters
                if logged == 0 and s.unread is not None:
                    want |= <uint64_t>1 << (e.first if e.first < 63 else 63)
                    self.note_unread(s, m.filters[e.first])
        return self.log_wanted(m, want) if want else 0

    cdef int log_wanted(self, const Matches* m, uint64_t want) except -1:
        # log it under match i for each bit i (63: this match and all later ones)
        cdef uint32_t i
        work(m.count * VISIT)
        for i in range(m.count):
            if want >> (i if i < 63 else 63) & 1:
                self.journal.log(m.filters[i])
        return 0

    cdef int note_unread(self, Session s, Filter* f) except -1:
        # note that its unread messages include the publish in hand, in this filter's index
        cdef Unread unread = s.unread
        unread.add(self.in_hand.here, content_bytes(self.in_hand.content), self.journal.key_of(f))
        if not s.crowded and (unread.grown > self.limits.queue_messages_least // 32
                              or unread.grown_bytes > self.limits.queue_bytes_least // 32):
            self.bounding.crowd(s)
        return 0

    cdef bint offline(self, Filter* f, uint32_t sessions) noexcept:
        # this number of offline sessions subscribes to the filter; True: one of them must find the message in the log
        cdef uint32_t wanted
        if self.limits.queue_qos0:
            return True
        wanted = plain_offline(f) if self.in_hand.content.qos else 0
        self.counters.at[count.MATCHED] += sessions - wanted
        self.counters.at[count.DROPPED_OFFLINE_QOS0] += sessions - wanted
        return wanted != 0

    cdef int deliver(self, Session s, uint8_t qos, uint8_t first, const uint8_t* ids, uint32_t ids_len,
                     uint8_t flags) except -1:
        # one copy for one session; 1: sent or dropped, 0: the session is behind and the message must be logged, 2:
        # sent, and it must be logged because the store is on disk
        cdef const Content* c = self.in_hand.content
        cdef Connection conn = <Connection>s.connection
        cdef Frame* f
        cdef Inflight* slot = NULL
        cdef uint8_t* p
        cdef uint32_t v5, kept_len
        cdef uint16_t packet_id = 0
        cdef int logged = 1
        if qos:
            if s.behind:
                return 0
            if conn is None or not has_slot(s) or conn.out.pending > self.limits.outbox_bytes_max:
                return self.fall_behind(s)
            if s.seen is not None and not flags & SHARED_COPY and s.seen.is_again(self.in_hand.mark()):
                return 1
            self.counters.at[count.MATCHED] += 1
        else:
            if conn is None and self.limits.queue_qos0:
                return 0
            self.counters.at[count.MATCHED] += 1
            if conn is None:
                return self.drop_offline(s)
            if conn.out.pending > self.limits.outbox_bytes_max:
                return self.state.drop(conn, count.DROPPED_OUTBOX_FULL)
        work(COPY + (c.payload_len + c.topic_len) // 1024 * KIBI)
        v5 = 1 if conn.version == 5 else 0
        kept_len, ids_len = ids_len, ids_len if v5 else 0   # it may be resent to a client that uses MQTT 5 by then
        f = &self.in_hand.frames[v5 | (2 if qos else 0)]
        if not f.ready:
            frame_make(f, c, v5, qos != 0, c.payload_len < self.limits.share_large_bytes, self.state.wall_ms)
        if f.total > conn.packet_bytes_max or \
                ids_len and self.state.packet_total(c, True, qos != 0, ids_len) > conn.packet_bytes_max:
            return self.state.drop(conn, count.DROPPED_PACKET_TOO_LARGE)
        if c.retain and s.watched is not None:
            self.backlog.sent_live(s, c, s.watched.asked, qos == 0)
        if qos:
            slot = s.open_slot()
            packet_id = slot.packet_id
            slot.state = WAIT_PUBACK if qos == 1 else WAIT_PUBREC
            slot.flags = qos | (4 if first & 1 else 0) | flags
            if is_stored(s) or flags & SHARED_COPY:
                self.fill(s, slot, ids, kept_len)
                if self.state.keeps and is_stored(s):
                    logged = self.place(s, conn, slot)
                    if qos == 2:
                        return logged
        else:
            conn.out.qos0 += 1
        if ids_len == 0 and conn.topic_alias_out_max == 0:
            p = outbox_reserve(&conn.out, f.length)
            memcpy(p, f.data, f.length)
            p[0] = first
            if qos:
                put_u16(p + f.id_at, packet_id)
        else:
            self.in_hand.put_publish(conn, c, first, packet_id, qos != 0, ids, ids_len, &self.in_hand.alias_hash)
        if c.payload_len >= self.limits.share_large_bytes:
            self.in_hand.hold()
            outbox_share(&conn.out, self.in_hand.held.content.payload, c.payload_len, self.in_hand.held)
        conn.messages_out += 1
        self.counters.at[count.PUBLISH_SENT] += 1
        self.counters.at[count.PUBLISH_BYTES_SENT] += c.payload_len
        if not conn.dirty:
            self.state.set_dirty(conn)
        return logged

    cdef int fall_behind(self, Session s) except -1:
        s.behind = True
        s.cursor = self.in_hand.here - 1
        self.state.fell_behind(s)
        return 0

    cdef int drop_offline(self, Session s) except -1:
        self.counters.at[count.DROPPED_OFFLINE_QOS0] += 1
        self.state.drops.add(s, count.DROPPED_OFFLINE_QOS0, 1)
        return 1

    cdef int place(self, Session s, Connection conn, Inflight* slot) except -1:
        # set the place of the message in the store; returns the result of `deliver`
        if slot.flags & 3 == 2:
            self.windows.mark_dirty(s)
            self.windows.defer(s, conn, slot)          # sent only once its window is stored
        elif not s.window_lazy:
            self.windows.mark_lazy(s)
        if slot.flags & SHARED_COPY:
            slot.position = self.windows.keep_queued(s, self.in_hand.held, slot.flags, slot.group, slot.identifiers)
            slot.flags |= OWN_RECORD
            return 1
        slot.position = self.in_hand.here
        return 2

    cdef int fill(self, Session s, Inflight* slot, const uint8_t* ids, uint32_t ids_len) except -1:
        # keep the message: it may have to be resent, or handed on
        cdef bytes identifiers = PyBytes_FromStringAndSize(<const char*>ids, ids_len) if ids_len else None
        s.keep_in(slot, self.in_hand.hold(), <PyObject*>identifiers if ids_len else NULL)
        slot.group = self.in_hand.sharing
        return 0
