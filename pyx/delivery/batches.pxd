# cython: language_level=3
"""Batches between the router and the links: see the .pyx."""
from libc.stdint cimport uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.journal cimport Journal
from pyx.delivery.peers cimport Peers
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.siblings cimport Siblings
from pyx.mesh.links cimport Links
from pyx.mesh.receiver cimport BatchReceiver, Part


cdef class Batches(BatchReceiver):
    cdef RouterState state
    cdef Row counters
    cdef Peers peers
    cdef Siblings siblings
    cdef Journal journal
    cdef list numbers                   # of the siblings
    cdef dict keys                      # of the records of their positions, by sibling
    cdef public object links            # by sibling
    cdef public Links together          # the same; None: `flush` sends what they have
    cdef public object flush
    # cleared once the clients are gone: a sibling must not tell its publishers that messages have been taken here
    cdef public bint acknowledges
    cdef object rare                    # see the .pyx
    cdef readonly dict waiting          # by sibling: batches that are taken in pieces, and those behind them
    cdef public uint64_t waiting_bytes
    cdef public uint64_t waiting_bytes_max
    cdef object passed_on               # (tick, what `commits` has) of rails' batches that siblings do not have yet
    cdef readonly dict begun            # by sibling: a batch whose first entries an earlier worker has taken
    cdef list commits                   # (sibling, sequence, refused) of this tick
    cdef public bint interest_came      # in this tick: a sibling waits for its acknowledgement

    cpdef heard(self)
    cpdef tell_full(self)
    cpdef bint commit(self) except -1
    cdef list wait_for_siblings(self, list commits)
    cpdef bint release_passed_on(self) except -1
    cdef int route(self, int peer, const Part* volatile, const Part* sequenced, list payloads,
                   uint64_t sequence) except -1
    cdef int submit(self, int peer, bint hold) except -1
    cdef int record_position(self, int peer, object place, object refused) except -1
