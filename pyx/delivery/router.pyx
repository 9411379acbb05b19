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
from libc.stdint cimport uint32_t

from pyx.core cimport counters as count
from pyx.core.outbox cimport outbox_reserve
from pyx.core.work cimport (
    ACKS, COMMIT, DEFERRED, DRAINED, FORWARD, LAZY, LOGGED, Mark, OBJECT, PIECE, PYTHON, TICK, VISIT,
    callback_begins, callback_ends, work,
)
from pyx.delivery.connection cimport OPEN
from pyx.delivery.ending cimport Remains
from pyx.delivery.routing cimport ABSENCES_MAX, NUMBER_WORKER_BITS, ROUND, SHARE, SLICE, find_expiry, put_identifier
from pyx.delivery.session cimport (
    Inflight, RETAINED_COPY, SHARED_COPY, WAIT_PUBACK, WAIT_PUBCOMP, WAIT_PUBREC, is_stored, out_changes,
)
from pyx.delivery.sharing cimport HASH_CLIENT, HASH_TOPIC, LEAST_INFLIGHT, ROUND_ROBIN, STICKY, WAITS
from pyx.delivery.windows cimport OWN_RECORD
from pyx.matching.subscriptions cimport Filter, Group, Subscriber
from pyx.protocol.codec cimport put_ack
from pyx.protocol.message cimport Content, Message, content_bytes
from pyx.protocol.packets cimport PUBREL
from pyx.protocol.reasons cimport REASON_PROTOCOL_ERROR, protocol_error
from pyx.storage.records cimport Block, ENTRY_RETAINED_ONLY, LogKey


# what a handler answers when it is asked for the strategy of a share group (`Router.strategy_of`)
STRATEGIES = {
    "round_robin": ROUND_ROBIN,
    "least_inflight": LEAST_INFLIGHT,
    "hash_topic": HASH_TOPIC,
    "hash_client": HASH_CLIENT,
    "sticky": STICKY,
}
WAITS_FLAG = WAITS
cdef bytes NOTHING = b"\0nothing"              # a key that is never there


