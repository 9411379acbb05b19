# cython: language_level=3
"""Topic Filters -> subscribers: exact filters by hash, wildcard filters by an iterative trie.

A Filter exists as long as anybody wants it: a local subscriber, a member of a share group, a sibling, or a log index.
Matching returns Filters and never delivers. `generation` changes whenever the set of Filters does (not when a
subscriber joins an existing one), so a result can be kept and compared by one integer.

Call order: SUBSCRIBE: hold -> add; UNSUBSCRIBE: find -> membership -> remove (drops the Filter when it was the last);
CONNECT of a session with subscriptions: set_online with its memberships; its end: set_offline.

Lifetimes: Filter*, Group* are valid until the call that removes their last user returns. Matches* is valid until the
next call of any method of the same Subscriptions. Session pointers are borrowed: the session removes itself before it
dies. Subscriber* may move whenever a subscriber of the same Filter or Group is added, removed, set online or offline.

A session's Memberships are a field of the session: `own` lies at the same distance from `session` in every call (the
first add learns it), because a Subscriber that moves must be found again in its session's Memberships.
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
    cdef readonly uint64_t shared       # those of them in share groups
    cdef readonly uint64_t filters      # Filters alive
    cdef readonly uint64_t wildcards    # those of them that contain + or #

    cdef Row counters                   # for the durations of matches, one in SAMPLED; None = not measured
    cdef uint32_t misses
    cdef HashKey key
    cdef Py_ssize_t own_offset          # from a session to its Memberships
    cdef Table table                    # every Filter, by its text
    cdef Trie trie
    cdef readonly Arrangements arrangements     # of wildcard filters
    cdef MatchCache results
    cdef ShareGroups groups
    cdef Formers formers
    cdef Matches simple                 # the result while there are no wildcard filters
    cdef Filter* only                   # what simple.filters points to

    cdef Filter* find(self, const uint8_t* text, size_t length) noexcept
    # find or create; follow with add / set_sibling, or drop_if_unused. The text is a valid Topic Filter, without $share
    cdef Filter* hold(self, const uint8_t* text, size_t length) except NULL
    # this group of it (or NULL) as well, if it has no members
    cdef int drop_if_unused(self, Filter* f, Group* g=*) except -1

    # 1 = new, 0 = replaced (options and identifier overwritten). online: is the session connected
    cdef int add(
        self, Filter* f, Group* g, void* session, Memberships* own, uint8_t options, uint32_t identifier, bint online
    ) except -1
    # index in own.items of (f, g) or -1
    cdef int membership(self, Filter* f, Group* g, void* session, Memberships* own) noexcept
    cdef int remove(self, Memberships* own, uint32_t i) except -1       # swaps the last membership into place i
    # and frees own.items. drop: what nobody needs any more, or else `drop_if_unused` is for the caller
    cdef int remove_all(self, Memberships* own, bint drop=*) except -1
    # plain, groups: which of its subscriptions
    cdef void set_online(self, Memberships* own, bint plain, bint groups) noexcept
    # plain: of its groups and its plain subscriptions, else of its groups alone
    cdef void set_offline(self, Memberships* own, bint plain) noexcept

    # plain interest; drops the Filter if unused
    cdef int set_sibling(self, Filter* f, int sibling, bint wanted) except -1
    cdef int set_sibling_members(
        self, Filter* f, Group* g, int sibling, uint32_t members, uint32_t online, bint full
    ) except -1

    # A cached or fresh result for a topic. The topic must be valid (topic_name_valid) unless it is found in the cache.
    # NULL: not in the cache (then validate and call match). A result may be empty
    cdef Matches* cached(self, const uint8_t* topic, size_t length) noexcept
    cdef Matches* match(self, const uint8_t* topic, size_t length) except NULL

    cdef Filter* find_hashed(self, uint64_t hash_, const uint8_t* text, size_t length) noexcept
    cdef void drop(self, Filter* f) noexcept
    cdef void moved(self, Subscriber* subscriber, uint32_t index) noexcept
    cdef void leave_list(self, Filter* f, Group* g, uint32_t index) noexcept
    cdef Matches* single(self, uint64_t hash_, const uint8_t* topic, size_t length) noexcept
