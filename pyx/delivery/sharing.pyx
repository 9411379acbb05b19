"""Share groups: each message goes to one member of a group [MQTT 5, 4.8.2].

The publisher's worker chooses: a member of its own, or a sibling, to which it sends an entry that names the group; the
sibling then chooses among its members by the same strategy. Three attempts are made, over all workers each time: among
members that can take the message now (online, with room in window and outbox); among online members; among all, and
then it waits for the chosen one. A worker knows of members elsewhere:

- how many there are and how many are online, and whether all of these are full: enough for round_robin and
  least_inflight, which choose a worker in proportion to online members;
- for hash_topic, hash_client and sticky every member by name (pyx.matching.group_members): all workers choose the same
  one.

Members, and the siblings' knowledge of them, are kept by pyx.delivery.enrolling.

This knowledge may be slightly out of date. A worker without a member, or with offline members only, refuses the entry
with its link ack, and the sender chooses again (pyx.delivery.handing_on). The same is done with entries that a worker
had not acknowledged when it died: at QoS 1, and at QoS 2 if they were never sent. Copies for a group carry its number:
those that wait for a member are handed on when it leaves, and those sent to it at QoS 1 and not acknowledged when its
session ends.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core import counters as count

from pyx.core.placement cimport fixed_hash, mixed
from pyx.core.work cimport PLACE, VISIT, work
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.connection cimport Connection
from pyx.delivery.enrolling cimport (
    Enrolling, HASH_CLIENT, HASH_TOPIC, LEAST_INFLIGHT, STICKY, has_room, subscriber_of,
)
from pyx.delivery.fanout cimport FanOut
from pyx.delivery.peers cimport Peers
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport REFUSED_NO_MEMBER, REFUSED_OFFLINE, RouterState, put_identifier
from pyx.delivery.session cimport SHARED_COPY, Session
from pyx.matching.filters cimport Group, Member, Subscriber
from pyx.matching.subscriptions cimport SubscriberList
from pyx.protocol.message cimport Content
from pyx.storage.entries cimport Choice, ENTRY_RETAINED_ONLY, Entry

cdef enum:
    HERE = -1                       # this worker, instead of a sibling
    NOBODY = -2
    LEAST_OF = 32                   # members that least_inflight compares at once


@cython.final
cdef class Sharing:
    """The choice of workers and members."""

    def __cinit__(self, RouterState state not None, PublishInHand in_hand not None, Peers peers not None,
                  Enrolling enrolling not None, Backlog backlog not None, FanOut fanout not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.subscriptions = state.subscriptions
        self.in_hand = in_hand
        self.peers = peers
        self.enrolling = enrolling
        self.backlog = backlog
        self.fanout = fanout

    # ------------------------------------------------------------ which worker

    cdef int share(self, Group* g, uint64_t* plain) except -1:
        # send the publish in hand to one member of the group: 1, or 0: there is none. plain: siblings that get a plain
        # copy as well; a chosen one gets both with one entry
        if g.siblings == 0:
            return self.share_here(g)
        if g.strategy == 0:
            self.enrolling.ask_strategy(g)
        return self.choose_anywhere(g, self.key_for(g) if g.strategy >= HASH_TOPIC else 0, 0, 0, plain)

    cdef int choose_anywhere(self, Group* g, uint64_t key, uint64_t offline, uint64_t without,
                             uint64_t* plain) except -1:
        # a member of this host, unless none of them is online, and one of another host is; or, if the group is even, of
        # any host. offline, without: peers that reported no online member, or no member
        cdef uint64_t rails = g.siblings & self.peers.rails & ~without
        cdef uint64_t live = g.siblings_online & self.peers.live_for_interest & ~offline & ~without
        cdef int chosen
        if rails == 0 or not g.even and (g.members.online or live & ~rails):
            return self.choose(g, key, offline, without | rails, plain)
        if g.strategy == STICKY:
            key = g.number              # the same host for all
        chosen = self.weigh(g, live & rails, self.online_here(g, live & ~rails) if g.even else 0, True, key)
        if chosen == NOBODY and g.members.count == 0 and g.siblings & ~without & ~rails == 0:
            chosen = self.weigh(g, rails, 0, False, key)
        if chosen < 0:
            return self.choose(g, key, offline, without | rails, plain)
        g.turn += 1
        return self.send(g, chosen, key, True, plain)

    cdef uint32_t online_here(self, Group* g, uint64_t siblings) noexcept:
        # online members of this host, on this worker and these siblings
        cdef uint32_t total = g.members.online
        cdef int p = 0
        while siblings:
            if siblings & 1:
                total += g.elsewhere[p].online
            siblings >>= 1
            p += 1
        return total

    cdef int share_here(self, Group* g) except -1:
        # send it to one of this worker's members
        if g.strategy == 0:
            self.enrolling.ask_strategy(g)
        return self.choose_here(g, self.key_for(g) if g.strategy >= HASH_TOPIC else 0, True)

    cdef int choose(self, Group* g, uint64_t key, uint64_t offline, uint64_t without, uint64_t* plain) except -1:
        # the same over the workers of this host
        cdef uint64_t live = g.siblings_online & self.peers.live_for_interest & ~offline & ~without
        cdef bint insist = False
        cdef int worker
        g.turn += 1
        if g.strategy >= HASH_TOPIC and g.enrolled_count:
            return self.choose_ranked(g, key, live, g.siblings & ~without, plain)
        worker = self.weigh(g, live & ~g.siblings_full, g.members.online, True, 0)
        if worker == HERE:
            if self.take_here(g, key):
                return 1
            self.enrolling.note_full(g)
            worker = self.weigh(g, live & ~g.siblings_full, 0, True, 0)
        if worker == NOBODY:
            worker = self.weigh(g, live, g.members.online, True, 0)
        if worker == NOBODY:
            worker = self.weigh(g, g.siblings & ~without, g.members.count, False, 0)
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
            self.enrolling.note_full(g)
            m = self.best(g, key, live, ONLINE)
        if m == NULL:
            m = self.best(g, key, all_, ANYBODY)
            insist = True
        if m == NULL:
            return 0
        if m.session != NULL:
            return self.hand_to(g, <Session>m.session)
        return self.send(g, <int>m.worker, key, insist, plain)

    cdef int weigh(self, Group* g, uint64_t mask, uint32_t here, bint online, uint64_t key) noexcept:
        # choose a peer of `mask`, HERE or NOBODY, in proportion to members: this worker has `here` of them. In turn, or
        # by a key other than 0
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
        at = (key if key else g.turn) % total
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
        # an entry names one group only, so that a refusal concerns one group
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
        # 1: sent to a member (or queued for one, or dropped with a reason); 0: no member, or, unless the sender
        # insists, none online
        if g.members.count == 0 or self.in_hand.content.qos and g.members.online == 0 and not insist:
            return 0
        if self.take_here(g, key):
            return 1
        if g.siblings:
            self.enrolling.note_full(g)
        return self.queue_here(g, key)

    cdef bint take_here(self, Group* g, uint64_t key) except -1:
        # send it to a member of this worker that can take it now
        cdef SubscriberList* l = &g.members
        cdef Subscriber* sub
        cdef Session s
        cdef Member* m
        cdef uint32_t k
        cdef uint8_t qos
        if l.online == 0:
            return False
        if g.strategy >= HASH_TOPIC and g.enrolled_count:
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
        # the member with the fewest messages in flight or queued (at QoS 0: the shortest outbox) among LEAST_OF from
        # `start` on; the first of equal ones
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
        # among the members known by name, on this worker and the siblings of `mask`: for hash_* the one with the
        # highest weight (rendezvous hashing: a member that joins or leaves moves only its own share), for sticky the
        # one online for the longest time. Room is checked last: this reads the session
        cdef Member* m
        cdef Member* found = NULL
        cdef uint64_t weight, highest = 0
        cdef uint32_t i
        work(g.enrolled_count * (4 * PLACE))
        for i in range(g.enrolled_count):
            m = &g.enrolled[i]
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

    cdef int hand_to(self, Group* g, Session s) except -1:
        # send it to this member: now, or when it has room
        cdef Subscriber* sub = subscriber_of(self.subscriptions, g, s)
        cdef uint8_t qos
        if sub == NULL:
            raise AssertionError("an enrolled member that is none of the group")
        self.in_hand.sharing = g.number
        qos = <uint8_t>(sub.slot_options >> 24) & 3
        if has_room(s, min(qos, self.in_hand.content.qos), self.limits.outbox_bytes_max):
            return self.give(sub, s)
        if self.in_hand.content.qos and self.wait_for(sub, s):
            return 1
        return self.queue_here(g, self.key_for(g))

    cdef int give(self, Subscriber* sub, Session s) except -1:
        # the caller has checked for room
        cdef const Content* c = self.in_hand.content
        cdef uint8_t options = <uint8_t>(sub.slot_options >> 24), qos = options & 3
        cdef uint8_t[8] ids
        if qos > c.qos:
            qos = c.qos
        return self.fanout.deliver(s, qos, 0x30 | qos << 1 | (c.retain if options & 8 else 0), ids,
                                   put_identifier(ids, sub.identifier) if sub.identifier else 0, SHARED_COPY)

    cdef int queue_here(self, Group* g, uint64_t key) except -1:
        # no member can take it now: queue it for one, for an online one if there is any
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
        if g.strategy >= HASH_TOPIC and g.enrolled_count:
            m = self.best(g, key, 0, ONLINE if l.online else ANYBODY)
            if m != NULL and self.wait_for(
                    subscriber_of(self.subscriptions, g, <Session>m.session), <Session>m.session):
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
        # queue it for this member, within its limits. False: full, or the member was granted QoS 0
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
        # the key by which members are ranked for the publish in hand
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

    # ------------------------------------------------------------ chosen by a peer

    cdef int chosen_host(self, Entry* e, uint64_t* plain) except -1:
        # another host has chosen this one for a group: choose among its workers. 0, or the reason of the refusal
        cdef Group* g = self.subscriptions.groups.find(e.group, e.group_len)
        if g == NULL or g.members.count == 0 and g.siblings & ~self.peers.rails == 0:
            return REFUSED_NO_MEMBER
        if g.strategy == 0:
            self.enrolling.ask_strategy(g)
        self.know_publisher(g, e)
        return 0 if self.choose(g, e.key, 0, self.peers.rails, plain) else REFUSED_NO_MEMBER

    cdef int know_publisher(self, const Group* g, const Entry* e) except -1:
        if g.strategy == HASH_CLIENT and self.in_hand.publisher is None:
            self.in_hand.publisher = e.key              # kept in case the message is handed on
            if self.in_hand.held is not None:
                self.in_hand.held.publisher = self.in_hand.publisher
        return 0

    cdef int chosen(self, Entry* e) except -1:
        # a sibling has chosen this worker for a group: choose the member. 0, or the reason of the refusal
        cdef Group* g = self.subscriptions.groups.find(e.group, e.group_len)
        if g == NULL or g.members.count == 0:
            return REFUSED_NO_MEMBER
        if g.strategy == 0:
            self.enrolling.ask_strategy(g)
        self.know_publisher(g, e)
        return 0 if self.choose_here(g, e.key, e.insist) else REFUSED_OFFLINE
