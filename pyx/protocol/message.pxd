# cython: language_level=3
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, int32_t


cdef struct Content:
    # The contents of a PUBLISH, wherever its bytes are: in the receive buffer (until the packet has been handled), in a
    # mesh frame (until the batch has been handled) or in a Message (as long as it lives).
    const uint8_t* topic
    # v5 properties in wire form without their length, Topic Alias and Subscription Identifiers
    const uint8_t* props
    const uint8_t* payload
    uint32_t props_len
    uint32_t payload_len
    int32_t expiry_offset           # of the Message Expiry Interval's value in props, -1 = none
    uint16_t topic_len
    uint8_t qos                     # as published
    uint8_t retain                  # as published
    uint64_t expires                # wall clock, ms; 0 = never
    uint64_t number                 # identity: microseconds << 8 | worker


cdef class Message:
    """A publish held once per worker and shared by reference by every queue, window and outbox that needs it."""
    cdef Content content
    cdef uint8_t* block             # malloc'd and owned: the bytes that content points to; or NULL, then
    cdef object owner               # owns them (a mesh frame)
    cdef readonly object publisher  # client id of the publisher (No Local), None = a peer's
    cdef Py_ssize_t exported[1]     # shape for the buffer protocol


cdef Message message_copy(const Content* c, object publisher)
# takes ownership of block, which contains the bytes
cdef Message message_adopt(const Content* c, uint8_t* block, object publisher)
cdef Message message_borrow(const Content* c, object owner)
cdef inline uint32_t content_bytes(const Content* c) noexcept nogil:
    return c.topic_len + c.props_len + c.payload_len
