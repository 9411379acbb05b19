"""Batches between the router and the links to siblings, in both directions.

Arriving: a batch is routed (pyx.delivery.siblings) in the round in which it arrives, and acknowledged when that round's
log is committed, and durable where there is a disk. One that costs too much for a round is taken in pieces; later
batches of the sibling wait behind it. That is rare, and decided in Python, as are refusals: by `rare`, which has

    later(peer, volatile, sequenced, payloads, sequence, used, left, refused)   the rest of a batch
    store_refusals(peer, place, refused)                                        refused entries of a batch
    drop(reason, copies)                                                        count copies that nobody gets

Leaving: the entries that a tick has for siblings are submitted to the links at its end, which then send.
"""
cimport cython
from libc.stdint cimport uint8_t, uint64_t

from pyx.core cimport counters as count
from pyx.core.little_endian cimport put64
from pyx.core.work cimport MESH, Mark, callback_begins, callback_ends
from pyx.mesh.link cimport Link
from pyx.storage.entries cimport Packed

cdef enum:
    POSITION_FORMAT = 2                 # leveldb_store.format.link_schema.PEER_FORMAT
    WAITING_BYTES_MAX = 1 << 20         # of batches that are taken in pieces
    REFUSED_MAX = 0xFFFF                # of one batch: their number has 16 bits


@cython.final
cdef class Durable:
    """Says that these batches are durable."""
    cdef Batches batches
    cdef list commits

    def __call__(self):
        self.batches.say(self.commits)


