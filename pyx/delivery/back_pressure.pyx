"""Back-pressure on publishers, which wait when they publish too fast, when a session's queue is full (queue_full =
"hold"), when a worker has used up its memory, when (before MQTT 5) its disk is full, when its store has too much
unwritten data, or when they have sent more than Receive Maximum while we still owe them answers.

One mechanism serves all of these: the PUBLISH is not taken. It stays at the front of the connection's inbox, the
connection is not read, and so neither a PUBACK nor a PUBREC is due; it is judged again in 100 ms, or when the reason
ends. So nothing is half done while it waits: no link ack is held, no sibling waits, and no deadlock is possible.

Hold, the life of a session's queue:

    fits --full--> HOLDING --hold_ms_max--> GIVEN_UP: new messages are dropped
     ^                | shrunk by a quarter     | shrunk by a quarter
     +----------------+-------------------------+

The filters of a session that is HOLDING are flagged, here and (by a message of the broker) at every sibling; a publish
at QoS 1 or 2 that matches a flagged filter waits. Messages under way when the flag was set are still taken: the queue
may grow to twice its bound plus HOLD_ROOM messages, and drops only beyond that. A session whose own connection is held
back cannot acknowledge its messages: it gives up at once, so that two clients that publish to each other never wait for
each other. When a sibling is away, its flags are removed.

A publisher waits at most hold_ms_max with one publish, however many sessions hold it. For a disk it waits at most
store_error_ms_max; if the disk is full, and not just slow, a v5 client is refused at once.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc

from pyx.core cimport counters as count
from pyx.core.work cimport FILTER, OBJECT, PYTHON, VISIT, work
from pyx.delivery.connection cimport Connection, Pace
from pyx.delivery.journal cimport Journal
from pyx.delivery.router_state cimport RouterState, free_pointers, pointers_push
from pyx.delivery.session cimport Hold, Session, is_stored
from pyx.matching.subscriptions cimport Filter, Matches, Membership, filter_text


cdef enum:
    GUARD_RATE = 1
    GUARD_HOLDS = 2
    GUARD_MEMORY = 4
    GUARD_STORE = 8
    GUARD_UNWRITTEN = 16
    LOOK_AGAIN_MS = 100
    FLAG = PYTHON + FILTER + 4 * OBJECT     # flagging or unflagging of a filter
    FLAGGED_AT_ONCE = 500


cdef class Bounds:
    cdef int check_hold(self, Session s) except -1:
        raise NotImplementedError

    cdef int let_go(self, Session s) except -1:
        raise NotImplementedError


@cython.final
cdef class BackPressure:
    """The decision on each publish before it is routed: taken, held back or refused."""

    def __cinit__(self, RouterState state not None, Journal journal not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.subscriptions = state.subscriptions
        self.journal = journal
        self.made_to_wait = []
        self.held_timer = None
        self.holds = {}
        self.own_holds = {}
        self.full_sessions = {}
        self.forgotten = {}
        self.limits_changed()

    def __dealloc__(self):
        free_pointers(&self.flaggers)

    def abandon(self):
        """Release the references in C lists: see `Router.abandon`."""
        free_pointers(&self.flaggers)

    def limits_changed(self):
        """Apply changed limits."""
        self.stirred = True
        self.guard_if(
            GUARD_RATE, self.limits.publish_per_second_max or self.limits.publish_bytes_per_second_max)

    cdef int guard_if(self, uint32_t what, bint on) except -1:
        cdef uint32_t before = self.guarded
        if on:
            if not before:
                self.guarded_since = self.state.now_ms
            self.guarded |= what
        else:
            self.guarded &= ~what
        # the others concern no publish of QoS 0 that is not to be retained
        self.guards_qos_0 = self.guarded & (GUARD_RATE | (GUARD_UNWRITTEN if self.limits.queue_qos0 else 0)) != 0
        if before & ~self.guarded:
            self.release_held()
        return 0

    # ------------------------------------------------------------ one publish

    cdef int judge(self, Connection conn, Session s, uint8_t qos, bint retain, Matches* m, uint32_t size) except -1:
        cdef Pace* pace = self.pace_of(conn)
        cdef uint32_t i
        cdef bint waited
        if pace.since and pace.since < self.guarded_since:
            # what it waited for has ended since, and it was taken without being judged
            pace.since = 0
            pace.waits = False
        waited = pace.since and self.state.now_ms - pace.since >= self.limits.hold_ms_max
        if self.guarded & GUARD_RATE and not self.may_publish(pace):
            return self.hold_back(conn, s, &pace.too_fast, count.PUBLISH_RATE_HELD)
        if qos and self.guarded & GUARD_HOLDS and not waited:
            work(m.count * VISIT)
            for i in range(m.count):
                if m.filters[i].held:
                    if pace.since == 0:
                        pace.since = self.state.now_ms
                    return self.hold_back(conn, s, &pace.waits, count.QUEUE_FULL_HELD)
        if qos and self.guarded & GUARD_STORE and self.meets_store(s, qos, retain, m):
            if self.may_wait(pace, 0 if conn.version == 5 else self.limits.store_error_ms_max, count.STORE_REFUSED):
                return self.hold_back(conn, s, &pace.waits, count.STORE_HELD)
            return UNSTORED
        if self.guarded & GUARD_UNWRITTEN and self.meets_unwritten(s, qos, retain, m):
            if self.may_wait(pace, self.limits.store_error_ms_max, count.STORE_REFUSED):
                return self.hold_back(conn, s, &pace.waits, count.STORE_UNWRITTEN_HELD)
            return UNSTORED
        if qos and self.guarded & GUARD_MEMORY and self.meets_memory(m, retain):
            if self.may_wait(pace, self.limits.hold_ms_max, count.MEMORY_REFUSED):
                return self.hold_back(conn, s, &pace.waits, count.MEMORY_HELD)
            return REFUSED
        pace.since = 0
        pace.too_fast = pace.waits = False
        pace.messages -= 1000
        pace.bytes -= 1000 * <int64_t>size
        return TAKEN

    cdef bint may_wait(self, Pace* pace, uint32_t ms_max, int refused) noexcept:
        # False: the publish has waited for ms_max, and counts as refused
        if ms_max == 0 or pace.since and self.state.now_ms - pace.since >= ms_max:
            pace.since = 0
            pace.waits = False
            self.counters.at[refused] += 1
            return False
        if pace.since == 0:
            pace.since = self.state.now_ms
        return True

    cdef int judge_filters(self, Connection conn, Session s, uint32_t filters) except -1:
        # a token bucket of one second's worth, kept as the time at which it will be full again
        cdef uint64_t now = self.state.now_ms * 1000, rate = self.limits.filters_per_second_max
        if self.guarded & GUARD_UNWRITTEN and is_stored(s) and \
                (self.store_unwritten & ~self.store_full) >> self.state.worker & 1:
            return self.hold_back(conn, s, &self.pace_of(conn).waits, count.STORE_UNWRITTEN_HELD)
        if conn.pace != NULL:
            conn.pace.waits = False
        if rate == 0:
            return TAKEN
        if conn.filters_until < now:
            conn.filters_until = now
        if conn.filters_until - now >= 1_000_000:
            return self.hold_back(conn, s, &self.pace_of(conn).subscribes_too_fast, count.FILTERS_RATE_HELD)
        conn.filters_until += <uint64_t>filters * 1_000_000 // rate
        if conn.pace != NULL:
            conn.pace.subscribes_too_fast = False
        return TAKEN

    cdef int await_answers(self, Connection conn, Session s) except -1:
        # it has sent more than Receive Maximum and waits for answers: not every client knows Receive Maximum, and none
        # is closed while the delay is ours (the disk, a sibling). Answering.release_acks resumes it
        return self.hold_back(conn, s, &self.pace_of(conn).owed, count.RECEIVE_MAXIMUM_HELD)

    cdef Pace* pace_of(self, Connection conn) except NULL:
        if conn.pace == NULL:
            conn.pace = <Pace*>calloc(1, sizeof(Pace))
            if conn.pace == NULL:
                raise MemoryError
        return conn.pace

    cdef bint may_publish(self, Pace* pace) noexcept:
        # two token buckets of one second's worth each, in thousandths; bytes may go below zero, so that a packet larger
        # than a second's worth passes
        cdef int64_t messages = 1000 * <int64_t>self.limits.publish_per_second_max
        cdef int64_t size = 1000 * <int64_t>self.limits.publish_bytes_per_second_max
        cdef int64_t passed = <int64_t>(self.state.now_ms - pace.at)
        if pace.at == 0 or passed > 3_600_000:
            pace.messages = messages
            pace.bytes = size
        else:
            pace.messages = min(messages, pace.messages + passed * self.limits.publish_per_second_max)
            pace.bytes = min(size, pace.bytes + passed * self.limits.publish_bytes_per_second_max)
        pace.at = self.state.now_ms
        return (messages == 0 or pace.messages >= 1000) and (size == 0 or pace.bytes > 0)

    cdef uint64_t met(self, Matches* m) noexcept:
        # bits of the workers that have a subscriber
        cdef uint32_t i
        cdef uint64_t workers = 0
        work(m.count * VISIT)
        for i in range(m.count):
            workers |= m.filters[i].siblings
            if m.filters[i].plain.count or m.filters[i].groups != NULL:
                workers |= <uint64_t>1 << self.state.worker
        return workers

    cdef bint meets_memory(self, Matches* m, bint retain) noexcept:
        cdef uint64_t workers = self.met(m)
        if retain:
            workers |= <uint64_t>1 << self.state.worker
        return workers & self.memory_full != 0

    cdef bint meets_store(self, Session s, uint8_t qos, bint retain, Matches* m) except -1:
        # (a retained message is stored by the owner of its topic)
        if retain or qos == 2 and s.durable and self.store_full >> self.state.worker & 1:
            return True
        if self.store_full >> self.state.worker & 1 and self.archives(m):
            return True
        return self.met(m) & self.store_full != 0

    cdef bint archives(self, Matches* m) except -1:
        return self.journal.archiver is not None and \
            self.journal.archiver.rule_of(m.topic, m.topic_length, m.topic_hash) >= 0

    cdef bint meets_unwritten(self, Session s, uint8_t qos, bint retain, Matches* m) except -1:
        # at QoS 0 only retained and queued messages are written, and archived ones within archive_pending_bytes_max
        if retain or qos == 2 and is_stored(s) and self.store_unwritten >> self.state.worker & 1:
            return True
        if qos and self.store_unwritten >> self.state.worker & 1 and self.archives(m):
            return True
        return (qos or self.limits.queue_qos0) and self.met(m) & self.store_unwritten != 0

    cdef int hold_back(self, Connection conn, Session s, bint* counted, int counter) except -1:
        if not counted[0]:
            counted[0] = True
            self.counters.at[counter] += 1
        conn.paused = True
        if not conn.pace.listed:
            conn.pace.listed = True
            self.made_to_wait.append(conn)
        self.start_timer()
        if s.hold_state == HOLDING:
            # it cannot acknowledge its messages while we do not read it
            self.bounds.let_go(s)
        return HELD

    cdef int start_timer(self) except -1:
        if self.held_timer is None:
            self.held_timer = self.state.timers.call(self.state.now_ms + LOOK_AGAIN_MS, self.ask_held_again)
        return 0

    def ask_held_again(self):
        """Judge every waiting connection again, after checking whether the full sessions still hold."""
        cdef Session s
        self.held_timer = None
        work(len(self.full_sessions) * OBJECT)
        for s in list(self.full_sessions):
            if s.hold_state == HOLDING:
                self.bounds.check_hold(s)
                if s.hold_state == HOLDING:
                    self.start_timer()
        self.release_held()

    cdef int release_held(self) except -1:
        cdef Connection conn
        cdef list held = self.made_to_wait
        if held:
            work(<uint64_t>len(held) * VISIT)
            self.made_to_wait = []
            for conn in held:
                conn.pace.listed = False
            self.state.resumed.extend(held)
        return 0

    # ------------------------------------------------------------ sessions whose queue is full

    cdef int flag(self, int worker, bytes text, bint held) except -1:
        cdef uint64_t workers = self.holds.get(text, 0)
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        if held:
            workers |= <uint64_t>1 << worker
        else:
            workers &= ~(<uint64_t>1 << worker)
        if workers and f != NULL:
            self.holds[text] = workers
        else:
            self.holds.pop(text, None)
        if f != NULL:
            f.held = workers != 0
        self.guard_if(GUARD_HOLDS, len(self.holds) != 0)
        if not held:
            self.release_held()
        return 0

    cdef int begin_hold(self, Session s) except -1:
        s.hold_state = HOLDING
        if s.hold is None:
            s.hold = Hold()
        s.hold.since = self.state.now_ms
        self.full_sessions[s] = None
        self.counters.at[count.QUEUES_HELD] += 1
        if not s.unflagging:
            self.flag_first(s)
        self.flag_some(s)
        self.start_timer()
        self.state.handler.queue_held(s)
        return 0

    cdef int flag_first(self, Session s) except -1:
        s.hold.filters = []
        s.hold.left = s.own.count
        return 0

    cdef int unflag(self, Session s) except -1:
        s.hold.left = 0
        s.unflagging = s.hold.filters is not None
        return self.flag_some(s)

    cdef int flag_some(self, Session s) except -1:
        # at once if they are few, else in slices: publishes taken meanwhile count as under way
        cdef int64_t left = self.left
        if s.flagging:
            return 0
        self.left = FLAGGED_AT_ONCE * <int64_t>FLAG
        if not self.flag_on(s):
            s.flagging = True
            pointers_push(&self.flaggers, s)
            self.state.unfinished = True
        self.left = left
        return 0

    cdef bint flag_on(self, Session s) except -1:
        # True: finished
        cdef Membership* e
        cdef Hold hold = s.hold
        while self.left > 0:
            if s.unflagging:
                if hold.filters:
                    self.flag_own(<bytes>hold.filters.pop(), -1)
                    continue
                s.unflagging = False
                hold.filters = None
                if s.hold_state == HOLDING:           # again
                    self.flag_first(s)
            # (a subscription removed meanwhile is replaced by the last one, which was done already)
            hold.left = min(hold.left, s.own.count)
            if hold.left == 0:
                return True
            hold.left -= 1
            work(VISIT)
            self.left -= VISIT
            e = &s.own.items[hold.left]
            if e.group == NULL and (e.filter.plain.items[e.index].slot_options >> 24) & 3:
                text = PyBytes_FromStringAndSize(filter_text(e.filter), e.filter.length)
                hold.filters.append(text)
                self.flag_own(text, 1)
        return False

    cdef int flag_own(self, bytes text, int one) except -1:
        # one more session (+1), or one less (-1), holds this filter
        cdef int wanted = self.own_holds.get(text, 0) + one
        work(FLAG)
        self.left -= FLAG
        if wanted:
            self.own_holds[text] = wanted
        else:
            del self.own_holds[text]
        if wanted == (one > 0):
            self.flag(self.state.worker, text, one > 0)
            self.state.handler.hold_changed(text, one > 0)
        return 0

    cdef int give_up(self, Session s, uint64_t messages, uint64_t size) except -1:
        # it may keep the messages queued so far
        s.hold_state = GIVEN_UP
        s.hold.messages = messages
        s.hold.bytes = size
        self.counters.at[count.HOLDS_GIVEN_UP] += 1
        self.unflag(s)
        return 0

    cdef int end_hold(self, Session s) except -1:
        cdef bint flagged = s.hold_state == HOLDING
        s.hold_state = NO_HOLD
        if flagged:
            self.unflag(s)
        if s.hold is not None:
            s.hold.messages = s.hold.bytes = 0
        self.full_sessions.pop(s, None)
        return 0

    # ------------------------------------------------------------ holds of siblings

    def held_filters(self):
        """Return the flagged Topic Filters of this worker's own sessions: for a sibling that comes back."""
        work(len(self.own_holds) * OBJECT)
        return list(self.own_holds)

    def holds_own(self, bytes text not None):
        """Return whether a Topic Filter is flagged for a session of this worker."""
        return text in self.own_holds

    def sibling_holds(self, int peer, bytes text not None, bint held):
        """Note that a sibling has, or no longer has, a session with that filter whose queue is full."""
        if peer in self.forgotten:
            self.forgotten[peer].discard(text)
        self.flag(peer, text, held)

    cdef int forget_on(self) except -1:
        # unflag a slice of the filters flagged by siblings that are away or gone
        cdef int peer
        while self.forgotten and self.left > 0:
            peer = next(iter(self.forgotten))
            texts = self.forgotten[peer]
            while texts and self.left > 0:
                work(FILTER + OBJECT)
                self.left -= FILTER + OBJECT
                self.flag(peer, texts.pop(), False)
            if not texts:
                del self.forgotten[peer]
        return 0

    def forget_holds(self, int peer):
        """Remove the flags and states of a sibling that is away or gone; many flags in slices."""
        cdef int64_t left = self.left
        work(len(self.holds) * OBJECT)
        if self.holds:
            self.forgotten[peer] = {text for text, workers in self.holds.items() if workers >> peer & 1}
            self.left = FLAGGED_AT_ONCE * <int64_t>FLAG
            self.forget_on()
            self.left = left
            self.state.unfinished |= len(self.forgotten) != 0
        self.set_memory_full(peer, False)
        self.set_store_full(peer, False)
        self.set_store_unwritten(peer, False)

    # ------------------------------------------------------------ memory, and the disk

    def set_memory_full(self, int worker, bint full):
        """Note whether a worker, this one or a sibling, is at worker_memory_bytes_max."""
        if full:
            self.memory_full |= <uint64_t>1 << worker
        else:
            self.memory_full &= ~(<uint64_t>1 << worker)
        self.guard_if(GUARD_MEMORY, self.memory_full != 0)

    @property
    def is_memory_full(self):
        """Whether this worker is at worker_memory_bytes_max."""
        return bool(self.memory_full >> self.state.worker & 1)

    @property
    def is_store_behind(self):
        """Whether this worker's store has store_unwritten_bytes_max to write."""
        return bool(self.store_unwritten >> self.state.worker & 1)

    def set_store_full(self, int worker, bint full):
        """Note whether the store of a worker, this one or a sibling, refuses new messages (`Store.full`)."""
        if full:
            self.store_full |= <uint64_t>1 << worker
        else:
            self.store_full &= ~(<uint64_t>1 << worker)
        self.guard_if(GUARD_STORE, self.store_full != 0)

    def set_store_unwritten(self, int worker, bint much):
        """Note that the store of a worker, this one or a sibling, has store_unwritten_bytes_max to write, or is below
        half of that again."""
        if much:
            self.store_unwritten |= <uint64_t>1 << worker
        else:
            self.store_unwritten &= ~(<uint64_t>1 << worker)
        self.guard_if(GUARD_UNWRITTEN, self.store_unwritten != 0)

    @property
    def connections_held(self):
        """The number of connections held back."""
        return len(self.made_to_wait)
