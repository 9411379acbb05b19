# cython: language_level=3
"""One ZMTP connection: see the .pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.outbox cimport Outbox
from pyx.core.rounds cimport EventHandler
from pyx.mesh.receiver cimport Receiver
from pyx.mesh.zmtp cimport Inbound


cdef class ReceiveBuffer:
    cdef uint8_t* at                    # 2 * RECEIVE_BYTES: a part of a message stands in front


cdef class ZmtpConnection(EventHandler):
    cdef readonly int fd                # -1: closed
    cdef Inbound inbound
    cdef Outbox out
    cdef ReceiveBuffer buffer
    cdef uint8_t* part                  # bytes received and not taken; NULL: none
    cdef size_t part_len
    cdef bint is_stopped                # whole messages may be among them: the receiver wants no more for now
    cdef bint is_drained                # the last recv has left nothing in the socket
    cdef bint waits_for_output          # the kernel's buffer is full
    cdef uint64_t received              # bytes
    cdef uint64_t trusted               # of these, when its receiver had trusted so often
    cdef uint64_t trusts
    cdef bint has_spoken                # a message has arrived
    cdef bint heard                     # since the last tick
    cdef uint64_t heard_ms
    cdef object watcher
    cdef Receiver receiver              # None: the peer has nothing to say
    cdef object when_ready
    cdef object when_sent
    cdef object when_lost

    cdef int put(self, list frames) except -1
    cdef int wait_for_output(self) except -1
    cdef int send_now(self) except -1
    cdef int receive(self) except -1
    cdef bint may_receive(self) except -1
    cdef int take(self, const uint8_t* data, size_t n) except -1
    cdef int keep(self, const uint8_t* data, size_t n) except -1
    cdef int pass_on(self) except -1
    cdef int lost(self, str reason, bint malformed) except -1
