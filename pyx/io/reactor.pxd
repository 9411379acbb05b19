# cython: language_level=3
"""The rounds of a worker: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.rounds cimport RoundPart
from pyx.core.timers cimport TimerNode, TimerWheel
from pyx.delivery.connection cimport Connection
from pyx.delivery.router cimport Router
from pyx.delivery.router_state cimport RouterState
from pyx.io.acceptor cimport Acceptor
from pyx.io.connections cimport Connections
from pyx.io.dispatch cimport Dispatch
from pyx.io.poller cimport Event, Poller
from pyx.io.sending cimport Sending


cdef class Reactor:
    cdef readonly Router router
    cdef RouterState state              # the router's
    cdef Row counters
    cdef readonly Dispatch dispatch
    cdef TimerWheel timers
    cdef Poller poller
    cdef readonly Connections connections
    cdef readonly Acceptor acceptor
    cdef Sending sending
    cdef uint8_t* buffer                # received bytes: valid until the next recv
    cdef uint32_t buffer_bytes
    cdef bint late                      # expired timers wait for the next round
    cdef dict watchers                  # fd -> callable
    cdef uint64_t last_ns               # start of the last round, monotonic
    # longer than any round: if the clock has gone further between two looks, this process was stopped
    cdef public uint64_t pause_ns
    cdef public uint64_t trusted_until_ns
    cdef public object when_paused      # callable, or None
    cdef public uint64_t timer_ms       # when `run_timers` will be called, monotonic; 0: every SOON_MS or so
    cdef public object after_round      # callable, or None: called when the output of a round was sent
    cdef public object hurry            # callable: `run_timers` is needed earlier
    cdef uint64_t woke_ms               # when it was last found to have been stopped, and clients were given time
    cdef public bint stays              # poll waits for more while traffic is dense
    cdef public bint leave              # return to the event loop after this round
    cdef bint in_events                 # the events of a round are being handled
    cdef bint again                     # work is left for a round without a new event
    cdef public object schedule         # callable: run poll soon

    cdef public RoundPart part          # of each round beside the clients; None: there is none

    cdef list handle(self, const Event* events, int n, uint64_t until_ns)
    cdef int call(self, list watched) except -1
    cdef int call_one(self, object callback) except -1
    cdef int ready(self, Connection conn, uint32_t what) except -1
    cdef int time_is_up(self, Connection conn, TimerNode* t) except -1
    cdef int read(self, Connection conn) except -1
    cdef int expire(self) except -1
    cdef int round_end(self) except -1
    cdef void now(self) noexcept
