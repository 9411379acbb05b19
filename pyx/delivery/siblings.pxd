# cython: language_level=3
"""The other workers: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t

from pyx.delivery.fanout cimport FanOut
from pyx.delivery.routing cimport Peer
from pyx.matching.interest cimport WholeInterest
from pyx.protocol.message cimport Content, Message
from pyx.storage.records cimport Choice, Entry, Packed


cdef class Siblings(FanOut):
    cdef dict interests                 # sibling -> WholeInterest, while it is told; None: of nobody
    cdef uint32_t interest_number       # of the last one

    cdef int entry(self, int peer, uint8_t flags, const Choice* choice) except -1
    cdef WholeInterest whole_interest(self, int peer)
    cdef tuple whole(self, Peer p)
    cdef int check_frame(self, Entry* e, list payloads, int used) except -1
    cdef int name_publisher(self, Packed packed) except -1
    cdef int take_entry(self, Entry* e, object publisher, list payloads, int used) except -1
    cdef int begin_entry(self, Entry* e, list payloads, int used) except -1
    cdef Message borrow(self, const Content* c, object owner)

    # implemented by Sharing: 0, or why the entry is refused
    cdef int chosen(self, Entry* e) except -1
