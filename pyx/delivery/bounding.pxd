# cython: language_level=3
"""Amounts queued for sessions that are behind, and their bounds: see the .pyx."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits, QueueRule
from pyx.core.work cimport state as done
from pyx.delivery.back_pressure cimport BackPressure, Bounds
from pyx.delivery.journal cimport Journal
from pyx.delivery.router_state cimport Pointers, RouterState
from pyx.delivery.session cimport Session
from pyx.delivery.windows cimport Windows
from pyx.matching.filters cimport Membership
from pyx.matching.subscriptions cimport Subscriptions


cdef class Teller:
    """The announcer of a session's share groups to siblings, in pieces: implemented by pyx.delivery.enrolling."""
    cdef bint tell_on(self, Session s) except -1                # True: finished


cdef class Bounding(Bounds):
    cdef Teller teller
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef Journal journal
    cdef Windows windows
    cdef BackPressure back_pressure

    cdef public int64_t slice       # ns of work, nominal, of one slice
    cdef Pointers seekers           # sessions whose unread messages are being sought in the log
    cdef Pointers crowded           # sessions whose bounds are to be checked
    cdef Pointers tellers           # sessions with many groups, still to be announced to siblings
    cdef uint64_t charged           # the part of done.spent charged to slices so far, including the store's work

    # (messages, bytes) behind `position` in the indexes it reads: including holes; without (unread_after)
    cdef tuple backlog_after(self, Session s, uint64_t position)
    cdef int unread_of(self, Session s, Membership* e, uint64_t position, uint64_t* messages, uint64_t* size) except -1
    cdef tuple unread_after(self, Session s, uint64_t position)
    cdef uint64_t in_holes(self, Session s, uint64_t* size) except? 0xFFFFFFFFFFFFFFFF
    cdef int seek(self, Session s) except -1
    cdef int seek_begin(self, Session s) except -1
    cdef bint seek_on(self, Session s) except -1
    cdef int crowd(self, Session s) except -1
    cdef inline int begin_slice(self) noexcept:
        self.charged = done.spent
        self.back_pressure.left = self.slice
        return 0

    cdef inline bint slice_left(self) noexcept:
        self.back_pressure.left -= <int64_t>(done.spent - self.charged)
        self.charged = done.spent
        return self.back_pressure.left > 0

    cdef int go_on(self) except -1
    cdef bint is_unfinished(self) noexcept
    cdef const QueueRule* rule_of(self, Session s) noexcept
    cdef int bound(self, Session s) except -1
    cdef uint64_t move_cursor(self, Session s, const QueueRule* rule, uint64_t total) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t make_hole(self, Session s, const QueueRule* rule, uint64_t total,
                            uint64_t total_bytes) except? 0xFFFFFFFFFFFFFFFF
