# cython: language_level=3
"""Counting of a callback's work in steps. In test builds only: in a release none of it is compiled.

The work that a client or a tick can cause must be bounded at the configured maxima, and a test must be able to check
that on a machine that is busy with other things. So work is not measured but counted: every loop over a set whose size
a client or the configuration decides reports its steps by kind, and a step has a weight in nominal nanoseconds. One
number of the process rises (`state.total`); a callback reads it before and after.

    loop:       work(s.window_cap * PLACE)
    callback:   callback_begins(&mark); ...; callback_ends(&mark, SERVE)

A callback's *own* work excludes that of callbacks within it (a timer that ends a tick): each of them is bounded by
BOUND_NS. `whole` includes them. An exception leaves a callback open: its work is then counted with the one around
it.

A step that is not reported shows in `longest`, the time measured beside the work, on a machine that does nothing
else.
"""
from libc.stdint cimport uint64_t

from pyx.core.kernel cimport monotonic_ns

cdef extern from *:
    """
    #ifdef MQTTD_COUNT_WORK
    #define MQTTD_WORK_IS_COUNTED 1
    #else
    #define MQTTD_WORK_IS_COUNTED 0
    #endif
    """
    const bint IS_COUNTED "MQTTD_WORK_IS_COUNTED"


cdef enum:
    BOUND_NS = 20_000_000       # the most that a callback may take


cdef enum Step:                 # nominal ns of one
    PLACE = 1                   # a place of an array that is walked: slots of a window, packed entries skipped
    VISIT = 20                  # a session, subscriber, membership or connection that is visited: cold memory
    NODE = 25                   # of the trie
    OBJECT = 60                 # a Python object that compiled code creates, looks up or releases
    COPY = 100                  # of a message, for one subscriber
    RECORD = 150                # a message or an ack that is packed, unpacked, logged, or put into a batch
    FILTER = 250                # a Topic Filter or topic that is hashed, found, inserted, removed
    KIBI = 60                   # 1024 bytes that are copied
    PYTHON = 1000               # a step of a loop in Python, with the calls in it
    INDEX = 1500                # a read or update of an index of the log, in memory
    SYSTEM = 1500               # a system call on a socket
    SEEK = 12_000               # a seek in LevelDB
    BLOCK = 25_000              # a block that is read from there and checked


cdef enum Callback:             # their names: work.pyx
    PACKETS                     # packets of one connection, to the end of its turn
    CONNECT                     # the decision about a CONNECT
    CARRIED                     # search for connections whose turn was over
    CLOSED                      # a connection that has ended
    ASKED_TO_CLOSE              # the connections to be closed in a round
    LOGGED                      # passing the block of a tick to the store
    SERVE                       # sessions that are behind continue reading
    SWEEP                       # a slice of the search for data to bound and forget in the log
    DEFERRED                    # packets that waited for their window
    LAZY                        # windows that are stored within some time
    COMMIT
    FORWARD                     # batches for siblings
    ACKS                        # acks that may be sent
    DRAINED                     # replays that have room
    SEND                        # outboxes
    RESUME                      # connections that are read again
    ACCEPT
    EXPIRE                      # timers of connections
    TIMER                       # a timer of the broker's
    MESH                        # messages from siblings
    STORED                      # records that became durable
    HANDOFF                     # connections of other workers
    CONTROL                     # messages of the supervisor
    PIECE                       # a piece of the broker's long work
    WATCHED                     # other descriptors
    REPLAY
    TICK                        # the end of a round, without its parts
    ROUND                       # of the reactor, without its parts
    CALLBACKS


cdef struct State:
    uint64_t total              # ns of work since the process began
    uint64_t inner              # in callbacks that have ended within the one that runs
    uint64_t spent              # by Python code, also in a release: slices depend on it (pyx.delivery.bounding)
    uint64_t[CALLBACKS] own     # the most of a callback of that kind
    uint64_t[CALLBACKS] whole   # including those within it
    uint64_t[CALLBACKS] longest     # longest time in ns, including those within it


cdef struct Mark:
    uint64_t total
    uint64_t inner
    uint64_t at


cdef State state


cdef inline void work(uint64_t ns) noexcept nogil:
    if IS_COUNTED:
        state.total += ns


cdef inline void spend_in_c(uint64_t ns) noexcept nogil:
    # as `spend` of work.pyx: for what was Python code once, and is part of a slice with it
    state.spent += ns
    work(ns)


cdef inline uint64_t progress() noexcept nogil:
    # the progress of this process's work: for slices of unweighted work. In a release that is time
    return state.total if IS_COUNTED else monotonic_ns()


cdef inline void callback_begins(Mark* mark) noexcept nogil:
    if IS_COUNTED:
        mark.total = state.total
        mark.inner = state.inner
        mark.at = monotonic_ns()
        state.inner = 0


cdef inline uint64_t callback_ends(Mark* mark, int kind) noexcept nogil:
    # returns its own work
    cdef uint64_t whole, own = 0
    if IS_COUNTED:
        whole = state.total - mark.total
        own = whole - state.inner
        state.inner = mark.inner + whole
        if own > state.own[kind]:
            state.own[kind] = own
        if whole > state.whole[kind]:
            state.whole[kind] = whole
        whole = monotonic_ns() - mark.at
        if whole > state.longest[kind]:
            state.longest[kind] = whole
    return own


# as callback_ends; `what` is remembered with the highest value
cdef int callback_ends_named(Mark* mark, int kind, object what) except -1