@cython.final
cdef class Batches:
    """The batches of one worker. `keys`: by sibling the key of the record of its position (family P)."""

    def __cinit__(self, RouterState state not None, Peers peers not None, Siblings siblings not None,
                  Journal journal not None, dict keys not None, rare):
        self.state = state
        self.counters = state.counters
        self.peers = peers
        self.siblings = siblings
        self.journal = journal
        self.numbers = list(keys)
        self.keys = keys
        self.rare = rare
        self.links = {}
        self.waiting = {}
        self.begun = {}
        self.commits = []
        self.flush = _nothing
        self.acknowledges = True
        self.waiting_bytes_max = WAITING_BYTES_MAX

    # ------------------------------------------------------------ the round

    def begin(self):
        """Begin a round. Return whether messages of siblings were left in the last one."""
        cdef bint left = self.together.begin(self.state.tick_ns * 1e-9)
        if left:
            self.counters.at[count.TICK_PEER_CARRIED] += 1
        return left

    def read(self):
        """End the reading of a round."""
        if self.together.read():
            self.heard()

    cpdef heard(self):
        """Acknowledge what siblings have said, at the end of the round."""
        self.tell_full()
        if self.acknowledges:
            self.commit()
        self.peers.links_due = True     # greetings, acks

    cpdef tell_full(self):
        """Tell the router which links are full."""
        cdef Link link
        for link in self.together.by_peer.values():
            self.peers.peer_full(<int>link.peer, link.out.full)

    # ------------------------------------------------------------ arriving

    def batch(self, int peer, object volatile, object sequenced, list payloads not None, uint64_t sequence):
        """Route a batch; see `zmq_mesh.contract.LinkEvents`."""
        cdef Mark mark
        callback_begins(&mark)
        self.counters.at[count.MESH_BATCHES_RECEIVED] += 1
        self.state.is_active = True
        if self.waiting and peer in self.waiting or self.begun and sequence and peer in self.begun:
            self.rare.later(peer, volatile, sequenced, payloads, sequence)
        else:
            self.route(peer, volatile, sequenced, payloads, sequence)
        callback_ends(&mark, MESH)

    cdef int route(self, int peer, object volatile, object sequenced, list payloads, uint64_t sequence) except -1:
        cdef int used = 0
        cdef object refused = None, left = None
        if volatile is not None:
            used, refused, left = self.siblings.ingest(peer, volatile, payloads, 0)
            if refused:                 # a member is not chosen again for QoS 0
                self.rare.drop(<int>count.DROPPED_NO_MEMBER, len(refused))
                refused = None
            if left is not None:
                self.rare.later(peer, volatile, sequenced, payloads, sequence, used, left)
                return 0
        if sequenced is not None:
            used, refused, left = self.siblings.ingest(peer, sequenced, payloads, used)
            if left is not None:
                self.rare.later(peer, None, sequenced, payloads, sequence, used, left, refused)
                return 0
        if sequence:
            self.taken(peer, sequence, refused)
        return 0

    def is_full(self):
        """Return whether so many batches are not completely taken that siblings are not read."""
        return self.waiting_bytes >= self.waiting_bytes_max

    def taken(self, int peer, uint64_t sequence, list refused, place=None):
        """Complete a batch. `place`: the link's answer for the sequence, if it was asked before."""
        if refused and len(refused) > REFUSED_MAX:      # only from a log of an earlier release
            self.rare.drop(<int>count.DROPPED_NO_MEMBER, len(refused) - REFUSED_MAX)
            del refused[REFUSED_MAX:]
        self.commits.append((peer, sequence, refused or ()))
        if self.state.keeps:
            self.record_position(peer, place, refused)

    cdef int record_position(self, int peer, object place, object refused) except -1:
        # stored together with the messages of the batch: a restarted worker neither takes it twice nor misses it
        cdef uint8_t[18] value
        cdef uint8_t* end
        if place is None:
            sequence = self.commits[len(self.commits) - 1][1]
            place = self.links[peer].position(sequence)
        end = put64(put64(value, place[0]), place[1])
        end[0] = POSITION_FORMAT
        end[1] = 0
        self.journal.put_record(self.keys[peer], value[:18], False)
        if refused:
            self.rare.store_refusals(peer, place, refused)
        return 0

    def commit(self):
        """Acknowledge the batches of a committed tick, when the store has them. Return True if a sibling waits for an
        ack now."""
        cdef bint owed = self.interest_came
        cdef list commits = self.commits
        cdef Durable durable
        self.interest_came = False
        if not commits:
            return owed
        self.commits = []
        if not self.state.keeps:
            self.say(commits)
            return True
        durable = Durable()
        durable.batches = self
        durable.commits = commits
        self.journal.when_durable(durable)
        return owed

    def say(self, list commits not None):
        """Tell the links that these batches are committed."""
        for peer, sequence, refused in commits:
            link = self.links[peer]
            if isinstance(link, Link):
                (<Link>link).commit(sequence, refused)
            else:
                link.commit(sequence, refused)
        if self.state.keeps:
            self.peers.links_due = True

    # ------------------------------------------------------------ leaving

    def forward(self):
        """Submit a tick's entries to the links at its end, then let them send."""
        if self.journal.appending is not None:  # some may have to be stored first: then all of it is sent after that
            self.peers.links_due = True
            return
        if self.peers.dirty_peers:
            for peer in self.numbers:
                if self.peers.dirty_peers >> <int>peer & 1:
                    self.submit(peer, False)
        self.peers.links_due = False
        if self.together is not None:
            self.together.flush(self.state.tick_ns * 1e-9)
            self.state.needs_timer = not self.together.is_idle
        else:
            self.flush()

    def hold(self, uint64_t peers):
        """Store this tick's entries for these siblings (a bit for each) before they are sent, because they must not be
        lost with this worker."""
        for peer in self.numbers:
            if peers >> <int>peer & 1:
                self.submit(peer, True)

    def submit_now(self, int peer):
        """Submit the tick's entries for a sibling: its link is told that its worker has died."""
        self.submit(peer, False)

    cdef int submit(self, int peer, bint hold) except -1:
        cdef object link = self.links.get(peer)
        cdef tuple taken
        cdef bint is_full = False
        while True:
            taken = self.peers.take(peer)
            if taken is None:
                break
            if link is None:
                continue
            volatile, sequenced, payloads_volatile, payloads_sequenced, tick = taken
            is_full = link.submit(
                volatile, sequenced, payloads_volatile, payloads_sequenced, tick,
                (<Packed>volatile).entries if volatile is not None else 0,
                (<Packed>sequenced).entries if sequenced is not None else 0, hold,
            )
        if is_full:
            self.peers.peer_full(peer, True)
        return 0


def _nothing():
    pass
