"""Sockets: accept, recv, send, and when. One instance per worker, nested in the event loop by its poller's descriptor.

Which sockets are ready a poller says (`pyx.io.poller`); what is done about that, and what is not (accepting, bounds,
timers, lingering), is decided here.

A round: collect what the poller names (one recv per readable connection into one shared buffer, decoded in place) ->
the router's end of tick (commit, sessions that read on, entries for peers, acks) -> one send per connection with
output.
The event loop calls `poll` when the poller's descriptor is readable, and `poll` goes on while there is work, for a
bounded number of rounds.

What may be done for very many connections at once (sending, closing, what timers cause) is done in slices, and goes on
in the next round. A round handles what came for about ROUND_NS; the poller names the rest again.

Write interest is registered only while the kernel's buffer is full. Read interest goes while a publisher must wait for
a peer. Everything here is bounded per round and connection (tick_connection_bytes_max, tick_connection_packets_max),
and a poller, which is level-triggered, names a connection that was cut off again, behind the others: that is the
fairness.

A connection that we end is closed after its last bytes left: our FIN goes out, what still comes is thrown away for a
second or until the client's FIN (closing at once with unread input would make the kernel send RST and destroy what we
said).
"""
cimport cython
from cpython.ref cimport Py_DECREF
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from pyx.core cimport counters as count
from pyx.core.counters cimport (
    DELIVERY_DURATION, LISTENER_ACCEPTED, LISTENER_CONNECTIONS, LISTENERS_MAX, PUBLISH_DURATION, listener_places,
    observe,
)
from pyx.core.kernel cimport (
    CLOCK_REALTIME, EAGAIN, ECONNABORTED, EINTR, EPERM, EPROTO, MSG_NOSIGNAL, SHUT_WR, SOCK_CLOEXEC, SOCK_NONBLOCK,
    accept4, clock_gettime, close, errno, getpeername, monotonic_ns, msghdr, recv, send, sendmsg, shutdown, sockaddr,
    sockaddr_storage, socklen_t, timespec,
)
from pyx.core.outbox cimport iovec, outbox_gather
from pyx.core.timers cimport TimerNode
from pyx.core.work cimport (
    ACCEPT, ASKED_TO_CLOSE, EXPIRE, KIBI, Mark, PLACE, PYTHON, RESUME, ROUND, SEND, SYSTEM, VISIT, WATCHED,
    callback_begins, callback_ends, callback_ends_named, progress, work,
)
from pyx.delivery.connection cimport CLOSED, CLOSING, DECIDING, OPEN
from pyx.delivery.router_state cimport Pointers, SLICE
from pyx.delivery.session cimport Session, may_go_on
from pyx.io.epoll import Epoll
from pyx.io.poller cimport Event, FAILED, HUNG_UP, READABLE, WRITABLE
from pyx.io.sources cimport set_peer

cdef enum:
    EVENTS = 512                # of one round, at most
    BUSY_NS = 1_000_000         # rounds closer than this: wait for the next one here
    STAY_NS = 5_000_000         # then the event loop around has its turn
    WAIT_MS = 50                # not shorter: a timer that is the kernel's next one costs more than the detour
    PAUSE_NS = 500_000_000      # longer than any round: this process was stopped
    ROUND_NS = 50_000_000       # for what the poller names
    ACCEPTS = 64                # of one round
    VECTORS = 64                # of one sendmsg
    LINGER_MS = 1000
    ACCEPT_PAUSE_MS = 100
    ACKS_MAX = 65536            # answers of a connection that wait for a commit or a sibling; then it is not read
    NO_LINGER = 0x100           # close reason: at once


