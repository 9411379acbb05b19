# cython: language_level=3
"""Share groups and the other workers: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.fanout cimport FanOut
from pyx.message cimport Content, Message
from pyx.records cimport Entry
from pyx.subscriptions cimport Group


cdef class Siblings(FanOut):
    cdef int entry(self, int peer, uint8_t flags, bytes choice) except -1
    cdef int choose_worker(self, Group* g, list choices) except -1
    cdef int choose_among(self, Group* g, int refused, list choices) except -1
    cdef int choose_local(self, Group* g, uint32_t turn) except -1
    cdef int share_again(self, Message m, list groups) except -1
    cdef int begin_entry(self, Entry* e, list payloads, int used) except -1
    cdef int wait_longer(self, int peer, uint64_t tick, int other) except -1
    cdef Message borrow(self, const Content* c, object owner)
    cdef bint chosen(self, Entry* e) except -1
    cdef Group* named(self, const uint8_t* name, uint32_t n) noexcept
