# cython: language_level=3
from libc.stdint cimport uint32_t, uint64_t
from pyx.protocol.message cimport Message


cdef class LogKey:
    """The name of a log index, with the current tick's additions to it. Filter.index points here."""
    cdef readonly bytes name
    cdef uint32_t place             # in the router's list
    cdef uint32_t* records          # indexes into the block
    cdef uint32_t count
    cdef uint32_t cap
    cdef uint64_t grown             # messages since the last sweep
    cdef uint64_t grown_bytes
    cdef bint rests                 # store on disk: nothing that a sweep examines has changed since the last one
    cdef bint restored              # it existed at the start, and was not swept yet


cdef class Batch:
    """Messages with their arrival positions, rising."""
    cdef uint64_t* positions
    cdef list messages
    cdef readonly uint32_t count
    cdef readonly bint truncated    # more follows the last one


cdef struct IndexPart:                   # an index's part of a block that is appended in pieces
    uint32_t* records               # owned
    uint32_t count


cdef class Block:
    """The records of one tick, which the store appends."""
    cdef readonly uint64_t first    # arrival position of the first record; the others follow without gap
    cdef readonly uint64_t bytes
    cdef list messages
    cdef list keys                  # LogKeys with records
    cdef IndexPart* parts                 # by key, once it is sealed; else NULL
    cdef uint32_t part_count
    cdef readonly uint32_t taken    # number of these already returned

    cdef int seal(self) except -1   # prepares appending it in pieces: the keys are ready for the next block
    cdef Batch batch_of(self, const uint32_t* records, uint32_t n)
    cdef uint32_t add(self, Message m) except? 0xFFFFFFFF
    cdef int index(self, LogKey key, uint32_t record) except -1


cdef class Index:
    """A log index held in memory: positions and messages, appended at one end and trimmed at the other."""
    cdef uint64_t* positions
    cdef uint64_t* ends             # running bytes up to and including that entry
    cdef list messages
    cdef uint32_t head
    cdef uint32_t tail
    cdef uint32_t cap
    cdef readonly uint64_t total_bytes

    cdef uint32_t first_after(self, uint64_t position) noexcept


cdef Batch merge_batches(list batches)
cdef bint lies_within(list spans, uint64_t position) except -1
