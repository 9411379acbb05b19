# cython: language_level=3
"""What leaves: see the .pyx."""
from libc.stdint cimport uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.connection cimport Connection
from pyx.delivery.router_state cimport RouterState
from pyx.io.connections cimport Connections


cdef class Sending:
    cdef RouterState state
    cdef Row counters
    cdef Connections connections
    cdef uint64_t done                  # ns of work, nominal, that the present slice has sent

    cdef int flush_all(self) except -1                          # a slice of those that have output
    cdef int flush(self, Connection conn) except -1             # of one, as much as the kernel takes
    cdef int lost(self, Connection conn, str why) except -1     # its client is gone, or its socket is
    cdef int close_asked(self) except -1                        # a slice of those that the router wants closed
    cdef int say_closed(self, Connection conn, int reason, str why) except -1
    cdef int close_one(self, Connection conn, int reason, str why) except -1
    cdef int half_close(self, Connection conn) except -1
