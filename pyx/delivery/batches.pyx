"""Batches between the router and the links to peers, in both directions.

Arriving: a batch is routed (pyx.delivery.siblings) in the round in which it arrives, and acknowledged when that round's
log is committed, and durable where there is a disk. One that costs too much for a round is taken in pieces; later
batches of the sibling wait behind it. That is rare, and decided in Python, as are refusals: by `rare`, which has

    later(peer, volatile, sequenced, payloads, sequence, used, left, refused)   the rest of a batch
    store_refusals(peer, place, refused)                                        refused entries of a batch
    drop(reason, copies)                                                        count copies that nobody gets
    malformed(error)                                                            a batch that cannot be read

Leaving: the entries that a tick has for siblings are submitted to the links at its end, which then send.
"""
from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.core cimport counters as count
from pyx.core.kernel cimport monotonic_ns
from pyx.core.little_endian cimport put64
from pyx.core.work cimport MESH, Mark, OBJECT, callback_begins, callback_ends, work
from pyx.mesh.link cimport Link
from pyx.mesh.receiver cimport Part, view_of
from pyx.mesh.sockets cimport Push
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
cdef class Batches(BatchReceiver):
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
        self.passed_on = deque()

    def add_rail(self, int place, bytes key not None):
        """Take batches of this rail, too. `key`: of the record of its position."""
        self.numbers.append(place)
        self.keys[place] = key

    def drop_rail(self, int place):
        """Take no more batches of it: its link is gone."""
        self.numbers.remove(place)
        del self.keys[place]
        self.begun.pop(place, None)

    # ------------------------------------------------------------ the round

    cdef int begin_round(self) except -1:
        if self.together.begin(self.state.tick_ns * 1e-9):
            self.counters.at[count.TICK_PEER_CARRIED] += 1
        return 0

    cdef int end_reading(self) except -1:
        if self.together.end_reading():
            if monotonic_ns() <= self.together.trusted_until_ns:    # read after what siblings have said
                self.together.trust()
            self.heard()
        elif self.together.is_due:
            self.peers.links_due = True     # the barrier has acknowledged interest
        return 0

    cdef bint has_more(self) except -1:
        # messages of siblings were left: they are in no socket, whose event would wake this worker
        return self.together.stopped

    cpdef heard(self):
        """Acknowledge what siblings have said, at the end of the round."""
        cdef bint owed
        self.tell_full()
        owed = self.acknowledges and self.commit()
        if self.passed_on and self.acknowledges and self.release_passed_on():
            owed = True
        if owed or self.together.is_due:
            self.peers.links_due = True     # greetings, acks

    cpdef tell_full(self):
        """Tell the router which links are full."""
        cdef Link link
        for link in self.together.links:
            self.peers.peer_full(<int>link.peer, link.out.full)

    # ------------------------------------------------------------ arriving

    def batch(self, int peer, object volatile, object sequenced, list payloads not None, uint64_t sequence):
        """Route a batch whose parts are whole objects; see `zmq_mesh.contract.LinkEvents`."""
        cdef bytes whole_volatile = None if volatile is None else bytes(volatile)
        cdef bytes whole_sequenced = None if sequenced is None else bytes(sequenced)
        cdef Part first = part_of(whole_volatile), second = part_of(whole_sequenced)
        self.take_batch(peer, &first, &second, payloads, sequence)

    cdef int take_batch(self, uint32_t number, const Part* volatile, const Part* sequenced, list payloads,
                        uint64_t sequence) except -1:
        cdef int peer = <int>number
        cdef Mark mark
        callback_begins(&mark)
        self.counters.at[count.MESH_BATCHES_RECEIVED] += 1
        self.state.is_active = True
        if self.waiting and peer in self.waiting or self.begun and sequence and peer in self.begun:
            self.rare.later(peer, view_of(volatile), view_of(sequenced), payloads, sequence)
        else:
            try:
                self.route(peer, volatile, sequenced, payloads, sequence)
            except Exception as error:
                # what is malformed would be so again: it is dropped and counted, and what follows it goes on
                self.rare.malformed(error)
                if sequence:
                    self.taken(peer, sequence, None)
        callback_ends(&mark, MESH)
        return 0

    cdef int route(self, int peer, const Part* volatile, const Part* sequenced, list payloads,
                   uint64_t sequence) except -1:
        cdef int used = 0
        cdef object refused = None, left = None
        if volatile.data != NULL:
            used, refused, left = self.siblings.take(peer, volatile.data, volatile.size, payloads, 0, 0, 0, 0, 0)
            if refused:                 # a member is not chosen again for QoS 0
                self.rare.drop(<int>count.DROPPED_NO_MEMBER, len(refused))
                refused = None
            if left is not None:
                self.rare.later(peer, view_of(volatile), view_of(sequenced), payloads, sequence, used, left)
                return 0
        if sequenced.data != NULL:
            used, refused, left = self.siblings.take(peer, sequenced.data, sequenced.size, payloads, used, 0, 0, 0, 0)
            if left is not None:
                self.rare.later(peer, None, view_of(sequenced), payloads, sequence, used, left, refused)
                return 0
        if sequence:
            self.taken(peer, sequence, refused)
        return 0

    cpdef bint is_sated(self) except -1:
        """Return whether this round has taken enough."""
        return self.state.is_round_over()

    cpdef bint is_full(self) except -1:
        """Return whether so many batches are not completely taken that siblings are not read."""
        return self.waiting_bytes >= self.waiting_bytes_max

    def taken(self, int peer, uint64_t sequence, list refused, place=None):
        """Complete a batch. `place`: the link's answer for the sequence, if it was asked before."""
        if refused and len(refused) > REFUSED_MAX:      # only from a log of an earlier release
            self.rare.drop(<int>count.DROPPED_NO_MEMBER, len(refused) - REFUSED_MAX)
            del refused[REFUSED_MAX:]
        if peer not in self.keys:           # of a rail that was dropped meanwhile
            return
        self.commits.append((peer, sequence, refused or ()))
        if self.state.keeps:
            # what siblings get of a rail's batch is in their hand-off logs, so that it is safe with this record
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

    cpdef bint commit(self) except -1:
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
            if self.peers.rails:
                commits = self.wait_for_siblings(commits)
            self.say(commits)
            return True
        durable = Durable()
        durable.batches = self
        durable.commits = commits
        self.journal.when_durable(durable)
        return owed

    cdef list wait_for_siblings(self, list commits):
        # return those that can be acknowledged now. With the store in memory, a rail's batch is acknowledged when the
        # siblings that wanted something of it have it; its entries are in the next batches for them
        cdef list others = []
        cdef uint64_t tick = self.state.tick
        for each in commits:
            if self.peers.rails >> <int>each[0] & 1:
                self.passed_on.append((tick, each))
            else:
                others.append(each)
        return others

    cpdef bint release_passed_on(self) except -1:
        """Acknowledge batches of rails that siblings have now. Return whether there were any."""
        cdef uint64_t tick
        cdef list commits = []
        if not self.passed_on:
            return False
        tick = self.peers.taken_until()
        while self.passed_on and self.passed_on[0][0] <= tick:
            work(OBJECT)
            commits.append(self.passed_on.popleft()[1])
        self.say(commits)
        return bool(commits)

    def say(self, list commits not None):
        """Tell the links that these batches are committed."""
        for peer, sequence, refused in commits:
            link = self.links.get(peer)
            if link is None:        # a rail that was dropped meanwhile
                continue
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
            if isinstance(link, Link):
                is_full = (<Link>link).out.submit(
                    volatile, sequenced, payloads_volatile, payloads_sequenced, <int64_t>tick,
                    (<Packed>volatile).entries if volatile is not None else 0,
                    (<Packed>sequenced).entries if sequenced is not None else 0, hold)
                if isinstance((<Link>link).out.send, Push):
                    (<Push>(<Link>link).out.send).flush()   # the sibling begins while the rest of this round is done
                continue
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


cdef Part part_of(bytes whole):
    cdef Part part
    part.owner = <void*>whole
    part.data = <const uint8_t*>PyBytes_AS_STRING(whole) if whole is not None else NULL
    part.size = len(whole) if whole is not None else 0
    return part
