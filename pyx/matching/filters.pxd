# cython: language_level=3
"""The structs of Subscriptions, shared by subscriptions, trie and results. Lifetimes: see subscriptions.pxd."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef struct Subscriber:
    void* session               # borrowed
    uint32_t identifier         # Subscription Identifier, 0 = none
    uint32_t slot_options       # low 24 bits: index in the session's Memberships; high 8: Subscription Options byte


cdef struct SubscriberList:     # items[0 .. online) belong to connected sessions, items[online .. count) to the others
    Subscriber* items           # NULL while count == 0; a Filter's only subscriber is in the Filter itself
    uint32_t online
    uint32_t count


cdef struct Filter:
    uint64_t hash
    uint64_t siblings           # bit i: sibling i has plain (not shared) interest
    SubscriberList plain
    Group* groups
    void* index                 # the filter's log index, owned by the router, or NULL. A Filter with one is not dropped
    Subscriber only             # plain.items points here until there has been a second one
    uint32_t offline_durable    # number of memberships (plain or shared) of offline sessions with QoS >= 1
    uint8_t wildcard
    uint8_t held                # a session subscribed to it is full: its publishers wait (pyx.delivery.back_pressure)
    uint16_t length             # next to the text: a match reads only these two
    # the text follows: use filter_text()


cdef struct Elsewhere:          # a sibling's members of a group
    uint32_t members
    uint32_t online


cdef struct Member:  # of a group whose strategy needs to know its members individually: see group_members
    uint64_t identity           # hash of the client id, never 0
    uint64_t since              # rises with the time at which it came online; 0 = offline
    void* session               # borrowed, of a local member that is enrolled; NULL = a sibling's
    uint32_t worker             # its home
    uint32_t told               # number of the snapshot in which a sibling last named it; 0 = in none


cdef struct Group:              # one ShareName on one Filter
    uint64_t hash               # of name/filter, in ShareGroups.named
    Group* next
    Group* previous
    Filter* filter
    SubscriberList members
    uint32_t turn               # the next worker, used by the router
    uint32_t next_member        # the next member, used by the router
    uint8_t strategy            # of pyx.delivery.enrolling, 0 = not looked up yet
    uint8_t waits               # a message waits for its member when that has no room, instead of going to the next
    uint8_t even                # members of other hosts get as much as those of this one
    uint8_t spread              # members are to be spread over the hosts of the cluster (pyx.delivery.spread_groups)
    uint8_t full                # siblings were told that no online member here can take a message
    uint32_t number             # identifies the group in copies: a hash of its name
    uint32_t offline_durable    # number of offline members with QoS >= 1 (counted in the Filter's as well)
    Elsewhere* elsewhere        # by sibling (64 entries) or NULL
    uint64_t siblings           # bit i: sibling i has members
    uint64_t siblings_online    # bit i: it has connected members
    uint64_t siblings_full      # bit i: none of those can take a message
    Member* enrolled            # or NULL
    uint32_t enrolled_count
    uint32_t enrolled_cap
    uint32_t* enrolled_places   # places of members by hash, 2 * enrolled_cap; NULL while they are few
    uint32_t label_length
    uint16_t name_length
    char* name                  # name/filter, label_length bytes: its name in mesh entries


cdef struct Former:             # messages queued while a subscription had other options [MQTT-3.8.4-4]
    uint64_t since              # behind this position of the log
    uint64_t up_to              # up to and including this one
    uint32_t next               # place of the next range, or of the next free place; 0 = none
    uint8_t options             # wire byte; QoS and No Local are used


cdef struct Formers:            # of all subscriptions, very few of which have any. [0] is unused
    Former* items
    uint32_t capacity
    uint32_t begun              # places used so far
    uint32_t count              # places in use: when it is 0, the memory is freed
    uint32_t free               # first free place, 0 = none


cdef struct Membership:         # one entry of a session's own list
    Filter* filter
    Group* group                # NULL: plain
    uint32_t index              # its place in the SubscriberList
    uint32_t former             # plain: the first of the ranges before `since`, in order; 0 = none. Its own
    uint64_t since              # plain: the log position behind which it applies


cdef struct Memberships:        # owned by the session, a field of it; zeroed = empty
    Membership* items
    uint32_t count
    uint32_t capacity


cdef struct Matches:
    uint64_t generation
    uint64_t topic_hash
    uint32_t count
    uint16_t topic_length
    Filter** filters
    const uint8_t* topic


cdef inline const char* filter_text(const Filter* f) noexcept nogil:
    return <const char*> (f + 1)


cdef inline int options_at(const Formers* formers, const Membership* e, uint8_t options,
                           uint64_t position) noexcept nogil:
    # options under which its subscription has that message of the log, -1: it has not. Position 0: the present options
    cdef uint32_t i = e.former
    if position == 0:
        return options
    while i:
        if position <= formers.items[i].up_to:
            return options & ~7 | formers.items[i].options & 7 if position > formers.items[i].since else -1
        i = formers.items[i].next
    return options if position > e.since else -1
