"""One ZMTP connection over a connected, non-blocking socket in the worker's own poller: no thread, no context.

What is put is sent by `flush`, in as few sendmsg as possible. Reading takes one recv per event. Messages
go to its receiver (`pyx.mesh.receiver`). The functions that it is given are called from within an event, `go_on`,
`flush` and `tick`:

    when_ready()                    both sides have greeted: messages may be put
    when_sent()                     the kernel has taken everything, after it had refused something
    when_lost(reason, malformed)    the connection has ended, and is closed. malformed: for what the peer has sent
"""
cimport cython
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pyx.core.kernel cimport EAGAIN, EINTR, close, errno, recv
from pyx.core.outbox cimport outbox_advance, outbox_clear
from pyx.core.outbox_send cimport outbox_send
from pyx.core.work cimport KIBI, SYSTEM, work
from pyx.mesh.zmtp cimport put_greeting, put_message, put_ping, put_pong, put_ready
from pyx.mesh.zmtp import ZmtpError

cdef enum:
    RECEIVE_BYTES = 256 * 1024  # per recv: more than the kernel's buffer of a unix socket
    PONGS_BYTES_MAX = 64 * 1024     # that wait to be sent


@cython.final
cdef class ReceiveBuffer:
    """The memory that the connections of one worker receive into, one after the other."""

    def __cinit__(self):
        self.at = <uint8_t*>malloc(2 * RECEIVE_BYTES)
        if self.at == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.at)


