"""The table of counters and drop reasons. A new counter is one line in counters.pxd."""
from ipaddress import IPv6Address

cimport cython
from libc.stdint cimport uint8_t
from libc.string cimport memset
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE, PyBUF_WRITABLE

ROW_BYTES = 8192

#: names of the histograms, in order, and the upper bounds of their buckets in ns; one more bucket has no bound
HISTOGRAMS = ("publish_duration", "delivery_duration", "match_duration")
BOUNDS_NS = (
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 25_000_000, 50_000_000, 100_000_000, 250_000_000, 500_000_000,
    1_000_000_000, 2_500_000_000,
)
#: names of a link's places, in order: those that only rise, gauges
LINK_TOTALS = ("batches", "messages", "bytes", "resent", "qos0_dropped")
LINK_GAUGES = ("unacknowledged", "oldest_ms", "outbox_bytes")

#: names of a listener's places, in order
LISTENER_NAMES = ("connections_accepted", "connections")

#: counters that a store keeps with each commit, in order; new ones only at the end
#: (leveldb_store.format.persisted_counters.FIELDS)
KEPT = (
    "retained_messages", "publish_received", "publish_received_qos1", "publish_received_qos2", "publish_duplicates",
    "publish_refused", "publish_unmatched", "retained_refused", "matched", "delivered_qos0", "delivered_qos1",
    "delivered_qos2", "dropped_expired", "dropped_offline_qos0", "dropped_outbox_full", "dropped_connection_closed",
    "dropped_queue_full", "dropped_packet_too_large", "dropped_unsubscribed", "dropped_session_ended",
    "dropped_refused", "dropped_peer_lost", "dropped_no_member", "dropped_worker_lost",
    "dropped_overtaken",
)

# packets that a note distinguishes
_SLOW_PACKETS = {1: "CONNECT", 8: "SUBSCRIBE", 10: "UNSUBSCRIBE", 14: "DISCONNECT", 15: "AUTH"}

cdef enum:
    BOUNDS = 20
    KEPT_FORMAT = 1
    KEPT_MAX = 64

cdef uint64_t[BOUNDS] bounds_ns
for _place, _bound in enumerate(BOUNDS_NS):
    bounds_ns[_place] = _bound


_by_value = None


def names():
    """Return the counters' names in the order of the table (the constants are attributes of this module once it is
    imported)."""
    global _by_value
    if _by_value is None:
        table = {value: name for name, value in globals().items() if name.isupper() and type(value) is int}
        _by_value = tuple(table[i].lower() for i in range(COUNTERS_END))
    return _by_value


def __getattr__(name):
    if name == "NAMES":
        return names()
    raise AttributeError(name)


def _check_layout():
    cdef int counters = COUNTERS_END, histograms = HISTOGRAMS_END, totals = LINK_UNACKNOWLEDGED, link = LINK_PLACES_END
    cdef int links_at = LINKS_AT, places = PLACES, listener = LISTENER_PLACES_END
    if counters > LISTENERS_AT or LISTENERS_AT + LISTENERS_MAX * LISTENER_PLACES > CLAIMS_AT \
            or NOTE_AT + NOTE_PLACES > HISTOGRAMS_AT \
            or HISTOGRAMS_AT + HISTOGRAMS_MAX * HISTOGRAM_PLACES > links_at \
            or links_at + LINKS_MAX * LINK_PLACES > places or places * sizeof(uint64_t) != ROW_BYTES:
        raise ImportError("the parts of a counter row do not fit")
    if histograms > HISTOGRAMS_MAX or len(HISTOGRAMS) != histograms or len(BOUNDS_NS) != BOUNDS \
            or BOUNDS + 2 > HISTOGRAM_PLACES or link > LINK_PLACES or len(LINK_TOTALS) != totals \
            or len(LINK_TOTALS + LINK_GAUGES) != link \
            or listener != LISTENER_PLACES or len(LISTENER_NAMES) != listener:
        raise ImportError("a part of a counter row and its names do not fit")


_check_layout()

cdef int[KEPT_MAX] kept_places
cdef int kept_count = 0


cdef int _find_kept() except -1:
    # called once the names exist
    global kept_count
    for name in KEPT:
        kept_places[kept_count] = names().index(name)
        kept_count += 1
    return 0


cdef inline int put_varint(uint8_t* out, int at, uint64_t value) noexcept nogil:
    while value >= 0x80:
        out[at] = <uint8_t>(value | 0x80)
        value >>= 7
        at += 1
    out[at] = <uint8_t>value
    return at + 1


cdef int observe(uint64_t* row, Histogram which, uint64_t ns) noexcept nogil:
    cdef uint64_t* at = row + <int>HISTOGRAMS_AT + <int>which * <int>HISTOGRAM_PLACES
    cdef int i = 0
    while i < BOUNDS and ns > bounds_ns[i]:
        i += 1
    at[0] += ns
    at[1 + i] += 1
    return 0


def is_gauge(int counter):
    """Return whether a counter is a gauge: an amount of a living worker, not a count of events."""
    return INCARNATION <= counter < CONNECTIONS_ACCEPTED


