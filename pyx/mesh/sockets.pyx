"""The two ends of the mesh inside a host: a worker listens (`Pull`), and connects to each sibling (`Push`).

They behave as ZeroMQ's PULL, and PUSH with IMMEDIATE, and can be connected to those. A `Push` takes messages only while
its peer is there and reads; a message that was taken may be lost with its connection, which the links notice by their
numbers. A peer that is not there is tried again after RETRY_MS, then more and more rarely, up to RETRY_MS_MAX.
"""
cimport cython
from libc.stdint cimport uint64_t

import os
import socket

from pyx.core.kernel cimport monotonic_ns
from pyx.core.work cimport SYSTEM, work
from pyx.mesh.receiver cimport Receiver

cdef enum:
    RETRY_MS = 50
    RETRY_MS_MAX = 500
    PENDING_BYTES_MAX = 256 * 1024      # not taken by the kernel: more messages are refused
    CONNECTIONS_MAX = 1024              # of one Pull
    ACCEPTS = 64                        # per event

SOCKET_PATH_BYTES_MAX = 107             # linux/un.h: sun_path without its terminating zero


cdef str checked(str path):
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"{path}: longer than {SOCKET_PATH_BYTES_MAX} bytes")
    return path


@cython.final
cdef class Push:
    """The connection to the worker that listens on the unix socket `path`. `watcher`, `buffer`: see `ZmtpConnection`.
    `when_writable()` is called when it may take messages again, after it had refused one. Raises ValueError for a path
    of more than SOCKET_PATH_BYTES_MAX bytes."""

    def __cinit__(self, str path not None, watcher, when_writable, ReceiveBuffer buffer not None):
        self.path = checked(path)
        self.watcher = watcher
        self.when_writable = when_writable
        self.buffer = buffer
        self.pause_ms = RETRY_MS
        self.connect()

    @property
    def is_connected(self):
        """Whether the peer has greeted."""
        return self.connection is not None and self.connection.inbound.is_ready

    @property
    def pending(self):
        """Bytes that the kernel has not taken."""
        return self.connection.out.pending if self.connection is not None else 0

    cpdef bint send(self, list frames) except -1:
        """Take a message, to be sent by the next `flush`; return False and take nothing if the peer is not there, or if
        too much waits for it."""
        cdef ZmtpConnection connection = self.connection
        if connection is None or not connection.inbound.is_ready or connection.out.pending > PENDING_BYTES_MAX:
            self.is_refused = True
            return False
        connection.put(frames)
        return True

    def __call__(self, list frames):
        """As `send`."""
        return self.send(frames)

    cpdef flush(self):
        """Send what was taken, as far as the kernel takes it."""
        cdef ZmtpConnection connection = self.connection
        if connection is not None and connection.out.pending and not connection.waits_for_output:
            connection.send_now()
        if self.is_refused and connection is self.connection and self.is_connected:
            connection.wait_for_output()    # also if all was sent now: not in this call, whose caller asks to send

    def receive(self):
        """Read out of turn: the peer's greeting, and its PONGs."""
        cdef ZmtpConnection connection = self.connection    # it may end while it is read
        if connection is not None:
            connection.ready()

    def ping(self):
        """Put a PING, to be sent by the next `flush`; the peer answers it with a PONG."""
        if self.connection is not None:
            self.connection.ping()

    @property
    def pongs(self):
        """Number of PONGs received on the present connection."""
        return self.connection.inbound.pongs if self.connection is not None else 0

    def tick(self, uint64_t now_ms):
        """Connect again if it is time. `now_ms`: of the monotonic clock."""
        cdef ZmtpConnection connection = self.connection
        if connection is not None:
            connection.tick(now_ms)
        elif now_ms >= self.retry_ms:
            self.connect()

    def reconnect(self):
        """Connect anew at once; what waits in the old connection is lost (it was for a dead incarnation)."""
        self.close()
        self.pause_ms = RETRY_MS
        self.connect()

    def close(self):
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    cdef connect(self):
        self.retry_ms = monotonic_ns() // 1_000_000 + self.pause_ms
        self.pause_ms = min(2 * self.pause_ms, <uint64_t>RETRY_MS_MAX)
        work(3 * SYSTEM)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as made:
            try:
                made.connect(self.path)     # a unix socket connects at once, or not at all
            except OSError:
                return
            self.connection = ZmtpConnection(
                made.detach(), b"PUSH", b"PULL", self.buffer, self.watcher, None, self._ready, self._sent, self._lost
            )
        self.connection.flush()

    def _ready(self):
        self.pause_ms = RETRY_MS
        self._sent()

    def _sent(self):
        if self.is_refused:
            self.is_refused = False
            self.when_writable()

    def _lost(self, reason, malformed):
        self.connection = None


