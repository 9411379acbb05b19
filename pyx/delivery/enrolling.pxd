# cython: language_level=3
"""Members of share groups: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t

from pyx.core.limits cimport Limits
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.bounding cimport Bounding, Teller
from pyx.delivery.connection cimport Connection, OPEN
from pyx.delivery.peers cimport Peers
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session, has_slot
from pyx.matching.filters cimport Group, Subscriber
from pyx.matching.subscriptions cimport Subscriptions


cdef enum Strategy:
    ROUND_ROBIN = 1
    LEAST_INFLIGHT = 2
    HASH_TOPIC = 3          # from here on members are known by name (pyx.matching.group_members)
    HASH_CLIENT = 4
    STICKY = 5
    STRATEGY_MASK = 0x0F
    WAITS = 0x10            # flags in the result of `strategy_of`
    EVEN = 0x20
    SPREAD = 0x40


cdef class Enrolling(Teller):
    cdef RouterState state
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef Peers peers
    cdef BackPressure back_pressure
    cdef Bounding bounding

    cdef public object strategy_of      # (group, filter) -> Strategy, | WAITS, | EVEN, | SPREAD; None: round robin
    cdef uint32_t strategy_turn         # number of calls of `strategies_changed`
    cdef list full_groups               # numbers of groups announced to siblings as full
    cdef set leaving                    # connected sessions that are no online members (pyx.delivery.spread_groups)

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


cdef inline Subscriber* subscriber_of(Subscriptions subscriptions, Group* g, Session s) noexcept:
    # this session's entry as a member of the group, or NULL
    cdef int i = subscriptions.membership(g.filter, g, <void*>s, &s.own)
    return NULL if i < 0 else &g.members.items[s.own.items[i].index]


cdef inline bint has_room(Session s, uint8_t qos, uint32_t outbox_bytes_max) noexcept:
    # can it take a message now?
    cdef Connection conn = <Connection>s.connection
    if conn is None or conn.state != OPEN or conn.out.pending > outbox_bytes_max:
        return False
    return qos == 0 or not s.behind and has_slot(s)
