"""Restores the stored state of a session after a start: its window, and the messages queued for it.

`pyx.delivery.windows` says what is stored, and writes it. The session has its subscriptions again, and no connection
yet. Records of both versions are read.
"""
cimport cython
from cpython.ref cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core cimport counters as count
from pyx.core.little_endian cimport get16, get32, get64
from pyx.delivery.journal cimport Journal
from pyx.delivery.router_state cimport RouterState, find_expiry
from pyx.delivery.session cimport Inflight, RETAINED_COPY, Session, WAIT_PUBACK, WAIT_PUBCOMP, WAIT_PUBREC
from pyx.delivery.windows cimport (
    FORM_2, HEAD_BYTES, OF_ITS_OWN, OUT_BYTES, OWN_RECORD, QUEUED_HEAD_BYTES, WINDOW_2_BIT, Windows,
)
from pyx.matching.subscriptions cimport Membership
from pyx.protocol.message cimport Message, message_copy
from pyx.storage.entries cimport ENTRY_EXPIRES, Entry, read_entry
from pyx.storage.records cimport LogKey


cdef enum:
    HEAD_1_BYTES = 14           # of a window of version 1: a u64 with its highest bit 0, and no flags
    QUEUED_HEAD_1_BYTES = 7     # of version 1: the last is a u16, as is the publisher's length
    NO_PUBLISHER_1 = 0xFFFF


def window_positions(bytes window not None):
    """Return the log positions of the messages in flight in a record of family V that is complete: its pages have been
    merged into it (leveldb_store.format.windows). ValueError: it is damaged, or refers to pages."""
    cdef const uint8_t* p = <const uint8_t*><const char*>window
    cdef const uint8_t* end = p + len(window)
    cdef uint32_t count_out, count_in
    cdef uint8_t qos
    cdef bint is_new = len(window) >= 8 and get64(p) >> WINDOW_2_BIT != 0
    cdef list positions = []
    cdef set seen = set()
    if len(window) < (HEAD_BYTES if is_new else HEAD_1_BYTES):
        raise ValueError("a window is cut off")
    p += 10
    if is_new:
        if p[0]:
            raise ValueError("a window has pages that are not here")
        p += 1
    count_out = get16(p)
    count_in = get16(p + 2)
    p += 4
    if end - p < <int64_t>count_out * OUT_BYTES + 2 * <int64_t>count_in + 8:
        raise ValueError("a window is cut off")
    for _ in range(count_out):
        qos = p[2] & 3
        if not (qos == 1 and p[3] == WAIT_PUBACK or qos == 2 and (p[3] == WAIT_PUBREC or p[3] == WAIT_PUBCOMP)):
            raise ValueError("a window has a message in no state")
        seen.add(get16(p))
        if not p[2] & OWN_RECORD and p[3] != WAIT_PUBCOMP:
            positions.append(get64(p + 4))
        p += OUT_BYTES
    if len(seen) != count_out or 0 in seen:
        raise ValueError("a window has a Packet Identifier twice, or 0")
    p += 2 * count_in + 8
    for _ in range(2):
        if end - p < 2 or end - p < 2 + 16 * <int64_t>get16(p):
            raise ValueError("a window is cut off")
        p += 2 + 16 * get16(p)
    if is_new:
        if p != end:
            raise ValueError("a window is damaged")
        return positions
    # version 1 has here the beginnings of subscriptions made while behind: their own records have them as well
    if end - p < 2:
        raise ValueError("a window is cut off")
    count_in = get16(p)
    p += 2
    for _ in range(count_in):
        if end - p < 2 or end - p < 10 + <int64_t>get16(p):
            raise ValueError("a window is cut off")
        p += 10 + get16(p)
    return positions


def unpack_message(bytes value not None):
    """Return the message of a record of family J. ValueError: it is damaged."""
    return unpack_queued(b"\x80" + b"\0" * (QUEUED_HEAD_BYTES - 1) + value)[3]


def unpack_queued(bytes value not None):
    """Return (flags, origin, Subscription Identifiers or None, message) of a record of family Q, of either version,
    that contains its message. ValueError: it is damaged."""
    cdef const uint8_t* p = <const uint8_t*><const char*>value
    cdef size_t n = len(value), at, head = QUEUED_HEAD_BYTES if n and p[0] & FORM_2 else QUEUED_HEAD_1_BYTES
    cdef bint is_new = head == QUEUED_HEAD_BYTES
    cdef uint64_t ids, length
    cdef Entry e
    cdef Message m
    if n < head:
        raise ValueError("a queued message is cut off")
    if is_new and p[0] & OF_ITS_OWN:
        raise ValueError("a queued message has its message in another record, or is damaged")
    ids = get32(p + 5) if is_new else get16(p + 5)
    if head + ids > n:
        raise ValueError("a queued message is cut off")
    at = head + ids
    at += read_entry(p + at, n - at, &e)
    if n - at < (4 if is_new else 2):
        raise ValueError("a queued message is cut off")
    if e.flags & ENTRY_EXPIRES:
        e.content.expiry_offset = find_expiry(&e.content)
    m = message_copy(&e.content, None)
    if is_new:
        length = get32(p + at)
        at += 4
        if length:
            length -= 1
            m.publisher = value[at:].decode("utf-8", "surrogatepass")
    else:
        length = get16(p + at)
        at += 2
        if length != NO_PUBLISHER_1 or at < n:
            m.publisher = value[at:].decode("utf-8", "surrogatepass")
        else:
            length = 0
    if n - at != length or p[0] & 3 == 3:
        raise ValueError("a queued message is damaged")
    return p[0] & ~FORM_2, get32(p + 1), value[head:head + ids] if ids else None, m


