"""The rounds of a worker: accept, recv, send, timers. One instance per worker, nested in the event loop by its poller's
descriptor.

A poller (`pyx.io.poller`) reports which sockets are ready; the reactor decides whether to accept, read or wait, by
bounds, timers and lingering.

A round: collect the poller's events (one recv per readable connection into one shared buffer, decoded in place) ->
the router's end of tick (sessions that read on, commit, entries for peers, acks) -> one send per connection with
output. The event loop calls `poll` when the poller's descriptor is readable, and `poll` continues while there is work,
for a bounded number of rounds.

Work for very many connections at once (sending, closing, expired timers) is done in slices, and continues in the next
round. A round handles events for about ROUND_NS; the poller reports the rest again.

Read interest is removed while a publisher must wait for a peer. All work is bounded per round and connection
(tick_connection_bytes_max, tick_connection_packets_max). Fairness: the poller is level-triggered, so it reports a
connection that was cut off again, behind the others.

Parts: `pyx.io.connections` (open connections), `pyx.io.acceptor` (new ones), `pyx.io.sending` (output, and the end of
connections). The round itself, input and time are here.
"""
cimport cython
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from pyx.core cimport counters as count
from pyx.core.counters cimport DELIVERY_DURATION, PUBLISH_DURATION, observe
from pyx.core.kernel cimport (
    CLOCK_REALTIME, EAGAIN, EINTR, clock_gettime, errno, getpeername, monotonic_ns, recv, sockaddr, sockaddr_storage,
    socklen_t, timespec,
)
from pyx.core.rounds cimport EventHandler
from pyx.core.timers cimport TimerNode
from pyx.core.work cimport (
    EXPIRE, KIBI, Mark, PYTHON, RESUME, ROUND, SYSTEM, VISIT, WATCHED, callback_begins, callback_ends,
    callback_ends_named, progress, work,
)
from pyx.delivery.connection cimport CLOSED, CLOSING, DECIDING, OPEN
from pyx.io.connections cimport answers_wait
from pyx.io.epoll import Epoll
from pyx.io.poller cimport Event, FAILED, HUNG_UP, READABLE, WRITABLE
from pyx.io.sources cimport set_peer

cdef enum:
    EVENTS = 512                # per round, at most
    BUSY_NS = 1_000_000         # after a round closer to its predecessor than this, wait for the next one here
    STAY_NS = 5_000_000         # then the surrounding event loop has its turn
    WAIT_MS = 50                # not shorter: a timer that becomes the kernel's next one costs more than the detour
    PAUSE_NS = 500_000_000      # see Reactor.pause_ns
    # after a pause clients have so much time, because what waits in their sockets is read first: but no more than a
    # tenth of the time, however often this process is stopped
    READ_FIRST_MS = 1000
    ROUND_NS = 50_000_000       # for the events of one round
    SOON_MS = 100               # timers may be so late
    ACTIVE_MS = 1200            # an active worker is swept every second
    SLACK_MS = 10               # between this clock and the loop's
    # A keep-alive of COARSE_MS or more ends at a full second, so that an idle worker wakes up for many at once
    COARSE_MS = 16_000
    FULL_SECOND_MS = 1024       # a multiple of the slots of the wheel


cdef inline uint64_t end_of_keep_alive(Connection conn) noexcept:
    cdef uint64_t end = conn.heard + conn.keep_alive_ms
    return end if conn.keep_alive_ms < COARSE_MS else (end + FULL_SECOND_MS - 1) // FULL_SECOND_MS * FULL_SECOND_MS


