"""The shared state of all parts of a router: time, limits, counters, and the lists of the tick.

The lists have connections with output, sessions that can continue to read the log, and connections to be closed or read
again; the reactor empties them at the end of a round. `spent` counts the work of publishes, which bounds turns and
rounds.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from pyx.core cimport counters as count
from pyx.core.clock cimport Clock
from pyx.core.counters cimport Row
from pyx.core.limits cimport DISCONNECT_WHEN_FULL, Limits
from pyx.core.outbox cimport iovec, outbox_clear, outbox_gather, outbox_reserve, outbox_sent
from pyx.core.timers cimport TimerWheel
from pyx.delivery.connection cimport CLOSED, CLOSING, Connection, OPEN
from pyx.delivery.minute_statistics cimport Drops, Prefixes
from pyx.delivery.session cimport Session, has_slot, may_go_on
from pyx.delivery.unread cimport Unread
from pyx.matching.subscriptions cimport Subscriptions
from pyx.protocol.frames cimport remaining_length
from pyx.protocol.message cimport Content
from pyx.protocol.properties cimport MESSAGE_EXPIRY_INTERVAL, find_property
from pyx.protocol.wire cimport varint_size


cdef int pointers_push(Pointers* list_, object item) except -1:
    cdef uint32_t cap
    cdef PyObject** p
    if list_.count == list_.cap:
        cap = list_.cap * 2 if list_.cap else 64
        p = <PyObject**>realloc(list_.items, cap * sizeof(PyObject*))
        if p == NULL:
            raise MemoryError
        list_.items = p
        list_.cap = cap
    Py_INCREF(item)
    list_.items[list_.count] = <PyObject*>item
    list_.count += 1
    return 0


cdef void free_pointers(Pointers* p) noexcept:
    cdef uint32_t i
    for i in range(p.count):
        Py_XDECREF(p.items[i])
    free(p.items)
    p.items = NULL
    p.count = p.cap = 0


cdef int32_t find_expiry(const Content* c) except -2:
    """Return the offset of the Message Expiry Interval's value in properties that were validated at reception, or -1.
    ValueError: they are damaged."""
    cdef int64_t at = find_property(c.props, c.props_len, MESSAGE_EXPIRY_INTERVAL)
    if at >= 0 and c.props_len - at < 4:
        raise ValueError("properties are cut off")
    return <int32_t>at


@cython.final
cdef class RouterState:
    """The shared state of all parts of a router: time, limits, counters, sessions with output, to serve or to close."""

    def __cinit__(self, int worker, int workers, Subscriptions subscriptions not None, Limits limits not None,
                  Row counters not None, TimerWheel timers not None):
        if not 0 <= worker < workers <= 64:
            raise ValueError("worker out of range")
        self.worker = worker
        self.workers = workers
        self.subscriptions = subscriptions
        self.round_until = ROUND
        subscriptions.counters = counters
        self.limits = limits
        self.counters = counters
        self.timers = timers
        self.clock = Clock()
        self.resumed = []
        self.closing = []
        self.drained = []
        self.drops = Drops(0)
        self.prefixes = Prefixes(0, 0)
        self.next_position = 1
        self.batch_turn = TURN
        self.tick = 1

    def __dealloc__(self):
        free_pointers(&self.dirty)
        free_pointers(&self.ready)

    def abandon(self):
        """Release the references in C lists: see `Router.abandon`."""
        free_pointers(&self.dirty)
        free_pointers(&self.ready)

    def set_time(self, uint64_t monotonic_ms, uint64_t wall_ms=0, uint64_t clock_us=0):
        """Set the clocks of this tick. `wall_ms`: the broker's time, set once at the start; it advances with the
        monotonic clock. `clock_us`: the wall clock now, if it differs."""
        if wall_ms:
            self.wall_offset = wall_ms - monotonic_ms
        self.now_ms = monotonic_ms
        self.wall_ms = monotonic_ms + self.wall_offset
        self.clock.us = clock_us if clock_us else self.wall_ms * 1000

    cpdef uint64_t next_number(self):
        """Return a new message number: (microseconds << 8 | worker), with the microseconds of pyx.core.clock."""
        return self.new_number()

    def numbers_behind(self, uint64_t number):
        """Make all further numbers higher than this one, which is in the store."""
        self.stored_number = max(self.stored_number, number)
        self.clock.behind(number >> NUMBER_WORKER_BITS)

    cdef int set_dirty(self, Connection conn) except -1:
        if not conn.dirty:
            conn.dirty = True
            pointers_push(&self.dirty, conn)
        return 0

    cdef int set_ready(self, Session s) except -1:
        if not s.ready:
            s.ready = True
            pointers_push(&self.ready, s)
        return 0

    def take_dirty(self):
        """Return the connections with output since the last call: for tests and the simulation (`Sending.flush_all`
        iterates over the list)."""
        cdef uint32_t i
        out = []
        for i in range(self.dirty.count):
            (<Connection>self.dirty.items[i]).dirty = False
            out.append(<object>self.dirty.items[i])
            Py_DECREF(<object>self.dirty.items[i])
        self.dirty.count = 0
        return out

    def take_output(self, Connection conn not None):
        """Take and return all bytes of its outbox; its session may read on. It replaces the kernel in tests and in the
        simulation (see `Sending.flush`)."""
        cdef iovec[64] v
        cdef size_t total = 0
        cdef int n, i
        cdef Session s = <Session>conn.session
        pieces = []
        while conn.out.pending:
            n = outbox_gather(&conn.out, v, 64, &total)
            for i in range(n):
                pieces.append(PyBytes_FromStringAndSize(<char*>v[i].iov_base, <Py_ssize_t>v[i].iov_len))
            self.output_taken(conn, total)
        if conn.state == OPEN and s is not None and may_go_on(s):
            self.set_ready(s)
        return b"".join(pieces)

    cdef int output_taken(self, Connection conn, size_t n) except -1:
        # n bytes of its outbox were taken
        cdef Session s = <Session>conn.session
        conn.bytes_out += n
        if s is not None and s.awaits_outbox and \
                conn.out.pending - n <= self.limits.outbox_bytes_max // <uint32_t>OUTBOX_PART:
            s.awaits_outbox = False
            self.drained.append(s)
        self.counters.at[count.BYTES_SENT] += n
        self.counters.at[count.DELIVERED_QOS0] += outbox_sent(&conn.out, n)
        return 0

    cpdef int discard_output(self, Connection conn) except -1:
        """Drop the rest of the outbox of a connection that has ended."""
        self.counters.at[count.DROPPED_CONNECTION_CLOSED] += conn.out.qos0
        self.drops.add(conn.had, count.DROPPED_CONNECTION_CLOSED, conn.out.qos0)
        conn.had = None
        outbox_clear(&conn.out)
        return 0

    def write(self, Connection conn not None, bytes packet not None):
        """Put a packet into the outbox at once, ahead of acks that still wait."""
        cdef uint32_t n = <uint32_t>len(packet)
        if n and conn.state != CLOSED:
            self.counters.at[count.ANSWERS_SENT] += 1
            memcpy(outbox_reserve(&conn.out, n), <const char*>packet, n)
            self.set_dirty(conn)

    def close(self, Connection conn not None, int reason=0, str why=""):
        """Request the connection's end: it is closed at the end of the tick, after its output was sent."""
        if conn.state < CLOSING:
            conn.state = CLOSING
            self.closing.append((conn, reason, why))

    cpdef int fail(self, Connection conn, error) except -1:
        """Handle an internal error while processing anything of this client (the single entry for these). Its
        connection ends, others continue."""
        self.counters.at[count.INTERNAL_ERRORS] += 1
        self.handler.internal_error(conn, error)
        return 0

    cdef int fail_session(self, Session s, error) except -1:
        if s.connection is not None:
            return self.fail(<Connection>s.connection, error)
        self.counters.at[count.INTERNAL_ERRORS] += 1
        self.handler.defect(s.client_id, error)
        return 0

    @property
    def worked(self):
        """The cost of publishes so far, in nanoseconds of work, nominal: only rises."""
        return self.effort()

    @property
    def turn_ends(self):
        """The value of `worked` at which the turn of a batch that begins now is over; it is over at once while no
        publish is taken."""
        return self.effort() + (0 if self.takes_none else self.batch_turn)

    def is_round_over(self):
        """Return whether the publishes of this tick have used up its bound: further ones wait for the next tick."""
        return self.effort() > self.round_until

    cdef int drop(self, Connection conn, int counter) except -1:
        self.counters.at[counter] += 1
        self.note_drops(conn, counter, 1)
        if self.limits.rules[0].full == DISCONNECT_WHEN_FULL and counter == count.DROPPED_OUTBOX_FULL:
            self.close(conn, QUOTA_EXCEEDED, "outbox full")
        return 1

    cdef int note_drops(self, Connection conn, int counter, uint64_t dropped) except -1:
        # the reactor reports their end: nothing waits in the outbox, nor in the session
        conn.drops += dropped
        self.drops.add(conn.session, counter, dropped)
        if not conn.dropping:
            conn.dropping = True
            self.handler.dropping(conn, counter)
        return 0

    cdef uint64_t all_dropped(self) noexcept:
        cdef uint64_t total = 0
        cdef int i
        for i in range(count.DROPPED_EXPIRED, count.DROPPED_WORKER_LOST + 1):
            total += self.counters.at[i]
        return total

    cdef int fell_behind(self, Session s) except -1:
        # from in sync to behind: no message in the log so far is for it
        if s.connection is not None and not has_slot(s):
            self.counters.at[count.INFLIGHT_FULL] += 1
        if s.own.count > MERGED_MAX and s.unread is None:
            s.unread = Unread()
        return 0

    cdef uint64_t packet_total(self, const Content* c, bint v5, bint with_id, uint32_t ids_len) noexcept:
        cdef uint64_t remaining = remaining_length(c, v5, with_id, ids_len if v5 else 0)
        if remaining > 268_435_455:
            return <uint64_t>-1                 # more than a packet can have
        return 1 + varint_size(<uint32_t>remaining) + remaining

    cdef int attempt(self, Connection conn, callback) except -1:
        try:
            callback()
        except Exception as error:
            self.fail(conn, error)
        return 0
