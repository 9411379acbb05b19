"""One MQTT client without a socket: bytes in, bytes out, for load tests whose clients behave individually
(`loadtest.client`; `pyx.loadgen.crowd` drives thousands that all behave alike).

    publish(...), connect(...) ... -> take_output() -> to the broker
    from the broker -> feed(bytes) -> take_output() again, for acks are made here -> events for Python

Python gets answers (CONNACK, SUBACK, UNSUBACK, DISCONNECT), acks that are waited for or that refuse, messages only if
`keeps_messages` is set, and at the end of the list a MalformedPacket or ProtocolError if the peer violates the
protocol: after that the connection is over. Everything else is counted in a Tally.

A session outlives connections: unacknowledged QoS 1 and 2 publishes are sent again when the broker sets Session Present
(MQTT 5, 4.4), and are returned as lost when it does not.

Stamped payloads are those of pyx.loadgen.ledger: publisher (a hash of the client id), sequence, time
(`pyx.loadgen.stamps`), content, check word.
"""
cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from pyx.core.kernel cimport monotonic_ns
from pyx.core.little_endian cimport put32, put64
from pyx.loadgen.ledger cimport CHECK_BYTES, PAYLOAD_HEAD_BYTES, check_of
from pyx.loadgen.stamps cimport is_stamped, latency_ms, wall_ns
from pyx.loadgen.tally cimport Tally
from pyx.protocol.decoders cimport Publish, Scratch, check_topic_name, decode_delivery, fixed_header
from pyx.protocol.encoders cimport put_ack
from pyx.protocol.frames cimport put_head, remaining_length
from pyx.protocol.message cimport Content
from pyx.protocol.packets cimport (
    AUTH, CONNACK, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, UNSUBACK, Connack, Suback, Unsuback,
)
from pyx.protocol.properties cimport read_properties
from pyx.protocol.reasons cimport (
    REASON_PROTOCOL_ERROR, REASON_RECEIVE_MAXIMUM_EXCEEDED, REASON_TOPIC_ALIAS_INVALID, malformed, protocol_error,
)
from pyx.protocol.topics cimport Share, split_share, topic_matches
from pyx.protocol.wire cimport Cursor, varint_size

from zlib import crc32

from pyx.protocol.codec import decode
from pyx.protocol.encoders import encode_connect, encode_disconnect, encode_subscribe, encode_unsubscribe
from pyx.protocol.reasons import MqttError

cdef enum:
    TOPICS_MAX = 10_000             # topics whose tallies are cached

STAMP_BYTES = PAYLOAD_HEAD_BYTES + CHECK_BYTES


@cython.final
@cython.freelist(1024)
cdef class Flight:
    """A PUBLISH in progress: at QoS 0 until it is written to the socket, else until its last ack."""

    cdef readonly uint16_t packet_id
    cdef readonly uint8_t reason_code
    cdef readonly uint32_t payload_bytes
    cdef readonly object waiter
    cdef readonly Tally tally
    cdef readonly bint is_lost          # its session is gone, or it was given up
    cdef uint64_t since
    cdef bytes packet                   # as it would be sent again
    cdef uint8_t qos
    cdef bint is_released               # PUBREC has arrived

    @property
    def ms(self):
        """Return its duration so far."""
        return <double>(monotonic_ns() - self.since) / 1e6


@cython.final
cdef class Message:
    """A received PUBLISH. latency_ms: since it was published, None if the payload has no stamp."""

    cdef readonly str topic
    cdef readonly bytes payload
    cdef readonly uint8_t qos
    cdef readonly bint retain
    cdef readonly bint dup
    cdef readonly dict properties
    cdef readonly object latency_ms

    @property
    def content(self):
        """Return the payload without its stamp."""
        if is_stamped(<const uint8_t*><const char*>self.payload, <uint32_t>len(self.payload)):
            return self.payload[PAYLOAD_HEAD_BYTES:-<int>CHECK_BYTES]
        return self.payload


