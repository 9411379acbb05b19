"""Handing on: another choice of a member, for a message of a share group that the chosen one did not take.

It is made when a sibling refuses the message, because it has no member any more, or none online; when a sibling has
died before acknowledging it; and when a session of this worker leaves it behind.
"""
cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core import counters as count

from pyx.core.work cimport PLACE, VISIT, work
from pyx.delivery.answering cimport Answering
from pyx.delivery.connection cimport Connection, PendingAck
from pyx.delivery.enrolling cimport Enrolling, HASH_CLIENT
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport REFUSED_OFFLINE, RouterState
from pyx.delivery.sharing cimport Sharing
from pyx.matching.filters cimport Group, filter_text
from pyx.protocol.message cimport Message
from pyx.protocol.topics cimport topic_matches
from pyx.storage.entries cimport ENTRY_CONTROL, ENTRY_OWN_FRAME, ENTRY_RETAINED_ONLY, Entry, read_entry


@cython.final
cdef class HandingOn:
    """Another choice of a member, here or on another worker."""

    def __cinit__(self, RouterState state not None, PublishInHand in_hand not None, Answering answering not None,
                  Enrolling enrolling not None, Sharing sharing not None):
        self.state = state
        self.counters = state.counters
        self.subscriptions = state.subscriptions
        self.in_hand = in_hand
        self.answering = answering
        self.enrolling = enrolling
        self.sharing = sharing

    def choose_again(self, int peer, uint64_t tick, const uint8_t[::1] entries not None, list payloads not None,
                     list refusals not None):
        """Choose again for the entries that a sibling refused: (position, reason) in the batch of that tick, rising. It
        has no member of their groups, or none online. A member here or another worker is chosen, and the publishers'
        acks wait for these workers too."""
        cdef size_t at = 0, n = <size_t>entries.shape[0]
        cdef uint64_t bit = <uint64_t>1 << peer, others = 0
        cdef Entry e
        cdef int used = 0
        cdef uint32_t here = 0, position
        for position, reason in refusals:
            while True:
                if at >= n or position < here:
                    raise ValueError("no such mesh entry")
                at += read_entry(&entries[at], n - at, &e)
                here += 1
                if here > position:
                    break
                if e.flags & ENTRY_OWN_FRAME:
                    used += 1
            if e.flags & ENTRY_CONTROL or e.group == NULL:
                raise ValueError("no such mesh entry")
            if not self.again_guarded(&e, payloads, used, bit, 0 if reason == REFUSED_OFFLINE else bit, &others):
                self.counters.at[count.MATCHED] += 1
                self.counters.at[count.DROPPED_NO_MEMBER] += 1
            if e.flags & ENTRY_OWN_FRAME:
                used += 1
        if others:
            self.wait_longer(peer, tick, others)

    def choose_again_lost(self, int peer, uint64_t tick, const uint8_t[::1] entries not None, list payloads not None,
                          bint sent):
        """Choose again for the entries of a batch that a sibling had not acknowledged when it died: those for a share
        group go to another member, unless they have QoS 2 and were sent (they may have been delivered). Return the
        number of lost copies."""
        cdef size_t at = 0, n = <size_t>entries.shape[0]
        cdef uint64_t bit = <uint64_t>1 << peer, others = 0
        cdef Entry e
        cdef int used = 0
        cdef uint32_t lost = 0
        while at < n:
            at += read_entry(&entries[at], n - at, &e)
            if e.flags & ENTRY_CONTROL:
                continue
            if e.group == NULL or not e.flags & ENTRY_RETAINED_ONLY:
                lost += 1                       # the plain copy
            if e.group != NULL and (e.content.qos == 2 and sent or
                                    not self.again_guarded(&e, payloads, used, bit, bit, &others)):
                lost += 1
            if e.flags & ENTRY_OWN_FRAME:
                used += 1
        if others:
            self.wait_longer(peer, tick, others)
        return lost

    cdef bint again_guarded(self, Entry* e, list payloads, int used, uint64_t offline, uint64_t without,
                            uint64_t* others) except -1:
        # an internal error concerns this message only, not the batch
        try:
            return self.again(e, payloads, used, offline, without, others)
        except Exception as error:
            self.counters.at[count.INTERNAL_ERRORS] += 1
            self.state.handler.defect(None, error)
        return False

    cdef bint again(self, Entry* e, list payloads, int used, uint64_t offline, uint64_t without,
                    uint64_t* others) except -1:
        # choose another worker than that peer; others: workers whose acknowledgement must be waited for
        cdef Group* g = self.subscriptions.groups.find(e.group, e.group_len)
        cdef bint taken
        if g == NULL:
            return False
        self.in_hand.adoptable = None
        self.in_hand.begin_entry(e, payloads, used)
        if e.content.expires and self.state.wall_ms >= e.content.expires:
            self.in_hand.held = None
            self.counters.at[count.MATCHED] += 1
            self.counters.at[count.DROPPED_EXPIRED] += 1
            return True
        if g.strategy == 0:
            self.enrolling.ask_strategy(g)
        if g.strategy == HASH_CLIENT:
            self.in_hand.publisher = e.key
        taken = self.sharing.choose_anywhere(g, e.key, offline, without, NULL) == 1
        others[0] |= self.in_hand.mask
        self.in_hand.held = None
        if taken:
            self.counters.at[count.SHARED_REASSIGNED] += 1
        return taken

    cdef int wait_longer(self, int peer, uint64_t tick, uint64_t others) except -1:
        # acks that wait for `peer` to acknowledge `tick` now wait for `others` to acknowledge this tick as well. This
        # affects more publishers than necessary, but is rare
        cdef uint32_t i, k
        cdef Connection conn
        cdef PendingAck* a
        for i in range(self.answering.waiting.count):
            conn = <Connection>self.answering.waiting.items[i]
            work(VISIT + conn.ack_count * PLACE)
            for k in range(conn.ack_count):
                a = &conn.acks[(conn.ack_head + k) & (conn.ack_cap - 1)]
                if a.mask >> peer & 1 and a.tick <= tick:
                    a.mask |= others
                    a.tick = self.state.tick
        return 0

    cdef bint hand_on(self, uint32_t group, Message m) except -1:
        # hand a copy on to another member, here or elsewhere, because its own will not take it. It was counted as
        # matched when it was created, and is the same copy. False: no member is left
        cdef Group* g = self.subscriptions.groups.numbered(group)
        cdef bint taken
        if m.content.expires and self.state.wall_ms >= m.content.expires:
            self.counters.at[count.DROPPED_EXPIRED] += 1
            return True
        if g == NULL or not topic_matches(<const uint8_t*>filter_text(g.filter), g.filter.length, m.content.topic,
                                          m.content.topic_len):
            return False
        self.in_hand.begin(&m.content, None, m.publisher, NULL, 0, -1, 0)
        self.in_hand.held = m
        taken = self.sharing.share(g, NULL) == 1
        self.in_hand.held = None
        if taken:
            self.counters.at[count.MATCHED] -= 1
            self.counters.at[count.SHARED_REASSIGNED] += 1
        return taken
