"""ZMTP 3.1, the wire protocol of ZeroMQ (rfc.zeromq.org/spec/37), with the NULL mechanism: bytes to frames, and back.

    connection  greeting | READY | { message | command }
    greeting    0xFF | 8 bytes | 0x7F | u8 major | u8 minor | mechanism, 20 bytes | u8 as server | 31 bytes   (64 bytes)
    message     { frame with MORE } | frame without it
    frame       u8 flags | u8 size | body               flags: 1 = MORE, 2 = LONG (the size is a big-endian u64),
    command     u8 flags | size | u8 | name | data             4 = COMMAND
    READY       { u8 | name | u32, big-endian | value }     "Socket-Type" is PUSH or PULL
    PING        u16, big-endian: tenths of a second until the peer gives up | context, at most 16 bytes
    PONG        the context of the PING

A peer is ZeroMQ's own library, or another worker. Both sides of a connection send their greeting and READY at once.
Small frames are copied out of the receive buffer; a large one is received into its own memory.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from libc.string cimport memcmp, memcpy, memset

from pyx.core.outbox cimport outbox_reserve, outbox_share
from pyx.core.work cimport KIBI, OBJECT, work

cdef enum:
    MORE = 0x01
    LONG = 0x02
    COMMAND = 0x04

    SIGNATURE = 0xFF
    MAJOR = 3
    MINOR = 1
    MECHANISM_AT = 12
    MECHANISM_BYTES = 20

    COMMAND_BYTES_MAX = 4096
    CONTEXT_BYTES_MAX = 16
    MESSAGE_BYTES_MAX = 0xFFFFFFFF  # the parts of a mesh message have lengths of 32 bits
    FRAME_BYTES = 64                # what a frame costs beside its bytes
    PLACED_BYTES_MIN = 32 * 1024    # a larger frame that has not wholly arrived is received into its place
    SHARED_BYTES_MIN = 8 * 1024     # a larger frame is sent from where it is

cdef const char* NULL_MECHANISM = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"


class ZmtpError(Exception):
    """The peer does not speak ZMTP 3 with the NULL mechanism, or has the wrong socket type."""


cdef inline uint64_t get_big(const uint8_t* p, int n) noexcept:
    cdef uint64_t v = 0
    cdef int i
    for i in range(n):
        v = v << 8 | p[i]
    return v


cdef inline void put_big(uint8_t* p, uint64_t v, int n) noexcept:
    cdef int i
    for i in range(n):
        p[i] = <uint8_t>(v >> 8 * (n - 1 - i) & 0xFF)


@cython.final
cdef class Inbound:
    """The bytes of one connection as messages: what of them has arrived. `peer_type`: PUSH or PULL."""

    def __cinit__(self, bytes peer_type not None):
        self.peer_type = peer_type
        self.frames = []

    cdef size_t take(self, const uint8_t* data, size_t n) except? 0:
        cdef size_t head
        cdef uint64_t size
        cdef uint8_t flags
        self.message = None
        if not self.is_greeted:
            return self.greeting(data, n)
        if n < 2:
            return 0
        flags = data[0]
        if flags & ~(MORE | LONG | COMMAND) or flags & (MORE | COMMAND) == MORE | COMMAND:
            raise ZmtpError(f"a frame with the flags {flags:#x}")
        if flags & LONG:
            if n < 9:
                return 0
            head = 9
            size = get_big(data + 1, 8)
        else:
            head = 2
            size = data[1]
        if flags & COMMAND:
            if size > COMMAND_BYTES_MAX:
                raise ZmtpError(f"a command of {size} bytes")
            if n - head < size:
                return 0
            self.command(data + head, size)
            return head + size
        if not self.is_ready:
            raise ZmtpError("a message before READY")
        # the size may be anything up to 2 ** 64 - 1
        if size > MESSAGE_BYTES_MAX or self.message_bytes + size + FRAME_BYTES > MESSAGE_BYTES_MAX:
            raise ZmtpError(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
        if n - head >= size:
            self.message_bytes += size + FRAME_BYTES
            work(OBJECT + size // 1024 * KIBI)
            self.add(PyBytes_FromStringAndSize(<const char*>data + head, size), flags & MORE)
            return head + size
        if size < PLACED_BYTES_MIN:
            return 0
        self.message_bytes += size + FRAME_BYTES
        self.frame = PyBytes_FromStringAndSize(NULL, size)
        self.frame_len = size
        self.frame_more = flags & MORE
        self.filled = n - head
        memcpy(PyBytes_AS_STRING(self.frame), data + head, self.filled)
        return n

    cdef size_t greeting(self, const uint8_t* data, size_t n) except? 0:
        if n and data[0] != SIGNATURE or n > 9 and not data[9] & 1:
            raise ZmtpError("no greeting of ZMTP")
        if n > 10 and data[10] < MAJOR:
            raise ZmtpError(f"version {data[10]} of ZMTP; here {MAJOR}")
        if n < GREETING_BYTES:
            return 0
        if memcmp(data + MECHANISM_AT, NULL_MECHANISM, MECHANISM_BYTES) != 0:
            raise ZmtpError("another mechanism than NULL")
        self.is_greeted = True
        return GREETING_BYTES

    cdef int command(self, const uint8_t* p, size_t n) except -1:
        cdef size_t name = p[0] if n else 0
        if n < 1 + name or not name:
            raise ZmtpError("a command without its name")
        if not self.is_ready:
            if name == 5 and memcmp(p + 1, b"READY", 5) == 0:
                return self.ready(p + 6, n - 6)
            if name == 5 and memcmp(p + 1, b"ERROR", 5) == 0 and n > 6 and n - 7 >= p[6]:
                raise ZmtpError(f"refused by the peer: {p[7:7 + p[6]].decode('utf-8', 'replace')}")
            raise ZmtpError("another command than READY")
        if name == 4 and memcmp(p + 1, b"PING", 4) == 0:
            if n < 7 or n - 7 > CONTEXT_BYTES_MAX:
                raise ZmtpError(f"a PING of {n} bytes")
            self.ttl_ms = <uint32_t>get_big(p + 5, 2) * 100
            self.ping = p[7:n]
        elif name == 4 and memcmp(p + 1, b"PONG", 4) == 0:
            self.pongs += 1
        return 0

    cdef int ready(self, const uint8_t* p, size_t n) except -1:
        cdef size_t at = 0, name
        cdef uint64_t value
        cdef bytes found = None
        while at < n:
            name = p[at]
            if n - at < 5 + name:
                raise ZmtpError("a property of READY is cut off")
            value = get_big(p + at + 1 + name, 4)
            if n - at - 5 - name < value:
                raise ZmtpError("a property of READY is cut off")
            if name == 11 and p[at + 1:at + 12].lower() == b"socket-type":
                found = p[at + 5 + name:at + 5 + name + value]
            at += 5 + name + value
        if found != self.peer_type:
            raise ZmtpError(f"a socket of type {found}, and not {self.peer_type}")
        self.is_ready = True
        return 0

    cdef int add(self, bytes frame, bint more) except -1:
        self.frames.append(frame)
        if not more:
            self.message = self.frames
            self.frames = []
            self.message_bytes = 0
        return 0

    cdef uint8_t* place(self, size_t* room) noexcept:
        if self.frame is None:
            return NULL
        room[0] = self.frame_len - self.filled
        return <uint8_t*>PyBytes_AS_STRING(self.frame) + self.filled

    cdef int placed(self, size_t n) except -1:
        # n bytes were written there; the message that is complete by that is in `message`
        cdef bytes frame
        self.message = None
        self.filled += n
        work(n // 1024 * KIBI)
        if self.filled == self.frame_len:
            frame = self.frame
            self.frame = None
            self.add(frame, self.frame_more)
        return 0

    cdef bytes take_ping(self):
        cdef bytes context = self.ping
        self.ping = None
        return context


cdef int put_greeting(Outbox* o) except -1:
    cdef uint8_t* p = outbox_reserve(o, GREETING_BYTES)
    memset(p, 0, GREETING_BYTES)
    p[0] = SIGNATURE
    p[9] = 0x7F
    p[10] = MAJOR
    p[11] = MINOR
    memcpy(p + MECHANISM_AT, NULL_MECHANISM, MECHANISM_BYTES)
    return 0


cdef int put_command(Outbox* o, const char* name, const uint8_t* data, size_t n) except -1:
    cdef size_t name_len = 4 if name[0] == c"P" else 5
    cdef uint8_t* p = outbox_reserve(o, <uint32_t>(3 + name_len + n))
    p[0] = COMMAND
    p[1] = <uint8_t>(1 + name_len + n)
    p[2] = <uint8_t>name_len
    memcpy(p + 3, name, name_len)
    memcpy(p + 3 + name_len, data, n)
    return 0


cdef int put_ready(Outbox* o, bytes socket_type) except -1:
    cdef bytes data = b"\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type
    return put_command(o, b"READY", <const uint8_t*><const char*>data, len(data))


cdef int put_ping(Outbox* o, uint16_t ttl_tenths) except -1:
    cdef uint8_t[2] data
    put_big(data, ttl_tenths, 2)
    return put_command(o, b"PING", data, 2)


cdef int put_pong(Outbox* o, bytes context) except -1:
    return put_command(o, b"PONG", <const uint8_t*><const char*>context, len(context))


cdef int put_message(Outbox* o, list frames) except -1:
    # frames: objects with the buffer protocol. A large one is kept until the kernel has it, and must not change
    cdef Py_ssize_t i, last = len(frames) - 1
    cdef object frame, view
    cdef Py_buffer* b
    cdef uint8_t flags
    for i in range(last + 1):
        frame = frames[i]
        flags = MORE if i < last else 0
        if isinstance(frame, bytes):
            put_frame(o, flags, <const uint8_t*>PyBytes_AS_STRING(frame), <uint64_t>len(<bytes>frame), frame)
        else:
            view = PyMemoryView_FromObject(frame)
            b = PyMemoryView_GET_BUFFER(view)
            put_frame(o, flags, <const uint8_t*>b.buf, <uint64_t>b.len, view)
    return 0


cdef int put_frame(Outbox* o, uint8_t flags, const uint8_t* data, uint64_t size, object owner) except -1:
    cdef bint is_shared = size >= SHARED_BYTES_MIN
    cdef uint32_t copied = 0 if is_shared else <uint32_t>size
    cdef uint8_t* p
    if size > 0xFFFFFFFF:
        raise ValueError(f"a frame of {size} bytes")
    work(OBJECT + copied // 1024 * KIBI)
    if size < 256:
        p = outbox_reserve(o, 2 + copied)
        p[1] = <uint8_t>size
        p[0] = flags
        p += 2
    else:
        p = outbox_reserve(o, 9 + copied)
        p[0] = flags | LONG
        put_big(p + 1, size, 8)
        p += 9
    if is_shared:
        return outbox_share(o, data, <uint32_t>size, owner)
    memcpy(p, data, size)
    return 0
