# cython: language_level=3
"""Acceptance of new connections: see the .pyx."""
from libc.stdint cimport uint32_t

from pyx.core.counters cimport Row
from pyx.delivery.connection cimport Connection
from pyx.delivery.router_state cimport RouterState
from pyx.io.connections cimport Connections


cdef class Acceptor:
    cdef RouterState state
    cdef Row counters
    cdef Connections connections
    cdef dict listeners                 # fd -> number of its listener
    cdef object paused                  # the listeners while accepting is paused (no descriptors or memory); else None
    cdef public uint32_t connections_max
    cdef public uint32_t connect_ms_max

    cdef int accept(self, int listening) except -1      # accepts up to ACCEPTS waiting connections
    cdef bint may_come(self, Connection conn) except -1
    cdef int pause(self, int error) except -1
