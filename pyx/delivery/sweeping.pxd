# cython: language_level=3
"""Sweeping of the log: see the .pyx."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.limits cimport Limits
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.journal cimport Journal
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session
from pyx.delivery.sweep cimport Sweep
from pyx.delivery.windows cimport Windows
from pyx.matching.filters cimport Filter
from pyx.matching.subscriptions cimport Subscriptions
from pyx.storage.records cimport LogKey


cdef class Sweeping:
    cdef RouterState state
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef Journal journal
    cdef Windows windows
    cdef BackPressure back_pressure
    cdef Bounding bounding

    cdef Sweep swept_now            # the sweep of an index that is too much for one slice, or None
    cdef bint sweeping
    cdef bint sweeps_all            # also indexes that rest
    cdef uint64_t sweeps            # the number of sweeps so far
    cdef uint32_t sweep_at          # index in `keys`, walked downwards: those from here on are done
    cdef uint32_t restored_left     # the number of restored indexes still to be swept

    cdef int go_on(self) except -1
    cdef int sweep_on(self) except -1
    cdef int sweep_grown(self, list keys) except -1
    cdef int sweep_key(self, LogKey key) except -1
    cdef uint64_t wanted(self, Session s, set spans) except? 0xFFFFFFFFFFFFFFFF
    cdef int find_askers(self, Sweep w, Filter* f) except -1
    cdef int consider(self, Sweep w, Session s, uint32_t slot, uint8_t options) except -1
    cdef int consider_some(self, Sweep w, Filter* f) except -1
    cdef bint sweep_some(self, Sweep w) except -1              # True: finished
    cdef int ask(self, Sweep w, Session s, bint reads) except -1
    cdef int gather_run(self, Sweep w) except -1
    cdef bint drop_unwanted(self, Sweep w) except -1           # True: finished
