# cython: language_level=3
"""Topic Filters -> subscribers: exact filters by hash, wildcard filters by an iterative trie.

A Filter exists as long as it has a user: a local subscriber, a member of a share group, a sibling, or a log index.
Matching returns Filters and never delivers. `generation` changes with the set of Filters (not when a subscriber joins
an existing one), so the validity of a cached result is checked by one integer.

Call order: SUBSCRIBE: hold -> add; UNSUBSCRIBE: find -> membership -> remove (drops the Filter with its last user);
CONNECT of a session with subscriptions: set_online with its memberships; end of the connection: set_offline.

Lifetimes: Filter*, Group* are valid until the call that removes their last user returns. Matches* is valid until the
next call of any method of the same Subscriptions. Session pointers are borrowed: the session removes itself before it
dies. Subscriber* may move whenever a subscriber of the same Filter or Group is added, removed, set online or offline.

A session's Memberships are a field of the session: `own` has the same offset from `session` in every call (recorded by
the first add), because the Membership of a Subscriber that moves must be found from its session.
"""
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.hashing cimport HashKey
from pyx.core.tables cimport Table
from pyx.matching.arrangements cimport Arrangements
from pyx.matching.filters cimport (
    Filter, Formers, Group, Matches, Membership, Memberships, Subscriber, SubscriberList, filter_text,
)
from pyx.matching.match_cache cimport MatchCache
from pyx.matching.share_groups cimport ShareGroups
from pyx.matching.trie cimport Trie


@cython.final
cdef class Subscriptions:
    cdef readonly uint64_t generation
    cdef readonly uint64_t count        # local subscriptions (memberships)
    cdef readonly uint64_t shared       # local subscriptions in share groups
    cdef readonly uint64_t filters      # Filters alive
    cdef readonly uint64_t wildcards    # Filters that contain + or #

    cdef Row counters                   # for the durations of one match in SAMPLED; None = not measured
    cdef uint32_t misses
    cdef HashKey key
    cdef Py_ssize_t own_offset          # offset of the Memberships in a session
    cdef Table table                    # every Filter, by its text
    cdef Trie trie
    cdef readonly Arrangements arrangements     # of wildcard filters
    cdef MatchCache results
    cdef ShareGroups groups
    cdef Formers formers
    cdef Matches simple                 # the result while there are no wildcard filters
    cdef Filter* only                   # simple.filters points here

    cdef Filter* find(self, const uint8_t* text, size_t length) noexcept
    # finds or creates; call add / set_sibling or drop_if_unused afterwards. text: a valid Topic Filter, without $share
    cdef Filter* hold(self, const uint8_t* text, size_t length) except NULL
    # also drops its group g (or NULL) if that has no members
    cdef int drop_if_unused(self, Filter* f, Group* g=*) except -1

    # returns 1: new, 0: replaced (options and identifier overwritten). online: the session is connected
    cdef int add(
        self, Filter* f, Group* g, void* session, Memberships* own, uint8_t options, uint32_t identifier, bint online
    ) except -1
    # returns the index of (f, g) in own.items, or -1
    cdef int membership(self, Filter* f, Group* g, void* session, Memberships* own) noexcept
    cdef int remove(self, Memberships* own, uint32_t i) except -1       # swaps the last membership into place i
    # and frees own.items. drop: also drop unused Filters and groups, else the caller calls `drop_if_unused`
    cdef int remove_all(self, Memberships* own, bint drop=*) except -1
    # plain, groups: include its plain subscriptions, those in share groups
    cdef void set_online(self, Memberships* own, bint plain, bint groups) noexcept
    # plain: include its plain subscriptions; those in share groups always are
    cdef void set_offline(self, Memberships* own, bint plain) noexcept

    # sets interest without a share group; drops the Filter if unused
    cdef int set_sibling(self, Filter* f, int sibling, bint wanted) except -1
    cdef int set_sibling_members(
        self, Filter* f, Group* g, int sibling, uint32_t members, uint32_t online, bint full
    ) except -1

    # Return the result for a topic, which may be empty. cached: NULL if it is not in the cache; then validate the topic
    # (topic_name_valid) and call match, which demands a valid one
    cdef Matches* cached(self, const uint8_t* topic, size_t length) noexcept
    cdef Matches* match(self, const uint8_t* topic, size_t length) except NULL

    cdef Filter* find_hashed(self, uint64_t hash_, const uint8_t* text, size_t length) noexcept
    cdef void drop(self, Filter* f) noexcept
    cdef void moved(self, Subscriber* subscriber, uint32_t index) noexcept
    cdef void leave_list(self, Filter* f, Group* g, uint32_t index) noexcept
    cdef Matches* single(self, uint64_t hash_, const uint8_t* topic, size_t length) noexcept
