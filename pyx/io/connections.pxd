# cython: language_level=3
"""The connections of one worker: see the .pyx."""
from libc.stdint cimport uint8_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.timers cimport TimerWheel
from pyx.delivery.connection cimport Connection
from pyx.delivery.router_state cimport RouterState
from pyx.io.poller cimport Poller
from pyx.io.sources cimport Sources

cdef enum:
    ACKS_MAX = 65536            # answers of a connection that wait for a commit or a sibling; then it is not read


cdef class Connections:
    cdef RouterState state
    cdef Row counters
    cdef TimerWheel timers
    cdef Poller poller
    cdef readonly Sources sources       # of those that were accepted here
    cdef dict by_fd                     # fd -> Connection: the strong references
    cdef list graveyard                 # closed in this round: events may still name them
    cdef public uint64_t slice          # ns of work, nominal, or of time, of one callback that has many connections

    # what came from this listener, or was handed over
    cdef Connection open(self, int fd, uint8_t listener)
    cdef int interest(self, Connection conn) except -1          # the poller is told what it is to be named for
    cdef int stop_reading(self, Connection conn) except -1
    cdef int read_on(self, Connection conn) except -1
    # at once: its descriptor is closed, nothing is said to anybody
    cdef int end(self, Connection conn) except -1


cdef inline bint answers_wait(Connection conn, RouterState state) noexcept:
    # Messages stop at outbox_bytes_max, answers do not: a client that asks on and takes no answer is not read.
    # Large payloads do not lie in buf and do not count, so that messages alone never stop the reading
    return conn.out.tail - conn.out.head > 2 * <uint64_t>state.limits.outbox_bytes_max or conn.ack_count > ACKS_MAX
