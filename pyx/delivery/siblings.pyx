"""Messages from peers: entries, which are routed here, and their interest.

Entries from a sibling are matched again here and never forwarded. Those that come over a rail, from another host, go to
this worker's siblings as well, and to no other host. An entry for a share group names the group: see
pyx.delivery.sharing. Messages to peers are in pyx.delivery.peers.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from pyx.core cimport counters as count
from pyx.core.work cimport FILTER, PLACE, PYTHON, VISIT, work
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.fanout cimport FanOut
from pyx.delivery.peers cimport PUBLISHER, Peers, SAMPLED
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.retaining cimport Retaining
from pyx.delivery.router_state cimport NUMBER_WORKER_BITS, RouterState, SHARE
from pyx.delivery.session cimport Session
from pyx.delivery.sharing cimport Sharing
from pyx.matching.group_members cimport enrolled_put, enrolled_strike
from pyx.matching.interest cimport WholeInterest
from pyx.matching.subscriptions cimport Filter, Group, Matches, SubscriberList
from pyx.protocol.message cimport Content, Message
from pyx.storage.entries cimport ENTRY_CONTROL, ENTRY_OWN_FRAME, ENTRY_RETAINED_ONLY, Entry, read_entry


cdef const char* NO_SECONDS = "\0\0\0\0"

cdef enum:
    AT_ONCE_MS = 1000           # allowed time in transit for messages with an expiry interval of 0
    AHEAD_US_MAX = 60_000_000   # of this host's clock: times of other hosts beyond that are not followed


cdef Matches* matches_of(Siblings self, Entry* e) except NULL:
    cdef Matches* m = self.subscriptions.cached(e.content.topic, e.content.topic_len)
    return m if m != NULL else self.subscriptions.match(e.content.topic, e.content.topic_len)


cdef bint is_too_late(const Content* c, uint64_t wall_ms) noexcept:
    # has its Message Expiry Interval passed in transit? An interval of 0 means delivery at once or not at all: an
    # undelayed transit does not count
    cdef uint64_t until = c.expires
    if c.expiry_offset >= 0 and memcmp(c.props + c.expiry_offset, NO_SECONDS, 4) == 0:
        until += AT_ONCE_MS
    return wall_ms >= until


cdef int expire_entry(Siblings self, Entry* e) except -1:
    # it is not delivered [MQTT-3.3.2-5]; one expired copy is counted for each session that matches
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
    """The routing of entries from peers, and the record of their interest."""

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
        """Set a sibling's interest in a filter, or in a group of it: `members`: how many it has (0: none any more);
        `online`: how many of them are online; `full`: none of those can take a message now."""
        cdef Filter* f
        cdef Group* g
        cdef WholeInterest whole = self.whole_interest(peer)
        cdef uint64_t rails = self.peers.rails
        cdef bint changes_host = False          # what others want of this host
        if members == 0:
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            if f == NULL:
                return
        else:
            f = self.subscriptions.hold(<const uint8_t*><const char*>text, len(text))
        if group is None:
            if whole is not None and members:
                whole.name_filter(f)
            if self.peers.host_interest is not None and rails >> peer & 1 == 0:
                changes_host = f.plain.count == 0 and f.siblings & ~rails & ~(<uint64_t>1 << peer) == 0 and \
                    (f.siblings >> peer & 1 != 0) != (members > 0)
            self.subscriptions.set_sibling(f, peer, members > 0)
        else:
            g = self.subscriptions.groups.hold(f, <const uint8_t*><const char*>group, len(group))
            if whole is not None and members:
                whole.name_group(g)
            changes_host = self.peers.host_interest is not None and rails >> peer & 1 == 0
            self.subscriptions.set_sibling_members(f, g, peer, <uint32_t>members, <uint32_t>online, full)
        if changes_host:
            self.tell_hosts(text, group)

    cdef int tell_hosts(self, bytes text, bytes group) except -1:
        cdef const Filter* f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        cdef bytes label
        if group is None:
            return self.peers.tell_hosts(f, text)
        label = group + b"/" + text
        return self.peers.tell_hosts_group(
            self.subscriptions.groups.find(<const uint8_t*><const char*>label, len(label)), text, group)

    def set_member(self, int peer, bytes text not None, bytes group not None, uint64_t identity, bint present,
                   uint64_t since):
        """Set or remove a sibling's member of a group. `since`: when it came online (0: offline)."""
        cdef Filter* f
        cdef Group* g
        cdef WholeInterest whole = self.whole_interest(peer)
        if present:
            f = self.subscriptions.hold(<const uint8_t*><const char*>text, len(text))
            g = self.subscriptions.groups.hold(f, <const uint8_t*><const char*>group, len(group))
            enrolled_put(g, identity, since, NULL, <uint32_t>peer, 0 if whole is None else whole.number)
            return
        f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        if f != NULL:
            g = self.subscriptions.groups.hold(f, <const uint8_t*><const char*>group, len(group))
            enrolled_strike(g, identity, NULL, <uint32_t>peer)
            self.subscriptions.drop_if_unused(f, g)

    cdef WholeInterest whole_interest(self, int peer):
        # during its transfer; else None
        if self.interests is None:
            return None
        return self.interests.get(peer)

    def begin_interest(self, int peer):
        """Begin the transfer of a sibling's whole interest, by `set_interest` and `set_member`. Its former interest
        stays in force until the end of the transfer and `forget_unnamed`. A new transfer replaces an unfinished one."""
        self.interest_number += 1
        if self.interests is None:
            self.interests = {}
        self.interests[peer] = whole = WholeInterest(peer, self.interest_number)
        return whole

    def forget_unnamed(self, WholeInterest whole not None):
        """End the transfer: forget some of the sibling's former interest that it did not include. True: there may be
        more, call it again. The sibling's interest is certain from now on."""
        if self.whole_interest(whole.sibling) is not whole:
            return False
        if not whole.told:
            whole.told = True
            self.peers.unsure_peers &= ~(<uint64_t>1 << whole.sibling)
        if self.peers.host_interest is not None and self.peers.rails >> whole.sibling & 1 == 0:
            whole.forgotten = []
        more = whole.forget_some(self.subscriptions)
        for text, group in whole.forgotten or ():
            self.tell_hosts(text, group)
        if more:
            return True
        del self.interests[whole.sibling]
        if not self.interests:
            self.interests = None
        return False

    def ingest(self, int peer, const uint8_t[::1] entries not None, list payloads not None, int used=0, size_t at=0,
               uint32_t position=0, uint32_t taken=0, uint64_t until=0):
        """Route a batch of a sibling: `entries` packed, `payloads` the frames of large ones, `used` of them taken
        already. Begin at byte `at` with the entry `position`, and skip entries before `taken`. Stop when publishes have
        cost more than `until` (see `worked`; 0: a turn from now), but not before the first one. Return (payloads taken,
        [(position, reason)] of refused entries or None, (at, position) to continue at or None)."""
        cdef size_t n = <size_t>entries.shape[0]
        return self.take(peer, &entries[0] if n else NULL, n, payloads, used, at, position, taken, until)

    cdef tuple take(self, int peer, const uint8_t* entries, size_t n, list payloads, int used, size_t at,
                    uint32_t position, uint32_t taken, uint64_t until):
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
                    # a sampled publish; the sequenced part, which comes second, belongs to this tick too
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
                self.state.handler.sibling_message(
                    peer, PyBytes_FromStringAndSize(<const char*>e.content.topic, e.content.topic_len),
                    PyBytes_FromStringAndSize(<const char*>e.content.payload, e.content.payload_len))
                position += 1
                continue
            work(FILTER)
            self.counters.at[count.MESH_ENTRIES_RECEIVED] += 1
            self.in_hand.check_frame(&e, payloads, used)
            try:
                reason = self.take_entry(peer, &e, publisher, payloads, used)
            except Exception as error:
                # the error concerns this message only, not the batch, nor the worker
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

    cdef int take_entry(self, int peer, Entry* e, object publisher, list payloads, int used) except -1:
        # 0, or the reason of the refusal
        cdef uint64_t sent = 0, dropped = 0, others = 0
        cdef Matches* m
        cdef int reason = 0, owner = -1
        cdef bint is_rail = self.peers.rails >> peer & 1
        if is_rail:
            self.translate(peer, &e.content)
        self.in_hand.begin_entry(e, payloads, used)
        self.in_hand.publisher = publisher
        if self.in_hand.held is not None:
            self.in_hand.held.publisher = publisher
        if e.content.retain and not (e.group != NULL and e.flags & ENTRY_RETAINED_ONLY):
            owner = self.retaining.keep()             # else another entry brings it, or the group's choice was repeated
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
            if is_rail:
                others = self.siblings_of(m)
        if e.group != NULL:
            self.state.spent += SHARE
            reason = self.sharing.chosen_host(e, &others) if is_rail else self.sharing.chosen(e)
        if is_rail:
            if owner >= 0 and others >> owner & 1 == 0:
                self.peers.entry(owner, ENTRY_RETAINED_ONLY, NULL)
            self.pass_on(others)
        if self.state.prefixes.levels:
            self.state.prefixes.add(
                &e.content, self.counters.at[count.PUBLISH_SENT] - sent, self.state.all_dropped() - dropped)
        return reason

    # ------------------------------------------------------------ from other hosts

    cdef uint64_t siblings_of(self, const Matches* m) noexcept:
        # those that want the publish in hand
        cdef uint64_t siblings = self.peers.unsure_peers if self.in_hand.content.qos else 0
        cdef uint32_t i
        work(m.count * VISIT)
        for i in range(m.count):
            siblings |= m.filters[i].siblings
        return siblings & ~self.peers.rails

    cdef int pass_on(self, uint64_t siblings) except -1:
        cdef int p = 0
        while siblings:
            if siblings & 1:
                self.peers.entry(p, 0, NULL)
            siblings >>= 1
            p += 1
        return 0

    cdef int translate(self, int peer, Content* c) except -1:
        # the times of another host into those of this one. Its messages are newer than what this host has had from it,
        # and later ones from here are newer than they: this clock follows theirs, within limits
        cdef uint64_t us = c.number >> NUMBER_WORKER_BITS
        if us > self.state.clock.us + AHEAD_US_MAX and us > self.state.clock.last:
            c.number = self.state.new_number()
            self.counters.at[count.HOST_CLOCKS_REFUSED] += 1
        else:
            self.state.clock.behind(us)
        if c.expires:
            c.expires = <uint64_t>max(<int64_t>1, <int64_t>c.expires - self.ahead_ms[peer])
        return 0

    def offer_retained(self, int place, list messages not None):
        """Send retained messages of this worker to a rail, for its host to retain."""
        cdef Message m
        self.peers.is_offering = True
        try:
            for m in messages:
                self.in_hand.begin(&m.content, None, m.publisher, NULL, 0, -1, 0)
                self.in_hand.held = m
                self.peers.entry(place, ENTRY_RETAINED_ONLY, NULL)
                self.in_hand.held = None
        finally:
            self.peers.is_offering = False

    def set_ahead(self, int place, int64_t ms):
        """Note by how much the broker's time of a rail's host is ahead of this one's."""
        if not 0 <= place < 64:
            raise ValueError(f"{place} is no place")
        self.ahead_ms[place] = ms
