# cython: language_level=3
"""Mesh entries as bytes: see the .pyx."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.protocol.message cimport Content


cdef enum EntryFlags:
    ENTRY_QOS = 0x03
    ENTRY_RETAIN = 0x04
    ENTRY_EXPIRES = 0x08
    ENTRY_SHARED = 0x10
    ENTRY_OWN_FRAME = 0x20
    ENTRY_RETAINED_ONLY = 0x40
    ENTRY_CONTROL = 0x80            # no PUBLISH: a kind and a payload for the sibling's broker


cdef struct Entry:
    Content content
    const uint8_t* group            # "group/filter" for which this worker was chosen, NULL = none
    uint64_t key                    # for the strategies hash_topic and hash_client
    uint32_t group_len
    uint8_t insist                  # queue it here even if no member is online
    uint8_t flags


cdef struct Choice:                 # of a worker for a share group, as it is in an entry
    const uint8_t* group            # "group/filter"
    uint64_t key
    uint32_t group_len              # less than 65,536
    uint8_t insist


cdef class Packed:
    """A growing buffer of mesh entries, passed on as a whole: exposes the buffer protocol, no copy."""
    cdef uint8_t* at
    cdef uint32_t size
    cdef uint32_t cap
    cdef uint32_t entries
    cdef uint8_t* room(self, uint32_t n) except NULL
    # choice: NULL = the entry is for no share group
    cdef int entry(self, const Content* c, uint8_t flags, const Choice* choice) except -1


# reads the next entry of a mesh batch; returns its length in bytes, raises ValueError if it is damaged
cdef int64_t read_entry(const uint8_t* p, size_t n, Entry* out) except -1
# returns the number of entries of a part, an object with the buffer protocol; raises ValueError if it is damaged
cpdef int64_t count_entries(object part) except -1
