"""Amounts queued for sessions that are behind, and their bounds.

Messages beyond the bounds of a session are dropped for that session alone, by moving its cursor (drop_oldest) or by a
hole (drop_newest). Bounds are checked when pyx.delivery.sweeping comes to an index that the session reads.

A session with more than MERGED_MAX filters has a directory of its unread messages (`pyx.delivery.unread`). If it
has none yet, they are *sought*: its filters' indexes are read, and new messages are noted behind the found ones.

All of this is done in slices: a callback does about SLICE of it, and the rest continues at the end of the next tick
(`Sweeping.go_on`).
"""
cimport cython
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc

from pyx.core cimport counters as count
from pyx.core.limits cimport DISCONNECT_WHEN_FULL, DROP_OLDEST, HOLD, QueueRule
from pyx.core.work cimport INDEX, OBJECT, VISIT, work
from pyx.delivery.back_pressure cimport BackPressure, Bounds, HOLDING, NO_HOLD
from pyx.delivery.connection cimport Connection
from pyx.delivery.journal cimport Journal
from pyx.delivery.router_state cimport (
    MERGED_MAX, QUOTA_EXCEEDED, READ_BYTES_MAX, RouterState, SLICE, free_pointers, pointers_push,
)
from pyx.delivery.session cimport Session, is_stored
from pyx.delivery.unread cimport Search, Unread
from pyx.delivery.windows cimport Windows
from pyx.matching.filters cimport Former, Membership
from pyx.matching.memberships cimport drop_formers
from pyx.protocol.message cimport Message, content_bytes
from pyx.storage.records cimport Batch, LogKey


cdef enum:
    HOLD_ROOM = 1000            # messages that may be under way when publishers begin to wait
    HOLES_MERGED_MAX = 256      # times filters: beyond this they are not counted index by index


cdef uint64_t behind_span(list spans, uint64_t position) except? 0xFFFFFFFFFFFFFFFF:
    # the end of the span that begins at or before this position and ends behind it; without one, the position
    cdef uint64_t a, z
    if spans is not None:
        work(<uint64_t>len(spans) * VISIT)
        for a, z in spans:
            if a <= position < z:
                position = z
    return position


cdef class Teller:
    cdef bint tell_on(self, Session s) except -1:
        raise NotImplementedError


