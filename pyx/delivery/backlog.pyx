"""Sessions that are behind: offline, or without room in their window or outbox.

Such a session holds a cursor; each message is in the log once, under the indexes of the filters. A session with room is
*ready*, and at the end of a tick it is served: first the messages in flight when its last connection ended, then its
own queue (retained messages, shares of a group), then the log, until it has caught up. A retained message follows what
the log had for the session when it was queued, which is older: else the client would be left with an old value.

A session reads the indexes of its filters merged; with more than MERGED_MAX filters it reads by its directory
(`pyx.delivery.unread`). Ready sessions are served in slices, as all of this may take long.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject, Py_DECREF
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core cimport counters as count
from pyx.core.hashing cimport hash_bytes
from pyx.core.outbox cimport outbox_reserve, outbox_share
from pyx.core.work cimport COPY, INDEX, KIBI, Mark, PLACE, RECORD, SERVE, VISIT, callback_begins, callback_ends, work
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.connection cimport Connection, OPEN
from pyx.delivery.journal cimport Journal
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport (
    IDENTIFIER_BYTES_MAX, MERGED_MAX, READ_BYTES_MAX, RouterState, SLICE, put_identifier,
)
from pyx.delivery.seen_messages cimport mark_of
from pyx.delivery.session cimport (
    Inflight, Queued, RETAINED_COPY, SHARED_COPY, Session, WAIT_PUBACK, WAIT_PUBCOMP, WAIT_PUBREC, has_slot, is_stored,
)
from pyx.delivery.unread cimport Unread
from pyx.delivery.windows cimport OWN_RECORD, Sender, Windows
from pyx.matching.filters cimport Matches, Membership, Subscriber, filter_text, options_at
from pyx.matching.memberships cimport drop_formers
from pyx.protocol.encoders cimport put_ack
from pyx.protocol.message cimport Content, Message
from pyx.protocol.packets cimport PUBREL
from pyx.protocol.topics cimport topic_matches
from pyx.storage.records cimport Batch, LogKey, lies_within, merge_batches


cdef enum:
    LOOKS = 64                  # reads from the store for one batch of a session with many filters
    RELEASES_SLICE = 1000       # PUBRELs resent at a time


@cython.final
cdef class Backlog(Sender):
    """The delivery of waiting messages to sessions that are behind."""

    def __cinit__(self, RouterState state not None, PublishInHand in_hand not None, Journal journal not None,
                  Windows windows not None, BackPressure back_pressure not None, Bounding bounding not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.subscriptions = state.subscriptions
        self.in_hand = in_hand
        self.journal = journal
        self.windows = windows
        self.back_pressure = back_pressure
        self.bounding = bounding

    cdef int queue_for(self, Session s, Message m, uint8_t qos, bint retain, object identifiers,
                       uint8_t flags, uint32_t origin) except -1:
        # queue a message for this session alone; it is behind until the message has been sent
        cdef uint64_t number = 0
        work(COPY)
        self.counters.at[count.MATCHED] += 1
        flags |= qos | (4 if retain else 0)
        if self.state.keeps and qos and is_stored(s):
            number = self.windows.keep_queued(
                s, m, flags, origin, <PyObject*>identifiers if identifiers is not None else NULL)
        s.enqueue(m, <PyObject*>identifiers if identifiers is not None else NULL, flags, origin, number,
                  self.state.next_position - 1 if flags & RETAINED_COPY else 0)
        if not s.behind:
            s.behind = True
            s.cursor = self.state.next_position - 1
            self.state.fell_behind(s)
        if s.connection is not None:
            self.state.set_ready(s)
        return 0

    def serve_ready(self):
        """Let the sessions that are behind and have room read on. Call it when the block of this tick has been
        appended: its messages can be read then."""
        cdef uint32_t i, n
        cdef Session s
        cdef Mark mark
        callback_begins(&mark)
        # sessions added meanwhile, and those that do not fit into this slice, are served in the next one
        n = self.state.ready.count
        self.back_pressure.left = SLICE
        i = 0
        while i < n and self.back_pressure.left > 0:
            s = <Session>self.state.ready.items[i]
            i += 1
            work(VISIT)
            self.back_pressure.left -= VISIT
            s.ready = False
            try:
                self.serve(s)
                if s.hold_state:
                    self.bounding.check_hold(s)
            except Exception as error:
                self.state.fail_session(s, error)
            Py_DECREF(s)
        work((self.state.ready.count - i) * PLACE)
        for n in range(i, self.state.ready.count):
            self.state.ready.items[n - i] = self.state.ready.items[n]
        self.state.ready.count -= i
        callback_ends(&mark, SERVE)

    cdef int serve(self, Session s) except -1:
        cdef Connection conn
        cdef Batch b
        cdef Message m
        cdef uint64_t position
        cdef uint32_t released = 0
        while s.behind:
            if self.back_pressure.left <= 0:
                return self.state.set_ready(s)
            self.back_pressure.left -= COPY + RECORD
            conn = <Connection>s.connection
            if conn is None or conn.state != OPEN or conn.out.pending > self.limits.outbox_bytes_max:
                return 0
            if s.releases is not None or s.resend is not None:
                if not self.resend_next(s, conn, &released):
                    return 0
                continue
            if s.queue_count and s.queue[s.queue_head].behind <= s.cursor:
                if not self.serve_queued(s, conn):
                    return 0
                continue
            if not has_slot(s):
                return 0
            b = <Batch>s.batch
            if b is None or s.batch_at >= b.count:
                if s.search is not None:
                    return 0
                if s.own.count > MERGED_MAX and s.unread is None:
                    return self.bounding.seek(s)
                b = self.read_log(s)
                if b is None:
                    if s.queue_count:
                        s.cursor = s.queue[s.queue_head].behind
                        continue
                    return self.caught_up(s)
                s.batch = b
                s.batch_at = 0
            work(VISIT)
            position = b.positions[s.batch_at]
            m = <Message>b.messages[s.batch_at]
            if s.queue_count and self.is_before_the_log(&s.queue[s.queue_head], position, m):
                s.queue[s.queue_head].behind = s.cursor
                continue
            s.batch_at += 1
            s.cursor = position
            if s.holes is not None and lies_within(s.holes, position):
                continue
            self.deliver_logged(s, conn, m)
        return 0

    cdef bint is_before_the_log(self, const Queued* q, uint64_t position, Message m) noexcept:
        # where is a queued message sent, if this is the next one of the log? A restored one does not know its place in
        # the log: then the number of its record tells what is newer
        return position > q.behind or q.number and m.content.number > q.number

    cdef bint serve_queued(self, Session s, Connection conn) except -1:
        # send the next message of its own queue; False: there is no room for it
        cdef Queued* q = &s.queue[s.queue_head]
        cdef Message m
        cdef uint8_t flags, qos
        cdef uint32_t origin
        cdef uint64_t number, topic = 0
        cdef object identifiers
        flags = q.flags
        qos = flags & 3
        if qos and not has_slot(s):
            return 0                            # no room
        m = <Message>q.message
        identifiers = <object>q.identifiers if q.identifiers != NULL else None
        origin = self.in_hand.sharing = q.origin
        number = q.number
        s.dequeue()
        if s.queue_count == 0 and s.replays is not None:
            self.state.drained.append(s)
        if s.watched is not None and flags & RETAINED_COPY:
            topic = self.topic_key(&m.content)
            if s.watched.is_overtaken(topic, m.content.number, origin):
                self.drop_overtaken(s)
                if number:
                    self.windows.forget_queued(s, number)
                s.end_watching()
                return 1
            if s.watched.deferred:              # it passes those that wait for a record, perhaps of its topic
                self.note_sent(s, topic, m.content.number, 0, qos == 0)
        self.send_copy(s, conn, m, qos, flags & 4 != 0, identifiers,
                       flags & (SHARED_COPY | RETAINED_COPY) | (OWN_RECORD if number else 0), number)
        s.end_watching()
        return 1

    cdef uint64_t topic_key(self, const Content* c) noexcept:
        return hash_bytes(&self.subscriptions.key, c.topic, c.topic_len)

    cdef int drop_overtaken(self, Session s) except -1:
        self.counters.at[count.DROPPED_OVERTAKEN] += 1
        return self.state.drops.add(s, count.DROPPED_OVERTAKEN, 1)

    cdef Batch read_log(self, Session s):
        # the next messages of the session's backlog, or None: it has caught up
        cdef uint32_t i
        cdef Membership* e
        cdef Batch b
        cdef list batches
        cdef uint64_t since
        if s.unread is not None:
            return self.read_unread(s)
        batches = []
        work(s.own.count * VISIT)
        self.back_pressure.left -= s.own.count * INDEX
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL or e.filter.index == NULL:
                continue
            if e.former and not self.keeps_formers:
                drop_formers(&self.subscriptions.formers, e, s.cursor)
            since = e.since
            if e.former:
                since = self.subscriptions.formers.items[e.former].since
            elif (e.filter.plain.items[e.index].slot_options >> 24) & 3 == 0 and s.absences is None:
                continue
            (<LogKey>e.filter.index).rests = False
            work(INDEX)
            b = self.journal.store.read((<LogKey>e.filter.index).name, max(s.cursor, since), READ_BYTES_MAX)
            if b.count:
                batches.append(b)
        return merge_batches(batches) if batches else None

    cdef Batch read_unread(self, Session s):
        cdef Unread unread = s.unread
        cdef Batch b
        cdef uint64_t reached = s.cursor
        while True:
            unread.trim(s.cursor)
            if unread.head == unread.tail:
                return None
            self.back_pressure.left -= LOOKS * INDEX
            b = unread.read(self.journal.store, LOOKS, READ_BYTES_MAX, &reached)
            if b.count:
                return b
            # the messages found there before are no longer there
            s.cursor = max(reached, unread.items[unread.head].position)

    cdef int caught_up(self, Session s) except -1:
        cdef Connection conn = <Connection>s.connection
        if conn.dropping:
            self.state.set_dirty(conn)
        s.behind = False
        s.batch = None
        s.batch_at = 0
        s.holes = None
        s.absences = None
        s.unread = None
        return 0

    cdef int deliver_logged(self, Session s, Connection conn, Message m) except -1:
        # by the options and identifiers of its subscriptions that match now [subscription options are those in force
        # when the message is sent; unless that would lose it]
        cdef Content* c = &m.content
        cdef uint8_t options = 0, qos
        cdef int ids_len = self.options_of(s, m, s.cursor, &options)
        if ids_len < 0 or s.seen is not None and s.seen.is_again(mark_of(c)):
            return 0
        qos = options & 3
        if qos > c.qos:
            qos = c.qos
        if qos == 0 and (s.absences is None or not lies_within(s.absences, s.cursor)):
            # sessions that were online at its publication find it in the log too, but were sent it then
            return 0
        self.counters.at[count.MATCHED] += 1
        identifiers = PyBytes_FromStringAndSize(<const char*>self.in_hand.ids, ids_len) if ids_len else None
        # messages published after a SUBSCRIBE that asked are as new as live ones
        if c.retain and s.watched is not None:
            self.sent_live(s, c, s.watched.asked_before(s.cursor), qos == 0)
        return self.send_copy(s, conn, m, qos, c.retain and options & 8 != 0, identifiers, 0, s.cursor)

    cdef int sent_live(self, Session s, const Content* c, uint32_t asked, bint is_qos0) except -1:
        # a message with RETAIN is sent while retained ones are on their way: no older one of its topic may follow it,
        # nor itself as the answer to a SUBSCRIBE with this number or a lower one
        return self.note_sent(s, self.topic_key(c), c.number, asked, is_qos0)

    cdef int note_sent(self, Session s, uint64_t topic, uint64_t number, uint32_t asked, bint is_qos0) except -1:
        if not s.watched.sent(topic, number, asked, is_qos0):
            self.counters.at[count.RETAINED_UNWATCHED] += 1
        return 0

    cdef bytes identifiers_of(self, Session s, Message m):
        cdef uint8_t options = 0
        cdef int ids_len = self.options_of(s, m, 0, &options)
        return PyBytes_FromStringAndSize(<const char*>self.in_hand.ids, ids_len) if ids_len > 0 else None

    cdef int options_of(self, Session s, Message m, uint64_t position, uint8_t* options) except -2:
        # the highest QoS and Retain As Published of its subscriptions that match now; puts their Subscription
        # Identifiers into self.in_hand.ids and returns their length in bytes, or -1: none matches
        cdef Content* c = &m.content
        cdef Membership* e
        cdef Matches* matches
        cdef uint32_t i
        cdef int ids_len = 0, held
        cdef bint found = False
        if s.own.count > MERGED_MAX:
            matches = self.subscriptions.match(c.topic, c.topic_len)
            for i in range(matches.count):
                work(VISIT)
                held = self.subscriptions.membership(matches.filters[i], NULL, <void*>s, &s.own)
                if held >= 0:
                    found |= self.option_of(s, m, &s.own.items[held], position, options, &ids_len)
            self.back_pressure.left -= matches.count * VISIT
            return ids_len if found else -1
        work(s.own.count * VISIT)
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL:
                continue
            if s.own.count == 1 or topic_matches(<const uint8_t*>filter_text(e.filter), e.filter.length, c.topic,
                                                 c.topic_len):
                found |= self.option_of(s, m, e, position, options, &ids_len)
        return ids_len if found else -1

    cdef bint option_of(self, Session s, Message m, Membership* e, uint64_t position, uint8_t* options,
                        int* ids_len) except -1:
        # the same for one matching subscription; False: it does not want that message
        cdef Subscriber* sub = &e.filter.plain.items[e.index]
        cdef int o = options_at(&self.subscriptions.formers, e, <uint8_t>(sub.slot_options >> 24), position)
        cdef uint8_t* ids
        if o < 0 or o & 4 and m.publisher is not None and m.publisher == s.client_id:
            return False
        if o & 3 > options[0] & 3:
            options[0] = <uint8_t>(options[0] & 8 | o & 3)
        options[0] |= <uint8_t>(o & 8)
        if sub.identifier:
            ids = self.in_hand.ids_room(<uint32_t>ids_len[0] // IDENTIFIER_BYTES_MAX + 2)
            ids_len[0] += put_identifier(ids + ids_len[0], sub.identifier)
        return True

    cdef int send_copy(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, object identifiers,
                       uint8_t flags, uint64_t position) except -1:
        # send a copy that waited; the caller has checked for room in the window. position: of the message in the store
        cdef Inflight* slot
        cdef uint16_t packet_id = 0
        cdef PyObject* ids = <PyObject*>identifiers if identifiers is not None else NULL
        cdef uint32_t ids_len = <uint32_t>len(<bytes>identifiers) if identifiers is not None else 0
        if m.content.expires and self.state.wall_ms >= m.content.expires:
            self.counters.at[count.DROPPED_EXPIRED] += 1
            self.state.drops.add(s, count.DROPPED_EXPIRED, 1)
            self.tally(&m.content, 0, 1)
            if flags & OWN_RECORD:
                self.windows.forget_queued(s, position)
            return 0
        if self.state.packet_total(&m.content, conn.version == 5, qos != 0, ids_len) > conn.packet_bytes_max:
            if flags & OWN_RECORD:
                self.windows.forget_queued(s, position)
            self.tally(&m.content, 0, 1)
            return self.state.drop(conn, count.DROPPED_PACKET_TOO_LARGE)
        if qos:
            slot = s.open_slot()
            packet_id = slot.packet_id
            slot.state = WAIT_PUBACK if qos == 1 else WAIT_PUBREC
            slot.flags = qos | (4 if retain else 0) | flags
            slot.group = self.in_hand.sharing
            slot.position = position
            if is_stored(s) or flags & SHARED_COPY:
                s.keep_in(slot, m, ids)
            if self.state.keeps and is_stored(s):
                if qos == 2:
                    self.windows.mark_dirty(s)
                    if flags & RETAINED_COPY and s.watched is not None:
                        s.watched.deferred = slot.order + 1
                    return self.windows.defer(s, conn, slot)
                self.windows.mark_lazy(s)
        else:
            conn.out.qos0 += 1
        self.send_held(s, conn, m, qos, retain, False, packet_id, ids)
        return 0

    cdef int tally(self, const Content* c, uint64_t sent, uint64_t dropped) except -1:
        # count a copy that waited: copies sent or dropped at once are counted with their publish
        if self.state.prefixes.levels:
            return self.state.prefixes.add(c, sent, dropped)
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
        self.in_hand.put_publish(conn, c, 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0), packet_id,
                                 qos != 0, idp, ids_len, &hash_)
        if c.payload_len >= self.limits.share_large_bytes:
            outbox_share(&conn.out, c.payload, c.payload_len, m)
        conn.messages_out += 1
        if not dup:
            self.tally(c, 1, 0)
        self.counters.at[count.PUBLISH_SENT] += 1
        self.counters.at[count.PUBLISH_BYTES_SENT] += c.payload_len
        self.state.set_dirty(conn)
        return 0

    cdef bint resend_next(self, Session s, Connection conn, uint32_t* released) except -1:
        # resend one packet in flight; `released`: PUBRELs of this slice so far. False: no more for now
        if s.committing > self.journal.durable_ticket:
            self.windows.await_window(s)                # the window to resend may not be on the disk yet
            return False
        if s.releases is not None:
            if released[0] == RELEASES_SLICE:
                self.state.set_ready(s)
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
            self.state.set_dirty(conn)
            return 0
        if slot.message == NULL:
            self.windows.finish_slot(s, slot)
            self.counters.at[count.DROPPED_SESSION_ENDED] += 1
            self.state.drops.add(s, count.DROPPED_SESSION_ENDED, 1)
            return 0
        if slot.identifiers != NULL:
            ids_len = <uint32_t>len(<bytes>slot.identifiers)
        if self.state.packet_total(
            &(<Message>slot.message).content, conn.version == 5, True, ids_len
        ) > conn.packet_bytes_max:
            self.windows.finish_slot(s, slot)
            return self.state.drop(conn, count.DROPPED_PACKET_TOO_LARGE)
        self.counters.at[count.REDELIVERED] += 1
        self.send_held(s, conn, <Message>slot.message, slot.flags & 3, slot.flags & 4 != 0, True, packet_id,
                       slot.identifiers)
        return 0

    cdef int send_one_deferred(self, Session s, Connection conn, Inflight* slot) except -1:
        cdef uint8_t* p
        if slot.state == WAIT_PUBCOMP:
            p = outbox_reserve(&conn.out, 5)
            if put_ack(p, PUBREL, slot.packet_id, 0, conn.version == 5) - p == 4:
                conn.out.tail -= 1
                conn.out.pending -= 1
            self.counters.at[count.ANSWERS_SENT] += 1
            return self.state.set_dirty(conn)
        if slot.flags & RETAINED_COPY and s.watched is not None and self.is_overtaken_in(s, slot):
            return 0
        return self.send_held(s, conn, <Message>slot.message, slot.flags & 3, slot.flags & 4 != 0, False,
                              slot.packet_id, slot.identifiers)

    cdef int drop_deferred(self, Session s) except -1:
        cdef uint32_t i
        cdef Inflight* slot
        if s.watched.deferred == 0:
            return 0
        s.watched.deferred = 0
        work(s.window_cap * PLACE)
        for i in range(s.window_cap):
            slot = &s.window[i]
            if slot.state == WAIT_PUBREC and slot.flags & RETAINED_COPY:
                self.is_overtaken_in(s, slot)
        return 0

    cdef bint is_overtaken_in(self, Session s, Inflight* slot) except -1:
        # has a newer message of its topic been sent live while this retained one waited for its record? It is dropped
        cdef Content* c = &(<Message>slot.message).content
        cdef bint overtaken = s.watched.is_overtaken(self.topic_key(c), c.number, slot.group)
        slot.flags &= ~RETAINED_COPY
        if s.watched.deferred == slot.order + 1:
            s.watched.deferred = 0
            s.end_watching()
        if overtaken:
            self.windows.finish_slot(s, slot)
            self.drop_overtaken(s)
            if s.behind:
                self.state.set_ready(s)
        return overtaken