@cython.final
cdef class Pull:
    """The socket on which a worker hears its siblings, bound to the unix socket `path`, from which it displaces a dead
    predecessor. `receiver`, `watcher`, `buffer`: see `ZmtpConnection`. Raises OSError, and ValueError for a path of
    more than SOCKET_PATH_BYTES_MAX bytes."""

    cdef object listening
    cdef object watcher
    cdef Receiver receiver
    cdef ReceiveBuffer buffer
    cdef dict connections               # by number
    cdef uint64_t accepted
    cdef uint64_t surely_had_room       # bytes
    cdef readonly uint64_t malformed    # connections that were closed for what their peer had sent

    def __cinit__(self, str path not None, watcher, Receiver receiver not None, ReceiveBuffer buffer not None):
        self.watcher = watcher
        self.receiver = receiver
        self.buffer = buffer
        self.connections = {}
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            if os.path.exists(checked(path)):
                os.unlink(path)
            self.listening.bind(path)
            self.listening.listen(CONNECTIONS_MAX)
        except BaseException:
            self.listening.close()
            raise
        # a message of 106 bytes, the shortest of the mesh, takes at least 768 bytes of the buffer
        self.surely_had_room = self.listening.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 32
        watcher.watch_in_round(self.listening.fileno(), self.accept)

    def __len__(self):
        return len(self.connections)

    def accept(self):
        """Accept connections."""
        for _ in range(ACCEPTS):
            work(SYSTEM)
            try:
                made, _ = self.listening.accept()
            except OSError:                 # there are no more, or no descriptors: it is tried again
                return
            with made:
                if len(self.connections) >= CONNECTIONS_MAX:
                    continue
                made.setblocking(False)
                self.adopt(made.detach())

    cdef adopt(self, int fd):
        cdef uint64_t number = self.accepted
        cdef ZmtpConnection connection = ZmtpConnection(
            fd, b"PULL", b"PUSH", self.buffer, self.watcher, self.receiver, _nothing, _nothing,
            lambda _reason, malformed: self._lost(number, malformed)
        )
        self.accepted += 1
        self.connections[number] = connection
        connection.flush()

    def _lost(self, number, malformed):
        self.malformed += malformed
        self.connections.pop(number, None)

    def go_on(self):
        """Take the messages that were left because the receiver wanted no more."""
        for connection in list(self.connections.values()):
            (<ZmtpConnection>connection).go_on()

    def receive(self):
        """Accept and read out of turn: for a caller that does not wait for events now. Return whether that was all that
        these peers had to say: each has spoken before, and none can have waited for room in its socket since the
        receiver was last certain that it was not paused (`Receiver.trust`).
        """
        cdef ZmtpConnection connection
        cdef bint is_all = True
        self.accept()
        for each in list(self.connections.values()):
            connection = each
            if not connection.has_spoken:
                is_all = False
            connection.ready()
            if connection.trusts == self.receiver.trusts and \
                    connection.received - connection.trusted > self.surely_had_room or \
                    connection.is_stopped or not connection.is_drained:
                is_all = False
        return is_all

    def tick(self, uint64_t now_ms):
        """Close connections whose peer is silent for longer than it has promised. `now_ms`: of the monotonic clock."""
        for connection in list(self.connections.values()):
            (<ZmtpConnection>connection).tick(now_ms)

    def close(self):
        """Close all sockets."""
        if self.listening.fileno() >= 0:
            self.watcher.unwatch(self.listening.fileno())
            self.listening.close()
        for connection in self.connections.values():
            (<ZmtpConnection>connection).close()
        self.connections = {}


def _nothing():
    pass
