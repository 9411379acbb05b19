"""Messages of the mesh: prefix, head and parts, from bytes and to bytes; they are used by `pyx.mesh.link`."""
from cpython.bytes cimport PyBytes_AS_STRING

from pyx.core.little_endian cimport get16, get32, get64, put16, put32, put64
from pyx.mesh.contract import EnvelopeError

cdef enum:
    MAGIC = 0xB5


cdef bytes pack_prefix(int version, uint64_t your_stream, uint32_t sender, uint32_t receiver,
                       uint64_t sender_incarnation, uint64_t receiver_incarnation):
    cdef uint8_t[PREFIX_BYTES] data
    cdef uint8_t* p = data
    p[0] = MAGIC
    p[1] = <uint8_t>version
    p = put16(p + 2, your_stream & 0xFFFF)
    p = put32(put32(p, sender), receiver)
    put64(put64(p, sender_incarnation), receiver_incarnation)
    return data[:PREFIX_BYTES]


cdef int read_prefix(bytes first, uint32_t own, uint32_t peer, Prefix* prefix) except -1:
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(first)
    if len(first) < HEAD_END:
        raise EnvelopeError(f"{len(first)} bytes are too few for a mesh message")
    if p[0] != MAGIC or p[VERSION_AT] < OLDEST_VERSION:
        raise EnvelopeError(
            f"mesh message of magic {p[0]:#x}, version {p[VERSION_AT]}; here {<int>MAGIC:#x}, {<int>VERSION}"
        )
    prefix.version = p[VERSION_AT]
    prefix.your_stream = <uint16_t>get16(p + 2)
    prefix.sender = get32(p + 4)
    prefix.receiver = get32(p + 8)
    if prefix.receiver != own or prefix.sender != peer:
        raise EnvelopeError(f"{prefix.sender} to {prefix.receiver} came to {own} from {peer}")
    prefix.sender_incarnation = get64(p + 12)
    prefix.receiver_incarnation = get64(p + 20)
    return 0


cdef int find_part(list frames, Py_ssize_t at, uint64_t begin, uint64_t size, Part* part) except -1:
    # so many bytes of a frame from `begin` on, or all of it
    cdef object frame = frames[at]
    if not isinstance(frame, bytes):
        frame = frames[at] = bytes(frame)
    part.owner = <void*>frame
    part.data = <const uint8_t*>PyBytes_AS_STRING(frame) + begin
    part.size = size
    return 0


cdef Py_ssize_t split_parts(list frames, const Head* head, Part* volatile, Part* sequenced) except -1:
    cdef Py_ssize_t index = 1
    cdef uint64_t at = HEAD_END + <uint64_t>REFUSAL_BYTES * head.refusals
    cdef uint64_t end = <uint64_t>len(<bytes>frames[0])
    volatile.data = sequenced.data = NULL
    if <uint64_t>len(frames) != 1 + (head.flags & VOLATILE_FRAME != 0) + (head.flags & SEQUENCED_FRAME != 0) + \
            <uint64_t>head.payloads_volatile + head.payloads_sequenced:
        raise EnvelopeError(f"{len(frames)} frames: not what the head says")
    if head.flags & VOLATILE_FRAME:
        find_part(frames, 1, 0, <uint64_t>len(frames[1]), volatile)
        index = 2
    elif head.volatile_bytes:
        find_part(frames, 0, at, head.volatile_bytes, volatile)
        at += head.volatile_bytes
    if head.flags & SEQUENCED_FRAME:
        find_part(frames, index, 0, <uint64_t>len(frames[index]), sequenced)
        index += 1
    elif head.sequenced_bytes:
        find_part(frames, 0, at, head.sequenced_bytes, sequenced)
        at += head.sequenced_bytes
    if at != end or volatile.data != NULL and volatile.size != head.volatile_bytes or \
            sequenced.data != NULL and sequenced.size != head.sequenced_bytes:
        raise EnvelopeError(
            f"parts of {head.volatile_bytes} and {head.sequenced_bytes} bytes in a first frame of {end}"
        )
    return index


cdef int read_greeting(bytes first, const Head* head, Greeting* greeting) except -1:
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(first) + HEAD_END
    cdef uint32_t versions = head.volatile_bytes
    if len(first) != HEAD_END + GREETING_BYTES or head.kind != HELLO and head.kind != WELCOME:
        raise EnvelopeError(f"greeting of kind {head.kind} and {len(first)} bytes")
    greeting.stream = get64(p)
    greeting.your_stream = get64(p + 8)
    greeting.interest = get64(p + 16)
    greeting.number = get32(p + 24)
    # a release before this field speaks version 2
    greeting.oldest = versions & 0xFF if versions else 2
    greeting.newest = versions >> 8 & 0xFF if versions else 2
    return 0


cdef void read_head(const uint8_t* p, Head* head) noexcept:
    head.kind = p[0]
    head.flags = p[1]
    head.refusals = <uint16_t>get16(p + 2)
    head.volatile_bytes = get32(p + 4)
    head.sequenced_bytes = get32(p + 8)
    head.payloads_volatile = get32(p + 12)
    head.payloads_sequenced = get32(p + 16)
    head.frame = get64(p + 20)
    head.sequence = get64(p + 28)
    head.received = get64(p + 36)
    head.committed = get64(p + 44)
    head.acknowledged = get64(p + 52)
    head.frames_seen = get64(p + 60)
    head.taken = get64(p + 68)


cdef void write_head(uint8_t* p, const Head* head) noexcept:
    p[0] = head.kind
    p[1] = head.flags
    p = put16(p + 2, head.refusals)
    p = put32(p, head.volatile_bytes)
    p = put32(p, head.sequenced_bytes)
    p = put32(p, head.payloads_volatile)
    p = put32(p, head.payloads_sequenced)
    p = put64(p, head.frame)
    p = put64(p, head.sequence)
    p = put64(p, head.received)
    p = put64(p, head.committed)
    p = put64(p, head.acknowledged)
    p = put64(p, head.frames_seen)
    put64(p, head.taken)
