# cython: language_level=3
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.timers cimport TimerNode, TimerWheel
from pyx.delivery.connection cimport Connection
from pyx.delivery.router cimport Router
from pyx.delivery.router_state cimport RouterState
from pyx.io.dispatch cimport Dispatch
from pyx.io.poller cimport Poller
from pyx.io.sources cimport Sources


cdef class Reactor:
    cdef readonly Router router
    cdef RouterState state              # the router's
    cdef Row counters
    cdef readonly Dispatch dispatch
    cdef TimerWheel timers
    cdef Poller poller
    cdef uint8_t* buffer                # what was received: valid until the next recv
    cdef uint32_t buffer_bytes
    cdef public uint64_t slice          # ns of work, nominal, or of time, of one callback that has many connections
    cdef uint64_t sending               # ... that the present one of sending has done
    cdef bint late                      # timers whose time has come wait for the next round
    cdef dict connections               # fd -> Connection: the strong references
    cdef list graveyard                 # closed in this round: events may still name them
    cdef dict watchers                  # fd -> callable
    cdef uint64_t last_ns               # of the last round
    cdef public bint stays              # poll waits for more while traffic is dense
    cdef public bint leave              # back to the event loop after this round
    cdef dict listeners                 # fd -> number of its listener
    cdef object paused                  # the listeners, while nothing is accepted for want of descriptors
    cdef bint accepting
    cdef bint again                     # something is left to do without a new event
    cdef public uint32_t connections_max
    cdef readonly Sources sources       # of connections accepted here
    cdef public object schedule         # callable: run poll soon
    cdef public uint32_t connect_ms_max

    cdef int accept(self, int listener) except -1
    cdef int call(self, list watched) except -1
    cdef int ready(self, Connection conn, uint32_t what) except -1
    cdef int time_is_up(self, Connection conn, TimerNode* t) except -1
    cdef int say_closed(self, Connection conn, int reason, str why) except -1
    cdef bint may_come(self, Connection conn) except -1
    cdef Connection open(self, int fd, uint8_t listener)
    cdef int read(self, Connection conn) except -1
    cdef int flush(self, Connection conn) except -1
    cdef int flush_all(self) except -1
    cdef int interest(self, Connection conn) except -1
    cdef int lost(self, Connection conn, str why) except -1
    cdef int end(self, Connection conn) except -1
    cdef int close_asked(self) except -1
    cdef int close_one(self, Connection conn, int reason, str why) except -1
    cdef int expire(self) except -1
    cdef int stop_reading(self, Connection conn) except -1
    cdef bint answers_wait(self, Connection conn) noexcept
    cdef int round_end(self) except -1
    cdef void now(self) noexcept
