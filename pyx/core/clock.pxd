# cython: language_level=3
"""The clock of message numbers: see the .pyx."""
from libc.stdint cimport uint64_t


cdef extern from *:
    """
    static inline uint64_t clock_cell_load(const uint64_t *cell)
    {
        return __atomic_load_n(cell, __ATOMIC_ACQUIRE);
    }

    static inline void clock_cell_raise(uint64_t *cell, uint64_t to)
    {
        uint64_t seen = __atomic_load_n(cell, __ATOMIC_RELAXED);

        while (seen < to && !__atomic_compare_exchange_n(cell, &seen, to, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            ;
    }
    """
    uint64_t clock_cell_load(const uint64_t* cell) noexcept nogil
    void clock_cell_raise(uint64_t* cell, uint64_t to) noexcept nogil


cdef class Clock:
    cdef public uint64_t us             # wall clock of this tick, microseconds since 1970
    cdef readonly uint64_t last         # the last time given out or heard
    cdef uint64_t told                  # the last value written to the cell
    cdef uint64_t* cell                 # the highest time that a worker of this host has given out; borrowed from owner
    cdef object owner
    cdef uint64_t own                   # the cell of a worker without siblings

    cdef inline uint64_t next(self) noexcept:
        cdef uint64_t t = self.us
        if t <= self.last:
            t = self.last + 1
        self.last = t
        return t

    cdef inline void hear(self) noexcept:
        # call it after receiving the bytes to be numbered: their sender may have had an answer from any worker
        cdef uint64_t heard = clock_cell_load(self.cell)
        if heard > self.last:
            self.last = heard

    cdef inline void tell(self) noexcept:
        # call it before anything leaves this worker that depends on a time given out here
        if self.last != self.told:
            clock_cell_raise(self.cell, self.last)
            self.told = self.last