@cython.final
cdef class Reactor:
    """The sockets of one worker. `poller`: reports which are ready; None: epoll."""

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
        self.connections = Connections(self.state, self.poller)
        self.acceptor = Acceptor(self.state, self.connections)
        self.sending = Sending(self.state, self.connections)
        self.watchers = {}
        self.pause_ns = PAUSE_NS
        self.hurry = self.schedule = _nothing
        self.now()

    def __dealloc__(self):
        free(self.buffer)

    cdef void now(self) noexcept:
        cdef timespec t
        cdef uint64_t before = self.last_ns
        self.last_ns = self.state.tick_ns = monotonic_ns()
        self.state.now_ms = self.last_ns // 1_000_000
        if self.timer_ms * 1_000_000 > before:      # it has slept until then
            before = self.timer_ms * 1_000_000
        if self.last_ns > before + PAUSE_NS and self.state.now_ms > self.woke_ms + 10 * READ_FIRST_MS:
            self.woke_ms = self.state.now_ms
        clock_gettime(CLOCK_REALTIME, &t)
        self.state.clock.us = <uint64_t>t.tv_sec * 1_000_000 + <uint64_t>t.tv_nsec // 1000
        self.state.clock.hear()
        if self.state.wall_offset == 0:
            self.state.wall_offset = self.state.clock.us // 1000 - self.state.now_ms
        self.state.wall_ms = self.state.now_ms + self.state.wall_offset

    def fileno(self):
        """Return the poller's descriptor: readable when `poll` has work."""
        return self.poller.fileno()

    def adopt(self, int fd, bytes unread not None=b"", int remaining_ms=-1, uint8_t listener=0):
        """Take a connected, non-blocking socket and the bytes `unread` already received from it; return its Connection.

        `remaining_ms`: connect timer in ms, -1: none."""
        cdef Connection conn = self.connections.open(fd, listener)
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
        """Forget a connection whose socket another process has now: close our descriptor, send the client nothing."""
        conn.state = CLOSED
        self.connections.end(conn)

    def __len__(self):
        return len(self.connections.by_fd)

    def all_connections(self):
        """Return every connection, for shutting down and for tools."""
        return list(self.connections.by_fd.values())

    def start_keep_alive(self, Connection conn not None):
        """Replace the connect timer by the keep-alive timer (conn.keep_alive_ms; 0: none) [MQTT-3.1.2-24]."""
        conn.heard = self.state.now_ms
        if conn.source is not None:
            self.connections.sources.leave(conn)
        if conn.keep_alive_ms:
            self.timers.schedule(&conn.timer, end_of_keep_alive(conn))
        else:
            self.timers.cancel(&conn.timer)

    # ------------------------------------------------------------ one poll

    def poll(self, uint64_t asked_ns=0):
        """Run rounds while there is work. With `stays`, also wait here for more while they come within BUSY_NS.

        `asked_ns`: the monotonic time at which the caller knew that clients may be read; 0: now. Clients are read until
        `pause_ns` after it: if this process was stopped meanwhile, what came since is left to the next call. After
        `trusted_until_ns` nothing is read before `when_paused` returns True.

        Under dense traffic the surrounding event loop is a detour for every wake-up; it has its turn every STAY_NS, or
        WAIT_MS after the traffic ended.
        """
        cdef Event[EVENTS] events
        cdef int n, wait = 0
        cdef uint64_t begun, before, until_ns
        cdef list watched
        cdef Mark mark
        self.in_events = False
        begun = monotonic_ns()
        if begun > self.trusted_until_ns and self.when_paused is not None and not self.when_paused():
            return
        until_ns = (asked_ns if asked_ns else begun) + self.pause_ns
        while True:
            n = self.poller.wait(events, EVENTS, WAIT_MS if wait else 0)
            if n == 0 and not self.again:
                break
            before = self.last_ns
            self.now()
            if self.last_ns > until_ns:
                break
            callback_begins(&mark)
            if self.again:
                self.again = self.dispatch.take_carried()
            if self.late:
                self.expire()
            if self.part is not None:
                self.part.begin_round()
            self.in_events = True
            watched = self.handle(events, n, until_ns)
            if self.part is not None:
                self.part.end_reading()
            self.in_events = False
            self.round_end()
            if watched is not None:
                self.call(watched)
            callback_ends(&mark, ROUND)
            if self.leave or self.last_ns - begun > STAY_NS:
                break
            wait = self.stays and self.last_ns - before < BUSY_NS and not self.again
            if self.stays and not wait and not self.again and n < EVENTS:
                break                       # the loop reports what has come meanwhile
        self.leave = False
        if self.again:
            self.schedule()

    cdef list handle(self, const Event* events, int n, uint64_t until_ns):
        # the events of a round; returns the callbacks of `watch` that are due after its end, None: there are none
        cdef int i
        cdef size_t p
        cdef Connection conn
        cdef uint64_t until
        cdef list watched = None
        work(SYSTEM + n * VISIT)
        until = progress() + ROUND_NS
        for i in range(n):
            if i & 7 == 7 and progress() >= until or monotonic_ns() > until_ns:
                break                       # the others are reported again
            p = events[i].tag
            if p & 3:
                if p & 3 == 1:
                    self.acceptor.accept(<int>(p >> 2))
                elif p & 3 == 3:
                    self.call_one(self.watchers.get(<int>(p >> 2)))
                else:
                    if watched is None:
                        watched = []
                    watched.append(self.watchers.get(<int>(p >> 2)))
                continue
            conn = <Connection><void*>p
            if conn.state == CLOSED:
                continue
            try:
                self.ready(conn, events[i].what)
            except Exception as error:
                self.state.fail(conn, error)
        return watched

    cdef int ready(self, Connection conn, uint32_t what) except -1:
        if what & WRITABLE:
            self.sending.flush(conn)
        if what & (READABLE | FAILED | HUNG_UP) and conn.state != CLOSED:
            if conn.not_reading and not conn.lingering:
                # if a client closed both directions and left packets, these are handled first
                if what & FAILED or what & HUNG_UP and (not conn.carried or conn.paused):
                    return self.sending.lost(conn, "connection lost")
            else:
                return self.read(conn)
        return 0

    cdef int call(self, list watched) except -1:
        for callback in watched:
            self.call_one(callback)
        return 0

    cdef int call_one(self, object callback) except -1:
        cdef Mark mark
        if callback is not None:
            callback_begins(&mark)
            if isinstance(callback, EventHandler):
                (<EventHandler>callback).ready()
            else:
                callback()
            callback_ends_named(&mark, WATCHED, callback)
        return 0

    def watch(self, int fd, callback):
        """Call `callback()` while `fd` is readable, after the clients of that round, and after its end."""
        self.poller.add(fd, READABLE, 4 * <size_t>fd + 2)       # bit 1: no object's address
        self.watchers[fd] = callback

    def watch_in_round(self, int fd, callback):
        """Call `callback()` while `fd` is readable, among the clients of that round: what it does leaves at its end."""
        self.poller.add(fd, READABLE, 4 * <size_t>fd + 3)       # both bits: no object's address, and no listener
        self.watchers[fd] = callback

    def watch_output(self, int fd, bint on):
        """Call the callback of `watch_in_round` also while `fd` is writable, or no longer. Raises KeyError if it is not
        watched."""
        self.watchers[fd]
        self.poller.change(fd, READABLE | WRITABLE if on else READABLE, 4 * <size_t>fd + 3)

    def unwatch(self, int fd):
        """Stop watching `fd`; no effect if it is not watched."""
        if self.watchers.pop(fd, None) is not None:
            self.poller.remove(fd)

    def finish(self):
        """Run the end of a round for work that did not come from a socket of a round: timers, the broker."""
        if self.in_events:                  # its own end follows; connections that have ended are still in its events
            return
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
                self.sending.close_asked()
                if self.router.has_messages():      # wills of those that were closed
                    self.router.finish_tick()
            if self.state.resumed:
                self.resume()
            self.sending.flush_all()
            tries += 1
            if self.router.journal.appending is not None or \
                    self.state.ready.count == 0 and not self.state.closing and not self.state.drained and \
                    not self.router.has_messages():
                break
            if tries == 4:
                self.again = True
                break
        if self.state.delivered_since:
            observe(self.counters.at, DELIVERY_DURATION, monotonic_ns() - self.state.delivered_since)
            self.state.delivered_since = 0
        if self.dispatch.carried or self.state.unfinished or self.state.divided or self.state.dirty.count or \
                self.state.closing or self.late or self.router.journal.callbacks_due or \
                self.part is not None and self.part.has_more():
            self.again = True
        if self.connections.graveyard:
            self.connections.graveyard.clear()
        if self.after_round is not None:
            self.after_round()
        if self.timer_ms > self.state.now_ms + 2 * SOON_MS and (
                self.state.needs_timer or self.state.is_active and self.timer_ms > self.state.now_ms + ACTIVE_MS
                or self.timers.next_deadline() < self.timer_ms - SOON_MS - SLACK_MS):
            self.hurry()
        return 0

    def run_timers(self):
        """Expire timers that are due: called by the worker's timer."""
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
        self.timers.until = progress() + self.connections.slice
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
            self.connections.end(conn)
        elif conn.state <= OPEN and now < self.woke_ms + READ_FIRST_MS:
            self.timers.schedule(t, self.woke_ms + READ_FIRST_MS)
        elif conn.state < OPEN:
            self.state.handler.connect_timeout(conn)
        elif conn.state == OPEN and conn.keep_alive_ms:
            if conn.carried or conn.paused:
                conn.heard = now            # keep-alive does not run while we do not read
            if now - conn.heard >= conn.keep_alive_ms:
                self.counters.at[count.KEEP_ALIVE_TIMEOUTS] += 1
                self.state.handler.keep_alive_timeout(conn)
            else:
                self.timers.schedule(t, end_of_keep_alive(conn))
        return 0

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
            # discard the input
            r = recv(conn.fd, self.buffer, self.buffer_bytes, 0)
            if r == 0 or r < 0 and errno != EAGAIN and errno != EINTR:
                self.sending.lost(conn, "connection lost")
            return 0
        if conn.carried or conn.state == DECIDING or answers_wait(conn, self.state):
            # whole packets wait, or a decision is pending, or the client does not take its answers: read no more until
            # that is over. Its FIN is noticed only then
            return self.connections.stop_reading(conn)
        if direct:
            # a large packet: received straight into its own buffer, which grows as bytes arrive
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
                return self.sending.lost(conn, "connection lost")
            return self.sending.lost(
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
            self.connections.stop_reading(conn)
        return 0

    def resume(self):
        """Resume reading the connections that the router no longer pauses (`RouterState.resumed`)."""
        cdef list resumed = self.state.resumed
        cdef Connection conn
        cdef Mark mark
        callback_begins(&mark)
        work(<uint64_t>len(resumed) * VISIT)
        self.state.resumed = []
        for conn in resumed:
            conn.paused = False
            if conn.carried:
                self.dispatch.carry_on(conn)        # and then read on: see Dispatch.take_carried
                self.again = True
            elif conn.state == OPEN and conn.not_reading and not answers_wait(conn, self.state):
                conn.heard = self.state.now_ms
                self.connections.read_on(conn)
        callback_ends(&mark, RESUME)

    def read_on(self, Connection conn not None):
        """Resume reading after a decision, if it stopped because too many bytes followed the CONNECT."""
        if conn.not_reading and not conn.paused and conn.state == OPEN:
            self.connections.read_on(conn)


def _nothing():
    pass
