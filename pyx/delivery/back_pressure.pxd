# cython: language_level=3
"""Back-pressure on publishers: see the .pyx."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.connection cimport Connection, Pace
from pyx.delivery.journal cimport Journal
from pyx.delivery.router_state cimport Pointers, RouterState
from pyx.delivery.session cimport Session
from pyx.matching.subscriptions cimport Matches, Subscriptions


cdef enum Decision:
    TAKEN = 0
    HELD = 1                        # not yet: leave it in the inbox; the connection is paused and will be resumed
    REFUSED = 2                     # it has waited for too long: not accepted
    UNSTORED = 3                    # a worker that would have to store it has a full or slow disk


cdef enum SessionHold:              # Session.hold
    NO_HOLD = 0
    HOLDING = 1                     # its queue is full, its publishers wait
    GIVEN_UP = 2                    # they have waited for too long: new messages are dropped until the queue has shrunk


cdef class Bounds:
    """The measure of a session's queue: implemented by pyx.delivery.bounding."""
    cdef int check_hold(self, Session s) except -1
    cdef int let_go(self, Session s) except -1


cdef class BackPressure:
    cdef Bounds bounds
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef Journal journal

    cdef readonly uint32_t guarded  # GUARD_...: checks before a publish is routed; 0 = none
    cdef bint guards_qos_0          # ... also one of QoS 0 that is not to be retained
    cdef uint64_t guarded_since     # ms: when the first of these checks began
    cdef list made_to_wait          # connections
    cdef object held_timer          # TimerCall or None
    cdef dict holds                 # filter text -> bits of the workers that have a full session with that filter
    cdef dict own_holds             # filter text -> number of such sessions here
    cdef dict full_sessions         # sessions with a hold, given up or not, in order: Session -> None
    cdef Pointers flaggers          # sessions with filters still to be flagged or unflagged
    cdef dict forgotten             # sibling -> filters that it has flagged, still to be unflagged
    cdef int64_t left               # ns of work left for the current slice (pyx.delivery.bounding)
    cdef uint64_t memory_full       # bits of the workers at worker_memory_bytes_max
    cdef bint stirred               # a sweep must examine every index
    cdef uint64_t store_full        # bits of the workers whose disk takes no message
    cdef uint64_t store_unwritten   # bits of the workers whose store has store_unwritten_bytes_max to write

    cdef inline bint concerns(self, Connection conn, uint8_t qos, bint retain) noexcept:
        # whether a publish must be judged
        return self.guarded and (qos or retain or self.guards_qos_0 or conn.pace != NULL and conn.pace.since)

    cdef int judge(self, Connection conn, Session s, uint8_t qos, bint retain, Matches* m, uint32_t size) except -1
    # may a SUBSCRIBE or UNSUBSCRIBE with this number of Topic Filters be taken now?
    cdef int judge_filters(self, Connection conn, Session s, uint32_t filters) except -1
    cdef bint may_wait(self, Pace* pace, uint32_t ms_max, int refused) noexcept
    cdef int await_answers(self, Connection conn, Session s) except -1
    cdef int hold_back(self, Connection conn, Session s, bint* counted, int counter) except -1
    cdef Pace* pace_of(self, Connection conn) except NULL
    cdef bint may_publish(self, Pace* pace) noexcept
    cdef uint64_t met(self, Matches* m) noexcept
    cdef bint meets_memory(self, Matches* m, bint retain) noexcept
    cdef bint meets_store(self, Session s, uint8_t qos, bint retain, Matches* m) except -1
    cdef bint meets_unwritten(self, Session s, uint8_t qos, bint retain, Matches* m) except -1
    cdef bint archives(self, Matches* m) except -1
    cdef int start_timer(self) except -1
    cdef int release_held(self) except -1
    cdef int guard_if(self, uint32_t what, bint on) except -1
    cdef int flag(self, int worker, bytes text, bint held) except -1
    cdef int begin_hold(self, Session s) except -1
    cdef int give_up(self, Session s, uint64_t messages, uint64_t size) except -1
    cdef int end_hold(self, Session s) except -1
    cdef int unflag(self, Session s) except -1
    cdef int flag_first(self, Session s) except -1
    cdef int flag_some(self, Session s) except -1
    cdef bint flag_on(self, Session s) except -1                # True: finished
    cdef int flag_own(self, bytes text, int one) except -1
    cdef int forget_on(self) except -1
