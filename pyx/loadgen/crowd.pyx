"""Thousands of MQTT clients on one epoll set: publishers, subscribers, or both, and the check of every delivery.

This is the broker's data path in the role of the client, for `loadtest.flood`: nothing per message is Python. A
process has one Crowd; publishers and subscribers of one run may be in several processes, which share memory for the
progress of deliveries and the numbers of messages sent.

Payloads and counts: pyx.loadgen.ledger.
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from pyx.core.kernel cimport monotonic_ns, timespec
from pyx.loadgen.ledger cimport (
    ACKNOWLEDGED,
    ACKNOWLEDGEMENT,
    CONNECT,
    CONNECTED,
    LATE_NOW,
    LATENESS,
    PUBLISHES_REFUSED,
    SENT,
    SUBSCRIBED,
    SUBSCRIPTIONS_REFUSED,
    UNKNOWN,
    grown,
    zeroed,
)
from pyx.loadgen.sockets cimport CLOSED, CONNECTING, OPEN, SUBSCRIBING, Client, Sockets, filled
from pyx.protocol.decoders cimport fixed_header
from pyx.protocol.encoders cimport put_ack
from pyx.protocol.packets cimport CONNACK, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK
from pyx.protocol.wire cimport put_u16, put_varint, varint_size

cdef extern from "<time.h>" nogil:
    int nanosleep(const timespec* wanted, timespec* left)

cdef enum:
    OUT_BYTES_MAX = 65_536          # of QoS 0 in one go; the rest waits in the client, where its schedule is kept
    LOOK_NS = 100_000               # interval of checking publishers that wait for deliveries


@cython.final
cdef class Crowd(Sockets):
    """The clients of one process. The arguments of Ledger, and

    version: 3, 4, 5. qos: of publishes. window: number of a publisher's messages that may be unacknowledged. copies:
    number of deliveries due per message, 0 = not counted. lag: number of a publisher's messages that may wait for their
    deliveries when there is no rate.

    said: why connections were refused or ended, the first 20.
    """

    cdef int version, qos
    cdef bint publishing
    cdef uint32_t window, lag, copies, head_bytes_max
    cdef Client** own               # publishers of this process
    cdef uint32_t own_count, own_cap, pinged
    cdef double period              # ns between two messages of this process, 0 = no rate
    cdef uint64_t begun, scheduled, next_look, gap, round_ended

    def __cinit__(
        self, row, delivered, deliveries, sent, list topics not None, list payloads not None, *,
        int version, int qos, uint32_t window, uint32_t lag, uint32_t copies, **_,
    ):
        if version not in (3, 4, 5) or not 0 <= qos <= 2 or not 0 < window <= 65_535:
            raise ValueError("version 3 to 5, QoS 0 to 2, a window of 1 to 65,535")
        self.version, self.qos, self.window, self.lag, self.copies = version, qos, window, lag, copies
        self.head_bytes_max = 5 + 2 + max(map(len, topics)) + 2 + 1

    def __dealloc__(self):
        free(self.own)

    # ------------------------------------------------------------ clients

    def add(
        self, int fd, bytes hello not None, uint32_t number=UNKNOWN, uint32_t publisher=UNKNOWN, transport=None
    ):
        """Take over a socket whose non-blocking connect(2) has begun. hello: its first bytes: CONNECT, and SUBSCRIBE
        right behind it for a subscriber, which has `number` in the run. publisher: its number, if it is a publisher.
        transport: one of loadtest.transport between MQTT and the socket, or None."""
        cdef Client* c = self.new_client(fd, transport)
        c.publisher, c.heard_of.number = publisher, number
        if publisher != UNKNOWN:
            if self.own_count == self.own_cap:
                self.own_cap = self.own_cap * 2 if self.own_cap else 64
                self.own = <Client**>grown(self.own, self.own_cap * sizeof(void*))
            c.local = self.own_count
            self.own[self.own_count] = c
            self.own_count += 1
            self.make_heads(c)
            if self.qos:
                c.since = <uint64_t*>zeroed(self.window, sizeof(uint64_t))
        self.put(c, <const uint8_t*><const char*>hello, <uint32_t>len(hello))

    cdef inline uint32_t rest_of_head(self, Client* c) noexcept:
        # bytes between the fixed header and the payload
        return 2 + self.topic_bytes[c.publisher] + (2 if self.qos else 0) + (self.version == 5)

    cdef int make_heads(self, Client* c) except -1:
        cdef uint8_t* p
        cdef uint32_t i
        cdef uint32_t topic_bytes = self.topic_bytes[c.publisher]
        c.heads = <uint8_t*>zeroed(self.kinds_count, self.head_bytes_max)
        for i in range(self.kinds_count):
            p = c.heads + i * self.head_bytes_max
            p[0] = <uint8_t>(PUBLISH << 4 | self.qos << 1)
            p = put_varint(p + 1, self.rest_of_head(c) + self.kinds[i].size)
            put_u16(p, <uint16_t>topic_bytes)
            memcpy(p + 2, self.topics[c.publisher], topic_bytes)
        return 0

    # ------------------------------------------------------------ publishing

    def start(self, uint64_t at_ns, double rate=0, double first=0, uint64_t gap_ns=0):
        """Publish from that time on. rate: messages per second of all publishers of this process, 0: as fast as acks
        and deliveries arrive; first: in 0 .. 1, of the time between two messages, so that processes take turns. gap_ns:
        the least time between two rounds, so that not every single write of a broker wakes this process."""
        self.gap = gap_ns
        self.begun = at_ns
        self.scheduled = 0
        self.period = 1e9 / rate if rate > 0 and self.own_count else 0
        self.begun += <uint64_t>(first * self.period)
        self.publishing = self.own_count > 0

    def stop(self):
        """Stop publishing; due messages that were not sent are dropped."""
        cdef uint32_t i
        self.publishing = False
        self.gap = 0
        for i in range(self.own_count):
            self.own[i].owed = 0
        self.row[LATE_NOW] = 0

    @property
    def unanswered(self):
        """Return the number of QoS 1 and 2 messages whose last ack has not arrived."""
        cdef uint32_t i
        cdef uint64_t total = 0
        for i in range(self.own_count):
            if self.own[i].state == OPEN:
                total += self.own[i].inflight
        return total

    cdef inline uint64_t due_of(self, Client* c, uint64_t sequence) noexcept:
        return self.begun + <uint64_t>((<double>sequence * self.own_count + c.local) * self.period)

    cdef int publish(self, Client* c, uint64_t scheduled) except -1:
        cdef uint32_t which = self.kind_of(c.sequence)
        cdef uint32_t size = self.kinds[which].size
        cdef uint32_t rest = self.rest_of_head(c)
        cdef uint32_t head = 1 + varint_size(rest + size) + rest
        cdef uint8_t* p = self.room(c, head + size)
        cdef uint32_t slot
        memcpy(p, c.heads + which * self.head_bytes_max, head)
        p += head
        if self.qos:
            slot = c.next_id
            while c.since[slot]:
                slot = slot + 1 if slot + 1 < self.window else 0
            c.since[slot] = scheduled
            c.next_id = <uint16_t>(slot + 1 if slot + 1 < self.window else 0)
            c.inflight += 1
            put_u16(p - (3 if self.version == 5 else 2), <uint16_t>(slot + 1))
        self.fill_payload(p, which, c.publisher, c.sequence, scheduled)
        c.out.tail += head + size
        c.sequence += 1
        self.sent[c.publisher] = c.sequence
        self.row[SENT] += 1
        return 0

    cdef inline bint can_send(self, Client* c) noexcept:
        if c.state != OPEN or c.is_writing:
            return False
        if self.qos:
            return c.inflight < self.window
        return filled(&c.out) < OUT_BYTES_MAX

    cdef int by_schedule(self) except -1:
        # sends everything that is due, in turn
        cdef uint64_t due, i
        cdef Client* c
        if self.now < self.begun:
            return 0
        due = <uint64_t>((self.now - self.begun) / self.period) + 1
        for i in range(self.scheduled, due):
            c = self.own[i % self.own_count]
            if c.owed or not self.can_send(c):
                if c.state == OPEN:
                    c.owed += 1
                    self.row[LATE_NOW] += 1
                continue
            self.send_due(c)
        self.scheduled = due
        return 0

    cdef int send_due(self, Client* c) except -1:
        cdef uint64_t scheduled = self.due_of(c, c.sequence)
        self.observe(LATENESS, self.now - scheduled if self.now > scheduled else 0)
        return self.publish(c, scheduled)

    cdef int send_owed(self, Client* c) except -1:
        # sends messages held back by its window or its socket; their latency counts from when they were due
        while c.owed and self.can_send(c):
            c.owed -= 1
            self.row[LATE_NOW] -= 1
            self.send_due(c)
        return 0

    cdef int by_answers(self, Client* c) except -1:
        # without a rate: sends until the window is full, and not too far ahead of the deliveries
        cdef uint64_t came = 0, room
        cdef int i
        if not self.can_send(c):
            return 0
        room = 0xFFFFFFFF
        if self.copies:
            for i in range(self.processes):
                came += self.deliveries[<uint64_t>i * self.publishers + c.publisher]
            came //= self.copies
            room = self.lag - (c.sequence - came) if c.sequence - came < self.lag else 0
            if self.qos == 0 and room * 4 < self.lag:
                return 0                    # full socket buffers, as with a busy link
        while room and self.can_send(c):
            self.publish(c, self.now)
            room -= 1
        return 0

    cdef int publish_all(self) except -1:
        cdef uint32_t i
        if self.period:
            return self.by_schedule()
        if self.now < self.next_look or self.now < self.begun:
            return 0
        self.next_look = self.now + LOOK_NS
        for i in range(self.own_count):
            self.by_answers(self.own[i])
        return 0

    # ------------------------------------------------------------ a round

    def run(self, uint64_t until_ns):
        """Send and receive until then."""
        cdef uint64_t wake
        self.now = monotonic_ns()
        while self.now < until_ns:
            if self.publishing:
                self.publish_all()
            self.flush_all()
            if self.gap:
                self.rest()
            wake = until_ns
            if self.publishing:
                if self.period:
                    wake = min(wake, max(self.begun, self.begun + <uint64_t>(self.scheduled * self.period)))
                elif self.copies or self.qos == 0:
                    wake = min(wake, max(self.begun, self.next_look))
            if not self.wait(wake):
                break                       # a signal: Python handles it

    cdef int rest(self) except -1:
        # waits until the least time between two rounds is over
        cdef timespec t
        cdef uint64_t now = monotonic_ns()
        if now < self.round_ended + self.gap:
            t.tv_sec = 0
            t.tv_nsec = <long>(self.round_ended + self.gap - now)
            with nogil:
                nanosleep(&t, NULL)
            now = monotonic_ns()
        self.round_ended = now
        return 0

    cdef int turn(self, Client* c, uint32_t what) except -1:
        Sockets.turn(self, c, what)
        if c.state == OPEN and self.publishing and c.publisher != UNKNOWN:
            if c.owed:
                self.send_owed(c)
            elif not self.period and self.now >= self.begun:
                self.by_answers(c)
        return 0

    def ping(self, uint64_t quiet_ns):
        """Send PINGREQ on open connections that have been silent for this time. Each call checks the next fiftieth, so
        that many clients do not ping at once."""
        cdef uint32_t _i
        cdef Client* c
        self.now = monotonic_ns()
        for _i in range(self.clients_count // 50 + 1):
            if self.pinged >= self.clients_count:
                self.pinged = 0
                break
            c = self.clients[self.pinged]
            self.pinged += 1
            if c.state == OPEN and self.now - c.heard > quiet_ns:
                c.heard = self.now
                self.put(c, <const uint8_t*>b"\xc0\x00", 2)
        self.flush_all()

    def leave(self):
        """Send DISCONNECT on every connection, and close it."""
        cdef uint32_t i
        cdef Client* c
        for i in range(self.clients_count):
            c = self.clients[i]
            if c.state == CLOSED:
                continue
            if c.state == OPEN:
                self.row[CONNECTED] -= 1
                self.put(c, <const uint8_t*>b"\xe0\x00", 2)
            c.is_last_word = True
            self.flush(c)

    # ------------------------------------------------------------ receiving

    cdef uint32_t packets(self, Client* c, const uint8_t* p, uint32_t n) except? 0:
        cdef uint32_t at = 0, remaining = 0
        cdef int head
        while c.state != CLOSED:
            head = fixed_header(p + at, n - at, True, &remaining)
            if head < 0:
                self.wrong(c, "a Remaining Length that is malformed")
                break
            if head == 0 or n - at - head < remaining:
                break
            self.packet(c, p[at], p + at + head, remaining)
            at += head + remaining
        return at

    cdef int packet(self, Client* c, uint8_t first, const uint8_t* body, uint32_t n) except -1:
        cdef uint8_t kind = first >> 4
        if kind == PUBLISH and (c.state == OPEN or c.state == SUBSCRIBING):
            return self.delivery(c, first, body, n)         # it may come before the SUBACK [MQTT 5, 3.8.4]
        if kind == CONNACK and c.state == CONNECTING and n >= 2:
            return self.welcomed(c, body[1])
        if kind == SUBACK and c.state == SUBSCRIBING and n >= 3:
            return self.subscribed(c, body[n - 1])
        if (c.state == OPEN or c.state == SUBSCRIBING) and n >= 2:
            if kind == PUBACK or kind == PUBREC or kind == PUBCOMP:
                return self.answered(c, kind, body, n)
            if kind == PUBREL:
                put_ack(self.room(c, 4), PUBCOMP, <uint16_t>(body[0] << 8 | body[1]), 0, False)
                c.out.tail += 4
                return 0
        if kind == PINGRESP and n == 0:
            return 0
        if kind == 14:
            self.say(f"DISCONNECT with Reason Code 0x{body[0] if n else 0:02X}")
            return self.lost(c)
        if c.state == CONNECTING:
            return self.wrong(c, "what came first is no CONNACK: another protocol?")
        return self.wrong(c, f"a packet of type {kind} with {n} bytes, in state {c.state}")

    cdef int welcomed(self, Client* c, uint8_t reason) except -1:
        if reason:
            self.say(f"CONNACK with Reason Code 0x{reason:02X}")
            return self.lost(c)
        self.observe(CONNECT, self.now - c.began)
        if c.heard_of.number != UNKNOWN:
            c.state = SUBSCRIBING
            return 0
        c.state = OPEN
        self.row[CONNECTED] += 1
        return 0

    cdef int subscribed(self, Client* c, uint8_t code) except -1:
        c.state = OPEN
        self.row[CONNECTED] += 1
        if code >= 0x80:
            self.row[SUBSCRIPTIONS_REFUSED] += 1
            self.say(f"SUBACK with Reason Code 0x{code:02X}")
        else:
            self.row[SUBSCRIBED] += 1
        return 0

    cdef int answered(self, Client* c, uint8_t kind, const uint8_t* body, uint32_t n) except -1:
        cdef uint32_t slot = <uint32_t>(body[0] << 8 | body[1]) - 1
        cdef uint8_t reason = body[2] if n > 2 else 0
        if c.since == NULL or slot >= self.window or c.since[slot] == 0 or (kind == PUBACK) != (self.qos == 1):
            return self.wrong(c, f"a packet of type {kind} for Packet Identifier {slot + 1}, which is not in use")
        if reason >= 0x80:
            self.row[PUBLISHES_REFUSED] += 1
        elif kind == PUBREC:
            put_ack(self.room(c, 4), PUBREL, <uint16_t>(slot + 1), 0, False)
            c.out.tail += 4
            return 0
        else:
            self.row[ACKNOWLEDGED] += 1
        self.observe(ACKNOWLEDGEMENT, self.now - c.since[slot])
        c.since[slot] = 0
        c.inflight -= 1
        return 0

    cdef int delivery(self, Client* c, uint8_t first, const uint8_t* body, uint32_t n) except -1:
        cdef int qos = first >> 1 & 3
        cdef uint32_t topic_bytes, at, properties
        cdef uint16_t packet_id = 0
        if n < 2 or qos == 3:
            return self.wrong(c, "a PUBLISH that is malformed")
        topic_bytes = <uint32_t>body[0] << 8 | body[1]
        at = 2 + topic_bytes
        if qos:
            if at + 2 > n:
                return self.wrong(c, "a PUBLISH that is malformed")
            packet_id = <uint16_t>(body[at] << 8 | body[at + 1])
            at += 2
        if self.version == 5:
            properties = 0
            if at < n and body[at] < 0x80:
                properties = 1 + body[at]
            elif at + 1 < n:
                properties = 2 + (body[at] & 0x7F) + (<uint32_t>body[at + 1] << 7)
            if properties == 0 or at + properties > n or body[at] >= 0x80 and body[at + 1] >= 0x80:
                return self.wrong(c, "a PUBLISH whose properties are malformed or have more than 16 KB")
            at += properties
        if at > n:
            return self.wrong(c, "a PUBLISH that is malformed")
        self.payload(&c.heard_of, body + 2, topic_bytes, body + at, n - at, self.now)
        if qos and c.state != CLOSED:
            put_ack(self.room(c, 4), PUBACK if qos == 1 else PUBREC, packet_id, 0, False)
            c.out.tail += 4
        return 0

    def count_tails(self):
        """Count messages sent after the last one that a subscriber got as lost, once all is over."""
        cdef uint32_t i
        for i in range(self.clients_count):
            self.count_tail(&self.clients[i].heard_of)
