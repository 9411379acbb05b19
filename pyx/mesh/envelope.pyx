"""Heads of mesh messages: from bytes and to bytes. The rest of a message: `pyx.mesh.outgoing`, `pyx.mesh.link`."""
from pyx.core.little_endian cimport get16, get32, get64, put16, put32, put64


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
