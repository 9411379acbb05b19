"""Members of share groups: the strategy of a group, its local members, and the announcements of these to siblings.

Siblings are told how many members there are and how many are online, and whether all of these are full (announced once
they are, and checked again every LOOK_AGAIN_MS); for groups with the strategies hash_topic, hash_client and sticky
every member by name, and since when it is online (pyx.matching.group_members).
"""
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyx.core.work cimport OBJECT, PLACE, PYTHON, VISIT, work
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.bounding cimport Bounding, Teller
from pyx.delivery.peers cimport Peers
from pyx.delivery.router_state cimport RouterState, pointers_push
from pyx.delivery.session cimport Session
from pyx.matching.filters cimport Group, Membership, filter_text
from pyx.matching.group_members cimport enrolled_put, enrolled_strike

cdef enum:
    LOOK_AGAIN_MS = 100             # interval at which full groups are checked again
    TOLD_AT_ONCE = 500              # subscriptions of a session that goes online or offline
    TELL = 4 * PYTHON               # an announcement to siblings, with its bytes


@cython.final
cdef class Enrolling(Teller):
    """The members of this worker's share groups."""

    def __cinit__(self, RouterState state not None, Peers peers not None, BackPressure back_pressure not None,
                  Bounding bounding not None):
        self.state = state
        self.limits = state.limits
        self.subscriptions = state.subscriptions
        self.peers = peers
        self.back_pressure = back_pressure
        self.bounding = bounding
        self.full_groups = []
        self.leaving = set()

    cdef int ask_rule(self, Group* g) except -1:
        # ask the handler for its strategy, and whether it waits
        work(PYTHON)
        if self.strategy_of is None:
            return ROUND_ROBIN
        return self.strategy_of(g.name[:g.name_length], filter_text(g.filter)[:g.filter.length])

    cdef int ask_strategy(self, Group* g) except -1:
        # once in the life of a group, when its first member has joined
        cdef int answer = self.ask_rule(g)
        cdef uint32_t i
        g.strategy = answer & STRATEGY_MASK
        g.waits = answer & WAITS != 0
        g.even = answer & EVEN != 0
        g.spread = answer & SPREAD != 0
        if g.strategy >= HASH_TOPIC:
            for i in range(g.members.count):
                self.enroll(g, <Session>g.members.items[i].session)
        return 0

    def strategies_changed(self):
        """Apply changed strategies of the configuration: return an iterator that updates some of the groups with each
        step. A second call replaces the former iterator."""
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
        # members to be enrolled or struck before the new strategy applies, or is complete; None: there are none
        cdef Group* g = self.subscriptions.groups.numbered(number)
        cdef int answer
        cdef uint32_t i, enrolled = 0
        if g == NULL:
            return None
        answer = self.ask_rule(g)
        work(g.enrolled_count * PLACE)
        for i in range(g.enrolled_count):
            enrolled += g.enrolled[i].session != NULL
        if answer & STRATEGY_MASK >= HASH_TOPIC or enrolled == 0:
            g.strategy = answer & STRATEGY_MASK
            g.waits = answer & WAITS != 0
            g.even = answer & EVEN != 0
            g.spread = answer & SPREAD != 0
        if enrolled == (g.members.count if g.strategy >= HASH_TOPIC else 0) and g.strategy == answer & STRATEGY_MASK:
            return None
        work(g.members.count * OBJECT)
        return [<Session>g.members.items[i].session for i in range(g.members.count)]

    cdef uint32_t name_members(self, number, list members, Py_ssize_t most) except? 0:
        # enroll or strike the last members of the list, and remove them from it: returns how many. Some may have left
        cdef Group* g = self.subscriptions.groups.numbered(number)
        cdef bint is_named = g != NULL and self.ask_rule(g) & STRATEGY_MASK >= HASH_TOPIC
        cdef Session s
        most = min(most, len(members))
        if g != NULL:
            for s in members[len(members) - most:]:
                if subscriber_of(self.subscriptions, g, s) == NULL:
                    continue
                if is_named:
                    self.enroll(g, s)
                else:
                    self.strike(g, s)
        del members[len(members) - most:]
        return <uint32_t>most

    cdef int enroll(self, Group* g, Session s) except -1:
        # make this member known by name, here and to the siblings
        cdef bint is_online = s.connection is not None and not (self.leaving and s in self.leaving)
        cdef uint64_t since = self.state.new_number() if is_online else 0
        enrolled_put(g, s.identity, since, <void*>s, <uint32_t>self.state.worker, 0)
        if self.peers.interest is not None:
            work(PYTHON)
            self.peers.interest.member(
                filter_text(g.filter)[:g.filter.length], g.name[:g.name_length], s.identity, True, since)
            self.peers.links_due = True
        return 0

    cdef int strike(self, Group* g, Session s) except -1:
        # call it before the membership ends
        if g.strategy < HASH_TOPIC:
            return 0
        enrolled_strike(g, s.identity, <void*>s, <uint32_t>self.state.worker)
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
        # tell siblings how many local members the group has
        if self.peers.interest is None:
            return 0
        work(2 * PYTHON)
        text, name = filter_text(g.filter)[:g.filter.length], g.name[:g.name_length]
        self.peers.interest.change(
            text, name, g.members.count, durable, g.members.online, g.full and g.members.online)
        self.peers.links_due = True
        return self.peers.tell_hosts_group(g, text, name)

    cdef int tell_online(self, Session s) except -1:
        # a session has gone online or offline: one change per group, gathered with the others of the tick. In slices
        # for many subscriptions: entries of a sibling that does not know yet are refused, and it chooses again
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
        # (a subscription removed meanwhile is replaced by the last one, which was done already)
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
        # no online member here can take a message: siblings skip this worker until the next check
        if g.full or g.members.online == 0 or self.peers.interest is None:
            return 0
        g.full = True
        self.tell_group(g, False)
        if not self.full_groups:
            self.state.timers.call(self.state.now_ms + LOOK_AGAIN_MS, self.look_again)
        self.full_groups.append(g.number)
        return 0

    def look_again(self):
        """Check the groups that were full, and tell siblings which of them have room now."""
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
