"""The Message: a publish held once per worker.

The bytes of a message (topic, properties, payload) exist once, however many sessions, outboxes, links and log indexes
need them: all of them hold a reference to one Message, which CPython's reference count frees. A Message never changes
after it was made. "Zero copy" here means no copy in user space per subscriber; the kernel still copies.
"""
cimport cython
from libc.stdlib cimport malloc, free
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBuffer_FillInfo


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Message:
    """One publish. ``memoryview(message.payload)`` gives the payload without a copy and keeps the message alive."""

    def __cinit__(self):
        self.block = NULL
        self.owner = None
        self.publisher = None

    def __dealloc__(self):
        if self.block != NULL:
            free(self.block)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.content.payload, self.content.payload_len, 1, flags)

    @staticmethod
    def create(bytes topic not None, bytes payload not None, int qos=0, bint retain=False, bytes properties=b"",
               uint64_t number=0, uint64_t expires=0, int expiry_offset=-1, publisher=None):
        """Make a message from Python: wills, $SYS, tests. `properties` are v5 wire bytes without their length;
        `expires` is wall clock ms (0 = never) and `expiry_offset` the offset of the interval's value in
        `properties`."""
        cdef Content c
        if len(topic) > 65535:
            raise ValueError("topic longer than 65,535 bytes")
        c.topic = <const uint8_t*><const char*>topic
        c.topic_len = <uint16_t>len(topic)
        c.props = <const uint8_t*><const char*>properties
        c.props_len = <uint32_t>len(properties)
        c.payload = <const uint8_t*><const char*>payload
        c.payload_len = <uint32_t>len(payload)
        c.qos = <uint8_t>qos
        c.retain = retain
        c.number = number
        c.expires = expires
        c.expiry_offset = expiry_offset
        return message_copy(&c, publisher)

    @property
    def payload(self):
        return memoryview(self)

    @property
    def topic(self):
        return PyBytes_FromStringAndSize(<const char*>self.content.topic, self.content.topic_len)

    @property
    def properties(self):
        return PyBytes_FromStringAndSize(<const char*>self.content.props, self.content.props_len)

    @property
    def qos(self):
        return self.content.qos

    @property
    def retain(self):
        return bool(self.content.retain)

    @property
    def number(self):
        return self.content.number

    @property
    def expires(self):
        return self.content.expires


cdef Message message_copy(const Content* c, object publisher):
    cdef Message m = Message.__new__(Message)
    cdef size_t n = content_bytes(c)
    cdef uint8_t* b = <uint8_t*>malloc(n if n else 1)
    if b == NULL:
        raise MemoryError
    m.block = b
    m.content = c[0]
    memcpy(b, c.topic, c.topic_len)
    m.content.topic = b
    b += c.topic_len
    if c.props_len:
        memcpy(b, c.props, c.props_len)
    m.content.props = b
    b += c.props_len
    memcpy(b, c.payload, c.payload_len)
    m.content.payload = b
    m.publisher = publisher
    return m


cdef Message message_adopt(const Content* c, uint8_t* block, object publisher):
    cdef Message m = Message.__new__(Message)
    m.block = block
    m.content = c[0]
    m.publisher = publisher
    return m


cdef Message message_borrow(const Content* c, object owner):
    cdef Message m = Message.__new__(Message)
    m.content = c[0]
    m.owner = owner
    return m
