"""What the other workers of the host send: entries, which are routed here, and what they want.

What comes from a sibling is matched again here and never forwarded. An entry for a share group names the group: see
pyx.delivery.sharing. What they are sent is in pyx.delivery.peers.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from pyx.core cimport counters as count
from pyx.core.work cimport FILTER, PLACE, PYTHON, VISIT, work
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.fanout cimport FanOut
from pyx.delivery.peers cimport PUBLISHER, Peers, SAMPLED
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.retaining cimport Retaining
from pyx.delivery.router_state cimport RouterState, SHARE
from pyx.delivery.session cimport Session
from pyx.delivery.sharing cimport Sharing
from pyx.matching.group_members cimport roster_put, roster_strike
from pyx.matching.interest cimport WholeInterest
from pyx.matching.subscriptions cimport Filter, Group, Matches, SubscriberList
from pyx.protocol.message cimport Content
from pyx.storage.entries cimport ENTRY_CONTROL, ENTRY_OWN_FRAME, ENTRY_RETAINED_ONLY, Entry, read_entry


cdef const char* NO_SECONDS = "\0\0\0\0"

cdef enum:
    AT_ONCE_MS = 1000           # so long the way to a sibling may take what is to be sent at once, or not at all


cdef Matches* matches_of(Siblings self, Entry* e) except NULL:
    cdef Matches* m = self.subscriptions.cached(e.content.topic, e.content.topic_len)
    return m if m != NULL else self.subscriptions.match(e.content.topic, e.content.topic_len)


cdef bint is_too_late(const Content* c, uint64_t wall_ms) noexcept:
    # Its Message Expiry Interval has passed on the way. One of 0 is for those who can have it at once: a way that
    # nothing holds up does not count
    cdef uint64_t until = c.expires
    if c.expiry_offset >= 0 and memcmp(c.props + c.expiry_offset, NO_SECONDS, 4) == 0:
        until += AT_ONCE_MS
    return wall_ms >= until


cdef int expire_entry(Siblings self, Entry* e) except -1:
    # nobody is sent it [MQTT-3.3.2-5]; a copy of each session that would have been is counted
    cdef Matches* m
    cdef SubscriberList* l
    cdef Session s
    cdef uint32_t i, k, copies = 1 if e.group != NULL else 0
    if not e.flags & ENTRY_RETAINED_ONLY:
        m = matches_of(self, e)
        self.state.count_effort(m)
        self.in_hand.stamp += 1
        for i in range(m.count):
            l = &m.filters[i].plain
            work(VISIT + l.count * VISIT)
            for k in range(l.count):
                s = <Session>l.items[k].session
                if s.stamp != self.in_hand.stamp:
                    s.stamp = self.in_hand.stamp
                    copies += 1
                    self.state.drops.add(s, count.DROPPED_EXPIRED, 1)
    self.counters.at[count.MATCHED] += copies
    self.counters.at[count.DROPPED_EXPIRED] += copies
    if copies:
        self.backlog.tally(&e.content, 0, copies)
    return 0


@cython.final
cdef class Siblings:
    """Routes what siblings send, and takes in what they want."""

    def __cinit__(self, RouterState state not None, PublishInHand in_hand not None, Peers peers not None,
                  Backlog backlog not None, Retaining retaining not None, FanOut fanout not None,
                  Sharing sharing not None):
        self.state = state
        self.counters = state.counters
        self.subscriptions = state.subscriptions
        self.in_hand = in_hand
        self.peers = peers
        self.backlog = backlog
        self.retaining = retaining
        self.fanout = fanout
        self.sharing = sharing

    def set_interest(self, int peer, bytes text not None, int members, bytes group=None, int online=0, bint full=False):
        """A sibling's interest in a filter, or in a group of it: how many members it has (0: none any more), how many
        of them are online, and whether none of those can take a message now."""
        cdef Filter* f
        cdef Group* g
        cdef WholeInterest whole = self.whole_interest(peer)
        if members == 0:
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            if f == NULL:
                return
        else:
            f = self.subscriptions.hold(<const uint8_t*><const char*>text, len(text))
        if group is None:
            if whole is not None and members:
                whole.name_filter(f)
            self.subscriptions.set_sibling(f, peer, members > 0)
        else:
            g = self.subscriptions.groups.hold(f, <const uint8_t*><const char*>group, len(group))
            if whole is not None and members:
                whole.name_group(g)
            self.subscriptions.set_sibling_members(f, g, peer, <uint32_t>members, <uint32_t>online, full)

    def set_member(self, int peer, bytes text not None, bytes group not None, uint64_t identity, bint present,
                   uint64_t since):
        """One member that a sibling has of a group: since when it is online (0: offline), or that it has left."""
        cdef Filter* f
        cdef Group* g
        cdef WholeInterest whole = self.whole_interest(peer)
        if present:
            f = self.subscriptions.hold(<const uint8_t*><const char*>text, len(text))
            g = self.subscriptions.groups.hold(f, <const uint8_t*><const char*>group, len(group))
            roster_put(g, identity, since, NULL, <uint32_t>peer, 0 if whole is None else whole.number)
            return
        f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        if f != NULL:
            g = self.subscriptions.groups.hold(f, <const uint8_t*><const char*>group, len(group))
            roster_strike(g, identity, NULL, <uint32_t>peer)
            self.subscriptions.drop_if_unused(f, g)

    cdef WholeInterest whole_interest(self, int peer):
        # while it is told
        if self.interests is None:
            return None
        return self.interests.get(peer)

    def begin_interest(self, int peer):
        """All that a sibling wants is told from now on, by `set_interest` and `set_member`; what was known before stays
        in force, until it is told and `forget_unnamed` was called. Whoever begins again has the former one in vain."""
        self.interest_number += 1
        if self.interests is None:
            self.interests = {}
        self.interests[peer] = whole = WholeInterest(peer, self.interest_number)
        return whole

    def forget_unnamed(self, WholeInterest whole not None):
        """All of it was told: forget some of what a sibling wanted before and was not named. True: there may be more,
        call it again. No interest is in doubt any more."""
        if self.whole_interest(whole.sibling) is not whole:
            return False
        if not whole.told:
            whole.told = True
            self.peers.unsure_peers &= ~(<uint64_t>1 << whole.sibling)
        if whole.forget_some(self.subscriptions):
            return True
        del self.interests[whole.sibling]
        if not self.interests:
            self.interests = None
        return False

    def ingest(self, int peer, const uint8_t[::1] entries not None, list payloads not None, int used=0, size_t at=0,
               uint32_t position=0, uint32_t taken=0, uint64_t until=0):
        """Route a batch of a sibling: `entries` packed, `payloads` the frames of large ones, of which `used` are taken
        already. It begins behind `at` bytes with the entry `position`, and passes over those before `taken`. It stops
        when publishes have cost more than `until` (see `worked`; 0: a turn from now), but not before the first one.
        Returns (payloads taken, [(position, reason)] of entries refused or None, (at, position) to go on or None)."""
        cdef size_t n = <size_t>entries.shape[0]
        cdef Entry e
        cdef int reason
        cdef list refused = None
        cdef object publisher = None
        self.in_hand.adoptable = None
        self.state.clock.hear()
        if at > n:
            raise ValueError("the batch has no such place")
        if until == 0:
            until = self.state.effort() + self.state.batch_turn
        while at < n:
            at += read_entry(&entries[at], n - at, &e)
            if position < taken:
                work(PLACE)
                if e.flags & ENTRY_OWN_FRAME:
                    used += 1
                position += 1
                continue
            if e.flags & ENTRY_CONTROL:
                if e.content.topic_len == 1 and e.content.topic[0] == SAMPLED:
                    # a sampled publish: those of the sequenced part, which comes second, are of this tick too
                    if e.content.payload_len == sizeof(uint64_t) and self.state.tick_ns:
                        memcpy(&self.state.delivered_since, e.content.payload, sizeof(uint64_t))
                    position += 1
                    continue
                if e.content.topic_len == 1 and e.content.topic[0] == PUBLISHER:
                    publisher = e.content.payload[:e.content.payload_len].decode("utf-8", "surrogatepass")
                    position += 1
                    continue
                work(PYTHON)
                self.state.spent += PYTHON
                self.state.handler.told(
                    peer, PyBytes_FromStringAndSize(<const char*>e.content.topic, e.content.topic_len),
                    PyBytes_FromStringAndSize(<const char*>e.content.payload, e.content.payload_len))
                position += 1
                continue
            work(FILTER)
            self.counters.at[count.MESH_ENTRIES_RECEIVED] += 1
            self.in_hand.check_frame(&e, payloads, used)
            try:
                reason = self.take_entry(&e, publisher, payloads, used)
            except Exception as error:
                # of this message, and not of the others of the batch, nor of the worker
                reason = 0
                self.counters.at[count.INTERNAL_ERRORS] += 1
                self.state.handler.defect(None, error)
            if e.flags & ENTRY_OWN_FRAME:
                used += 1
            if reason:
                if refused is None:
                    refused = []
                refused.append((position, reason))
            self.in_hand.held = None
            publisher = None
            position += 1
            if self.state.effort() > until and at < n:
                return used, refused, (at, position)
        return used, refused, None

    cdef int take_entry(self, Entry* e, object publisher, list payloads, int used) except -1:
        # 0, or why it is refused
        cdef uint64_t sent = 0, dropped = 0
        cdef Matches* m
        cdef int reason = 0
        self.in_hand.begin_entry(e, payloads, used)
        self.in_hand.publisher = publisher
        if self.in_hand.held is not None:
            self.in_hand.held.publisher = publisher
        if e.content.retain and not (e.group != NULL and e.flags & ENTRY_RETAINED_ONLY):
            self.retaining.keep()                     # else another entry has brought it, or it was chosen again
        if self.state.prefixes.levels:
            sent, dropped = self.counters.at[count.PUBLISH_SENT], self.state.all_dropped()
        if e.content.expires and is_too_late(&e.content, self.state.wall_ms):
            return expire_entry(self, e)
        if not e.flags & ENTRY_RETAINED_ONLY:
            m = matches_of(self, e)
            self.state.count_effort(m)
            if m.count == 1:
                self.fanout.fan_out(m.filters[0])
            elif m.count:
                self.fanout.fan_out_merged(m)
        if e.group != NULL:
            self.state.spent += SHARE
            reason = self.sharing.chosen(e)
        if self.state.prefixes.levels:
            self.state.prefixes.add(
                &e.content, self.counters.at[count.PUBLISH_SENT] - sent, self.state.all_dropped() - dropped)
        return reason
