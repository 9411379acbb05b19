"""Share groups: each message goes to one member of a group [MQTT 5, 4.8.2].

The publisher's worker chooses: a member of its own, or a sibling, to which it sends an entry that names the group; the
sibling then chooses among its members by the same strategy. Three attempts are made, over all workers each time: those
who can take the message now (online, with room in window and outbox); those who are online; anybody, for whom it then
waits. What is known of members elsewhere:

- how many there are and how many are online, and whether all of these are full (said once they are, and looked at again
  every LOOK_AGAIN_MS): enough for round_robin and least_inflight, which take a worker in proportion to online members;
- for hash_topic, hash_client and sticky every member by name (pyx.matching.group_members): all workers come to the same
  one.

What is known may be a moment old. A worker without a member, or whose members are all offline, refuses the entry with
its link ack, and the sender chooses again. The same happens to what a worker that died had not acknowledged: at QoS 1,
and at QoS 2 where it never left. Copies that belong to a group carry its number: what waits for a member that leaves,
and what was sent to it at QoS 1 and not acknowledged when its session ends, is handed on.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.core.placement cimport fixed_hash, mixed
from pyx.core.work cimport OBJECT, PLACE, PYTHON, VISIT, work
from pyx.delivery.answering cimport Answering
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.bounding cimport Bounding, Teller
from pyx.delivery.connection cimport Connection, OPEN, PendingAck
from pyx.delivery.fanout cimport FanOut
from pyx.delivery.peers cimport Peers
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport REFUSED_NO_MEMBER, REFUSED_OFFLINE, RouterState, pointers_push, put_identifier
from pyx.delivery.session cimport SHARED_COPY, Session, has_slot
from pyx.matching.filters cimport Group, Member, Subscriber
from pyx.matching.group_members cimport roster_put, roster_strike
from pyx.matching.subscriptions cimport Membership, SubscriberList, filter_text
from pyx.protocol.message cimport Content, Message
from pyx.protocol.topics cimport topic_matches
from pyx.storage.records cimport Choice, ENTRY_CONTROL, ENTRY_OWN_FRAME, ENTRY_RETAINED_ONLY, Entry, read_entry


from pyx.core import counters as count

cdef enum:
    HERE = -1                       # instead of a sibling
    NOBODY = -2
    LEAST_OF = 32                   # least_inflight compares so many members at once
    LOOK_AGAIN_MS = 100             # after so long a group that was full is looked at again
    TOLD_AT_ONCE = 500              # subscriptions of a session that comes or goes
    TELL = 4 * PYTHON               # a change that siblings are told of, with its bytes


cdef inline bint has_room(Session s, uint8_t qos, uint32_t outbox_bytes_max) noexcept:
    # can it take a message now
    cdef Connection conn = <Connection>s.connection
    if conn is None or conn.state != OPEN or conn.out.pending > outbox_bytes_max:
        return False
    return qos == 0 or not s.behind and has_slot(s)


@cython.final
cdef class Sharing(Teller):
    """Chooses members and workers."""

    def __cinit__(self, RouterState state not None, PublishInHand in_hand not None, Peers peers not None,
                  Answering answering not None, BackPressure back_pressure not None, Bounding bounding not None,
                  Backlog backlog not None, FanOut fanout not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.subscriptions = state.subscriptions
        self.in_hand = in_hand
        self.peers = peers
        self.answering = answering
        self.back_pressure = back_pressure
        self.bounding = bounding
        self.backlog = backlog
        self.fanout = fanout
        self.full_groups = []

    # ------------------------------------------------------------ which worker

    cdef int share(self, Group* g, uint64_t* plain) except -1:
        # the publish in hand to one member of the group: 1, or 0: there is none. plain: siblings that get a plain copy
        # as well; one that is chosen gets both with one entry
        if g.siblings == 0:
            return self.share_here(g)
        if g.strategy == 0:
            self.ask_strategy(g)
        return self.choose(g, self.key_for(g) if g.strategy >= HASH_TOPIC else 0, 0, 0, plain)

    cdef int share_here(self, Group* g) except -1:
        # to one of this worker's members
        if g.strategy == 0:
            self.ask_strategy(g)
        return self.choose_here(g, self.key_for(g) if g.strategy >= HASH_TOPIC else 0, True)

    cdef int choose(self, Group* g, uint64_t key, uint64_t offline, uint64_t without, uint64_t* plain) except -1:
        # the same over all workers. offline, without: siblings that have said that nobody is online, or nobody there
        cdef uint64_t live = g.siblings_online & self.peers.live_for_interest & ~offline & ~without
        cdef bint insist = False
        cdef int worker
        g.turn += 1
        if g.strategy >= HASH_TOPIC and g.roster_count:
            return self.choose_ranked(g, key, live, g.siblings & ~without, plain)
        worker = self.weigh(g, live & ~g.siblings_full, g.members.online, True)
        if worker == HERE:
            if self.take_here(g, key):
                return 1
            self.note_full(g)
            worker = self.weigh(g, live & ~g.siblings_full, 0, True)
        if worker == NOBODY:
            worker = self.weigh(g, live, g.members.online, True)
        if worker == NOBODY:
            worker = self.weigh(g, g.siblings & ~without, g.members.count, False)
            insist = True
        if worker == NOBODY:
            return 0
        if worker == HERE:
            return self.queue_here(g, key)
        return self.send(g, worker, key, insist, plain)

    cdef int choose_ranked(self, Group* g, uint64_t key, uint64_t live, uint64_t all_, uint64_t* plain) except -1:
        cdef Member* m = self.best(g, key, live if g.waits else live & ~g.siblings_full, ABLE)
        cdef bint insist = False
        if m == NULL:
            self.note_full(g)
            m = self.best(g, key, live, ONLINE)
        if m == NULL:
            m = self.best(g, key, all_, ANYBODY)
            insist = True
        if m == NULL:
            return 0
        if m.session != NULL:
            return self.hand_to(g, <Session>m.session)
        return self.send(g, <int>m.worker, key, insist, plain)

    cdef int weigh(self, Group* g, uint64_t mask, uint32_t here, bint online) noexcept:
        # a sibling of `mask`, HERE or NOBODY, in proportion to members: `here` of them are this worker's
        cdef uint64_t left = mask
        cdef uint32_t total = here, at
        cdef int p = 0, chosen = NOBODY
        while left:
            if left & 1:
                total += g.elsewhere[p].online if online else g.elsewhere[p].members
            left >>= 1
            p += 1
        if total == 0:
            return NOBODY
        at = g.turn % total
        if at < here:
            return HERE
        at -= here
        p = 0
        while mask:
            if mask & 1:
                total = g.elsewhere[p].online if online else g.elsewhere[p].members
                if total:
                    chosen = p
                    if at < total:
                        break
                    at -= total
            mask >>= 1
            p += 1
        return chosen

    cdef int send(self, Group* g, int worker, uint64_t key, bint insist, uint64_t* plain) except -1:
        # an entry names one group, so that a refusal does
        cdef Choice choice
        cdef uint64_t bit = <uint64_t>1 << worker
        cdef uint8_t flags = ENTRY_RETAINED_ONLY
        choice.group = <const uint8_t*>g.name
        choice.group_len = g.label_length
        choice.key = key
        choice.insist = insist
        if plain != NULL and plain[0] & bit:
            flags = 0
            plain[0] &= ~bit
        self.peers.entry(worker, flags, &choice)
        if self.in_hand.content.qos:
            self.in_hand.mask |= bit
        return 1

    # ------------------------------------------------------------ which member

    cdef int choose_here(self, Group* g, uint64_t key, bint insist) except -1:
        # 1: given to a member (or queued for one, or dropped with a reason); 0: no member, or, unless the sender
        # insists, none online
        if g.members.count == 0 or self.in_hand.content.qos and g.members.online == 0 and not insist:
            return 0
        if self.take_here(g, key):
            return 1
        if g.siblings:
            self.note_full(g)
        return self.queue_here(g, key)

    cdef bint take_here(self, Group* g, uint64_t key) except -1:
        # a member of this worker that can take it now gets it
        cdef SubscriberList* l = &g.members
        cdef Subscriber* sub
        cdef Session s
        cdef Member* m
        cdef uint32_t k
        cdef uint8_t qos
        if l.online == 0:
            return False
        if g.strategy >= HASH_TOPIC and g.roster_count:
            m = self.best(g, key, 0, ABLE)
            return m != NULL and self.hand_to(g, <Session>m.session) == 1
        g.next_member += 1
        k = g.next_member % l.online
        if g.strategy == LEAST_INFLIGHT:
            k = self.least_loaded(g, k)
        for _ in range(l.online):
            work(2 * VISIT)
            sub = &l.items[k]
            s = <Session>sub.session
            qos = <uint8_t>(sub.slot_options >> 24) & 3
            if has_room(s, min(qos, self.in_hand.content.qos), self.limits.outbox_bytes_max):
                self.in_hand.sharing = g.number
                self.give(sub, s)
                return True
            k = k + 1 if k + 1 < l.online else 0
        return False

    cdef uint32_t least_loaded(self, Group* g, uint32_t start) noexcept:
        # the member with the fewest messages in flight or queued (at QoS 0: the shortest outbox) of LEAST_OF from
        # `start` on; of equal ones the first
        cdef SubscriberList* l = &g.members
        cdef Session s
        cdef Connection conn
        cdef uint32_t k = start, found = start
        cdef uint64_t load, least = <uint64_t>-1
        for _ in range(l.online if l.online < LEAST_OF else LEAST_OF):
            work(2 * VISIT)
            s = <Session>l.items[k].session
            conn = <Connection>s.connection
            if conn is not None:
                load = <uint64_t>(s.inflight + s.queue_count) << 32
                if self.in_hand.content.qos == 0:
                    load = conn.out.pending
                if load < least and has_room(s, self.in_hand.content.qos, self.limits.outbox_bytes_max):
                    least = load
                    found = k
            k = k + 1 if k + 1 < l.online else 0
        return found

    cdef Member* best(self, Group* g, uint64_t key, uint64_t mask, int who) noexcept:
        # of the members known by name, on this worker and on the siblings of `mask`: for hash_* the one of the highest
        # weight (rendezvous hashing: whoever comes or goes moves only its own share), for sticky the one that has been
        # online for longest. Room is looked at last: it takes a look into the session
        cdef Member* m
        cdef Member* found = NULL
        cdef uint64_t weight, highest = 0
        cdef uint32_t i
        work(g.roster_count * (4 * PLACE))
        for i in range(g.roster_count):
            m = &g.roster[i]
            if m.since == 0 and who != ANYBODY:
                continue
            if g.strategy != STICKY:
                weight = mixed(key ^ m.identity)
            else:
                weight = ~m.since if m.since else m.identity >> 16
            if found != NULL and weight <= highest:
                continue
            if m.session == NULL:
                if mask >> m.worker & 1 == 0:
                    continue
            elif who == ABLE and not has_room(
                    <Session>m.session, self.in_hand.content.qos, self.limits.outbox_bytes_max):
                if not g.waits or not self.may_wait(<Session>m.session):
                    continue
            found = m
            highest = weight
        return found

    cdef bint may_wait(self, Session s) noexcept:
        return (
            self.in_hand.content.qos != 0 and s.queue_count < self.limits.queue_messages_max
            and s.queue_bytes < self.limits.queue_bytes_max
        )

    cdef Subscriber* subscriber(self, Group* g, Session s) noexcept:
        cdef int i = self.subscriptions.membership(g.filter, g, <void*>s, &s.own)
        return NULL if i < 0 else &g.members.items[s.own.items[i].index]

    cdef int hand_to(self, Group* g, Session s) except -1:
        # to this member: now, or when it has room
        cdef Subscriber* sub = self.subscriber(g, s)
        cdef uint8_t qos
        if sub == NULL:
            raise AssertionError("a member of the roster that is none of the group")
        self.in_hand.sharing = g.number
        qos = <uint8_t>(sub.slot_options >> 24) & 3
        if has_room(s, min(qos, self.in_hand.content.qos), self.limits.outbox_bytes_max):
            return self.give(sub, s)
        if self.in_hand.content.qos and self.wait_for(sub, s):
            return 1
        return self.queue_here(g, self.key_for(g))

    cdef int give(self, Subscriber* sub, Session s) except -1:
        # the caller has seen room
        cdef const Content* c = self.in_hand.content
        cdef uint8_t options = <uint8_t>(sub.slot_options >> 24), qos = options & 3
        cdef uint8_t[8] ids
        if qos > c.qos:
            qos = c.qos
        return self.fanout.deliver(s, qos, 0x30 | qos << 1 | (c.retain if options & 8 else 0), ids,
                                   put_identifier(ids, sub.identifier) if sub.identifier else 0, SHARED_COPY)

    cdef int queue_here(self, Group* g, uint64_t key) except -1:
        # nobody can take it now: it waits with one of them, with an online one if there is any
        cdef SubscriberList* l = &g.members
        cdef Subscriber* sub
        cdef Member* m = NULL
        cdef uint32_t i, k
        self.in_hand.sharing = g.number
        if self.in_hand.content.qos == 0:
            self.counters.at[count.MATCHED] += 1
            self.counters.at[count.DROPPED_OUTBOX_FULL if l.online else count.DROPPED_OFFLINE_QOS0] += 1
            return 1
        self.counters.at[count.SHARED_WAITED] += 1
        if g.strategy >= HASH_TOPIC and g.roster_count:
            m = self.best(g, key, 0, ONLINE if l.online else ANYBODY)
            if m != NULL and self.wait_for(self.subscriber(g, <Session>m.session), <Session>m.session):
                return 1
        for i in range(l.count):
            work(VISIT)
            k = (g.next_member + i) % l.online if i < l.online else i
            sub = &l.items[k]
            if self.wait_for(sub, <Session>sub.session):
                return 1
        self.counters.at[count.MATCHED] += 1
        self.counters.at[count.DROPPED_QUEUE_FULL] += 1
        return 1

    cdef bint wait_for(self, Subscriber* sub, Session s) except -1:
        # queue it for this member, within its limit. False: full, or it was granted QoS 0
        cdef const Content* c = self.in_hand.content
        cdef uint8_t options = <uint8_t>(sub.slot_options >> 24), qos = options & 3
        cdef uint8_t[8] ids
        cdef object identifiers = None
        if qos == 0 or not self.may_wait(s):
            return False
        if sub.identifier:
            identifiers = PyBytes_FromStringAndSize(<const char*>ids, put_identifier(ids, sub.identifier))
        self.backlog.queue_for(s, self.in_hand.hold(), min(qos, c.qos), c.retain and options & 8 != 0, identifiers,
                               SHARED_COPY, self.in_hand.sharing)
        return True

    cdef uint64_t key_for(self, Group* g) except? 0:
        # what the publish in hand is ranked by
        cdef bytes name
        if g.strategy == HASH_CLIENT:
            if self.in_hand.origin is not None:
                return self.in_hand.origin.identity
            if isinstance(self.in_hand.publisher, int):
                return <uint64_t>self.in_hand.publisher
            if self.in_hand.publisher is not None:
                name = self.in_hand.publisher.encode("utf-8", "surrogatepass")
                return fixed_hash(<const uint8_t*><const char*>name, len(name))
        if g.strategy == STICKY:
            return 0
        return fixed_hash(self.in_hand.content.topic, self.in_hand.content.topic_len)

    # ------------------------------------------------------------ chosen by a sibling

    cdef int chosen(self, Entry* e) except -1:
        # a sibling chose this worker for a group: we choose the member. 0, or why it is refused
        cdef Group* g = self.subscriptions.groups.find(e.group, e.group_len)
        if g == NULL or g.members.count == 0:
            return REFUSED_NO_MEMBER
        if g.strategy == 0:
            self.ask_strategy(g)
        if g.strategy == HASH_CLIENT and self.in_hand.publisher is None:
            self.in_hand.publisher = e.key              # remembered, should the message be handed on
            if self.in_hand.held is not None:
                self.in_hand.held.publisher = self.in_hand.publisher
        return 0 if self.choose_here(g, e.key, e.insist) else REFUSED_OFFLINE

    # ------------------------------------------------------------ again

    def choose_again(self, int peer, uint64_t tick, const uint8_t[::1] entries not None, list payloads not None,
                     list refusals not None):
        """A sibling refused the entries at these (position, reason) of the batch of that tick, rising: it has no member
        of their groups, or none that is online. A member here or another worker is chosen, and the publishers' acks
        wait for those, too."""
        cdef size_t at = 0, n = <size_t>entries.shape[0]
        cdef uint64_t bit = <uint64_t>1 << peer, others = 0
        cdef Entry e
        cdef int used = 0
        cdef uint32_t here = 0, position
        for position, reason in refusals:
            while True:
                if at >= n or position < here:
                    raise ValueError("no such mesh entry")
                at += read_entry(&entries[at], n - at, &e)
                here += 1
                if here > position:
                    break
                if e.flags & ENTRY_OWN_FRAME:
                    used += 1
            if e.flags & ENTRY_CONTROL or e.group == NULL:
                raise ValueError("no such mesh entry")
            if not self.again_guarded(&e, payloads, used, bit, 0 if reason == REFUSED_OFFLINE else bit, &others):
                self.counters.at[count.MATCHED] += 1
                self.counters.at[count.DROPPED_NO_MEMBER] += 1
            if e.flags & ENTRY_OWN_FRAME:
                used += 1
        if others:
            self.wait_longer(peer, tick, others)

    def choose_again_lost(self, int peer, uint64_t tick, const uint8_t[::1] entries not None, list payloads not None,
                          bint sent):
        """A sibling died and had not acknowledged this batch: what was for a share group is given to another member,
        unless it is of QoS 2 and was sent (it may have been delivered). -> how many copies are lost."""
        cdef size_t at = 0, n = <size_t>entries.shape[0]
        cdef uint64_t bit = <uint64_t>1 << peer, others = 0
        cdef Entry e
        cdef int used = 0
        cdef uint32_t lost = 0
        while at < n:
            at += read_entry(&entries[at], n - at, &e)
            if e.flags & ENTRY_CONTROL:
                continue
            if e.group == NULL or not e.flags & ENTRY_RETAINED_ONLY:
                lost += 1                       # the plain copy
            if e.group != NULL and (e.content.qos == 2 and sent or
                                    not self.again_guarded(&e, payloads, used, bit, bit, &others)):
                lost += 1
            if e.flags & ENTRY_OWN_FRAME:
                used += 1
        if others:
            self.wait_longer(peer, tick, others)
        return lost

    cdef bint again_guarded(self, Entry* e, list payloads, int used, uint64_t offline, uint64_t without,
                            uint64_t* others) except -1:
        # an error of ours is about this message, and not about the batch
        try:
            return self.again(e, payloads, used, offline, without, others)
        except Exception as error:
            self.counters.at[count.INTERNAL_ERRORS] += 1
            self.state.handler.defect(None, error)
        return False

    cdef bint again(self, Entry* e, list payloads, int used, uint64_t offline, uint64_t without,
                    uint64_t* others) except -1:
        # choose another one than that peer; others: workers whose word is to be waited for
        cdef Group* g = self.subscriptions.groups.find(e.group, e.group_len)
        cdef bint taken
        if g == NULL:
            return False
        self.in_hand.adoptable = None
        self.in_hand.begin_entry(e, payloads, used)
        if e.content.expires and self.state.wall_ms >= e.content.expires:
            self.in_hand.held = None
            self.counters.at[count.MATCHED] += 1
            self.counters.at[count.DROPPED_EXPIRED] += 1
            return True
        if g.strategy == 0:
            self.ask_strategy(g)
        if g.strategy == HASH_CLIENT:
            self.in_hand.publisher = e.key
        taken = self.choose(g, e.key, offline, without, NULL) == 1
        others[0] |= self.in_hand.mask
        self.in_hand.held = None
        if taken:
            self.counters.at[count.SHARED_AGAIN] += 1
        return taken

    cdef int wait_longer(self, int peer, uint64_t tick, uint64_t others) except -1:
        # whoever waits for `peer` to acknowledge `tick` waits for `others` to acknowledge this one as well. More
        # publishers than the one that is meant: this is rare
        cdef uint32_t i, k
        cdef Connection conn
        cdef PendingAck* a
        for i in range(self.answering.waiting.count):
            conn = <Connection>self.answering.waiting.items[i]
            work(VISIT + conn.ack_count * PLACE)
            for k in range(conn.ack_count):
                a = &conn.acks[(conn.ack_head + k) & (conn.ack_cap - 1)]
                if a.mask >> peer & 1 and a.tick <= tick:
                    a.mask |= others
                    a.tick = self.state.tick
        return 0

    cdef bint hand_on(self, uint32_t group, Message m) except -1:
        # a copy of the group that its member will not take goes to another one, here or elsewhere. The copy was counted
        # as matched when it was born: it changes hands. False: no member is left
        cdef Group* g = self.subscriptions.groups.numbered(group)
        cdef bint taken
        if m.content.expires and self.state.wall_ms >= m.content.expires:
            self.counters.at[count.DROPPED_EXPIRED] += 1
            return True
        if g == NULL or not topic_matches(<const uint8_t*>filter_text(g.filter), g.filter.length, m.content.topic,
                                          m.content.topic_len):
            return False
        self.in_hand.begin(&m.content, None, m.publisher, NULL, 0, -1, 0)
        self.in_hand.held = m
        taken = self.share(g, NULL) == 1
        self.in_hand.held = None
        if taken:
            self.counters.at[count.MATCHED] -= 1
            self.counters.at[count.SHARED_AGAIN] += 1
        return taken

    # ------------------------------------------------------------ members come and go

    cdef int ask_rule(self, Group* g) except -1:
        # for its strategy, and whether it waits
        work(PYTHON)
        if self.strategy_of is None:
            return ROUND_ROBIN
        return self.strategy_of(g.name[:g.name_length], filter_text(g.filter)[:g.filter.length])

    cdef int ask_strategy(self, Group* g) except -1:
        # once in the life of a group, when its first member has come
        cdef int answer = self.ask_rule(g)
        cdef uint32_t i
        g.strategy = answer & STRATEGY_MASK
        g.waits = answer & WAITS != 0
        if g.strategy >= HASH_TOPIC:
            for i in range(g.members.count):
                self.enroll(g, <Session>g.members.items[i].session)
        return 0

    def strategies_changed(self):
        """The configuration has other strategies now: every group asks for its own anew, some with each step of the
        iterator. Called again it takes over from the former one."""
        cdef uint32_t done = 0
        self.strategy_turn += 1
        turn = self.strategy_turn
        for number in list(self.subscriptions.groups.by_number):
            members = self.ask_again(number)
            done += 1
            while members or done >= TOLD_AT_ONCE:
                if done >= TOLD_AT_ONCE:
                    done = 0
                    yield
                    if turn != self.strategy_turn:
                        return
                if members:
                    done += self.name_members(number, members, TOLD_AT_ONCE - done)
                    members = members or self.ask_again(number)

    cdef list ask_again(self, number):
        # members that are to be enrolled, or struck, before it has its strategy or is done; None: there are none
        cdef Group* g = self.subscriptions.groups.numbered(number)
        cdef int answer
        cdef uint32_t i, enrolled = 0
        if g == NULL:
            return None
        answer = self.ask_rule(g)
        work(g.roster_count * PLACE)
        for i in range(g.roster_count):
            enrolled += g.roster[i].session != NULL
        if answer & STRATEGY_MASK >= HASH_TOPIC or enrolled == 0:
            g.strategy = answer & STRATEGY_MASK
            g.waits = answer & WAITS != 0
        if enrolled == (g.members.count if g.strategy >= HASH_TOPIC else 0) and g.strategy == answer & STRATEGY_MASK:
            return None
        work(g.members.count * OBJECT)
        return [<Session>g.members.items[i].session for i in range(g.members.count)]

    cdef uint32_t name_members(self, number, list members, Py_ssize_t most) except? 0:
        # the last ones of the list, which is shorter then: how many. Some of them may have left
        cdef Group* g = self.subscriptions.groups.numbered(number)
        cdef bint is_named = g != NULL and self.ask_rule(g) & STRATEGY_MASK >= HASH_TOPIC
        cdef Session s
        most = min(most, len(members))
        if g != NULL:
            for s in members[len(members) - most:]:
                if self.subscriber(g, s) == NULL:
                    continue
                if is_named:
                    self.enroll(g, s)
                else:
                    self.strike(g, s)
        del members[len(members) - most:]
        return <uint32_t>most

    cdef int enroll(self, Group* g, Session s) except -1:
        # this member is known by name from now on, here and to the siblings
        cdef uint64_t since = self.state.new_number() if s.connection is not None else 0
        roster_put(g, s.identity, since, <void*>s, <uint32_t>self.state.worker, 0)
        if self.peers.interest is not None:
            work(PYTHON)
            self.peers.interest.member(
                filter_text(g.filter)[:g.filter.length], g.name[:g.name_length], s.identity, True, since)
            self.peers.links_due = True
        return 0

    cdef int strike(self, Group* g, Session s) except -1:
        # before the membership ends
        if g.strategy < HASH_TOPIC:
            return 0
        roster_strike(g, s.identity, <void*>s, <uint32_t>self.state.worker)
        if self.peers.interest is not None:
            work(PYTHON)
            self.peers.interest.member(
                filter_text(g.filter)[:g.filter.length], g.name[:g.name_length], s.identity, False, 0)
            self.peers.links_due = True
        return 0

    cdef int joined(self, Group* g, Session s) except -1:
        self.tell_group(g, s.durable)
        if g.strategy == 0:
            self.ask_strategy(g)
        elif g.strategy >= HASH_TOPIC:
            self.enroll(g, s)
        return 0

    cdef int tell_group(self, Group* g, bint durable) except -1:
        # siblings learn how many local members the group has
        if self.peers.interest is None:
            return 0
        work(2 * PYTHON)
        self.peers.interest.change(
            filter_text(g.filter)[:g.filter.length], g.name[:g.name_length], g.members.count, durable,
            g.members.online, g.full and g.members.online)
        self.peers.links_due = True
        return 0

    cdef int tell_online(self, Session s) except -1:
        # it came online or went offline: one change per group, gathered with the others of the tick. Of a session with
        # many subscriptions in slices: a sibling that does not know yet is refused, and chooses again
        cdef bint waits = s.told_left != 0
        cdef int64_t left = self.back_pressure.left
        s.told_left = s.own.count
        if s.own.count <= TOLD_AT_ONCE:
            self.back_pressure.left = s.own.count * <int64_t>(PLACE + TELL) + 1
            self.tell_on(s)
            self.back_pressure.left = left
        elif not waits:
            pointers_push(&self.bounding.tellers, s)
            self.state.unfinished = True
        return 0

    cdef bint tell_on(self, Session s) except -1:
        # (one that is removed meanwhile leaves its place to the last one, which has had its turn)
        cdef Membership* e
        s.told_left = min(s.told_left, s.own.count)
        while s.told_left and self.back_pressure.left > 0:
            s.told_left -= 1
            work(PLACE)
            self.back_pressure.left -= PLACE
            e = &s.own.items[s.told_left]
            if e.group == NULL:
                continue
            self.back_pressure.left -= TELL
            self.tell_group(e.group, s.durable)
            if e.group.strategy >= HASH_TOPIC:
                self.enroll(e.group, s)
        return s.told_left == 0

    cdef int note_full(self, Group* g) except -1:
        # no online member here can take a message: siblings pass this worker over, until it is looked at again
        if g.full or g.members.online == 0 or self.peers.interest is None:
            return 0
        g.full = True
        self.tell_group(g, False)
        if not self.full_groups:
            self.state.timers.call(self.state.now_ms + LOOK_AGAIN_MS, self.look_again)
        self.full_groups.append(g.number)
        return 0

    def look_again(self):
        """Groups that were full: tell the siblings of those that have room now."""
        cdef list numbers = self.full_groups
        cdef Group* g
        cdef uint32_t i
        self.full_groups = []
        for number in numbers:
            work(2 * VISIT)
            g = self.subscriptions.groups.numbered(number)
            if g == NULL:
                continue
            g.full = g.members.online != 0
            for i in range(g.members.online):
                work(VISIT)
                if has_room(<Session>g.members.items[i].session, 1, self.limits.outbox_bytes_max):
                    g.full = False
                    break
            if g.full:
                self.full_groups.append(number)
            else:
                self.tell_group(g, False)
        if self.full_groups:
            self.state.timers.call(self.state.now_ms + LOOK_AGAIN_MS, self.look_again)
