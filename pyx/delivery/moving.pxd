# cython: language_level=3
"""Sessions that move to another host: see the .pyx."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Inflight, Queued, Session
from pyx.delivery.windows cimport Windows
from pyx.protocol.message cimport Message
from pyx.storage.entries cimport Packed


cdef class Departure:
    cdef Moving moving
    cdef readonly Session session
    cdef list identifiers       # Packet Identifiers in flight, in order; then the log is read
    cdef list arrived
    cdef list unreleased        # as `arrived`, which is emptied when it is packed
    cdef bytes marks            # of what the session has had
    cdef uint32_t at            # of `marks`, then of `identifiers`, then of the queue
    cdef uint32_t queued        # messages of the queue, at most, still to be packed
    cdef uint8_t stage
    cdef uint64_t cursor
    cdef readonly uint64_t messages

    cdef bint fill(self, Packed packed, uint32_t most) except -1
    cdef int pack_slot(self, Packed packed, Inflight* slot) except -1
    cdef bint read_on(self, Packed packed, uint32_t most) except -1


cdef class Moving:
    cdef RouterState state
    cdef Row counters
    cdef Backlog backlog
    cdef Windows windows

    cdef int pack(self, Packed packed, uint8_t kind, uint16_t packet_id, uint8_t state, uint8_t flags,
                  bytes identifiers, Message m) except -1
    cdef int pack_marks(self, Packed packed, bytes marks, uint32_t at, uint32_t n) except -1
    cdef int bound(self, Session s) except -1
    cdef uint32_t check_record(self, const uint8_t* p, size_t n) except? 0xFFFFFFFF
    cdef Message take_in(self, Session s, uint8_t kind, uint16_t packet_id, uint8_t window_state, bytes record,
                         int64_t ahead)