@cython.final
cdef class Router(Ending):
    """Routes publishes of one worker. `worker` and `workers`: which of how many; `limits`, `counters`, `timers`: shared
    with the rest of the worker; `store` and `handler` are set before the first connection."""

    cdef int publish(self, Matches* m) except -1:
        cdef const Content* c = self.content
        cdef uint64_t sent, dropped
        cdef int taken
        if self.prefixes.levels == 0:
            return self.route(m)
        sent, dropped = self.counters.at[count.PUBLISH_SENT], self.all_dropped()
        taken = self.route(m)
        self.prefixes.add(c, self.counters.at[count.PUBLISH_SENT] - sent, self.all_dropped() - dropped)
        return taken

    cdef int route(self, Matches* m) except -1:
        cdef const Content* c = self.content
        cdef uint32_t i
        cdef uint64_t siblings = self.unsure_peers if c.qos else 0
        cdef bint groups = False
        cdef uint32_t local = <uint32_t>self.count_effort(m)
        cdef Group* g
        cdef int owner
        work(m.count * VISIT)
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
                    self.entry(owner, ENTRY_RETAINED_ONLY, NULL)
                    self.mask |= <uint64_t>1 << owner
        if groups:
            for i in range(m.count):
                g = m.filters[i].groups
                while g != NULL:
                    work(2 * VISIT)
                    self.spent += SHARE
                    local += g.members.count != 0
                    self.share(g, &siblings)
                    g = g.next
        if siblings:
            self.forward(siblings)
        if self.archiver is not None:
            self.archive(m, local, self.store_full >> self.worker & 1)
        self.held = None
        if not (local or siblings or groups):       # a Filter may be there for its log alone
            self.counters.at[count.PUBLISH_UNMATCHED] += 1
            return 0
        return 1

    cdef int forward(self, uint64_t siblings) except -1:
        cdef int p = 0
        while siblings:
            if siblings & 1:
                self.entry(p, 0, NULL)
                if self.content.qos or self.content.retain:
                    self.mask |= <uint64_t>1 << p
            siblings >>= 1
            p += 1
        return 0

    def commit(self, bint at_once=False):
        """Give what the tick has logged and recorded to the store. What was answered in this tick waits for its ticket.
        What was archived goes with it; by itself, if nobody waits for it, every archive_gather_ms (or `at_once`)."""
        cdef dict changes
        cdef uint64_t ticket
        cdef bint synced, waited
        cdef Mark mark
        self.append_block()
        while self.laid is not None:
            self.append_block()
        callback_begins(&mark)
        waited = self.recorded or self.archive_awaited
        if self.archive_due and \
                (waited or at_once or self.now_ms - self.archived_ms >= self.limits.archive_gather_ms):
            self.store.append_archived()
            self.archive_due = self.archive_awaited = False
            self.archived_ms = self.now_ms
            self.recorded = True
        if not self.recorded:
            callback_ends(&mark, COMMIT)
            return
        if self.retained_changes:
            changes = self.retained_changes
            work(len(changes) * (2 * PYTHON))
            self.retained_changes = {}
            self.handler.retained_changed(changes)
        if self.held_peers:
            self.hand_off()
        if self.dirty_windows.count:
            self.store_windows()
        self.recorded = False
        synced = self.synced or waited and self.durabilities is None
        self.synced = False
        ticket = self.store.flush(synced)
        if ticket == self.last_ticket:
            # there was nothing to write, but somebody may wait for it
            self.store.delete(NOTHING)
            ticket = self.store.flush(synced)
        self.last_ticket = ticket
        callback_ends(&mark, COMMIT)

    def moment(self, uint64_t sessions):
        """What the store keeps of the counters with each commit (leveldb_store.format.persisted_counters)."""
        return self.counters.kept(self.clock.ms, self.next_position - 1, self.clock.last, sessions)

    cdef int hand_off(self) except -1:
        cdef uint64_t peers = self.held_peers
        self.held_peers = 0
        self.handler.hold(peers)
        return 0

    cdef int append_block(self) except -1:
        # what was logged can be read from now on; of very many indexes with the last piece
        cdef list keys
        cdef Mark mark
        cdef bint meanwhile = self.laid is not None
        if meanwhile:
            self.lay()
            if self.laid is not None:
                return 0
        self.takes_none = False
        if self.next_position == self.block.first:
            return 0
        if len(self.block.keys) > self.laid_at_once:
            self.block.seal()
            self.laid = self.block
            self.block = Block(self.next_position)
            self.takes_none = meanwhile     # else it might have no end
            return self.lay()
        callback_begins(&mark)
        keys = self.block.keys
        self.store.append(self.block)
        self.block = Block(self.next_position)
        self.recorded = self.keeps
        self.sweep_grown(keys)
        callback_ends(&mark, LOGGED)
        return 0

    @property
    def is_laying(self):
        """A block of very many indexes is being appended: nothing can be given to the disk."""
        return self.laid is not None

    cdef int lay(self) except -1:
        # a piece
        cdef list keys
        cdef Mark mark
        callback_begins(&mark)
        self.store.append(self.laid, self.laid_at_once)
        self.recorded = self.keeps
        self.unfinished = True
        if self.laid.left == 0:
            keys = self.laid.keys
            self.laid = None
            self.sweep_grown(keys)
        callback_ends(&mark, LOGGED)
        return 0

    def finish_tick(self):
        """Let sessions that are behind read on, commit, hand what peers get to `forward_now`, release acks. The
        outboxes are for the caller."""
        cdef Mark mark, part
        callback_begins(&mark)
        self.clock.hear()
        if self.divided:
            callback_begins(&part)
            self.divided = self.handler.work_on()
            callback_ends(&part, PIECE)
        if self.deferred_count or self.awaiting.count:
            callback_begins(&part)
            self.send_deferred()
            callback_ends(&part, DEFERRED)
        if self.next_position != self.block.first or self.laid is not None:
            self.append_block()
        if self.laid is None:
            self.finish_log()
        self.tick += 1
        if self.laid is None:
            self.round_until = self.effort() + ROUND
        else:
            self.round_until = 0 if self.takes_none else self.effort() + SLICE
        if self.acks_due and self.waiting.count:
            callback_begins(&part)
            self.release_acks()
            callback_ends(&part, ACKS)
            if self.laid is None:
                if self.ready.count:
                    self.serve_ready()
                if self.dirty_peers:
                    self.forward_all()      # questions for retained messages, which follow their SUBACK
        if self.drained:
            callback_begins(&part)
            self.tell_drained()
            callback_ends(&part, DRAINED)
        if self.recorded and self.laid is None:
            self.commit()                   # what was decided since
        self.clock.tell()
        callback_ends(&mark, TICK)

    cdef int finish_log(self) except -1:
        # all of the log can be read
        cdef Mark part
        if self.unfinished:
            self.go_on()
        if self.ready.count:
            self.serve_ready()
        if self.lazy_windows.count and self.now_ms >= self.lazy_due:
            callback_begins(&part)
            self.store_lazy_windows()
            callback_ends(&part, LAZY)
        if self.recorded or self.archive_due:
            self.commit()
        self.clock.tell()
        if self.dirty_peers or self.interest_due:
            self.forward_all()
        return 0

    cdef int forward_all(self) except -1:
        cdef Mark mark
        callback_begins(&mark)
        self.forward_now()
        callback_ends(&mark, FORWARD)
        return 0

    cdef int tell_drained(self) except -1:
        cdef list sessions = self.drained
        self.drained = []
        work(<uint64_t>len(sessions) * PYTHON)
        self.handler.drained(sessions)
        return 0

    cdef int puback(self, Session s, uint16_t packet_id, uint8_t reason) except -1:
        cdef Inflight* slot = s.slot(packet_id)
        if slot == NULL:
            return 0
        if slot.state != WAIT_PUBACK:
            return self.misfit(s, slot, "PUBACK for a message of QoS 2")
        if self.keeps:
            self.finish_slot(s, slot)
        else:
            s.release(slot)
        self.counters.at[count.DELIVERED_QOS1 if reason < 0x80 else count.DROPPED_REFUSED] += 1
        if reason >= 0x80:
            self.drops.add(s, count.DROPPED_REFUSED, 1)
        if s.behind:
            self.set_ready(s)
        return 1

    cdef int pubrec(self, Session s, Connection conn, uint16_t packet_id, uint8_t reason) except -1:
        cdef Inflight* slot = s.slot(packet_id)
        cdef uint8_t* p
        if slot != NULL and slot.state == WAIT_PUBREC:
            if reason >= 0x80:
                self.finish_slot(s, slot)
                self.counters.at[count.DROPPED_REFUSED] += 1
                self.drops.add(s, count.DROPPED_REFUSED, 1)
                if s.behind:
                    self.set_ready(s)
                return 0
            if self.keeps and is_stored(s):
                if slot.flags & OWN_RECORD:
                    self.forget_queued(s, slot.position)
                self.mark_dirty(s)
            slot.state = WAIT_PUBCOMP
            slot.group = 0
            slot.order = s.order            # PUBRELs are sent again in the order of the PUBRECs
            s.order += 1
            out_changes(s, slot.packet_id)
            if s.behind and s.inflight_room <= 0:
                self.set_ready(s)
            s.let_go(slot)                  # its bytes make room, though its place stays taken
            reason = 0
        elif slot != NULL and slot.state == WAIT_PUBCOMP:
            reason = 0
        elif slot != NULL:
            return self.misfit(s, slot, "PUBREC for a message of QoS 1")
        elif reason >= 0x80:
            return 0
        else:
            reason = 0x92
            conn.strays += 1
        if self.keeps and slot != NULL and s.committing > self.durable_ticket:
            return self.defer(s, conn, slot)
        self.counters.at[count.ANSWERS_SENT] += 1
        p = outbox_reserve(&conn.out, 5)
        if put_ack(p, PUBREL, packet_id, reason, conn.version == 5) - p == 4:
            conn.out.tail -= 1
            conn.out.pending -= 1
        self.set_dirty(conn)
        return 0

    cdef int pubcomp(self, Session s, Connection conn, uint16_t packet_id) except -1:
        cdef Inflight* slot = s.slot(packet_id)
        if slot == NULL or slot.state != WAIT_PUBCOMP:
            if conn.strays:
                conn.strays -= 1            # an identifier may have been given to a message meanwhile
            elif slot != NULL:
                return self.misfit(s, slot, "PUBCOMP without PUBREL")
            return 0
        if self.keeps:
            self.finish_slot(s, slot)
        else:
            s.release(slot)
        self.counters.at[count.DELIVERED_QOS2] += 1
        if s.behind:
            self.set_ready(s)
        return 1

    cdef int misfit(self, Session s, Inflight* slot, str what) except -1:
        # An ack of another kind than what was sent asks for. One for a message that this connection was not sent again
        # yet speaks of a former one, whose window a crash may have lost: it is as good as one that names nothing
        cdef list unsent = <list>(s.releases if slot.state == WAIT_PUBCOMP else s.resend)
        if self.limits.lenient or unsent is not None and slot.order >= unsent[len(unsent) - 1][0]:
            return 0
        return protocol_error(REASON_PROTOCOL_ERROR, what)

    def subscribe(self, Session s not None, bytes text not None, int options, uint32_t identifier=0, bytes group=None):
        """Add or replace a subscription. `text`: a valid Topic Filter without $share; `options`: the wire byte. True:
        it is new."""
        cdef Filter* f = self.subscriptions.hold(<const uint8_t*><const char*>text, len(text))
        cdef Group* g = NULL
        cdef int new, held = -1
        cdef uint8_t was
        cdef bint wanted = False            # at QoS > 0 before
        if group is not None:
            g = self.subscriptions.hold_group(f, <const uint8_t*><const char*>group, len(group))
        else:
            held = self.subscriptions.membership(f, NULL, <void*>s, &s.own)
            if held >= 0:
                was = <uint8_t>(f.plain.items[s.own.items[held].index].slot_options >> 24)
                wanted = was & 3 != 0
                if wanted != (options & 3 != 0) or options & 4 and not was & 4:
                    s.keep_former(self.subscriptions, &s.own.items[held], was, self.next_position - 1)
        new = self.subscriptions.add(f, g, <void*>s, &s.own, <uint8_t>options, identifier, s.connection is not None)
        if self.keeps and is_stored(s) and not self.restoring:
            self.mark_dirty(s)                   # up to here it has been sent everything, whatever else the log holds
        if group is None and (new or not wanted and s.absences is None):
            # what is in the log already was not for it, or was sent at QoS 0
            s.own.items[held if held >= 0 else <int>s.own.count - 1].since = self.next_position - 1
        if new:
            if g != NULL:
                self.joined(g, s)
            elif self.interest is not None and f.plain.count == 1:
                self.tell_interest(f, text, None, s.durable)
        self.count_filters()
        return bool(new)

    def since(self, Session s not None, bytes text not None):
        """(the log position behind which its subscription to this Topic Filter counts: what lies before was published
        earlier, or not wanted; the stretches before that which it is to get all the same, as `Session.formers`)."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef int held = self.subscriptions.membership(f, NULL, <void*>s, &s.own) if f != NULL else -1
        if held < 0:
            return 0, []
        return s.own.items[held].since, s.formers(&self.subscriptions.formers, &s.own.items[held])

    def terms(self, Session s not None, bytes text not None):
        """(options, Subscription Identifier) of its subscription to this Topic Filter, or None."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef int held = self.subscriptions.membership(f, NULL, <void*>s, &s.own) if f != NULL else -1
        cdef Subscriber* sub = &f.plain.items[s.own.items[held].index] if held >= 0 else NULL
        return (sub.slot_options >> 24, sub.identifier) if sub != NULL else None

    def has(self, Session s not None, bytes text not None, bytes group=None):
        """Whether it has a subscription to this Topic Filter, or a share of it in this group."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef Group* g = self.group_of(f, group) if group is not None else NULL
        if f == NULL or group is not None and g == NULL:
            return False
        return self.subscriptions.membership(f, g, <void*>s, &s.own) >= 0

    def restore_subscription(self, Session s not None, bytes text not None, int options, uint32_t identifier,
                             bytes group, uint64_t since, formers=()):
        """A subscription that an earlier worker has stored, of a session without a connection."""
        self.restoring = True
        try:
            self.subscribe(s, text, options, identifier, group)
        finally:
            self.restoring = False
        if group is not None:
            return
        # nothing begins behind what comes next, though a disk may have lost the blocks before it
        s.own.items[s.own.count - 1].since = min(since, self.next_position - 1)
        for was, begin, end in formers:
            if begin < self.next_position - 1:
                self.subscriptions.add_former(
                    &s.own.items[s.own.count - 1], was, begin, min(<uint64_t>end, self.next_position - 1))

    def restore_retained(self, Message m not None):
        """A retained message that an earlier worker has stored."""
        if self.retained.set(m.topic, m.content.number, m):
            self.retained_bytes += content_bytes(&m.content)
        self.clock.behind(m.content.number >> NUMBER_WORKER_BITS)
        self.counters.at[count.RETAINED_MESSAGES] = self.retained.count
        self.counters.at[count.RETAINED_BYTES] = self.retained_bytes

    cdef int drop_unsubscribed(self, Session s) except -1:
        # count what has not been sent of the only subscription of a session, before that ends. (With others, what is
        # not sent for this one may still be for them; what is for none was never counted as matched)
        cdef uint64_t size = 0, messages
        if s.behind and s.own.count == 1:
            messages = <uint64_t>self.backlog_after(s, s.cursor)[0] - self.in_holes(s, &size)
            self.counters.at[count.MATCHED] += messages
            self.counters.at[count.DROPPED_UNSUBSCRIBED] += messages
            self.drops.add(s, count.DROPPED_UNSUBSCRIBED, messages)
        return 0

    def unsubscribe(self, Session s not None, bytes text not None, bytes group=None, Remains remains=None):
        """Remove a subscription; False: there was none. What waits for this member of a group goes to another one (what
        of that takes long is left in `remains`, for `clear`); what is in flight is completed."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef Group* g = NULL
        cdef uint32_t number = 0
        cdef list shares
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
        if group is None:
            self.drop_unsubscribed(s)
        if f.index != NULL:
            (<LogKey>f.index).rests = False
            if group is None and s.unread is not None and s.unread.lists(<LogKey>f.index):
                self.seek(s)                # what it would have found here may stand in others of its indexes as well
        if self.keeps and is_stored(s):
            self.mark_dirty(s)
            if group is None and s.inflight:
                self.keep_unsubscribed(s)
        if g != NULL:
            self.strike(g, s)
            number = g.number
        self.subscriptions.remove(&s.own, <uint32_t>i)
        if self.interest is not None:
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            if group is not None or f == NULL or f.plain.count == 0:
                self.tell_interest(f, text, group, False)
        s.batch = None                  # read again without it
        s.batch_at = 0
        if number:
            shares = [(number, *share) for share in s.take_queued(number, SHARED_COPY)]
            if remains is None:
                self.hand_on_shares(s, shares, count.DROPPED_UNSUBSCRIBED)
            elif shares:
                remains.session = s
                remains.counter = count.DROPPED_UNSUBSCRIBED
                remains.shares.extend(shares)
                self.shares_left += len(shares)
            if s.behind and s.connection is not None:
                self.set_ready(s)
        self.count_filters()
        return True

    def queue_retained(self, Session s not None, list messages not None, bytes text not None, uint32_t asked):
        """Send retained messages to a session that subscribed, at the subscription's QoS, through its own queue
        [MQTT-3.3.1-6]. `asked` is what `Session.ask` gave to that SUBSCRIBE."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef int i
        cdef Subscriber* sub
        cdef Message m
        cdef uint8_t options, qos
        cdef uint8_t[8] ids
        cdef object identifiers = None
        if f == NULL:
            return
        i = self.subscriptions.membership(f, NULL, <void*>s, &s.own)
        if i < 0:
            return
        sub = &f.plain.items[s.own.items[i].index]
        options = <uint8_t>(sub.slot_options >> 24)
        if sub.identifier:
            identifiers = PyBytes_FromStringAndSize(<const char*>ids, put_identifier(ids, sub.identifier))
        if messages:
            s.watched = True
        work(<uint64_t>len(messages) * OBJECT)
        for m in messages:
            if options & 4 and m.publisher is not None and m.publisher == s.client_id:
                continue                    # [MQTT-3.8.3-3]
            qos = min(options & 3, m.content.qos)
            self.queue_for(s, m, qos, True, identifiers, RETAINED_COPY, asked)

    def expire_retained(self, Message m not None):
        """Forget a retained message whose Message Expiry Interval has passed; one that took its place stays."""
        if self.retained.remove(m.topic, m):
            self.retained_bytes -= content_bytes(&m.content)
            if self.keeps:
                self.note_retained(m.topic, None)
            self.counters.at[count.RETAINED_MESSAGES] = self.retained.count
            self.counters.at[count.RETAINED_BYTES] = self.retained_bytes

    def attach(self, Session s not None, Connection conn not None):
        """The session has this connection from now on; what is in flight is sent again [MQTT-4.4.0-1]."""
        conn.session = conn.had = s
        conn.state = OPEN
        s.connection = conn
        s.version = conn.version
        self.subscriptions.set_online(&s.own, s.unread is None, True)
        self.tell_online(s)
        if s.put_up_again():
            if not s.behind:
                s.behind = True
                s.cursor = self.next_position - 1
                self.fell_behind(s)
        if s.absences is not None:
            s.absences[len(s.absences) - 1] = (s.absences[len(s.absences) - 1][0], self.next_position - 1)
        if s.behind:
            self.set_ready(s)

    def detach(self, Session s not None, Remains remains=None):
        """The session has no connection any more. One that is not durable ends: `remains` as in `end_session`."""
        s.connection = None
        s.releases = s.resend = None
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
            self.subscriptions.set_offline(&s.own, s.unread is None)
            self.tell_online(s)
            if self.keeps:
                self.mark_dirty(s)
        else:
            self.end_session(s, remains)

    def publish_message(self, Message m not None, Session origin=None):
        """Route a message of the broker itself (a will). Returns the peers that were given it."""
        self.adoptable = None
        self.begin(&m.content, origin, m.publisher, NULL, 0, -1, 0)
        self.held = m
        self.publish(self.subscriptions.match(m.content.topic, m.content.topic_len))
        return self.mask

    def publish_here(self, Message m not None):
        """Deliver a message of the broker itself, which every worker publishes ($SYS), to the sessions of this one. It
        is neither retained nor forwarded. Of a share group the first worker with a member delivers."""
        cdef Matches* found = self.subscriptions.match(m.content.topic, m.content.topic_len)
        cdef Group* g
        cdef uint32_t i
        self.adoptable = None
        self.begin(&m.content, None, None, NULL, 0, -1, 0)
        self.held = m
        if found.count == 1:
            self.fan_out(found.filters[0])
        elif found.count:
            self.fan_out_merged(found)
        for i in range(found.count):
            g = found.filters[i].groups
            while g != NULL:
                if g.members.count and not g.siblings & (<uint64_t>1 << self.worker) - 1:
                    self.share_here(g)
                g = g.next
        self.held = None

    def peer_answered(self, int peer):
        """A peer may serve by what it was told of our interest until now: SUBACKs wait for it."""
        self.live_for_interest |= <uint64_t>1 << peer


def expiry_offset(bytes properties not None):
    """Where the Message Expiry Interval's value stands in checked PUBLISH properties, or -1."""
    cdef Content c
    c.props = <const uint8_t*><const char*>properties
    c.props_len = <uint32_t>len(properties)
    return find_expiry(&c)
