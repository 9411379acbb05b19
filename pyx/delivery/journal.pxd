# cython: language_level=3
"""The journal, a tick's writes to the store: see the .pyx."""
from libc.stdint cimport uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport RouterState
from pyx.matching.subscriptions cimport Filter, Matches
from pyx.protocol.message cimport Content
from pyx.storage.archive cimport Archiver
from pyx.storage.records cimport Block, LogKey


cdef class Journal:
    cdef RouterState state
    cdef Row counters
    cdef PublishInHand in_hand

    cdef public object store            # leveldb_store contract
    cdef bint recorded                  # the tick has something to store besides its block
    cdef list durabilities              # [(Topic Filter, synced), ...]; None: no rules, the default of the store
    cdef bint others_synced             # synced, for topics that no rule matches
    cdef bint synced                    # the commit of this tick must be on the disk itself, by the rules
    cdef object when_stored             # deque of (ticket, callback, connection or None), in order
    cdef Py_ssize_t callbacks_most      # if there are more, those of closed connections are forgotten
    cdef readonly bint callbacks_due    # some whose ticket is durable are called in the next tick
    cdef readonly Archiver archiver     # for publishes of this worker's clients; None: nothing is archived
    cdef bint archive_due               # it has gathered messages
    cdef bint archive_awaited           # ... and an ack waits for them
    cdef uint64_t archived_ms           # when the archive was last written to the store
    cdef uint64_t number_kept           # numbers up to this one, as recorded in the store, are not given out again
    cdef public object on_durable       # called whenever tickets have become durable; or None
    cdef dict retained_changes          # topic -> Message, or None: cleared; of this tick, to be stored with it
    cdef Block block
    # a block of very many indexes, being appended in pieces; or None. Until its end the log is not read and nothing is
    # committed: all changes made meanwhile are committed with it
    cdef Block appending
    cdef public uint32_t indexes_at_once   # indexes in a piece
    cdef public uint64_t durable_ticket
    cdef uint64_t last_ticket
    cdef list keys                      # LogKeys of all indexes
    cdef LogKey key_of(self, Filter* f)
    cdef int drop_key(self, LogKey key) except -1
    cdef int log(self, Filter* f) except -1
    cdef uint64_t next_ticket(self) noexcept
    cdef int call_stored(self) except -1
    cdef int forget_closed(self) except -1
    cdef int archive(self, const Matches* m, uint32_t matches, bint is_full) except -1
    cdef int settle_durability(self, const Content* c) except -1
