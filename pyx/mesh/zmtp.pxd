# cython: language_level=3
"""ZMTP, the wire protocol of ZeroMQ: see the .pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.outbox cimport Outbox


cdef enum:
    GREETING_BYTES = 64


cdef class Inbound:
    cdef bytes peer_type                # the socket type that the peer must have
    cdef readonly bint is_greeted       # the peer's greeting has arrived
    cdef readonly bint is_ready         # and its READY: messages may follow
    cdef list frames                    # of the message whose last frame has not arrived
    cdef uint64_t message_bytes         # of those, and of the frame that is arriving
    cdef bytes frame                    # a large frame that is arriving: received straight into its place
    cdef size_t frame_len
    cdef size_t filled                  # bytes of it that have arrived
    cdef bint frame_more                # other frames of its message follow it
    cdef bytes ping                     # context of the peer's PING that awaits a PONG; None: there is none
    cdef readonly uint32_t ttl_ms       # the peer's promise to say something within so long; 0: it made none
    cdef readonly uint32_t pongs        # PONGs of the peer

    # reads `n` bytes up to the end of the next message, of a command, or of the bytes; returns how many were taken. The
    # message is in `message` then. Raises ZmtpError
    cdef size_t take(self, const uint8_t* data, size_t n) except? 0
    cdef list message                   # the message that `take` or `placed` has completed, or None
    cdef size_t greeting(self, const uint8_t* data, size_t n) except? 0
    cdef int command(self, const uint8_t* p, size_t n) except -1
    cdef int ready(self, const uint8_t* p, size_t n) except -1
    cdef int add(self, bytes frame, bint more) except -1
    # the place for the next bytes of the frame that is arriving, and their most; NULL: there is none
    cdef uint8_t* place(self, size_t* room) noexcept
    cdef int placed(self, size_t n) except -1
    cdef bytes take_ping(self)


cdef int put_greeting(Outbox* o) except -1
cdef int put_ready(Outbox* o, bytes socket_type) except -1
cdef int put_ping(Outbox* o, uint16_t ttl_tenths) except -1
cdef int put_pong(Outbox* o, bytes context) except -1
cdef int put_message(Outbox* o, list frames) except -1
