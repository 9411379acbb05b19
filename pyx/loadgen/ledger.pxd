# cython: language_level=3
"""Counts of a run of clients, and the check of messages that reach its subscribers. See ledger.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    # places of a row
    CONNECTED
    CONNECTIONS_REFUSED
    CONNECTIONS_LOST
    SUBSCRIBED
    SUBSCRIPTIONS_REFUSED
    SENT
    ACKNOWLEDGED
    PUBLISHES_REFUSED
    RECEIVED
    LOST
    REORDERED
    DUPLICATES
    CORRUPT
    FOREIGN                         # not of this run
    PROTOCOL_ERRORS
    BYTES_SENT
    BYTES_RECEIVED
    LATE_NOW                        # due, and held back by a window or a full socket

cdef enum:
    # histograms
    DELIVERY
    ACKNOWLEDGEMENT
    LATENESS
    CONNECT

cdef enum:
    UNKNOWN = 0xFFFFFFFF
    PAYLOAD_HEAD_BYTES = 16         # publisher, sequence, time
    CHECK_BYTES = 4
    AROUND_BYTES = 20               # both: the overhead of a payload's content


# The check word of a payload of `length` bytes.
cdef inline uint32_t check_of(uint32_t publisher, uint32_t sequence, uint64_t ns, uint32_t length) noexcept nogil:
    cdef uint64_t h = (<uint64_t>publisher << 32 | sequence) * <uint64_t>0x9E3779B97F4A7C15
    h ^= (ns + length) * <uint64_t>0xC2B2AE3D27D4EB4F
    return <uint32_t>(h ^ h >> 32)


cdef struct Heard:                  # the next sequences that a subscriber expects; the owner frees `nexts`
    uint32_t number                 # among the subscribers of the run, UNKNOWN = not a subscriber
    uint32_t only                   # the first publisher heard
    uint32_t only_next
    uint32_t* nexts                 # per publisher, when it hears several


cdef struct Kind:                   # of payload
    uint32_t size                   # including head and check
    const uint8_t* content          # between the two


cdef class Ledger:
    cdef uint64_t[::1] row_view, delivered_view, deliveries_view, sent_view
    cdef uint64_t* row
    cdef uint64_t* delivered
    cdef uint64_t* deliveries
    cdef uint64_t* sent
    cdef int processes
    cdef uint32_t publishers
    cdef list kept
    cdef const uint8_t** topics
    cdef uint32_t* topic_bytes
    cdef Kind* kinds
    cdef uint32_t kinds_count
    cdef uint32_t* rota             # kinds, in the order in which they are sent
    cdef uint32_t rota_count
    cdef uint8_t** seen             # for a share group: bits, per publisher
    cdef uint64_t* seen_bytes
    cdef bint pairs, group, strict
    cdef dict gaps                  # (subscriber, publisher) -> [[from, up to], ...], rising

    cdef inline uint32_t kind_of(self, uint32_t sequence) noexcept:
        return self.rota[sequence % self.rota_count] if self.rota_count > 1 else 0

    cdef void observe(self, int histogram, uint64_t ns) noexcept
    cdef int make_kinds(self, list payloads) except -1
    cdef void fill_payload(
        self, uint8_t* p, uint32_t which, uint32_t publisher, uint32_t sequence, uint64_t ns
    ) noexcept
    cdef int payload(
        self, Heard* heard, const uint8_t* topic, uint32_t topic_bytes, const uint8_t* p, uint32_t n, uint64_t now
    ) except -1
    cdef uint32_t* next_of(self, Heard* heard, uint32_t publisher) except NULL
    cdef int place(self, Heard* heard, uint32_t publisher, uint32_t sequence) except -1
    cdef int mark(self, uint32_t publisher, uint32_t sequence) except -1
    cdef int count_tail(self, Heard* heard) except -1


cdef void* zeroed(size_t count, size_t size) except NULL
cdef void* grown(void* p, size_t size) except NULL
