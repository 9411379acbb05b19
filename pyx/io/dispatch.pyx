"""Dispatch of packets: bytes of a connection -> the router or the handler.

PUBLISH (`pyx.io.publishing`), PUBACK, PUBREC, PUBREL, PUBCOMP and PINGREQ are finished here and in the router; CONNECT,
SUBSCRIBE, UNSUBSCRIBE, DISCONNECT and AUTH are decoded and passed to the handler. Every input is a packet, a documented
MQTT error or a wait for more bytes: MalformedPacket and ProtocolError are caught in one place, `decode`.

The connection keeps a partial packet aside; no memory is allocated because of a length field alone.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memmove

from pyx.core cimport counters as count
from pyx.core.counters cimport note, note_nothing, note_packet
from pyx.core.outbox cimport outbox_reserve
from pyx.core.work cimport (
    CARRIED, CONNECT as CONNECT_DECIDED, KIBI, Mark, OBJECT, PACKETS, RECORD, VISIT, callback_begins, callback_ends,
    work,
)
from pyx.delivery.back_pressure cimport HELD
from pyx.delivery.connection cimport CLOSING, DECIDING, OPEN, OPENING
from pyx.delivery.router_state cimport TURN
from pyx.delivery.session cimport Session, is_stored
from pyx.protocol.bounds cimport lists_too_many_filters, lists_too_many_properties
from pyx.protocol.decoders cimport (
    Ack, client_id_of, connect_version, decode_ack, decode_auth, decode_connect, decode_disconnect, decode_pingreq,
    decode_subscribe, decode_unsubscribe, fixed_header, packet_flags,
)
from pyx.protocol.packets cimport (
    AUTH, CONNECT, DISCONNECT, PINGREQ, PUBACK, PUBCOMP,
    PUBLISH, PUBREC, PUBREL, SUBSCRIBE, UNSUBSCRIBE,
)
from pyx.protocol.packets cimport Connect
from pyx.protocol.reasons cimport malformed, protocol_error
from pyx.protocol.wire cimport varint_size

from pyx.protocol.reasons import MalformedPacket, ProtocolError

cdef enum:
    PROTOCOL_ERROR = 0x82
    PACKET_ID_NOT_FOUND = 0x92
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97


cdef int check_first(Connection conn, const uint8_t* p, uint32_t n) except -1:
    # before the CONNACK only a CONNECT, then only AUTH and DISCONNECT are allowed [MQTT-3.1.0-1, MQTT-3.1.2-30]
    if conn.authenticating:
        if p[0] >> 4 == AUTH or p[0] >> 4 == DISCONNECT:
            return 0
        return protocol_error(PROTOCOL_ERROR, "neither AUTH nor DISCONNECT before the CONNACK")
    # name other protocols. A TLS handshake (22, 3, ...) would be a CONNECT with flags, which MQTT 3.1 allows, and a
    # Remaining Length of 3, which no CONNECT can have
    if p[0] == 0x16 and n >= 2 and p[1] == 3:
        return protocol_error(PROTOCOL_ERROR, "TLS on a plain port")
    if p[0] >> 4 == CONNECT:
        return 0
    if n >= 4 and (memcmp(p, b"GET ", 4) == 0 or memcmp(p, b"POST", 4) == 0 or memcmp(p, b"HEAD", 4) == 0):
        return protocol_error(PROTOCOL_ERROR, "HTTP on a plain port")
    return protocol_error(PROTOCOL_ERROR, "first packet is not CONNECT")


@cython.final
cdef class Dispatch:
    """The decoder of received bytes, for all connections of one router."""

    def __cinit__(self, Router router not None):
        self.router = router
        self.state = router.state
        self.counters = router.state.counters
        self.limits = router.state.limits
        self.authorise = Authorise()
        self.publishing = Publishing(router, self.authorise)
        self.carried = []

    def feed(self, Connection conn not None, data, bint counted=False):
        """Take bytes of the client in any pieces, for hand-off, tests and simulation; the reactor calls `take`.
        `counted`: they begin with a CONNECT, and another worker has counted it and the bytes as received."""
        cdef const uint8_t[::1] view = data
        if view.shape[0] == 0 or conn.state >= CLOSING:
            return
        self.state.clock.hear()
        conn.bytes_in += view.shape[0]
        if counted:
            self.counted = 1
        else:
            self.counters.at[count.BYTES_RECEIVED] += view.shape[0]
        conn.keep(&view[0], <uint32_t>view.shape[0])
        if not conn.carried and conn.state != DECIDING:
            self.take_guarded(conn)

    def learn_version(self, Connection conn not None, bytes unread not None):
        """Set `conn.version` from the CONNECT at the start of `unread`, to answer it without decoding the rest."""
        cdef const uint8_t* p = <const uint8_t*><const char*>unread
        cdef uint32_t remaining = 0, n = <uint32_t>len(unread)
        cdef int header = fixed_header(p, n, False, &remaining)
        if header > 0:
            conn.version = <uint8_t>connect_version(p + header, n - <uint32_t>header)

    def resume(self, Connection conn not None):
        """Decode the bytes that followed a CONNECT after its decision, unless it was refused."""
        if conn.state == OPEN and conn.part_len and not conn.carried:
            self.take_guarded(conn)

    cdef int take_guarded(self, Connection conn) except -1:
        try:
            self.take_part(conn)
        except Exception as error:
            self.state.fail(conn, error)
        return 0

    def take_carried(self):
        """Continue decoding where the last tick cut connections off. Return True if packets are left again."""
        cdef list carried = self.carried
        cdef Connection conn
        cdef Py_ssize_t first
        cdef Mark mark
        callback_begins(&mark)
        work(<uint64_t>len(carried) * VISIT)
        self.carried = []
        if len(carried) > 1:                # each tick another one comes first, for the budgets that all share
            first = <Py_ssize_t>(self.state.tick % <uint64_t>len(carried))
            carried = carried[first:] + carried[:first]
        for conn in carried:
            conn.in_turn = False
            if conn.paused and conn.state == OPEN:
                continue                    # until `carry_on`
            conn.carried = False
            if (conn.state == OPEN or conn.state == OPENING) and conn.part_len:
                self.take_guarded(conn)
            if not conn.carried and conn.not_reading and not conn.paused:
                self.state.resumed.append(conn)
        callback_ends(&mark, CARRIED)
        return len(self.carried) > 0

    cpdef int carry_on(self, Connection conn) except -1:
        # lets a paused connection continue with the packets it has left over
        if conn.carried:
            self.carry(conn)
        return 0

    cdef int carry(self, Connection conn) except -1:
        conn.carried = True
        if not conn.in_turn:
            conn.in_turn = True
            self.carried.append(conn)
        return 0

    cdef int take(self, Connection conn, uint8_t* p, uint32_t n) except -1:
        cdef uint32_t used
        cdef Mark mark
        callback_begins(&mark)
        used = self.decode(conn, p, n)
        conn.part_len = 0
        if used < n and conn.state < CLOSING:
            conn.keep(p + used, n - used)
        elif conn.part != NULL:
            conn.free_part()
        callback_ends(&mark, PACKETS)
        if conn.state == DECIDING and self.raw is not None:
            self.hand_up(conn)
        return 0

    cdef int take_part(self, Connection conn) except -1:
        # like `take`, for the bytes in conn.part
        cdef uint32_t used, n = conn.part_len
        cdef uint8_t* p = conn.part
        cdef Mark mark
        callback_begins(&mark)
        self.router.in_hand.adoptable = conn
        try:
            used = self.decode(conn, p, n)
        finally:
            self.router.in_hand.adoptable = None
            callback_ends(&mark, PACKETS)
        if conn.part == NULL:               # a Message took the buffer, which held only that packet
            return 0
        if used >= n or conn.state >= CLOSING:
            conn.free_part()
        elif used:
            memmove(p, p + used, n - used)
            conn.part_len = n - used
        if conn.state == DECIDING and self.raw is not None:
            self.hand_up(conn)
        return 0

    cdef int hand_up(self, Connection conn) except -1:
        cdef Mark mark
        packet, raw = self.raw
        self.raw = None
        callback_begins(&mark)
        try:
            if isinstance(packet, Connect):
                self.hold_note(conn, CONNECT, (<Connect>packet).client_id)
                self.state.handler.connect(conn, packet, raw)
            else:
                self.hand_over(conn, packet, raw)
        except Exception as error:
            self.failed(conn, error)
        note_nothing(self.counters.at)
        callback_ends(&mark, CONNECT_DECIDED)
        if (conn.state == OPEN or conn.state == OPENING) and conn.part_len:
            self.take_part(conn)
        return 0

    cdef uint32_t decode(self, Connection conn, uint8_t* p, uint32_t n) except? 0xFFFFFFFF:
        # handles the whole packets at p; returns their length in bytes
        cdef uint32_t at = 0, remaining = 0, packets = 0, most = self.limits.tick_connection_packets_max
        cdef int header
        cdef uint8_t kind
        cdef uint64_t total, until = 0
        conn.part_want = 0
        try:
            self.hold_note(conn, 0, (<Session>conn.session).client_id if conn.session is not None else None)
            while at < n:
                if conn.busy:
                    conn.carried = conn.paused = True
                    break
                header = fixed_header(p + at, n - at, conn.version == 5, &remaining)
                if header == 0:
                    if conn.state == OPENING:
                        check_first(conn, p + at, n - at)
                    break
                if header < 0:
                    if conn.state == OPENING:
                        check_first(conn, p + at, n - at)
                    malformed("Remaining Length of more bytes than it may have")
                total = <uint64_t>header + remaining
                if conn.state == OPENING:
                    self.first_packet(conn, p + at, n - at, total)
                if total > self.limits.packet_bytes_max:
                    self.counters.at[count.PACKETS_TOO_LARGE] += 1
                    protocol_error(PACKET_TOO_LARGE, "packet larger than packet_bytes_max")
                if total > n - at:
                    conn.part_want = <uint32_t>total
                    break
                kind = p[at] & 0xF0
                if kind == PUBLISH << 4 and until == 0:
                    until = min(self.state.effort() + TURN, self.state.round_until)
                if packets == most or kind == PUBLISH << 4 and self.state.effort() > until or \
                        kind & 0xD0 == SUBSCRIBE << 4 and self.filters_spent():
                    self.counters.at[count.TICK_PACKETS_CARRIED] += 1
                    self.carry(conn)
                    break
                packets += 1
                work(RECORD + total // 1024 * KIBI)
                # a Message can take over the buffer only if the PUBLISH fills it
                if kind == PUBLISH << 4 and total != n:
                    self.router.in_hand.adoptable = None
                if self.packet(conn, p + at, <uint32_t>header, <uint32_t>total):
                    # not taken yet: the packet stays in front, and the router resumes the connection
                    packets -= 1
                    conn.carried = True
                    break
                at += <uint32_t>total
                if conn.state != OPEN and conn.state != OPENING:
                    break
        except Exception as error:
            self.failed(conn, error)
            at = n
        note_nothing(self.counters.at)
        if packets:
            conn.heard = self.state.now_ms
            self.counters.at[count.PACKETS_RECEIVED] += packets - self.counted
            self.counted = 0
        return at

    cdef int failed(self, Connection conn, error) except -1:
        if isinstance(error, (MalformedPacket, ProtocolError)):
            self.counters.at[count.PROTOCOL_ERRORS] += 1
            try:
                self.state.handler.protocol_error(conn, error)
                return 0
            except Exception as own:
                error = own
        # our error, not the client's: this connection ends, the others of the worker continue
        return self.state.fail(conn, error)

    cdef int hold_note(self, Connection conn, uint8_t packet_type, client_id) except -1:
        # notes whose packet the worker handles, in case it dies of it (`counters.in_hand`)
        cdef Py_ssize_t n = 0
        cdef const char* text
        if client_id is None:
            note(self.counters.at, packet_type, conn.peer_family, conn.peer, sizeof(conn.peer))
        else:
            text = PyUnicode_AsUTF8AndSize(client_id, &n)
            note(self.counters.at, packet_type, 1, <const uint8_t*>text, <size_t>n)
        return 0

    cdef bint filters_spent(self) noexcept:
        # before a SUBSCRIBE or UNSUBSCRIBE: each filter takes at least twenty times as long as a PUBLISH
        if self.filters_tick != self.state.tick:
            self.filters_tick = self.state.tick
            self.filters_left = self.limits.tick_filters_max
        return self.filters_left <= 0

    cdef int first_packet(self, Connection conn, const uint8_t* p, uint32_t n, uint64_t total) except -1:
        # before the CONNACK: refuses packets that are not allowed there or too large
        check_first(conn, p, n)
        if total > self.limits.connect_bytes_max:
            self.counters.at[count.CONNECTS_TOO_LARGE] += 1
            protocol_error(PACKET_TOO_LARGE, "larger than connect_bytes_max")
        return 0

    cdef int check_lists(self, uint8_t packet_type, const uint8_t* body, uint32_t n, bint v5) except -1:
        # refuses too many User Properties or Topic Filters before they are decoded
        if v5 and lists_too_many_properties(packet_type, body, n, self.limits):
            self.counters.at[count.USER_PROPERTIES_REFUSED] += 1
            protocol_error(QUOTA_EXCEEDED, "more than user_properties_max or user_property_bytes_max")
        if (packet_type == SUBSCRIBE or packet_type == UNSUBSCRIBE) and \
                lists_too_many_filters(packet_type, body, n, v5, self.limits):
            self.counters.at[count.FILTERS_PER_PACKET_REFUSED] += 1
            protocol_error(QUOTA_EXCEEDED, "more than filters_per_packet_max")
        return 0

    cdef int packet(self, Connection conn, uint8_t* p, uint32_t header, uint32_t total) except -1:
        # returns 1 if the packet is not taken yet, else 0
        cdef uint8_t packet_type = p[0] >> 4, flags = packet_flags(p[0], conn.version)
        cdef uint8_t* body = p + header
        cdef uint32_t n = total - header
        cdef bint v5 = conn.version == 5
        cdef Session s
        cdef Ack ack
        cdef uint8_t* o
        cdef uint8_t reason
        cdef int held
        if packet_type != PINGREQ:
            self.state.is_active = True
        if packet_type == PUBLISH:
            return self.publishing.publish(conn, flags, p, header, total)
        if n > self.limits.unwalked_bytes:
            self.check_lists(packet_type, body, n, v5)
        s = <Session>conn.session
        if packet_type == PUBACK:
            decode_ack(&ack, PUBACK, flags, body, n, v5)
            self.router.puback(s, ack.packet_id, ack.reason)
        elif packet_type == PUBREC:
            decode_ack(&ack, PUBREC, flags, body, n, v5)
            self.router.pubrec(s, conn, ack.packet_id, ack.reason)
        elif packet_type == PUBREL:
            decode_ack(&ack, PUBREL, flags, body, n, v5)
            reason = 0
            if not s.leave(ack.packet_id):
                reason = PACKET_ID_NOT_FOUND
            elif conn.unreleased:
                conn.unreleased -= 1
            self.router.in_hand.logged = False
            if self.state.keeps and is_stored(s):
                self.router.windows.mark_dirty(s)
            self.router.answering.answer(conn, PUBCOMP, ack.packet_id, reason, 0)
        elif packet_type == PUBCOMP:
            decode_ack(&ack, PUBCOMP, flags, body, n, v5)
            self.router.pubcomp(s, conn, ack.packet_id)
        elif packet_type == PINGREQ:
            decode_pingreq(flags, n)
            o = outbox_reserve(&conn.out, 2)
            o[0] = 0xD0
            o[1] = 0
            self.counters.at[count.ANSWERS_SENT] += 1
            self.state.set_dirty(conn)
        else:
            note_packet(self.counters.at, packet_type)
            held = self.slow_packet(conn, s, p, header, total)
            note_packet(self.counters.at, 0)
            return held
        return 0

    cdef int slow_packet(self, Connection conn, Session s, uint8_t* p, uint32_t header, uint32_t total) except -1:
        # packets that the handler decides; returns like `packet`
        cdef uint8_t packet_type = p[0] >> 4, flags = packet_flags(p[0], conn.version)
        cdef uint8_t* body = p + header
        cdef uint32_t n = total - header
        cdef bint v5 = conn.version == 5
        if packet_type == CONNECT:
            if conn.state != OPENING:
                protocol_error(PROTOCOL_ERROR, "second CONNECT")
            self.connect(conn, p, header, total)
        elif packet_type == SUBSCRIBE:
            subscribe = decode_subscribe(flags, body, n, v5)
            work(<uint64_t>len(subscribe.filters) * (4 * OBJECT))
            if self.router.back_pressure.judge_filters(conn, s, <uint32_t>len(subscribe.filters)) == HELD:
                return 1
            self.filters_left -= len(subscribe.filters)
            self.state.handler.subscribe(conn, s, subscribe)
        elif packet_type == UNSUBSCRIBE:
            unsubscribe = decode_unsubscribe(flags, body, n, v5)
            work(<uint64_t>len(unsubscribe.filters) * (2 * OBJECT))
            if self.router.back_pressure.judge_filters(conn, s, <uint32_t>len(unsubscribe.filters)) == HELD:
                return 1
            self.filters_left -= len(unsubscribe.filters)
            self.state.handler.unsubscribe(conn, s, unsubscribe)
        elif packet_type == DISCONNECT:
            self.state.handler.disconnect(conn, decode_disconnect(flags, body, n, v5))
        elif packet_type == AUTH and v5:
            self.state.handler.auth(conn, decode_auth(flags, body, n, v5))
        elif packet_type == 0 or packet_type == AUTH:
            malformed("packet type 15 before MQTT 5" if packet_type else "packet type 0")
        else:
            protocol_error(PROTOCOL_ERROR, "packet that only a server sends")
        return 0

    cdef int connect(self, Connection conn, uint8_t* p, uint32_t header, uint32_t total) except -1:
        cdef Connect packet
        cdef const uint8_t* client_id = NULL
        cdef int length, worker
        conn.version = <uint8_t>connect_version(p + header, total - header)      # for the answer if it is bad
        if self.home_of is not None and conn.state == OPENING:
            length = client_id_of(p + header, total - header, &client_id)
            worker = self.home_of(client_id[:length]) if length > 0 else -1
            if worker >= 0:                 # which decodes it, and says what is wrong with it
                conn.state = DECIDING
                self.raw = (worker, PyBytes_FromStringAndSize(<char*>p, total))
                return 0
        if conn.version == 5 and total - header > self.limits.unwalked_bytes:
            self.check_lists(CONNECT, p + header, total - header, True)
        packet = decode_connect(p[0] & 15, p + header, total - header)
        conn.version = packet.version
        if packet.version == 5 and header != 1 + varint_size(total - header):
            malformed("Remaining Length of more bytes than needed")
        if conn.state == OPENING:
            conn.state = DECIDING
            self.raw = (packet, PyBytes_FromStringAndSize(<char*>p, total))
        return 0
