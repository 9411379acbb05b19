# cython: language_level=3
"""Messages from peers: see the .pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.fanout cimport FanOut
from pyx.delivery.peers cimport Peers
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.retaining cimport Retaining
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.sharing cimport Sharing
from pyx.matching.interest cimport WholeInterest
from pyx.matching.subscriptions cimport Matches, Subscriptions
from pyx.protocol.message cimport Content
from pyx.storage.entries cimport Entry


cdef class Siblings:
    cdef RouterState state
    cdef Row counters
    cdef Subscriptions subscriptions
    cdef PublishInHand in_hand
    cdef Peers peers
    cdef Backlog backlog
    cdef Retaining retaining
    cdef FanOut fanout
    cdef Sharing sharing

    cdef dict interests                 # sibling -> WholeInterest during its transfer; None: no transfers
    cdef uint32_t interest_number       # of the last transfer
    cdef WholeInterest whole_interest(self, int peer)
    cdef int tell_hosts(self, bytes text, bytes group) except -1
    cdef tuple take(self, int peer, const uint8_t* entries, size_t n, list payloads, int used, size_t at,
                    uint32_t position, uint32_t taken, uint64_t until)
    cdef int64_t[64] ahead_ms           # by place: of a rail's host, its time less this one's
    cdef int take_entry(self, int peer, Entry* e, object publisher, list payloads, int used) except -1
    cdef uint64_t siblings_of(self, const Matches* m) noexcept
    cdef int pass_on(self, uint64_t siblings) except -1
    cdef int translate(self, int peer, Content* c) except -1
