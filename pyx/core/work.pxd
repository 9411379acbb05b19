# cython: language_level=3
"""The work of a callback, counted in steps. In test builds alone: in a release nothing of it is compiled.

Whatever a client or a tick can cause must be bounded in work at the configured maxima, and a test must be able to say
so of a machine that is busy with other things. So work is not measured, it is counted: every loop over a set whose size
a client or the configuration decides says how many steps of which kind it takes, and a step has a weight in nominal
nanoseconds. One number of the process rises (`state.total`); a callback takes it before and after.

    loop:       work(s.window_cap * PLACE)
    callback:   callback_begins(&mark); ...; callback_ends(&mark, SERVE)

Of a callback its *own* work counts, without that of callbacks within it (a timer that ends a tick): each of them is
bounded by BOUND_NS. `whole` is with them. An exception leaves a callback open: its work is then counted with the one
around it.

A step that is forgotten is found by `longest`, the time that was measured beside the work, on a machine that does
nothing else.
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
    BOUND_NS = 20_000_000       # no callback may take more


cdef enum Step:                 # nominal ns of one
    PLACE = 1                   # a place of an array that is walked: slots of a window, packed entries passed over
    VISIT = 20                  # a session, subscriber, membership or connection that is looked at: cold memory
    NODE = 25                   # of the trie
    OBJECT = 60                 # a Python object that is made, looked up or let go of by compiled code
    COPY = 100                  # of a message, for one subscriber
    RECORD = 150                # a message or an ack that is packed, unpacked, logged, or put into a batch
    FILTER = 250                # a Topic Filter or topic that is hashed, found, planted, uprooted
    KIBI = 60                   # 1024 bytes that are copied
    PYTHON = 1000               # a step of a loop in Python, with the calls in it
    INDEX = 1500                # an index of the log that is asked or told something, in memory
    SYSTEM = 1500               # a system call on a socket
    SEEK = 12_000               # a look into LevelDB
    BLOCK = 25_000              # a block that is read from there and checked


cdef enum Callback:             # their names: work.pyx
    PACKETS                     # what has come of one connection, to the end of its turn
    CONNECT                     # a CONNECT that is decided on
    CARRIED                     # connections whose turn was over, looked through
    CLOSED                      # a connection that has ended
    ASKED_TO_CLOSE              # those of a round
    LOGGED                      # the block of a tick goes to the store
    SERVE                       # sessions that are behind read on
    SWEEP                       # a slice of what is looked for, bounded and forgotten in the log
    DEFERRED                    # what waited for its window
    LAZY                        # windows that are stored some time
    COMMIT
    FORWARD                     # batches for siblings
    ACKS                        # acks that may leave
    DRAINED                     # replays that have room
    SEND                        # outboxes
    RESUME                      # connections that are read again
    ACCEPT
    EXPIRE                      # timers of connections
    TIMER                       # a timer of the broker's
    MESH                        # what came from siblings
    STORED                      # what has become durable
    HANDOFF                     # connections of other workers
    CONTROL                     # the supervisor's word
    PIECE                       # of what the broker does in several
    WATCHED                     # other descriptors
    REPLAY
    TICK                        # the end of a round, without its parts
    ROUND                       # of the reactor, likewise
    CALLBACKS


cdef struct State:
    uint64_t total              # ns of work since the process began
    uint64_t inner              # in callbacks that have ended within the one that runs
    uint64_t spent              # by what Python does, in a release as well: slices go by it (pyx.delivery.bounding)
    uint64_t[CALLBACKS] own     # the most of a callback of that kind
    uint64_t[CALLBACKS] whole   # with those within it
    uint64_t[CALLBACKS] longest     # ns that it took, with those within it


cdef struct Mark:
    uint64_t total
    uint64_t inner
    uint64_t at


cdef State state


cdef inline void work(uint64_t ns) noexcept nogil:
    if IS_COUNTED:
        state.total += ns


cdef inline uint64_t progress() noexcept nogil:
    # how far the work of this process has got: for slices of what is not weighed. In a release that is time
    return state.total if IS_COUNTED else monotonic_ns()


cdef inline void callback_begins(Mark* mark) noexcept nogil:
    if IS_COUNTED:
        mark.total = state.total
        mark.inner = state.inner
        mark.at = monotonic_ns()
        state.inner = 0


cdef inline uint64_t callback_ends(Mark* mark, int kind) noexcept nogil:
    # its own work
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


# as callback_ends; `what` is remembered where it was the most
cdef int callback_ends_named(Mark* mark, int kind, object what) except -1
