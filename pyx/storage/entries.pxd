# cython: language_level=3
"""Mesh entries: see the .pyx."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.protocol.message cimport Content


cdef enum EntryFlags:
    ENTRY_QOS = 0x03
    ENTRY_RETAIN = 0x04
    ENTRY_EXPIRES = 0x08
    ENTRY_SHARED = 0x10
    ENTRY_OWN_FRAME = 0x20
    ENTRY_RETAINED_ONLY = 0x40
    ENTRY_CONTROL = 0x80            # not a message: kind and payload for the sibling's broker


cdef struct Entry:
    Content content
    const uint8_t* group            # "group/filter" for which this worker was chosen, NULL = for none
    uint64_t key                    # of the strategies hash_topic and hash_client
    uint32_t group_len
    uint8_t insist                  # it must be queued here when no member is online
    uint8_t flags


cdef struct Choice:                 # of a worker, for a share group: what an entry says of it
    const uint8_t* group            # "group/filter"
    uint64_t key
    uint32_t group_len              # less than 65,536
    uint8_t insist


cdef class Packed:
    """A growing buffer that is given away whole: exposes the buffer protocol, no copy."""
    cdef uint8_t* at
    cdef uint32_t size
    cdef uint32_t cap
    cdef uint32_t entries
    cdef uint8_t* room(self, uint32_t n) except NULL
    # choice: NULL = the entry is for no share group
    cdef int entry(self, const Content* c, uint8_t flags, const Choice* choice) except -1


# next entry of a mesh batch; returns the bytes it took, raises ValueError for a damaged one
cdef int64_t read_entry(const uint8_t* p, size_t n, Entry* out) except -1
