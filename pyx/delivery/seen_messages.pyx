"""What a session has had: see the .pxd."""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pyx.core.work cimport PLACE, work

cdef uint64_t occupied = 0                     # places of all sessions of the process


# Noexcept: `is_in` and `put` only call C. A half is at most half full, so that both find a free place.
cdef bint is_in(const Half* half, uint64_t mark) noexcept:
    cdef uint32_t i
    if half.count == 0:
        return False
    i = <uint32_t>mark & (half.cap - 1)
    while half.places[i] and half.places[i] != mark:
        i = (i + 1) & (half.cap - 1)
    work(PLACE)
    return half.places[i] == mark


cdef void put(Half* half, uint64_t mark) noexcept:
    cdef uint32_t i = <uint32_t>mark & (half.cap - 1)
    while half.places[i]:
        i = (i + 1) & (half.cap - 1)
    half.places[i] = mark
    half.count += 1
    work(PLACE)


@cython.final
cdef class SeenMessages:

    def __dealloc__(self):
        global occupied
        occupied -= self.newer.cap + self.older.cap
        free(self.newer.places)
        free(self.older.places)

    cdef bint has(self, uint64_t mark) noexcept:
        return is_in(&self.newer, mark) or is_in(&self.older, mark)

    cdef bint is_again(self, uint64_t mark) except -1:
        if self.has(mark):
            return True
        self.add(mark)
        return False

    cdef int add(self, uint64_t mark) except -1:
        if self.newer.count >= self.newer.cap // 2:
            self.grow()
        put(&self.newer, mark)
        return 0

    cdef int grow(self) except -1:
        # make room in the newer half: a larger table, or another half
        global occupied
        cdef Half half
        cdef uint32_t i
        cdef bint is_full = self.newer.count >= SEEN_MAX or occupied >= SEEN_ALL_MAX and self.newer.count >= SEEN_LEAST
        half.cap = 2 * SEEN_LEAST if is_full or self.newer.cap == 0 else 2 * self.newer.cap
        half.count = 0
        half.places = <uint64_t*>calloc(half.cap, sizeof(uint64_t))
        if half.places == NULL:
            raise MemoryError
        occupied += half.cap
        if is_full:
            self.has_forgotten |= self.older.count != 0
            occupied -= self.older.cap
            free(self.older.places)
            self.older = self.newer
        else:
            work(self.newer.cap * PLACE)
            for i in range(self.newer.cap):
                if self.newer.places[i]:
                    put(&half, self.newer.places[i])
            occupied -= self.newer.cap
            free(self.newer.places)
        self.newer = half
        return 0

    cdef bytes packed(self):
        cdef uint32_t i
        cdef bytes out = PyBytes_FromStringAndSize(NULL, 8 * (<Py_ssize_t>self.older.count + self.newer.count))
        cdef char* p = out
        work((self.older.cap + self.newer.cap) * PLACE)
        for i in range(self.older.cap):
            if self.older.places[i]:
                memcpy(p, &self.older.places[i], 8)
                p += 8
        for i in range(self.newer.cap):
            if self.newer.places[i]:
                memcpy(p, &self.newer.places[i], 8)
                p += 8
        return out

    cdef int unpack(self, const uint8_t* p, uint32_t n) except -1:
        cdef uint64_t mark
        cdef uint32_t i
        for i in range(n // 8):
            memcpy(&mark, p + 8 * i, 8)
            if mark and not self.has(mark):
                self.add(mark)
        return 0
