# cython: language_level=3
"""Share groups: see the .pyx."""
from libc.stdint cimport uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.answering cimport Answering
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.bounding cimport Bounding, Teller
from pyx.delivery.fanout cimport FanOut
from pyx.delivery.peers cimport Peers
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session
from pyx.matching.filters cimport Group, Member, Subscriber
from pyx.matching.subscriptions cimport Subscriptions
from pyx.protocol.message cimport Message
from pyx.storage.records cimport Entry


cdef enum Strategy:
    ROUND_ROBIN = 1
    LEAST_INFLIGHT = 2
    HASH_TOPIC = 3          # from here on the members are known one by one (pyx.matching.group_members)
    HASH_CLIENT = 4
    STICKY = 5
    STRATEGY_MASK = 0x0F
    WAITS = 0x10            # of `strategy_of`: with the strategy


cdef enum Who:              # may be chosen
    ABLE = 0                # online, and with room
    ONLINE = 1
    ANYBODY = 2


cdef class Sharing(Teller):
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef PublishInHand in_hand
    cdef Peers peers
    cdef Answering answering
    cdef BackPressure back_pressure
    cdef Bounding bounding
    cdef Backlog backlog
    cdef FanOut fanout

    cdef public object strategy_of      # (group, filter) -> Strategy, | WAITS; None: round robin
    cdef uint32_t strategy_turn         # of `strategies_changed`
    cdef list full_groups               # numbers of groups that siblings were told are full

    cdef int chosen(self, Entry* e) except -1                   # 0, or why the entry is refused
    cdef int share(self, Group* g, uint64_t* plain) except -1
    cdef int share_here(self, Group* g) except -1
    cdef int choose(self, Group* g, uint64_t key, uint64_t offline, uint64_t without, uint64_t* plain) except -1
    cdef int choose_ranked(self, Group* g, uint64_t key, uint64_t live, uint64_t all_, uint64_t* plain) except -1
    cdef int weigh(self, Group* g, uint64_t mask, uint32_t here, bint online) noexcept
    cdef int send(self, Group* g, int worker, uint64_t key, bint insist, uint64_t* plain) except -1
    cdef int choose_here(self, Group* g, uint64_t key, bint insist) except -1
    cdef bint take_here(self, Group* g, uint64_t key) except -1
    cdef int queue_here(self, Group* g, uint64_t key) except -1
    cdef uint32_t least_loaded(self, Group* g, uint32_t start) noexcept
    cdef Member* best(self, Group* g, uint64_t key, uint64_t mask, int who) noexcept
    cdef bint may_wait(self, Session s) noexcept
    cdef Subscriber* subscriber(self, Group* g, Session s) noexcept
    cdef int hand_to(self, Group* g, Session s) except -1
    cdef int give(self, Subscriber* sub, Session s) except -1
    cdef bint wait_for(self, Subscriber* sub, Session s) except -1
    cdef uint64_t key_for(self, Group* g) except? 0
    cdef bint again(self, Entry* e, list payloads, int used, uint64_t offline, uint64_t without,
                    uint64_t* others) except -1
    cdef bint again_guarded(self, Entry* e, list payloads, int used, uint64_t offline, uint64_t without,
                            uint64_t* others) except -1
    cdef int wait_longer(self, int peer, uint64_t tick, uint64_t others) except -1
    cdef bint hand_on(self, uint32_t group, Message m) except -1
    cdef int ask_rule(self, Group* g) except -1
    cdef int ask_strategy(self, Group* g) except -1
    cdef list ask_again(self, number)
    cdef uint32_t name_members(self, number, list members, Py_ssize_t most) except? 0
    cdef int enroll(self, Group* g, Session s) except -1
    cdef int joined(self, Group* g, Session s) except -1
    cdef int strike(self, Group* g, Session s) except -1
    cdef int tell_group(self, Group* g, bint durable) except -1
    cdef int tell_online(self, Session s) except -1
    cdef int note_full(self, Group* g) except -1
