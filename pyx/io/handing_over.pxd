# cython: language_level=3
"""Connections on their way to their home worker: see the .pyx."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.delivery.connection cimport Connection
from pyx.delivery.router_state cimport RouterState
from pyx.io.reactor cimport Reactor


cdef class HandedOver:
    cdef public int fd
    cdef readonly bytes unread
    cdef readonly uint64_t deadline_ns
    cdef readonly bytes host
    cdef readonly int port
    cdef readonly uint8_t listener


cdef class HandingOver:
    cdef Reactor reactor
    cdef RouterState state
    cdef list sockets
    cdef int own
    cdef object rare
    cdef public uint64_t handoff_ms_max
    cdef public uint64_t connect_ms_max
    cdef public bint is_stopping        # no connection is taken in any more

    cpdef bint pass_on(self, Connection conn, int worker, bytes raw, uint64_t deadline_ns) except -1
    cdef int adopt(self, HandedOver came) except -1


# sends the connection `fd` over the socket; returns False if that is full. Raises OSError
cdef bint send_connection(int sock, int fd, const uint8_t* unread, uint32_t n, uint64_t deadline_ns, bytes host,
                          uint16_t port, uint8_t listener) except -1
# returns the next connection, None if there is none. Raises HandoffLost
cdef HandedOver receive_connection(int sock)
