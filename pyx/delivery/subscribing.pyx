"""Begin, replacement and end of subscriptions; sessions going online and offline."""
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core cimport counters as count
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.connection cimport Connection, OPEN
from pyx.delivery.ending cimport Ending, Remains
from pyx.delivery.enrolling cimport Enrolling
from pyx.delivery.peers cimport Peers
from pyx.delivery.router_state cimport ABSENCES_MAX, RouterState
from pyx.delivery.session cimport SHARED_COPY, Session, is_stored
from pyx.delivery.windows cimport Windows
from pyx.matching.memberships cimport add_former
from pyx.matching.subscriptions cimport Filter, Group, Subscriber
from pyx.storage.records cimport LogKey


@cython.final
cdef class Subscribing:
    """The subscriptions of the sessions of one worker, and their connections."""

    def __cinit__(self, RouterState state not None, Peers peers not None, Windows windows not None,
                  Bounding bounding not None, Enrolling enrolling not None, Ending ending not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.subscriptions = state.subscriptions
        self.peers = peers
        self.windows = windows
        self.bounding = bounding
        self.enrolling = enrolling
        self.ending = ending

    def subscribe(self, Session s not None, bytes text not None, int options, uint32_t identifier=0, bytes group=None):
        """Add or replace a subscription; return whether it is new. `text`: a valid Topic Filter without $share;
        `options`: the byte of the SUBSCRIBE."""
        cdef Filter* f = self.subscriptions.hold(<const uint8_t*><const char*>text, len(text))
        cdef Group* g = NULL
        cdef int new, held = -1
        cdef uint8_t was
        cdef bint wanted = False            # at QoS > 0 before
        if group is not None:
            g = self.subscriptions.groups.hold(f, <const uint8_t*><const char*>group, len(group))
        else:
            held = self.subscriptions.membership(f, NULL, <void*>s, &s.own)
            if held >= 0:
                was = <uint8_t>(f.plain.items[s.own.items[held].index].slot_options >> 24)
                wanted = was & 3 != 0
                if wanted != (options & 3 != 0) or options & 4 and not was & 4:
                    s.keep_former(self.subscriptions, &s.own.items[held], was, self.state.next_position - 1)
        new = self.subscriptions.add(
            f, g, <void*>s, &s.own, <uint8_t>options, identifier, s.connection is not None)
        if self.state.keeps and is_stored(s) and not self.restoring:
            self.windows.mark_dirty(s)           # to store that it has been sent everything up to here
        if group is None and (new or not wanted and s.absences is None):
            # messages in the log already were not for it, or were sent at QoS 0
            s.own.items[held if held >= 0 else <int>s.own.count - 1].since = self.state.next_position - 1
        if new:
            if g != NULL:
                self.enrolling.joined(g, s)
            elif self.peers.interest is not None and f.plain.count == 1:
                self.ending.tell_interest(f, text, None, s.durable)
        self.ending.count_filters()
        return bool(new)

    def since(self, Session s not None, bytes text not None):
        """Return (log position behind which its subscription to this Topic Filter is valid: messages before it were
        published earlier, or not wanted; spans before it still to be sent, as from `Session.formers`)."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef int held = self.subscriptions.membership(f, NULL, <void*>s, &s.own) if f != NULL else -1
        if held < 0:
            return 0, []
        return s.own.items[held].since, s.formers(&self.subscriptions.formers, &s.own.items[held])

    def terms(self, Session s not None, bytes text not None, bytes group=None):
        """Return (options, Subscription Identifier) of its subscription to this Topic Filter, or its share of it in
        this group, or None."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef Group* g = self.ending.group_of(f, group) if group is not None and f != NULL else NULL
        cdef int held = -1
        cdef Subscriber* sub = NULL
        if f != NULL and (group is None or g != NULL):
            held = self.subscriptions.membership(f, g, <void*>s, &s.own)
        if held >= 0:
            sub = g.members.items if g != NULL else f.plain.items
            sub += s.own.items[held].index
        return (sub.slot_options >> 24, sub.identifier) if sub != NULL else None

    def has(self, Session s not None, bytes text not None, bytes group=None):
        """Return whether it has a subscription to this Topic Filter, or a share of it in this group."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef Group* g = self.ending.group_of(f, group) if group is not None else NULL
        if f == NULL or group is not None and g == NULL:
            return False
        return self.subscriptions.membership(f, g, <void*>s, &s.own) >= 0

    def restore_subscription(self, Session s not None, bytes text not None, int options, uint32_t identifier,
                             bytes group, uint64_t since, formers=()):
        """Restore a stored subscription, for a session without a connection."""
        self.restoring = True
        try:
            self.subscribe(s, text, options, identifier, group)
        finally:
            self.restoring = False
        if group is not None:
            return
        # it must not begin behind the next position: a disk may have lost the blocks before it
        s.own.items[s.own.count - 1].since = min(since, self.state.next_position - 1)
        for was, begin, end in formers:
            if begin < self.state.next_position - 1:
                add_former(&self.subscriptions.formers, &s.own.items[s.own.count - 1], was, begin,
                           min(<uint64_t>end, self.state.next_position - 1))

    cdef int drop_unsubscribed(self, Session s) except -1:
        # count the unsent messages of the only subscription of a session, before it ends. (If there are others, unsent
        # messages may still match them; messages that match none were never counted as matched)
        cdef uint64_t size = 0, messages
        if s.behind and s.own.count == 1:
            messages = <uint64_t>self.bounding.backlog_after(s, s.cursor)[0] - self.bounding.in_holes(s, &size)
            self.counters.at[count.MATCHED] += messages
            self.counters.at[count.DROPPED_UNSUBSCRIBED] += messages
            self.state.drops.add(s, count.DROPPED_UNSUBSCRIBED, messages)
        return 0

    def unsubscribe(self, Session s not None, bytes text not None, bytes group=None, Remains remains=None):
        """Remove a subscription; return False if there was none. Messages that wait for this member of a group are
        handed on (work that takes long is left in `remains`, for `clear`); messages in flight are completed."""
        cdef Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef Group* g = NULL
        cdef uint32_t number = 0
        cdef list shares
        cdef int i
        if f == NULL:
            return False
        if group is not None:
            g = self.ending.group_of(f, group)
            if g == NULL:
                return False
        i = self.subscriptions.membership(f, g, <void*>s, &s.own)
        if i < 0:
            return False
        if group is None:
            self.drop_unsubscribed(s)
        if f.index != NULL:
            (<LogKey>f.index).rests = False
            if group is None and s.unread is not None and s.unread.lists(<LogKey>f.index):
                # its unread messages in this index may be in its other indexes too
                self.bounding.seek(s)
        if self.state.keeps and is_stored(s):
            self.windows.mark_dirty(s)
            if group is None and s.inflight:
                self.windows.keep_unsubscribed(s)
        if g != NULL:
            self.enrolling.strike(g, s)
            number = g.number
        self.subscriptions.remove(&s.own, <uint32_t>i)
        if self.peers.interest is not None:
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            if group is not None or f == NULL or f.plain.count == 0:
                self.ending.tell_interest(f, text, group, False)
        s.batch = None                  # to be read again without this filter
        s.batch_at = 0
        if number:
            shares = [(number, *share) for share in s.take_queued(number, SHARED_COPY)]
            if remains is None:
                self.ending.hand_on_shares(s, shares, count.DROPPED_UNSUBSCRIBED)
            elif shares:
                remains.session = s
                remains.counter = count.DROPPED_UNSUBSCRIBED
                remains.shares.extend(shares)
                self.ending.shares_left += len(shares)
            if s.behind and s.connection is not None:
                self.state.set_ready(s)
        self.ending.count_filters()
        return True

    def attach(self, Session s not None, Connection conn not None):
        """Give the session this connection; messages in flight will be resent [MQTT-4.4.0-1]."""
        conn.session = conn.had = s
        conn.state = OPEN
        s.connection = conn
        s.version = conn.version
        self.enrolling.leaving.discard(s)
        self.subscriptions.set_online(&s.own, s.unread is None, True)
        self.enrolling.tell_online(s)
        if s.put_up_again():
            if not s.behind:
                s.behind = True
                s.cursor = self.state.next_position - 1
                self.state.fell_behind(s)
        if s.absences is not None:
            s.absences[len(s.absences) - 1] = (s.absences[len(s.absences) - 1][0], self.state.next_position - 1)
        if s.behind:
            self.state.set_ready(s)

    def detach(self, Session s not None, Remains remains=None):
        """Take the connection from the session. A session that is not durable ends: `remains` as in `end_session`."""
        if s.watched is not None:
            self.windows.sender.drop_deferred(s)
            if (<Connection>s.connection).out.qos0:
                s.watched.lose_qos0()
            s.end_watching()
        s.connection = None
        self.enrolling.leaving.discard(s)
        s.releases = s.resend = None
        s.batch = None
        s.batch_at = 0
        if s.durable:
            if not s.behind:
                s.behind = True
                s.cursor = self.state.next_position - 1
                self.state.fell_behind(s)
            if self.limits.queue_qos0:
                if s.absences is None:
                    s.absences = []
                if len(s.absences) >= ABSENCES_MAX:
                    s.absences[0] = (s.absences[0][0], s.absences[1][1])
                    del s.absences[1]
                s.absences.append((self.state.next_position - 1, <uint64_t>-1))
            self.subscriptions.set_offline(&s.own, s.unread is None)
            self.enrolling.tell_online(s)
            if self.state.keeps:
                self.windows.mark_dirty(s)
        else:
            self.ending.end_session(s, remains)
