"""The router of one worker.

A publish comes from a connection, a peer, a will or the broker. Matching yields Filters; each of their subscribers is a
session. A session that is in sync and has room gets the message at once: its bytes go into the connection's outbox and,
at QoS 1 and 2, it takes a slot of the window. A session without room, or offline, is *behind*: the message is written
once into the log of this tick, under the index of the filter, and the session reads it from there when it has room,
until it has caught up. So a message is held once however many sessions are behind, and a session in sync costs no log.

Siblings are subscribers too: a Filter knows which of them want it, and each gets the entry once, in the batch of this
tick. Messages from a sibling are never forwarded to another one. Rails, each of which stands for another host, are
likewise; and a message that comes over a rail goes to siblings, and to no other host.

The publisher's ack waits for everything it promises: the commit of the log, if the message was logged, and the
cumulative link ack of every sibling that was sent it. Acks of one connection leave in the order of the packets they
answer.

Copies are counted where they are created, here: matched = delivered + expired + dropped + waiting. A copy that waits in
a log is counted as matched when it leaves the log.
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core cimport counters as count
from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.core.outbox cimport outbox_reserve
from pyx.core.timers cimport TimerWheel
from pyx.core.work cimport (
    ACKS, COMMIT, DEFERRED, DRAINED, FORWARD, LAZY, LOGGED, Mark, PIECE, PYTHON, STORED, TICK, VISIT, callback_begins,
    callback_ends, work,
)
from pyx.delivery.answering cimport Answering
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.connection cimport Connection
from pyx.delivery.ending cimport Ending
from pyx.delivery.enrolling cimport (
    EVEN, Enrolling, HASH_CLIENT, HASH_TOPIC, LEAST_INFLIGHT, ROUND_ROBIN, SPREAD, STICKY, WAITS,
)
from pyx.delivery.fanout cimport FanOut
from pyx.delivery.handing_on cimport HandingOn
from pyx.delivery.journal cimport Journal
from pyx.delivery.late_answers cimport LateAnswers
from pyx.delivery.peers cimport Peers
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.moving cimport Moving
from pyx.delivery.restoring cimport Restoring
from pyx.delivery.retaining cimport Retaining
from pyx.delivery.router_state cimport ROUND, RouterState, SHARE, SLICE, find_expiry
from pyx.delivery.session cimport Inflight, Session, WAIT_PUBACK, WAIT_PUBCOMP, WAIT_PUBREC, is_stored, out_changes
from pyx.delivery.sharing cimport Sharing
from pyx.delivery.siblings cimport Siblings
from pyx.delivery.subscribing cimport Subscribing
from pyx.delivery.sweeping cimport Sweeping
from pyx.delivery.windows cimport OWN_RECORD, Windows
from pyx.matching.subscriptions cimport Group, Matches, Subscriptions
from pyx.protocol.encoders cimport put_ack
from pyx.protocol.message cimport Content, Message
from pyx.protocol.packets cimport PUBREL
from pyx.protocol.reasons cimport REASON_PROTOCOL_ERROR, protocol_error
from pyx.storage.entries cimport ENTRY_RETAINED_ONLY
from pyx.storage.records cimport Block


# the handler's answers about the strategy of a share group (`Enrolling.strategy_of`)
STRATEGIES = {
    "round_robin": ROUND_ROBIN,
    "least_inflight": LEAST_INFLIGHT,
    "hash_topic": HASH_TOPIC,
    "hash_client": HASH_CLIENT,
    "sticky": STICKY,
}
WAITS_FLAG, EVEN_FLAG, SPREAD_FLAG = WAITS, EVEN, SPREAD
cdef bytes NOTHING = b"\0nothing"              # a key that never exists


@cython.final
cdef class Router:
    """The router of one worker. `worker` and `workers`: its number, and how many there are; `limits`, `counters`,
    `timers`: shared with the rest of the worker; `store` and `handler` are set before the first connection."""

    def __cinit__(self, int worker, int workers, Subscriptions subscriptions not None, Limits limits not None,
                  Row counters not None, TimerWheel timers not None, retained=None):
        self.state = RouterState(worker, workers, subscriptions, limits, counters, timers)
        self.counters = counters
        self.limits = limits
        self.subscriptions = subscriptions
        self.in_hand = PublishInHand(self.state)
        self.journal = Journal(self.state, self.in_hand)
        self.peers = Peers(self.state, self.in_hand, self.journal)
        self.answering = Answering(self.state, self.in_hand, self.journal, self.peers)
        self.windows = Windows(self.state, self.journal)
        self.restoring = Restoring(self.state, self.journal, self.windows)
        self.late_answers = LateAnswers(self.state, self.journal, self.peers, self.answering, self.windows)
        self.back_pressure = BackPressure(self.state, self.journal)
        self.bounding = Bounding(self.state, self.journal, self.windows, self.back_pressure)
        self.sweeping = Sweeping(self.state, self.journal, self.windows, self.back_pressure, self.bounding)
        self.backlog = Backlog(self.state, self.in_hand, self.journal, self.windows, self.back_pressure, self.bounding)
        self.moving = Moving(self.state, self.backlog, self.windows)
        self.retaining = Retaining(self.state, self.in_hand, self.journal, self.back_pressure, self.backlog)
        self.fanout = FanOut(self.state, self.in_hand, self.journal, self.windows, self.bounding, self.backlog)
        self.enrolling = Enrolling(self.state, self.peers, self.back_pressure, self.bounding)
        self.sharing = Sharing(self.state, self.in_hand, self.peers, self.enrolling, self.backlog, self.fanout)
        self.handing_on = HandingOn(self.state, self.in_hand, self.answering, self.enrolling, self.sharing)
        self.siblings = Siblings(
            self.state, self.in_hand, self.peers, self.backlog, self.retaining, self.fanout, self.sharing)
        self.ending = Ending(
            self.state, self.peers, self.windows, self.back_pressure, self.bounding, self.enrolling, self.handing_on)
        self.subscribing = Subscribing(
            self.state, self.peers, self.windows, self.bounding, self.enrolling, self.ending)
        self.windows.sender = self.backlog
        self.back_pressure.bounds = self.bounding
        self.bounding.teller = self.enrolling
        self.retaining.retained = retained

    def abandon(self):
        """Release the connections and sessions in C lists, and their acks: the garbage collector cannot see into
        these. For a worker that is discarded while its process lives (the simulation, tests)."""
        self.state.abandon()
        self.answering.abandon()
        self.windows.abandon()
        self.back_pressure.abandon()
        self.bounding.abandon()

    cdef int publish(self, Matches* m) except -1:
        cdef const Content* c = self.in_hand.content
        cdef uint64_t sent, dropped
        cdef int taken
        if self.state.prefixes.levels == 0:
            return self.route(m)
        sent, dropped = self.counters.at[count.PUBLISH_SENT], self.state.all_dropped()
        taken = self.route(m)
        self.state.prefixes.add(
            c, self.counters.at[count.PUBLISH_SENT] - sent, self.state.all_dropped() - dropped)
        return taken

    cdef int route(self, Matches* m) except -1:
        cdef const Content* c = self.in_hand.content
        cdef uint32_t i
        cdef uint64_t siblings = self.peers.unsure_peers & (self.peers.hosts | ~self.peers.rails) if c.qos else 0
        cdef bint groups = False
        cdef uint32_t local = <uint32_t>self.state.count_effort(m)
        cdef Group* g
        cdef int owner
        work(m.count * VISIT)
        for i in range(m.count):
            siblings |= m.filters[i].siblings
            if m.filters[i].groups != NULL:
                groups = True
        if m.count == 1:
            self.fanout.fan_out(m.filters[0])
        elif m.count:
            self.fanout.fan_out_merged(m)
        if c.retain:
            owner = self.retaining.keep()
            if owner >= 0:
                if siblings >> owner & 1 == 0:
                    self.peers.entry(owner, ENTRY_RETAINED_ONLY, NULL)
                    self.in_hand.mask |= <uint64_t>1 << owner
            if self.peers.hosts & ~siblings:            # every host keeps the retained messages of all
                self.forward(self.peers.hosts & ~siblings, ENTRY_RETAINED_ONLY)
        if groups:
            for i in range(m.count):
                g = m.filters[i].groups
                while g != NULL:
                    work(2 * VISIT)
                    self.state.spent += SHARE
                    local += g.members.count != 0
                    self.sharing.share(g, &siblings)
                    g = g.next
        if siblings:
            self.forward(siblings, 0)
        if self.journal.archiver is not None:
            self.journal.archive(m, local, self.back_pressure.store_full >> self.state.worker & 1)
        self.in_hand.held = None
        if not (local or siblings or groups):       # a Filter may exist for its log alone
            self.counters.at[count.PUBLISH_UNMATCHED] += 1
            return 0
        return 1

    cdef int forward(self, uint64_t peers, uint8_t flags) except -1:
        cdef int p = 0
        while peers:
            if peers & 1:
                self.peers.entry(p, flags, NULL)
                if self.in_hand.content.qos or self.in_hand.content.retain:
                    self.in_hand.mask |= <uint64_t>1 << p
            peers >>= 1
            p += 1
        return 0

    def commit(self, bint at_once=False):
        """Commit the tick's log block and records to the store. Answers of this tick wait for its ticket. Archived
        messages go with them; alone, if no answer waits for them, every archive_gather_ms (or `at_once`)."""
        cdef dict changes
        cdef uint64_t ticket
        cdef bint synced, waited
        cdef Mark mark
        self.append_block()
        while self.journal.appending is not None:
            self.append_block()
        callback_begins(&mark)
        waited = self.journal.recorded or self.journal.archive_awaited
        if self.journal.archive_due and \
                (waited or at_once or
                 self.state.now_ms - self.journal.archived_ms >= self.limits.archive_gather_ms):
            self.journal.store.append_archived()
            self.journal.archive_due = self.journal.archive_awaited = False
            self.journal.archived_ms = self.state.now_ms
            self.journal.recorded = True
        if not self.journal.recorded:
            callback_ends(&mark, COMMIT)
            return
        if self.journal.retained_changes:
            changes = self.journal.retained_changes
            work(len(changes) * (2 * PYTHON))
            self.journal.retained_changes = {}
            self.state.handler.retained_changed(changes)
        if self.peers.held_peers:
            self.hand_off()
        if self.windows.dirty_windows.count:
            self.windows.store_windows()
        self.journal.recorded = False
        synced = self.journal.synced or waited and self.journal.durabilities is None
        self.journal.synced = False
        ticket = self.journal.store.flush(synced)
        if ticket == self.journal.last_ticket:
            # there was nothing to write, but an answer may wait for a ticket
            self.journal.store.delete(NOTHING)
            ticket = self.journal.store.flush(synced)
        self.journal.last_ticket = ticket
        if self.limits.store_unwritten_bytes_max and \
                self.journal.store.unwritten_bytes >= self.limits.store_unwritten_bytes_max and \
                not self.back_pressure.store_unwritten >> self.state.worker & 1:
            self.state.handler.store_unwritten()
        callback_ends(&mark, COMMIT)

    def persisted_counters(self, uint64_t sessions):
        """Return the counters that the store keeps with each commit (leveldb_store.format.persisted_counters)."""
        cdef RouterState state = self.state
        return state.counters.kept(state.clock.ms, state.next_position - 1, state.clock.last, sessions)

    cdef int hand_off(self) except -1:
        cdef uint64_t peers = self.peers.held_peers
        self.peers.held_peers = 0
        self.state.handler.hold(peers)
        return 0

    cdef int append_block(self) except -1:
        # append the tick's block to the log: readable from now on; a block of very many indexes with its last piece
        cdef list keys
        cdef Mark mark
        cdef bint meanwhile = self.journal.appending is not None
        if meanwhile:
            self.append_piece()
            if self.journal.appending is not None:
                return 0
        self.state.takes_none = False
        if self.state.next_position == self.journal.block.first:
            return 0
        if len(self.journal.block.keys) > self.journal.indexes_at_once:
            self.journal.block.seal()
            self.journal.appending = self.journal.block
            self.journal.block = Block(self.state.next_position)
            self.state.takes_none = meanwhile     # else it might never end
            return self.append_piece()
        callback_begins(&mark)
        keys = self.journal.block.keys
        self.journal.store.append(self.journal.block)
        self.journal.block = Block(self.state.next_position)
        self.journal.recorded = self.state.keeps
        self.sweeping.sweep_grown(keys)
        callback_ends(&mark, LOGGED)
        return 0

    @property
    def is_appending(self):
        """Whether a block of very many indexes is being appended: until its end nothing can be committed."""
        return self.journal.appending is not None

    cdef int append_piece(self) except -1:
        # append one piece of the block
        cdef list keys
        cdef Mark mark
        callback_begins(&mark)
        self.journal.store.append(self.journal.appending, self.journal.indexes_at_once)
        self.journal.recorded = self.state.keeps
        self.state.unfinished = True
        if self.journal.appending.left == 0:
            keys = self.journal.appending.keys
            self.journal.appending = None
            self.sweeping.sweep_grown(keys)
        callback_ends(&mark, LOGGED)
        return 0

    cpdef finish_tick(self):
        """Let sessions that are behind read on, commit, send the peers' batches by `forward_now`, release acks. The
        caller sends the outboxes."""
        cdef Mark mark, part
        callback_begins(&mark)
        self.state.clock.hear()
        if self.state.divided:
            callback_begins(&part)
            self.state.divided = self.state.handler.work_on()
            callback_ends(&part, PIECE)
        if self.journal.callbacks_due:
            callback_begins(&part)
            self.journal.call_stored()
            callback_ends(&part, STORED)
        if self.windows.deferred_count or self.windows.awaiting.count:
            callback_begins(&part)
            self.windows.send_deferred()
            callback_ends(&part, DEFERRED)
        if self.state.next_position != self.journal.block.first or self.journal.appending is not None:
            self.append_block()
        if self.journal.appending is None:
            self.finish_log()
        self.state.tick += 1
        if self.journal.appending is None:
            self.state.round_until = self.state.effort() + ROUND
        else:
            self.state.round_until = 0 if self.state.takes_none else self.state.effort() + SLICE
        if self.state.acks_due and (self.answering.waiting.count or self.answering.unknown):
            callback_begins(&part)
            self.answering.release_acks()
            callback_ends(&part, ACKS)
            if self.journal.appending is None:
                if self.state.ready.count:
                    self.backlog.serve_ready()
                if self.peers.entries_added:
                    self.forward_all()      # requests for retained messages, sent after their SUBACK
        if self.state.drained:
            callback_begins(&part)
            self.tell_drained()
            callback_ends(&part, DRAINED)
        if self.journal.recorded and self.journal.appending is None:
            self.commit()                   # records made since
        self.state.clock.tell()
        callback_ends(&mark, TICK)

    cdef bint has_messages(self) noexcept:
        # published, recorded or addressed to a sibling since the last `finish_tick`
        return self.state.next_position != self.journal.block.first or self.journal.recorded or \
            self.peers.entries_added

    cdef int finish_log(self) except -1:
        # the whole log can be read
        cdef Mark part
        if self.state.unfinished:
            self.sweeping.go_on()
        if self.state.ready.count:
            self.backlog.serve_ready()
        if self.windows.lazy_windows.count and self.state.now_ms >= self.windows.lazy_due:
            callback_begins(&part)
            self.windows.store_lazy_windows()
            callback_ends(&part, LAZY)
        if self.journal.recorded or self.journal.archive_due:
            self.commit()
        self.state.clock.tell()
        if self.peers.entries_added or self.peers.links_due:
            self.forward_all()
        return 0

    cdef int forward_all(self) except -1:
        cdef Mark mark
        callback_begins(&mark)
        self.peers.entries_added = False
        self.peers.forward_now()
        callback_ends(&mark, FORWARD)
        return 0

    cdef int tell_drained(self) except -1:
        cdef list sessions = self.state.drained
        self.state.drained = []
        work(<uint64_t>len(sessions) * PYTHON)
        self.state.handler.drained(sessions)
        return 0

    cdef int puback(self, Session s, uint16_t packet_id, uint8_t reason) except -1:
        cdef Inflight* slot = s.slot(packet_id)
        if slot == NULL:
            return 0
        if slot.state != WAIT_PUBACK:
            return self.misfit(s, slot, "PUBACK for a message of QoS 2")
        if self.state.keeps:
            self.windows.finish_slot(s, slot)
        else:
            s.release(slot)
        self.counters.at[count.DELIVERED_QOS1 if reason < 0x80 else count.DROPPED_REFUSED] += 1
        if reason >= 0x80:
            self.state.drops.add(s, count.DROPPED_REFUSED, 1)
        if s.behind:
            self.state.set_ready(s)
        return 1

    cdef int pubrec(self, Session s, Connection conn, uint16_t packet_id, uint8_t reason) except -1:
        cdef Inflight* slot = s.slot(packet_id)
        cdef uint8_t* p
        if slot != NULL and slot.state == WAIT_PUBREC:
            if reason >= 0x80:
                self.windows.finish_slot(s, slot)
                self.counters.at[count.DROPPED_REFUSED] += 1
                self.state.drops.add(s, count.DROPPED_REFUSED, 1)
                if s.behind:
                    self.state.set_ready(s)
                return 0
            if self.state.keeps and is_stored(s):
                if slot.flags & OWN_RECORD:
                    self.windows.forget_queued(s, slot.position)
                self.windows.mark_dirty(s)
            slot.state = WAIT_PUBCOMP
            slot.group = 0
            slot.order = s.order            # PUBRELs are resent in the order of the PUBRECs
            s.order += 1
            out_changes(s, slot.packet_id)
            if s.behind and s.inflight_room <= 0:
                self.state.set_ready(s)
            s.let_go(slot)                  # its bytes are freed, but the slot stays taken
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
        if self.state.keeps and slot != NULL and s.committing > self.journal.durable_ticket:
            return self.windows.defer(s, conn, slot)
        self.counters.at[count.ANSWERS_SENT] += 1
        p = outbox_reserve(&conn.out, 5)
        if put_ack(p, PUBREL, packet_id, reason, conn.version == 5) - p == 4:
            conn.out.tail -= 1
            conn.out.pending -= 1
        self.state.set_dirty(conn)
        return 0

    cdef int pubcomp(self, Session s, Connection conn, uint16_t packet_id) except -1:
        cdef Inflight* slot = s.slot(packet_id)
        if slot == NULL or slot.state != WAIT_PUBCOMP:
            if conn.strays:
                conn.strays -= 1            # its identifier may have been given to another message meanwhile
            elif slot != NULL:
                return self.misfit(s, slot, "PUBCOMP without PUBREL")
            return 0
        if self.state.keeps:
            self.windows.finish_slot(s, slot)
        else:
            s.release(slot)
        self.counters.at[count.DELIVERED_QOS2] += 1
        if s.behind:
            self.state.set_ready(s)
        return 1

    cdef int misfit(self, Session s, Inflight* slot, str what) except -1:
        # an ack of the wrong kind for the message. If the message was not resent on this connection yet, the ack
        # answers a former one, whose window a crash may have lost: it is ignored like an ack of an unknown identifier
        cdef list unsent = <list>(s.releases if slot.state == WAIT_PUBCOMP else s.resend)
        if self.limits.lenient or unsent is not None and slot.order >= unsent[len(unsent) - 1][0]:
            return 0
        return protocol_error(REASON_PROTOCOL_ERROR, what)

    def publish_message(self, Message m not None, Session origin=None):
        """Route a message of the broker itself (a will). Return the bits of the peers that were sent it."""
        self.in_hand.adoptable = None
        self.in_hand.begin(&m.content, origin, m.publisher, NULL, 0, -1, 0)
        self.in_hand.held = m
        self.publish(self.subscriptions.match(m.content.topic, m.content.topic_len))
        return self.in_hand.mask

    def publish_here(self, Message m not None):
        """Deliver a message of the broker itself, which every worker publishes ($SYS), to this worker's sessions. It is
        neither retained nor forwarded. For a share group the first worker with a member delivers."""
        cdef Matches* found = self.subscriptions.match(m.content.topic, m.content.topic_len)
        cdef Group* g
        cdef uint32_t i
        self.in_hand.adoptable = None
        self.in_hand.begin(&m.content, None, None, NULL, 0, -1, 0)
        self.in_hand.held = m
        if found.count == 1:
            self.fanout.fan_out(found.filters[0])
        elif found.count:
            self.fanout.fan_out_merged(found)
        for i in range(found.count):
            g = found.filters[i].groups
            while g != NULL:
                if g.members.count and not g.siblings & (<uint64_t>1 << self.state.worker) - 1:
                    self.sharing.share_here(g)
                g = g.next
        self.in_hand.held = None


def expiry_offset(bytes properties not None):
    """Return the offset of the Message Expiry Interval's value in validated PUBLISH properties, or -1."""
    cdef Content c
    c.props = <const uint8_t*><const char*>properties
    c.props_len = <uint32_t>len(properties)
    return find_expiry(&c)
