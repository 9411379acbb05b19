# cython: language_level=3
"""Answers that are decided after their packet: see the .pyx."""
from libc.stdint cimport uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.answering cimport Answering
from pyx.delivery.connection cimport Connection, PendingAck
from pyx.delivery.journal cimport Journal
from pyx.delivery.peers cimport Peers
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.windows cimport Windows


cdef class LateAnswers:
    cdef RouterState state
    cdef Row counters
    cdef Journal journal
    cdef Peers peers
    cdef Answering answering
    cdef Windows windows

    cdef bint waits_for(self, PendingAck* a, uint64_t workers) except -1
    cdef int refuse_pending(self, Connection conn, PendingAck* a) except -1
