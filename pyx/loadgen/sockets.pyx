"""Thousands of client connections on one epoll set: their buffers, for pending output and partly read packets.

Nothing per message is Python. A connection may have a transport between MQTT and its socket (TLS, WebSocket:
loadtest.transport), which is Python, called once per read and per write of everything gathered.
"""
import os

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove

from pyx.core.kernel cimport (
    CLOCK_MONOTONIC,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_MOD,
    EPOLLERR,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    MSG_NOSIGNAL,
    close,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    monotonic_ns,
    recv,
    send,
    timespec,
)
from pyx.loadgen.ledger cimport (
    BYTES_RECEIVED,
    BYTES_SENT,
    CONNECTED,
    CONNECTIONS_LOST,
    CONNECTIONS_REFUSED,
    LATE_NOW,
    Ledger,
    PROTOCOL_ERRORS,
    UNKNOWN,
    grown,
    zeroed,
)

cdef extern from "<sys/timerfd.h>" nogil:
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec* new, itimerspec* old)
    enum: TFD_NONBLOCK, TFD_CLOEXEC, TFD_TIMER_ABSTIME

cdef extern from "<unistd.h>" nogil:
    ssize_t read(int fd, void* to, size_t n)

cdef enum:
    EVENTS = 512
    READ_BYTES = 262_144
    SAID_MAX = 20


cdef uint8_t* reserve(Buffer* b, uint32_t n) except NULL:
    # room for n bytes at the tail, valid until the next call; the contents may move
    cdef uint32_t cap
    if b.head == b.tail:
        b.head = b.tail = 0
    if b.tail + n > b.cap:
        if b.head:
            memmove(b.bytes, b.bytes + b.head, b.tail - b.head)
            b.tail -= b.head
            b.head = 0
        if b.tail + n > b.cap:
            cap = b.cap if b.cap else 64
            while cap < b.tail + n:
                cap *= 2
            b.bytes = <uint8_t*>grown(b.bytes, cap)
            b.cap = cap
    return b.bytes + b.tail


cdef int append(Buffer* b, const uint8_t* p, uint32_t n) except -1:
    memcpy(reserve(b, n), p, n)
    b.tail += n
    return 0


