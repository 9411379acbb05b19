# cython: language_level=3
"""Topic Filters -> subscribers [MQTT-4.7]. subscriptions.pxd has the call order; this file the structure.

Every Filter is one block (header, its first subscriber, its text) in one hash table keyed by its text: SUBSCRIBE and
the topic of a PUBLISH find the exact Filter there. A Filter with wildcards is in the trie (trie.pyx) as well. Results
are cached by topic (match_cache.pxd); as long as there is no wildcard filter, the hash table serves as the cache.
"""
from os import urandom

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from pyx.core.counters cimport MATCH_DURATION, observe
from pyx.core.hashing cimport HashKey, hash_bytes
from pyx.core.kernel cimport monotonic_ns
from pyx.core.tables cimport (
    Probe, Walk,
    table_first, table_free, table_init, table_insert, table_next, table_prefetch, table_remove, table_walk,
)
from pyx.core.work cimport FILTER, PLACE, VISIT, work
from pyx.matching.arrangements cimport Arrangements
from pyx.matching.filters cimport (
    Filter, Group, Matches, Membership, Memberships, Subscriber, SubscriberList, filter_text,
)
from pyx.matching.match_cache cimport MatchCache
from pyx.matching.memberships cimport SLOT_MASK, drop_formers, own_reserve, own_shrink
from pyx.matching.share_groups cimport SIBLINGS_MAX, ShareGroups, free_group
from pyx.matching.subscriber_lists cimport list_free, list_reserve, list_shrink
from pyx.matching.trie cimport Trie
from pyx.protocol.topics cimport has_wildcard

cdef enum:
    FILTER_BYTES_MAX = 65535
    SAMPLED = 16                            # one of this many matches with the trie is measured


cdef inline bint durable(const Subscriber* subscriber) noexcept nogil:
    return (subscriber.slot_options >> 24 & 3) != 0


