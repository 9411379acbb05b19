"""Share groups, and the other workers of the host.

A sibling that wants a publish gets it once, as an entry of the batch of this tick; what comes from one is matched again
here and never forwarded. Of a share group the publisher's worker chooses one worker, in proportion to members, and
names the group in the entry; that worker chooses the member, or refuses the entry when it has none any more: then the
sender chooses again.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint16_t
from libc.string cimport memcmp, memcpy, memset

from pyx cimport counters as count
from pyx.connection cimport Connection, PendingAck
from pyx.message cimport message_borrow
from pyx.records cimport ENTRY_CONTROL, ENTRY_OWN_FRAME, ENTRY_RETAINED_ONLY, Packed, read_entry
from pyx.routing cimport (
    OWN_FRAME_BYTES, REFUSED_NO_MEMBER, SHARED_COPY, Peer, find_expiry, put_identifier, topic_matches,
)
from pyx.session cimport Session
from pyx.subscriptions cimport Filter, Matches, Subscriber, SubscriberList, filter_text


cdef class Siblings(FanOut):
    """Chooses members and workers, packs entries, routes those that come."""

    cdef int entry(self, int peer, uint8_t flags, bytes choice) except -1:
        # one mesh entry for a peer; choice: the packed "group/filter" for which it was chosen, or None
        cdef Peer p = <Peer>self.peers[peer]
        cdef const Content* c = self.content
        cdef bint sequenced = c.qos != 0 or c.retain
        cdef bint own_frame = c.payload_len >= OWN_FRAME_BYTES
        cdef const uint8_t* packed = NULL
        cdef uint32_t packed_len = 0
        if choice is not None:
            packed = <const uint8_t*><const char*>choice
            packed_len = <uint32_t>len(choice)
        if own_frame:
            flags |= ENTRY_OWN_FRAME
        if sequenced:
            if p.sequenced is None:
                p.sequenced = Packed.__new__(Packed)
            p.sequenced.entry(c, flags, packed, packed_len, packed != NULL)
            if own_frame:
                p.sequenced_payloads.append(self.hold())
            p.sent = self.tick
        else:
            if p.volatile_entries is None:
                p.volatile_entries = Packed.__new__(Packed)
            p.volatile_entries.entry(c, flags, packed, packed_len, packed != NULL)
            if own_frame:
                p.volatile_payloads.append(self.hold())
        self.dirty_peers |= <uint64_t>1 << peer
        self.matched_peers |= <uint64_t>1 << peer
        self.counters.at[count.MESH_ENTRIES_SENT] += 1
        return 0

    cdef int choose_worker(self, Group* g, list choices) except -1:
        # one worker per group, in proportion to its members; then that worker chooses the member
        if g.siblings == 0:
            g.turn += 1
            return self.choose_local(g, g.turn)
        return self.choose_among(g, -1, choices)

    cdef int choose_among(self, Group* g, int refused, list choices) except -1:
        # the same where siblings have members; refused: a sibling that has none any more, whatever it said
        cdef uint32_t total = g.members.count, at
        cdef int p, chosen = -1
        for p in range(self.workers):
            if g.siblings >> p & 1 and p != refused:
                total += g.sibling_members[p]
        if total == 0:
            return 0
        g.turn += 1
        at = g.turn % total
        if at < g.members.count:
            return self.choose_local(g, at)
        at -= g.members.count
        for p in range(self.workers):
            if g.siblings >> p & 1 and p != refused:
                chosen = p
                if at < g.sibling_members[p]:
                    break
                at -= g.sibling_members[p]
        name = g.name[:g.name_length] + b"/" + filter_text(g.filter)[:g.filter.length]
        choices.append((chosen, bytes((len(name) & 255, len(name) >> 8)) + name))
        return 1

    cdef int choose_local(self, Group* g, uint32_t turn) except -1:
        # 1: given to a member (or queued for one, or dropped with a reason), 0: no member
        cdef SubscriberList* l = &g.members
        cdef const Content* c = self.content
        cdef Subscriber* sub
        cdef Session s
        cdef Connection conn
        cdef uint32_t i, k
        cdef uint8_t options, qos, first
        cdef uint8_t[8] ids
        if l.count == 0:
            return 0
        for i in range(l.online):
            k = (turn + i) % l.online
            sub = &l.items[k]
            s = <Session>sub.session
            conn = <Connection>s.connection
            options = <uint8_t>(sub.slot_options >> 24)
            qos = options & 3
            if qos > c.qos:
                qos = c.qos
            if conn is None or conn.out.pending > self.limits.outbox_bytes_max:
                continue
            if qos and (s.behind or s.inflight >= s.inflight_max):
                continue
            first = 0x30 | qos << 1 | (c.retain if options & 8 else 0)
            return self.deliver(s, qos, first, ids, put_identifier(ids, sub.identifier) if sub.identifier else 0,
                                SHARED_COPY)
        # nobody can take it now: it waits with one of them
        if c.qos == 0:
            self.counters.at[count.MATCHED] += 1
            self.counters.at[count.DROPPED_OUTBOX_FULL if l.online else count.DROPPED_OFFLINE_QOS0] += 1
            return 1
        for i in range(l.count):
            # an online member first: it will be served soonest
            k = (turn + i) % l.online if i < l.online else i
            sub = &l.items[k]
            s = <Session>sub.session
            options = <uint8_t>(sub.slot_options >> 24)
            if options & 3 == 0 or s.queue_count >= self.limits.queue_messages_max \
                    or s.queue_bytes >= self.limits.queue_bytes_max:
                continue
            qos = options & 3
            if qos > c.qos:
                qos = c.qos
            identifiers = None
            if sub.identifier:
                identifiers = PyBytes_FromStringAndSize(<const char*>ids, put_identifier(ids, sub.identifier))
            self.queue_for(s, self.hold(), qos, c.retain and options & 8 != 0, identifiers, SHARED_COPY)
            return 1
        self.counters.at[count.MATCHED] += 1
        self.counters.at[count.DROPPED_QUEUE_FULL] += 1
        return 1

    cdef int share_again(self, Message m, list groups) except -1:
        cdef Filter* f
        cdef Group* g
        cdef bytes text, name
        for text, name in groups:
            if not topic_matches(<const uint8_t*><const char*>text, len(text), m.content.topic, m.content.topic_len):
                continue
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            if f == NULL:
                continue
            g = f.groups
            while g != NULL:
                if g.name_length == len(name) and memcmp(g.name, <const char*>name, len(name)) == 0 and g.members.count:
                    self.begin(&m.content, None, None, NULL, 0, -1, 0)
                    self.held = m
                    g.turn += 1
                    self.choose_local(g, g.turn)
                    self.held = None
                    return 1
                g = g.next
        return 0

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
        p.sequenced.entry(&c, ENTRY_CONTROL, NULL, 0, 0)
        p.sent = self.tick
        self.dirty_peers |= <uint64_t>1 << peer

    def set_interest(self, int peer, bytes text not None, int members, bytes group=None):
        """A sibling's interest in a filter, or in a group of it: how many members it has (0: none any more)."""
        cdef Filter* f
        cdef Group* g
        if members == 0:
            f = self.subscriptions.find(<const uint8_t*><const char*>text, len(text))
            if f == NULL:
                return
        else:
            f = self.subscriptions.hold(<const uint8_t*><const char*>text, len(text))
        if group is None:
            self.subscriptions.set_sibling(f, peer, members > 0)
        else:
            g = self.subscriptions.hold_group(f, <const uint8_t*><const char*>group, len(group))
            self.subscriptions.set_sibling_members(f, g, peer, <uint32_t>members)

    def forget_interest(self, int peer):
        """Every interest of a sibling is gone."""
        self.subscriptions.forget_sibling(peer)

    def take(self, int peer):
        """(volatile, sequenced, volatile payloads, sequenced payloads, tick) for a link to send, or None. `tick` comes
        back in `peer_acknowledged` when the peer has everything up to and with this batch: what comes after it is of
        another tick."""
        cdef Peer p = <Peer>self.peers[peer]
        self.dirty_peers &= ~(<uint64_t>1 << peer)
        if p.volatile_entries is None and p.sequenced is None:
            return None
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

    def peer_full(self, int peer, bint full):
        """While a peer's outbox is full, connections that publish to it are not read."""
        if full:
            self.full_peers |= <uint64_t>1 << peer
        elif self.full_peers >> peer & 1:
            self.full_peers &= ~(<uint64_t>1 << peer)
            self.resumed.extend(self.paused)
            self.paused = []

    def ingest(self, int peer, const uint8_t[::1] entries not None, list payloads not None, int used=0):
        """Route a batch of a sibling: `entries` packed, `payloads` the frames of large ones, of which `used` are taken
        already. Returns (payloads taken, [(position, reason)] of entries refused)."""
        cdef size_t at = 0, n = <size_t>entries.shape[0]
        cdef Entry e
        cdef uint32_t position = 0
        cdef Matches* m
        cdef list refused = None
        self.adoptable = None
        while at < n:
            at += read_entry(&entries[at], n - at, &e)
            if e.flags & ENTRY_CONTROL:
                if e.content.topic_len == 1 and e.content.topic[0] == c'~':
                    # a sampled publish: those of the sequenced part, which comes second, are of this tick too
                    if e.content.payload_len == sizeof(uint64_t) and self.tick_ns:
                        memcpy(&self.delivered_since, e.content.payload, sizeof(uint64_t))
                    position += 1
                    continue
                self.handler.told(peer, PyBytes_FromStringAndSize(<const char*>e.content.topic, e.content.topic_len),
                                  PyBytes_FromStringAndSize(<const char*>e.content.payload, e.content.payload_len))
                position += 1
                continue
            self.counters.at[count.MESH_ENTRIES_RECEIVED] += 1
            used = self.begin_entry(&e, payloads, used)
            if e.content.retain and not (e.choices_count and e.flags & ENTRY_RETAINED_ONLY):
                self.keep()                 # else another entry has brought it, or it was chosen again
            if not e.flags & ENTRY_RETAINED_ONLY:
                m = self.subscriptions.cached(e.content.topic, e.content.topic_len)
                if m == NULL:
                    m = self.subscriptions.match(e.content.topic, e.content.topic_len)
                if m.count == 1:
                    self.fan_out(m.filters[0])
                elif m.count:
                    self.fan_out_merged(m)
            if e.choices_count and not self.chosen(&e):
                if refused is None:
                    refused = []
                refused.append((position, REFUSED_NO_MEMBER))
            self.held = None
            position += 1
        return used, refused

    cdef int begin_entry(self, Entry* e, list payloads, int used) except -1:
        # the publish in hand is a sibling's; returns how many of the payload frames are taken now
        cdef const uint8_t[::1] view
        if e.content.expires:
            e.content.expiry_offset = find_expiry(&e.content)
        self.begin(&e.content, None, None, NULL, 0, -1, 0)
        if not e.flags & ENTRY_OWN_FRAME:
            return used
        if used >= len(payloads):
            raise ValueError("mesh entry without its payload frame")
        owner = payloads[used]
        view = owner
        if view.shape[0] != e.content.payload_len:
            raise ValueError("mesh payload frame of another size than its entry says")
        e.content.payload = &view[0] if view.shape[0] else <const uint8_t*>b""
        # topic and properties are copied aside, the body is not
        self.held = self.borrow(&e.content, owner)
        return used + 1

    def choose_again(self, int peer, uint64_t tick, const uint8_t[::1] entries not None, list payloads not None,
                     int position):
        """A sibling refused the entry at `position` of the batch of that tick: it has no member of the group any more.
        A member here or another worker is chosen, and the publisher's ack waits for that one too."""
        cdef size_t at = 0, n = <size_t>entries.shape[0]
        cdef Entry e
        cdef Group* g
        cdef const uint8_t* p
        cdef uint32_t length
        cdef int used = 0
        cdef list choices = []
        while at < n:
            at += read_entry(&entries[at], n - at, &e)
            if position == 0:
                break
            position -= 1
            if e.flags & ENTRY_OWN_FRAME:
                used += 1
        if position or n == 0 or e.flags & ENTRY_CONTROL:
            raise ValueError("no such mesh entry")
        self.adoptable = None
        self.begin_entry(&e, payloads, used)
        p = e.choices
        for _ in range(e.choices_count):
            length = p[0] | <uint32_t>p[1] << 8
            g = self.named(p + 2, length)
            if g == NULL or not self.choose_among(g, peer, choices):
                self.counters.at[count.MATCHED] += 1
                self.counters.at[count.DROPPED_NO_MEMBER] += 1
            p += 2 + length
        for other, choice in choices:
            self.entry(other, ENTRY_RETAINED_ONLY, choice)
            self.wait_longer(peer, tick, other)
        self.held = None

    cdef int wait_longer(self, int peer, uint64_t tick, int other) except -1:
        # whoever waits for `peer` to acknowledge `tick` waits for `other` to acknowledge this one as well. More
        # publishers than the one that is meant: this is rare
        cdef uint32_t i, k
        cdef Connection conn
        cdef PendingAck* a
        for i in range(self.waiting.count):
            conn = <Connection>self.waiting.items[i]
            for k in range(conn.ack_count):
                a = &conn.acks[(conn.ack_head + k) & (conn.ack_cap - 1)]
                if a.mask >> peer & 1 and a.tick <= tick:
                    a.mask |= <uint64_t>1 << other
                    a.tick = self.tick
        return 0

    cdef Message borrow(self, const Content* c, object owner):
        cdef bytes head = (<const char*>c.topic)[:c.topic_len] + (<const char*>c.props)[:c.props_len]
        cdef Message m = message_borrow(c, (owner, head))
        m.content.topic = <const uint8_t*><const char*>head
        m.content.props = m.content.topic + c.topic_len
        return m

    cdef bint chosen(self, Entry* e) except -1:
        # a sibling chose this worker for these groups: we choose the member. False: one of them has no member any more
        cdef const uint8_t* p = e.choices
        cdef uint32_t n
        cdef Group* g
        cdef bint all_found = True
        for _ in range(e.choices_count):
            n = p[0] | <uint32_t>p[1] << 8
            g = self.named(p + 2, n)
            if g == NULL:
                all_found = False
            else:
                g.turn += 1
                if not self.choose_local(g, g.turn):
                    all_found = False
            p += 2 + n
        return all_found

    cdef Group* named(self, const uint8_t* name, uint32_t n) noexcept:
        # the group of b"group/filter": a ShareName has no slash
        cdef uint32_t slash = 0
        cdef Filter* f
        cdef Group* g
        while slash < n and name[slash] != c'/':
            slash += 1
        f = self.subscriptions.find(name + slash + 1, n - slash - 1) if slash < n else NULL
        g = f.groups if f != NULL else NULL
        while g != NULL and (g.name_length != slash or memcmp(g.name, name, slash) != 0):
            g = g.next
        return g