cdef class Sockets(Ledger):
    """The connections of one process. Subclasses interpret the packets."""

    def __cinit__(self, *_, **__):
        self.buffer = <uint8_t*>zeroed(READ_BYTES, 1)
        self.said = []
        self.transports = {}
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self.epoll < 0 or self.timer < 0:
            raise OSError(errno, "epoll or timerfd")
        self.register(EPOLL_CTL_ADD, self.timer, EPOLLIN, NULL)

    def __dealloc__(self):
        cdef uint32_t i
        cdef Client* c
        for i in range(self.clients_count):
            c = self.clients[i]
            if c.fd >= 0:
                close(c.fd)
            free(c.out.bytes)
            free(c.wire.bytes)
            free(c.part.bytes)
            free(c.heads)
            free(c.since)
            free(c.heard_of.nexts)
            free(c)
        free(self.clients)
        free(self.dirty)
        free(self.buffer)
        if self.timer > 0:
            close(self.timer)
        if self.epoll > 0:
            close(self.epoll)

    cdef int register(self, int how, int fd, uint32_t events, Client* c) except -1:
        cdef epoll_event event
        event.events = events
        event.data.ptr = c
        if epoll_ctl(self.epoll, how, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    cdef Client* new_client(self, int fd, object transport) except NULL:
        # takes over a socket whose non-blocking connect(2) has begun
        cdef Client* c = <Client*>zeroed(1, sizeof(Client))
        cdef uint32_t cap
        c.fd = fd
        c.publisher = c.heard_of.number = c.heard_of.only = c.heard_of.only_next = UNKNOWN
        c.began = c.heard = monotonic_ns()
        if self.clients_count == self.clients_cap:
            cap = self.clients_cap * 2 if self.clients_cap else 64
            self.clients = <Client**>grown(self.clients, cap * sizeof(void*))
            self.dirty = <Client**>grown(self.dirty, cap * sizeof(void*))
            self.clients_cap = cap
        self.clients[self.clients_count] = c
        self.clients_count += 1
        self.remaining += 1
        if transport is not None:
            self.transports[fd] = transport
            c.is_wrapped = True
        c.is_writing = True
        self.register(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT, c)
        return c

    cdef int say(self, str what) except -1:
        if len(self.said) < SAID_MAX:
            self.said.append(what)
        return 0

    # ------------------------------------------------------------ output

    cdef int touch(self, Client* c) except -1:
        if not c.is_dirty:
            c.is_dirty = True
            self.dirty[self.dirty_count] = c
            self.dirty_count += 1
        return 0

    cdef uint8_t* room(self, Client* c, uint32_t n) except NULL:
        # the caller fills n bytes there, and adds n to c.out.tail
        self.touch(c)
        return reserve(&c.out, n)

    cdef int put(self, Client* c, const uint8_t* p, uint32_t n) except -1:
        self.touch(c)
        return append(&c.out, p, n)

    cdef int flush_all(self) except -1:
        cdef uint32_t i
        cdef Client* c
        cdef uint32_t n = self.dirty_count
        self.dirty_count = 0
        for i in range(n):
            c = self.dirty[i]
            c.is_dirty = False
            if c.state != CLOSED and not c.is_writing:
                self.flush(c)
        return 0

    cdef int flush(self, Client* c) except -1:
        cdef ssize_t r
        cdef bint full = False
        cdef Buffer* b = &c.wire if c.is_wrapped else &c.out
        if c.is_wrapped and not self.wrap(c):
            return 0
        while b.tail > b.head:
            r = send(c.fd, b.bytes + b.head, b.tail - b.head, MSG_NOSIGNAL)
            if r < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    full = True
                    break
                return self.lost(c)
            b.head += <uint32_t>r
            self.row[BYTES_SENT] += <uint64_t>r
        if full != c.is_writing:
            c.is_writing = full
            self.register(EPOLL_CTL_MOD, c.fd, EPOLLIN | EPOLLOUT if full else EPOLLIN, c)
        if c.is_last_word and not full:
            self.end(c)
        return 0

    cdef bint wrap(self, Client* c) except -1:
        # encodes its output by its transport; returns whether that succeeded
        cdef bytes data
        transport = self.transports[c.fd]
        try:
            if filled(&c.out):
                transport.give((<char*>c.out.bytes)[c.out.head:c.out.tail])
                c.out.head = c.out.tail
            if c.is_last_word:
                transport.finish()
            data = transport.outgoing()
        except OSError as error:
            self.say(str(error))
            self.lost(c)
            return False
        append(&c.wire, <const uint8_t*><const char*>data, <uint32_t>len(data))
        return True

    cdef int end(self, Client* c) except -1:
        self.transports.pop(c.fd, None)
        close(c.fd)                         # which also removes it from epoll
        c.fd = -1
        c.state = CLOSED
        self.remaining -= 1
        self.row[LATE_NOW] -= c.owed
        c.owed = 0
        return 0

    cdef int lost(self, Client* c) except -1:
        if c.is_last_word:
            return self.end(c)
        if c.state == OPEN:
            self.row[CONNECTED] -= 1
            self.row[CONNECTIONS_LOST] += 1
        else:
            self.row[CONNECTIONS_REFUSED] += 1
        return self.end(c)

    cdef int wrong(self, Client* c, str why) except -1:
        # invalid MQTT, or a packet that a client must not get: reported, and the connection is closed
        self.row[PROTOCOL_ERRORS] += 1
        self.say(why)
        return self.lost(c)

    # ------------------------------------------------------------ input

    cdef int wait(self, uint64_t until_ns) except -1:
        # one round: waits until something happens, or then; until_ns in the past: handles what has happened already
        cdef epoll_event[EVENTS] events
        cdef int n, i
        cdef Client* c
        self.now = monotonic_ns()
        if until_ns > self.now:
            self.wake_at(until_ns)
            with nogil:
                n = epoll_wait(self.epoll, events, EVENTS, -1)
        else:
            n = epoll_wait(self.epoll, events, EVENTS, 0)
        if n < 0:
            if errno == EINTR:
                return 0
            raise OSError(errno, "epoll_wait")
        self.now = monotonic_ns()
        for i in range(n):
            c = <Client*>events[i].data.ptr
            if c == NULL:
                self.wake_at(0)
            elif c.state != CLOSED:
                self.turn(c, events[i].events)
        return 1

    cdef int wake_at(self, uint64_t at) except -1:
        # 0: it has rung
        cdef itimerspec t
        cdef uint64_t rung
        if at == 0:
            read(self.timer, &rung, sizeof(rung))
            return 0
        t.it_interval.tv_sec = t.it_interval.tv_nsec = 0
        t.it_value.tv_sec = <long>(at // 1_000_000_000)
        t.it_value.tv_nsec = <long>(at % 1_000_000_000)
        if timerfd_settime(self.timer, TFD_TIMER_ABSTIME, &t, NULL) < 0:
            raise OSError(errno, "timerfd_settime")
        return 0

    cdef int turn(self, Client* c, uint32_t what) except -1:
        if what & EPOLLOUT:
            self.flush(c)
        if c.state != CLOSED and what & (EPOLLIN | EPOLLERR | EPOLLHUP):
            self.take(c)
        return 0

    cdef int take(self, Client* c) except -1:
        cdef ssize_t r
        cdef uint32_t have = 0 if c.is_wrapped else filled(&c.part)
        cdef bint is_large = have > READ_BYTES // 2     # of a large packet: read behind the bytes that are there
        cdef uint8_t* to = reserve(&c.part, READ_BYTES) if is_large else self.buffer + have
        if have and not is_large:
            memcpy(self.buffer, c.part.bytes + c.part.head, have)
        while True:
            r = recv(c.fd, to, READ_BYTES if is_large else READ_BYTES - have, 0)
            if r >= 0 or errno != EINTR:
                break
        if r <= 0:
            if r < 0 and errno == EAGAIN:
                return 0
            if c.state != OPEN:
                why = "closed by the broker" if r == 0 else os.strerror(errno)
                self.say(f"a connection that ended before its CONNACK: {why}")
            return self.lost(c)
        self.row[BYTES_RECEIVED] += <uint64_t>r
        c.heard = self.now
        if c.is_wrapped:
            return self.unwrapped(c, <uint32_t>r)
        if is_large:
            c.part.tail += <uint32_t>r
            return self.fed(c, NULL, 0)
        c.part.head = c.part.tail
        return self.fed(c, self.buffer, have + <uint32_t>r)

    cdef int unwrapped(self, Client* c, uint32_t n) except -1:
        cdef bytes data
        try:
            data = self.transports[c.fd].take((<char*>self.buffer)[:n])
        except OSError as error:            # no certificate to trust, no WebSocket, ...
            self.say(str(error))
            return self.lost(c)
        self.touch(c)                       # it may have an answer to send
        if filled(&c.part) == 0:
            return self.fed(c, <const uint8_t*><const char*>data, <uint32_t>len(data))
        append(&c.part, <const uint8_t*><const char*>data, <uint32_t>len(data))
        return self.fed(c, NULL, 0)

    cdef int fed(self, Client* c, const uint8_t* p, uint32_t n) except -1:
        # takes whole packets and keeps the rest. p: bytes with nothing before them, NULL: the kept bytes
        cdef uint32_t used
        if p == NULL:
            used = self.packets(c, c.part.bytes + c.part.head, filled(&c.part))
            c.part.head += used
            return 0
        used = self.packets(c, p, n)
        if used < n and c.state != CLOSED:
            append(&c.part, p + used, n - used)
        return 0

    cdef uint32_t packets(self, Client* c, const uint8_t* p, uint32_t n) except? 0:
        # processes all whole packets; returns their size
        raise NotImplementedError
