"""Messages to peers: the next batch for each, its acknowledgements, and its liveness.

A peer that wants a publish gets it once, as an entry of the batch of this tick: QoS 0 in the volatile part, which
may be lost, all else in the sequenced part, which is acknowledged. Bodies from OWN_FRAME_BYTES on travel in a frame of
their own. Messages from peers are read by pyx.delivery.siblings.

Each peer has a *place* below PEERS_MAX, a bit in the masks. Siblings, the other workers of the host, have the number of
their worker. A *rail* is a worker of another host, which stands for all of that host; its place is free before it is
there, and after it has left.
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from pyx.core cimport counters as count
from pyx.core.placement cimport owner_of
from pyx.core.work cimport PYTHON, VISIT, work
from pyx.delivery.connection cimport Connection
from pyx.delivery.journal cimport Journal
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport OWN_FRAME_BYTES, RouterState, SAMPLE_MS
from pyx.matching.filters cimport Filter, Group
from pyx.matching.subscriptions cimport Matches
from pyx.protocol.message cimport Content
from pyx.storage.entries cimport Choice, ENTRY_CONTROL, ENTRY_OWN_FRAME, ENTRY_RETAINED_ONLY, Packed


cdef enum:
    # sequenced entries of one batch: their refusals come with one ack, and are processed at once
    BATCH_ENTRIES_MAX = 4096
    PEERS_MAX = 64                  # a set of peers is a word


@cython.final
cdef class Peer:
    def __cinit__(self):
        self.volatile_payloads = []
        self.sequenced_payloads = []
        self.cut = []


@cython.final
cdef class Peers:
    """The peers, a Peer each: their next batches, acknowledgements and liveness."""

    def __cinit__(self, RouterState state not None, PublishInHand in_hand not None, Journal journal not None):
        self.state = state
        self.counters = state.counters
        self.in_hand = in_hand
        self.journal = journal
        self.peers = [Peer() if i != state.worker else None for i in range(state.workers)]
        self.paused = []

    def add_rail(self, bint sends):
        """Return the place of another rail. `sends`: its host is sent what it wants over it. Raises LookupError: there
        are as many peers as there can be."""
        cdef int place
        for place in range(self.state.workers, PEERS_MAX):
            if place == len(self.peers):
                self.peers.append(None)
            if self.peers[place] is None:
                self.peers[place] = Peer()
                self.rails |= <uint64_t>1 << place
                if sends:
                    self.hosts |= <uint64_t>1 << place
                return place
        raise LookupError(f"{PEERS_MAX} peers: no place for another host")

    def drop_rail(self, int place):
        """Free the place of a rail, whose interest was forgotten: nothing waits for it any more."""
        cdef uint64_t others = ~(<uint64_t>1 << place)
        if self.rails & ~others == 0:
            raise ValueError(f"{place} is no rail")
        self.peer_full(place, False)
        self.peer_live(place, False)
        self.peers[place] = None
        self.rails &= others
        self.hosts &= others
        self.dirty_peers &= others
        self.held_peers &= others
        self.unsure_peers &= others

    cdef Peer known(self, int peer):
        if not 0 <= peer < len(self.peers) or self.peers[peer] is None:
            raise LookupError(f"{peer} is no peer")
        return <Peer>self.peers[peer]

    cdef int pause(self, Connection conn) except -1:
        if not conn.paused:
            conn.paused = True
            self.paused.append(conn)
            self.counters.at[count.READING_PAUSED] += 1
        return 0

    cdef int sample(self, const Matches* m, bint answered) except -1:
        # sample the durations of the publish in hand; answered: its ack is in the outbox, or it has none (else the ack
        # carries the start time). Siblings measure until their own delivery: one clock serves all processes of a host.
        # The reactor reads the clock at the end of what is measured
        cdef Content c
        cdef uint64_t peers = self.in_hand.matched_peers & ~self.rails
        cdef uint32_t i
        cdef int p = 0
        self.state.sample_ms = self.state.now_ms + SAMPLE_MS
        if answered:
            self.state.finished_since = self.state.tick_ns
        for i in range(m.count):
            work(VISIT)
            if m.filters[i].plain.online or m.filters[i].groups != NULL:
                self.state.delivered_since = self.state.tick_ns
                break
        if not peers or not self.state.tick_ns:
            return 0
        memset(&c, 0, sizeof(c))
        c.topic = <const uint8_t*>b"~"
        c.topic_len = 1
        c.payload = <const uint8_t*>&self.state.tick_ns
        c.payload_len = sizeof(self.state.tick_ns)
        while peers:
            if peers & 1:
                self.tell_in_passing(p, &c)
            peers >>= 1
            p += 1
        return 0

    cdef int tell_in_passing(self, int peer, const Content* c) except -1:
        # a message to a sibling's broker; it may be lost, and travels with the next batch
        cdef Peer p = self.known(peer)
        if p.volatile_entries is None:
            p.volatile_entries = Packed.__new__(Packed)
        p.volatile_entries.entry(c, ENTRY_CONTROL, NULL)
        return 0

    cdef int entry(self, int peer, uint8_t flags, const Choice* choice) except -1:
        # add a mesh entry for a peer; choice: the group for which it was chosen, or NULL
        cdef Peer p = <Peer>self.peers[peer]
        cdef const Content* c = self.in_hand.content
        cdef bint own_frame = c.payload_len >= OWN_FRAME_BYTES
        if own_frame:
            flags |= ENTRY_OWN_FRAME
        if c.qos != 0 or c.retain:
            if p.sequenced is None:
                p.sequenced = Packed.__new__(Packed)
            if c.retain and c.payload_len and isinstance(self.in_hand.publisher, str) and \
                    not (choice != NULL and flags & ENTRY_RETAINED_ONLY) and \
                    (peer >= self.state.workers or owner_of(c.topic, c.topic_len, self.state.workers) == peer):
                self.name_publisher(p.sequenced)
            p.sequenced.entry(c, flags, choice)
            if own_frame:
                p.sequenced_payloads.append(self.in_hand.hold())
            p.sent = self.state.tick
            if p.sequenced.entries >= BATCH_ENTRIES_MAX:
                p.cut.append(self.whole(p))
            if self.state.keeps and c.qos and not self.is_offering and \
                    (self.in_hand.origin is None or c.qos == 2 and self.in_hand.origin.durable):
                self.held_peers |= <uint64_t>1 << peer
                self.journal.recorded = self.journal.synced = True
        else:
            if p.volatile_entries is None:
                p.volatile_entries = Packed.__new__(Packed)
            p.volatile_entries.entry(c, flags, choice)
            if own_frame:
                p.volatile_payloads.append(self.in_hand.hold())
        self.dirty_peers |= <uint64_t>1 << peer
        self.entries_added = True
        self.in_hand.matched_peers |= <uint64_t>1 << peer
        self.counters.at[count.MESH_ENTRIES_SENT] += 1
        return 0

    cdef int name_publisher(self, Packed packed) except -1:
        # the owner of the retained message needs it: No Local applies to later subscriptions too [MQTT-3.8.3-3]
        cdef bytes name = (<str>self.in_hand.publisher).encode("utf-8", "surrogatepass")
        cdef char kind = PUBLISHER
        cdef Content c
        memset(&c, 0, sizeof(c))
        c.topic = <const uint8_t*>&kind
        c.topic_len = 1
        c.payload = <const uint8_t*><const char*>name
        c.payload_len = <uint32_t>len(name)
        return packed.entry(&c, ENTRY_CONTROL, NULL)

    def tell(self, int peer, bytes kind not None, bytes payload not None):
        """Send a message to the broker of a sibling, in order with the publishes for it. It arrives as
        `handler.sibling_message(peer, kind, payload)`."""
        cdef Content c
        memset(&c, 0, sizeof(c))
        c.topic = <const uint8_t*><const char*>kind
        c.topic_len = <uint16_t>len(kind)
        c.payload = <const uint8_t*><const char*>payload
        c.payload_len = <uint32_t>len(payload)
        cdef Peer p = self.known(peer)
        if p.sequenced is None:
            p.sequenced = Packed.__new__(Packed)
        p.sequenced.entry(&c, ENTRY_CONTROL, NULL)
        p.sent = self.state.tick
        self.dirty_peers |= <uint64_t>1 << peer
        self.entries_added = True

    def tell_unkept(self, int peer, bytes kind not None, bytes payload not None):
        """Send the same unreliably: the caller repeats it. Nothing is stored for it on either side."""
        cdef Content c
        memset(&c, 0, sizeof(c))
        c.topic = <const uint8_t*><const char*>kind
        c.topic_len = <uint16_t>len(kind)
        c.payload = <const uint8_t*><const char*>payload
        c.payload_len = <uint32_t>len(payload)
        self.tell_in_passing(peer, &c)
        self.dirty_peers |= <uint64_t>1 << peer
        self.entries_added = True

    cpdef tuple take(self, int peer):
        """Return the next batch for a link to send: (volatile, sequenced, volatile payloads, sequenced payloads, tick),
        or None. `tick` comes back in `peer_acknowledged` when the peer has everything up to and including this batch:
        later entries have another tick."""
        cdef Peer p = self.known(peer)
        self.state.clock.tell()
        if p.cut:
            return p.cut.pop(0)
        self.dirty_peers &= ~(<uint64_t>1 << peer)
        if p.volatile_entries is None and p.sequenced is None:
            return None
        return self.whole(p)

    cdef tuple whole(self, Peer p):
        # a batch; later entries have another tick
        cdef tuple out
        out = (p.volatile_entries, p.sequenced, p.volatile_payloads, p.sequenced_payloads, self.state.tick)
        p.volatile_entries = None
        p.sequenced = None
        p.volatile_payloads = []
        p.sequenced_payloads = []
        self.state.tick += 1
        return out

    def peer_acknowledged(self, int peer, uint64_t tick):
        """Note that the peer has everything of the ticks up to `tick`: acks that waited for it may be sent."""
        cdef Peer p = self.known(peer)
        if tick > p.acknowledged:
            p.acknowledged = tick
            self.state.acks_due = True

    cdef uint64_t taken_until(self) except? 0:
        # the tick up to which the siblings that live have everything
        cdef uint64_t tick = <uint64_t>-1
        cdef int p
        cdef Peer peer
        for p in range(self.state.workers):
            if p == self.state.worker:
                continue
            peer = <Peer>self.peers[p]
            if self.live_peers >> p & 1 and peer.acknowledged < peer.sent and peer.acknowledged < tick:
                tick = peer.acknowledged
        return tick

    cdef int tell_hosts(self, const Filter* f, bytes text) except -1:
        # tell other hosts whether this one wants what matches the filter (NULL: nobody does)
        cdef bint wanted = f != NULL and (f.plain.count != 0 or f.siblings & ~self.rails != 0)
        if self.host_interest is not None:
            work(2 * PYTHON)
            self.host_interest.change(text, None, 1 if wanted else 0)
            self.links_due = True
        return 0

    cdef int tell_hosts_group(self, const Group* g, bytes text, bytes group) except -1:
        # tell other hosts how many members the group has on this one (NULL: none)
        cdef uint64_t siblings
        cdef uint32_t members, online
        cdef int p = 0
        if self.host_interest is None:
            return 0
        work(2 * PYTHON)
        members = online = 0
        if g != NULL:
            members, online = g.members.count, g.members.online
            siblings = g.siblings & ~self.rails
            while siblings:
                if siblings & 1:
                    members += g.elsewhere[p].members
                    online += g.elsewhere[p].online
                siblings >>= 1
                p += 1
        self.host_interest.change(text, group, members, False, online)
        self.links_due = True
        return 0

    def peer_took_interest(self, int peer, uint64_t number):
        """Note that the peer routes by our interest up to `number`: SUBACKs that waited for it may be sent."""
        cdef Peer p = self.known(peer)
        if number > p.interest:
            p.interest = number
            self.state.acks_due = True

    def peer_live(self, int peer, bint live):
        """Note whether a peer is live: acks wait for live peers only."""
        if live:
            self.unsure_peers &= ~(<uint64_t>1 << peer)
            self.live_peers |= <uint64_t>1 << peer
            self.live_for_interest |= <uint64_t>1 << peer
        else:
            self.live_peers &= ~(<uint64_t>1 << peer)
            self.live_for_interest &= ~(<uint64_t>1 << peer)
            self.state.acks_due = True

    def peer_away(self, int peer):
        """Note that a peer is stopped: SUBACKs do not wait for it, its entries are acknowledged by its link's hand-off
        log."""
        self.live_for_interest &= ~(<uint64_t>1 << peer)
        self.state.acks_due = True

    def peer_unsure(self, int peer):
        """Note that a peer may have answered SUBSCRIBEs unknown to us: it gets every publish at QoS 1 or 2, and matches
        it itself, until it is live again or has sent its whole interest."""
        self.unsure_peers |= <uint64_t>1 << peer

    cpdef peer_full(self, int peer, bint full):
        """Note whether a peer's outbox is full: meanwhile connections that publish to it are not read."""
        if full:
            self.full_peers |= <uint64_t>1 << peer
        elif self.full_peers >> peer & 1:
            self.full_peers &= ~(<uint64_t>1 << peer)
            self.state.resumed.extend(self.paused)
            self.paused = []

    def peer_answered(self, int peer):
        """Note that a peer may serve by our interest sent so far: SUBACKs wait for it."""
        self.live_for_interest |= <uint64_t>1 << peer
