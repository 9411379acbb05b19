# cython: language_level=3
"""Output, and the end of connections: see the .pyx."""
from libc.stdint cimport uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.connection cimport Connection
from pyx.delivery.router_state cimport RouterState
from pyx.io.connections cimport Connections


cdef class Sending:
    cdef RouterState state
    cdef Row counters
    cdef Connections connections
    cdef uint64_t done                  # ns of nominal work that the current slice has done

    cdef int flush_all(self) except -1                          # a slice of the connections that have output
    cdef int flush(self, Connection conn) except -1             # sends as much as the kernel takes
    cdef int lost(self, Connection conn, str why) except -1     # the client or the socket is gone
    cdef int close_asked(self) except -1                        # a slice of the connections to be closed
    cdef int say_closed(self, Connection conn, int reason, str why) except -1
    cdef int close_one(self, Connection conn, int reason, str why) except -1
    cdef int half_close(self, Connection conn) except -1