@cython.final
cdef class ZmtpConnection(EventHandler):
    """A connection over `fd`, which it owns. `own_type`, `peer_type`: the socket types PUSH and PULL. `watcher`: has
    `watch_in_round`, `unwatch` and `watch_output` of the reactor. The greeting is sent by the first `flush`."""

    def __cinit__(self, int fd, bytes own_type not None, bytes peer_type not None, ReceiveBuffer buffer not None,
                  watcher, Receiver receiver, when_ready, when_sent, when_lost):
        self.fd = -1
        self.inbound = Inbound(peer_type)
        self.buffer = buffer
        self.watcher = watcher
        self.receiver = receiver
        self.when_ready = when_ready
        self.when_sent = when_sent
        self.when_lost = when_lost
        put_greeting(&self.out)
        put_ready(&self.out, own_type)
        self.fd = fd                    # closed from here on if anything raises
        watcher.watch_in_round(fd, self)

    def __dealloc__(self):
        outbox_clear(&self.out)
        free(self.part)
        if self.fd >= 0:
            close(self.fd)

    @property
    def is_ready(self):
        """Whether messages may be put."""
        return self.inbound.is_ready

    @property
    def pending(self):
        """Bytes that the kernel has not taken."""
        return self.out.pending

    @property
    def pongs(self):
        """Number of PONGs received."""
        return self.inbound.pongs

    # ------------------------------------------------------------ out

    cdef int put(self, list frames) except -1:
        return put_message(&self.out, frames)

    def message(self, list frames not None):
        """Put a message: objects with the buffer protocol, which must not change until they were sent."""
        self.put(frames)

    def ping(self, int ttl_tenths=0):
        """Put a PING: the peer answers it with a PONG. `ttl_tenths`: the peer may close the connection if it hears
        nothing more for so many tenths of a second; 0: it may not."""
        put_ping(&self.out, ttl_tenths)

    def flush(self):
        """Send what was put, as far as the kernel takes it."""
        if self.fd >= 0 and not self.waits_for_output:
            self.send_now()

    cdef int wait_for_output(self) except -1:
        # call `when_sent` as soon as the kernel has room, by an event
        if self.fd >= 0 and not self.waits_for_output:
            self.waits_for_output = True
            self.watcher.watch_output(self.fd, True)
        return 0

    cdef int send_now(self) except -1:
        cdef size_t total
        cdef ssize_t r
        cdef int e
        cdef bint full = False
        while self.out.pending:
            r = outbox_send(self.fd, &self.out, &total)
            work(SYSTEM + (<size_t>r // 1024 * KIBI if r > 0 else 0))
            if r < 0:
                e = errno
                if e == EINTR:
                    continue
                if e == EAGAIN:
                    full = True
                    break
                return self.lost(f"the connection is broken: errno {e}", False)
            if <uint64_t>r == self.out.pending:
                outbox_clear(&self.out)
            else:
                outbox_advance(&self.out, r)
                if <size_t>r < total:
                    full = True
                    break
        if full != self.waits_for_output:
            self.waits_for_output = full
            self.watcher.watch_output(self.fd, full)
            if not full:
                self.when_sent()
        return 0

    # ------------------------------------------------------------ in

    cdef int ready(self) except -1:
        # an event of the poller: output has room, or there are bytes, or the connection has ended
        if self.waits_for_output:
            self.send_now()
        if self.fd >= 0 and not self.is_stopped and self.may_receive():
            self.receive()
        return 0

    cdef bint may_receive(self) except -1:
        return self.receiver is None or self.receiver.may_receive()

    def go_on(self):
        """Take the messages that were left because the receiver wanted no more."""
        if self.fd >= 0 and self.is_stopped and self.may_receive():
            self.receive()

    cdef int receive(self) except -1:
        cdef uint8_t* to
        cdef size_t room = RECEIVE_BYTES, front = self.part_len
        cdef ssize_t r
        cdef int e
        try:
            if self.is_stopped:
                self.is_stopped = False
                self.part_len = 0
                memcpy(self.buffer.at, self.part, front)
                return self.take(self.buffer.at, front)
            to = self.inbound.place(&room)
            if to == NULL:
                if front:
                    memcpy(self.buffer.at, self.part, front)
                to = self.buffer.at + front
            elif room > RECEIVE_BYTES:
                room = RECEIVE_BYTES
            r = recv(self.fd, to, room, 0)
            self.is_drained = r < <ssize_t>room and (r >= 0 or errno == EAGAIN)
            work(SYSTEM + (<size_t>r // 1024 * KIBI if r > 0 else 0))
            if r < 0:
                e = errno
                if e == EAGAIN or e == EINTR:
                    return 0
                return self.lost(f"the connection is broken: errno {e}", False)
            if r == 0:
                return self.lost("the peer has closed the connection", False)
            self.heard = True
            if self.receiver is not None and self.receiver.trusts != self.trusts:
                self.trusts = self.receiver.trusts
                self.trusted = self.received
            self.received += <uint64_t>r
            if self.inbound.frame is not None:
                self.inbound.placed(r)
                return self.pass_on()
            self.part_len = 0
            return self.take(self.buffer.at, front + <size_t>r)
        except ZmtpError as error:
            return self.lost(str(error), True)

    cdef int take(self, const uint8_t* data, size_t n) except -1:
        cdef size_t at = 0, taken
        cdef bint was_ready = self.inbound.is_ready
        while at < n:
            taken = self.inbound.take(data + at, n - at)
            if not taken:
                break
            at += taken
            if not was_ready and self.inbound.is_ready:
                was_ready = True
                self.when_ready()
                if self.fd < 0:             # what it has put could not be sent
                    return 0
            if self.inbound.ping is not None:
                ping = self.inbound.take_ping()
                if self.out.pending < PONGS_BYTES_MAX:      # else the peer asks without listening
                    put_pong(&self.out, ping)
            if self.inbound.message is not None:
                self.pass_on()
                if self.is_stopped:
                    break
            if self.fd < 0:
                return 0
        self.keep(data + at, n - at)
        if self.out.pending and not self.waits_for_output and self.fd >= 0:
            self.send_now()                 # an answer to a PING, or what `when_ready` has put
        return 0

    cdef int pass_on(self) except -1:
        cdef list frames = self.inbound.message
        if frames is not None:
            self.inbound.message = None
            self.has_spoken = True
            self.is_stopped = self.receiver is not None and self.receiver.received(frames)
        return 0

    cdef int keep(self, const uint8_t* data, size_t n) except -1:
        # n is at most 2 * RECEIVE_BYTES, mostly 0; data is in the receive buffer, which others use in between
        cdef uint8_t* kept
        if self.part != NULL:
            free(self.part)
            self.part = NULL
        self.part_len = n
        if not n:
            self.is_stopped = False
            return 0
        kept = <uint8_t*>malloc(n)
        if kept == NULL:
            raise MemoryError
        memcpy(kept, data, n)
        self.part = kept
        return 0

    # ------------------------------------------------------------ time, and the end

    def tick(self, uint64_t now_ms):
        """Close the connection if the peer is silent for longer than its PING has promised."""
        if self.heard or not self.heard_ms:
            self.heard = False
            self.heard_ms = now_ms
        elif self.fd >= 0 and self.inbound.ttl_ms and now_ms - self.heard_ms > self.inbound.ttl_ms:
            self.lost("the peer is silent", False)

    cdef int lost(self, str reason, bint malformed) except -1:
        self.close()
        self.when_lost(reason, malformed)
        return 0

    def close(self):
        """Close the connection; what was put and not sent is dropped. No function is called."""
        if self.fd >= 0:
            self.watcher.unwatch(self.fd)
            close(self.fd)
            self.fd = -1
            self.is_stopped = False
            outbox_clear(&self.out)
