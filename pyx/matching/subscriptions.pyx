# cython: language_level=3
"""Topic Filters -> subscribers [MQTT-4.7]. subscriptions.pxd says what is called when; here is how it is made.

Every Filter is one block (header, its first subscriber, its text) in one hash table keyed by its text: that is how
SUBSCRIBE finds it and how a topic finds its exact Filter. A Filter with wildcards hangs in the trie (trie.pyx)
as well. Results are kept by topic (match_cache.pxd); as long as there is no wildcard filter at all, the hash table is
its own cache.
"""
from os import urandom

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from pyx.core.counters cimport MATCH_DURATION, observe
from pyx.core.hashing cimport HashKey, hash_bytes
from pyx.core.kernel cimport monotonic_ns
from pyx.core.placement cimport fixed_hash
from pyx.core.tables cimport (
    Probe, Walk,
    table_first, table_free, table_init, table_insert, table_next, table_prefetch, table_remove, table_walk,
)
from pyx.core.work cimport FILTER, PLACE, VISIT, work
from pyx.matching.filters cimport (
    Elsewhere, Filter, Former, Formers, Group, Matches, Membership, Memberships, Subscriber, SubscriberList,
    filter_text,
)
from pyx.matching.group_members cimport roster_forget, roster_free
from pyx.matching.match_cache cimport MatchCache
from pyx.matching.trie cimport Trie
from pyx.protocol.topics cimport has_wildcard

cdef enum:
    SIBLINGS_MAX = 64
    SLOT_MASK = 0xFFFFFF                    # of Subscriber.slot_options
    FILTER_BYTES_MAX = 65535
    FORMERS_MAX = 16                        # of a membership
    SAMPLED = 16                            # one in so many matches with the trie is measured


cdef inline bint durable(const Subscriber* subscriber) noexcept nogil:
    return (subscriber.slot_options >> 24 & 3) != 0


cdef inline uint32_t* list_capacity(SubscriberList* members) noexcept nogil:
    """Where an allocated list keeps its capacity: in the item before the first."""
    return &(members.items - 1).identifier


cdef int list_resize(SubscriberList* members, Subscriber* only, uint32_t capacity) except -1:
    """Give the list a block of its own. `only` is the place for one inside the Filter, or NULL."""
    cdef Subscriber* block
    cdef bint inside = members.items is NULL or members.items == only
    block = <Subscriber*> realloc(NULL if inside else members.items - 1, (<size_t> capacity + 1) * sizeof(Subscriber))
    if block is NULL:
        raise MemoryError()
    if inside and members.count:
        memcpy(block + 1, members.items, members.count * sizeof(Subscriber))
    members.items = block + 1
    list_capacity(members)[0] = capacity
    return 0


cdef int list_reserve(SubscriberList* members, Subscriber* only) except -1:
    """Room for one more."""
    if members.items is NULL:
        if only is not NULL:
            members.items = only
            return 0
        return list_resize(members, only, 1)
    if members.items == only:
        return 0 if members.count == 0 else list_resize(members, only, 4)
    if members.count == list_capacity(members)[0]:
        return list_resize(members, only, members.count + (members.count >> 1) + 1)
    return 0


cdef void list_shrink(SubscriberList* members, Subscriber* only) noexcept:
    cdef uint32_t capacity
    cdef Subscriber* block
    if members.count == 0:
        if members.items is not NULL and members.items != only:
            free(members.items - 1)
        members.items = NULL
    elif members.items != only:
        capacity = list_capacity(members)[0]
        if capacity > 8 and members.count < capacity >> 2:
            block = <Subscriber*> realloc(members.items - 1, (<size_t> (capacity >> 1) + 1) * sizeof(Subscriber))
            if block is not NULL:
                members.items = block + 1
                list_capacity(members)[0] = capacity >> 1


