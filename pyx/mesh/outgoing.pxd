# cython: language_level=3
"""The sending side of a link: see the .pyx."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.mesh.incoming cimport Incoming
from pyx.mesh.stream cimport LinkTraffic, Stream, Unacknowledged


cdef class Outgoing:
    cdef object peer
    cdef Stream stream
    cdef Incoming incoming
    cdef object publisher
    cdef object events
    cdef public object send                 # takes the frames of a message; returns whether the transport did
    cdef LinkTraffic traffic
    cdef uint64_t outbox_bytes_max
    cdef bytes prefix                       # of all messages until it is replaced
    cdef double now
    cdef readonly bint is_open              # whether batches may be sent
    cdef readonly bint away
    cdef readonly bint full                 # the router should stop reading publishers that match this peer
    cdef double full_since
    cdef bint blocked                       # the transport refused; try again at flush
    cdef uint32_t waits_for_welcome         # greeting to answer before anything else
    cdef double said_at
    cdef readonly uint64_t frame            # last number given out
    cdef uint64_t interest_sent
    cdef readonly object waiting            # deque of volatile parts the transport did not take
    cdef readonly object flight             # deque of (frame, volatile bytes), until the peer has seen the frame
    cdef uint64_t volatile_bytes            # of both

    cdef bint is_idle(self, uint64_t taken) except -1
    cdef bint is_due(self) except -1
    cdef uint64_t outbox(self) noexcept
    cdef bint submit(self, object volatile, object sequenced, list payloads_volatile, list payloads_sequenced,
                     int64_t ticket, int64_t entries_volatile, int64_t entries_sequenced, bint hold) except -1
    cdef int wait(self, object part, list payloads, uint64_t nbytes, int64_t entries) except -1
    cdef int drop_volatile(self) except -1
    cdef int land(self, uint64_t frames_seen) except -1
    cdef void look_for_room(self) noexcept
    cdef int advance(self, uint64_t committed) except -1
    cdef int take_refusals(self, bytes packed) except -1
    cdef int resend(self, uint64_t received, uint64_t frames_seen) except -1
    cdef int tell_interest(self) except -1
    cdef int flush(self) except -1
    cdef int pump(self) except -1
    cdef int ack(self) except -1
    cdef bint greet(self, uint8_t kind, uint32_t greeting, uint32_t versions, bytes prefix) except -1
    cdef bint transmit_batch(self, Unacknowledged item, object volatile, list payloads_volatile,
                             uint64_t volatile_bytes) except -1
    cdef bint transmit_other(self, Unacknowledged item) except -1
    cdef bint transmit(self, uint8_t kind, uint8_t flags, Unacknowledged item, object first, object second,
                       list frames, uint64_t first_bytes, uint64_t second_bytes, Py_ssize_t payloads_volatile,
                       Py_ssize_t payloads_sequenced, uint64_t volatile_bytes) except -1