@cython.final
cdef class Reactor:
    """The sockets of one worker. `poller`: says which are ready; None: epoll."""

    def __cinit__(self, Router router not None, Dispatch dispatch not None, Poller poller=None):
        self.poller = poller if poller is not None else Epoll()
        self.router = router
        self.state = router.state
        self.counters = router.state.counters
        self.dispatch = dispatch
        self.timers = router.state.timers
        self.buffer_bytes = router.state.limits.tick_connection_bytes_max   # in front: a partial packet
        self.buffer = <uint8_t*>malloc(self.buffer_bytes * 2)
        if self.buffer == NULL:
            raise MemoryError
        self.connections = {}
        self.graveyard = []
        self.watchers = {}
        self.listeners = {}
        self.connections_max = 0xFFFFFFFF
        self.sources = Sources()
        self.connect_ms_max = 10_000
        self.slice = SLICE
        self.now()

    def __dealloc__(self):
        free(self.buffer)

    cdef void now(self) noexcept:
        cdef timespec t
        self.last_ns = self.state.tick_ns = monotonic_ns()
        self.state.now_ms = self.last_ns // 1_000_000
        clock_gettime(CLOCK_REALTIME, &t)
        self.state.clock.us = <uint64_t>t.tv_sec * 1_000_000 + <uint64_t>t.tv_nsec // 1000
        self.state.clock.hear()
        if self.state.wall_offset == 0:
            self.state.wall_offset = self.state.clock.us // 1000 - self.state.now_ms
        self.state.wall_ms = self.state.now_ms + self.state.wall_offset

    def fileno(self):
        """The poller's descriptor: readable when `poll` has something to do."""
        return self.poller.fileno()

    def listen(self, int fd, int listener=0):
        """Accept connections of a listening, non-blocking socket. The caller keeps it open. `listener`: the number of
        what is listened on, which each of its connections has from now on; ValueError: there are not so many."""
        if not 0 <= listener < LISTENERS_MAX:
            raise ValueError(f"there is no listener {listener}")
        self.poller.add(fd, READABLE, 4 * <size_t>fd + 1)       # bit 0: no object's address
        self.listeners[fd] = listener
        self.accepting = True

    def stop_listening(self):
        """Accept nothing more."""
        for fd in self.listeners:
            self.poller.remove(fd)
        self.listeners = {}
        self.paused = None
        self.accepting = False

    def adopt(self, int fd, bytes unread not None=b"", int remaining_ms=-1, uint8_t listener=0):
        """Take a connected, non-blocking socket and what was read from it already; returns its Connection."""
        cdef Connection conn = self.open(fd, listener)
        cdef sockaddr_storage address
        cdef socklen_t n = sizeof(address)
        if getpeername(fd, <sockaddr*>&address, &n) == 0:
            set_peer(conn, &address)
        if remaining_ms >= 0:
            self.timers.schedule(&conn.timer, self.state.now_ms + <uint64_t>remaining_ms)
        if unread:
            self.dispatch.feed(conn, unread)
        return conn

    def release(self, Connection conn not None):
        """Forget a connection whose socket somebody else has now: our descriptor is closed, nothing is said to the
        client."""
        conn.state = CLOSED
        self.end(conn)

    def __len__(self):
        return len(self.connections)

    def all_connections(self):
        """Every connection, for shutting down and for tools."""
        return list(self.connections.values())

    def start_keep_alive(self, Connection conn not None):
        """The connect deadline becomes the keep-alive's (conn.keep_alive_ms; 0: none) [MQTT-3.1.2-24]."""
        conn.heard = self.state.now_ms
        if conn.source is not None:
            self.sources.leave(conn)
        if conn.keep_alive_ms:
            self.timers.schedule(&conn.timer, self.state.now_ms + conn.keep_alive_ms)
        else:
            self.timers.cancel(&conn.timer)

    # ------------------------------------------------------------ one poll

    def poll(self):
        """Do what there is to do. With `stays`: and wait here for more, while it comes faster than every BUSY_NS.

        While traffic is dense the event loop around this one is a detour for every wake-up; it has its turn every
        STAY_NS, or WAIT_MS after the traffic ended.
        """
        cdef Event[EVENTS] events
        cdef int n, i, wait = 0
        cdef uint32_t what
        cdef uint64_t begun, before, until
        cdef size_t p
        cdef Connection conn
        cdef list watched = None
        cdef Mark mark
        begun = monotonic_ns()
        while True:
            n = self.poller.wait(events, EVENTS, WAIT_MS if wait else 0)
            if n == 0 and not self.again:
                break
            callback_begins(&mark)
            before = self.last_ns
            self.now()
            if self.last_ns - before > PAUSE_NS and wait:
                break                       # this process was stopped: what was read before is not acted on; come again
            if self.again:
                self.again = self.dispatch.take_carried()
            if self.late:
                self.expire()
            work(SYSTEM + n * VISIT)
            until = progress() + ROUND_NS
            for i in range(n):
                if i & 7 == 7 and progress() >= until:
                    break                   # the others are named again
                p = events[i].tag
                if p & 3:
                    if p & 1:
                        self.accept(<int>(p >> 2))
                    else:
                        if watched is None:
                            watched = []
                        watched.append(self.watchers.get(<int>(p >> 2)))
                    continue
                conn = <Connection><void*>p
                what = events[i].what
                if conn.state == CLOSED:
                    continue
                try:
                    self.ready(conn, what)
                except Exception as error:
                    self.state.fail(conn, error)
            self.round_end()
            if watched is not None:
                self.call(watched)
                watched = None
            callback_ends(&mark, ROUND)
            if self.leave or self.last_ns - begun > STAY_NS:
                break
            wait = self.stays and self.last_ns - before < BUSY_NS and not self.again
        self.leave = False
        if self.again:
            self.schedule()

    cdef int ready(self, Connection conn, uint32_t what) except -1:
        if what & WRITABLE:
            self.flush(conn)
        if what & (READABLE | FAILED | HUNG_UP) and conn.state != CLOSED:
            if conn.not_reading and not conn.lingering:
                # a client that has closed both directions and has left packets: they are handled first
                if what & FAILED or what & HUNG_UP and (not conn.carried or conn.paused):
                    return self.lost(conn, "connection lost")
            else:
                return self.read(conn)
        return 0

    cdef int call(self, list watched) except -1:
        cdef Mark mark
        for callback in watched:
            if callback is not None:
                callback_begins(&mark)
                callback()
                callback_ends_named(&mark, WATCHED, callback)
        return 0

    def watch(self, int fd, callback):
        """Call `callback()` while `fd` is readable, after the clients of that round."""
        self.poller.add(fd, READABLE, 4 * <size_t>fd + 2)       # bit 1: no object's address
        self.watchers[fd] = callback

    def unwatch(self, int fd):
        """Watch it no more; nothing if it is not watched."""
        if self.watchers.pop(fd, None) is not None:
            self.poller.remove(fd)

    def finish(self):
        """The end of a round for work that did not come from a socket: timers, the mesh, the broker."""
        self.now()
        self.round_end()
        if self.again:
            self.schedule()

    cdef int round_end(self) except -1:
        cdef int tries = 0
        self.counters.at[count.TICKS] += 1
        while True:
            self.router.finish_tick()
            if self.state.finished_since:
                observe(self.counters.at, PUBLISH_DURATION, monotonic_ns() - self.state.finished_since)
                self.state.finished_since = 0
            if self.state.closing:
                self.close_asked()
                if self.state.next_position != self.router.journal.block.first or self.router.journal.recorded:
                    self.router.finish_tick()
            if self.state.resumed:
                self.resume()
            self.flush_all()
            tries += 1
            if self.router.journal.laid is not None or \
                    self.state.ready.count == 0 and not self.state.closing and not self.state.drained:
                break
            if tries == 4:
                self.again = True
                break
        if self.state.delivered_since:
            observe(self.counters.at, DELIVERY_DURATION, monotonic_ns() - self.state.delivered_since)
            self.state.delivered_since = 0
        if self.dispatch.carried or self.state.unfinished or self.state.divided or self.state.dirty.count or \
                self.state.closing or self.late:
            self.again = True
        if self.graveyard:
            self.graveyard.clear()
        return 0

    def run_timers(self):
        """Expire what is due: called by the worker's timer."""
        self.now()
        self.expire()
        self.round_end()
        if self.again:
            self.schedule()

    cdef int expire(self) except -1:
        cdef TimerNode* t
        cdef Connection conn
        cdef uint64_t now = self.state.now_ms
        cdef Mark mark
        callback_begins(&mark)
        self.timers.until = progress() + self.slice
        while True:
            t = self.timers.expired(now) if progress() < self.timers.until else NULL
            if t == NULL:
                self.late = self.timers.next_deadline() <= now
                callback_ends(&mark, EXPIRE)
                return 0
            work(2 * VISIT + PYTHON)
            conn = <Connection>t.owner
            if conn.state == CLOSED:
                continue
            try:
                self.time_is_up(conn, t)
            except Exception as error:
                self.state.fail(conn, error)

    cdef int time_is_up(self, Connection conn, TimerNode* t) except -1:
        cdef uint64_t now = self.state.now_ms
        if conn.lingering:
            self.end(conn)
        elif conn.state < OPEN:
            self.state.handler.connect_timeout(conn)
        elif conn.state == OPEN and conn.keep_alive_ms:
            if conn.carried or conn.paused:
                conn.heard = now            # the clock stands still while we do not read
            if now - conn.heard >= conn.keep_alive_ms:
                self.counters.at[count.KEEP_ALIVE_TIMEOUTS] += 1
                self.state.handler.keep_alive_timeout(conn)
            else:
                self.timers.schedule(t, conn.heard + conn.keep_alive_ms)
        return 0

    # ------------------------------------------------------------ accept

    cdef int accept(self, int listening) except -1:
        cdef object number = self.listeners.get(listening)
        cdef uint8_t listener
        cdef int fd, e
        cdef sockaddr_storage address
        cdef socklen_t n
        cdef Connection conn
        cdef Mark mark
        if number is None:                  # another listener of this round has paused accepting
            return 0
        listener = number
        callback_begins(&mark)
        for _ in range(ACCEPTS):
            work(3 * SYSTEM)
            n = sizeof(address)
            fd = accept4(listening, <sockaddr*>&address, &n, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                e = errno
                if e == EAGAIN:
                    break
                if e == EINTR or e == ECONNABORTED or e == EPROTO or e == EPERM:
                    continue                # that connection is gone; the next may be fine
                # no descriptor or no memory for it: stop asking for a while instead of spinning
                self.counters.at[count.ACCEPT_ERRORS] += 1
                self.pause_accepting(e)
                break
            self.counters.at[count.CONNECTIONS_ACCEPTED] += 1
            listener_places(self.counters.at, listener)[<int>LISTENER_ACCEPTED] += 1
            if <uint32_t>len(self.connections) >= self.connections_max:
                self.counters.at[count.CONNECTIONS_REFUSED] += 1
                self.state.handler.too_many_connections()
                close(fd)
                continue
            conn = self.open(fd, listener)
            set_peer(conn, &address)
            if not self.may_come(conn):
                self.end(conn)
                continue
            self.timers.schedule(&conn.timer, self.state.now_ms + self.connect_ms_max)
        callback_ends(&mark, ACCEPT)
        return 0

    cdef bint may_come(self, Connection conn) except -1:
        cdef int refused = self.sources.arrive(conn, self.state.now_ms)
        if refused:
            self.counters.at[refused] += 1
            self.counters.at[count.CONNECTIONS_REFUSED] += 1
            self.state.handler.source_refused(conn, refused)
        return refused == 0

    def pause_accepting(self, int error):
        """Out of descriptors or memory: the listeners rest for 100 ms."""
        listeners = self.listeners
        self.stop_listening()
        self.paused = listeners
        self.state.handler.accept_failed(error)
        self.timers.call(self.state.now_ms + ACCEPT_PAUSE_MS, self._accept_again)

    def _accept_again(self):
        listeners, self.paused = self.paused, None
        for fd, listener in (listeners or {}).items():      # none: it has stopped meanwhile
            self.listen(fd, listener)

    cdef Connection open(self, int fd, uint8_t listener):
        cdef Connection conn = Connection.__new__(Connection)
        conn.listener = listener
        conn.opened = self.state.now_ms
        conn.heard = self.state.now_ms
        try:
            self.poller.add(fd, READABLE, <size_t><void*>conn)
        except OSError:
            close(fd)
            raise
        conn.fd = fd
        self.connections[fd] = conn
        listener_places(self.counters.at, listener)[<int>LISTENER_CONNECTIONS] += 1
        return conn

    # ------------------------------------------------------------ in

    cdef int read(self, Connection conn) except -1:
        cdef ssize_t r
        cdef uint8_t* to
        cdef uint8_t* grown
        cdef uint32_t room, front = 0
        cdef uint64_t cap
        cdef int e
        cdef bint direct = conn.part_want > self.buffer_bytes
        if conn.lingering or conn.state == CLOSING:
            # thrown away
            r = recv(conn.fd, self.buffer, self.buffer_bytes, 0)
            if r == 0 or r < 0 and errno != EAGAIN and errno != EINTR:
                self.lost(conn, "connection lost")
            return 0
        if conn.carried or conn.state == DECIDING or self.answers_wait(conn):
            # whole packets wait, or a decision, or the client does not take its answers: nothing more is read
            # meanwhile. What it has closed is noticed when that is over
            return self.stop_reading(conn)
        if direct:
            # a large packet: straight into its own buffer, which grows as bytes come
            if conn.part_cap == conn.part_len:
                cap = conn.part_cap + (conn.part_cap // 2 if conn.part_cap > self.buffer_bytes else self.buffer_bytes)
                if cap > conn.part_want:
                    cap = conn.part_want
                grown = <uint8_t*>realloc(conn.part, cap)
                if grown == NULL:
                    raise MemoryError
                conn.part = grown
                conn.part_cap = <uint32_t>cap
            to = conn.part + conn.part_len
            room = conn.part_cap - conn.part_len
            if room > self.buffer_bytes:
                room = self.buffer_bytes
        else:
            front = conn.part_len if conn.part_len <= self.buffer_bytes else 0
            if front:
                memcpy(self.buffer, conn.part, front)
            to = self.buffer + front
            room = self.buffer_bytes
        r = recv(conn.fd, to, room, 0)
        self.state.clock.hear()
        work(SYSTEM + (<uint64_t>r // 1024 * KIBI if r > 0 else 0))
        self.counters.at[count.RECV_CALLS] += 1
        if r <= 0:
            if r < 0:
                e = errno
                if e == EAGAIN or e == EINTR:
                    return 0
                return self.lost(conn, "connection lost")
            return self.lost(
                conn, "closed by the client without DISCONNECT" if conn.state == OPEN else "closed before CONNECT"
            )
        conn.bytes_in += r
        self.counters.at[count.BYTES_RECEIVED] += r
        if direct:
            conn.part_len += <uint32_t>r
            conn.heard = self.state.now_ms         # progress in a large packet is a sign of life
            if conn.part_len >= conn.part_want:
                self.dispatch.take_part(conn)
        else:
            self.dispatch.take(conn, self.buffer, front + <uint32_t>r)
        if conn.paused and not conn.not_reading:
            self.stop_reading(conn)
        return 0

    cdef int stop_reading(self, Connection conn) except -1:
        conn.not_reading = True
        return self.interest(conn)

    def resume(self):
        """Read on where the router says that a peer has room again."""
        cdef list resumed = self.state.resumed
        cdef Connection conn
        cdef Mark mark
        callback_begins(&mark)
        work(<uint64_t>len(resumed) * VISIT)
        self.state.resumed = []
        for conn in resumed:
            conn.paused = False
            if conn.carried:
                self.dispatch.carry_on(conn)        # and then read, see Dispatch.take_carried
                self.again = True
            elif conn.state == OPEN and conn.not_reading and not self.answers_wait(conn):
                conn.not_reading = False
                conn.heard = self.state.now_ms
                self.interest(conn)
        callback_ends(&mark, RESUME)

    def read_on(self, Connection conn not None):
        """After a decision: reading was stopped because too much had come behind the CONNECT."""
        if conn.not_reading and not conn.paused and conn.state == OPEN:
            conn.not_reading = False
            self.interest(conn)

    cdef bint answers_wait(self, Connection conn) noexcept:
        # Messages stop at outbox_bytes_max, answers do not: a client that asks on and takes no answer is not read.
        # Large payloads do not lie in buf and do not count, so that messages alone never stop the reading
        return conn.out.tail - conn.out.head > 2 * <uint64_t>self.state.limits.outbox_bytes_max \
                or conn.ack_count > ACKS_MAX

    cdef int interest(self, Connection conn) except -1:
        return self.poller.change(conn.fd, (0 if conn.not_reading else READABLE) | (WRITABLE if conn.want_write else 0),
                                  <size_t><void*>conn)

    # ------------------------------------------------------------ out

    cdef int flush_all(self) except -1:
        cdef uint32_t i = 0
        cdef Connection conn
        cdef Pointers* dirty = &self.state.dirty
        cdef Mark mark
        callback_begins(&mark)
        self.sending = 0
        # flush may close a connection, which may make others dirty (a will): the list is walked to its end, whatever is
        # added, or to that of a slice
        while i < dirty.count and self.sending < self.slice:
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
        cdef iovec[VECTORS] v
        cdef msghdr m
        cdef size_t total
        cdef ssize_t r
        cdef uint64_t spent
        cdef int e, n
        cdef bint full = False
        cdef Session s
        self.state.clock.tell()
        while conn.out.pending:
            if conn.out.shared_head == conn.out.shared_tail:
                total = conn.out.tail - conn.out.head
                r = send(conn.fd, conn.out.buf + conn.out.head, total, MSG_NOSIGNAL)
            else:
                n = outbox_gather(&conn.out, v, VECTORS, &total)
                memset(&m, 0, sizeof(m))
                m.msg_iov = v
                m.msg_iovlen = n
                r = sendmsg(conn.fd, &m, MSG_NOSIGNAL)
            self.counters.at[count.SEND_CALLS] += 1
            spent = SYSTEM + (<uint64_t>r // 1024 * KIBI if r > 0 else 0)
            work(spent)
            self.sending += spent
            if r < 0:
                e = errno
                if e == EINTR:
                    continue
                if e != EAGAIN:
                    return self.lost(conn, "connection lost")
                full = True
                break
            if conn.not_reading:
                conn.heard = self.state.now_ms     # a sign of life, while it can give no other
            self.state.output_taken(conn, r)
            if <size_t>r < total:
                full = True
                break
        if full != conn.want_write:
            conn.want_write = full
            self.interest(conn)
        if conn.not_reading and conn.state == OPEN and not conn.paused and not conn.carried \
                and not self.answers_wait(conn):
            conn.not_reading = False
            self.interest(conn)
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
        # the client is gone, or its socket is
        if conn.state == CLOSED:
            return 0
        if conn.state < CLOSING:
            conn.state = CLOSING
        self.say_closed(conn, 0, why)
        self.end(conn)
        return 0

    cdef int say_closed(self, Connection conn, int reason, str why) except -1:
        try:
            self.state.handler.closed(conn, reason, why)   # nothing, if it was told already
        except Exception as error:
            self.state.fail(conn, error)
        return 0

    cdef int close_asked(self) except -1:
        # a slice of those; the rest keeps its place
        cdef list asked = self.state.closing
        cdef Py_ssize_t i = 0
        cdef Connection conn
        cdef Mark mark
        cdef uint64_t until
        callback_begins(&mark)
        until = progress() + self.slice
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
            self.flush(conn)                # goes on to half_close when everything left
        if reason & NO_LINGER:
            self.end(conn)
        if conn.state != CLOSED and not conn.lingering:
            # the kernel is full: give what is left a second
            self.timers.schedule(&conn.timer, self.state.now_ms + LINGER_MS)
            conn.lingering = True
        return 0

    def half_close(self, Connection conn not None):
        """Everything we had to say was taken by the kernel: send FIN, wait for the client's."""
        if conn.fd < 0:
            return
        shutdown(conn.fd, SHUT_WR)
        conn.lingering = True
        if conn.not_reading:
            conn.not_reading = False
            self.interest(conn)
        self.timers.schedule(&conn.timer, self.state.now_ms + LINGER_MS)

    cdef int end(self, Connection conn) except -1:
        conn.state = CLOSED
        if conn.source is not None:
            self.sources.leave(conn)
        self.timers.cancel(&conn.timer)
        if conn.fd >= 0:
            self.poller.remove(conn.fd)
            close(conn.fd)
            work(3 * SYSTEM)
            if self.connections.pop(conn.fd, None) is not None:
                listener_places(self.counters.at, conn.listener)[<int>LISTENER_CONNECTIONS] -= 1
            conn.fd = -1
            self.graveyard.append(conn)
        conn.session = None
        conn.drop_acks()
        conn.free_part()
        self.state.discard_output(conn)
        return 0