cdef int own_reserve(Memberships* own) except -1:
    cdef uint32_t capacity
    cdef Membership* items
    if own.count < own.capacity:
        return 0
    if own.count > SLOT_MASK:
        raise OverflowError("a session has at most 16777216 subscriptions")
    capacity = own.count + (own.count >> 3 if own.count >= 32 else own.count) + 1
    items = <Membership*> realloc(own.items, capacity * sizeof(Membership))
    if items is NULL:
        raise MemoryError()
    own.items = items
    own.capacity = capacity
    return 0


@cython.auto_pickle(False)
cdef class Subscriptions:
    def __cinit__(self):
        cdef bytes seed = urandom(sizeof(HashKey))
        memcpy(&self.key, <const char*> seed, sizeof(HashKey))
        self.generation = 1
        table_init(&self.table)
        table_init(&self.named)
        table_init(&self.arrangements)
        self.groups = {}
        self.trie = Trie()
        self.results = MatchCache()

    def __dealloc__(self):
        cdef Walk walk
        cdef Filter* f
        cdef Group* g
        cdef Arrangement* a
        memset(&walk, 0, sizeof(Walk))
        while self.table.directory is not NULL:
            f = <Filter*> table_walk(&self.table, &walk)
            if f is NULL:
                break
            while f.groups is not NULL:
                g = f.groups
                f.groups = g.next
                self.free_group(g)
            if f.plain.items is not NULL and f.plain.items != &f.only:
                free(f.plain.items - 1)
            free(f)
        memset(&walk, 0, sizeof(Walk))
        while self.arrangements.directory is not NULL:
            a = <Arrangement*> table_walk(&self.arrangements, &walk)
            if a is NULL:
                break
            free(a)
        table_free(&self.table)
        table_free(&self.named)
        table_free(&self.arrangements)
        free(self.formers.items)

    # ------------------------------------------------------------------ Filters and Groups

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
                self.arrange(f)
                try:
                    self.trie.plant(f)
                except MemoryError:
                    self.disarrange(f)
                    raise
                self.wildcards += 1
        except MemoryError:
            table_remove(&self.table, f)
            free(f)
            raise
        self.filters += 1
        self.generation += 1
        return f

    cdef Group* hold_group(self, Filter* f, const uint8_t* name, size_t length) except NULL:
        cdef Group* g
        cdef Group* other
        if length == 0 or length > FILTER_BYTES_MAX:
            raise ValueError("a ShareName has 1 to 65535 bytes")
        g = <Group*> calloc(1, sizeof(Group) + length + 1 + f.length)
        if g is NULL:
            raise MemoryError()
        g.filter = f
        g.name = <char*> (g + 1)
        g.name_length = <uint16_t> length
        memcpy(g.name, name, length)
        g.name[length] = c'/'
        memcpy(g.name + length + 1, filter_text(f), f.length)
        g.label_length = <uint32_t> length + 1 + f.length
        other = self.find_group(<const uint8_t*> g.name, g.label_length)
        if other is not NULL:
            free(g)
            return other
        g.hash = hash_bytes(&self.key, <const uint8_t*> g.name, g.label_length)
        # by its name: a group that vanishes and comes back has copies that belong to it
        g.number = <uint32_t> fixed_hash(<const uint8_t*> g.name, g.label_length)
        while g.number == 0 or g.number in self.groups:
            g.number += 1
        try:
            table_insert(&self.named, g)
        except MemoryError:
            free(g)
            raise
        self.groups[g.number] = <size_t> g
        g.next = f.groups
        if g.next is not NULL:
            g.next.previous = g
        f.groups = g
        return g

    cdef Group* find_group(self, const uint8_t* label, size_t length) noexcept:
        cdef uint64_t hash_ = hash_bytes(&self.key, label, length)
        cdef Probe probe
        cdef Group* g = <Group*> table_first(&self.named, hash_, &probe)
        work(FILTER)
        while g is not NULL and (g.label_length != length or memcmp(g.name, label, length) != 0):
            g = <Group*> table_next(&probe)
        return g

    cdef Group* group_numbered(self, uint32_t number) except? NULL:
        cdef object address = self.groups.get(number)
        return NULL if address is None else <Group*> <size_t> address

    cdef void free_group(self, Group* g) noexcept:
        if g.members.items is not NULL:
            free(g.members.items - 1)
        free(g.elsewhere)
        roster_free(g)
        free(g)

    cdef int drop_group(self, Group* g) except -1:
        del self.groups[g.number]
        table_remove(&self.named, g)
        if g.previous is NULL:
            g.filter.groups = g.next
        else:
            g.previous.next = g.next
        if g.next is not NULL:
            g.next.previous = g.previous
        self.free_group(g)
        return 0

    cdef void drop(self, Filter* f) noexcept:
        work(FILTER)
        if f.wildcard:
            self.trie.uproot(f)
            self.disarrange(f)
            self.wildcards -= 1
        table_remove(&self.table, f)
        self.filters -= 1
        self.generation += 1
        free(f)

    cdef int drop_if_unused(self, Filter* f, Group* g=NULL) except -1:
        if g is not NULL and g.members.count == 0 and g.siblings == 0 and g.roster_count == 0:
            self.drop_group(g)
        if f.plain.count == 0 and f.groups is NULL and f.siblings == 0 and f.index is NULL:
            self.drop(f)
        return 0

    # ------------------------------------------------------------------ arrangements of wildcards

    cdef Arrangement* arrangement(self, uint64_t hash_) noexcept:
        cdef Probe probe
        cdef Arrangement* a = <Arrangement*> table_first(&self.arrangements, hash_, &probe)
        while a is not NULL and a.hash != hash_:
            a = <Arrangement*> table_next(&probe)
        return a

    cdef int arrange(self, const Filter* f) except -1:
        cdef uint64_t hash_ = arrangement_hash(&self.key, <const uint8_t*> filter_text(f), f.length)
        cdef Arrangement* a = self.arrangement(hash_)
        if a is NULL:
            a = <Arrangement*> calloc(1, sizeof(Arrangement))
            if a is NULL:
                raise MemoryError()
            a.hash = hash_
            try:
                table_insert(&self.arrangements, a)
            except MemoryError:
                free(a)
                raise
        a.filters += 1
        return 0

    cdef void disarrange(self, const Filter* f) noexcept:
        cdef Arrangement* a = self.arrangement(arrangement_hash(&self.key, <const uint8_t*> filter_text(f), f.length))
        a.filters -= 1
        if a.filters == 0:
            table_remove(&self.arrangements, a)
            free(a)

    def brings_arrangement(self, const uint8_t[::1] text not None):
        """Whether this valid Topic Filter (without $share) has wildcards, arranged as in no other one."""
        cdef size_t length = text.shape[0]
        if not has_wildcard(&text[0], length):
            return False
        return self.arrangement(arrangement_hash(&self.key, &text[0], length)) is NULL

    @property
    def arrangement_count(self):
        return self.arrangements.count

    # ------------------------------------------------------------------ subscribers

    cdef void moved(self, Subscriber* subscriber, uint32_t index) noexcept:
        """A Subscriber has a new place in its list: its session's Membership follows."""
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
            if members.online < place:              # the first of the offline ones makes room
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
        """Looks through the shorter of the two lists it must stand in."""
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

    cdef int add_former(self, Membership* member, uint8_t options, uint64_t since, uint64_t up_to) except -1:
        cdef uint32_t place, i = member.former, last = 0, n = 0
        cdef Former* former
        while i:
            last = i
            i = self.formers.items[i].next
            n += 1
        if n >= FORMERS_MAX:                # rather what was not for it than nothing of what was
            former = &self.formers.items[last]
            former.up_to = up_to
            former.options = max(former.options & 3, options & 3) | former.options & options & 4
            return 0
        place = self.former_place()
        former = &self.formers.items[place]
        former.options, former.since, former.up_to, former.next = options, since, up_to, 0
        if last:
            self.formers.items[last].next = place
        else:
            member.former = place
        return 0

    cdef uint32_t former_place(self) except 0:
        cdef Formers* all_ = &self.formers
        cdef uint32_t capacity, place = all_.free
        if place:
            all_.free = all_.items[place].next
        else:
            if all_.begun + 1 >= all_.capacity:         # 0 is no place
                capacity = all_.capacity * 2 if all_.capacity else 16
                items = <Former*> realloc(all_.items, capacity * sizeof(Former))
                if items is NULL:
                    raise MemoryError()
                all_.items = items
                all_.capacity = capacity
            all_.begun += 1
            place = all_.begun
        all_.count += 1
        return place

    cdef void drop_formers(self, Membership* member, uint64_t up_to) noexcept:
        cdef Formers* all_ = &self.formers
        cdef uint32_t first = member.former
        while first and all_.items[first].up_to <= up_to:
            member.former = all_.items[first].next
            all_.items[first].next = all_.free
            all_.free = first
            all_.count -= 1
            first = member.former
        if all_.count == 0 and all_.items is not NULL:
            free(all_.items)
            memset(all_, 0, sizeof(Formers))

    cdef void leave_list(self, Filter* f, Group* g, uint32_t index) noexcept:
        cdef SubscriberList* members = &f.plain if g is NULL else &g.members
        cdef uint32_t last
        if index < members.online:
            members.online -= 1
            last = members.online       # the last online one comes here and leaves its place to the last of all
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
        cdef Membership* items
        if i >= own.count:
            raise IndexError("no such membership")
        gone = own.items[i]
        self.drop_formers(&gone, <uint64_t> -1)
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
        if own.count == 0:
            free(own.items)
            own.items = NULL
            own.capacity = 0
        elif own.capacity > 32 and own.count < own.capacity >> 2:
            items = <Membership*> realloc(own.items, (own.capacity >> 1) * sizeof(Membership))
            if items is not NULL:
                own.items = items
                own.capacity >>= 1
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
            self.drop_formers(member, <uint64_t> -1)
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
        cdef uint64_t bit
        if sibling < 0 or sibling >= SIBLINGS_MAX:
            raise ValueError("a sibling is numbered 0 to 63")
        if members:
            if g.elsewhere is NULL:
                g.elsewhere = <Elsewhere*> calloc(SIBLINGS_MAX, sizeof(Elsewhere))
                if g.elsewhere is NULL:
                    raise MemoryError()
            bit = <uint64_t> 1 << sibling
            g.elsewhere[sibling].members = members
            g.elsewhere[sibling].online = online
            g.siblings |= bit
            g.siblings_online = g.siblings_online | bit if online else g.siblings_online & ~bit
            g.siblings_full = g.siblings_full | bit if full else g.siblings_full & ~bit
        else:
            self.leave_group(g, sibling, 0)
            self.drop_if_unused(f, g)
        return 0

    cdef void leave_group(self, Group* g, int sibling, uint32_t told) noexcept:
        """A sibling has no members of the group any more, but for those that were told with this number (0: none)."""
        cdef uint64_t bit = <uint64_t> 1 << sibling
        self.leave_roster(g, sibling, told)
        if g.siblings & bit == 0:
            return
        g.siblings &= ~bit
        g.siblings_online &= ~bit
        g.siblings_full &= ~bit
        g.elsewhere[sibling].members = g.elsewhere[sibling].online = 0
        if g.siblings == 0:
            free(g.elsewhere)
            g.elsewhere = NULL

    cdef void leave_roster(self, Group* g, int sibling, uint32_t told) noexcept:
        if g.roster is not NULL:
            roster_forget(g, <uint32_t> sibling, told)

    # ------------------------------------------------------------------ matching

    cdef Matches* single(self, uint64_t hash_, const uint8_t* topic, size_t length) noexcept:
        """The result without any wildcard filter: as quick as a look into the cache, and takes no place there."""
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
