"""Limits per source address: connections without an answered CONNECT (half open), and connections per second.

An address is its four bytes (IPv4, mapped or not) or its /64 (IPv6: the owner of one address in it has all). An address
is remembered while it has a half-open connection, and with a rate limit until it has its full allowance of one second
again. There are at most ADDRESSES_MAX; further new addresses share one entry.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcmp, memcpy

cimport pyx.core.counters as count  # not "from pyx cimport": the build would not see what it depends on
from pyx.core.kernel cimport AF_INET, AF_INET6, ntohs, sockaddr_in, sockaddr_in6, sockaddr_storage

cdef enum:
    ADDRESSES_MAX = 65536


@cython.final
cdef class Source:
    pass


@cython.final
cdef class Sources:
    """The source addresses of one worker's connections."""

    def __cinit__(self):
        self.by_address = {}

    def __len__(self):
        return len(self.by_address)

    cdef object key(self, Connection conn):
        if conn.peer_family == 4:
            return PyBytes_FromStringAndSize(<char*>conn.peer, 4)
        if memcmp(conn.peer, b"\0\0\0\0\0\0\0\0\0\0\xff\xff", 12) == 0:
            return PyBytes_FromStringAndSize(<char*>conn.peer + 12, 4)
        return PyBytes_FromStringAndSize(<char*>conn.peer, 8)

    cdef int arrive(self, Connection conn, uint64_t now_ms) except -1:
        cdef Source source
        cdef uint64_t full = 1000 * <uint64_t>self.per_second_max
        if conn.peer_family == 0 or self.half_open_max == 0 and self.per_second_max == 0:
            return 0
        key = self.key(conn)
        source = <Source>self.by_address.get(key)
        if source is None:
            if len(self.by_address) >= ADDRESSES_MAX:
                self.forget_old(now_ms)
            if len(self.by_address) >= ADDRESSES_MAX:
                key = b""
                source = <Source>self.by_address.get(key)
        if source is None:
            source = self.by_address[key] = Source.__new__(Source)
            source.room = full
            source.at = now_ms
        if self.half_open_max and source.half_open >= self.half_open_max:
            return count.HALF_OPEN_REFUSED
        if full:
            source.room = min(full, source.room + (now_ms - source.at) * self.per_second_max)
            source.at = now_ms
            if source.room < 1000:
                return count.CONNECTION_RATE_REFUSED
            source.room -= 1000
        source.half_open += 1
        conn.source = source
        return 0

    cdef int leave(self, Connection conn) except -1:
        # called when its CONNECT was answered, it was handed over, or it has ended
        cdef Source source = <Source>conn.source
        conn.source = None
        source.half_open -= 1
        if source.half_open == 0 and self.per_second_max == 0:
            key = self.key(conn)
            if self.by_address.get(key) is source:
                del self.by_address[key]
            elif self.by_address.get(b"") is source:
                del self.by_address[b""]
        return 0

    cdef int forget_old(self, uint64_t now_ms) except -1:
        cdef Source source
        for key, source in list(self.by_address.items()):
            if source.half_open == 0 and now_ms - source.at >= 1000:
                del self.by_address[key]
        return 0


cdef int set_peer(Connection conn, sockaddr_storage* address) noexcept:
    cdef sockaddr_in* a4
    cdef sockaddr_in6* a6
    if address.ss_family == AF_INET:
        a4 = <sockaddr_in*>address
        memcpy(conn.peer, &a4.sin_addr, 4)
        conn.peer_port = ntohs(a4.sin_port)
        conn.peer_family = 4
    elif address.ss_family == AF_INET6:
        a6 = <sockaddr_in6*>address
        memcpy(conn.peer, &a6.sin6_addr, 16)
        conn.peer_port = ntohs(a6.sin6_port)
        conn.peer_family = 6
    return 0
