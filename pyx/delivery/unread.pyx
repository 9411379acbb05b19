"""The directory of unread messages of a session with many filters, in memory.

The log has one index for each filter. A session with a few filters merges their indexes when it reads; with thousands
of them every access to its backlog would iterate over all. Such a session has a directory of its own while it is
behind: the position of each message that waits for it, its size, and an index that contains it. So the backlog is a
subtraction, a limit a binary search, and the next message is known without reading indexes that have none. It takes 24
bytes for each waiting message; the messages stay in the log.

If a session is behind without a directory (it was restored, or its filters became many while it was behind), its
unread messages are gathered from the indexes in slices (`pyx.delivery.bounding`).
"""
cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memmove

from pyx.core.work cimport INDEX, OBJECT, PLACE, VISIT, work
from pyx.protocol.message cimport Message, content_bytes

cdef enum:
    READ_MESSAGES_MAX = 1024        # per batch


cdef int by_position(const void* a, const void* b) noexcept nogil:
    cdef uint64_t x = (<Waiting*>a).position, y = (<Waiting*>b).position
    return (x > y) - (x < y)


@cython.final
cdef class Unread:
    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.head, self.tail):
            Py_DECREF(<object>self.items[i].key)
        free(self.items)

    cdef uint32_t first_after(self, uint64_t position) noexcept:
        # place of the first message behind position, in [head, tail]
        cdef uint32_t lo = self.head, hi = self.tail, mid
        work(2 * VISIT)
        while lo < hi:
            mid = lo + (hi - lo) // 2
            if self.items[mid].position <= position:
                lo = mid + 1
            else:
                hi = mid
        return lo

    cdef uint64_t bytes_after(self, uint32_t at) noexcept:
        if at >= self.tail:
            return 0
        return self.items[self.tail - 1].end - (self.items[at - 1].end if at > self.head else self.before)

    cdef int room(self) except -1:
        cdef uint32_t cap, live = self.tail - self.head
        cdef Waiting* items
        if self.tail < self.cap:
            return 0
        if self.head > live:
            work(live * (2 * PLACE))
            memmove(self.items, self.items + self.head, live * sizeof(Waiting))
            self.head = 0
            self.tail = live
            return 0
        cap = self.cap * 2 if self.cap else 16
        items = <Waiting*>realloc(self.items, cap * sizeof(Waiting))
        if items == NULL:
            raise MemoryError
        self.items = items
        self.cap = cap
        return 0

    cdef int gather(self, uint64_t position, uint64_t size, LogKey key) except -1:
        cdef Waiting* e
        self.room()
        e = &self.items[self.tail]
        e.position = position
        e.end = size
        Py_INCREF(key)
        e.key = <PyObject*>key
        self.tail += 1
        return 0

    cdef int add(self, uint64_t position, uint64_t size, LogKey key) except -1:
        cdef uint64_t end = self.items[self.tail - 1].end if self.tail > self.head else self.before
        work(VISIT)
        self.gather(position, end + size, key)
        self.grown += 1
        self.grown_bytes += size
        return 0

    cdef int settle(self, Unread later) except -1:
        cdef uint32_t i, kept = self.head
        cdef uint64_t size, end = 0
        cdef Waiting* e
        work((self.tail - self.head) * (2 * VISIT) + (later.tail - later.head) * VISIT)
        if self.tail > self.head:               # else the array may be NULL
            qsort(self.items + self.head, self.tail - self.head, sizeof(Waiting), by_position)
        for i in range(self.head, self.tail):
            e = &self.items[i]
            if kept > self.head and self.items[kept - 1].position == e.position:
                Py_DECREF(<object>e.key)
                continue
            end += e.end
            self.items[kept] = e[0]
            self.items[kept].end = end
            kept += 1
        self.tail = kept
        self.before = 0
        for i in range(later.head, later.tail):
            e = &later.items[i]
            size = e.end - (later.items[i - 1].end if i > later.head else later.before)
            self.add(e.position, size, <LogKey>e.key)
        return 0

    cdef int trim(self, uint64_t up_to) except -1:
        cdef uint32_t i, k = self.first_after(up_to)
        work((k - self.head) * VISIT)
        for i in range(self.head, k):
            self.before = self.items[i].end
            Py_DECREF(<object>self.items[i].key)
        self.head = k
        if self.head == self.tail:
            free(self.items)
            self.items = NULL
            self.head = self.tail = self.cap = 0
            self.before = 0
        return 0

    cdef int drop(self, uint64_t after) except -1:
        cdef uint32_t i, k = self.first_after(after)
        work((self.tail - k) * VISIT)
        for i in range(k, self.tail):
            Py_DECREF(<object>self.items[i].key)
        self.tail = k
        return 0

    cdef bint lists(self, LogKey key) noexcept:
        cdef uint32_t i
        work((self.tail - self.head) * PLACE)
        for i in range(self.head, self.tail):
            if self.items[i].key == <PyObject*>key:
                return True
        return False

    cdef Batch read(self, object store, uint32_t looks, uint64_t bytes_max, uint64_t* reached):
        # consecutive messages of one index are read together; messages no longer there are skipped
        cdef Batch found = Batch.__new__(Batch), b
        cdef uint32_t i = self.head, k, n = min(self.tail - self.head, <uint32_t>READ_MESSAGES_MAX)
        cdef uint64_t size = 0
        cdef PyObject* key
        found.positions = <uint64_t*>malloc((n if n else 1) * sizeof(uint64_t))
        if found.positions == NULL:
            raise MemoryError
        while i < self.tail and looks and found.count < n and (size < bytes_max or found.count == 0):
            key = self.items[i].key
            looks -= 1
            work(INDEX)
            b = store.read((<LogKey>key).name, self.items[i].position - 1, bytes_max - size if size < bytes_max else 0)
            k = 0
            while i < self.tail and self.items[i].key == key and found.count < n:
                work(VISIT)
                while k < b.count and b.positions[k] < self.items[i].position:
                    k += 1
                if k == b.count and k and b.truncated:
                    break
                if k < b.count and b.positions[k] == self.items[i].position:
                    work(OBJECT)
                    found.positions[found.count] = b.positions[k]
                    found.messages.append(b.messages[k])
                    found.count += 1
                    size += content_bytes(&(<Message>b.messages[k]).content)
                reached[0] = self.items[i].position
                i += 1
        found.truncated = i < self.tail
        return found


@cython.final
cdef class Search:
    def __cinit__(self):
        self.anew = True
