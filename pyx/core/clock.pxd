# cython: language_level=3
"""The clock that message numbers come from: see the .pyx."""
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
    cdef public uint64_t us             # what the wall clock says in this tick, microseconds since 1970
    cdef readonly uint64_t last         # the last time given or heard
    cdef uint64_t told                  # up to where the cell has it
    cdef uint64_t* cell                 # the highest time that anybody on this host has given; borrowed from owner
    cdef object owner
    cdef uint64_t own                   # a cell for a worker that has no siblings

    cdef inline uint64_t next(self) noexcept:
        cdef uint64_t t = self.us
        if t <= self.last:
            t = self.last + 1
        self.last = t
        return t

    cdef inline void hear(self) noexcept:
        # after the bytes came that are about to be numbered: whoever sent them may have had an answer from anybody
        cdef uint64_t heard = clock_cell_load(self.cell)
        if heard > self.last:
            self.last = heard

    cdef inline void tell(self) noexcept:
        # before anything leaves this worker that a time given here is the cause of
        if self.last != self.told:
            clock_cell_raise(self.cell, self.last)
            self.told = self.last