def settle_row(row):
    """Settle the row of a dead worker; for the supervisor. Its connections are closed, its gauges read 0, and the
    copies in its memory are dropped: matched - (delivered + dropped) is counted as `worker_lost`. Returns their
    number."""
    cdef Row r = Row(row)
    cdef uint64_t settled = 0, lost = 0
    cdef int i, k, gauges = LINK_UNACKNOWLEDGED, end = LINK_PLACES_END
    for i, name in enumerate(names()):
        if name.startswith(("dropped_", "delivered_")):
            settled += r.at[i]
    if r.at[MATCHED] > settled:             # less: it was killed between two steps of one copy
        lost = r.at[MATCHED] - settled
    r.at[DROPPED_WORKER_LOST] += lost
    r.at[CONNECTIONS_CLOSED] = r.at[CONNECTIONS_OPENED]
    for i in range(INCARNATION, CONNECTIONS_ACCEPTED):
        r.at[i] = 0
    for i in range(LISTENERS_MAX):
        r.at[LISTENERS_AT + i * LISTENER_PLACES + LISTENER_CONNECTIONS] = 0
    r.at[CLAIMS_AT] = 0                     # its connections; its sessions may be in its store
    note_nothing(r.at)
    for i in range(LINKS_MAX):
        for k in range(gauges, end):
            r.at[LINKS_AT + i * LINK_PLACES + k] = 0
    return lost


def in_hand(row):
    """Return (client id or address, packet) that a dead worker was processing, from its row; None: nothing of a
    client's. For the supervisor, before `settle_row`."""
    cdef Row r = Row(row)
    cdef uint64_t noted = r.at[NOTE_AT]
    cdef uint8_t kind = noted >> 8 & 0xFF
    cdef Py_ssize_t n = min(noted >> 16 & 0xFFFF, (NOTE_PLACES - 1) * sizeof(uint64_t))
    cdef bytes text = PyBytes_FromStringAndSize(<const char*>(r.at + NOTE_AT + 1), n)
    if noted == 0:
        return None
    if kind == 4:
        who = ".".join(map(str, text[:4]))
    elif kind == 6:
        who = str(IPv6Address(text[:16]))
    else:
        who = text.decode("utf-8", "replace")
    return who, _SLOW_PACKETS.get(noted & 0xFF, "PUBLISH or an ack")


@cython.final
cdef class Row:
    """A row of uint64 counters. ``Row()`` owns its memory; ``Row(buffer)`` writes into `buffer` (at least ROW_BYTES
    long)."""

    def __cinit__(self, buffer=None):
        cdef Py_buffer view
        memset(self.own, 0, sizeof(self.own))
        self.at = self.own
        self.owner = None
        if buffer is not None:
            PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
            if view.len < ROW_BYTES:
                PyBuffer_Release(&view)
                raise ValueError("counter row too short")
            self.at = <uint64_t*>view.buf
            self.owner = buffer             # keeps the mapping; the export itself may end
            PyBuffer_Release(&view)

    def __getitem__(self, str name):
        return self.at[names().index(name)]

    def get(self, int counter):
        """Return the value at an index of the table."""
        if not 0 <= counter < COUNTERS_END:
            raise IndexError(counter)
        return self.at[counter]

    def set(self, int counter, uint64_t value):
        """Set a gauge."""
        if not 0 <= counter < COUNTERS_END:
            raise IndexError(counter)
        self.at[counter] = value

    def add(self, int counter, uint64_t n=1):
        """Add to a counter."""
        if not 0 <= counter < COUNTERS_END:
            raise IndexError(counter)
        self.at[counter] += n

    def link(self, int peer):
        """Return the places of the link to a worker, in the order of LINK_TOTALS and LINK_GAUGES."""
        cdef int i, end = LINK_PLACES_END
        if not 0 <= peer < LINKS_MAX:
            raise IndexError(peer)
        return [self.at[LINKS_AT + peer * LINK_PLACES + i] for i in range(end)]

    def set_link(self, int peer, values):
        """Set all places of the link to a worker."""
        cdef int i, end = LINK_PLACES_END
        if not 0 <= peer < LINKS_MAX or len(values) != end:
            raise IndexError(peer)
        for i in range(end):
            self.at[LINKS_AT + peer * LINK_PLACES + i] = values[i]

    def listener(self, int index):
        """Return the places of a listener, in the order of LISTENER_NAMES."""
        cdef int i, end = LISTENER_PLACES_END
        if not 0 <= index < LISTENERS_MAX:
            raise IndexError(index)
        return [self.at[LISTENERS_AT + index * LISTENER_PLACES + i] for i in range(end)]

    def histogram(self, int which):
        """Return (sum in ns, samples per bucket: of each of BOUNDS_NS, then of those above)."""
        cdef uint64_t* at = self.at + <int>HISTOGRAMS_AT + which * HISTOGRAM_PLACES
        if not 0 <= which < <int>HISTOGRAMS_END:
            raise IndexError(which)
        return at[0], [at[1 + i] for i in range(BOUNDS + 1)]

    def observe(self, int which, uint64_t ns):
        """Add a sample to a histogram."""
        if not 0 <= which < <int>HISTOGRAMS_END:
            raise IndexError(which)
        observe(self.at, <Histogram>which, ns)

    def kept(self, uint64_t time_ms, uint64_t position, uint64_t number, uint64_t sessions):
        """Return what a store keeps of it with each commit (leveldb_store.format.persisted_counters): the arguments,
        then the KEPT counters, as varints.
        """
        cdef uint8_t[10 * KEPT_MAX] out
        cdef int at = 1, i
        if kept_count == 0:
            _find_kept()
        out[0] = KEPT_FORMAT
        at = put_varint(out, at, time_ms)
        at = put_varint(out, at, position)
        at = put_varint(out, at, number)
        at = put_varint(out, at, sessions)
        for i in range(kept_count):
            at = put_varint(out, at, self.at[kept_places[i]])
        return PyBytes_FromStringAndSize(<char*>out, at)

    def as_dict(self):
        """Return name -> value of every counter."""
        return {name: self.at[i] for i, name in enumerate(names())}
