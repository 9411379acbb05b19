# cython: language_level=3
"""Hash tables of C structs that grow a page at a time: one insert moves at most a page, whatever the table's size.

    directory (2^depth pointers with the page's number of slots in their high 16 bits, indexed by the top bits of the
      |        hash; several may point to one page)
      |
      v
    Page: slots[8 .. 512], open addressing with linear probing, at most 7/8 full
      |
      v
    slot = tag (16 low bits of the hash) << 48 | pointer; 0 = empty        (user pointers have 47 bits on Linux)

A full page is rebuilt larger; one of 512 slots is split in two by the next bit of the hash (extendible hashing). So
there is never a second table to search, nor a moment when a million entries move: a split moves at most 448 entries
(about 10 us with cold caches), doubling the directory copies a pointer per page (16 KB at a million entries). The tag
determines the place in the page as well, so that probing, rebuilding and deleting read no entry; 1 in ~128 probes
follows a pointer in vain.

Entries are any struct whose first field is its uint64_t hash, which must not change while it is in a table. The table
owns its pages, never the entries. Call order: table_init, then anything, then table_free. A find:

    entry = table_first(t, hash, &probe)
    while entry is not NULL and <the entry is not equal to the key>: entry = table_next(&probe)

A probe is valid until the table changes.
"""
from libc.stdint cimport uint16_t, uint32_t, uint64_t


from pyx.core.hashing cimport prefetch


cdef enum:
    PAGE_ENTRIES_MAX = 512


cdef struct Page:
    uint16_t slots
    uint16_t used
    uint16_t depth              # number of top bits of the hash that all entries of this page share
    uint16_t unused             # the slots follow


cdef struct Table:
    uint64_t* directory
    uint64_t count
    uint32_t depth


cdef struct Probe:
    const uint64_t* slots
    uint64_t tag
    uint32_t at
    uint32_t end


cdef struct Walk:               # zeroed = at the beginning; valid until the table changes
    uint64_t position           # in the directory
    uint32_t slot


cdef struct Paging:             # zeroed = at the beginning; valid whatever happens to the table
    uint64_t first              # the least hash not yet visited
    bint over


cdef int table_init(Table* t) except -1
cdef void table_free(Table* t) noexcept
cdef int table_insert(Table* t, void* entry) except -1          # raises MemoryError, the table unchanged
cdef void table_remove(Table* t, const void* entry) noexcept    # does nothing when it is not there
cdef void* table_walk(const Table* t, Walk* walk) noexcept      # every entry once, in no order; NULL at the end
# The entries of the next page, at most PAGE_ENTRIES_MAX; returns their number. A caller that continues to the end has
# seen every entry once that existed all the time
cdef uint32_t table_page(const Table* t, Paging* paging, void** entries) noexcept


cdef inline uint64_t* page_slots(const Page* page) noexcept nogil:
    return <uint64_t*> (page + 1)


cdef inline uint64_t place_of(const Table* t, uint64_t hash_) noexcept nogil:
    return t.directory[hash_ >> 1 >> (63 - t.depth)]


cdef inline Page* page_at(uint64_t place) noexcept nogil:
    return <Page*> (place & 0xFFFFFFFFFFFFULL)


cdef inline Page* page_of(const Table* t, uint64_t hash_) noexcept nogil:
    return page_at(place_of(t, hash_))


cdef inline void* table_next(Probe* probe) noexcept nogil:
    cdef uint64_t value
    while True:
        value = probe.slots[probe.at]
        if value == 0:
            return NULL
        probe.at += 1
        if probe.at == probe.end:
            probe.at = 0
        if value >> 48 == probe.tag:
            return <void*> (value & 0xFFFFFFFFFFFFULL)


cdef inline void table_prefetch(const Table* t, uint64_t hash_) noexcept nogil:
    """Prefetch the slot where a find will begin: work done meanwhile hides the latency."""
    cdef uint64_t place = place_of(t, hash_)
    prefetch(page_slots(page_at(place)) + ((hash_ & 0xFFFF) * (place >> 48) >> 16))


cdef inline void* table_first(const Table* t, uint64_t hash_, Probe* probe) noexcept nogil:
    # the page's own head is not read: it would be another cache miss
    cdef uint64_t place = place_of(t, hash_)
    probe.slots = page_slots(page_at(place))
    probe.tag = hash_ & 0xFFFF
    probe.end = <uint32_t> (place >> 48)
    probe.at = <uint32_t> (probe.tag * probe.end >> 16)
    return table_next(probe)
