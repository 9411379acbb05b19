"""Pages of windows that are too large for one record.

A window is stored with each tick that changes it. A small one is a single record (pyx.delivery.windows); for a client
with tens of thousands of open Packet Identifiers each change would rewrite all of them. So beyond PAGED_ABOVE of a
direction its entries are in pages, by Packet Identifier, and only changed pages are written:

    U client id NUL o u16 page      messages in flight: OUT_PAGE Packet Identifiers; per entry u16 Packet Identifier,
                                    u8 flags, u8 state, u64 position, u64 order
    U client id NUL i u16 page      arrived QoS 2 publishes: ARRIVED_PAGE Packet Identifiers, a bit for each

All pages of a tick are in one batch with the window's record, so they are always consistent.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pyx.core.little_endian cimport put16, put64
from pyx.core.work cimport PLACE, PYTHON, RECORD, work
from pyx.delivery.session cimport FREE, Inflight, Pages, RETAINED_COPY, arrived_changes, has_arrived, out_changes

cdef enum:
    PAGED_ABOVE = 128
    INLINE_BELOW = 32           # below this, one record again
    OUT_PAGE = 64
    OUT_PAGES = 1024
    OUT_PAGE_BYTES = 1280       # 20 for each entry
    ARRIVED_PAGE = 1024
    ARRIVED_PAGE_BYTES = 128
    ARRIVED_PAGES = 64


cdef bytes page_key(Session s, bytes kind, uint32_t page):
    cdef object number = page
    return b"U" + s.client_id.encode("utf-8", "surrogatepass") + b"\0" + kind + number.to_bytes(2, "big")


cdef bytes out_page(Session s, uint32_t page):
    # empty: the page has no message in flight
    cdef uint8_t[OUT_PAGE_BYTES] value
    cdef uint8_t* p = value
    cdef Inflight* slot
    cdef uint32_t id
    work(OUT_PAGE * PLACE + RECORD)
    for id in range(page * OUT_PAGE, (page + 1) * OUT_PAGE):
        slot = s.slot(<uint16_t>id)
        if slot != NULL:
            p = put16(p, id)
            p[0] = slot.flags & ~RETAINED_COPY
            p[1] = slot.state
            p = put64(put64(p + 2, slot.position), slot.order)
    return PyBytes_FromStringAndSize(<char*>value, p - value)


cdef bytes arrived_page(Session s, uint32_t page):
    cdef uint8_t[ARRIVED_PAGE_BYTES] value
    cdef bint is_empty = True
    cdef uint32_t i
    work(ARRIVED_PAGE * PLACE + RECORD)
    memset(value, 0, sizeof(value))
    for i in range(ARRIVED_PAGE):
        if has_arrived(s, <uint16_t>(page * ARRIVED_PAGE + i)):
            value[i // 8] |= 1 << i % 8
            is_empty = False
    return b"" if is_empty else PyBytes_FromStringAndSize(<char*>value, sizeof(value))


cdef int put_page(object store, bytes key, bytes value, uint64_t* stored, uint64_t bit) except -1:
    work(2 * PYTHON)
    if value:
        store.put(key, value)
        stored[0] |= bit
    elif stored[0] & bit:
        store.delete(key)
        stored[0] &= ~bit
    return 0


cdef int delete_pages(object store, Session s, bytes kind, uint64_t* stored, uint32_t words) except -1:
    cdef uint32_t i
    for i in range(64 * words):
        if stored[i // 64] >> i % 64 & 1:
            work(2 * PYTHON)
            store.delete(page_key(s, kind, i))
    memset(stored, 0, words * sizeof(uint64_t))
    return 0


cdef int decide(object store, Session s, Pages* p) except -1:
    # choose between pages and one record
    cdef uint32_t i
    if not p.is_out_paged and s.inflight > PAGED_ABOVE:
        p.is_out_paged = True
        work(s.window_cap * PLACE)
        for i in range(s.window_cap):
            if s.window[i].state != FREE:
                out_changes(s, s.window[i].packet_id)
    elif p.is_out_paged and s.inflight < INLINE_BELOW:
        p.is_out_paged = False
        delete_pages(store, s, b"o", p.out_stored, OUT_PAGES // 64)
    if not p.is_arrived_paged and s.arrived_count > PAGED_ABOVE:
        p.is_arrived_paged = True
        work(s.arrived_cap * PLACE)
        for i in range(s.arrived_cap):
            if s.arrived[i]:
                arrived_changes(s, <uint16_t>s.arrived[i])
    elif p.is_arrived_paged and s.arrived_count < INLINE_BELOW:
        p.is_arrived_paged = False
        delete_pages(store, s, b"i", &p.arrived_stored, 1)
    return 0


cdef int store_pages(object store, Session s) except -1:
    cdef Pages* p = s.pages
    cdef uint32_t i
    if p == NULL:
        if s.inflight <= PAGED_ABOVE and s.arrived_count <= PAGED_ABOVE:
            return 0
        p = s.pages = <Pages*>calloc(1, sizeof(Pages))
        if p == NULL:
            raise MemoryError
    decide(store, s, p)
    if p.is_out_paged:
        for i in range(OUT_PAGES):
            if p.out_changed[i // 64] >> i % 64 & 1:
                put_page(store, page_key(s, b"o", i), out_page(s, i), &p.out_stored[i // 64], <uint64_t>1 << i % 64)
    if p.is_arrived_paged:
        for i in range(ARRIVED_PAGES):
            if p.arrived_changed >> i & 1:
                put_page(store, page_key(s, b"i", i), arrived_page(s, i), &p.arrived_stored, <uint64_t>1 << i)
    memset(p.out_changed, 0, sizeof(p.out_changed))
    p.arrived_changed = 0
    i = (OUT_IN_PAGES if p.is_out_paged else 0) | (ARRIVED_IN_PAGES if p.is_arrived_paged else 0)
    if i == 0:
        free(p)
        s.pages = NULL
    return <int>i


cdef int forget_pages(object store, Session s) except -1:
    if s.pages != NULL:
        delete_pages(store, s, b"o", s.pages.out_stored, OUT_PAGES // 64)
        delete_pages(store, s, b"i", &s.pages.arrived_stored, 1)
        free(s.pages)
        s.pages = NULL
    return 0
