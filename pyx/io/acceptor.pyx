"""Acceptance of new connections: listening, accepting, refusing.

A connection is refused if there are connections_max already, or if its source address has too many
(`pyx.io.sources`). When the process is out of descriptors or memory, it pauses for ACCEPT_PAUSE_MS instead of spinning.
"""
cimport cython
from libc.stdint cimport uint8_t

from pyx.core cimport counters as count
from pyx.core.counters cimport LISTENER_ACCEPTED, LISTENERS_MAX, listener_places
from pyx.core.kernel cimport (
    EAGAIN, ECONNABORTED, EINTR, EPERM, EPROTO, SOCK_CLOEXEC, SOCK_NONBLOCK, accept4, close, errno, sockaddr,
    sockaddr_storage, socklen_t,
)
from pyx.core.work cimport ACCEPT, Mark, SYSTEM, callback_begins, callback_ends, work
from pyx.io.poller cimport READABLE
from pyx.io.sources cimport set_peer

cdef enum:
    ACCEPTS = 64                # per round and listening socket
    ACCEPT_PAUSE_MS = 100


@cython.final
cdef class Acceptor:
    """The listening sockets of one worker."""

    def __cinit__(self, RouterState state not None, Connections connections not None):
        self.state = state
        self.counters = state.counters
        self.connections = connections
        self.listeners = {}
        self.connections_max = 0xFFFFFFFF
        self.connect_ms_max = 10_000

    def listen(self, int fd, int listener=0):
        """Accept connections of a listening, non-blocking socket. The caller keeps it open. `listener`: number of its
        listener, recorded in each of its connections. Raise ValueError if it is not below LISTENERS_MAX."""
        if not 0 <= listener < LISTENERS_MAX:
            raise ValueError(f"there is no listener {listener}")
        self.connections.poller.add(fd, READABLE, 4 * <size_t>fd + 1)       # bit 0: no object's address
        self.listeners[fd] = listener

    def stop(self):
        """Stop accepting connections."""
        for fd in self.listeners:
            self.connections.poller.remove(fd)
        self.listeners = {}
        self.paused = None

    cdef int accept(self, int listening) except -1:
        cdef object number = self.listeners.get(listening)
        cdef uint8_t listener
        cdef int fd, e
        cdef sockaddr_storage address
        cdef socklen_t n
        cdef Connection conn
        cdef Mark mark
        if number is None:                  # accepting was paused or stopped earlier in this round
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
                    continue                # that connection is gone; try the next one
                # no descriptor or no memory for it: pause instead of spinning
                self.counters.at[count.ACCEPT_ERRORS] += 1
                self.pause(e)
                break
            self.counters.at[count.CONNECTIONS_ACCEPTED] += 1
            listener_places(self.counters.at, listener)[<int>LISTENER_ACCEPTED] += 1
            if <uint32_t>len(self.connections.by_fd) >= self.connections_max:
                self.counters.at[count.CONNECTIONS_REFUSED] += 1
                self.state.handler.too_many_connections()
                close(fd)
                continue
            conn = self.connections.open(fd, listener)
            set_peer(conn, &address)
            if not self.may_come(conn):
                self.connections.end(conn)
                continue
            self.state.timers.schedule(&conn.timer, self.state.now_ms + self.connect_ms_max)
        callback_ends(&mark, ACCEPT)
        return 0

    cdef bint may_come(self, Connection conn) except -1:
        cdef int refused = self.connections.sources.arrive(conn, self.state.now_ms)
        if refused:
            self.counters.at[refused] += 1
            self.counters.at[count.CONNECTIONS_REFUSED] += 1
            self.state.handler.source_refused(conn, refused)
        return refused == 0

    cdef int pause(self, int error) except -1:
        # out of descriptors or memory: stop accepting for ACCEPT_PAUSE_MS
        listeners = self.listeners
        self.stop()
        self.paused = listeners
        self.state.handler.accept_failed(error)
        self.state.timers.call(self.state.now_ms + ACCEPT_PAUSE_MS, self._accept_again)
        return 0

    def _accept_again(self):
        listeners, self.paused = self.paused, None
        for fd, listener in (listeners or {}).items():      # None: stopped meanwhile
            self.listen(fd, listener)