@cython.final
cdef class Restoring:
    """Restores sessions from their records."""

    def __cinit__(self, RouterState state not None, Journal journal not None, Windows windows not None):
        self.state = state
        self.counters = state.counters
        self.journal = journal
        self.windows = windows

    def restore(self, Session s not None, bytes window, dict queued not None, dict messages not None):
        """Restore a stored session: its messages in flight, the Packet Identifiers of both directions, and its position
        in the log. It has its subscriptions again, and no connection. `window`: its record of family V; None: there is
        none, and it has been sent everything. `queued`: {number: `unpack_queued`} of its records of family Q, rising;
        messages in flight are removed from it. `messages`: {position: message} for `window_positions`. ValueError: the
        window is damaged, and nothing was changed."""
        cdef uint32_t i
        cdef Membership* e
        cdef LogKey key
        if window is not None:
            window_positions(window)
        for i in range(s.own.count):
            e = &s.own.items[i]
            if e.group == NULL:
                key = self.journal.key_of(e.filter)
                key.rests = key.restored = True
        s.behind = True
        s.cursor = self.state.next_position - 1
        if window is not None:
            self.put_back(s, <const uint8_t*><const char*>window, queued, messages)
        if self.state.limits.queue_qos0:
            if s.absences is None:
                s.absences = []
            if not s.absences or s.absences[len(s.absences) - 1][1] != <uint64_t>-1:
                s.absences.append((self.state.next_position - 1, <uint64_t>-1))
        self.put_back_queue(s, queued)
        s.kept = True

    cdef int put_back(self, Session s, const uint8_t* p, dict own, dict messages) except -1:
        # from a window that window_positions has checked
        cdef uint32_t count_out, count_in, i, which, many
        cdef Inflight* slot
        cdef Message m
        cdef bytes identifiers
        cdef uint64_t position, end
        cdef uint32_t group
        cdef list spans
        s.next_id = <uint16_t>get16(p + 8)
        p += HEAD_BYTES if get64(p) >> WINDOW_2_BIT else HEAD_1_BYTES
        count_out = get16(p - 4)
        count_in = get16(p - 2)
        for _ in range(count_out):
            position = get64(p + 4)
            m = None
            identifiers = None
            group = 0
            if p[2] & OWN_RECORD:
                if position in own:
                    _, group, identifiers, m = own.pop(position)
            elif p[3] != WAIT_PUBCOMP:
                m = messages.get(position)
                if m is not None:
                    identifiers = self.windows.sender.identifiers_of(s, m)
            if p[3] == WAIT_PUBCOMP:
                m = None
            if m is not None or p[3] == WAIT_PUBCOMP:
                # else it was finished after this window was stored, and deleted
                slot = s.place_slot(<uint16_t>get16(p))
                slot.flags = p[2]
                slot.state = p[3]
                slot.position = position
                slot.group = group
                if m is not None:
                    s.keep_in(slot, m, <PyObject*>identifiers if identifiers is not None else NULL)
                self.counters.at[count.MATCHED] += 1
            p += OUT_BYTES
        for _ in range(count_in):
            s.arrive(<uint16_t>get16(p))
            p += 2
        # a disk that has lost its last blocks reuses their positions: the new messages must not be skipped
        s.cursor = min(<uint64_t>get64(p), self.state.next_position - 1)
        p += 8
        for which in range(2):
            many = get16(p)
            spans = [(get64(p + 2 + 16 * i), get64(p + 10 + 16 * i)) for i in range(many)]
            p += 2 + 16 * many
            if many and which == 0:
                end = self.state.next_position - 1
                s.holes = [(a, min(z, end)) for a, z in spans if a < end] or None
            elif many:
                s.absences = spans
        return 0

    cdef int put_back_queue(self, Session s, dict own) except -1:
        cdef Message m
        cdef uint64_t number
        for number, (flags, origin, identifiers, message) in own.items():
            m = message
            # in flight, but missing in a lazy window
            s.enqueue(m, <PyObject*>identifiers if identifiers is not None else NULL, flags & ~OWN_RECORD, origin,
                      number, self.state.next_position - 1 if flags & RETAINED_COPY else 0)
            if flags & RETAINED_COPY:
                s.begin_watching()
                s.watched.asked = max(s.watched.asked, <uint32_t>origin)
            self.counters.at[count.MATCHED] += 1
        return 0
