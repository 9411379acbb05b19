"""Counts of a run of clients, and the check of every delivery: lost, reordered, duplicated, damaged.

    payload     u32 publisher | u32 sequence, from 0 | u64 ns, CLOCK_MONOTONIC: when it was due | content | u32 check

All little-endian, 20 bytes at least. The check word depends on the other numbers and on the length; the content is
known (letters, or a file's), so a damaged byte is detected wherever it is. Latency counts from the time at which a
message was *scheduled*: a broker that makes its publishers wait cannot hide it (G. Tene's "coordinated omission").

Sequences per subscriber and publisher: a higher one than expected leaves a gap (lost), a lower one either fills one
(reordered, not lost) or was there already (duplicate). In a share group each message must reach one member: each
process notes a bit for each sequence seen, and the starter of the processes joins them.

Histograms have 64 steps per power of two (1.6 %), as in HdrHistogram.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

from pyx.core.little_endian cimport get32, get64, put32, put64

cdef extern from *:
    int __builtin_clzll(unsigned long long) noexcept nogil

cdef enum:
    PLACES = 2368                   # of a histogram: 64 + 36 * 64, up to 2 ** 42 ns, an hour
    FIRST_HISTOGRAM = 32

#: The places of a row, in order; after them the histograms.
FIGURES = (
    "connected", "connections_refused", "connections_lost", "subscribed", "subscriptions_refused",
    "sent", "acknowledged", "publishes_refused", "received", "lost", "reordered", "duplicates", "corrupt", "foreign",
    "protocol_errors", "bytes_sent", "bytes_received", "late_now",
)
HISTOGRAMS = ("delivery", "acknowledgement", "lateness", "connect")
HISTOGRAM_FIRST = FIRST_HISTOGRAM
HISTOGRAM_PLACES = PLACES
ROW_PLACES = FIRST_HISTOGRAM + 4 * PLACES
PAYLOAD_BYTES_MIN = AROUND_BYTES


def place_value(int place):
    """Return the lowest duration, in ns, that is counted at this place of a histogram."""
    if place < 128:
        return place
    return <uint64_t>(64 + place % 64) << (place // 64 - 1)


cdef class Ledger:
    """The figures of one process, and the state of its subscribers.

    row: ROW_PLACES numbers of 64 bits, in memory that the processes share: FIGURES, then HISTOGRAMS. delivered: one
    number per publisher of the run, written only here; `deliveries`: those of all processes, one after the other.
    sent: one number per publisher, each written by its process. topics: bytes, of each publisher. payloads:
    in turn; a total size in bytes, at least PAYLOAD_BYTES_MIN, or the content between head and check. pairs:
    subscriber i only hears publisher i. group: the subscribers share. strict: every message is of this run, and was
    subscribed to before the run began.
    """

    def __cinit__(
        self, uint64_t[::1] row not None, uint64_t[::1] delivered not None, uint64_t[::1] deliveries not None,
        uint64_t[::1] sent not None, list topics not None, list payloads not None, *,
        bint pairs, bint group, bint strict, **_,
    ):
        cdef uint32_t i
        cdef bytes topic
        self.publishers = <uint32_t>len(topics)
        if len(row) < ROW_PLACES or min(len(delivered), len(sent)) < len(topics) or not topics or not payloads:
            raise ValueError("too few places, no publisher, or no payload")
        self.row_view, self.delivered_view, self.deliveries_view, self.sent_view = row, delivered, deliveries, sent
        self.row, self.delivered, self.deliveries, self.sent = &row[0], &delivered[0], &deliveries[0], &sent[0]
        self.processes = <int>(len(deliveries) // len(delivered))
        self.pairs, self.group, self.strict = pairs, group, strict
        self.kept = [topics]
        self.topics = <const uint8_t**>zeroed(self.publishers, sizeof(void*))
        self.topic_bytes = <uint32_t*>zeroed(self.publishers, sizeof(uint32_t))
        for i in range(self.publishers):
            topic = topics[i]
            self.topics[i] = <const uint8_t*><const char*>topic
            self.topic_bytes[i] = <uint32_t>len(topic)
        self.make_kinds(payloads)
        self.seen = <uint8_t**>zeroed(self.publishers, sizeof(void*))
        self.seen_bytes = <uint64_t*>zeroed(self.publishers, sizeof(uint64_t))
        self.gaps = {}

    def __dealloc__(self):
        cdef uint32_t i
        if self.seen != NULL:
            for i in range(self.publishers):
                free(self.seen[i])
        free(self.seen)
        free(self.seen_bytes)
        free(self.topics)
        free(self.topic_bytes)
        free(self.kinds)
        free(self.rota)

    cdef int make_kinds(self, list payloads) except -1:
        cdef list kinds = list(dict.fromkeys(payloads))
        cdef dict numbers = {kind: i for i, kind in enumerate(kinds)}
        cdef uint32_t i, most = max([each for each in kinds if isinstance(each, int)], default=0)
        cdef bytes content, letters = bytes(range(0x61, 0x7B)) * (most // 26 + 1)
        self.kinds_count, self.rota_count = <uint32_t>len(kinds), <uint32_t>len(payloads)
        self.kinds = <Kind*>zeroed(self.kinds_count, sizeof(Kind))
        self.rota = <uint32_t*>zeroed(self.rota_count, sizeof(uint32_t))
        for i in range(self.kinds_count):
            if isinstance(kinds[i], int):
                content, self.kinds[i].size = letters, kinds[i]
            else:
                content, self.kinds[i].size = kinds[i], <uint32_t>(len(kinds[i]) + AROUND_BYTES)
            if self.kinds[i].size < AROUND_BYTES:
                raise ValueError(f"a payload has {AROUND_BYTES} bytes at least")
            self.kinds[i].content = <const uint8_t*><const char*>content
        for i in range(self.rota_count):
            self.rota[i] = numbers[payloads[i]]
        self.kept += [letters, kinds]       # the pointers' owners
        return 0

    cdef void observe(self, int histogram, uint64_t ns) noexcept:
        cdef int e = 0
        if ns >= 128:
            e = 57 - __builtin_clzll(ns)
            if e > 35:
                e, ns = 35, <uint64_t>127 << 35
        self.row[FIRST_HISTOGRAM + histogram * PLACES + (e << 6) + (ns >> e)] += 1

    # ------------------------------------------------------------ a payload

    cdef void fill_payload(
        self, uint8_t* p, uint32_t which, uint32_t publisher, uint32_t sequence, uint64_t ns
    ) noexcept:
        cdef uint32_t size = self.kinds[which].size
        put64(put32(put32(p, publisher), sequence), ns)
        memcpy(p + PAYLOAD_HEAD_BYTES, self.kinds[which].content, size - AROUND_BYTES)
        put32(p + size - CHECK_BYTES, check_of(publisher, sequence, ns, size))

    cdef int payload(
        self, Heard* heard, const uint8_t* topic, uint32_t topic_bytes, const uint8_t* p, uint32_t n, uint64_t now
    ) except -1:
        # one that reached a subscriber
        cdef uint32_t publisher, sequence
        cdef uint64_t ns
        cdef Kind* kind
        self.row[RECEIVED] += 1
        publisher = get32(p) if n >= 4 else UNKNOWN
        if n < AROUND_BYTES or publisher >= self.publishers:
            self.row[CORRUPT if self.strict else FOREIGN] += 1
            return 0
        sequence, ns = get32(p + 4), get64(p + 8)
        if get32(p + n - CHECK_BYTES) != check_of(publisher, sequence, ns, n):
            self.row[CORRUPT if self.strict else FOREIGN] += 1
            return 0
        kind = &self.kinds[self.kind_of(sequence)]
        if (
            topic_bytes != self.topic_bytes[publisher] or memcmp(topic, self.topics[publisher], topic_bytes) != 0
            or self.pairs and publisher != heard.number
            or n != kind.size and self.strict
            # of another run, and of another length than configured here: its content is not known
            or n == kind.size and memcmp(p + PAYLOAD_HEAD_BYTES, kind.content, n - AROUND_BYTES) != 0
        ):
            self.row[CORRUPT] += 1
            return 0
        self.observe(DELIVERY, now - ns if now > ns else 0)
        self.delivered[publisher] += 1
        if self.group:
            return self.mark(publisher, sequence)
        return self.place(heard, publisher, sequence)

    # ------------------------------------------------------------ gaps, order, duplicates

    cdef uint32_t* next_of(self, Heard* heard, uint32_t publisher) except NULL:
        cdef uint32_t i, first = 0 if self.strict else UNKNOWN
        if heard.only == publisher:
            return &heard.only_next
        if heard.only == UNKNOWN:
            heard.only = publisher
            heard.only_next = first
            return &heard.only_next
        if heard.nexts == NULL:
            heard.nexts = <uint32_t*>zeroed(self.publishers, sizeof(uint32_t))
            for i in range(self.publishers):
                heard.nexts[i] = first
        return &heard.nexts[publisher]

    cdef int place(self, Heard* heard, uint32_t publisher, uint32_t sequence) except -1:
        cdef uint32_t* expected = self.next_of(heard, publisher)
        if sequence == expected[0]:
            expected[0] += 1
            return 0
        if expected[0] == UNKNOWN:          # it subscribed while others published: its sequence begins here
            expected[0] = sequence + 1
            return 0
        if sequence > expected[0]:
            self.row[LOST] += sequence - expected[0]
            self.gaps.setdefault((heard.number, publisher), []).append([expected[0], sequence])
            expected[0] = sequence + 1
            return 0
        if self.was_missing(heard.number, publisher, sequence):
            self.row[LOST] -= 1
            self.row[REORDERED] += 1
        else:
            self.row[DUPLICATES] += 1
        return 0

    def was_missing(self, uint32_t number, uint32_t publisher, uint32_t sequence):
        """Return whether this message was in a gap of that subscriber; it is not missing any more."""
        gaps = self.gaps.get((number, publisher), [])
        for i, (first, end) in enumerate(gaps):
            if first <= sequence < end:
                gaps[i:i + 1] = [each for each in ([first, sequence], [sequence + 1, end]) if each[0] < each[1]]
                return True
        return False

    cdef int mark(self, uint32_t publisher, uint32_t sequence) except -1:
        cdef uint64_t at = sequence >> 3, size = self.seen_bytes[publisher]
        cdef uint8_t bit = <uint8_t>(1 << (sequence & 7))
        if at >= size:
            size = max(size * 2, at + 1, <uint64_t>64)
            self.seen[publisher] = <uint8_t*>grown(self.seen[publisher], size)
            while self.seen_bytes[publisher] < size:
                self.seen[publisher][self.seen_bytes[publisher]] = 0
                self.seen_bytes[publisher] += 1
        if self.seen[publisher][at] & bit:
            self.row[DUPLICATES] += 1
        self.seen[publisher][at] |= bit
        return 0

    def seen_of(self, uint32_t publisher):
        """Return a publisher's sequences that have reached a share group's members here: a bit each, lowest first."""
        return PyBytes_FromStringAndSize(<char*>self.seen[publisher], <Py_ssize_t>self.seen_bytes[publisher])

    cdef int count_tail(self, Heard* heard) except -1:
        # once all is over: messages sent after the last one received are lost, too
        cdef uint32_t k, known
        if not self.strict or self.group or heard.number == UNKNOWN:
            return 0
        for k in range(heard.number if self.pairs else 0, heard.number + 1 if self.pairs else self.publishers):
            known = heard.only_next if heard.only == k else heard.nexts[k] if heard.nexts != NULL else 0
            if self.sent[k] > known:
                self.row[LOST] += self.sent[k] - known
        return 0


cdef void* zeroed(size_t count, size_t size) except NULL:
    cdef void* p = calloc(count if count else 1, size)
    if p == NULL:
        raise MemoryError
    return p


cdef void* grown(void* p, size_t size) except NULL:
    cdef void* q = realloc(p, size)
    if q == NULL:
        raise MemoryError
    return q
