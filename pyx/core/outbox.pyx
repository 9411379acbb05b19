"""The outbox: see the .pxd for the picture."""
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

cdef enum:
    FIRST = 256                 # bytes of a first buffer
    HINT_MAX = 65536


cdef uint8_t* outbox_grow(Outbox* o, uint32_t n) except NULL:
    cdef uint64_t need
    cdef uint64_t cap
    cdef uint32_t i, live = o.tail - o.head
    cdef uint8_t* b
    if o.head and o.head >= o.cap // 2:
        # more than half was sent: move the rest down instead of growing
        memmove(o.buf, o.buf + o.head, live)
        for i in range(o.shared_head, o.shared_tail):
            o.shared[i].at -= o.head
        o.head = 0
        o.tail = live
        if o.cap - o.tail >= n:
            b = o.buf + o.tail
            o.tail += n
            o.pending += n
            return b
    need = <uint64_t>o.tail + n
    if need > 0xFFFFFFFF:
        raise MemoryError
    cap = o.cap * <uint64_t>2 if o.cap else (o.hint if o.hint > FIRST else FIRST)
    while cap < need:
        cap *= 2
    if cap > 0xFFFFFFFF:
        cap = 0xFFFFFFFF
    b = <uint8_t*>realloc(o.buf, cap)
    if b == NULL:
        raise MemoryError
    o.buf = b
    o.cap = <uint32_t>cap
    b = o.buf + o.tail
    o.tail += n
    o.pending += n
    return b


cdef int outbox_share(Outbox* o, const uint8_t* data, uint32_t length, object owner) except -1:
    cdef Shared* s
    cdef uint32_t cap, live
    if length == 0:
        return 0
    if o.shared_tail == o.shared_cap:
        if o.shared_head > o.shared_cap // 2:
            live = o.shared_tail - o.shared_head
            memmove(o.shared, o.shared + o.shared_head, live * sizeof(Shared))
            o.shared_head = 0
            o.shared_tail = live
        else:
            cap = o.shared_cap * 2 if o.shared_cap else 4
            s = <Shared*>realloc(o.shared, cap * sizeof(Shared))
            if s == NULL:
                raise MemoryError
            o.shared = s
            o.shared_cap = cap
    s = &o.shared[o.shared_tail]
    s.data = data
    s.length = length
    s.at = o.tail
    s.owner = <PyObject*>owner
    Py_INCREF(owner)
    o.shared_tail += 1
    o.pending += length
    return 0


cdef int outbox_gather(Outbox* o, iovec* v, int n, size_t* total) noexcept:
    cdef int k = 0
    cdef uint32_t at = o.head, i = o.shared_head, skip = o.shared_sent
    cdef size_t sum = 0
    cdef Shared* s
    while k < n:
        if i < o.shared_tail:
            s = &o.shared[i]
            if at < s.at:
                v[k].iov_base = o.buf + at
                v[k].iov_len = s.at - at
                at = s.at
            else:
                v[k].iov_base = <void*>(s.data + skip)
                v[k].iov_len = s.length - skip
                skip = 0
                i += 1
        elif at < o.tail:
            v[k].iov_base = o.buf + at
            v[k].iov_len = o.tail - at
            at = o.tail
        else:
            break
        sum += v[k].iov_len
        k += 1
    total[0] = sum
    return k


cdef uint32_t taken_qos0(Outbox* o, size_t n) noexcept:
    # counts the packets that end within the next n bytes, which are less than all
    cdef uint32_t at = o.head, i = o.shared_head, skip = o.shared_sent, taken = 0, length, shift, k
    while n:
        if o.left == 0:
            length = shift = 0
            k = at
            while True:
                k += 1
                length |= (o.buf[k] & 0x7F) << shift
                shift += 7
                if o.buf[k] & 0x80 == 0:
                    break
            o.left = k + 1 - at + length
            o.left_qos0 = o.buf[at] & 0xF6 == 0x30
        if n < o.left:
            o.left -= <uint32_t>n
            return taken
        if i < o.shared_tail and o.shared[i].at - at + o.shared[i].length - skip == o.left:
            at = o.shared[i].at                 # the packet ends with the shared payload
            i += 1
            skip = 0
        else:
            at += o.left
        n -= o.left
        taken += o.left_qos0
        o.left = 0
    return taken


cdef uint32_t outbox_sent(Outbox* o, size_t n) noexcept:
    cdef uint32_t taken = o.qos0
    if o.pending == n:
        outbox_clear(o)
        return taken
    taken = taken_qos0(o, n)
    o.qos0 -= taken
    outbox_advance(o, n)
    return taken


cdef void outbox_advance(Outbox* o, size_t n) noexcept:
    cdef Shared* s
    cdef size_t part
    o.pending -= n
    while n:
        if o.shared_head < o.shared_tail and o.shared[o.shared_head].at == o.head:
            s = &o.shared[o.shared_head]
            part = s.length - o.shared_sent
            if part > n:
                o.shared_sent += <uint32_t>n
                return
            n -= part
            o.shared_sent = 0
            o.shared_head += 1
            Py_XDECREF(s.owner)
        else:
            part = (o.shared[o.shared_head].at if o.shared_head < o.shared_tail else o.tail) - o.head
            if part > n:
                part = n
            o.head += <uint32_t>part
            n -= part


cdef void outbox_clear(Outbox* o) noexcept:
    cdef uint32_t i
    for i in range(o.shared_head, o.shared_tail):
        Py_XDECREF(o.shared[i].owner)
    if o.shared != NULL:
        free(o.shared)
        o.shared = NULL
    if o.buf != NULL:
        # capacity of the next buffer: follows the use up at once and down slowly
        o.hint = o.tail if o.tail > o.hint else o.hint - (o.hint - o.tail) // 8
        if o.hint > HINT_MAX:
            o.hint = HINT_MAX
        free(o.buf)
        o.buf = NULL
    o.head = o.tail = o.cap = 0
    o.shared_head = o.shared_tail = o.shared_cap = o.shared_sent = 0
    o.pending = 0
    o.qos0 = o.left = 0