@cython.auto_pickle(False)
cdef class Subscriptions:
    def __cinit__(self):
        cdef bytes seed = urandom(sizeof(HashKey))
        memcpy(&self.key, <const char*> seed, sizeof(HashKey))
        self.generation = 1
        table_init(&self.table)
        self.groups = ShareGroups()
        self.groups.key = self.key
        self.arrangements = Arrangements()
        self.arrangements.key = self.key
        self.trie = Trie()
        self.results = MatchCache()

    def __dealloc__(self):
        cdef Walk walk
        cdef Filter* f
        cdef Group* g
        memset(&walk, 0, sizeof(Walk))
        while self.table.directory is not NULL:
            f = <Filter*> table_walk(&self.table, &walk)
            if f is NULL:
                break
            while f.groups is not NULL:
                g = f.groups
                f.groups = g.next
                free_group(g)
            list_free(&f.plain, &f.only)
            free(f)
        table_free(&self.table)
        free(self.formers.items)

    # ------------------------------------------------------------------ Filters

    cdef Filter* find(self, const uint8_t* text, size_t length) noexcept:
        return self.find_hashed(hash_bytes(&self.key, text, length), text, length)

    cdef Filter* find_hashed(self, uint64_t hash_, const uint8_t* text, size_t length) noexcept:
        cdef Probe probe
        cdef Filter* f = <Filter*> table_first(&self.table, hash_, &probe)
        work(FILTER)
        while f is not NULL:
            if f.length == length and memcmp(filter_text(f), text, length) == 0:
                return f
            f = <Filter*> table_next(&probe)
        return NULL

    cdef Filter* hold(self, const uint8_t* text, size_t length) except NULL:
        cdef Filter* f
        if length == 0 or length > FILTER_BYTES_MAX:
            raise ValueError("a Topic Filter has 1 to 65535 bytes")
        f = self.find(text, length)
        if f is not NULL:
            return f
        work(FILTER)
        f = <Filter*> calloc(1, sizeof(Filter) + length)
        if f is NULL:
            raise MemoryError()
        f.hash = hash_bytes(&self.key, text, length)
        f.length = <uint16_t> length
        f.wildcard = has_wildcard(text, length)
        memcpy(<char*> filter_text(f), text, length)
        try:
            table_insert(&self.table, f)
            if f.wildcard:
                self.arrangements.arrange(f)
                try:
                    self.trie.plant(f)
                except MemoryError:
                    self.arrangements.disarrange(f)
                    raise
                self.wildcards += 1
        except MemoryError:
            table_remove(&self.table, f)
            free(f)
            raise
        self.filters += 1
        self.generation += 1
        return f

    cdef void drop(self, Filter* f) noexcept:
        work(FILTER)
        if f.wildcard:
            self.trie.uproot(f)
            self.arrangements.disarrange(f)
            self.wildcards -= 1
        table_remove(&self.table, f)
        self.filters -= 1
        self.generation += 1
        free(f)

    cdef int drop_if_unused(self, Filter* f, Group* g=NULL) except -1:
        if g is not NULL and g.members.count == 0 and g.siblings == 0 and g.enrolled_count == 0:
            self.groups.drop(g)
        if f.plain.count == 0 and f.groups is NULL and f.siblings == 0 and f.index is NULL:
            self.drop(f)
        return 0

    # ------------------------------------------------------------------ subscribers

    cdef void moved(self, Subscriber* subscriber, uint32_t index) noexcept:
        """Update the session's Membership of a Subscriber that moved in its list."""
        cdef Memberships* own = <Memberships*> (<char*> subscriber.session + self.own_offset)
        own.items[subscriber.slot_options & SLOT_MASK].index = index

    cdef int add(
        self, Filter* f, Group* g, void* session, Memberships* own, uint8_t options, uint32_t identifier, bint online
    ) except -1:
        cdef SubscriberList* members = &f.plain if g is NULL else &g.members
        cdef Subscriber* subscriber
        cdef Membership* member
        cdef Py_ssize_t offset = <char*> own - <char*> session
        cdef uint32_t place
        cdef int slot
        if self.count == 0:
            self.own_offset = offset
        elif offset != self.own_offset:
            raise ValueError("Memberships must be a field of the session")
        slot = self.membership(f, g, session, own)
        if slot >= 0:
            place = own.items[slot].index
            subscriber = &members.items[place]
            if place >= members.online and durable(subscriber):
                f.offline_durable -= 1
                if g is not NULL:
                    g.offline_durable -= 1
            subscriber.identifier = identifier
            subscriber.slot_options = <uint32_t> slot | <uint32_t> options << 24
            if place >= members.online and durable(subscriber):
                f.offline_durable += 1
                if g is not NULL:
                    g.offline_durable += 1
            return 0
        own_reserve(own)
        list_reserve(members, &f.only if g is NULL else NULL)
        place = members.count
        members.count += 1
        if online:
            if members.online < place:              # the first offline one moves to the end
                members.items[place] = members.items[members.online]
                self.moved(&members.items[place], place)
                place = members.online
            members.online += 1
        subscriber = &members.items[place]
        subscriber.session = session
        subscriber.identifier = identifier
        subscriber.slot_options = own.count | <uint32_t> options << 24
        if not online and durable(subscriber):
            f.offline_durable += 1
            if g is not NULL:
                g.offline_durable += 1
        member = &own.items[own.count]
        member.since = 0
        member.former = 0
        member.filter = f
        member.group = g
        member.index = place
        own.count += 1
        self.count += 1
        if g is not NULL:
            self.shared += 1
        return 1

    cdef int membership(self, Filter* f, Group* g, void* session, Memberships* own) noexcept:
        """Search the shorter of the two lists that contain the membership."""
        cdef SubscriberList* members = &f.plain if g is NULL else &g.members
        cdef uint32_t i
        if members.count < own.count:
            work(members.count * PLACE)
            for i in range(members.count):
                if members.items[i].session == session:
                    return <int> (members.items[i].slot_options & SLOT_MASK)
        else:
            work(own.count * PLACE)
            for i in range(own.count):
                if own.items[i].filter == f and own.items[i].group == g:
                    return <int> i
        return -1

    cdef void leave_list(self, Filter* f, Group* g, uint32_t index) noexcept:
        cdef SubscriberList* members = &f.plain if g is NULL else &g.members
        cdef uint32_t last
        if index < members.online:
            members.online -= 1
            last = members.online       # the last online one moves here, the last of all to its place
            if index != last:
                members.items[index] = members.items[last]
                self.moved(&members.items[index], index)
            index = last
        elif durable(&members.items[index]):
            f.offline_durable -= 1
            if g is not NULL:
                g.offline_durable -= 1
        members.count -= 1
        last = members.count
        if index != last:
            members.items[index] = members.items[last]
            self.moved(&members.items[index], index)
        list_shrink(members, &f.only if g is NULL else NULL)

    cdef int remove(self, Memberships* own, uint32_t i) except -1:
        cdef Membership gone
        cdef Membership* member
        cdef SubscriberList* members
        cdef Subscriber* subscriber
        if i >= own.count:
            raise IndexError("no such membership")
        gone = own.items[i]
        if gone.former:
            drop_formers(&self.formers, &gone, <uint64_t> -1)
        self.leave_list(gone.filter, gone.group, gone.index)
        own.count -= 1
        self.count -= 1
        if gone.group is not NULL:
            self.shared -= 1
        if i != own.count:
            member = &own.items[i]
            member[0] = own.items[own.count]
            members = &member.filter.plain if member.group is NULL else &member.group.members
            subscriber = &members.items[member.index]
            subscriber.slot_options = subscriber.slot_options & ~<uint32_t> SLOT_MASK | i
        own_shrink(own)
        self.drop_if_unused(gone.filter, gone.group)
        return 0

    cdef int remove_all(self, Memberships* own, bint drop=True) except -1:
        cdef Membership* member
        while own.count:
            work(3 * VISIT)
            own.count -= 1
            self.count -= 1
            member = &own.items[own.count]
            if member.group is not NULL:
                self.shared -= 1
            if member.former:
                drop_formers(&self.formers, member, <uint64_t> -1)
            self.leave_list(member.filter, member.group, member.index)
            if drop:
                self.drop_if_unused(member.filter, member.group)
        free(own.items)
        own.items = NULL
        own.capacity = 0
        return 0

    cdef void set_online(self, Memberships* own, bint plain, bint groups) noexcept:
        cdef SubscriberList* members
        cdef Membership* member
        cdef Subscriber moving
        cdef uint32_t i, place
        work(own.count * (2 * VISIT))
        for i in range(own.count):
            member = &own.items[i]
            members = &member.filter.plain if member.group is NULL else &member.group.members
            if member.index < members.online or not (plain if member.group is NULL else groups):
                continue
            place = members.online
            moving = members.items[member.index]
            if place != member.index:
                members.items[member.index] = members.items[place]
                self.moved(&members.items[member.index], member.index)
                members.items[place] = moving
                member.index = place
            members.online += 1
            if durable(&moving):
                member.filter.offline_durable -= 1
                if member.group is not NULL:
                    member.group.offline_durable -= 1

    cdef void set_offline(self, Memberships* own, bint plain) noexcept:
        cdef SubscriberList* members
        cdef Membership* member
        cdef Subscriber moving
        cdef uint32_t i, place
        work(own.count * (2 * VISIT))
        for i in range(own.count):
            member = &own.items[i]
            members = &member.filter.plain if member.group is NULL else &member.group.members
            if member.index >= members.online or not plain and member.group is NULL:
                continue
            members.online -= 1
            place = members.online
            moving = members.items[member.index]
            if place != member.index:
                members.items[member.index] = members.items[place]
                self.moved(&members.items[member.index], member.index)
                members.items[place] = moving
                member.index = place
            if durable(&moving):
                member.filter.offline_durable += 1
                if member.group is not NULL:
                    member.group.offline_durable += 1

    # ------------------------------------------------------------------ siblings

    cdef int set_sibling(self, Filter* f, int sibling, bint wanted) except -1:
        if sibling < 0 or sibling >= SIBLINGS_MAX:
            raise ValueError("a sibling is numbered 0 to 63")
        if wanted:
            f.siblings |= <uint64_t> 1 << sibling
        else:
            f.siblings &= ~(<uint64_t> 1 << sibling)
            self.drop_if_unused(f)
        return 0

    cdef int set_sibling_members(
        self, Filter* f, Group* g, int sibling, uint32_t members, uint32_t online, bint full
    ) except -1:
        if sibling < 0 or sibling >= SIBLINGS_MAX:
            raise ValueError("a sibling is numbered 0 to 63")
        self.groups.tell(g, sibling, members, online, full)
        if members == 0:
            self.drop_if_unused(f, g)
        return 0

    # ------------------------------------------------------------------ matching

    cdef Matches* single(self, uint64_t hash_, const uint8_t* topic, size_t length) noexcept:
        """Return the result while there is no wildcard filter: as fast as the cache, and without a place in it."""
        self.only = self.find_hashed(hash_, topic, length)
        if self.only is NULL:
            return NULL
        self.simple.generation = self.generation
        self.simple.topic_hash = hash_
        self.simple.count = 1
        self.simple.topic_length = <uint16_t> length
        self.simple.filters = &self.only
        self.simple.topic = <const uint8_t*> filter_text(self.only)
        return &self.simple

    cdef Matches* cached(self, const uint8_t* topic, size_t length) noexcept:
        cdef uint64_t hash_ = hash_bytes(&self.key, topic, length)
        cdef Matches* matches
        if self.wildcards == 0:
            matches = self.single(hash_, topic, length)
            if matches is not NULL:
                return matches
        matches = self.results.lookup(self.generation, hash_, topic, length)
        if matches is NULL:
            table_prefetch(&self.table, hash_)      # for the match that follows
        return matches

    cdef Matches* match(self, const uint8_t* topic, size_t length) except NULL:
        cdef uint64_t hash_ = hash_bytes(&self.key, topic, length)
        cdef Matches* matches
        cdef Filter* f
        cdef uint64_t begun = 0
        cdef Trie trie = self.trie
        if self.wildcards == 0:
            matches = self.single(hash_, topic, length)
            if matches is not NULL:
                return matches
        table_prefetch(&self.table, hash_)
        matches = self.results.lookup(self.generation, hash_, topic, length)
        if matches is not NULL:
            return matches
        if length == 0 or length > FILTER_BYTES_MAX:
            raise ValueError("a Topic Name has 1 to 65535 bytes")
        trie.found_count = 0
        if self.wildcards:
            self.misses += 1
            if self.misses % SAMPLED == 0 and self.counters is not None:
                begun = monotonic_ns()
            trie.reserve(1)
            if self.filters > self.wildcards:
                f = self.find_hashed(hash_, topic, length)
                if f is not NULL:
                    trie.found[0] = f
                    trie.found_count = 1
            trie.walk(topic, length)
            if begun:
                observe(self.counters.at, MATCH_DURATION, monotonic_ns() - begun)
        return self.results.keep(self.generation, hash_, topic, length, trie.found, trie.found_count)