@cython.final
cdef class Client:
    """A session and its present connection. version: 3, 4, 5. other: (DELIVERY, RECEIVED), tallies of messages without
    an expectation: with a latency, and without one. is_wall: stamps are of the wall clock."""

    cdef readonly uint8_t version
    cdef readonly uint32_t window
    """Number of QoS 1 and 2 PUBLISHes that the broker takes at a time."""
    cdef readonly uint32_t packet_bytes_max
    """The longest packet that the broker takes."""
    cdef readonly bint is_connected
    cdef public bint keeps_messages
    cdef public bint is_wall
    cdef uint32_t publisher, sequence, receive_maximum
    cdef uint16_t last_id
    cdef bint keeps_session, is_broken, is_ping_due_back
    cdef bytearray out, part
    cdef dict flights                   # packet id -> Flight, oldest first
    cdef list unsent                    # flights of QoS 0
    cdef set asked                      # packet ids of SUBSCRIBE and UNSUBSCRIBE
    cdef set received                   # packet ids of QoS 2 that wait for PUBREL
    cdef list expected                  # (filter, DELIVERY, RECEIVED)
    cdef dict tallies                   # topic -> (DELIVERY, RECEIVED)
    cdef tuple other
    cdef list events
    cdef Scratch scratch
    cdef uint64_t sent_at, pinged_at

    def __init__(self, int version, tuple other not None, bint is_wall=False):
        if version not in (3, 4, 5):
            raise ValueError(f"version {version}")
        self.version = <uint8_t>version
        self.other = other
        self.is_wall = is_wall
        self.out, self.part = bytearray(), bytearray()
        self.flights, self.unsent, self.asked, self.received = {}, [], set(), set()
        self.expected, self.tallies, self.events = [], {}, []
        self.window, self.packet_bytes_max, self.receive_maximum = 65_535, 268_435_460, 65_535

    def __dealloc__(self):
        free(self.scratch.buf)

    # ------------------------------------------------------------ sending

    def connect(self, str client_id not None, *, bint clean_start=True, int keep_alive=60, username=None,
                password=None, will=None, dict properties=None):
        """Send CONNECT, as the first packet of a new connection. properties: of version 5."""
        packet = encode_connect(self.version, client_id, clean_start, keep_alive, username, password, will,
                                properties if self.version == 5 else None)
        self.lost()
        self.publisher = <uint32_t>crc32(client_id.encode())
        properties = properties or {}
        self.receive_maximum = properties.get("receive_maximum", 65_535)
        self.keeps_session = (
            properties.get("session_expiry_interval", 0) != 0 if self.version == 5 else not clean_start
        )
        if clean_start:
            self.received.clear()
        self.out += packet
        self.sent_at = monotonic_ns()

    def subscribe(self, list filters not None, dict properties=None):
        """Send SUBSCRIBE with (filter, options byte) pairs; return its Packet Identifier."""
        packet_id = self.take_id()
        self.out += encode_subscribe(self.version, packet_id, filters, properties)
        self.asked.add(packet_id)
        return packet_id

    def unsubscribe(self, list filters not None):
        """Send UNSUBSCRIBE; return its Packet Identifier."""
        packet_id = self.take_id()
        self.out += encode_unsubscribe(self.version, packet_id, filters)
        self.asked.add(packet_id)
        return packet_id

    def disconnect(self, int reason_code=0, dict properties=None):
        """Send DISCONNECT."""
        if self.version != 5:
            reason_code, properties = 0, None
        self.out += encode_disconnect(reason_code, properties, self.version, False)

    def publish(self, bytes topic not None, bytes payload not None, Tally tally not None, *, int qos=0,
                bint retain=False, bytes properties not None=b"", bint stamped=False, waiter=None, uint64_t since=0):
        """Send PUBLISH. stamped: the payload becomes the content between a stamp's two parts. tally: counts it when it
        is acknowledged (QoS 0: sent). waiter: any object; then `feed` returns the Flight. since: its scheduled time, by
        CLOCK_MONOTONIC; 0 = now. properties: in wire form. ValueError: it is larger than the broker takes."""
        cdef Content c
        cdef Flight flight
        cdef uint64_t rest
        cdef Py_ssize_t before = len(self.out)
        cdef uint8_t* p
        cdef uint32_t length
        cdef uint64_t now = monotonic_ns()
        memset(&c, 0, sizeof(c))
        c.topic = <const uint8_t*><const char*>topic
        c.topic_len = <uint16_t>len(topic)
        c.props = <const uint8_t*><const char*>properties
        c.props_len = <uint32_t>len(properties)
        c.payload_len = <uint32_t>(len(payload) + (PAYLOAD_HEAD_BYTES + CHECK_BYTES if stamped else 0))
        c.expiry_offset = -1
        rest = remaining_length(&c, self.version == 5, qos != 0, 0)
        if rest > 268_435_455 or 1 + varint_size(<uint32_t>rest) + rest > self.packet_bytes_max:
            raise ValueError(f"a PUBLISH of {rest} bytes; the broker takes {self.packet_bytes_max}")
        if not 0 <= qos <= 2 or len(topic) > 65_535:
            raise ValueError("QoS is 0 to 2, and a Topic Name has at most 65,535 bytes")
        flight = Flight.__new__(Flight)
        flight.since, flight.qos, flight.tally, flight.waiter = since if since else now, <uint8_t>qos, tally, waiter
        flight.packet_id = self.take_id() if qos else 0
        flight.payload_bytes = c.payload_len
        length = <uint32_t>(1 + varint_size(<uint32_t>rest) + rest)
        PyByteArray_Resize(self.out, before + length)
        p = <uint8_t*>PyByteArray_AS_STRING(self.out) + before
        p = put_head(p, &c, <uint8_t>(PUBLISH << 4 | qos << 1 | retain), <uint32_t>rest, self.version == 5,
                     flight.packet_id, qos != 0, 0, NULL, 0, 0)
        self.put_payload(p, payload, c.payload_len, stamped, flight.since, now)
        self.sent_at = now
        if qos == 0:
            self.unsent.append(flight)
        else:
            self.flights[flight.packet_id] = flight
            if self.keeps_session:
                flight.packet = bytes(memoryview(self.out)[before:])
        return flight

    cdef int put_payload(self, uint8_t* p, bytes payload, uint32_t n, bint stamped, uint64_t since,
                         uint64_t now) except -1:
        cdef uint64_t at
        if not stamped:
            memcpy(p, <const char*>payload, n)
            return 0
        at = wall_ns() - (now - since) if self.is_wall else since
        put64(put32(put32(p, self.publisher), self.sequence), at)
        memcpy(p + PAYLOAD_HEAD_BYTES, <const char*>payload, n - PAYLOAD_HEAD_BYTES - CHECK_BYTES)
        put32(p + n - CHECK_BYTES, check_of(self.publisher, self.sequence, at, n))
        self.sequence += 1
        return 0

    cdef uint16_t take_id(self) except 0:
        cdef int _tried
        for _tried in range(65_535):
            self.last_id = <uint16_t>(self.last_id + 1 if self.last_id < 65_535 else 1)
            if self.last_id not in self.flights and self.last_id not in self.asked:
                return self.last_id
        raise ValueError("all Packet Identifiers are in use")

    @property
    def output_bytes(self):
        """Size of the result of `take_output`."""
        return len(self.out)

    def take_output(self):
        """Return the bytes to be sent now; the caller owns them."""
        cdef bytearray out = self.out
        if out:
            self.out = bytearray()
            self.sent_at = monotonic_ns()
        return out

    def written(self):
        """Note that all output has been written to the socket: publishes at QoS 0 are counted."""
        cdef Flight flight
        cdef uint64_t now
        if self.unsent and not self.out:
            now = monotonic_ns()
            for flight in self.unsent:
                flight.tally.add(<double>(now - flight.since) / 1e6, flight.payload_bytes)
            self.unsent = []

    # ------------------------------------------------------------ time

    def ping(self, double idle_seconds):
        """Send PINGREQ after a silence of this length; return False if the last was not answered (MQTT 5, 3.1.2.10)."""
        cdef uint64_t now = monotonic_ns()
        if not self.is_connected or <double>(now - self.sent_at) < idle_seconds * 1e9:
            return True
        if self.is_ping_due_back and <double>(now - self.pinged_at) >= idle_seconds * 1e9:
            return False
        self.is_ping_due_back = True
        self.pinged_at = self.sent_at = now
        self.out += b"\xc0\x00"
        return True

    def give_up(self, double seconds):
        """Return flights that have waited for longer: they keep their Packet Identifiers, but are no longer counted."""
        cdef Flight flight
        cdef list late = []
        cdef uint64_t now = monotonic_ns()
        for flight in self.flights.values():
            if <double>(now - flight.since) < seconds * 1e9:
                break
            if not flight.is_lost:
                flight.is_lost = True
                late.append(flight)
        return late

    # ------------------------------------------------------------ expectations

    def expect(self, bytes topic_filter not None, Tally delivery not None, Tally received not None):
        """Count matching messages there: with a latency, and without one."""
        cdef Share share
        if split_share(<const uint8_t*><const char*>topic_filter, <size_t>len(topic_filter), &share) == 1:
            topic_filter = share.filter[:share.filter_len]
        self.expected = [each for each in self.expected if each[0] != topic_filter]
        self.expected.append((topic_filter, delivery, received))
        self.tallies.clear()

    cdef tuple tallies_of(self, bytes topic):
        cdef tuple found = self.tallies.get(topic)
        cdef bytes wanted
        if found is not None:
            return found
        check_topic_name(<const uint8_t*><const char*>topic, <size_t>len(topic))
        found = self.other
        for wanted, delivery, received in self.expected:
            if topic_matches(<const uint8_t*><const char*>wanted, <size_t>len(wanted),
                             <const uint8_t*><const char*>topic, <size_t>len(topic)):
                found = (delivery, received)
                break
        if len(self.tallies) >= TOPICS_MAX:
            self.tallies.clear()
        self.tallies[topic] = found
        return found

    # ------------------------------------------------------------ receiving

    @property
    def inflight(self):
        """Number of QoS 1 and 2 PUBLISHes whose last ack has not arrived."""
        return len(self.flights)

    def lost(self):
        """End the connection; return the flights that cannot be sent again, because their session ends with it."""
        cdef list gone = self.unsent
        self.is_connected = self.is_broken = self.is_ping_due_back = False
        self.out, self.part = bytearray(), bytearray()
        self.unsent = []
        self.asked.clear()
        if not self.keeps_session:
            gone += self.session_gone()
        return gone

    cdef list session_gone(self):
        cdef Flight flight
        cdef list gone = []
        for flight in self.flights.values():
            if not flight.is_lost:
                flight.is_lost = True
                gone.append(flight)
        self.flights.clear()
        self.received.clear()
        return gone

    def feed(self, bytes data not None):
        """Take bytes from the broker, however they are split. Return the events for Python, in order: packets, Flights,
        Messages, and last an MqttError if the broker violated the protocol; then no more bytes are taken."""
        cdef list events = []
        cdef size_t used
        if self.is_broken:
            return events
        self.events = events
        try:
            if self.part:
                self.part += data
                used = self.packets(<const uint8_t*>PyByteArray_AS_STRING(self.part), <size_t>len(self.part))
                del self.part[:used]
            else:
                used = self.packets(<const uint8_t*><const char*>data, <size_t>len(data))
                if used < <size_t>len(data):
                    self.part += data[used:]
        except MqttError as error:
            self.is_broken = True
            events.append(error)
        finally:
            self.events = []
        return events

    cdef Py_ssize_t packets(self, const uint8_t* p, size_t n) except -1:
        cdef size_t at = 0
        cdef uint32_t remaining = 0
        cdef int head
        while True:
            if not self.is_connected and at < n and p[at] >> 4 != CONNACK:
                protocol_error(REASON_PROTOCOL_ERROR, f"packet type {p[at] >> 4} before CONNACK")
            head = fixed_header(p + at, n - at, self.version == 5, &remaining)
            if head < 0:
                malformed("Remaining Length is no Variable Byte Integer")
            if head == 0 or n - at - <size_t>head < remaining:
                return <Py_ssize_t>at
            self.packet(p + at, p + at + head, remaining)
            at += <size_t>head + remaining

    cdef int packet(self, const uint8_t* start, const uint8_t* body, uint32_t n) except -1:
        cdef uint8_t kind = start[0] >> 4
        if kind == PUBLISH:
            return self.delivery(start[0] & 0x0F, body, n)
        if n == 2 and (kind == PUBACK or kind == PUBREC or kind == PUBCOMP) and start[0] & 0x0F == 0:
            return self.answered(kind, <uint16_t>(body[0] << 8 | body[1]), 0)
        packet = decode(start[:body + n - start], self.version, True)
        if PUBACK <= kind <= PUBCOMP:
            return self.answered(kind, packet.packet_id, packet.reason_code)
        if kind == CONNACK:
            return self.welcomed(packet)
        if kind == PINGRESP:
            self.is_ping_due_back = False
            return 0
        if kind == SUBACK:
            self.unask((<Suback>packet).packet_id)
        elif kind == UNSUBACK:
            self.unask((<Unsuback>packet).packet_id)
        elif kind == AUTH:
            return protocol_error(REASON_PROTOCOL_ERROR, "AUTH, and no Authentication Method was agreed on")
        self.events.append(packet)
        return 0

    cdef int unask(self, uint16_t packet_id) except -1:
        if packet_id not in self.asked:
            return protocol_error(REASON_PROTOCOL_ERROR, f"an answer to Packet Identifier {packet_id}, not in use")
        self.asked.remove(packet_id)
        return 0

    cdef int welcomed(self, Connack packet) except -1:
        cdef Flight flight
        if self.is_connected:
            return protocol_error(REASON_PROTOCOL_ERROR, "a second CONNACK")
        self.events.append(packet)
        if packet.reason_code:
            return 0
        self.is_connected = True
        self.window = packet.properties.get("receive_maximum", 65_535)
        self.packet_bytes_max = packet.properties.get("maximum_packet_size", 268_435_460)
        if not packet.session_present:
            self.events += self.session_gone()
            return 0
        for flight in self.flights.values():
            if flight.is_released:
                self.answer(PUBREL, flight.packet_id)
            else:
                self.out += bytes((flight.packet[0] | 0x08,))
                self.out += flight.packet[1:]
        return 0

    cdef int answer(self, uint8_t kind, uint16_t packet_id) except -1:
        cdef Py_ssize_t before = len(self.out)
        PyByteArray_Resize(self.out, before + 4)
        put_ack(<uint8_t*>PyByteArray_AS_STRING(self.out) + before, kind, packet_id, 0, False)
        return 0

    cdef int answered(self, uint8_t kind, uint16_t packet_id, uint8_t reason) except -1:
        cdef Flight flight
        if kind == PUBREL:
            self.received.discard(packet_id)
            return self.answer(PUBCOMP, packet_id)
        flight = self.flights.get(packet_id)
        if flight is None or (kind == PUBACK) != (flight.qos == 1) or kind == PUBCOMP and not flight.is_released:
            return protocol_error(
                REASON_PROTOCOL_ERROR, f"packet type {kind} for {packet_id}, where nothing waits for it")
        if kind == PUBREC and reason < 0x80:
            flight.is_released = True
            return self.answer(PUBREL, packet_id)
        del self.flights[packet_id]
        flight.reason_code = reason
        if reason < 0x80 and not flight.is_lost:
            flight.tally.add(<double>(monotonic_ns() - flight.since) / 1e6, flight.payload_bytes)
        if (flight.waiter is not None or reason >= 0x80) and not flight.is_lost:
            self.events.append(flight)
        return 0

    cdef int delivery(self, uint8_t flags, const uint8_t* body, uint32_t n) except -1:
        cdef Publish p
        cdef double ms
        cdef Tally tally
        cdef tuple tallies
        decode_delivery(&p, flags, body, n, self.version == 5, &self.scratch)
        if p.has_alias:
            return protocol_error(REASON_TOPIC_ALIAS_INVALID, "a Topic Alias, and none was allowed")
        tallies = self.tallies_of(p.topic[:p.topic_len])
        if p.qos == 1:
            self.answer(PUBACK, p.packet_id)
        elif p.qos == 2:
            self.answer(PUBREC, p.packet_id)
            if p.packet_id in self.received:
                return 0
            if <uint32_t>len(self.received) >= self.receive_maximum:
                return protocol_error(REASON_RECEIVE_MAXIMUM_EXCEEDED, "more messages of QoS 2 than Receive Maximum")
            self.received.add(p.packet_id)
        ms = latency_ms(p.payload, p.payload_len)
        tally = tallies[0 if ms >= 0 else 1]
        tally.add(ms if ms >= 0 else None, p.payload_len)
        if self.keeps_messages:
            self.events.append(self.message(&p, ms))
        return 0

    cdef Message message(self, Publish* p, double ms):
        cdef Message message = Message.__new__(Message)
        cdef Cursor c
        message.topic = p.topic[:p.topic_len].decode("utf-8")
        message.payload = p.payload[:p.payload_len]
        message.qos, message.retain, message.dup = p.qos, p.retain, p.dup
        message.latency_ms = ms if ms >= 0 else None
        message.properties = {}
        if p.props_len:
            c.at = p.topic + p.topic_len + (2 if p.qos else 0)
            c.end = p.payload
            message.properties = read_properties(&c, PUBLISH, True)
        return message
