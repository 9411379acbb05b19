"""The journal: a tick's writes to the store (log block, state records, archive), and the work that waits for them.

All of a tick is stored with one commit, under one ticket. Everything that depends on it waits for that ticket: acks
(pyx.delivery.answering), windows (pyx.delivery.windows), and callbacks (`when_durable`).
"""
from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from pyx.core cimport counters as count
from pyx.core.little_endian cimport put64
from pyx.core.work cimport Mark, OBJECT, PYTHON, RECORD, STORED, VISIT, callback_begins, callback_ends, progress, work
from pyx.delivery.connection cimport CLOSING, Connection
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport INDEXES_AT_ONCE, NAMED, NUMBER_WORKER_BITS, RouterState, SLICE
from pyx.matching.subscriptions cimport Filter, Matches, filter_text
from pyx.protocol.message cimport Content
from pyx.protocol.topics cimport topic_matches
from pyx.storage.archive cimport Archiver
from pyx.storage.records cimport Block, LogKey


cdef enum:
    NUMBER_KEPT = 1_000_000 << NUMBER_WORKER_BITS       # one second
    CALLBACKS_MOST = 1000       # callbacks that wait, until those of closed connections are looked for

cdef bytes NUMBER_KEY = b"\0number"             # leveldb_store.format.schema.NUMBER


cdef bytes number_value(uint64_t number):
    cdef uint8_t[8] value
    put64(value, number)
    return PyBytes_FromStringAndSize(<char*>value, 8)


