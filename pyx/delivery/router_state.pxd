# cython: language_level=3
"""The shared state of all parts of a router: see the .pyx."""
from cpython.ref cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from pyx.core.clock cimport Clock
from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.core.timers cimport TimerWheel
from pyx.core.work cimport COPY, VISIT
from pyx.delivery.connection cimport Connection
from pyx.delivery.minute_statistics cimport Drops, Prefixes
from pyx.delivery.session cimport Session
from pyx.matching.subscriptions cimport Matches, Subscriptions
from pyx.protocol.message cimport Content
from pyx.protocol.wire cimport put_varint


cdef enum:
    READ_BYTES_MAX = 262144         # of the log, at once
    MERGED_MAX = 64                 # filters of a session that reads their indexes merged
    SLICE = 5_000_000               # ns of work, nominal: long work is done in slices of this
    TURN = 2 * SLICE                # ... of publishes, after which it is the turn of other connections
    ROUND = 5 * TURN                # ... of all connections and siblings, after which publishes wait for the next tick
    SHARE = 500                     # ns of work, nominal: for a share group that matches a publish
    NAMED = 6000                    # ... for an index of the log that gets messages of a tick
    INDEXES_AT_ONCE = 1000                     # such indexes appended at a time
    OWN_FRAME_BYTES = 8192          # mesh payloads from this size on travel in a frame of their own
    IDENTIFIER_BYTES_MAX = 5        # of a Subscription Identifier as a property
    NUMBER_WORKER_BITS = 8
    SAMPLE_MS = 10                  # between two publishes whose durations are measured
    OUTBOX_PART = 4                 # a replay may fill this fraction (1 / ...) of outbox_bytes_max
    ABSENCES_MAX = 64               # disconnections a session remembers before it has caught up
    QUOTA_EXCEEDED = 0x97
    REFUSED_NO_MEMBER = 1           # zmq_mesh.envelope.Refusal
    REFUSED_OFFLINE = 4


cdef struct Pointers:               # a growing list of strong references
    PyObject** items
    uint32_t count
    uint32_t cap


cdef class RouterState:
    cdef readonly Subscriptions subscriptions
    cdef readonly Limits limits
    cdef readonly Row counters
    cdef readonly TimerWheel timers
    cdef public object handler          # the decisions of broker (pyx.delivery.handler)
    cdef public bint keeps              # the store is on disk: its records outlive the worker
    cdef public Drops drops             # of this minute, by session
    cdef public Prefixes prefixes       # traffic of this minute, by topic
    cdef readonly int worker
    cdef readonly int workers
    cdef readonly uint64_t now_ms       # monotonic
    # the broker's time: Unix time at its start, monotonic since then: unaffected by steps of the wall clock
    cdef readonly uint64_t wall_ms
    cdef uint64_t wall_offset
    cdef readonly Clock clock           # the source of message numbers
    cdef readonly uint64_t stored_number    # the highest one that a former run has left in the store; 0: none
    # sampling of durations, in the monotonic clock's ns; 0 = nothing
    cdef uint64_t tick_ns               # when this tick began; 0 without a reactor: then nothing is sampled
    cdef uint64_t sample_ms             # the next PUBLISH at or after this time is sampled
    cdef uint64_t finished_since        # when a sampled PUBLISH that is finished in this tick was received
    cdef uint64_t delivered_since       # ... that is delivered to sessions of this worker
    cdef uint64_t spent                 # ns of work, nominal, of publishes, by their subscribers: only rises
    cdef uint64_t round_until           # value of `effort` at which the publishes of this tick end

    # the tick
    cdef readonly uint64_t tick
    cdef public uint64_t batch_turn     # ns of work, nominal, after which the rest of a sibling's batch waits
    cdef bint takes_none                # a second large block is being appended: no PUBLISH is taken until its end
    cdef uint64_t next_position
    cdef Pointers dirty                 # connections with output
    cdef Pointers ready                 # sessions to be served
    cdef list drained                   # sessions with replays whose queue or outbox has room, for the handler
    cdef public list resumed            # connections to be read again: the reactor takes them
    # connections to be closed for the handler or the router: (connection, reason code, why)
    cdef public list closing
    cdef bint acks_due
    cdef public bint needs_timer        # a link waits for its sibling: the worker's timer must not be late
    cdef public bint is_active          # something beside PINGREQs has happened since the last sweep
    cdef public bint divided            # the handler has work to continue at the end of each tick

    cdef int output_taken(self, Connection conn, size_t n) except -1
    cpdef int discard_output(self, Connection conn) except -1
    cdef inline uint64_t new_number(self) noexcept:
        return self.clock.next() << NUMBER_WORKER_BITS | <uint64_t>self.worker

    cdef inline uint64_t effort(self) noexcept:
        # ns of work, nominal, of publishes: only rises
        return self.spent + self.subscriptions.trie.walked

    cdef inline uint64_t count_effort(self, const Matches* m) noexcept:
        # call it before a publish goes to its plain subscribers; returns their number
        cdef uint64_t local = 0
        cdef uint32_t i
        for i in range(m.count):
            local += m.filters[i].plain.count
        self.spent += m.count * <uint64_t>(2 * VISIT) + local * <uint64_t>(VISIT + COPY)
        return local

    cpdef uint64_t next_number(self)
    cpdef int fail(self, Connection conn, error) except -1
    cdef int fail_session(self, Session s, error) except -1
    cdef int attempt(self, Connection conn, callback) except -1     # fail, if it raises
    cdef int set_dirty(self, Connection conn) except -1
    cdef int set_ready(self, Session s) except -1
    cdef int drop(self, Connection conn, int counter) except -1
    cdef int note_drops(self, Connection conn, int counter, uint64_t dropped) except -1
    cdef uint64_t all_dropped(self) noexcept
    cdef int fell_behind(self, Session s) except -1
    cdef uint64_t packet_total(self, const Content* c, bint v5, bint with_id, uint32_t ids_len) noexcept
    cdef readonly bint unfinished   # there is work to continue in the next tick


cdef int pointers_push(Pointers* list_, object item) except -1
cdef void free_pointers(Pointers* p) noexcept
cdef int32_t find_expiry(const Content* c) except -2


cdef inline uint32_t put_identifier(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = 0x0B
    return <uint32_t>(put_varint(p + 1, value) - p)
