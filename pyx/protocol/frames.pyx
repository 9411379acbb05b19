"""Encoding of an outgoing PUBLISH: see the .pxd."""
from libc.stdlib cimport realloc


cdef int frame_make(Frame* f, const Content* c, bint v5, bint with_id, bint with_payload, uint64_t wall_ms) except -1:
    cdef uint64_t remaining = remaining_length(c, v5, with_id, 0)
    cdef uint64_t need = 1 + varint_size(<uint32_t>remaining) + remaining
    cdef uint32_t cap
    cdef uint8_t* p
    if remaining > 268_435_455:
        # a v3 packet of the largest size does not fit once v5's property length is added: treated as too large for all
        # subscribers
        f.total = 0xFFFFFFFF
        f.ready = True
        return 0
    f.total = <uint32_t>need
    if not with_payload:
        need -= c.payload_len
    if f.store_cap < need:
        cap = <uint32_t>need + 256
        p = <uint8_t*>realloc(f.store, cap)
        if p == NULL:
            raise MemoryError
        f.store = p
        f.store_cap = cap
    p = put_head(f.store, c, 0x30, <uint32_t>remaining, v5, 0, with_id, 0, NULL, 0, wall_ms)
    if with_payload:
        memcpy(p, c.payload, c.payload_len)
    f.id_at = 1 + varint_size(<uint32_t>remaining) + 2 + c.topic_len
    f.data = f.store
    f.length = <uint32_t>need
    f.ready = True
    return 0
