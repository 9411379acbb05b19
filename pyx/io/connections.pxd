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
    OF_BRIDGES_ = 255           # instead of the number of a listener: a connection of a bridge of this worker
    ACKS_MAX = 65536            # a connection with more acks waiting for a commit or a sibling is not read


cdef class Connections:
    cdef RouterState state
    cdef Row counters
    cdef TimerWheel timers
    cdef Poller poller
    cdef readonly Sources sources       # source addresses of the connections accepted here
    cdef dict by_fd                     # fd -> Connection: the strong references
    cdef list graveyard                 # closed in this round: kept because events may still point to them
    cdef public uint64_t slice          # ns that one callback may spend on many connections: nominal work, or time

    # a connection accepted by this listener, or handed over
    cdef Connection open(self, int fd, uint8_t listener)
    cdef int interest(self, Connection conn) except -1          # tells the poller which events to report
    cdef int stop_reading(self, Connection conn) except -1
    cdef int read_on(self, Connection conn) except -1
    # ends it at once: closes the descriptor, notifies nobody
    cdef int end(self, Connection conn) except -1


cdef inline bint answers_wait(Connection conn, RouterState state) noexcept:
    # outbox_bytes_max bounds messages but not answers: a client that sends requests and takes no answers is not read.
    # Large payloads are outside buf and do not count, so messages alone never stop the reading
    return conn.out.tail - conn.out.head > 2 * <uint64_t>state.limits.outbox_bytes_max or conn.ack_count > ACKS_MAX
