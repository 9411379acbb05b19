"""Output: sends the bytes of outboxes, and closes connections that the broker ends.

Such a connection is closed after its last bytes were sent: our FIN goes out, further input is discarded for a second or
until the client's FIN (closing at once with unread input would make the kernel send RST and discard what we sent).

Write interest is registered only while the kernel's buffer is full. Work for very many connections at once is done in
slices, and continues in the next round.
"""
cimport cython
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint32_t
from libc.string cimport memmove

from pyx.core cimport counters as count
from pyx.core.kernel cimport EAGAIN, EINTR, SHUT_WR, errno, shutdown
from pyx.core.outbox_send cimport outbox_send
from pyx.core.work cimport (
    ASKED_TO_CLOSE, KIBI, Mark, PLACE, PYTHON, SEND, SYSTEM, VISIT, callback_begins, callback_ends, progress, work,
)
from pyx.delivery.connection cimport CLOSED, CLOSING, OPEN
from pyx.delivery.router_state cimport Pointers
from pyx.delivery.session cimport Session, may_go_on
from pyx.io.connections cimport answers_wait

cdef enum:
    LINGER_MS = 1000
    NO_LINGER = 0x100           # bit of a close reason: close at once


@cython.final
cdef class Sending:
    """The output to the clients of one worker."""

    def __cinit__(self, RouterState state not None, Connections connections not None):
        self.state = state
        self.counters = state.counters
        self.connections = connections

    cdef int flush_all(self) except -1:
        cdef uint32_t i = 0
        cdef Connection conn
        cdef Pointers* dirty = &self.state.dirty
        cdef Mark mark
        callback_begins(&mark)
        self.done = 0
        # flush may close a connection, which may make others dirty (a will): the loop includes what is added meanwhile,
        # and ends with the list or the slice
        while i < dirty.count and self.done < self.connections.slice:
            conn = <Connection>dirty.items[i]
            work(VISIT)
            conn.dirty = False
            if conn.fd >= 0 and not conn.want_write:
                try:
                    self.flush(conn)
                except Exception as error:
                    self.state.fail(conn, error)
            Py_DECREF(conn)
            i += 1
        dirty.count -= i
        if dirty.count:
            work(dirty.count * PLACE)
            memmove(dirty.items, dirty.items + i, dirty.count * sizeof(dirty.items[0]))
        callback_ends(&mark, SEND)
        return 0

    cdef int flush(self, Connection conn) except -1:
        cdef size_t total
        cdef ssize_t r
        cdef uint64_t spent
        cdef int e
        cdef bint full = False
        cdef Session s
        self.state.clock.tell()
        while conn.out.pending:
            r = outbox_send(conn.fd, &conn.out, &total)
            self.counters.at[count.SEND_CALLS] += 1
            spent = SYSTEM + (<uint64_t>r // 1024 * KIBI if r > 0 else 0)
            work(spent)
            self.done += spent
            if r < 0:
                e = errno
                if e == EINTR:
                    continue
                if e != EAGAIN:
                    return self.lost(conn, "connection lost")
                full = True
                break
            if conn.not_reading:
                conn.heard = self.state.now_ms     # taking output is its only sign of life while it is not read
            self.state.output_taken(conn, r)
            if <size_t>r < total:
                full = True
                break
        if full != conn.want_write:
            conn.want_write = full
            self.connections.interest(conn)
        if conn.not_reading and conn.state == OPEN and not conn.paused and not conn.carried \
                and not answers_wait(conn, self.state):
            self.connections.read_on(conn)
        if not full:
            if conn.state == CLOSING:
                if not conn.lingering:
                    self.half_close(conn)
                return 0
            if conn.dropping and conn.state == OPEN and not (<Session>conn.session).behind:
                conn.dropping = False
                self.state.handler.dropping_ended(conn)
        if conn.state == OPEN and conn.out.pending <= self.state.limits.outbox_bytes_max // 2:
            s = <Session>conn.session
            if may_go_on(s):
                self.state.set_ready(s)
        return 0

    # ------------------------------------------------------------ the end of a connection

    cdef int lost(self, Connection conn, str why) except -1:
        # the client or the socket is gone
        if conn.state == CLOSED:
            return 0
        if conn.state < CLOSING:
            conn.state = CLOSING
        self.say_closed(conn, 0, why)
        self.connections.end(conn)
        return 0

    cdef int say_closed(self, Connection conn, int reason, str why) except -1:
        if conn.session is None and conn.had is not None:
            return 0                        # said before, when it lost its session
        try:
            self.state.handler.closed(conn, reason, why)   # no effect if it was called before
        except Exception as error:
            self.state.fail(conn, error)
        return 0

    cdef int close_asked(self) except -1:
        # closes a slice of them; the rest keeps its order
        cdef list asked = self.state.closing
        cdef Py_ssize_t i = 0
        cdef Connection conn
        cdef Mark mark
        cdef uint64_t until
        callback_begins(&mark)
        until = progress() + self.connections.slice
        try:
            while i < len(asked) and progress() < until:
                conn, reason, why = asked[i]
                i += 1
                work(VISIT)
                if conn.state != CLOSED:
                    work(10 * PYTHON)
                    self.close_one(conn, reason, why)
        finally:
            work(<uint64_t>(len(asked) - i) * PLACE)
            del asked[:i]
            callback_ends(&mark, ASKED_TO_CLOSE)
        return 0

    cdef int close_one(self, Connection conn, int reason, str why) except -1:
        self.say_closed(conn, reason & 0xFF, why)
        conn.drop_acks()
        if not conn.want_write and conn.fd >= 0:
            self.flush(conn)                # calls half_close when all is sent
        if reason & NO_LINGER:
            self.connections.end(conn)
        if conn.state != CLOSED and not conn.lingering:
            # the kernel's buffer is full: allow a second for the rest
            self.state.timers.schedule(&conn.timer, self.state.now_ms + LINGER_MS)
            conn.lingering = True
        return 0

    cdef int half_close(self, Connection conn) except -1:
        # the kernel has taken all our output: send FIN, wait for the client's
        if conn.fd < 0:
            return 0
        shutdown(conn.fd, SHUT_WR)
        conn.lingering = True
        if conn.not_reading:
            self.connections.read_on(conn)
        self.state.timers.schedule(&conn.timer, self.state.now_ms + LINGER_MS)
        return 0
