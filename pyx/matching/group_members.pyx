# cython: language_level=3
"""The enrolled members of share groups: see group_members.pxd."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from pyx.core.work cimport PLACE, VISIT, work
from pyx.matching.filters cimport Group, Member

cdef enum:
    PLACED_FROM = 32            # below that a linear search is as fast


cdef inline uint32_t home(const Group* g, const Member* m) noexcept nogil:
    return <uint32_t> ((m.identity ^ m.worker * <uint64_t> 0x9E3779B97F4A7C15) >> 7) & (2 * g.enrolled_cap - 1)


cdef inline uint32_t following(const Group* g, uint32_t place) noexcept nogil:
    return (place + 1) & (2 * g.enrolled_cap - 1)


cdef uint32_t place_of(const Group* g, uint32_t at) noexcept:
    """The table's place for the member at `at`, which is in it."""
    cdef uint32_t place = home(g, &g.enrolled[at])
    while g.enrolled_places[place] != at + 1:
        place = following(g, place)
    return place


cdef void put_place(Group* g, uint32_t at) noexcept:
    cdef uint32_t place = home(g, &g.enrolled[at])
    while g.enrolled_places[place]:
        place = following(g, place)
    g.enrolled_places[place] = at + 1


cdef void drop_place(Group* g, uint32_t hole) noexcept:
    cdef uint32_t mask = 2 * g.enrolled_cap - 1
    cdef uint32_t at = hole, first
    while True:                         # entries after the hole move up unless that would put them before their home
        at = following(g, at)
        if g.enrolled_places[at] == 0:
            break
        first = home(g, &g.enrolled[g.enrolled_places[at] - 1])
        if ((at - first) & mask) >= ((at - hole) & mask):
            g.enrolled_places[hole] = g.enrolled_places[at]
            hole = at
    g.enrolled_places[hole] = 0


cdef inline bint is_it(const Member* m, uint64_t identity, const void* session, uint32_t worker) noexcept nogil:
    # a local one is compared by session: two client ids might have the same hash
    return m.identity == identity and m.session == session and m.worker == worker


cdef Member* enrolled_find(Group* g, uint64_t identity, void* session, uint32_t worker) noexcept:
    cdef Member sought
    cdef uint32_t i, at
    work(VISIT)
    if g.enrolled_places != NULL:
        sought.identity, sought.worker = identity, worker
        i = home(g, &sought)
        while g.enrolled_places[i]:
            at = g.enrolled_places[i] - 1
            if is_it(&g.enrolled[at], identity, session, worker):
                return &g.enrolled[at]
            i = following(g, i)
        return NULL
    for i in range(g.enrolled_count):
        if is_it(&g.enrolled[i], identity, session, worker):
            return &g.enrolled[i]
    return NULL


cdef int grow(Group* g) except -1:
    cdef uint32_t i, cap = g.enrolled_cap * 2 if g.enrolled_cap else 4
    cdef uint32_t* places = NULL
    cdef Member* enrolled
    work(cap * PLACE)
    if cap >= PLACED_FROM:
        places = <uint32_t*> calloc(2 * <size_t> cap, sizeof(uint32_t))
        if places == NULL:
            raise MemoryError()
    enrolled = <Member*> realloc(g.enrolled, cap * sizeof(Member))
    if enrolled == NULL:
        free(places)
        raise MemoryError()
    g.enrolled = enrolled
    g.enrolled_cap = cap
    free(g.enrolled_places)
    g.enrolled_places = places
    if places != NULL:
        for i in range(g.enrolled_count):
            put_place(g, i)
    return 0


cdef int enrolled_put(
    Group* g, uint64_t identity, uint64_t since, void* session, uint32_t worker, uint32_t told
) except -1:
    cdef Member* m = enrolled_find(g, identity, session, worker)
    if m == NULL:
        if g.enrolled_count == g.enrolled_cap:
            grow(g)
        m = &g.enrolled[g.enrolled_count]
        m.identity = identity
        m.session = session
        m.worker = worker
        if g.enrolled_places != NULL:
            put_place(g, g.enrolled_count)
        g.enrolled_count += 1
    m.since = since
    m.told = told
    return 0


cdef void remove_at(Group* g, uint32_t at) noexcept:
    cdef uint32_t last = g.enrolled_count - 1
    if g.enrolled_places != NULL:
        drop_place(g, place_of(g, at))
        if at != last:
            g.enrolled_places[place_of(g, last)] = at + 1
    g.enrolled[at] = g.enrolled[last]
    g.enrolled_count = last
    if last == 0:
        enrolled_free(g)


cdef void enrolled_strike(Group* g, uint64_t identity, void* session, uint32_t worker) noexcept:
    cdef Member* m = enrolled_find(g, identity, session, worker)
    if m != NULL:
        remove_at(g, <uint32_t> (m - g.enrolled))


cdef void enrolled_forget(Group* g, uint32_t worker, uint32_t told) noexcept:
    cdef uint32_t i = 0
    work(g.enrolled_count * (2 * PLACE))
    while i < g.enrolled_count:
        if g.enrolled[i].worker == worker and (told == 0 or g.enrolled[i].told != told):
            work(VISIT)
            remove_at(g, i)
        else:
            i += 1


cdef void enrolled_free(Group* g) noexcept:
    free(g.enrolled)
    free(g.enrolled_places)
    g.enrolled = NULL
    g.enrolled_places = NULL
    g.enrolled_count = g.enrolled_cap = 0
