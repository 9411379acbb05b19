"""The connections of one worker, by descriptor: opening, read interest, ending."""
cimport cython

from pyx.core.counters cimport LISTENER_CONNECTIONS, listener_places
from pyx.core.kernel cimport close
from pyx.core.work cimport SYSTEM, work
from pyx.delivery.connection cimport CLOSED
from pyx.delivery.router_state cimport SLICE
from pyx.io.poller cimport READABLE, WRITABLE

OF_BRIDGES = <int>OF_BRIDGES_


@cython.final
cdef class Connections:
    """The open connections; each is watched by the poller, and has a strong reference here."""

    def __cinit__(self, RouterState state not None, Poller poller not None):
        self.state = state
        self.counters = state.counters
        self.timers = state.timers
        self.poller = poller
        self.sources = Sources()
        self.by_fd = {}
        self.graveyard = []
        self.slice = SLICE

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
        self.by_fd[fd] = conn
        self.state.is_active = True
        listener_places(self.counters.at, listener)[<int>LISTENER_CONNECTIONS] += 1
        return conn

    cdef int interest(self, Connection conn) except -1:
        return self.poller.change(conn.fd, (0 if conn.not_reading else READABLE) | (WRITABLE if conn.want_write else 0),
                                  <size_t><void*>conn)

    cdef int stop_reading(self, Connection conn) except -1:
        conn.not_reading = True
        return self.interest(conn)

    cdef int read_on(self, Connection conn) except -1:
        conn.not_reading = False
        return self.interest(conn)

    cdef int end(self, Connection conn) except -1:
        conn.state = CLOSED
        self.state.is_active = True
        if conn.source is not None:
            self.sources.leave(conn)
        self.timers.cancel(&conn.timer)
        if conn.fd >= 0:
            self.poller.remove(conn.fd)
            close(conn.fd)
            work(3 * SYSTEM)
            if self.by_fd.pop(conn.fd, None) is not None:
                listener_places(self.counters.at, conn.listener)[<int>LISTENER_CONNECTIONS] -= 1
            conn.fd = -1
            self.graveyard.append(conn)
        conn.session = None
        conn.drop_acks()
        conn.free_part()
        self.state.discard_output(conn)
        return 0
