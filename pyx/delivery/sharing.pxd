# cython: language_level=3
"""Share groups: see the .pyx."""
from libc.stdint cimport uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.enrolling cimport Enrolling
from pyx.delivery.fanout cimport FanOut
from pyx.delivery.peers cimport Peers
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session
from pyx.matching.filters cimport Group, Member, Subscriber
from pyx.matching.subscriptions cimport Subscriptions
from pyx.storage.entries cimport Entry


cdef enum Who:              # members that may be chosen
    ABLE = 0                # online, and with room
    ONLINE = 1
    ANYBODY = 2


cdef class Sharing:
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef PublishInHand in_hand
    cdef Peers peers
    cdef Enrolling enrolling
    cdef Backlog backlog
    cdef FanOut fanout

    cdef int chosen(self, Entry* e) except -1                   # 0, or the reason of the refusal
    cdef uint32_t online_here(self, Group* g, uint64_t siblings) noexcept
    cdef int chosen_host(self, Entry* e, uint64_t* plain) except -1
    cdef int know_publisher(self, const Group* g, const Entry* e) except -1
    cdef int choose_anywhere(self, Group* g, uint64_t key, uint64_t offline, uint64_t without,
                             uint64_t* plain) except -1
    cdef int share(self, Group* g, uint64_t* plain) except -1
    cdef int share_here(self, Group* g) except -1
    cdef int choose(self, Group* g, uint64_t key, uint64_t offline, uint64_t without, uint64_t* plain) except -1
    cdef int choose_ranked(self, Group* g, uint64_t key, uint64_t live, uint64_t all_, uint64_t* plain) except -1
    cdef int weigh(self, Group* g, uint64_t mask, uint32_t here, bint online, uint64_t key) noexcept
    cdef int send(self, Group* g, int worker, uint64_t key, bint insist, uint64_t* plain) except -1
    cdef int choose_here(self, Group* g, uint64_t key, bint insist) except -1
    cdef bint take_here(self, Group* g, uint64_t key) except -1
    cdef int queue_here(self, Group* g, uint64_t key) except -1
    cdef uint32_t least_loaded(self, Group* g, uint32_t start) noexcept
    cdef Member* best(self, Group* g, uint64_t key, uint64_t mask, int who) noexcept
    cdef bint may_wait(self, Session s) noexcept
    cdef int hand_to(self, Group* g, Session s) except -1
    cdef int give(self, Subscriber* sub, Session s) except -1
    cdef bint wait_for(self, Subscriber* sub, Session s) except -1
    cdef uint64_t key_for(self, Group* g) except? 0
