# cython: language_level=3
"""See rosters.pxd. A lookup walks the array: it happens when a member comes or goes, never per message."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from pyx.filters cimport Group, Member
from pyx.work cimport PLACE, work


cdef Member* roster_find(Group* g, uint64_t identity, void* session, uint32_t worker) noexcept:
    # a local one by its session: two client ids might have one hash
    cdef uint32_t i
    cdef Member* m
    work(g.roster_count * (2 * PLACE))
    for i in range(g.roster_count):
        m = &g.roster[i]
        if m.session == session and m.worker == worker and m.identity == identity:
            return m
    return NULL


cdef int roster_put(Group* g, uint64_t identity, uint64_t since, void* session, uint32_t worker) except -1:
    """Add a member, or say anew since when it is online (0: offline)."""
    cdef Member* m = roster_find(g, identity, session, worker)
    cdef uint32_t cap
    if m == NULL:
        if g.roster_count == g.roster_cap:
            cap = g.roster_cap * 2 if g.roster_cap else 4
            m = <Member*> realloc(g.roster, cap * sizeof(Member))
            if m == NULL:
                raise MemoryError()
            g.roster = m
            g.roster_cap = cap
        m = &g.roster[g.roster_count]
        g.roster_count += 1
        m.identity = identity
        m.session = session
        m.worker = worker
    m.since = since
    return 0


cdef void roster_strike(Group* g, uint64_t identity, void* session, uint32_t worker) noexcept:
    """Remove a member; one that is not there is none."""
    cdef Member* m = roster_find(g, identity, session, worker)
    if m != NULL:
        g.roster_count -= 1
        m[0] = g.roster[g.roster_count]
        if g.roster_count == 0:
            roster_free(g)


cdef void roster_forget(Group* g, uint32_t worker) noexcept:
    cdef uint32_t i = 0
    work(g.roster_count * (2 * PLACE))
    while i < g.roster_count:
        if g.roster[i].worker == worker:
            g.roster_count -= 1
            g.roster[i] = g.roster[g.roster_count]
        else:
            i += 1
    if g.roster_count == 0:
        roster_free(g)


cdef void roster_free(Group* g) noexcept:
    free(g.roster)
    g.roster = NULL
    g.roster_count = g.roster_cap = 0
