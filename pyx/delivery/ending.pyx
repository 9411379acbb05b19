"""The end of sessions.

The queue and window of a session are dropped at once, and its entries in the lists of subscribers removed: after that
nothing is matched with it or sent to it. The names of its subscriptions are left (their Filters, some of them without
subscribers now, the siblings' knowledge of them, records in the store), and shares of groups for other members. For a
session with thousands of these that is too much for one callback: they are put into its `Remains`, which are cleared a
part at a time. Meanwhile a Filter without subscribers costs nothing but its memory.

Siblings are sent the current state of a Filter: it does not matter who has subscribed to it since. The record of a
share is deleted in the same batch that stores its new place, so that a crash in between loses none.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pyx.core cimport counters as count
from pyx.core.work cimport KIBI, OBJECT, PLACE, PYTHON, VISIT, work
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.enrolling cimport Enrolling, HASH_TOPIC
from pyx.delivery.handing_on cimport HandingOn
from pyx.delivery.peers cimport Peers
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport FREE, Inflight, Queued, SHARED_COPY, Session, WAIT_PUBACK
from pyx.delivery.windows cimport OWN_RECORD, Windows
from pyx.matching.filters cimport Group, Membership, Memberships, filter_text
from pyx.matching.group_members cimport enrolled_strike
from pyx.matching.subscriptions cimport Filter
from pyx.protocol.message cimport Message


cdef enum:
    NAME_HEAD_BYTES = 5         # of a name: u16 length of the Topic Filter, u16 of the ShareName, u8 whether it has one


@cython.final
cdef class Remains:
    """The names and shares of ended sessions or subscriptions, still to be cleared."""

    def __cinit__(self):
        self.shares = []
        self.counter = count.DROPPED_NO_MEMBER

    def __dealloc__(self):
        free(self.names)

    def __len__(self):
        return self.count + len(self.shares)

    cdef int gather(self, const Memberships* own) except -1:
        cdef uint32_t i
        cdef size_t size = 1
        cdef const Membership* e
        cdef uint8_t* p
        cdef uint16_t name_length
        for i in range(own.count):
            e = &own.items[i]
            size += NAME_HEAD_BYTES + e.filter.length + (e.group.name_length if e.group != NULL else 0)
        work(own.count * (2 * VISIT) + size // 1024 * KIBI)
        p = self.names = <uint8_t*>malloc(size)
        if p == NULL:
            raise MemoryError
        for i in range(own.count):
            e = &own.items[i]
            name_length = e.group.name_length if e.group != NULL else 0
            memcpy(p, &e.filter.length, 2)
            memcpy(p + 2, &name_length, 2)
            p[4] = e.group != NULL
            memcpy(p + NAME_HEAD_BYTES, filter_text(e.filter), e.filter.length)
            p += NAME_HEAD_BYTES + e.filter.length
            if name_length:
                memcpy(p, e.group.name, name_length)
            p += name_length
        self.count = own.count
        return 0

    cdef tuple take(self):
        # the next Topic Filter, and its ShareName or None
        cdef const uint8_t* p = self.names + self.at
        cdef uint16_t length, name_length
        memcpy(&length, p, 2)
        memcpy(&name_length, p + 2, 2)
        self.at += NAME_HEAD_BYTES + length + name_length
        self.count -= 1
        return (
            PyBytes_FromStringAndSize(<const char*>p + NAME_HEAD_BYTES, length),
            PyBytes_FromStringAndSize(<const char*>p + NAME_HEAD_BYTES + length, name_length) if p[4] else None,
        )


@cython.final
cdef class Ending:
    """The end of sessions, and its announcement to siblings."""

    def __cinit__(self, RouterState state not None, Peers peers not None, Windows windows not None,
                  BackPressure back_pressure not None, Bounding bounding not None,
                  Enrolling enrolling not None, HandingOn handing_on not None):
        self.state = state
        self.counters = state.counters
        self.subscriptions = state.subscriptions
        self.peers = peers
        self.windows = windows
        self.back_pressure = back_pressure
        self.bounding = bounding
        self.enrolling = enrolling
        self.handing_on = handing_on

    # ------------------------------------------------------------ messages to siblings

    cdef int tell_interest(self, Filter* f, bytes text, bytes group, bint durable) except -1:
        # tell siblings whether the filter has subscribers here, or how many members the group has
        cdef Group* g
        work(2 * PYTHON)
        if group is None:
            self.peers.interest.change(text, None, 1 if f != NULL and f.plain.count else 0, durable)
            self.peers.links_due = True
            if f == NULL or f.siblings & ~self.peers.rails == 0:    # else siblings want it in any case
                self.peers.tell_hosts(f, text)
            return 0
        g = self.group_of(f, group)
        if g != NULL:
            return self.enrolling.tell_group(g, durable)
        self.peers.interest.change(text, group, 0, False)
        self.peers.links_due = True
        return self.peers.tell_hosts_group(NULL, text, group)

    cdef Group* group_of(self, Filter* f, bytes name) except? NULL:
        cdef bytes label
        if f == NULL or f.groups == NULL:
            return NULL
        label = name + b"/" + filter_text(f)[:f.length]
        return self.subscriptions.groups.find(<const uint8_t*><const char*>label, len(label))

    cdef int tell_ended(self, list plain, list groups) except -1:
        # tell siblings that a session's subscriptions have ended
        cdef Filter* f
        cdef bytes text, name
        if self.peers.interest is None:
            return 0
        for text in plain:  # siblings may still want it, and so other hosts have to send it to this one
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            self.tell_interest(f, text, None, False)
        for text, name in groups:
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            self.tell_interest(f, text, name, False)
        return 0

    # ------------------------------------------------------------ a session ends

    def end_session(self, Session s not None, Remains remains=None):
        """Forget the session, with its subscriptions and queue. Unacknowledged shares of a group are handed on to other
        members. Work that may take long is left in `remains`, if given, for `clear`."""
        cdef list shares
        cdef uint32_t dropped = 0
        cdef list groups = [], plain = []
        if remains is None:
            self.name_interest(s, plain, groups)
        else:
            remains.session = s
            remains.gather(&s.own)
        shares = self.take_shares(s, remains is not None, &dropped)
        try:
            self.leave_groups(s, remains is None)
            if s.behind:
                unread = self.bounding.backlog(s)[0]
                dropped += unread
                self.counters.at[count.MATCHED] += unread
            if s.hold_state:
                self.back_pressure.end_hold(s)
            if self.state.keeps:
                self.windows.forget_window(s)
                self.windows.wake(s)
        finally:                            # the filters point to the session: this must end, whatever fails
            self.counters.at[count.DROPPED_SESSION_ENDED] += dropped
            self.state.drops.add(s, count.DROPPED_SESSION_ENDED, dropped)
            s.connection = None
            s.releases = s.resend = None
            self.subscriptions.remove_all(&s.own, remains is None)
            s.clear()
            s.behind = False
            try:
                self.count_filters()
                self.tell_ended(plain, groups)
            finally:
                if remains is not None:
                    remains.shares = shares
                    self.shares_left += len(shares)
                else:
                    self.hand_on_shares(s, shares, count.DROPPED_NO_MEMBER)

    cdef int name_interest(self, Session s, list plain, list groups) except -1:
        # collect the subscriptions whose end siblings must learn of
        cdef uint32_t i
        cdef Membership* e
        work(s.own.count * (VISIT + OBJECT))
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group != NULL:
                groups.append((filter_text(e.filter)[:e.filter.length], e.group.name[:e.group.name_length]))
            elif self.peers.interest is not None and e.filter.plain.count == 1:
                plain.append(filter_text(e.filter)[:e.filter.length])
        return 0

    cdef list take_shares(self, Session s, bint with_records, uint32_t* dropped):
        # [(group, message, number of its record or 0)] of the shares for other members, in the order of sending;
        # `dropped`: the number of other messages. with_records: their records are not deleted with the session
        cdef list sent = [], shares
        cdef uint32_t i
        cdef Inflight* slot
        cdef Queued* q
        work(s.window_cap * PLACE + s.queue_count * VISIT)
        for i in range(s.window_cap):
            slot = &s.window[i]
            if slot.state == FREE:
                continue
            if slot.flags & SHARED_COPY and slot.state == WAIT_PUBACK and slot.message != NULL:
                sent.append((slot.order, slot.group, <object>slot.message,
                             slot.position if with_records and slot.flags & OWN_RECORD else 0))
                if with_records:
                    slot.flags &= ~OWN_RECORD
            else:
                dropped[0] += 1
        sent.sort(key=order_of)
        shares = [share[1:] for share in sent]
        for i in range(s.queue_count):
            q = &s.queue[(s.queue_head + i) & (s.queue_cap - 1)]
            if q.flags & SHARED_COPY:
                shares.append((q.origin, <object>q.message, q.number if with_records else 0))
                if with_records:
                    q.number = 0
            else:
                dropped[0] += 1
        return shares

    cdef int leave_groups(self, Session s, bint tell) except -1:
        # leave the groups that know their members by name, before the memberships end
        cdef uint32_t i
        cdef Membership* e
        work(s.own.count * PLACE)
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group == NULL:
                continue
            if tell:
                self.enrolling.strike(e.group, s)
            elif e.group.strategy >= HASH_TOPIC:
                enrolled_strike(e.group, s.identity, <void*>s, <uint32_t>self.state.worker)
        return 0

    cdef int count_filters(self) except -1:
        self.counters.at[count.SUBSCRIPTIONS] = self.subscriptions.count
        self.counters.at[count.FILTERS] = self.subscriptions.filters
        return 0

    # ------------------------------------------------------------ remains

    def clear(self, Remains remains not None, uint32_t most):
        """Clear at most `most` of the subscriptions and shares; return these subscriptions as the client named them.
        One that fails counts as cleared."""
        cdef list names = []
        cdef uint32_t n = min(most, remains.count)
        cdef bytes text, group
        cdef list shares
        work(<uint64_t>n * (4 * OBJECT))
        for _ in range(n):
            text, group = remains.take()
            names.append(text if group is None else b"$share/" + group + b"/" + text)
            self.forget_filter(remains.session, text, group)
        self.count_filters()
        if n < most and remains.shares:
            shares = remains.shares[:most - n]
            del remains.shares[:most - n]
            self.shares_left -= len(shares)
            self.hand_on_shares(remains.session, shares, remains.counter)
        return names

    cdef int forget_filter(self, Session s, bytes text, bytes group) except -1:
        # the session has left the lists of this filter before
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef Group* g = self.group_of(f, group) if group is not None else NULL
        cdef bint is_named = g != NULL and g.strategy >= HASH_TOPIC
        if self.peers.interest is not None and is_named:
            work(PYTHON)
            self.peers.interest.member(text, group, s.identity, False, 0)
            self.peers.links_due = True
        if f != NULL:
            self.subscriptions.drop_if_unused(f, g)
        if self.peers.interest is None:
            return 0
        f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        if group is not None or f == NULL or f.plain.count == 0:
            self.tell_interest(f, text, group, False)
        return 0

    cdef int hand_on_shares(self, Session s, list shares, int counter) except -1:
        # hand each on to another member, or count it as dropped
        cdef Message m
        failed = None
        for number, m, record in shares:
            if record:
                self.windows.forget_queued(s, record)
            try:
                self.hand_on_or_drop(number, m, counter)
            except Exception as error:
                self.counters.at[counter] += 1
                failed = error
        if failed is not None:
            raise failed
        return 0

    cdef int hand_on_or_drop(self, uint32_t group, Message m, int counter) except -1:
        if not self.handing_on.hand_on(group, m):
            self.counters.at[counter] += 1
        return 0


cdef object order_of(tuple copy):
    """Sort key: the order in which copies were sent."""
    return copy[0]
