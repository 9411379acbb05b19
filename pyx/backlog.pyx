"""Sessions that are behind: offline, or without room in their window or outbox.

Such a session holds a cursor; the messages stand once in the log, under the indexes of the filters. When it has room it
is *ready*, and at the end of a tick it is served: first what was in flight when its last connection ended, then its own
queue (retained messages, shares of a group), then the log, until it has caught up.

The bounds of a backlog are kept here too: what is beyond them is dropped for that session alone, by moving its cursor
(drop_oldest) or by a hole (drop_newest); and what no session needs any more is forgotten.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XINCREF

from pyx cimport counters as count
from pyx.codec cimport put_ack
from pyx.connection cimport OPEN
from pyx.hashing cimport hash_bytes
from pyx.holding cimport HOLDING, NO_HOLD
from pyx.limits cimport DISCONNECT_WHEN_FULL, DROP_OLDEST, HOLD
from pyx.outbox cimport outbox_reserve, outbox_share
from pyx.packets cimport PUBREL
from pyx.records cimport lies_within, merge_batches
from pyx.routing cimport IDENTIFIER_BYTES_MAX, QUOTA_EXCEEDED, READ_BYTES_MAX, put_identifier
from pyx.session cimport (
    Inflight, Queued, RETAINED_COPY, SHARED_COPY, WAIT_PUBACK, WAIT_PUBCOMP, WAIT_PUBREC, has_slot,
)
from pyx.filters cimport Filter, Former, Membership, Subscriber, filter_text, options_at
from pyx.topics cimport topic_matches
from pyx.windows cimport OWN_RECORD
from pyx.work cimport COPY, INDEX, KIBI, Mark, OBJECT, SERVE, VISIT, callback_begins, callback_ends, work

cdef enum:
    HOLD_ROOM = 1000            # messages that may be under way when publishers are told to wait
    RELEASES_SLICE = 1000       # PUBRELs sent again at a time
    RESTORED_SWEPT = 100        # in one sweep: what is known of them must be read first
    SPANS_MAX = 4096            # parts of an index that sessions with full queues want; beyond, all behind them is held


cdef class Backlog(Holding):
    """Serves, bounds and forgets."""

    cdef int queue_for(self, Session s, Message m, uint8_t qos, bint retain, object identifiers,
                       uint8_t flags, uint32_t origin) except -1:
        # for this session alone; it is behind until it has been sent
        cdef uint64_t number = 0
        work(COPY)
        self.counters.at[count.MATCHED] += 1
        flags |= qos | (4 if retain else 0)
        if self.keeps and qos and s.durable:
            number = self.keep_queued(s, m, flags, origin, <PyObject*>identifiers if identifiers is not None else NULL)
        s.enqueue(m, <PyObject*>identifiers if identifiers is not None else NULL, flags, origin, number)
        if not s.behind:
            s.behind = True
            s.cursor = self.next_position - 1
            self.fell_behind(s)
        if s.connection is not None:
            self.set_ready(s)
        return 0

    def serve_ready(self):
        """Let the sessions that are behind and have room read on. After `commit`: what was logged in this tick can be
        read."""
        cdef uint32_t i, n
        cdef Session s
        cdef Mark mark
        callback_begins(&mark)
        # serve may not add to the list: it is walked once
        n = self.ready.count
        work(n * VISIT)
        for i in range(n):
            s = <Session>self.ready.items[i]
            s.ready = False
            try:
                self.serve(s)
                if s.hold:
                    self.check_hold(s)
            except Exception as error:
                self.fail_session(s, error)
            Py_DECREF(s)
        if self.ready.count > n:
            for i in range(n, self.ready.count):
                self.ready.items[i - n] = self.ready.items[i]
        self.ready.count -= n
        callback_ends(&mark, SERVE)

    cdef int serve(self, Session s) except -1:
        cdef Connection conn
        cdef Queued* q
        cdef Batch b
        cdef Message m
        cdef uint64_t position, number
        cdef uint8_t flags, qos
        cdef uint32_t origin, released = 0
        cdef bint overtaken
        cdef object identifiers
        while s.behind:
            conn = <Connection>s.connection
            if conn is None or conn.state != OPEN or conn.out.pending > self.limits.outbox_bytes_max:
                return 0
            if s.releases is not None or s.resend is not None:
                if not self.resend_next(s, conn, &released):
                    return 0
                continue
            if s.queue_count:
                q = &s.queue[s.queue_head]
                flags = q.flags
                qos = flags & 3
                if qos and not has_slot(s):
                    return 0
                m = <Message>q.message
                identifiers = <object>q.identifiers if q.identifiers != NULL else None
                origin = self.sharing = q.origin
                number = q.number
                s.dequeue()
                if s.queue_count == 0 and s.replays is not None:
                    self.drained.append(s)
                if s.watched:
                    overtaken = flags & RETAINED_COPY and s.overtaken(
                        hash_bytes(&self.subscriptions.key, m.content.topic, m.content.topic_len), m.content.number,
                        origin)
                    if s.watching == 0 and s.queue_count == 0:
                        s.watch_no_more()
                    if overtaken:
                        self.counters.at[count.DROPPED_OVERTAKEN] += 1
                        self.drops.add(s, count.DROPPED_OVERTAKEN, 1)
                        if number:
                            self.forget_queued(s, number)
                        continue
                self.send_copy(s, conn, m, qos, flags & 4 != 0, identifiers,
                               flags & SHARED_COPY | (OWN_RECORD if number else 0), number)
                continue
            if not has_slot(s):
                return 0
            b = <Batch>s.batch
            if b is None or s.batch_at >= b.count:
                b = self.read_log(s)
                if b is None:
                    self.caught_up(s)
                    return 0
                s.batch = b
                s.batch_at = 0
            work(VISIT)
            position = b.positions[s.batch_at]
            m = <Message>b.messages[s.batch_at]
            s.batch_at += 1
            s.cursor = position
            if s.holes is not None and lies_within(s.holes, position):
                continue
            self.deliver_logged(s, conn, m)
        return 0

    cdef Batch read_log(self, Session s):
        # the next messages of the session's backlog, or None: it has everything
        cdef uint32_t i
        cdef Membership* e
        cdef Batch b
        cdef list batches
        cdef uint64_t since
        if s.own_key is not None:
            work(INDEX)
            b = self.store.read((<LogKey>s.own_key).name, s.cursor, READ_BYTES_MAX)
            return b if b.count else None
        batches = []
        work(s.own.count * VISIT)
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL or e.filter.index == NULL:
                continue
            if e.formers != NULL:
                self.subscriptions.drop_formers(e, s.cursor)
            since = e.since
            if e.formers != NULL:
                since = e.formers.since
            elif (e.filter.plain.items[e.index].slot_options >> 24) & 3 == 0 and s.absences is None:
                continue
            (<LogKey>e.filter.index).rests = False
            work(INDEX)
            b = self.store.read((<LogKey>e.filter.index).name, max(s.cursor, since), READ_BYTES_MAX)
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
        s.holes = None
        s.absences = None
        if s.own_key is not None:
            (<LogKey>s.own_key).session = NULL
            self.store.forget((<LogKey>s.own_key).name)
            s.own_key = None
        return 0

    cdef int deliver_logged(self, Session s, Connection conn, Message m) except -1:
        # which of its subscriptions match it now: their options and identifiers count [subscription options are those
        # in force when the message is sent; but not where that would lose it]
        cdef Content* c = &m.content
        cdef uint8_t options = 0, qos
        cdef int ids_len = self.options_of(s, m, s.cursor, &options)
        if ids_len < 0:
            return 0
        qos = options & 3
        if qos > c.qos:
            qos = c.qos
        if qos == 0 and (s.absences is None or not lies_within(s.absences, s.cursor)):
            # found in the log by sessions that were online when it was published, too: they had it then
            return 0
        self.counters.at[count.MATCHED] += 1
        identifiers = PyBytes_FromStringAndSize(<const char*>self.ids, ids_len) if ids_len and conn.version == 5 \
            else None
        # what was published since the last SUBSCRIBE asked is as new as what comes at once
        if c.retain and s.watched and s.cursor > s.asked_behind:
            self.sent_live(s, c)
        return self.send_copy(s, conn, m, qos, c.retain and options & 8 != 0, identifiers, 0, s.cursor)

    cdef int sent_live(self, Session s, const Content* c) except -1:
        # a message to be retained, while retained ones are on their way: none that is older is sent after it
        if not s.sent_live(hash_bytes(&self.subscriptions.key, c.topic, c.topic_len), c.number):
            self.counters.at[count.RETAINED_UNWATCHED] += 1
        return 0

    cdef bytes identifiers_of(self, Session s, Message m):
        cdef uint8_t options = 0
        cdef int ids_len = self.options_of(s, m, 0, &options)
        return PyBytes_FromStringAndSize(<const char*>self.ids, ids_len) if ids_len > 0 else None

    cdef int options_of(self, Session s, Message m, uint64_t position, uint8_t* options) except -2:
        # the highest QoS and Retain As Published of its subscriptions that match now; their Subscription Identifiers
        # stand in self.ids: returns how many bytes, or -1: none matches
        cdef Content* c = &m.content
        cdef Membership* e
        cdef Subscriber* sub
        cdef uint32_t i
        cdef int ids_len = 0
        cdef int o
        cdef uint8_t* ids = self.ids_room(1)
        cdef bint found = False
        work(s.own.count * VISIT)
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL:
                continue
            if s.own.count > 1 and not topic_matches(<const uint8_t*>filter_text(e.filter), e.filter.length, c.topic,
                                                     c.topic_len):
                continue
            sub = &e.filter.plain.items[e.index]
            o = options_at(e, <uint8_t>(sub.slot_options >> 24), position)
            if o < 0 or o & 4 and m.publisher is not None and m.publisher == s.client_id:
                continue
            found = True
            if o & 3 > options[0] & 3:
                options[0] = <uint8_t>(options[0] & 8 | o & 3)
            options[0] |= <uint8_t>(o & 8)
            if sub.identifier:
                ids = self.ids_room(<uint32_t>ids_len // IDENTIFIER_BYTES_MAX + 2)
                ids_len += put_identifier(ids + ids_len, sub.identifier)
        return ids_len if found else -1

    cdef int send_copy(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, object identifiers,
                       uint8_t flags, uint64_t position) except -1:
        # a copy that waited leaves; the caller has seen room in the window. position: where a store that keeps has it
        cdef Inflight* slot
        cdef uint16_t packet_id = 0
        cdef PyObject* ids = <PyObject*>identifiers if identifiers is not None else NULL
        cdef uint32_t ids_len = <uint32_t>len(<bytes>identifiers) if identifiers is not None else 0
        if m.content.expires and self.wall_ms >= m.content.expires:
            self.counters.at[count.DROPPED_EXPIRED] += 1
            self.drops.add(s, count.DROPPED_EXPIRED, 1)
            self.tally(&m.content, 0, 1)
            if flags & OWN_RECORD:
                self.forget_queued(s, position)
            return 0
        if self.packet_total(&m.content, conn.version == 5, qos != 0, ids_len) > conn.packet_bytes_max:
            if flags & OWN_RECORD:
                self.forget_queued(s, position)
            self.tally(&m.content, 0, 1)
            return self.drop(conn, count.DROPPED_PACKET_TOO_LARGE)
        if qos:
            slot = s.open_slot()
            packet_id = slot.packet_id
            slot.state = WAIT_PUBACK if qos == 1 else WAIT_PUBREC
            slot.flags = qos | (4 if retain else 0) | flags
            slot.group = self.sharing
            slot.position = position
            if s.durable or flags & SHARED_COPY:
                slot.message = <PyObject*>m
                Py_INCREF(m)
                slot.identifiers = ids
                Py_XINCREF(ids)
            if self.keeps and s.durable:
                if qos == 2:
                    self.touch(s)
                    return self.depart(s, conn, slot)
                self.lag(s)
        else:
            conn.out.qos0 += 1
        self.send_held(s, conn, m, qos, retain, False, packet_id, ids)
        return 0

    cdef int tally(self, const Content* c, uint64_t sent, uint64_t dropped) except -1:
        # of a copy that waited: what goes or is dropped at once is counted with its publish
        if self.prefixes.levels:
            return self.prefixes.add(c, sent, dropped)
        return 0

    cdef int send_held(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, bint dup,
                       uint16_t packet_id, PyObject* ids) except -1:
        cdef Content* c = &m.content
        cdef const uint8_t* idp = NULL
        cdef uint32_t ids_len = 0
        cdef uint64_t hash_ = 0
        work(COPY + c.payload_len // 1024 * KIBI)
        if ids != NULL and conn.version == 5:
            idp = <const uint8_t*><const char*><bytes>ids
            ids_len = <uint32_t>len(<bytes>ids)
        self.put_publish(conn, c, 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0), packet_id, qos != 0, idp,
                         ids_len, &hash_)
        if c.payload_len >= self.limits.share_large_bytes:
            outbox_share(&conn.out, c.payload, c.payload_len, m)
        conn.messages_out += 1
        if not dup:
            self.tally(c, 1, 0)
        self.counters.at[count.PUBLISH_SENT] += 1
        self.counters.at[count.PUBLISH_BYTES_SENT] += c.payload_len
        self.set_dirty(conn)
        return 0

    cdef bint resend_next(self, Session s, Connection conn, uint32_t* released) except -1:
        # one of those; `released`: the PUBRELs of this slice. False: that is all for now
        if s.committing > self.durable_ticket:
            self.await_window(s)                # what it is sent again may not be on the disk yet
            return False
        if s.releases is not None:
            if released[0] == RELEASES_SLICE:
                self.set_ready(s)
                return False
            released[0] += 1
        elif s.inflight - s.released - <uint32_t>len(s.resend) >= s.inflight_max:
            return False
        self.send_again(s, conn, s.next_again())
        return True

    cdef int send_again(self, Session s, Connection conn, uint16_t packet_id) except -1:
        cdef Inflight* slot = s.slot(packet_id)
        cdef uint8_t* p
        cdef uint32_t ids_len = 0
        if slot == NULL:
            return 0
        if slot.state == WAIT_PUBCOMP:
            p = outbox_reserve(&conn.out, 4)
            put_ack(p, PUBREL, packet_id, 0, False)
            self.counters.at[count.ANSWERS_SENT] += 1
            self.set_dirty(conn)
            return 0
        if slot.message == NULL:
            self.finish_slot(s, slot)
            self.counters.at[count.DROPPED_SESSION_ENDED] += 1
            self.drops.add(s, count.DROPPED_SESSION_ENDED, 1)
            return 0
        if slot.identifiers != NULL:
            ids_len = <uint32_t>len(<bytes>slot.identifiers)
        if self.packet_total(
            &(<Message>slot.message).content, conn.version == 5, True, ids_len
        ) > conn.packet_bytes_max:
            self.finish_slot(s, slot)
            return self.drop(conn, count.DROPPED_PACKET_TOO_LARGE)
        self.counters.at[count.REDELIVERED] += 1
        self.send_held(s, conn, <Message>slot.message, slot.flags & 3, slot.flags & 4 != 0, True, packet_id,
                       slot.identifiers)
        return 0

    cdef int send_departing(self, Session s, Connection conn, Inflight* slot) except -1:
        cdef uint8_t* p
        if slot.state == WAIT_PUBCOMP:
            p = outbox_reserve(&conn.out, 5)
            if put_ack(p, PUBREL, slot.packet_id, 0, conn.version == 5) - p == 4:
                conn.out.tail -= 1
                conn.out.pending -= 1
            self.counters.at[count.ANSWERS_SENT] += 1
            return self.set_dirty(conn)
        return self.send_held(s, conn, <Message>slot.message, slot.flags & 3, slot.flags & 4 != 0, False,
                              slot.packet_id, slot.identifiers)

    def backlog(self, Session s not None):
        """(messages, bytes) in logs that the session has not read; its own queue not included. A message that several
        of its filters match counts for each."""
        cdef uint64_t gone, gone_bytes = 0
        if not s.behind:
            return 0, 0
        messages, size = self.backlog_after(s, s.cursor)
        gone = self.in_holes(s, &gone_bytes)
        return messages - gone, size - gone_bytes

    def sweep(self):
        """Bound the backlogs and forget what nobody needs any more: for every log index that is held, where a store
        keeps for those alone that have changed, and for a few of those that were there at the start."""
        cdef LogKey key
        cdef Session s
        cdef uint32_t restored = 0
        work(len(self.moved) * OBJECT)
        for s in self.moved:
            self.wake(s)
        self.moved.clear()
        work(len(self.keys) * OBJECT)
        for key in list(self.keys.values()):
            if key.rests and key.grown == 0:
                if not key.restored or restored == RESTORED_SWEPT:
                    continue
                restored += 1
            self.sweep_key(key)
        if self.keeps and not self.recorded and self.next_position == self.block.first:
            self.last_ticket = self.store.flush()       # what was trimmed, where this tick has nothing else
        for s in list(self.full_sessions):
            self.check_hold(s)

    cdef int sweep_grown(self, list keys) except -1:
        # the same for those of `keys` that have grown by a thirty-second of a session's limit since their last sweep
        cdef LogKey key
        cdef uint64_t many = self.limits.queue_messages_least // 32 + 1, much = self.limits.queue_bytes_least // 32 + 1
        cdef uint64_t wanted
        cdef set spans
        work(<uint64_t>len(keys) * OBJECT)
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
                spans = set()
                wanted = self.wanted(<Session>key.session, spans)
                self.drop_unwanted(key, (<Session>key.session).cursor, spans, wanted)
        return 0

    cdef uint64_t wanted(self, Session s, set spans) except? 0xFFFFFFFFFFFFFFFF:
        # The position behind which the session wants everything; what it wants before that goes into `spans`, as (from
        # behind, up to). What it drops at its limit (drop_newest) is not wanted: it would else be held until the
        # session has read the rest, however long it stays away
        cdef uint64_t at = s.cursor, a, z
        if not s.holes or len(spans) >= SPANS_MAX:
            return at
        work(<uint64_t>len(s.holes) * (2 * OBJECT))
        for a, z in s.holes:
            if a > at:
                spans.add((at, a))
            if z > at:
                at = z
        return at

    cdef int drop_unwanted(self, LogKey key, uint64_t lowest, set spans, uint64_t open_from) except -1:
        # everything behind `lowest` that lies in none of the spans and not behind open_from
        cdef uint64_t at = lowest, a, z
        work(<uint64_t>len(spans) * (8 * OBJECT))
        for a, z in sorted(spans):
            if a >= open_from:
                break
            if a > at:
                work(INDEX)
                self.store.drop(key.name, at, a)
            if z > at:
                at = z
        if at < open_from:
            self.store.drop(key.name, at, open_from)
        return 0

    cdef int sweep_key(self, LogKey key) except -1:
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>key.name, len(key.name))
        cdef uint64_t lowest, over, open_from, since
        cdef set spans = set()
        cdef uint32_t i
        cdef Session s
        cdef bint needed = False
        key.grown = 0
        key.grown_bytes = 0
        key.rests = self.keeps
        key.restored = False
        if f == NULL:
            self.keys.pop(key.name, None)
            self.store.forget(key.name)
            return 0
        lowest = open_from = self.block.first - 1
        work(2 * INDEX + f.plain.count * VISIT)
        over = self.store.position_of_last(key.name, self.limits.queue_messages_least, self.limits.queue_bytes_least)
        for i in range(f.plain.count):
            s = <Session>f.plain.items[i].session
            if self.keeps and s.durable:
                needed = True
                if s.inflight:
                    since = self.in_flight_since(s, spans)
                    lowest = min(lowest, since)
                    open_from = min(open_from, since)
            if not s.behind or s.own_key is not None:
                continue
            if s.wants_formers(&s.own.items[f.plain.items[i].slot_options & 0xFFFFFF], spans):
                needed = True
            if (f.plain.items[i].slot_options >> 24) & 3 == 0 and s.absences is None:
                continue
            if s.cursor < over or s.own.count > 1 and s.cursor < self.block.first - 1:
                self.bound(s)
            needed = True
            if s.cursor < lowest:
                lowest = s.cursor
            open_from = min(open_from, self.wanted(s, spans))
        if key.count:
            needed = True
        if needed:
            work(<uint64_t>len(spans) * OBJECT)
            for span in spans:                  # of messages in flight for long, which lie before all else
                lowest = min(lowest, <uint64_t>span[0])
            self.store.trim(key.name, lowest)
            self.drop_unwanted(key, lowest, spans, open_from)
        else:
            self.keys.pop(key.name, None)
            self.store.forget(key.name)
            f.index = NULL
            self.subscriptions.drop_if_unused(f)
        return 0

    cdef int bound(self, Session s) except -1:
        # the session's backlog over its bound: the cursor moves (drop_oldest), a hole is made (drop_newest), or its
        # publishers are made to wait (hold)
        cdef QueueRule rule = self.limits.rules[s.queue_rule]
        cdef uint64_t total, size, gone, gone_bytes = 0, dropped
        total, size = self.backlog_after(s, s.cursor)
        if total <= rule.messages_max and size <= rule.bytes_max:
            return 0
        if s.holes is not None and rule.full == DROP_OLDEST:
            # stretches of the log that never were for it, or that it lost under another rule
            total, size = self.unread_after(s, s.cursor)
            if total <= rule.messages_max and size <= rule.bytes_max:
                return 0
        if rule.full == HOLD:
            gone = self.in_holes(s, &gone_bytes)
            if total - gone <= rule.messages_max and size - gone_bytes <= rule.bytes_max:
                return 0
            if s.hold == NO_HOLD:
                self.begin_hold(s)
            if s.hold == HOLDING and s.connection is not None and (<Connection>s.connection).paused:
                self.give_up(s, total - gone, size - gone_bytes)
            if s.hold == HOLDING:
                # what is under way
                rule.messages_max = rule.messages_max * 2 + HOLD_ROOM
                rule.bytes_max *= 2
            else:
                rule.messages_max = max(rule.messages_max, <uint32_t>min(s.hold_messages, 0xFFFFFFFFull))
                rule.bytes_max = max(rule.bytes_max, s.hold_bytes)
            if total <= rule.messages_max and size <= rule.bytes_max:
                return 0
        if rule.full == DROP_OLDEST:
            dropped = self.move_cursor(s, &rule, total)
        else:
            dropped = self.make_hole(s, &rule, total, size)
        if dropped:
            if self.keeps and s.durable:
                self.lag(s)
            self.counters.at[count.MATCHED] += dropped
            self.counters.at[count.DROPPED_QUEUE_FULL] += dropped
            if s.connection is not None:
                self.note_drops(<Connection>s.connection, count.DROPPED_QUEUE_FULL, dropped)
                if rule.full == DISCONNECT_WHEN_FULL:
                    # not at once: this is said in the middle of a walk over subscribers
                    self.close(<Connection>s.connection, QUOTA_EXCEEDED, "queue full")
            else:
                self.drops.add(s, count.DROPPED_QUEUE_FULL, dropped)
            self.handler.queue_full(s, dropped)
        return 0

    cdef int check_hold(self, Session s) except -1:
        # has its queue shrunk by a quarter, or have its publishers waited for long enough
        cdef QueueRule* rule = &self.limits.rules[s.queue_rule]
        cdef uint64_t messages, size
        messages, size = self.backlog(s)
        if rule.full != HOLD or messages <= rule.messages_max - rule.messages_max // 4 \
                and size <= rule.bytes_max - rule.bytes_max // 4:
            return self.end_hold(s)
        if s.hold == HOLDING and self.now_ms - s.hold_since >= self.limits.hold_ms_max:
            return self.give_up(s, messages, size)
        return 0

    cdef int let_go(self, Session s) except -1:
        cdef uint64_t messages, size
        messages, size = self.backlog(s)
        return self.give_up(s, messages, size)

    cdef uint64_t move_cursor(self, Session s, const QueueRule* rule, uint64_t total) except? 0xFFFFFFFFFFFFFFFF:
        # behind what is too much; returns how many that are
        cdef uint64_t lo = s.cursor, hi = self.block.first - 1, mid, messages, size
        while lo < hi:
            mid = (lo + hi) // 2
            messages, size = self.unread_after(s, mid)
            if messages <= rule.messages_max and size <= rule.bytes_max:
                hi = mid
            else:
                lo = mid + 1
        s.cursor = lo
        s.batch = None
        s.batch_at = 0
        return total - <uint64_t>self.unread_after(s, lo)[0]

    cdef uint64_t make_hole(self, Session s, const QueueRule* rule, uint64_t total,
                            uint64_t total_bytes) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t lo, hi, mid, messages, size, gone, gone_bytes = 0, last = self.block.first - 1
        gone = self.in_holes(s, &gone_bytes)
        if total - gone <= rule.messages_max and total_bytes - gone_bytes <= rule.bytes_max:
            return 0
        # keep the first ones up to the limit: everything behind position lo is the hole
        lo = s.holes[len(s.holes) - 1][1] if s.holes else s.cursor
        hi = last
        while lo < hi:
            mid = (lo + hi + 1) // 2
            messages, size = self.backlog_after(s, mid)
            if total - gone - messages <= rule.messages_max \
                    and total_bytes - gone_bytes - size <= rule.bytes_max:
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
        cdef uint64_t messages = 0, size = 0
        cdef uint32_t i
        cdef Membership* e
        if s.own_key is not None:
            work(INDEX)
            return self.store.backlog((<LogKey>s.own_key).name, position)
        work(s.own.count * VISIT)
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL or e.filter.index == NULL:
                continue
            self.unread_of(s, e, position, &messages, &size)
        return messages, size

    cdef int unread_of(self, Session s, Membership* e, uint64_t position, uint64_t* messages,
                       uint64_t* size) except -1:
        # adds what one subscription has behind `position`
        cdef bytes name = (<LogKey>e.filter.index).name
        cdef const Former* former = e.formers
        while former != NULL:
            if former.up_to > position:
                work(2 * INDEX)
                x = self.store.backlog(name, max(position, former.since))
                y = self.store.backlog(name, former.up_to)
                messages[0] += <uint64_t>x[0] - <uint64_t>y[0]
                size[0] += <uint64_t>x[1] - <uint64_t>y[1]
            former = former.next
        if (e.filter.plain.items[e.index].slot_options >> 24) & 3 == 0 and s.absences is None:
            return 0
        work(INDEX)
        x = self.store.backlog(name, max(position, e.since))
        messages[0] += <uint64_t>x[0]
        size[0] += <uint64_t>x[1]
        return 0

    cdef tuple unread_after(self, Session s, uint64_t position):
        # the same without holes
        cdef uint64_t messages, size, a, z
        messages, size = self.backlog_after(s, position)
        for a, z in s.holes or ():
            if z > position:
                x = self.backlog_after(s, max(a, position))
                y = self.backlog_after(s, z)
                messages -= <uint64_t>x[0] - <uint64_t>y[0]
                size -= <uint64_t>x[1] - <uint64_t>y[1]
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
