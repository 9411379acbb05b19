# cython: language_level=3
"""Restoring of sessions after a start: see the .pyx."""
from libc.stdint cimport uint8_t

from pyx.core.counters cimport Row
from pyx.delivery.journal cimport Journal
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session
from pyx.delivery.windows cimport Windows


cdef class Restoring:
    cdef RouterState state
    cdef Row counters
    cdef Journal journal
    cdef Windows windows

    cdef int put_back(self, Session s, const uint8_t* p, dict own, dict messages) except -1
    cdef int put_back_queue(self, Session s, dict own) except -1
