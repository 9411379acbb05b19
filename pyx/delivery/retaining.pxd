# cython: language_level=3
"""Retained messages: see the .pyx."""
from libc.stdint cimport uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.journal cimport Journal
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport RouterState
from pyx.matching.subscriptions cimport Subscriptions
from pyx.protocol.message cimport Message


cdef class Retaining:
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef PublishInHand in_hand
    cdef Journal journal
    cdef BackPressure back_pressure
    cdef Backlog backlog

    cdef readonly object retained       # pyx.matching.retained.Retained
    cdef uint64_t retained_bytes
    cdef int keep(self) except -2
    cdef int note_retained(self, bytes topic, Message m) except -1
