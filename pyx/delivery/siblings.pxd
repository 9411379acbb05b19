# cython: language_level=3
"""Messages from the other workers of the host: see the .pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.fanout cimport FanOut
from pyx.delivery.peers cimport Peers
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.retaining cimport Retaining
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.sharing cimport Sharing
from pyx.matching.interest cimport WholeInterest
from pyx.matching.subscriptions cimport Subscriptions
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
    cdef tuple take(self, int peer, const uint8_t* entries, size_t n, list payloads, int used, size_t at,
                    uint32_t position, uint32_t taken, uint64_t until)
    cdef int take_entry(self, Entry* e, object publisher, list payloads, int used) except -1
