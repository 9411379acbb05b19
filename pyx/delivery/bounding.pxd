# cython: language_level=3
"""How much waits for sessions that are behind: see the .pyx."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits, QueueRule
from pyx.delivery.back_pressure cimport BackPressure, Bounds
from pyx.delivery.journal cimport Journal
from pyx.delivery.router_state cimport Pointers, RouterState
from pyx.delivery.session cimport Session
from pyx.delivery.sweep cimport Sweep
from pyx.delivery.windows cimport Windows
from pyx.matching.filters cimport Filter, Membership
from pyx.matching.subscriptions cimport Subscriptions
from pyx.storage.records cimport LogKey


cdef class Teller:
    """What tells siblings of a session's share groups, in pieces: implemented by pyx.delivery.enrolling."""
    cdef bint tell_on(self, Session s) except -1                # True: it has come to its end


cdef class Bounding(Bounds):
    cdef Teller teller
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef Journal journal
    cdef Windows windows
    cdef BackPressure back_pressure

    cdef public int64_t slice       # ns of work, nominal, of a slice of all that
    cdef Sweep swept_now            # the index that is too much for one slice, or None
    cdef Pointers seekers           # sessions whose unread messages are looked for in the log
    cdef Pointers crowded           # sessions whose bounds are to be looked at
    cdef Pointers tellers           # sessions with many groups, of whose members siblings are to be told
    cdef uint64_t charged           # what the store has spent before: it says itself what a look into it has cost
    cdef bint sweeping
    cdef bint sweeps_all            # those that rest as well
    cdef uint64_t sweeps            # how many there were
    cdef uint32_t sweep_at          # of `keys`, which it walks down: those from here on were looked at
    cdef uint32_t restored_left     # of those that were there at the start, so many more

    # (messages, bytes) behind `position` in the indexes it reads, holes included; without them
    cdef tuple backlog_after(self, Session s, uint64_t position)
    cdef int unread_of(self, Session s, Membership* e, uint64_t position, uint64_t* messages, uint64_t* size) except -1
    cdef tuple unread_after(self, Session s, uint64_t position)
    cdef uint64_t in_holes(self, Session s, uint64_t* size) except? 0xFFFFFFFFFFFFFFFF
    cdef int seek(self, Session s) except -1
    cdef int seek_begin(self, Session s) except -1
    cdef bint seek_on(self, Session s) except -1
    cdef int crowd(self, Session s) except -1
    cdef int begin_slice(self) noexcept
    cdef bint slice_left(self) noexcept
    cdef int go_on(self) except -1
    cdef const QueueRule* rule_of(self, Session s) noexcept
    cdef int bound(self, Session s) except -1
    cdef uint64_t move_cursor(self, Session s, const QueueRule* rule, uint64_t total) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t make_hole(self, Session s, const QueueRule* rule, uint64_t total,
                            uint64_t total_bytes) except? 0xFFFFFFFFFFFFFFFF
    cdef int sweep_on(self) except -1
    cdef int sweep_grown(self, list keys) except -1
    cdef int sweep_key(self, LogKey key) except -1
    cdef uint64_t wanted(self, Session s, set spans) except? 0xFFFFFFFFFFFFFFFF
    cdef int find_askers(self, Sweep w, Filter* f) except -1
    cdef int consider(self, Sweep w, Session s, uint32_t slot, uint8_t options) except -1
    cdef int consider_some(self, Sweep w, Filter* f) except -1
    cdef bint sweep_some(self, Sweep w) except -1              # True: it has come to its end
    cdef int ask(self, Sweep w, Session s, bint reads) except -1
    cdef int gather_run(self, Sweep w) except -1
    cdef bint drop_unwanted(self, Sweep w) except -1           # likewise
