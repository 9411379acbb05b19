"""A client connection without its socket: see the .pxd for its contents."""
from ipaddress import IPv6Address

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_XDECREF, Py_XINCREF
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from pyx.core.kernel cimport (
    AF_INET, AF_INET6, getsockname, ntohs, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t,
)
from pyx.core.outbox cimport outbox_clear
from pyx.core.work cimport PLACE, VISIT, work
from pyx.delivery.authorise cimport verdicts_free
from pyx.protocol.aliases cimport aliases_free


@cython.final
cdef class Connection:
    """The protocol state of a connection. The reactor owns its socket; in tests and the simulation there is none."""

    def __cinit__(self):
        self.session = None
        self.had = None
        self.source = None
        self.fd = -1
        self.problem_information = True
        self.packet_bytes_max = 268_435_460        # the largest packet that MQTT allows
        self.timer.owner = <void*>self

    def __dealloc__(self):
        cdef uint32_t i
        outbox_clear(&self.out)
        aliases_free(self.aliases_out)
        self.free_part()
        self.drop_acks()
        if self.acks != NULL:
            free(self.acks)
        free(self.pace)
        verdicts_free(self.verdicts)
        if self.aliases != NULL:
            for i in range(self.topic_alias_max + 1):
                Py_XDECREF(self.aliases[i])
            free(self.aliases)

    cdef int keep(self, const uint8_t* p, uint32_t n) except -1:
        # append to part; p must not point into part
        cdef uint64_t cap
        cdef uint8_t* b
        if self.part_cap - self.part_len < n:
            cap = <uint64_t>self.part_len + n
            if cap > 4096:                      # a packet in pieces: grow by half, but not beyond its end
                cap += cap // 2
                if self.part_want and cap > self.part_want and self.part_want >= self.part_len + n:
                    cap = self.part_want
            b = <uint8_t*>realloc(self.part, cap)
            if b == NULL:
                raise MemoryError
            self.part = b
            self.part_cap = <uint32_t>cap
        memcpy(self.part + self.part_len, p, n)
        self.part_len += n
        return 0

    cdef void free_part(self) noexcept:
        if self.part != NULL:
            free(self.part)
            self.part = NULL
        self.part_len = self.part_cap = self.part_want = 0

    cdef int push_ack(self, PendingAck* a) except -1:
        cdef PendingAck* ring
        cdef uint32_t cap, i
        if self.ack_count == self.ack_cap:
            cap = self.ack_cap * 2 if self.ack_cap else 8
            ring = <PendingAck*>malloc(cap * sizeof(PendingAck))
            if ring == NULL:
                raise MemoryError
            work(self.ack_count * PLACE)
            for i in range(self.ack_count):
                ring[i] = self.acks[(self.ack_head + i) & (self.ack_cap - 1)]
            free(self.acks)
            self.acks = ring
            self.ack_cap = cap
            self.ack_head = 0
        Py_XINCREF(a.packet)
        self.acks[(self.ack_head + self.ack_count) & (self.ack_cap - 1)] = a[0]
        self.ack_count += 1
        return 0

    cdef void drop_acks(self) noexcept:
        work(self.ack_count * VISIT)
        while self.ack_count:
            Py_XDECREF(self.acks[self.ack_head].packet)
            self.ack_head = (self.ack_head + 1) & (self.ack_cap - 1)
            self.ack_count -= 1
        self.unanswered = 0

    @property
    def address(self):
        """The address of the client, as text."""
        if self.peer_family == 4:
            return f"{self.peer[0]}.{self.peer[1]}.{self.peer[2]}.{self.peer[3]}:{self.peer_port}"
        if self.peer_family == 6:
            return f"[{IPv6Address(PyBytes_FromStringAndSize(<char*>self.peer, 16))}]:{self.peer_port}"
        return "?"

    @property
    def local_address(self):
        """The address to which the client has connected, as text; None: there is no socket."""
        cdef sockaddr_storage address
        cdef sockaddr_in* a4 = <sockaddr_in*>&address
        cdef sockaddr_in6* a6 = <sockaddr_in6*>&address
        cdef socklen_t n = sizeof(address)
        cdef uint8_t* p
        if self.fd < 0 or getsockname(self.fd, <sockaddr*>&address, &n) < 0:
            return None
        if address.ss_family == AF_INET:
            p = <uint8_t*>&a4.sin_addr
            return f"{p[0]}.{p[1]}.{p[2]}.{p[3]}:{ntohs(a4.sin_port)}"
        if address.ss_family == AF_INET6:
            return f"[{IPv6Address(PyBytes_FromStringAndSize(<char*>&a6.sin6_addr, 16))}]:{ntohs(a6.sin6_port)}"
        return None

    @property
    def pending(self):
        """Bytes in the outbox that were not taken yet."""
        return self.out.pending

    @property
    def acks_pending(self):
        """Acks that wait for a commit or for a peer."""
        return self.ack_count

    def unread(self):
        """Return the bytes received and not decoded: for the hand-off."""
        return PyBytes_FromStringAndSize(<char*>self.part, self.part_len) if self.part_len else b""

    @property
    def pending_qos0(self):
        """QoS 0 PUBLISH packets in the outbox that were not completely taken yet."""
        return self.out.qos0
