"""Passes a connection from the worker that accepted it to its home: the descriptor by SCM_RIGHTS over a SOCK_SEQPACKET
unix socket, together with the bytes already read from it.

One message is one connection (little-endian):
    header   version u8, flags u8, listener u8, a byte that is 0, port u16, host length u16, unread length u32,
             deadline u64
    host     the peer's address as text
    unread   the first INLINE_BYTES_MAX of the bytes that the client sent and no worker has handled
    rights   the connection, and with flag 1 a memfd with the rest of the unread bytes
The deadline (CLOCK_MONOTONIC, ns, one clock per host) is the connect timer at the home: handoff_seconds_max after the
hand-off began, or the end of the connect timer here if that is earlier. The time that a connection waits in the socket,
also while its home restarts, counts. A descriptor in flight belongs to the socket: if
the home dies, its successor receives it, because the supervisor holds both ends.

`send_connection` does not close the sender's descriptor: `pass_on` does, after True.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import os

from pyx.core cimport counters as count
from pyx.core.kernel cimport (
    CMSG_DATA, CMSG_FIRSTHDR, CMSG_LEN, CMSG_NXTHDR, CMSG_SPACE, EAGAIN, EINTR, ENOBUFS, ENOMEM, ETOOMANYREFS,
    MSG_CMSG_CLOEXEC, MSG_CTRUNC, MSG_DONTWAIT, MSG_NOSIGNAL, SCM_RIGHTS, SOL_SOCKET, close, cmsghdr, errno,
    monotonic_ns, msghdr, recvmsg, sendmsg,
)
from pyx.core.little_endian cimport get16, get32, get64, put16, put32, put64
from pyx.core.outbox cimport iovec
from pyx.core.work cimport HANDOFF, KIBI, Mark, SYSTEM, callback_begins, callback_ends, work

cdef enum:
    VERSION = 3
    REST_IN_MEMFD = 1
    HEADER_BYTES = 20
    HOST_BYTES_MAX = 255
    INLINE_BYTES = 60_000
    READ_BYTES = 1 << 20                # of a memfd, at once
    MESSAGE_BYTES_MAX = HEADER_BYTES + HOST_BYTES_MAX + INLINE_BYTES
    DESCRIPTORS_MAX = 2
    ANCILLARY_BYTES = 64                # CMSG_SPACE of those is 24; others may send more
    TAKEN_AT_ONCE = 64
    RECEIVED_MAX = ANCILLARY_BYTES // 4

INLINE_BYTES_MAX = <int>INLINE_BYTES

cdef uint8_t[MESSAGE_BYTES_MAX] received    # one message at a time


class HandoffLost(Exception):
    """A connection was lost on its way here: no descriptor is free, or the message is not understood. It is closed."""


@cython.final
cdef class HandedOver:
    """A connection accepted by another worker, which lives here from now on. The receiver owns `fd`."""

    @property
    def remaining_seconds(self):
        """Seconds until the connect timer ends; 0 or less: it has ended."""
        return (<double>self.deadline_ns - <double>monotonic_ns()) / 1e9

    @property
    def peer(self):
        """Host and port of the client."""
        return self.host.decode("utf-8", "replace"), self.port


cdef bint send_connection(int sock, int fd, const uint8_t* unread, uint32_t n, uint64_t deadline_ns, bytes host,
                          uint16_t port, uint8_t listener) except -1:
    cdef uint8_t[HEADER_BYTES] header
    cdef uint8_t[ANCILLARY_BYTES] ancillary
    cdef int[DESCRIPTORS_MAX] descriptors
    cdef iovec[3] v
    cdef msghdr m
    cdef cmsghdr* c
    cdef uint8_t* p
    cdef size_t host_bytes = min(<size_t>len(host), <size_t>HOST_BYTES_MAX), passed = 1
    cdef ssize_t r
    cdef int e = 0
    descriptors[0] = fd
    descriptors[1] = -1
    try:
        if n > INLINE_BYTES:
            descriptors[1] = os.memfd_create("mqttd-unread", os.MFD_CLOEXEC)
            passed = 2
            write_all(descriptors[1], unread[INLINE_BYTES:n])
        header[0] = VERSION
        header[1] = REST_IN_MEMFD if passed == 2 else 0
        header[2] = listener
        header[3] = 0
        p = put16(header + 4, port)
        p = put16(p, <uint32_t>host_bytes)
        p = put32(p, n)
        put64(p, deadline_ns)
        v[0].iov_base = header
        v[0].iov_len = HEADER_BYTES
        v[1].iov_base = PyBytes_AS_STRING(host)
        v[1].iov_len = host_bytes
        v[2].iov_base = <void*>unread
        v[2].iov_len = min(n, <uint32_t>INLINE_BYTES)
        memset(ancillary, 0, ANCILLARY_BYTES)
        memset(&m, 0, sizeof(m))
        m.msg_iov = v
        m.msg_iovlen = 3
        m.msg_control = ancillary
        m.msg_controllen = CMSG_SPACE(passed * sizeof(int))
        c = CMSG_FIRSTHDR(&m)
        c.cmsg_level = SOL_SOCKET
        c.cmsg_type = SCM_RIGHTS
        c.cmsg_len = CMSG_LEN(passed * sizeof(int))
        memcpy(CMSG_DATA(c), descriptors, passed * sizeof(int))
        work(2 * SYSTEM + n // 1024 * KIBI)
        while True:
            r = sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL)
            if r >= 0:
                return True
            e = errno
            if e != EINTR:
                break
        # not EMSGSIZE and the like: those are our mistakes. ETOOMANYREFS: too many descriptors in flight for our limit
        if e == EAGAIN or e == ENOBUFS or e == ETOOMANYREFS or e == ENOMEM:
            return False
        raise OSError(e, os.strerror(e))
    finally:
        if descriptors[1] >= 0:
            close(descriptors[1])


cdef HandedOver receive_connection(int sock):
    cdef uint8_t[ANCILLARY_BYTES] ancillary
    cdef int[RECEIVED_MAX] descriptors
    cdef int passed = 0, i, e
    cdef size_t n
    cdef iovec v
    cdef msghdr m
    cdef cmsghdr* c
    cdef ssize_t r
    cdef HandedOver came = None
    v.iov_base = received
    v.iov_len = MESSAGE_BYTES_MAX
    memset(&m, 0, sizeof(m))
    m.msg_iov = &v
    m.msg_iovlen = 1
    m.msg_control = ancillary
    m.msg_controllen = ANCILLARY_BYTES
    work(2 * SYSTEM)
    while True:
        r = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)
        if r >= 0:
            break
        e = errno
        if e == EAGAIN:
            return None
        if e != EINTR:
            raise OSError(e, os.strerror(e))
    c = CMSG_FIRSTHDR(&m)
    while c != NULL:
        if c.cmsg_level == SOL_SOCKET and c.cmsg_type == SCM_RIGHTS:
            n = (c.cmsg_len - CMSG_LEN(0)) // sizeof(int)
            memcpy(descriptors + passed, CMSG_DATA(c), n * sizeof(int))
            passed += <int>n
        c = CMSG_NXTHDR(&m, c)
    if r == 0 and passed == 0:
        return None                     # the other end is closed
    try:
        if m.msg_flags & MSG_CTRUNC:
            raise HandoffLost("no free file descriptor to receive a connection with")
        came = unpack(received, <size_t>r, descriptors, passed)
        return came
    finally:
        for i in range(1 if came is not None else 0, passed):
            close(descriptors[i])


cdef HandedOver unpack(const uint8_t* p, size_t n, int* descriptors, int passed):
    cdef HandedOver came
    cdef size_t host_bytes, unread_bytes
    if n < HEADER_BYTES:
        raise HandoffLost("a hand-off without its header")
    if p[0] != VERSION or passed != (2 if p[1] & REST_IN_MEMFD else 1):
        raise HandoffLost(f"a hand-off of version {p[0]} with {passed} descriptors")
    host_bytes = get16(p + 6)
    unread_bytes = get32(p + 8)
    if n < HEADER_BYTES + host_bytes:
        raise HandoffLost("a hand-off with fewer bytes than it names")
    came = HandedOver.__new__(HandedOver)
    came.fd = descriptors[0]
    came.listener = p[2]
    came.port = get16(p + 4)
    came.deadline_ns = get64(p + 12)
    came.host = p[HEADER_BYTES:HEADER_BYTES + host_bytes]
    came.unread = p[HEADER_BYTES + host_bytes:n]
    if p[1] & REST_IN_MEMFD and <size_t>len(came.unread) <= unread_bytes:
        came.unread += read_all(descriptors[1], unread_bytes - <size_t>len(came.unread))
    if <size_t>len(came.unread) != unread_bytes:
        raise HandoffLost(f"a hand-off with {len(came.unread)} unread bytes, which names {unread_bytes}")
    return came


cdef int write_all(int fd, bytes data) except -1:
    cdef Py_ssize_t at = 0
    while at < len(data):
        at += os.write(fd, memoryview(data)[at:])
    return 0


cdef bytes read_all(int fd, size_t n):
    cdef list parts = []
    cdef size_t at = 0
    while at < n:
        part = os.pread(fd, min(n - at, READ_BYTES), at)
        if not part:
            break
        parts.append(part)
        at += <size_t>len(part)
    return b"".join(parts)


@cython.final
cdef class HandingOver:
    """The connections of one worker on their way, both ways. `sockets`: by worker the descriptor that sends to it;
    `own`: the one that receives. `rare` decides in Python, with

        is_ready(worker) -> bool            whether that worker takes connections now
        wait(conn, worker, raw, deadline_ns)    the connection waits, because its home is not ready, or is full
        failed(worker, error)               sending failed
        lost(error)                         a connection was lost on the way here
        refused(is_full)                    none is taken in: there are too many, or the worker stops
        late(conn, unread)                  its time for CONNECT is over
    """

    def __cinit__(self, Reactor reactor not None, list sockets not None, int own, rare):
        self.reactor = reactor
        self.state = reactor.router.state
        self.sockets = sockets
        self.own = own
        self.rare = rare

    def hand_over(self, Connection conn not None, int worker, bytes raw not None):
        """Pass a connection, with the bytes of its CONNECT, to its home: now, or as soon as the home takes it."""
        cdef uint64_t waited = self.state.now_ms - conn.opened
        cdef uint64_t left = self.connect_ms_max - waited if waited < self.connect_ms_max else 0
        cdef uint64_t deadline = monotonic_ns() + min(self.handoff_ms_max, left) * 1_000_000
        if not self.pass_on(conn, worker, raw, deadline):
            self.rare.wait(conn, worker, raw, deadline)

    cpdef bint pass_on(self, Connection conn, int worker, bytes raw, uint64_t deadline_ns) except -1:
        """Pass it on now. Return False if its home does not take it now."""
        cdef bytes unread, host
        cdef bint sent
        if not self.rare.is_ready(worker):      # down, stopped, or not heard yet: it may never take it
            return False
        unread = raw + conn.unread()
        address, _, _ = conn.address.rpartition(":")
        host = address.strip("[]").encode()
        try:
            sent = send_connection(
                self.sockets[worker], conn.fd, <const uint8_t*>PyBytes_AS_STRING(unread), <uint32_t>len(unread),
                deadline_ns, host, conn.peer_port, conn.listener,
            )
        except OSError as error:
            self.rare.failed(worker, error)
            return False
        if sent:
            self.state.counters.at[count.CONNECTIONS_HANDED_OVER] += 1
            self.reactor.release(conn)
        return sent

    def take_in(self):
        """Take in connections that have arrived, in a round of the reactor."""
        cdef HandedOver came
        cdef Mark mark
        callback_begins(&mark)
        for _ in range(TAKEN_AT_ONCE):
            try:
                came = receive_connection(self.own)
                if came is None:
                    break
                self.adopt(came)
            except (HandoffLost, OSError) as error:     # OSError: the descriptor is closed, so it cannot be watched
                self.rare.lost(error)
        callback_ends(&mark, HANDOFF)

    cdef int adopt(self, HandedOver came) except -1:
        cdef Connection conn
        cdef uint64_t now = monotonic_ns(), left = came.deadline_ns - now if came.deadline_ns > now else 0
        cdef bint is_full = <uint32_t>len(self.reactor) >= self.reactor.acceptor.connections_max
        self.state.counters.at[count.CONNECTIONS_TAKEN_IN] += 1
        if self.is_stopping or is_full:
            self.rare.refused(not self.is_stopping)
            close(came.fd)
            return 0
        conn = self.reactor.adopt(came.fd, b"", <int>min(left // 1_000_000, <uint64_t>0x7FFFFFFF), came.listener)
        try:
            if left:
                self.reactor.dispatch.feed(conn, came.unread, True)
            else:
                self.rare.late(conn, came.unread)
        except Exception as error:
            self.state.fail(conn, error)
        return 0


def send(int sock, int fd, const uint8_t[::1] unread not None, double remaining_seconds, peer, uint8_t listener=0):
    """Hand the connection `fd` over by the socket `sock`. Return False when the home's socket is full (try again
    later): nothing was sent.

    `listener`: the number of the one that accepted it, 0 to 255. Raises OSError for any other error."""
    cdef uint64_t deadline = <uint64_t>max(0.0, <double>monotonic_ns() + remaining_seconds * 1e9)
    cdef bytes host = peer[0].encode("utf-8", "replace")
    cdef const uint8_t* p = &unread[0] if unread.shape[0] else NULL
    return send_connection(sock, fd, p, <uint32_t>unread.shape[0], deadline, host, peer[1], listener)


def receive(int sock):
    """Return the next connection for this worker, or None when none waits.

    Raises HandoffLost when one was lost on the way (call again: the next may be complete)."""
    return receive_connection(sock)
