# cython: language_level=3
"""A hierarchical timer wheel that is given the time: no clock, no system call, no allocation.

Times are milliseconds of the caller's clock (which should be monotonic), 64 bits. A TimerNode is a field of the object
that it times; zeroed = not scheduled. It must be cancelled before its owner dies, unless the wheel has died before.

Call order in the loop of a worker, once in a tick:

    node = wheel.expired(now)
    while node is not NULL:             # it is no longer scheduled: schedule it again for a repeated timer
        <look at node.kind, node.owner>
        node = wheel.expired(now)
    sleep until wheel.next_deadline()   # which may be in the past: more is due than one turn handles

expired() also makes the calls scheduled by call(), at their time, and propagates their exceptions.
"""
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef enum:
    TIMER_LEVELS = 11               # of 64 slots: 66 bits
    TIMER_CALL = 255                # kind of the nodes of call(); the others are the caller's


cdef struct TimerNode:
    TimerNode* prev                 # NULL = not scheduled
    TimerNode* next
    uint64_t deadline               # ms
    void* owner                     # not used by the wheel
    uint8_t kind


cdef struct TimerList:              # the links of a TimerNode: the end of a ring
    TimerNode* prev
    TimerNode* next


@cython.final
cdef class TimerWheel:
    cdef readonly uint64_t now                      # ms: all timers up to here were handled
    cdef readonly uint64_t count                    # timers scheduled
    cdef uint64_t until                             # `progress` at which a turn of calls ends; 0: no such end
    cdef TimerList slots[704]                       # TIMER_LEVELS x 64
    cdef uint64_t occupied[TIMER_LEVELS]            # bit i: slot i of the level is not empty
    cdef TimerList due                              # deadline <= now
    cdef set calls                                  # keeps scheduled TimerCalls alive
    cdef TimerList opened                           # timers of a slot whose time has come, to be placed on finer levels

    cdef void schedule(self, TimerNode* node, uint64_t deadline_ms) noexcept        # also if it is already scheduled
    cdef void cancel(self, TimerNode* node) noexcept                                # no effect if it is not scheduled
    # An expired timer, NULL: no more in this turn. NULL with an exception: one of a call()
    cdef TimerNode* expired(self, uint64_t now_ms) except? NULL
    # No timer expires before; 2^64-1 when there is none. After waking up the timer may still expire a little later
    cdef uint64_t next_deadline(self) noexcept

    cdef void place(self, TimerNode* node) noexcept
    cdef bint open_next(self, uint64_t now_ms) noexcept
    cpdef TimerCall call(self, uint64_t deadline_ms, object callback)


@cython.final
cdef class TimerCall:
    cdef TimerNode node
    cdef TimerWheel wheel                           # None: called or cancelled
    cdef object callback
    cpdef bint cancel(self) except -1
    cdef int settle(self) except -1