@cython.final
cdef class Journal:
    """A tick's writes to the store (log, state records, archive), and the work that waits until they are durable."""

    def __cinit__(self, RouterState state not None, PublishInHand in_hand not None):
        self.state = state
        self.counters = state.counters
        self.in_hand = in_hand
        self.keys = []
        self.when_stored = deque()
        self.callbacks_most = CALLBACKS_MOST
        self.on_durable = None
        self.retained_changes = {}
        self.block = Block(1)
        self.indexes_at_once = INDEXES_AT_ONCE

    cdef LogKey key_of(self, Filter* f):
        cdef LogKey key
        if f.index == NULL:
            key = LogKey(filter_text(f)[:f.length])
            key.place = <uint32_t>len(self.keys)
            self.keys.append(key)               # the strong reference
            f.index = <void*>key
        return <LogKey>f.index

    cdef int drop_key(self, LogKey key) except -1:
        # the index is no longer needed. The last key takes its place: a downward iteration misses none
        cdef LogKey last = self.keys.pop()
        if last is not key:
            last.place = key.place
            self.keys[key.place] = last
        self.store.forget(key.name)
        return 0

    cdef int log(self, Filter* f) except -1:
        cdef LogKey key = self.key_of(f)
        work(RECORD)
        self.state.spent += RECORD if key.count else NAMED
        if not self.in_hand.logged:
            self.block.add(self.in_hand.hold())
            self.state.next_position += 1
            self.in_hand.logged = True
            if self.durabilities is not None:
                self.settle_durability(self.in_hand.content)
        self.block.index(key, <uint32_t>(self.in_hand.here - self.block.first))
        return 0

    def durable(self, uint64_t ticket):
        """Note that everything up to this ticket is durable: the store's callback."""
        cdef Mark mark
        callback_begins(&mark)
        self.durable_ticket = ticket
        self.state.acks_due = True
        self.call_stored()
        if self.on_durable is not None:
            self.on_durable()
        callback_ends(&mark, STORED)

    cdef int call_stored(self) except -1:
        # a slice of the callbacks that are due: thousands of clients may have waited for one ticket
        cdef uint64_t until = progress() + SLICE
        self.callbacks_due = True               # what a callback waits for comes after those that wait already
        while self.when_stored and <uint64_t>self.when_stored[0][0] <= self.durable_ticket:
            if progress() > until:
                return 0
            work(PYTHON)
            _, callback, conn = self.when_stored.popleft()
            if conn is None:
                callback()
            else:
                self.state.attempt(conn, callback)
        self.callbacks_due = False
        if not self.when_stored:
            self.callbacks_most = CALLBACKS_MOST
        return 0

    cdef uint64_t next_ticket(self) noexcept:
        # the ticket with which all work until now will be durable; 0: it is durable
        cdef uint64_t ticket = self.last_ticket
        if not self.state.keeps:
            return 0
        if self.recorded or self.archive_awaited or self.state.next_position != self.block.first:
            ticket += 1
        return ticket if ticket > self.durable_ticket else 0

    def set_durabilities(self, list rules not None, bint others):
        """Set which messages must be on the disk itself to be durable, and which only at the operating system:
        [(Topic Filter, True for the disk), ...], the first that matches the topic applies; `others`: if none does. If
        any are for the disk, state records are too; a retained message follows the rule of its topic."""
        self.durabilities = rules or None
        self.others_synced = others

    cdef int settle_durability(self, const Content* c) except -1:
        # set whether the batch must be on the disk itself for this message
        cdef bytes text
        if self.synced:
            return 0
        for text, fsync in self.durabilities:
            work(OBJECT)
            if topic_matches(<const uint8_t*><const char*>text, len(text), c.topic, c.topic_len):
                self.synced = fsync
                return 0
        self.synced = self.others_synced
        return 0

    def set_archive(self, archive):
        """Set the archive of this worker (`leveldb_store.contract.Archive`), before the first publish. Numbers continue
        above those in it."""
        if archive is not None:
            self.state.numbers_behind(archive.highest)
            if archive.archiver.filters:
                self.archiver = archive.archiver

    cdef int archive(self, const Matches* m, uint32_t matches, bint is_full) except -1:
        # archive the publish in hand; matches: subscriptions here that match it; is_full: the store takes nothing new
        cdef const Content* c = self.in_hand.content
        cdef Archiver archiver = self.archiver
        cdef int32_t rule = archiver.rule_of(c.topic, c.topic_len, m.topic_hash)
        if rule < 0:
            return 0
        if c.qos == 0 and (is_full or archiver.pending_bytes > archiver.pending_bytes_max):
            self.counters.at[count.ARCHIVE_DROPPED] += 1
            return 0
        archiver.append(rule, c, self.in_hand.publisher, matches)
        self.counters.at[count.ARCHIVED_MESSAGES] += 1
        self.archive_due = True
        if c.qos:
            self.archive_awaited = self.in_hand.logged = True       # the ack waits for it
            if self.durabilities is not None:
                self.settle_durability(c)
        return 0

    def archived_up_to(self):
        """Return a number up to which every message archived by this worker is durable; 0 without an archive. (It rises
        with the clock while nothing is being archived.)"""
        cdef uint64_t number
        archive = self.store.archive
        if archive is None:
            return 0
        if not archive.is_settled:
            return archive.last
        number = self.state.new_number()
        if number + NUMBER_KEPT // 2 > self.number_kept:
            # readers rely on no lower number following: also after a restart with the clock set back
            self.number_kept = number + NUMBER_KEPT
            self.put_record(NUMBER_KEY, number_value(self.number_kept), False)
        return number

    def put_record(self, bytes key not None, bytes value not None, bint waited=True):
        """Store a state record (`leveldb_store.format.schema`) with the other records of this tick. Do nothing without
        a disk. Not `waited`: it need not be more durable than the other records of the tick.
        """
        if self.state.keeps:
            self.store.put(key, value)
            self.recorded = True
            if waited:
                self.synced = True

    def delete_record(self, bytes key not None, bint waited=True):
        """Delete a state record with the other changes of this tick. Do nothing without a disk. `waited`: see
        put_record."""
        if self.state.keeps:
            self.store.delete(key)
            self.recorded = True
            if waited:
                self.synced = True

    def when_durable(self, callback not None, Connection conn=None):
        """Call `callback` once, when everything stored or decided until now is durable: at once if it is, else from
        within `durable` or a tick after it, in the order of these calls. `conn`: the connection that it serves, closed
        if the callback fails; when it is closed, the callback may be left out."""
        cdef uint64_t ticket = self.next_ticket()
        if ticket or self.callbacks_due:
            self.when_stored.append((ticket or self.durable_ticket, callback, conn))
            if len(self.when_stored) > self.callbacks_most:
                self.forget_closed()
        else:
            callback()

    cdef int forget_closed(self) except -1:
        # clients give up and try again while the disk hangs: their connections are not held until it is back
        work(<uint64_t>len(self.when_stored) * VISIT)
        self.when_stored = deque([each for each in self.when_stored
                                  if each[2] is None or (<Connection>each[2]).state < CLOSING])
        self.callbacks_most = max(<Py_ssize_t>CALLBACKS_MOST, 2 * len(self.when_stored))
        return 0
