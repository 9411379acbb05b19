# cython: language_level=3
"""Subscriptions as Python sees them, for the tests alone: bytes in, lists and tuples out, sessions by name."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from pyx.matching.group_members cimport enrolled_forget, enrolled_put, enrolled_strike
from pyx.matching.interest cimport WholeInterest
from pyx.matching.subscriptions cimport (
    Filter, Group, Matches, Membership, Memberships, SubscriberList, Subscriptions, filter_text,
)


cdef class Session:
    cdef Memberships own
    cdef readonly str name
    cdef readonly bint online

    def __cinit__(self, str name, bint online=True):
        self.name = name
        self.online = online

    def __dealloc__(self):
        free(self.own.items)

    def __len__(self):
        return self.own.count


cdef class SubscriptionsAdapter:
    cdef Subscriptions subscriptions
    cdef list sessions                  # they must live as long as the structure points to them

    def __cinit__(self):
        self.subscriptions = Subscriptions()
        self.sessions = []

    @property
    def generation(self):
        return self.subscriptions.generation

    @property
    def count(self):
        return self.subscriptions.count

    @property
    def filters(self):
        return self.subscriptions.filters

    def session(self, str name, bint online=True):
        cdef Session session = Session(name, online)
        self.sessions.append(session)
        return session

    cdef Filter* filter(self, bytes text) except NULL:
        return self.subscriptions.hold(<const uint8_t*> text, len(text))

    cdef Group* group(self, Filter* f, bytes name) except? NULL:
        if name is None:
            return NULL
        return self.subscriptions.groups.hold(f, <const uint8_t*> name, len(name))

    def hold(self, bytes text):
        self.filter(text)

    def drop_if_unused(self, bytes text):
        cdef Filter* f = self.subscriptions.find(<const uint8_t*> text, len(text))
        if f is not NULL:
            self.subscriptions.drop_if_unused(f)

    def add(self, Session session, bytes text, bytes group=None, uint8_t options=0, uint32_t identifier=0):
        cdef Filter* f = self.filter(text)
        cdef Group* g = self.group(f, group)
        return self.subscriptions.add(
            f, g, <void*> session, &session.own, options, identifier, session.online
        ) == 1

    def add_foreign(self, Session session, Session other, bytes text):
        """What a caller must never do: the Memberships of somebody else."""
        cdef Filter* f = self.filter(text)
        self.subscriptions.add(f, NULL, <void*> session, &other.own, 0, 0, True)

    def remove(self, Session session, bytes text, bytes group=None):
        cdef Filter* f = self.subscriptions.find(<const uint8_t*> text, len(text))
        cdef Group* g
        cdef int place
        if f is NULL:
            return False
        g = self.group(f, group)
        place = self.subscriptions.membership(f, g, <void*> session, &session.own)
        if place < 0:
            self.subscriptions.drop_if_unused(f, g)
            return False
        self.subscriptions.remove(&session.own, place)
        return True

    def remove_all(self, Session session):
        self.subscriptions.remove_all(&session.own)

    def set_online(self, Session session):
        session.online = True
        self.subscriptions.set_online(&session.own, True, True)

    def set_offline(self, Session session):
        session.online = False
        self.subscriptions.set_offline(&session.own, True)

    def set_sibling(self, bytes text, int sibling, bint wanted):
        self.subscriptions.set_sibling(self.filter(text), sibling, wanted)

    def set_sibling_members(self, bytes text, bytes group, int sibling, uint32_t members):
        cdef Filter* f = self.filter(text)
        self.subscriptions.set_sibling_members(f, self.group(f, group), sibling, members, members, False)

    def name_sibling(self, WholeInterest whole, bytes text, bytes group=None, uint32_t members=1):
        """As Siblings.set_interest does it while all of a sibling's interest is told."""
        cdef Filter* f = self.filter(text)
        cdef Group* g = self.group(f, group)
        if g is NULL:
            whole.name_filter(f)
            self.subscriptions.set_sibling(f, whole.sibling, True)
        else:
            whole.name_group(g)
            self.subscriptions.set_sibling_members(f, g, whole.sibling, members, members, False)

    def forget_some(self, WholeInterest whole):
        return bool(whole.forget_some(self.subscriptions))

    def put_member(self, bytes text, bytes group, uint64_t identity, uint64_t since, uint32_t worker, uint32_t told):
        enrolled_put(self.group(self.filter(text), group), identity, since, NULL, worker, told)

    def strike_member(self, bytes text, bytes group, uint64_t identity, uint32_t worker):
        enrolled_strike(self.group(self.filter(text), group), identity, NULL, worker)

    def forget_members(self, bytes text, bytes group, uint32_t worker, uint32_t told):
        enrolled_forget(self.group(self.filter(text), group), worker, told)

    def enrolled(self, bytes text, bytes group):
        """[(identity, worker, since, told)]"""
        cdef Group* g = self.group(self.filter(text), group)
        return [
            (g.enrolled[i].identity, g.enrolled[i].worker, g.enrolled[i].since, g.enrolled[i].told)
            for i in range(g.enrolled_count)
        ]

    def set_index(self, bytes text, bint wanted):
        cdef Filter* f = self.filter(text)
        f.index = <void*> self if wanted else NULL
        self.subscriptions.drop_if_unused(f)

    cdef list texts(self, Matches* matches):
        cdef uint32_t i
        return [
            filter_text(matches.filters[i])[:matches.filters[i].length] for i in range(matches.count)
        ]

    def match(self, bytes topic):
        cdef Matches* matches = self.subscriptions.match(<const uint8_t*> topic, len(topic))
        assert matches.generation == self.subscriptions.generation
        assert (<const char*> matches.topic)[:matches.topic_length] == topic
        return self.texts(matches)

    def cached(self, bytes topic):
        cdef Matches* matches = self.subscriptions.cached(<const uint8_t*> topic, len(topic))
        return None if matches is NULL else self.texts(matches)

    def match_count(self, bytes topic):
        return self.subscriptions.match(<const uint8_t*> topic, len(topic)).count

    cdef tuple members(self, SubscriberList* members):
        """(online, offline), each a set of (session, identifier, options)."""
        cdef uint32_t i
        cdef list all_ = [
            (
                (<Session> members.items[i].session).name,
                members.items[i].identifier,
                members.items[i].slot_options >> 24,
            )
            for i in range(members.count)
        ]
        assert (members.items is NULL) == (members.count == 0)
        assert members.online <= members.count
        return sorted(all_[:members.online]), sorted(all_[members.online:])

    def describe(self, bytes text):
        """(plain members, siblings, offline_durable, {group: (members, {sibling: count})}) or None."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*> text, len(text))
        cdef Group* g
        cdef dict groups = {}
        cdef int i
        if f is NULL:
            return None
        g = f.groups
        while g is not NULL:
            assert g.filter == f
            elsewhere = {}
            if g.elsewhere is not NULL:
                elsewhere = {i: g.elsewhere[i].members for i in range(64) if g.elsewhere[i].members}
            assert sum(<uint64_t> 1 << i for i in elsewhere) == g.siblings == g.siblings_online
            assert self.subscriptions.groups.numbered(g.number) == g
            groups[g.name[:g.name_length]] = (self.members(&g.members), elsewhere)
            g = g.next
        siblings = {i for i in range(64) if f.siblings >> i & 1}
        return self.members(&f.plain), siblings, f.offline_durable, groups

    def check(self):
        """Every Membership and its Subscriber name each other."""
        cdef Session session
        cdef Membership* member
        cdef SubscriberList* members
        cdef uint32_t i
        total = 0
        for session in self.sessions:
            total += session.own.count
            for i in range(session.own.count):
                member = &session.own.items[i]
                members = &member.filter.plain if member.group is NULL else &member.group.members
                assert member.index < members.count
                assert members.items[member.index].session == <void*> session
                assert members.items[member.index].slot_options & 0xFFFFFF == i
                assert (member.index < members.online) == session.online
        assert total == self.subscriptions.count
