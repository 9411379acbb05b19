# cython: language_level=3
"""What is counted for a minute and then told: drops by session and reason, traffic by topic prefix.

Both are bounded: what has no room in the table is counted for "others". `broker.persistence.recording` takes them every
minute. With a bound of 0 no drops are counted, with 0 levels no traffic.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.counters cimport DROPPED_EXPIRED, DROPPED_WORKER_LOST
from pyx.core.hashing cimport HashKey
from pyx.delivery.session cimport Session
from pyx.protocol.message cimport Content


cdef enum:
    REASONS = DROPPED_WORKER_LOST - DROPPED_EXPIRED + 1


cdef class Drops:
    """A session with drops points at REASONS counts of its own (`Session.drops`) until they are taken."""
    cdef list sessions
    cdef readonly uint32_t most
    cdef readonly uint64_t unlisted             # copies dropped for sessions that the table has no room for

    cdef int add(self, object session, int counter, uint64_t n) except -1


cdef struct Traffic:
    uint8_t* text                               # NULL: free
    uint32_t length
    uint64_t hash_
    uint64_t delivered
    uint64_t dropped


cdef class Prefixes:
    """An open table: linear probing, at most half full."""
    cdef readonly uint32_t levels               # of a topic that make its prefix; 0: nothing is counted
    cdef readonly uint32_t most
    cdef readonly uint64_t unlisted             # messages counted for others
    cdef HashKey key
    cdef Traffic* table
    cdef uint32_t cap
    cdef uint32_t count
    cdef Traffic others

    cdef int add(self, const Content* c, uint64_t delivered, uint64_t dropped) except -1
    cdef int grow(self) except -1
