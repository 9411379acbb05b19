# cython: language_level=3
"""See tables.pxd for the layout and the promises."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

cdef enum:
    SLOTS_MIN = 8
    SLOTS_MAX = PAGE_ENTRIES_MAX        # a page of 4 KB
    SLOTS_STEP = 64             # above 256 slots a page grows by this, so that pages are full on average


cdef inline uint32_t room(uint32_t slots) noexcept nogil:
    return slots - (slots >> 3)


cdef inline uint32_t larger(uint32_t slots) noexcept nogil:
    return slots * 2 if slots < 256 else slots + SLOTS_STEP


cdef inline uint64_t first_position(const Table* t, const Page* page, uint64_t hash_) noexcept nogil:
    """The first directory entry that points to `page`, one of whose entries has this hash."""
    cdef uint32_t shared = t.depth - page.depth
    return (hash_ >> 1 >> (63 - t.depth)) >> shared << shared


cdef inline void put(Page* page, uint64_t value) noexcept nogil:
    cdef uint64_t* slots = page_slots(page)
    cdef uint32_t at = <uint32_t> ((value >> 48) * page.slots >> 16)
    while slots[at] != 0:
        at += 1
        if at == page.slots:
            at = 0
    slots[at] = value
    page.used += 1


cdef inline uint64_t place(const Page* page) noexcept nogil:
    """A page's value in the directory."""
    return <uint64_t> page | <uint64_t> page.slots << 48


cdef Page* new_page(uint32_t slots, uint16_t depth) noexcept:
    cdef Page* page = <Page*> calloc(1, sizeof(Page) + slots * sizeof(uint64_t))
    if page is not NULL:
        page.slots = <uint16_t> slots
        page.depth = depth
    return page


cdef int table_init(Table* t) except -1:
    t.count = 0
    t.depth = 0
    cdef Page* page = new_page(SLOTS_MIN, 0)
    t.directory = <uint64_t*> malloc(sizeof(uint64_t))
    if t.directory is NULL or page is NULL:
        free(t.directory)
        free(page)
        t.directory = NULL
        raise MemoryError()
    t.directory[0] = place(page)
    return 0


cdef void table_free(Table* t) noexcept:
    cdef uint64_t position = 0, end = <uint64_t> 1 << t.depth
    cdef Page* page
    if t.directory is NULL:
        return
    while position < end:
        page = page_at(t.directory[position])
        position += <uint64_t> 1 << (t.depth - page.depth)
        free(page)
    free(t.directory)
    t.directory = NULL
    t.count = 0
    t.depth = 0


cdef bint resize_page(Table* t, Page* page, uint64_t hash_, uint32_t slots) noexcept:
    cdef Page* fresh = new_page(slots, page.depth)
    cdef uint64_t position, i
    if fresh is NULL:
        return False
    for i in range(page.slots):
        if page_slots(page)[i] != 0:
            put(fresh, page_slots(page)[i])
    position = first_position(t, page, hash_)
    for i in range(<uint64_t> 1 << (t.depth - page.depth)):
        t.directory[position + i] = place(fresh)
    free(page)
    return True


cdef bint double_directory(Table* t) noexcept:
    cdef uint64_t i, size = <uint64_t> 1 << t.depth
    cdef uint64_t* directory = <uint64_t*> malloc(2 * size * sizeof(uint64_t))
    if directory is NULL:
        return False
    for i in range(size):
        directory[2 * i] = directory[2 * i + 1] = t.directory[i]
    free(t.directory)
    t.directory = directory
    t.depth += 1
    return True


