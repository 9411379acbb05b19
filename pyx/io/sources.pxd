# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t

from pyx.core.kernel cimport sockaddr_storage
from pyx.delivery.connection cimport Connection


cdef class Source:
    cdef uint32_t half_open
    cdef uint64_t room              # thousandths of a connection
    cdef uint64_t at                # ms: time of `room`


cdef class Sources:
    cdef dict by_address            # 4 bytes of IPv4, 8 of IPv6 -> Source
    cdef public uint32_t half_open_max          # per address; 0: any number
    cdef public uint32_t per_second_max

    # returns 0 if it is accepted (half open until `leave`), else the counter of its refusal
    cdef int arrive(self, Connection conn, uint64_t now_ms) except -1
    cdef int leave(self, Connection conn) except -1
    cdef object key(self, Connection conn)
    cdef int forget_old(self, uint64_t now_ms) except -1


# stores the address from accept4 or getpeername
cdef int set_peer(Connection conn, sockaddr_storage* address) noexcept
