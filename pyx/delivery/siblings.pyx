"""The other workers of the host.

A sibling that wants a publish gets it once, as an entry of the batch of this tick; what comes from one is matched again
here and never forwarded. An entry for a share group names the group: see pyx.delivery.sharing.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from pyx.core cimport counters as count
from pyx.core.placement cimport owner_of
from pyx.core.work cimport FILTER, PLACE, PYTHON, VISIT, work
from pyx.delivery.routing cimport OWN_FRAME_BYTES, Peer, SHARE, find_expiry
from pyx.delivery.session cimport Session
from pyx.matching.group_members cimport roster_put, roster_strike
from pyx.matching.interest cimport WholeInterest
from pyx.matching.subscriptions cimport Filter, Group, Matches, SubscriberList
from pyx.protocol.message cimport message_borrow
from pyx.storage.records cimport ENTRY_CONTROL, ENTRY_OWN_FRAME, ENTRY_RETAINED_ONLY, Packed, read_entry

# kinds of control entries that are read here (others are for the broker)
cdef char SAMPLED = c'~'
cdef char PUBLISHER = c'^'             # client id of the publisher of the next entry, which is to be retained

cdef const char* NO_SECONDS = "\0\0\0\0"

cdef enum:
    # sequenced entries of one batch: what the sibling refuses of them is told with one ack, and looked through at once
    BATCH_ENTRIES_MAX = 4096
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
        self.count_effort(m)
        self.stamp += 1
        for i in range(m.count):
            l = &m.filters[i].plain
            work(VISIT + l.count * VISIT)
            for k in range(l.count):
                s = <Session>l.items[k].session
                if s.stamp != self.stamp:
                    s.stamp = self.stamp
                    copies += 1
                    self.drops.add(s, count.DROPPED_EXPIRED, 1)
    self.counters.at[count.MATCHED] += copies
    self.counters.at[count.DROPPED_EXPIRED] += copies
    if copies:
        self.tally(&e.content, 0, copies)
    return 0


cdef class Siblings(FanOut):
    """Packs entries for siblings, routes those that come, and knows what siblings have and want."""

    cdef int entry(self, int peer, uint8_t flags, const Choice* choice) except -1:
        # one mesh entry for a peer; choice: the group for which it was chosen, or NULL
        cdef Peer p = <Peer>self.peers[peer]
        cdef const Content* c = self.content
        cdef bint own_frame = c.payload_len >= OWN_FRAME_BYTES
        if own_frame:
            flags |= ENTRY_OWN_FRAME
        if c.qos != 0 or c.retain:
            if p.sequenced is None:
                p.sequenced = Packed.__new__(Packed)
            if c.retain and c.payload_len and isinstance(self.publisher, str) and \
                    not (choice != NULL and flags & ENTRY_RETAINED_ONLY) and \
                    owner_of(c.topic, c.topic_len, self.workers) == peer:
                self.name_publisher(p.sequenced)
            p.sequenced.entry(c, flags, choice)
            if own_frame:
                p.sequenced_payloads.append(self.hold())
            p.sent = self.tick
            if p.sequenced.entries >= BATCH_ENTRIES_MAX:
                p.cut.append(self.whole(p))
            if self.keeps and c.qos and (self.origin is None or c.qos == 2 and self.origin.durable):
                self.held_peers |= <uint64_t>1 << peer
                self.recorded = self.synced = True
        else:
            if p.volatile_entries is None:
                p.volatile_entries = Packed.__new__(Packed)
            p.volatile_entries.entry(c, flags, choice)
            if own_frame:
                p.volatile_payloads.append(self.hold())
        self.dirty_peers |= <uint64_t>1 << peer
        self.matched_peers |= <uint64_t>1 << peer
        self.counters.at[count.MESH_ENTRIES_SENT] += 1
        return 0

    cdef int name_publisher(self, Packed packed) except -1:
        # who keeps the message for later subscriptions must know: No Local holds for those, too [MQTT-3.8.3-3]
        cdef bytes name = (<str>self.publisher).encode("utf-8", "surrogatepass")
        cdef char kind = PUBLISHER
        cdef Content c
        memset(&c, 0, sizeof(c))
        c.topic = <const uint8_t*>&kind
        c.topic_len = 1
        c.payload = <const uint8_t*><const char*>name
        c.payload_len = <uint32_t>len(name)
        return packed.entry(&c, ENTRY_CONTROL, NULL)

    def tell(self, int peer, bytes kind not None, bytes payload not None):
        """Something for the broker of a sibling, in order with the messages for it: arrives as `handler.told(peer,
        kind, payload)`."""
        cdef Content c
        memset(&c, 0, sizeof(c))
        c.topic = <const uint8_t*><const char*>kind
        c.topic_len = <uint16_t>len(kind)
        c.payload = <const uint8_t*><const char*>payload
        c.payload_len = <uint32_t>len(payload)
        cdef Peer p = <Peer>self.peers[peer]
        if p.sequenced is None:
            p.sequenced = Packed.__new__(Packed)
        p.sequenced.entry(&c, ENTRY_CONTROL, NULL)
        p.sent = self.tick
        self.dirty_peers |= <uint64_t>1 << peer

    def tell_unkept(self, int peer, bytes kind not None, bytes payload not None):
        """The same, and it may be lost: whoever says it says it again. Nothing is stored for it on either side."""
        cdef Content c
        memset(&c, 0, sizeof(c))
        c.topic = <const uint8_t*><const char*>kind
        c.topic_len = <uint16_t>len(kind)
        c.payload = <const uint8_t*><const char*>payload
        c.payload_len = <uint32_t>len(payload)
        self.tell_in_passing(peer, &c)
        self.dirty_peers |= <uint64_t>1 << peer

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
            g = self.subscriptions.hold_group(f, <const uint8_t*><const char*>group, len(group))
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
            g = self.subscriptions.hold_group(f, <const uint8_t*><const char*>group, len(group))
            roster_put(g, identity, since, NULL, <uint32_t>peer, 0 if whole is None else whole.number)
            return
        f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
        if f != NULL:
            g = self.subscriptions.hold_group(f, <const uint8_t*><const char*>group, len(group))
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
            self.unsure_peers &= ~(<uint64_t>1 << whole.sibling)
        if whole.forget_some(self.subscriptions):
            return True
        del self.interests[whole.sibling]
        if not self.interests:
            self.interests = None
        return False

    def take(self, int peer):
        """(volatile, sequenced, volatile payloads, sequenced payloads, tick) for a link to send, one batch after the
        other, then None. `tick` comes back in `peer_acknowledged` when the peer has everything up to and with this
        batch: what comes after it is of another tick."""
        cdef Peer p = <Peer>self.peers[peer]
        self.clock.tell()
        if p.cut:
            return p.cut.pop(0)
        self.dirty_peers &= ~(<uint64_t>1 << peer)
        if p.volatile_entries is None and p.sequenced is None:
            return None
        return self.whole(p)

    cdef tuple whole(self, Peer p):
        # a batch, and what comes after it is of another tick
        cdef tuple out
        out = (p.volatile_entries, p.sequenced, p.volatile_payloads, p.sequenced_payloads, self.tick)
        p.volatile_entries = None
        p.sequenced = None
        p.volatile_payloads = []
        p.sequenced_payloads = []
        self.tick += 1
        return out

    def peer_acknowledged(self, int peer, uint64_t tick):
        """The peer has taken everything of the ticks up to `tick`: acks that waited for it may leave."""
        cdef Peer p = <Peer>self.peers[peer]
        if tick > p.acknowledged:
            p.acknowledged = tick
            self.acks_due = True

    def peer_took_interest(self, int peer, uint64_t number):
        """The peer routes by our interest up to `number`: SUBACKs that waited for it may leave."""
        cdef Peer p = <Peer>self.peers[peer]
        if number > p.interest:
            p.interest = number
            self.acks_due = True

    def peer_live(self, int peer, bint live):
        """Acks wait for live peers only."""
        if live:
            self.unsure_peers &= ~(<uint64_t>1 << peer)
            self.live_peers |= <uint64_t>1 << peer
            self.live_for_interest |= <uint64_t>1 << peer
        else:
            self.live_peers &= ~(<uint64_t>1 << peer)
            self.live_for_interest &= ~(<uint64_t>1 << peer)
            self.acks_due = True

    def peer_away(self, int peer):
        """A peer that is stopped: SUBACKs do not wait for it, its entries are acknowledged by its link's hand-off
        log."""
        self.live_for_interest &= ~(<uint64_t>1 << peer)
        self.acks_due = True

    def peer_unsure(self, int peer):
        """It may have answered SUBSCRIBEs that nobody told us of: it gets every publish of QoS 1 or 2, until it is live
        again or its interest is told anew. It matches them itself."""
        self.unsure_peers |= <uint64_t>1 << peer

    def peer_full(self, int peer, bint full):
        """While a peer's outbox is full, connections that publish to it are not read."""
        if full:
            self.full_peers |= <uint64_t>1 << peer
        elif self.full_peers >> peer & 1:
            self.full_peers &= ~(<uint64_t>1 << peer)
            self.resumed.extend(self.paused)
            self.paused = []

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
        self.adoptable = None
        self.clock.hear()
        if at > n:
            raise ValueError("the batch has no such place")
        if until == 0:
            until = self.effort() + self.batch_turn
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
                    if e.content.payload_len == sizeof(uint64_t) and self.tick_ns:
                        memcpy(&self.delivered_since, e.content.payload, sizeof(uint64_t))
                    position += 1
                    continue
                if e.content.topic_len == 1 and e.content.topic[0] == PUBLISHER:
                    publisher = e.content.payload[:e.content.payload_len].decode("utf-8", "surrogatepass")
                    position += 1
                    continue
                work(PYTHON)
                self.spent += PYTHON
                self.handler.told(peer, PyBytes_FromStringAndSize(<const char*>e.content.topic, e.content.topic_len),
                                  PyBytes_FromStringAndSize(<const char*>e.content.payload, e.content.payload_len))
                position += 1
                continue
            work(FILTER)
            self.counters.at[count.MESH_ENTRIES_RECEIVED] += 1
            self.check_frame(&e, payloads, used)
            try:
                reason = self.take_entry(&e, publisher, payloads, used)
            except Exception as error:
                # of this message, and not of the others of the batch, nor of the worker
                reason = 0
                self.counters.at[count.INTERNAL_ERRORS] += 1
                self.handler.defect(None, error)
            if e.flags & ENTRY_OWN_FRAME:
                used += 1
            if reason:
                if refused is None:
                    refused = []
                refused.append((position, reason))
            self.held = None
            publisher = None
            position += 1
            if self.effort() > until and at < n:
                return used, refused, (at, position)
        return used, refused, None

    cdef int take_entry(self, Entry* e, object publisher, list payloads, int used) except -1:
        # 0, or why it is refused
        cdef uint64_t sent = 0, dropped = 0
        cdef Matches* m
        cdef int reason = 0
        self.begin_entry(e, payloads, used)
        self.publisher = publisher
        if self.held is not None:
            self.held.publisher = publisher
        if e.content.retain and not (e.group != NULL and e.flags & ENTRY_RETAINED_ONLY):
            self.keep()                     # else another entry has brought it, or it was chosen again
        if self.prefixes.levels:
            sent, dropped = self.counters.at[count.PUBLISH_SENT], self.all_dropped()
        if e.content.expires and is_too_late(&e.content, self.wall_ms):
            return expire_entry(self, e)
        if not e.flags & ENTRY_RETAINED_ONLY:
            m = matches_of(self, e)
            self.count_effort(m)
            if m.count == 1:
                self.fan_out(m.filters[0])
            elif m.count:
                self.fan_out_merged(m)
        if e.group != NULL:
            self.spent += SHARE
            reason = self.chosen(e)
        if self.prefixes.levels:
            self.prefixes.add(&e.content, self.counters.at[count.PUBLISH_SENT] - sent, self.all_dropped() - dropped)
        return reason

    cdef int check_frame(self, Entry* e, list payloads, int used) except -1:
        cdef const uint8_t[::1] view
        if e.flags & ENTRY_OWN_FRAME:
            if used >= len(payloads):
                raise ValueError("mesh entry without its payload frame")
            view = payloads[used]
            if view.shape[0] != e.content.payload_len:
                raise ValueError("mesh payload frame of another size than its entry says")
        return 0

    cdef int begin_entry(self, Entry* e, list payloads, int used) except -1:
        # the publish in hand is a sibling's; returns how many of the payload frames are taken now
        cdef const uint8_t[::1] view
        if e.content.expires:
            e.content.expiry_offset = find_expiry(&e.content)
        self.begin(&e.content, None, None, NULL, 0, -1, 0)
        if not e.flags & ENTRY_OWN_FRAME:
            return used
        self.check_frame(e, payloads, used)
        owner = payloads[used]
        view = owner
        e.content.payload = &view[0] if view.shape[0] else <const uint8_t*>b""
        # topic and properties are copied aside, the body is not
        self.held = self.borrow(&e.content, owner)
        return used + 1

    cdef Message borrow(self, const Content* c, object owner):
        cdef bytes head = (<const char*>c.topic)[:c.topic_len] + (<const char*>c.props)[:c.props_len]
        cdef Message m = message_borrow(c, (owner, head))
        m.content.topic = <const uint8_t*><const char*>head
        m.content.props = m.content.topic + c.topic_len
        return m

    # ------------------------------------------------------------ implemented by Sharing

    cdef int chosen(self, Entry* e) except -1:
        raise NotImplementedError
