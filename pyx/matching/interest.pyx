# cython: language_level=3
"""Processing of a sibling's interest snapshot: see interest.pxd."""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from pyx.core.tables cimport PAGE_ENTRIES_MAX, Paging, table_page
from pyx.core.work cimport OBJECT, VISIT, work
from pyx.matching.filters cimport Filter, Group, filter_text
from pyx.matching.subscriptions cimport Subscriptions

cdef enum:
    AT_ONCE = 2000              # Filters and Groups per piece, or up to a page more


def interest_of(Subscriptions subscriptions not None, uint64_t workers):
    """Yield what these workers of the host and this one want, in pages: [(filter, None), ...] and [(filter, group,
    members, online), ...]. Filters and members that come or go meanwhile may be among it or not."""
    cdef void* entries[PAGE_ENTRIES_MAX]
    cdef Paging paging
    cdef Filter* f
    cdef Group* g
    cdef uint64_t siblings
    cdef uint32_t i, n, members, online
    cdef int p
    cdef list page
    memset(&paging, 0, sizeof(Paging))
    while not paging.over:
        n = table_page(&subscriptions.table, &paging, entries)
        work((n + 1) * (VISIT + OBJECT))
        page = []
        for i in range(n):
            f = <Filter*> entries[i]
            if f.plain.count or f.siblings & workers:
                page.append((filter_text(f)[:f.length], None))
        yield page
    memset(&paging, 0, sizeof(Paging))
    while not paging.over:
        n = table_page(&subscriptions.groups.named, &paging, entries)
        work((n + 1) * (VISIT + OBJECT))
        page = []
        for i in range(n):
            g = <Group*> entries[i]
            members, online = g.members.count, g.members.online
            siblings = g.siblings & workers
            p = 0
            while siblings:
                if siblings & 1:
                    members += g.elsewhere[p].members
                    online += g.elsewhere[p].online
                siblings >>= 1
                p += 1
            if members:
                page.append((filter_text(g.filter)[:g.filter.length], g.name[:g.name_length], members, online))
        yield page


@cython.final
@cython.auto_pickle(False)
cdef class WholeInterest:
    def __cinit__(self, int sibling, uint32_t number):
        if sibling < 0 or sibling >= 64:
            raise ValueError("a sibling is numbered 0 to 63")
        self.sibling = sibling
        self.number = number
        self.named = set()
        memset(&self.paging, 0, sizeof(Paging))

    cdef int name_filter(self, Filter* f) except -1:
        work(2 * OBJECT)
        self.named.add(<size_t> f)
        return 0

    cdef int name_group(self, Group* g) except -1:
        work(2 * OBJECT)
        self.named.add(<size_t> g)
        return 0

    cdef bint forget_some(self, Subscriptions subscriptions) except -1:
        cdef void* entries[PAGE_ENTRIES_MAX]
        cdef uint32_t i, n, looked_at = 0
        while looked_at < AT_ONCE:
            if self.paging.over:
                if self.groups:
                    self.named = set()
                    return False
                self.groups = True
                memset(&self.paging, 0, sizeof(Paging))
            # only this entry, or the Filter of this Group, is dropped below: the others of the page stay
            n = table_page(&subscriptions.groups.named if self.groups else &subscriptions.table, &self.paging, entries)
            work((n + 1) * (VISIT + OBJECT))
            looked_at += n + 1
            for i in range(n):
                if self.groups:
                    self.forget_group(subscriptions, <Group*> entries[i])
                else:
                    self.forget_filter(subscriptions, <Filter*> entries[i])
        return True

    cdef int forget_filter(self, Subscriptions subscriptions, Filter* f) except -1:
        if f.siblings >> self.sibling & 1 and <size_t> f not in self.named:
            if self.forgotten is not None:
                self.forgotten.append((filter_text(f)[:f.length], None))
            subscriptions.set_sibling(f, self.sibling, False)
        return 0

    cdef int forget_group(self, Subscriptions subscriptions, Group* g) except -1:
        cdef Filter* f = g.filter
        if self.forgotten is not None and g.siblings >> self.sibling & 1:
            self.forgotten.append((filter_text(f)[:f.length], g.name[:g.name_length]))
        if <size_t> g not in self.named:
            subscriptions.groups.leave(g, self.sibling, self.number)
        elif g.enrolled is not NULL:
            subscriptions.groups.forget_members(g, self.sibling, self.number)
        else:
            return 0
        subscriptions.drop_if_unused(f, g)
        return 0