@cython.final
cdef class Bounding(Bounds):
    """The amounts queued for the sessions of one worker, and their bounds."""

    def __cinit__(self, RouterState state not None, Journal journal not None, Windows windows not None,
                  BackPressure back_pressure not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.subscriptions = state.subscriptions
        self.journal = journal
        self.windows = windows
        self.back_pressure = back_pressure
        self.slice = SLICE

    def __dealloc__(self):
        free_pointers(&self.seekers)
        free_pointers(&self.crowded)
        free_pointers(&self.tellers)

    def abandon(self):
        """Release the references in C lists: see `Router.abandon`."""
        free_pointers(&self.seekers)
        free_pointers(&self.crowded)
        free_pointers(&self.tellers)

    def backlog(self, Session s not None):
        """Return (messages, bytes) in the log that the session has not read, without its own queue. A message that
        matches several of its filters counts for each."""
        cdef uint64_t gone, gone_bytes = 0
        if not s.behind:
            return 0, 0
        messages, size = self.backlog_after(s, s.cursor)
        gone = self.in_holes(s, &gone_bytes)
        return messages - gone, size - gone_bytes

    cdef tuple backlog_after(self, Session s, uint64_t position):
        # (messages, bytes) behind `position` in the indexes it reads, including holes
        cdef uint64_t messages = 0, size = 0
        cdef uint32_t i
        cdef Membership* e
        if s.unread is not None:
            i = s.unread.first_after(position)
            return s.unread.tail - i, s.unread.bytes_after(i)
        if s.own.count > MERGED_MAX:
            return 0, 0                         # not sought yet
        work(s.own.count * VISIT)
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL or e.filter.index == NULL:
                continue
            self.unread_of(s, e, position, &messages, &size)
        return messages, size

    cdef int unread_of(self, Session s, Membership* e, uint64_t position, uint64_t* messages,
                       uint64_t* size) except -1:
        # add the messages and bytes of one subscription behind `position`
        cdef bytes name = (<LogKey>e.filter.index).name
        cdef const Former* former
        cdef uint32_t i = e.former
        while i:
            former = &self.subscriptions.formers.items[i]
            if former.up_to > position:
                work(2 * INDEX)
                x = self.journal.store.backlog(name, max(position, former.since))
                y = self.journal.store.backlog(name, former.up_to)
                messages[0] += <uint64_t>x[0] - <uint64_t>y[0]
                size[0] += <uint64_t>x[1] - <uint64_t>y[1]
            i = former.next
        if (e.filter.plain.items[e.index].slot_options >> 24) & 3 == 0 and s.absences is None:
            return 0
        work(INDEX)
        x = self.journal.store.backlog(name, max(position, e.since))
        messages[0] += <uint64_t>x[0]
        size[0] += <uint64_t>x[1]
        return 0

    cdef tuple unread_after(self, Session s, uint64_t position):
        # the same without holes
        cdef uint64_t messages, size, a, z
        messages, size = self.backlog_after(s, position)
        if s.unread is not None:
            return messages, size               # dropped messages are not in it
        for a, z in s.holes or ():
            if z > position:
                x = self.backlog_after(s, max(a, position))
                y = self.backlog_after(s, z)
                messages -= <uint64_t>x[0] - <uint64_t>y[0]
                size -= <uint64_t>x[1] - <uint64_t>y[1]
        return messages, size

    cdef uint64_t in_holes(self, Session s, uint64_t* size) except? 0xFFFFFFFFFFFFFFFF:
        # messages and bytes of that backlog that were dropped, and counted, before
        cdef uint64_t messages = 0
        if s.unread is not None:
            return 0
        for a, z in s.holes or ():
            x = self.backlog_after(s, max(<uint64_t>a, s.cursor))
            y = self.backlog_after(s, max(<uint64_t>z, s.cursor))
            messages += x[0] - y[0]
            size[0] += x[1] - y[1]
        return messages

    cdef int seek(self, Session s) except -1:
        # it has many filters: search their indexes for its unread messages, in slices
        if s.search is None:
            s.search = Search()
            pointers_push(&self.seekers, s)
            self.state.unfinished = True
        s.search.anew = True
        return 0

    cdef int seek_begin(self, Session s) except -1:
        # new messages are noted at once from now on: a publish finds the session among the connected ones
        cdef uint32_t i, at
        cdef const Former* former
        cdef Membership* e
        cdef Search search = s.search
        search.anew = False
        search.places = []
        search.found = Unread()
        search.positions = set()
        s.unread = Unread()
        s.batch = None
        s.batch_at = 0
        search.up_to = self.state.next_position - 1
        self.subscriptions.set_online(&s.own, True, False)
        work(s.own.count * (VISIT + 2 * OBJECT))
        self.back_pressure.left -= s.own.count * <int64_t>(3 * VISIT + 2 * OBJECT)
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL or e.filter.index == NULL:
                continue
            drop_formers(&self.subscriptions.formers, e, s.cursor)
            # only the spans for which the index is kept: messages between them are in another index, or are not
            # wanted
            at = e.former
            while at:
                former = &self.subscriptions.formers.items[at]
                work(OBJECT)
                search.places.append((<object>e.filter.index, max(s.cursor, former.since), former.up_to))
                at = former.next
            if (e.filter.plain.items[e.index].slot_options >> 24) & 3 or s.absences is not None:
                search.places.append((<object>e.filter.index, max(s.cursor, e.since), search.up_to))
            elif e.former == 0:
                continue
            (<LogKey>e.filter.index).rests = False
        return 0

    cdef bint seek_on(self, Session s) except -1:
        # True: finished
        cdef Search search = s.search
        cdef Batch b
        cdef LogKey key
        cdef uint64_t after, up_to
        cdef uint32_t i
        if not s.behind or search is None:
            return True                         # the session has ended meanwhile
        if search.anew:
            self.seek_begin(s)
        while search.places and self.slice_left():
            key, after, up_to = search.places.pop()
            after = behind_span(s.holes, after)
            work(INDEX)
            self.back_pressure.left -= INDEX
            b = self.journal.store.read(key.name, after, READ_BYTES_MAX)
            work(b.count * (2 * OBJECT))
            self.back_pressure.left -= b.count * (2 * OBJECT)
            for i in range(b.count):
                if b.positions[i] > up_to:
                    break
                position = b.positions[i]
                if position in search.positions:
                    continue
                search.positions.add(position)
                if behind_span(s.holes, b.positions[i] - 1) == b.positions[i] - 1:
                    search.found.gather(b.positions[i], content_bytes(&(<Message>b.messages[i]).content), key)
            if b.count and b.truncated and b.positions[b.count - 1] < up_to:
                search.places.append((key, b.positions[b.count - 1], up_to))
        if search.places:
            return False
        self.back_pressure.left -= (search.found.tail + s.unread.tail) * <int64_t>(2 * VISIT)
        search.found.settle(s.unread)
        s.unread = search.found
        s.search = None
        self.crowd(s)
        if s.connection is not None:
            self.state.set_ready(s)
        return True

    cdef int crowd(self, Session s) except -1:
        # queue it for a check of its bounds
        if not s.crowded:
            s.crowded = True
            pointers_push(&self.crowded, s)
            self.state.unfinished = True
        return 0

    cdef int go_on(self) except -1:
        # as much as fits into the current slice
        cdef Session s
        while self.seekers.count and self.slice_left():
            s = <Session>self.seekers.items[self.seekers.count - 1]
            try:
                if not self.seek_on(s):
                    continue
            except Exception as error:
                s.search = None
                self.state.fail_session(s, error)
            self.seekers.count -= 1
            Py_DECREF(s)
        while self.crowded.count and self.slice_left():
            self.crowded.count -= 1
            s = <Session>self.crowded.items[self.crowded.count]
            s.crowded = False
            try:
                if s.behind:
                    self.bound(s)
            except Exception as error:
                self.state.fail_session(s, error)
            Py_DECREF(s)
        while self.back_pressure.flaggers.count and self.slice_left():
            s = <Session>self.back_pressure.flaggers.items[self.back_pressure.flaggers.count - 1]
            if self.back_pressure.flag_on(s):
                self.back_pressure.flaggers.count -= 1
                s.flagging = False
                Py_DECREF(s)
        if self.back_pressure.forgotten and self.slice_left():
            self.back_pressure.forget_on()
        while self.tellers.count and self.slice_left():
            s = <Session>self.tellers.items[self.tellers.count - 1]
            if self.teller.tell_on(s):
                self.tellers.count -= 1
                Py_DECREF(s)
        return 0

    cdef bint is_unfinished(self) noexcept:
        # work left in its own lists
        return self.seekers.count != 0 or self.crowded.count != 0 or self.tellers.count != 0

    def set_rule(self, Session s not None, int number):
        """Bound its backlog by the [[queue]] table of that number from now on; 0: by the defaults."""
        if number and s.rule == NULL:
            s.rule = <QueueRule*>calloc(1, sizeof(QueueRule))
            if s.rule == NULL:
                raise MemoryError()
        if number:
            s.rule[0] = self.limits.rules[number]
        s.queue_rule = <uint8_t>number

    cdef const QueueRule* rule_of(self, Session s) noexcept:
        return s.rule if s.queue_rule else &self.limits.rules[0]

    cdef int bound(self, Session s) except -1:
        # if the session's backlog is over its bound: move the cursor (drop_oldest), make a hole (drop_newest), or let
        # its publishers wait (hold)
        cdef QueueRule rule = self.rule_of(s)[0]
        cdef uint64_t total, size, gone, gone_bytes = 0, dropped
        cdef uint64_t holes = len(s.holes) if s.holes is not None else 0
        if s.search is not None:
            return 0                            # its backlog is not known yet: checked again after the search
        if s.unread is None:
            if s.own.count > MERGED_MAX or holes * s.own.count > HOLES_MERGED_MAX:
                return self.seek(s)
            self.back_pressure.left -= <int64_t>(s.own.count * (1 + 2 * holes) * INDEX)
        else:
            self.back_pressure.left -= 20 * VISIT
            s.unread.grown = 0
            s.unread.grown_bytes = 0
        total, size = self.backlog_after(s, s.cursor)
        if total <= rule.messages_max and size <= rule.bytes_max:
            return 0
        if s.holes is not None and rule.full == DROP_OLDEST:
            # without spans of the log that were never for it, or that it lost under another rule
            total, size = self.unread_after(s, s.cursor)
            if total <= rule.messages_max and size <= rule.bytes_max:
                return 0
        if rule.full == HOLD:
            gone = self.in_holes(s, &gone_bytes)
            if total - gone <= rule.messages_max and size - gone_bytes <= rule.bytes_max:
                return 0
            if s.hold_state == NO_HOLD:
                self.back_pressure.begin_hold(s)
            if s.hold_state == HOLDING and s.connection is not None and (<Connection>s.connection).paused:
                self.back_pressure.give_up(s, total - gone, size - gone_bytes)
            if s.hold_state == HOLDING:
                # room for messages under way
                rule.messages_max = rule.messages_max * 2 + HOLD_ROOM
                rule.bytes_max *= 2
            else:
                rule.messages_max = max(rule.messages_max, <uint32_t>min(s.hold.messages, 0xFFFFFFFFull))
                rule.bytes_max = max(rule.bytes_max, s.hold.bytes)
            if total <= rule.messages_max and size <= rule.bytes_max:
                return 0
        if rule.full == DROP_OLDEST:
            dropped = self.move_cursor(s, &rule, total)
        else:
            dropped = self.make_hole(s, &rule, total, size)
        if dropped:
            if self.state.keeps and is_stored(s):
                self.windows.mark_lazy(s)
            self.counters.at[count.MATCHED] += dropped
            self.counters.at[count.DROPPED_QUEUE_FULL] += dropped
            if s.connection is not None:
                self.state.note_drops(<Connection>s.connection, count.DROPPED_QUEUE_FULL, dropped)
                if rule.full == DISCONNECT_WHEN_FULL:
                    # not at once: the caller may be iterating over subscribers
                    self.state.close(<Connection>s.connection, QUOTA_EXCEEDED, "queue full")
            else:
                self.state.drops.add(s, count.DROPPED_QUEUE_FULL, dropped)
            self.state.handler.queue_full(s, dropped)
        return 0

    cdef int check_hold(self, Session s) except -1:
        # end the hold if its queue has shrunk by a quarter; give up if its publishers have waited for hold_ms_max
        cdef const QueueRule* rule = self.rule_of(s)
        cdef uint64_t messages, size
        messages, size = self.backlog(s)
        if rule.full != HOLD or messages <= rule.messages_max - rule.messages_max // 4 \
                and size <= rule.bytes_max - rule.bytes_max // 4:
            return self.back_pressure.end_hold(s)
        if s.hold_state == HOLDING and self.state.now_ms - s.hold.since >= self.limits.hold_ms_max:
            return self.back_pressure.give_up(s, messages, size)
        return 0

    cdef int let_go(self, Session s) except -1:
        cdef uint64_t messages, size
        messages, size = self.backlog(s)
        return self.back_pressure.give_up(s, messages, size)

    cdef uint64_t move_cursor(self, Session s, const QueueRule* rule, uint64_t total) except? 0xFFFFFFFFFFFFFFFF:
        # move it behind the oldest messages over the bound; returns how many
        cdef uint64_t lo = s.cursor, hi = self.journal.block.first - 1, mid, messages, size
        while lo < hi:
            mid = (lo + hi) // 2
            messages, size = self.unread_after(s, mid)
            if messages <= rule.messages_max and size <= rule.bytes_max:
                hi = mid
            else:
                lo = mid + 1
        s.cursor = lo
        s.batch = None
        s.batch_at = 0
        if s.unread is not None:
            s.unread.trim(lo)
        return total - <uint64_t>self.unread_after(s, lo)[0]

    cdef uint64_t make_hole(self, Session s, const QueueRule* rule, uint64_t total,
                            uint64_t total_bytes) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t lo, hi, mid, messages, size, gone, gone_bytes = 0, last = self.journal.block.first - 1
        gone = self.in_holes(s, &gone_bytes)
        if total - gone <= rule.messages_max and total_bytes - gone_bytes <= rule.bytes_max:
            return 0
        # keep the first messages up to the limit: the hole is everything behind position lo
        lo = s.holes[len(s.holes) - 1][1] if s.holes else s.cursor
        hi = last
        while lo < hi:
            mid = (lo + hi + 1) // 2
            messages, size = self.backlog_after(s, mid)
            if total - gone - messages <= rule.messages_max \
                    and total_bytes - gone_bytes - size <= rule.bytes_max:
                lo = mid
            else:
                hi = mid - 1
        messages = self.backlog_after(s, lo)[0]
        if s.holes is None:
            s.holes = []
        if s.holes and (s.holes[len(s.holes) - 1][1] == lo or len(s.holes) >= 64):
            # never more than 64 holes: beyond, messages between the last two are dropped as well
            a, z = s.holes[len(s.holes) - 1]
            messages += self.backlog_after(s, z)[0] - self.backlog_after(s, lo)[0] if z < lo else 0
            s.holes[len(s.holes) - 1] = (a, last)
        else:
            s.holes.append((lo, last))
        if s.unread is not None:
            s.unread.drop(s.holes[len(s.holes) - 1][0])
        return messages
