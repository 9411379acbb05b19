# cython: language_level=3
"""Timer wheel for keep-alive, will delay, session and message expiry: many timers, most of which never expire.

Eleven levels of 64 slots. A slot of level n is 64^n ms wide, and a timer is placed on the level of the highest digit
(base 64) in which its deadline differs from `now`:

    level 0    the next 64 ms, one slot each
    level 1    the next 4 s in slots of 64 ms
    level 2    the next 4 min in slots of 4 s
    level 3    the next 4 h in slots of 4 min ...

so every level's occupied slots are ahead of `now`, those of a lower level before those of a higher one, and the next
slot that is due is found by counting zeros in one word: a jump of days costs as much as a jump of a millisecond. When a
slot is due its timers are placed again, on finer levels: at most ten times in a timer's life, three times for one of
five minutes. At most PLACED_MAX (1024) timers are placed in one turn (about 50 us); the others wait in `opened`, and
next_deadline returns a time that is due. A turn also ends when its calls have done as much work as allowed.

Timers expire in the order of their deadlines, those of one millisecond in no order. While a timer that is on time is
handled, `now` is its deadline, however far the time has advanced.
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from pyx.core.work cimport Mark, PYTHON, TIMER, VISIT, callback_begins, callback_ends_named, progress, work

cdef extern from *:
    int count_trailing "__builtin_ctzll" (unsigned long long) noexcept nogil
    int count_leading "__builtin_clzll" (unsigned long long) noexcept nogil

cdef enum:
    PLACED_MAX = 1024

cdef uint64_t NEVER = <uint64_t> -1


cdef inline TimerNode* as_node(TimerList* ring) noexcept nogil:
    return <TimerNode*> ring


cdef inline void clear(TimerList* ring) noexcept nogil:
    ring.prev = ring.next = as_node(ring)


cdef inline bint empty(TimerList* ring) noexcept nogil:
    return ring.next == as_node(ring)


cdef inline void append(TimerList* ring, TimerNode* node) noexcept nogil:
    node.prev = ring.prev
    node.next = as_node(ring)
    ring.prev.next = node
    ring.prev = node


cdef inline void unlink(TimerNode* node) noexcept nogil:
    node.prev.next = node.next
    node.next.prev = node.prev
    node.prev = node.next = NULL


cdef inline void take_all(TimerList* target, TimerList* source) noexcept nogil:
    """Append everything of source to target."""
    if empty(source):
        return
    source.next.prev = target.prev
    target.prev.next = source.next
    source.prev.next = as_node(target)
    target.prev = source.prev
    clear(source)


@cython.auto_pickle(False)
cdef class TimerWheel:
    """Timers by deadline. `now_ms` is the start time."""

    def __cinit__(self, uint64_t now_ms=0):
        cdef int i
        self.now = now_ms
        for i in range(TIMER_LEVELS * 64):
            clear(&self.slots[i])
        clear(&self.due)
        clear(&self.opened)
        self.calls = set()

    cdef void place(self, TimerNode* node) noexcept:
        """Put it into the slot of its deadline relative to now."""
        cdef int level, slot
        if node.deadline <= self.now:
            append(&self.due, node)
            return
        level = (63 - count_leading(node.deadline ^ self.now)) // 6
        slot = <int> (node.deadline >> (6 * level) & 63)
        append(&self.slots[level * 64 + slot], node)
        self.occupied[level] |= <uint64_t> 1 << slot

    cdef void schedule(self, TimerNode* node, uint64_t deadline_ms) noexcept:
        self.cancel(node)
        node.deadline = deadline_ms
        self.count += 1
        self.place(node)

    cdef void cancel(self, TimerNode* node) noexcept:
        cdef TimerList* ring
        cdef size_t place
        if node.prev is NULL:
            return
        if node.prev == node.next:                  # alone in its ring, whose end's address gives the slot
            ring = <TimerList*> node.prev
            if &self.slots[0] <= ring and ring < &self.slots[TIMER_LEVELS * 64]:
                place = ring - &self.slots[0]
                self.occupied[place >> 6] &= ~(<uint64_t> 1 << (place & 63))
        unlink(node)
        self.count -= 1

    cdef bint open_next(self, uint64_t now_ms) noexcept:
        """Advance to the next occupied slot that is due. False: there is none, and now is now_ms."""
        cdef int level, slot
        cdef uint64_t begin
        for level in range(TIMER_LEVELS):
            if self.occupied[level] == 0:
                continue
            slot = count_trailing(self.occupied[level])
            begin = slot_begin(self.now, level, slot)
            if begin > now_ms:
                break
            self.now = begin
            self.occupied[level] &= ~(<uint64_t> 1 << slot)
            take_all(&self.due if level == 0 else &self.opened, &self.slots[level * 64 + slot])
            return True
        if now_ms > self.now:
            self.now = now_ms
        return False

    cdef TimerNode* expired(self, uint64_t now_ms) except? NULL:
        cdef TimerNode* node
        cdef TimerCall made
        cdef uint32_t placed = 0
        cdef Mark mark
        while placed < PLACED_MAX:
            if not empty(&self.due):
                node = self.due.next
                unlink(node)
                self.count -= 1
                if node.kind != TIMER_CALL:
                    return node
                placed += 1                         # a call may schedule another one for the same moment, and so on
                made = <TimerCall> node.owner
                callback = made.callback
                made.settle()
                callback_begins(&mark)
                work(PYTHON)
                callback()
                callback_ends_named(&mark, TIMER, callback)
                if self.until and progress() >= self.until:
                    break
            elif not empty(&self.opened):
                placed += 1
                node = self.opened.next
                work(VISIT)
                unlink(node)
                self.place(node)
            elif not self.open_next(now_ms):
                break
        return NULL

    cdef uint64_t next_deadline(self) noexcept:
        cdef int level
        if not empty(&self.due) or not empty(&self.opened):
            return self.now
        for level in range(TIMER_LEVELS):
            if self.occupied[level]:
                return slot_begin(self.now, level, count_trailing(self.occupied[level]))
        return NEVER

    # ------------------------------------------------------------------ for Python

    cpdef TimerCall call(self, uint64_t deadline_ms, object callback):
        """Call `callback` (without arguments) at its time. The wheel keeps the handle alive until then."""
        cdef TimerCall made = TimerCall.__new__(TimerCall)
        made.callback = callback
        made.wheel = self
        made.node.kind = TIMER_CALL
        made.node.owner = <void*> made
        self.calls.add(made)
        self.schedule(&made.node, deadline_ms)
        return made

    def advance(self, uint64_t now_ms):
        """Make the calls that are due. For wheels that have nothing but calls (tests, simulation)."""
        while self.next_deadline() <= now_ms:
            if self.expired(now_ms) is not NULL:
                raise RuntimeError("a timer that is not a call: use expired()")
        self.expired(now_ms)

    @property
    def deadline(self):
        """Time in ms before which nothing happens; None when there is no timer."""
        cdef uint64_t deadline = self.next_deadline()
        return None if deadline == NEVER else deadline


@cython.auto_pickle(False)
cdef class TimerCall:
    """A scheduled call, made by TimerWheel.call."""

    cdef int settle(self) except -1:
        """Release the wheel's reference when it is over."""
        self.wheel.calls.discard(self)
        self.wheel = None
        self.callback = None
        return 0

    cpdef bint cancel(self) except -1:
        """Cancel the call; return False when it was made or cancelled before."""
        if self.wheel is None:
            return False
        self.wheel.cancel(&self.node)
        self.settle()
        return True

    @property
    def scheduled(self):
        """Whether it is still scheduled."""
        return self.wheel is not None

    @property
    def deadline(self):
        """Time of the call, in ms."""
        return self.node.deadline


cdef inline uint64_t slot_begin(uint64_t now, int level, int slot) noexcept nogil:
    cdef int shift = 6 * level
    cdef uint64_t above = 0 if shift + 6 >= 64 else now >> (shift + 6) << (shift + 6)
    return above | <uint64_t> slot << shift
