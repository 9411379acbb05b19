"""Sweeping of the log: backlogs are bounded, and messages that no session needs any more are forgotten. The whole log
is examined once a second (the *sweep*), a single index whenever it has grown by a thirty-second of a session's bound.

An index is kept as its subscribers need it: from their lowest cursor on; between holes and in former memberships they
may need single spans of it. All of this is done in slices (`Bounding.slice`): the rest continues at the end of the
next tick.
"""
from heapq import merge

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc

from pyx.core.work cimport INDEX, Mark, OBJECT, PLACE, SWEEP, VISIT, callback_begins, callback_ends, work
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.journal cimport Journal
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session, is_stored
from pyx.delivery.sweep cimport Sweep
from pyx.delivery.windows cimport Windows
from pyx.matching.filters cimport Filter, Membership, Subscriber
from pyx.matching.memberships cimport SLOT_MASK
from pyx.storage.records cimport LogKey

cdef enum:
    RESTORED_SWEPT = 100        # restored indexes in one sweep: they must first be read from the store
    ASKED_AT_ONCE = 1000        # subscribers of an index
    RUN = 1024                  # needed spans of an index, sorted at once


@cython.final
cdef class Sweeping:
    """The sweep of one worker's log."""

    def __cinit__(self, RouterState state not None, Journal journal not None, Windows windows not None,
                  BackPressure back_pressure not None, Bounding bounding not None):
        self.state = state
        self.limits = state.limits
        self.subscriptions = state.subscriptions
        self.journal = journal
        self.windows = windows
        self.back_pressure = back_pressure
        self.bounding = bounding

    def sweep(self):
        """Bound the backlogs and forget messages that no session needs: for every log index in use; with a store on
        disk only for those that have changed, and a few of those restored at the start. Work beyond one callback
        continues in the next ticks."""
        cdef Session s
        if not self.sweeping:
            self.sweeping = True
            self.sweeps += 1
            self.sweep_at = <uint32_t>len(self.journal.keys)
            self.restored_left = RESTORED_SWEPT
            self.sweeps_all = self.back_pressure.stirred
            self.back_pressure.stirred = False
        self.go_on()
        for s in list(self.back_pressure.full_sessions):
            self.bounding.check_hold(s)

    cdef int go_on(self) except -1:
        # a slice of the work that is too much for one callback; after the block of this tick was appended
        cdef Mark mark
        if self.journal.appending is not None:
            return 0
        callback_begins(&mark)
        self.bounding.begin_slice()
        self.bounding.go_on()
        if self.swept_now is not None and self.bounding.slice_left() and self.sweep_some(self.swept_now):
            self.swept_now = None
        if self.sweeping and self.bounding.slice_left():
            self.sweep_on()
        self.state.unfinished = self.bounding.is_unfinished() or self.sweeping or self.swept_now is not None or \
            self.back_pressure.flaggers.count or len(self.back_pressure.forgotten) != 0
        callback_ends(&mark, SWEEP)
        return 0

    cdef int sweep_on(self) except -1:
        cdef LogKey key
        cdef Session s
        while self.windows.moved and self.bounding.slice_left():
            s, _ = self.windows.moved.popitem()
            work(OBJECT)
            self.back_pressure.left -= OBJECT + s.own.count * <int64_t>VISIT
            self.windows.wake(s)
        while self.sweep_at and self.bounding.slice_left():
            self.sweep_at -= 1
            if self.sweep_at >= <uint32_t>len(self.journal.keys):
                self.sweep_at = <uint32_t>len(self.journal.keys)
                continue
            work(VISIT)
            self.back_pressure.left -= VISIT
            key = self.journal.keys[self.sweep_at]
            if key.rests and key.grown == 0 and not self.sweeps_all:
                if not key.restored or self.restored_left == 0:
                    continue
                self.restored_left -= 1
            self.sweep_key(key)
        if self.sweep_at == 0 and not self.windows.moved:
            self.sweeping = False
        if self.state.keeps and not self.journal.recorded and self.state.next_position == self.journal.block.first:
            # commit the trimming, if this tick has nothing else to store
            self.journal.last_ticket = self.journal.store.flush()
        return 0

    cdef int sweep_grown(self, list keys) except -1:
        # sweep those of `keys` that have grown by a thirty-second of a session's limit since their last sweep
        cdef LogKey key
        cdef uint64_t many = self.limits.queue_messages_least // 32 + 1
        cdef uint64_t much = self.limits.queue_bytes_least // 32 + 1
        work(<uint64_t>len(keys) * OBJECT)
        self.bounding.begin_slice()
        for key in keys:
            # (an index that does not fit into this slice will have grown more in the next one)
            if self.bounding.slice_left() and (key.grown >= many or key.grown_bytes >= much):
                self.sweep_key(key)
        return 0

    cdef int sweep_key(self, LogKey key) except -1:
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>key.name, len(key.name))
        cdef Sweep w
        key.grown = 0
        key.grown_bytes = 0
        key.rests = self.state.keeps
        key.restored = False
        if f == NULL:
            return self.journal.drop_key(key)
        w = Sweep.__new__(Sweep)
        w.key = key
        w.lowest = w.open_from = self.journal.block.first - 1
        w.spans = set()
        w.runs = []
        self.find_askers(w, f)
        work(INDEX)
        self.back_pressure.left -= 5 * INDEX
        w.over = self.journal.store.position_of_last(
            key.name, self.limits.queue_messages_least, self.limits.queue_bytes_least)
        if self.sweep_some(w):
            return 0
        if self.swept_now is None:
            self.swept_now = w
            self.state.unfinished = True
        else:
            key.rests = False                   # again in the next sweep
        return 0

    cdef int find_askers(self, Sweep w, Filter* f) except -1:
        # the subscribers that may need messages of the index: later ones need later messages only
        cdef uint32_t i, n = f.plain.count
        cdef Subscriber* sub
        w.askers = []
        if n <= ASKED_AT_ONCE:
            for i in range(n):
                sub = &f.plain.items[i]
                self.consider(w, <Session>sub.session, sub.slot_options & SLOT_MASK, <uint8_t>(sub.slot_options >> 24))
            w.askers.reverse()
        else:
            w.subscribers = []
            w.slots = <uint32_t*>malloc(n * sizeof(uint32_t))
            if w.slots == NULL:
                raise MemoryError
            for i in range(n):
                w.subscribers.append(<Session>f.plain.items[i].session)
                w.slots[i] = f.plain.items[i].slot_options & SLOT_MASK
        work(n * VISIT)
        self.back_pressure.left -= n * <int64_t>VISIT
        return 0

    cdef int consider(self, Sweep w, Session s, uint32_t slot, uint8_t options) except -1:
        cdef Membership* e
        cdef bint reads = False
        if self.state.keeps and is_stored(s):
            w.needed = True
        elif not s.behind:
            return 0
        if s.behind:
            e = &s.own.items[slot]
            if e.former and s.wants_formers(&self.subscriptions.formers, e, w.spans):
                w.needed = True
            reads = options & 3 != 0 or s.absences is not None
        if reads or s.inflight:
            work(OBJECT)
            self.back_pressure.left -= OBJECT
            w.askers.append((s, reads))
        return 0

    cdef int consider_some(self, Sweep w, Filter* f) except -1:
        # a slice of very many subscribers, as they were at the begin: those that have left since need nothing
        cdef Session s
        cdef uint32_t slot
        cdef int held
        while w.subscribers and self.bounding.slice_left():
            s = w.subscribers.pop()
            slot = w.slots[len(w.subscribers)]
            work(VISIT)
            self.back_pressure.left -= VISIT
            if slot >= s.own.count or s.own.items[slot].filter != f or s.own.items[slot].group != NULL:
                held = self.subscriptions.membership(f, NULL, <void*>s, &s.own)
                self.back_pressure.left -= s.own.count * <int64_t>PLACE
                if held < 0:
                    continue
                slot = <uint32_t>held
            self.consider(w, s, slot, <uint8_t>(f.plain.items[s.own.items[slot].index].slot_options >> 24))
        return 0

    cdef bint sweep_some(self, Sweep w) except -1:
        # True: finished
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>w.key.name, len(w.key.name))
        if f == NULL or f.index != <void*>w.key:
            return True                         # it was dropped meanwhile
        if w.subscribers:
            self.consider_some(w, f)
        while w.askers and not w.subscribers and self.bounding.slice_left():
            s, reads = w.askers.pop()
            self.ask(w, s, reads)
        if w.askers or w.subscribers:
            w.is_old = True
            return False
        f = self.subscriptions.find(<const uint8_t*><const char*>w.key.name, len(w.key.name))
        if f == NULL or f.index != <void*>w.key:
            return True                         # likewise, by a drop for its subscribers
        if w.parts is None:
            if w.key.count or w.is_old:
                w.needed = True                 # by subscribers added since
            if not w.needed:
                self.journal.drop_key(w.key)
                f.index = NULL
                self.subscriptions.drop_if_unused(f)
                return True
            self.gather_run(w)
            w.at = w.lowest
            self.journal.store.trim(w.key.name, w.lowest)
            w.parts = merge(*w.runs) if len(w.runs) > 1 else iter(w.runs[0] if w.runs else ())
        return self.drop_unwanted(w)

    cdef int ask(self, Sweep w, Session s, bint reads) except -1:
        # messages in flight are checked last: until then they are still behind the cursor
        cdef uint64_t since
        cdef int64_t spans = len(w.spans)
        if reads and s.behind:
            if s.cursor < w.over or \
                    s.own.count > 1 and s.cursor < self.journal.block.first - 1 and s.swept != self.sweeps:
                s.swept = self.sweeps           # the sweep of its other filters would check it again
                if self.bounding.slice_left():
                    self.bounding.bound(s)
                else:
                    self.bounding.crowd(s)
            w.needed = True
            if s.cursor < w.lowest:
                w.lowest = s.cursor
            w.open_from = min(w.open_from, self.wanted(s, w.spans))
        if self.state.keeps and is_stored(s) and s.inflight:
            self.back_pressure.left -= s.window_cap * <int64_t>PLACE
            since = self.windows.in_flight_since(s, w.spans)
            w.lowest = min(w.lowest, since)
            w.open_from = min(w.open_from, since)
        self.back_pressure.left -= (<int64_t>len(w.spans) - spans) * (4 * OBJECT)
        if len(w.spans) >= RUN:
            self.gather_run(w)
        return 0

    cdef int gather_run(self, Sweep w) except -1:
        cdef list run
        if w.spans:
            work(<uint64_t>len(w.spans) * (2 * OBJECT))
            run = sorted(w.spans)
            w.spans.clear()
            w.lowest = min(w.lowest, <uint64_t>run[0][0])       # of messages in flight for long: before all cursors
            w.runs.append(run)
        return 0

    cdef uint64_t wanted(self, Session s, set spans) except? 0xFFFFFFFFFFFFFFFF:
        # the position behind which the session needs everything; spans needed before that go into `spans`, as (from
        # behind, up to). Messages dropped at its limit (drop_newest) are not needed: else they would be held until
        # the session has read the rest, however long it stays away
        cdef uint64_t at = s.cursor, a, z
        if not s.holes:
            return at
        work(<uint64_t>len(s.holes) * (2 * OBJECT))
        for a, z in s.holes:
            if a > at:
                spans.add((at, a))
            if z > at:
                at = z
        return at

    cdef bint drop_unwanted(self, Sweep w) except -1:
        # drop everything behind `lowest` that is in none of the spans and not behind open_from
        cdef uint64_t a, z
        while self.bounding.slice_left():
            span = next(w.parts, None)
            if span is None or span[0] >= w.open_from:
                if w.at < w.open_from:
                    self.journal.store.drop(w.key.name, w.at, w.open_from)
                return True
            a, z = span
            work(8 * OBJECT + INDEX)
            self.back_pressure.left -= 8 * OBJECT + INDEX
            if a > w.at:
                self.journal.store.drop(w.key.name, w.at, a)
            if z > w.at:
                w.at = z
        return False
