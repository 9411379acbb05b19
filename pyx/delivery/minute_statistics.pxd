# cython: language_level=3
"""Statistics of a minute: drops by session and reason, traffic by topic prefix.

Both are bounded: sessions and prefixes without room in the table are counted as "others". They are taken every minute
by `broker.persistence.recording`. With a bound of 0 no drops are counted, with 0 levels no traffic.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport DROPPED_EXPIRED, DROPPED_WORKER_LOST
from pyx.core.hashing cimport HashKey
from pyx.delivery.session cimport Session
from pyx.protocol.message cimport Content


cdef enum:
    REASONS = DROPPED_WORKER_LOST - DROPPED_EXPIRED + 1


cdef class Drops:
    """Dropped copies. A session with drops has REASONS counts of its own (`Session.drops`) until they are taken."""
    cdef list sessions
    cdef readonly uint32_t most
    cdef readonly uint64_t unlisted             # copies dropped for sessions without room in the table

    cdef int add(self, object session, int counter, uint64_t n) except -1


cdef struct Traffic:
    uint8_t* text                               # NULL: free
    uint32_t length
    uint64_t hash_
    uint64_t delivered
    uint64_t dropped


cdef class Prefixes:
    """Traffic by topic prefix, in an open table: linear probing, at most half full."""
    cdef readonly uint32_t levels               # number of levels of a prefix; 0: nothing is counted
    cdef readonly uint32_t most
    cdef readonly uint64_t unlisted             # messages counted as others
    cdef HashKey key
    cdef Traffic* table
    cdef uint32_t cap
    cdef uint32_t count
    cdef Traffic others

    cdef int add(self, const Content* c, uint64_t delivered, uint64_t dropped) except -1
    cdef int grow(self) except -1
