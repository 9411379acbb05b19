"""Mesh entries as bytes: each is a PUBLISH on its way to a sibling. zmq_mesh.envelope describes batches, and has the
plain Python decoder; one test runs golden bytes through both.
"""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from pyx.core.little_endian cimport get16, get32, get64, put16, put32, put64
from pyx.core.work cimport KIBI, RECORD, work
from pyx.protocol.message cimport Message, message_copy

cdef enum:
    CHOICE_BYTES = 11               # an entry's choice before its group: insist, key, length


@cython.final
cdef class Packed:
    def __dealloc__(self):
        free(self.at)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.at, self.size, 1, flags)

    def __len__(self):
        return self.size

    @property
    def entry_count(self):
        return self.entries

    cdef uint8_t* room(self, uint32_t n) except NULL:
        cdef uint64_t cap
        cdef uint8_t* b
        if self.cap - self.size < n:
            cap = self.cap * <uint64_t>2 if self.cap else 1024
            while cap < <uint64_t>self.size + n:
                cap *= 2
            if cap > 0xFFFFFFFF:
                raise MemoryError
            b = <uint8_t*>realloc(self.at, cap)
            if b == NULL:
                raise MemoryError
            self.at = b
            self.cap = <uint32_t>cap
        b = self.at + self.size
        self.size += n
        return b

    cdef int entry(self, const Content* c, uint8_t flags, const Choice* choice) except -1:
        # flags: ENTRY_OWN_FRAME and ENTRY_RETAINED_ONLY from the caller, the others from the content
        cdef uint32_t n = 19 + c.topic_len + c.props_len
        cdef uint8_t* p
        flags |= c.qos
        if c.retain:
            flags |= ENTRY_RETAIN
        if c.expires:
            flags |= ENTRY_EXPIRES
            n += 8
        if choice != NULL:
            flags |= ENTRY_SHARED
            n += CHOICE_BYTES + choice.group_len
        if not flags & ENTRY_OWN_FRAME:
            n += c.payload_len
        work(RECORD + n // 1024 * KIBI)
        p = self.room(n)
        p[0] = flags
        p = put16(p + 1, c.topic_len)
        p = put32(p, c.props_len)
        p = put32(p, c.payload_len)
        p = put64(p, c.number)
        if c.expires:
            p = put64(p, c.expires)
        if choice != NULL:
            p[0] = choice.insist
            p = put16(put64(p + 1, choice.key), choice.group_len)
            memcpy(p, choice.group, choice.group_len)
            p += choice.group_len
        memcpy(p, c.topic, c.topic_len)
        p += c.topic_len
        if c.props_len:
            memcpy(p, c.props, c.props_len)
            p += c.props_len
        if not flags & ENTRY_OWN_FRAME:
            memcpy(p, c.payload, c.payload_len)
        self.entries += 1
        return 0


cdef int64_t read_entry(const uint8_t* p, size_t n, Entry* out) except -1:
    cdef const uint8_t* at = p
    cdef const uint8_t* end = p + n
    cdef Content* c = &out.content
    cdef uint64_t need
    work(RECORD)
    if n < 19:
        raise ValueError("mesh entry cut off")
    out.flags = p[0]
    c.qos = out.flags & ENTRY_QOS
    if c.qos == 3:
        raise ValueError("mesh entry with QoS 3")
    if out.flags & ENTRY_CONTROL and out.flags & ENTRY_OWN_FRAME:
        raise ValueError("mesh entry for the broker with a frame of its own")   # its payload is in the entry
    c.retain = (out.flags & ENTRY_RETAIN) != 0
    c.topic_len = <unsigned short>get16(p + 1)
    c.props_len = get32(p + 3)
    c.payload_len = get32(p + 7)
    c.number = get64(p + 11)
    c.expires = 0
    c.expiry_offset = -1
    at += 19
    if out.flags & ENTRY_EXPIRES:
        if end - at < 8:
            raise ValueError("mesh entry cut off")
        c.expires = get64(at)
        at += 8
    out.group = NULL
    out.group_len = 0
    out.insist = 0
    out.key = 0
    if out.flags & ENTRY_SHARED:
        if end - at < CHOICE_BYTES:
            raise ValueError("mesh entry cut off")
        out.insist = at[0]
        out.key = get64(at + 1)
        out.group_len = get16(at + 9)
        at += CHOICE_BYTES
        if <uint64_t>(end - at) < out.group_len:
            raise ValueError("mesh entry cut off")
        out.group = at
        at += out.group_len
    need = <uint64_t>c.topic_len + c.props_len + (0 if out.flags & ENTRY_OWN_FRAME else c.payload_len)
    if <uint64_t>(end - at) < need:
        raise ValueError("mesh entry cut off")
    c.topic = at
    at += c.topic_len
    c.props = at
    at += c.props_len
    if out.flags & ENTRY_OWN_FRAME:
        c.payload = NULL
    else:
        c.payload = at
        at += c.payload_len
    return at - p


cpdef int64_t count_entries(object part) except -1:
    """Return the number of entries of a part (a buffer). Raises ValueError if it is damaged."""
    cdef const uint8_t[::1] bytes_of = part
    cdef size_t at = 0, size = bytes_of.shape[0]
    cdef Entry e
    cdef int64_t count = 0
    while at < size:
        at += read_entry(&bytes_of[at], size - at, &e)
        count += 1
    return count


def without_sibling_messages(const uint8_t[::1] part not None):
    """Return a copy of packed entries for a sibling that may come back as another incarnation: messages between the
    brokers (questions, flags) are outdated by then and lose their kind. Raise ValueError if an entry is damaged."""
    cdef size_t at = 0, n = <size_t>part.shape[0], begin
    cdef Entry e
    cdef bytes copy = PyBytes_FromStringAndSize(<const char*>&part[0], <Py_ssize_t>n) if n else b""
    cdef uint8_t* p = <uint8_t*><char*>copy         # not shared yet
    while at < n:
        begin = at
        at += read_entry(p + begin, n - begin, &e)
        # "^", the publisher of the next entry, stays valid with that entry
        if e.flags & ENTRY_CONTROL and e.content.topic_len and e.content.topic[0] != c'^':
            (<uint8_t*>e.content.topic)[0] = c'.'
    return copy


def pack_messages(list messages not None):
    """Return messages as mesh entries in one buffer: an answer to a sibling's question for retained messages."""
    cdef Packed packed = Packed.__new__(Packed)
    cdef Message m
    for m in messages:
        packed.entry(&m.content, 0, NULL)
    return PyBytes_FromStringAndSize(<char*>packed.at, packed.size)


def unpack_messages(bytes data not None, expiry_offset):
    """Return the messages of `pack_messages`. `expiry_offset(properties)`: offset of the Message Expiry Interval. Raise
    ValueError if an entry is damaged or lacks its payload."""
    cdef const uint8_t* p = <const uint8_t*><const char*>data
    cdef size_t at = 0, n = len(data)
    cdef Entry e
    cdef Message m
    out = []
    while at < n:
        at += read_entry(p + at, n - at, &e)
        if e.flags & ENTRY_OWN_FRAME:
            raise ValueError("mesh entry without its payload")
        if e.content.expires:
            e.content.expiry_offset = expiry_offset(PyBytes_FromStringAndSize(<const char*>e.content.props,
                                                                              e.content.props_len))
        m = message_copy(&e.content, None)
        out.append(m)
    return out
