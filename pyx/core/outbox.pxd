# cython: language_level=3
"""The outbox: bytes to be sent on one connection.

    buf    [ sent | copied bytes, not yet sent              | free ]
             0    head                                 tail    cap
    shared [ (at, data, length, owner), ... ]   payloads sent by reference: each is sent before byte `at` of
    buf

Small packets are copied into buf. A large payload is not: its packet's head is copied and the payload is put into
`shared`. buf and shared exist only while something waits: an idle connection has neither. Positions in buf are absolute
(from its start) until everything was sent; then both start anew.

Only whole MQTT packets are put in, a shared payload as the end of its packet: so the kernel's progress can be counted
in packets, which is done only while it takes less than everything.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len


cdef struct Shared:
    const uint8_t* data         # of owner
    PyObject* owner             # strong
    uint32_t length
    uint32_t at


cdef struct Outbox:
    uint8_t* buf
    Shared* shared
    uint64_t pending            # bytes not yet taken by the kernel, including shared ones
    uint32_t head
    uint32_t tail
    uint32_t cap
    uint32_t hint               # capacity needed last time
    uint32_t shared_head
    uint32_t shared_tail
    uint32_t shared_cap
    uint32_t shared_sent        # bytes of shared[shared_head] that the kernel has taken
    uint32_t qos0               # QoS 0 PUBLISH packets in here that the kernel has not wholly taken
    uint32_t left               # untaken bytes of the packet that the kernel has begun; 0: none is begun
    bint left_qos0              # that packet is a QoS 0 PUBLISH


cdef uint8_t* outbox_grow(Outbox* o, uint32_t n) except NULL
cdef int outbox_share(Outbox* o, const uint8_t* data, uint32_t length, object owner) except -1
# fills up to n iovecs, returns how many; total: their bytes
cdef int outbox_gather(Outbox* o, iovec* v, int n, size_t* total) noexcept
# the kernel took n bytes; returns how many QoS 0 PUBLISH packets are wholly taken by that (the caller that puts one in
# counts it in qos0)
cdef uint32_t outbox_sent(Outbox* o, size_t n) noexcept
# the same, less than all, for bytes that are no MQTT packets
cdef void outbox_advance(Outbox* o, size_t n) noexcept
cdef void outbox_clear(Outbox* o) noexcept


cdef inline uint8_t* outbox_reserve(Outbox* o, uint32_t n) except NULL:
    # room for n bytes, which the caller fills at once
    cdef uint8_t* p
    if o.cap - o.tail < n:
        return outbox_grow(o, n)
    p = o.buf + o.tail
    o.tail += n
    o.pending += n
    return p
