# cython: language_level=3
"""Bounds that hold for all workers together: connections, sessions.

Each worker publishes its count in its counter row, and adds up the rows of all before it takes one more. Two workers
that claim the last place at the same moment must not both get it, and one of them must:

    increment our own count; add up; if the sum is within the bound, the place is ours else decrement it, and add up
    again: if it is full without us, there was no room; else another worker has tried at the same moment, and one of the
    two gets the place at the next try: the one that adds up last sees that the other has gone

All of it is sequentially consistent: of two workers that increment and then add up, at least one sees both. There is no
lock, so nobody waits for a stopped worker, and a worker that dies holds its count until its successor replaces it
(`set`): the sessions in its store exist meanwhile.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from pyx.core.counters cimport CLAIMS_AT, PLACES


cdef extern from *:
    """
    #include <sched.h>
    static inline uint64_t claim_load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
    static inline void claim_add(uint64_t *at, uint64_t n) { (void)__atomic_fetch_add(at, n, __ATOMIC_SEQ_CST); }
    static inline void claim_store(uint64_t *at, uint64_t n) { __atomic_store_n(at, n, __ATOMIC_SEQ_CST); }
    """
    uint64_t claim_load(const uint64_t* at) noexcept nogil
    void claim_add(uint64_t* at, uint64_t n) noexcept nogil
    void claim_store(uint64_t* at, uint64_t n) noexcept nogil
    int sched_yield() noexcept nogil


CONNECTIONS = 0
SESSIONS = 1

cdef enum:
    TRIES = 64


@cython.final
cdef class Claims:
    """The count of one kind, for one worker."""
    cdef uint64_t** at
    cdef int count
    cdef uint64_t* own
    cdef tuple owners

    def __cinit__(self, rows not None, int own, int what):
        cdef Py_buffer view
        cdef int i
        if not 0 <= own < len(rows) or not 0 <= what < 8:
            raise IndexError(own)
        self.at = <uint64_t**>calloc(len(rows), sizeof(uint64_t*))
        if self.at == NULL:
            raise MemoryError
        self.owners = tuple(rows)               # keeps the mapping
        self.count = len(self.owners)
        for i in range(self.count):
            PyObject_GetBuffer(self.owners[i], &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
            if view.len < <Py_ssize_t>(PLACES * sizeof(uint64_t)) or <size_t>view.buf % sizeof(uint64_t):
                PyBuffer_Release(&view)
                raise ValueError("a counter row is aligned, and longer")
            self.at[i] = <uint64_t*>view.buf + CLAIMS_AT + what
            PyBuffer_Release(&view)
        self.own = self.at[own]

    def __dealloc__(self):
        free(self.at)

    cdef uint64_t total(self) noexcept:
        cdef uint64_t found = 0
        cdef int i
        for i in range(self.count):
            found += claim_load(self.at[i])
        return found

    def take(self, uint64_t most):
        """Claim one more if all workers together have less than `most` (0: any number); return if it was granted."""
        for _ in range(TRIES):
            claim_add(self.own, 1)
            if most == 0 or self.total() <= most:
                return True
            claim_add(self.own, <uint64_t>-1)
            if self.total() >= most:
                return False
            sched_yield()
        return False

    def give_back(self):
        """Give one back that we hold."""
        claim_add(self.own, <uint64_t>-1)

    def set(self, uint64_t count):
        """Set our own count."""
        claim_store(self.own, count)

    @property
    def held(self):
        """The count of all workers together."""
        return self.total()
