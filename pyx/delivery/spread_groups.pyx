"""Groups whose members are to be spread over the hosts of a cluster, and members that leave for another host.

A worker knows how many members of a group are online on each worker of its host, and on each other host
(pyx.delivery.enrolling). broker.worker.spreading decides by these numbers who goes where; here is what it needs of
groups and members. Nothing of this runs per message, and groups whose rule does not ask for it are passed over.

A member that is to leave is first *withdrawn*: it stays connected, and is no online member of its groups any more, here
and for all other workers and hosts. So it gets no more of their messages, and can be sent away when it has acknowledged
those that it has.
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from pyx.core.tables cimport PAGE_ENTRIES_MAX, table_page
from pyx.core.work cimport OBJECT, PLACE, VISIT, work
from pyx.delivery.connection cimport Connection, OPEN
from pyx.delivery.enrolling cimport Enrolling
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session
from pyx.matching.filters cimport Group, Membership

cdef enum:
    PEERS_MAX = 64
    LOOKED_AT = 2000            # groups in one call, or up to a page more
    FOUND = 50                  # uneven ones, or up to a page more


@cython.final
cdef class SpreadGroups:
    """The groups of one worker whose members are to be spread."""

    def __cinit__(self, RouterState state not None, Enrolling enrolling not None):
        self.state = state
        self.subscriptions = state.subscriptions
        self.enrolling = enrolling
        self.paging.over = True

    # ------------------------------------------------------------ groups

    def begin(self):
        """Begin a walk over all groups."""
        memset(&self.paging, 0, sizeof(Paging))

    @property
    def is_over(self):
        """Whether the walk has ended."""
        return self.paging.over

    def uneven(self, uint64_t rails):
        """Look at the next groups of the walk, some thousand at most. Return those of which this worker may have more
        members than its part, compared with the hosts of these rails (bit i: the one at place i): [(number, label,
        online members by worker of this host, online members by rail, the lowest place first)]."""
        cdef void* entries[PAGE_ENTRIES_MAX]
        cdef Group* g
        cdef uint32_t i, n, looked_at = 0
        cdef list found = []
        while not self.paging.over and looked_at < LOOKED_AT and len(found) < FOUND:
            n = table_page(&self.subscriptions.groups.named, &self.paging, entries)
            work((n + 1) * VISIT)
            looked_at += n + 1
            for i in range(n):
                g = <Group*>entries[i]
                if g.spread and g.members.online and self.has_surplus(g, rails):
                    found.append((g.number, g.name[:g.label_length], *self.counts(g, rails)))
        return found

    cdef uint64_t online_of(self, const Group* g, uint64_t peers) noexcept:
        cdef uint64_t total = 0
        cdef int p = 0
        work(PEERS_MAX * PLACE)
        peers &= g.siblings_online
        while peers:
            if peers & 1:
                total += g.elsewhere[p].online
            peers >>= 1
            p += 1
        return total

    cdef bint has_surplus(self, const Group* g, uint64_t rails) noexcept:
        # hosts differ by more than one, and this one has more than the least part
        cdef uint64_t here, total, least, most, online
        cdef uint32_t hosts = 1
        cdef int p = 0
        here = total = least = most = g.members.online + self.online_of(g, (<uint64_t>1 << self.state.workers) - 1)
        work(PEERS_MAX * PLACE)
        while rails:
            if rails & 1:
                online = g.elsewhere[p].online if g.siblings >> p & 1 else 0
                total += online
                least = min(least, online)
                most = max(most, online)
                hosts += 1
            rails >>= 1
            p += 1
        return most - least > 1 and here > total // hosts

    cdef tuple counts(self, const Group* g, uint64_t rails):
        cdef list workers = [], others = []
        cdef int p
        work(PEERS_MAX * OBJECT)
        for p in range(PEERS_MAX):
            online = g.elsewhere[p].online if g.siblings >> p & 1 else 0
            if p < self.state.workers:
                workers.append(g.members.online if p == self.state.worker else online)
            elif rails >> p & 1:
                others.append(online)
        return tuple(workers), tuple(others)

    def online(self, uint32_t number):
        """Return how many members of a group are online on this host."""
        cdef Group* g = self.subscriptions.groups.numbered(number)
        work(VISIT)
        if g == NULL:
            return 0
        return g.members.online + self.online_of(g, (<uint64_t>1 << self.state.workers) - 1)

    def is_alone(self, uint32_t number):
        """Return whether a group has one online member on all hosts together."""
        cdef Group* g = self.subscriptions.groups.numbered(number)
        work(VISIT)
        return g != NULL and g.members.online + self.online_of(g, <uint64_t>-1) == 1

    # ------------------------------------------------------------ members

    def members(self, uint32_t number):
        """Return how many members of a group are online on this worker."""
        cdef Group* g = self.subscriptions.groups.numbered(number)
        work(VISIT)
        return 0 if g == NULL else g.members.online

    def member(self, uint32_t number, uint32_t at):
        """Return the session of an online member of a group on this worker, the `at`-th one; None: there are not so
        many. Who leaves is replaced by the last one: who goes from the last one to the first meets each once."""
        cdef Group* g = self.subscriptions.groups.numbered(number)
        work(2 * VISIT)
        if g == NULL or at >= g.members.online:
            return None
        return <Session>g.members.items[at].session

    def groups_of(self, Session s not None, uint32_t most):
        """Return the numbers of the groups of a session whose members are to be spread; None: it has more than `most`
        subscriptions."""
        cdef const Membership* e
        cdef uint32_t i
        cdef list found = []
        if s.own.count > most:
            return None
        work(s.own.count * VISIT)
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL and e.group.spread:
                found.append(e.group.number)
        return found

    def withdraw(self, Session s not None):
        """Let a connected session be no online member of its groups any more."""
        if s.connection is None:
            raise ValueError("a session without a connection is no online member")
        self.enrolling.leaving.add(s)
        self.subscriptions.set_offline(&s.own, False)
        self.enrolling.tell_online(s)

    def rejoin(self, Session s not None):
        """Let a session that was withdrawn be an online member again, if it still is connected."""
        cdef Connection conn = s.connection
        if s not in self.enrolling.leaving:
            return
        self.enrolling.leaving.discard(s)
        if conn is not None and conn.state == OPEN:
            self.subscriptions.set_online(&s.own, False, True)
            self.enrolling.tell_online(s)
