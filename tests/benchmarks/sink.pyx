# cython: language_level=3
"""A sink of messages: the broker's end, which reads, counts and acknowledges in compiled code, and does nothing else.

A generator's rate against it is the generator's capacity, with its share of the kernel's work.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.kernel cimport monotonic_ns
from pyx.loadgen.ledger cimport RECEIVED
from pyx.loadgen.sockets cimport CLOSED, OPEN, Client, Sockets
from pyx.protocol.decoders cimport fixed_header
from pyx.protocol.encoders cimport put_ack
from pyx.protocol.packets cimport CONNECT, DISCONNECT, PINGREQ, PUBACK, PUBLISH


cdef class Sink(Sockets):
    """Takes MQTT 3.1 and 3.1.1, QoS 0 and 1. The arguments are those of Ledger."""

    def accept(self, int fd):
        """Take over an accepted socket."""
        self.new_client(fd, None).state = OPEN

    def run(self, uint64_t until_ns):
        """Read and acknowledge until this time."""
        self.now = monotonic_ns()
        while self.now < until_ns:
            self.flush_all()
            if not self.wait(until_ns):
                break

    @property
    def received(self):
        """Number of PUBLISH packets received."""
        return self.row[RECEIVED]

    cdef uint32_t packets(self, Client* c, const uint8_t* p, uint32_t n) except? 0:
        cdef uint32_t at = 0, remaining = 0
        cdef int head
        while c.state != CLOSED:
            head = fixed_header(p + at, n - at, True, &remaining)
            if head < 0:
                self.wrong(c, "a Remaining Length that is malformed")
                break
            if head == 0 or n - at - head < remaining:
                break
            self.packet(c, p[at], p + at + head)
            at += head + remaining
        return at

    cdef int packet(self, Client* c, uint8_t first, const uint8_t* body) except -1:
        cdef uint8_t kind = first >> 4
        cdef const uint8_t* p
        if kind == PUBLISH:
            self.row[RECEIVED] += 1
            if first & 0x06:
                p = body + 2 + (body[0] << 8 | body[1])
                put_ack(self.room(c, 4), PUBACK, <uint16_t>(p[0] << 8 | p[1]), 0, False)
                c.out.tail += 4
        elif kind == CONNECT:
            self.put(c, <const uint8_t*>b"\x20\x02\x00\x00", 4)
        elif kind == PINGREQ:
            self.put(c, <const uint8_t*>b"\xd0\x00", 2)
        elif kind == DISCONNECT:
            self.end(c)
        return 0