cdef bint split_page(Table* t, Page* page, uint64_t hash_) noexcept:
    cdef Page* halves[2]
    cdef uint32_t counts[2]
    cdef uint32_t i, half, slots
    cdef uint64_t value, position, step
    cdef uint64_t entry_hash
    if page.depth == t.depth and not double_directory(t):
        return False
    counts[0] = counts[1] = 0
    for i in range(page.slots):
        value = page_slots(page)[i]
        if value != 0:
            entry_hash = (<uint64_t*> <void*> (value & 0xFFFFFFFFFFFFULL))[0]
            counts[entry_hash >> (63 - page.depth) & 1] += 1
    for half in range(2):
        slots = SLOTS_MIN
        while room(slots) <= counts[half]:
            slots = larger(slots)
        halves[half] = new_page(slots, page.depth + 1)
    if halves[0] is NULL or halves[1] is NULL:
        free(halves[0])
        free(halves[1])
        return False
    for i in range(page.slots):
        value = page_slots(page)[i]
        if value != 0:
            entry_hash = (<uint64_t*> <void*> (value & 0xFFFFFFFFFFFFULL))[0]
            put(halves[entry_hash >> (63 - page.depth) & 1], value)
    position = first_position(t, page, hash_)
    step = <uint64_t> 1 << (t.depth - page.depth - 1)
    for i in range(step):
        t.directory[position + i] = place(halves[0])
        t.directory[position + step + i] = place(halves[1])
    free(page)
    return True


cdef int table_insert(Table* t, void* entry) except -1:
    cdef uint64_t hash_ = (<uint64_t*> entry)[0]
    cdef Page* page = page_of(t, hash_)
    cdef bint grown
    while page.used >= room(page.slots):
        if page.slots < SLOTS_MAX:
            grown = resize_page(t, page, hash_, larger(page.slots))
        else:
            grown = split_page(t, page, hash_)
        if not grown:
            raise MemoryError()
        page = page_of(t, hash_)
    put(page, hash_ << 48 | <uint64_t> entry)
    t.count += 1
    return 0


cdef void table_remove(Table* t, const void* entry) noexcept:
    cdef uint64_t hash_ = (<const uint64_t*> entry)[0]
    cdef Page* page = page_of(t, hash_)
    cdef uint64_t* slots = page_slots(page)
    cdef uint64_t value = hash_ << 48 | <uint64_t> entry
    cdef uint32_t size = page.slots
    cdef uint32_t hole = <uint32_t> ((value >> 48) * size >> 16)
    cdef uint32_t at, home
    while slots[hole] != value:
        if slots[hole] == 0:
            return
        hole = hole + 1 if hole + 1 < size else 0
    at = hole
    while True:                     # entries after the hole move up unless that would put them before their place
        at = at + 1 if at + 1 < size else 0
        if slots[at] == 0:
            break
        home = <uint32_t> ((slots[at] >> 48) * size >> 16)
        if (at + size - home) % size >= (at + size - hole) % size:
            slots[hole] = slots[at]
            hole = at
    slots[hole] = 0
    page.used -= 1
    t.count -= 1
    if size > SLOTS_MIN and page.used < size >> 2:
        resize_page(t, page, hash_, size >> 1 if size <= 256 else 256)      # if memory is short it stays as it is


cdef void* table_walk(const Table* t, Walk* walk) noexcept:
    cdef Page* page
    cdef uint64_t value
    while walk.position < <uint64_t> 1 << t.depth:
        page = page_at(t.directory[walk.position])
        while walk.slot < page.slots:
            value = page_slots(page)[walk.slot]
            walk.slot += 1
            if value != 0:
                return <void*> (value & 0xFFFFFFFFFFFFULL)
        walk.slot = 0
        walk.position += <uint64_t> 1 << (t.depth - page.depth)
    return NULL


cdef uint32_t table_page(const Table* t, Paging* paging, void** entries) noexcept:
    # by hash and not by place: pages are split by hash, and never merged
    cdef Page* page = page_of(t, paging.first)
    cdef uint64_t behind
    cdef uint32_t i, n = 0
    for i in range(page.slots):
        if page_slots(page)[i] != 0:
            entries[n] = <void*> (page_slots(page)[i] & 0xFFFFFFFFFFFFULL)
            n += 1
    behind = 0
    if page.depth:
        behind = ((paging.first >> (64 - page.depth)) + 1) << (64 - page.depth)
    paging.over = behind == 0
    paging.first = behind
    return n
