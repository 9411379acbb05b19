# cython: language_level=3
"""Handing on of messages that a member of a share group did not take: see the .pyx."""
from libc.stdint cimport uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.answering cimport Answering
from pyx.delivery.enrolling cimport Enrolling
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.sharing cimport Sharing
from pyx.matching.subscriptions cimport Subscriptions
from pyx.protocol.message cimport Message
from pyx.storage.entries cimport Entry


cdef class HandingOn:
    cdef RouterState state
    cdef Row counters
    cdef Subscriptions subscriptions
    cdef PublishInHand in_hand
    cdef Answering answering
    cdef Enrolling enrolling
    cdef Sharing sharing

    cdef bint again(self, Entry* e, list payloads, int used, uint64_t offline, uint64_t without,
                    uint64_t* others) except -1
    cdef bint again_guarded(self, Entry* e, list payloads, int used, uint64_t offline, uint64_t without,
                            uint64_t* others) except -1
    cdef int wait_longer(self, int peer, uint64_t tick, uint64_t others) except -1
    cdef bint hand_on(self, uint32_t group, Message m) except -1
