# cython: language_level=3
"""What a tick gives to the store: see the .pyx."""
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
    cdef bint recorded                  # something but the block is to be stored with this tick
    cdef list durabilities              # [(Topic Filter, synced), ...]; None: all is as safe as the store makes it
    cdef bint others_synced             # what no rule matches
    cdef bint synced                    # what is to be stored with this tick is for the disk itself, by the rules
    cdef object when_stored             # deque of (ticket, callback, connection or None), in order
    cdef readonly Archiver archiver     # of what this worker's clients publish; None: nothing is archived
    cdef bint archive_due               # it has gathered something
    cdef bint archive_awaited           # ... for which an ack waits
    cdef uint64_t archived_ms           # when that was last given to the store
    cdef uint64_t number_kept           # the store has it that numbers up to here are not given again
    cdef public object on_durable       # called whenever tickets have become durable; None: nobody waits for that
    cdef dict retained_changes          # topic -> Message, or None: none any more; of this tick, to be stored with it
    cdef Block block
    # one of very many indexes, appended in pieces; or None. Until the last one is in nothing is read of the log and
    # nothing is given to the disk: then all that has been decided meanwhile is, with it
    cdef Block laid
    cdef public uint32_t laid_at_once   # indexes in a piece
    cdef public uint64_t durable_ticket
    cdef uint64_t last_ticket
    cdef list keys                      # LogKeys of all indexes
    cdef LogKey key_of(self, Filter* f)
    cdef int drop_key(self, LogKey key) except -1
    cdef int log(self, Filter* f) except -1
    cdef uint64_t next_ticket(self) noexcept
    cdef int archive(self, const Matches* m, uint32_t matches, bint is_full) except -1
    cdef int settle_durability(self, const Content* c) except -1
