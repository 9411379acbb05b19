"""The packets of one broker of a bridge, made into those of the other one.

A bridge is a client of two brokers, with a session at each (`broker.bridges`). What one of them sends is sent to the
other one: its PUBLISH with another topic, its acknowledgements as they are, all with their Packet Identifiers. Whoever
sends a PUBLISH chooses its identifier, and nobody else publishes on the other connection, so identifiers are unique
there, too. So a bridge keeps nothing: what is not acknowledged is in the session of the broker that has sent it, and
each flow of QoS 1 and 2 is one between the two brokers.

Only what is for the bridge itself (CONNACK, SUBACK, PINGRESP, ...) is kept here, and a message that the other broker
would not take is answered here. What this broker would end its client's connection for is known (`Crossing.judge`): the
message would come again with each connection, and all others wait behind it.
"""
cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from pyx.core.limits cimport Limits
from pyx.core.work cimport KIBI, RECORD, VISIT, work
from pyx.protocol.bounds cimport publish_lists_too_much
from pyx.protocol.decoders cimport Publish, Scratch, decode_publish
from pyx.protocol.packets cimport (
    AUTH, CONNACK, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, UNSUBACK,
)
from pyx.protocol.reasons cimport (
    REASON_IMPLEMENTATION_SPECIFIC_ERROR, REASON_NO_MATCHING_SUBSCRIBERS, REASON_QUOTA_EXCEEDED, REASON_SUCCESS,
    REASON_TOPIC_NAME_INVALID, malformed, reason_allowed,
)
from pyx.protocol.topics cimport has_wildcard, topic_matches
from pyx.protocol.wire cimport (
    Cursor, characters_allowed, put_u16, put_varint, read_binary, read_u16, read_varint, utf8_valid, varint_size,
)

from pyx.protocol.reasons import MqttError

cdef enum:
    IDENTIFIERS = 65536
    REMAINING_MAX = 268_435_455         # the longest that a packet may be behind its length [MQTT 5, 2.1.4]
    HEAD_BYTES_MAX = 5
    ACK_BYTES_MAX = 5
    REASON_FAILED = 0x80                # Reason Codes from here on are failures [MQTT 5, 2.4]
    KEPT_BYTES = 1 << 20                # of a buffer that is empty
    OWN_BYTES_MAX = 128 << 10           # of any packet but a PUBLISH
    OWN_MAX = 200                       # packets for the bridge itself that come at once: more than it ever asks for
    SLICE = 4_000_000                   # ns of work in one call


cdef struct PacketBytes:
    uint8_t* at
    size_t length
    size_t room


cdef int make_room(PacketBytes* out, size_t more) except -1:
    cdef size_t room = out.room
    cdef uint8_t* p
    if out.length + more <= room:
        return 0
    room = max(2 * room, out.length + more)
    p = <uint8_t*>realloc(out.at, room)
    if p == NULL:
        raise MemoryError
    out.at = p
    out.room = room
    return 0


cdef inline size_t payload_kibi(const Cursor* c) noexcept nogil:
    return <size_t>(c.end - c.at) // 1024


cdef bytes taken(PacketBytes* out):
    cdef bytes packets = PyBytes_FromStringAndSize(<char*>out.at, <Py_ssize_t>out.length) if out.length else b""
    out.length = 0
    if out.room > KEPT_BYTES:
        free(out.at)
        out.at = NULL
        out.room = 0
    return packets


@cython.final
cdef class TopicMap:
    """A Topic Filter of one broker, and the beginnings of its topics there and at the other broker. is_ours: whether
    its messages cross here, and not over another connection of the bridge.
    """

    cdef bytes filter, prefix, other_prefix
    cdef const uint8_t* at
    cdef const uint8_t* prefix_at
    cdef const uint8_t* other_at
    cdef size_t length, prefix_length, other_length
    cdef bint is_ours

    def __init__(self, bytes filter not None, bytes prefix not None, bytes other_prefix not None, bint is_ours=True):
        self.is_ours = is_ours
        self.filter, self.prefix, self.other_prefix = filter, prefix, other_prefix      # they are borrowed from below
        self.at, self.length = <const uint8_t*>PyBytes_AS_STRING(filter), <size_t>len(filter)
        self.prefix_at, self.prefix_length = <const uint8_t*>PyBytes_AS_STRING(prefix), <size_t>len(prefix)
        self.other_at, self.other_length = <const uint8_t*>PyBytes_AS_STRING(other_prefix), <size_t>len(other_prefix)

    cdef bint takes(self, const uint8_t* topic, size_t n) noexcept nogil:
        cdef size_t other = n - self.prefix_length + self.other_length
        if n < self.prefix_length or other == 0 or other > 65535:
            return False
        return memcmp(topic, self.prefix_at, self.prefix_length) == 0 and topic_matches(self.at, self.length, topic, n)


@cython.final
cdef class Crossing:
    """The packets of one broker that go to the other one. All of these are of one connection, but what is unreleased.

    version, other_version: of MQTT at the two, 4 or 5. maps: the first that matches a topic says what it is at the
    other broker. other_bytes_max: size of the largest packet that the other broker takes. retains: whether it keeps
    retained messages. qos_max: the highest QoS that it takes; messages of a higher one cross with that.
    """

    cdef uint8_t version, other_version
    cdef uint8_t qos_max
    cdef uint32_t other_bytes_max, packet_bytes_max
    cdef bint retains
    cdef Crossing partner               # of the packets of the other broker
    cdef Limits limits                  # of the other broker, if that is this one
    cdef Scratch scratch
    cdef uint16_t refuses               # a PUBLISH with this Packet Identifier does not cross
    cdef list maps, own
    cdef bytearray part                 # what has come and is not handled yet
    cdef uint64_t spent                 # ns of work in this call
    cdef PacketBytes out, back
    cdef uint8_t* open_ids              # bits: PUBLISH of QoS 2 that have crossed, and no PUBREL yet
    cdef uint8_t* ended_ids             # bits: PUBCOMP that do not cross: nobody there waits for them
    cdef uint8_t* lowered_ids           # bits: of QoS 2, but crossed with less: their PUBREL does not cross
    cdef readonly uint16_t first_id
    """Packet Identifier of the first message of QoS 1 or 2 that has crossed since `begin`; 0: none has."""
    cdef readonly uint64_t answered
    """Of these, how many the other broker has answered since then."""
    cdef readonly bint is_behind
    """Whether `feed` has to be called again, with or without more: a call does not do any amount of work."""
    cdef uint64_t taken_bytes
    cdef readonly uint64_t messages
    """Messages that have crossed."""
    cdef readonly uint64_t message_bytes
    """Their packets, in bytes, as the other broker gets them."""
    cdef readonly uint64_t unmapped
    """Messages whose topic no map takes; they are refused."""
    cdef readonly uint64_t too_large
    """Messages that are larger than the other broker takes; they are refused."""
    cdef readonly uint64_t refused
    """Acknowledgements with a failure, and messages that the other broker would end the connection for."""

    def __cinit__(self):
        self.open_ids = <uint8_t*>realloc(NULL, IDENTIFIERS // 8)
        self.ended_ids = <uint8_t*>realloc(NULL, IDENTIFIERS // 8)
        self.lowered_ids = <uint8_t*>realloc(NULL, IDENTIFIERS // 8)
        if self.open_ids == NULL or self.ended_ids == NULL or self.lowered_ids == NULL:
            raise MemoryError
        for i in range(IDENTIFIERS // 8):
            self.open_ids[i] = self.ended_ids[i] = self.lowered_ids[i] = 0

    def __dealloc__(self):
        free(self.out.at)
        free(self.back.at)
        free(self.open_ids)
        free(self.ended_ids)
        free(self.lowered_ids)
        free(self.scratch.buf)

    def __init__(self, list maps not None, uint32_t packet_bytes_max):
        """packet_bytes_max: a packet that is larger is malformed."""
        self.maps = maps
        self.packet_bytes_max = packet_bytes_max
        self.begin(5, 5, REMAINING_MAX, True)

    def pair(self, Crossing partner not None):
        """Know the way of the other broker's packets, whose answers belong to the messages of this one."""
        self.partner, partner.partner = partner, self

    def judge(self, Limits limits not None):
        """Refuse what a broker of MQTT 5 with these limits, this one, would end the connection for."""
        self.limits = limits

    def begin(self, uint8_t version, uint8_t other_version, uint32_t other_bytes_max, bint retains,
              uint8_t qos_max=2):
        """Begin with new connections; what has crossed is counted on, and what is unreleased kept."""
        self.version, self.other_version = version, other_version
        self.other_bytes_max, self.retains, self.qos_max = other_bytes_max, retains, qos_max
        self.first_id, self.answered = 0, 0
        for i in range(IDENTIFIERS // 8):
            self.ended_ids[i] = 0
        self.own, self.part, self.is_behind = [], bytearray(), False
        self.out.length = self.back.length = 0

    def feed(self, bytes data not None):
        """Take what the broker has sent; return the packets for the other one. Raises MqttError."""
        cdef size_t used
        work(<uint64_t>len(data) // 1024 * KIBI)
        if self.part:
            self.part += data
            used = self.packets(<const uint8_t*>PyByteArray_AS_STRING(self.part), <size_t>len(self.part))
            if used == <size_t>len(self.part):
                self.part = bytearray()
            else:
                del self.part[:used]
        else:
            used = self.packets(<const uint8_t*>PyBytes_AS_STRING(data), <size_t>len(data))
            if used < <size_t>len(data):
                self.part += data[used:]
        return taken(&self.out)

    cdef size_t packets(self, const uint8_t* p, size_t n) except? 0:
        """Take packets, up to a slice of work. Return their length."""
        cdef size_t at = 0, used
        self.spent = 0
        while self.spent < SLICE:
            used = self.packet(p + at, n - at)
            if used == 0:
                self.is_behind = False
                return at
            at += used
        self.is_behind = at < n
        return at

    def publish_bytes(self):
        """Return how many bytes of PUBLISH have come, that of one that is not complete included."""
        return self.taken_bytes + <uint64_t>len(self.part)

    def answers(self):
        """Return what the broker is to be answered by the bridge itself."""
        return taken(&self.back)

    def own_packets(self):
        """Return the packets that are for the bridge itself, whole."""
        own, self.own = self.own, []
        return own

    def release(self):
        """Return PUBREL, for the other broker, of all messages that have crossed and that the broker does not know any
        more, because its session is new. Their PUBCOMP are for nobody (`Crossing.end`).
        """
        cdef int number
        cdef list found = []
        for number in range(1, IDENTIFIERS):
            if self.open_ids[number >> 3] >> (number & 7) & 1:
                found.append(number)
                make_room(&self.out, ACK_BYTES_MAX)
                self.put_ack(&self.out, PUBREL, <uint16_t>number, REASON_SUCCESS, 4)
        return taken(&self.out), found

    def refuse(self, uint16_t number):
        """Refuse the next message with this Packet Identifier: the other broker does not stand it."""
        self.refuses = number

    def end(self, list numbers not None):
        """Do not pass on the PUBCOMP with these Packet Identifiers, once each."""
        cdef int number
        for number in numbers:
            self.ended_ids[number >> 3] |= <uint8_t>(1 << (number & 7))

    cdef size_t packet(self, const uint8_t* p, size_t n) except? 0:
        """Take the first packet. Return its length; 0: it is not complete."""
        cdef Cursor c
        cdef size_t remaining = 0, length
        cdef int shift = 0
        cdef size_t at = 1
        cdef uint8_t kind
        while True:
            if at >= n:
                return 0
            remaining |= <size_t>(p[at] & 0x7F) << shift
            at += 1
            if p[at - 1] < 0x80:
                break
            shift += 7
            if shift == 28:
                malformed("Variable Byte Integer of more than 4 bytes")
        length = at + remaining
        kind = p[0] >> 4
        if length > self.packet_bytes_max or kind != PUBLISH and length > OWN_BYTES_MAX:
            malformed(f"a packet of {length} bytes")
        if length > n:
            return 0
        self.cost(RECORD)
        c.at = p + at
        c.end = p + length
        if kind == PUBLISH:
            self.taken_bytes += length
            self.publish(p[0], &c)
        elif PUBACK <= kind <= PUBCOMP:
            self.ack(kind, &c)
        elif kind == CONNACK or kind == SUBACK or kind == UNSUBACK or kind >= PINGRESP and kind <= AUTH:
            if len(self.own) == OWN_MAX:
                malformed("answers to what no bridge asks for")
            self.own.append(p[:length])
        else:
            malformed(f"a packet of type {kind} of a server")
        return length

    cdef inline void cost(self, uint64_t ns) noexcept:
        self.spent += ns
        work(ns)

    cdef int publish(self, uint8_t first, Cursor* c) except -1:
        cdef const uint8_t* topic
        cdef const uint8_t* properties
        cdef size_t n, properties_bytes = 0, began
        cdef uint16_t number = 0
        cdef uint8_t qos = first >> 1 & 3, reason
        cdef TopicMap found = None
        cdef TopicMap each
        n = <size_t>read_binary(c, &topic)
        if n == 0 or has_wildcard(topic, n) or not utf8_valid(topic, n) or qos == 3:
            malformed("PUBLISH without a Topic Name, or of QoS 3")
        if qos:
            number = <uint16_t>read_u16(c)
            if number == 0:
                malformed("PUBLISH with Packet Identifier 0")
        properties = c.at
        if self.version == 5:
            properties_bytes = <size_t>read_varint(c)
            if properties_bytes > <size_t>(c.end - c.at):
                malformed("properties reach behind the end of their packet")
            properties = c.at
            c.at += properties_bytes
        self.cost(<uint64_t>payload_kibi(c) * KIBI)
        if number and number == self.refuses:
            self.refuses = 0
            self.refused += 1
            return self.answer(qos, number, REASON_IMPLEMENTATION_SPECIFIC_ERROR)
        for each in self.maps:
            self.cost(VISIT)
            if each.takes(topic, n):
                found = each
                break
        if found is None:
            self.unmapped += 1
            return self.answer(qos, number, REASON_TOPIC_NAME_INVALID)
        if not found.is_ours:
            if qos == 2:
                self.lowered_ids[number >> 3] |= <uint8_t>(1 << (number & 7))
            return self.answer(qos, number, REASON_SUCCESS)
        if qos > self.qos_max:
            first = first & 0xF9 | <uint8_t>(self.qos_max << 1)
            if self.qos_max == 0:
                first &= 0xF7           # DUP has no meaning
        began = self.out.length
        if not self.pass_on(first, number if self.qos_max else 0, found, topic, n, properties, properties_bytes, c):
            self.too_large += 1
            return self.answer(qos, number, REASON_IMPLEMENTATION_SPECIFIC_ERROR)
        reason = self.judged(began)
        if reason != REASON_SUCCESS:
            self.out.length = began
            self.refused += 1
            return self.answer(qos, number, reason)
        self.messages += 1
        self.message_bytes += self.out.length - began
        if qos:
            self.lowered_ids[number >> 3] &= <uint8_t>~(1 << (number & 7))
        if qos > self.qos_max:
            if qos == 2:
                self.lowered_ids[number >> 3] |= <uint8_t>(1 << (number & 7))
            if self.qos_max == 0:
                return self.answer(qos, number, REASON_SUCCESS)
        elif qos == 2:
            self.open_ids[number >> 3] |= <uint8_t>(1 << (number & 7))
        if qos and self.first_id == 0:
            self.first_id = number
        return 0

    cdef bint pass_on(self, uint8_t first, uint16_t number, TopicMap found, const uint8_t* topic, size_t n,
                      const uint8_t* properties, size_t properties_bytes, Cursor* c) except -1:
        """Write a PUBLISH for the other broker. Return False if it is too large for that."""
        cdef size_t removed = found.prefix_length, put = found.other_length
        cdef size_t payload = <size_t>(c.end - c.at), remaining
        cdef bint v5 = self.other_version == 5
        cdef uint8_t* p
        cdef uint8_t* began
        if not v5:
            properties_bytes = 0
        remaining = 2 + put + n - removed + (2 if number else 0) + payload
        if v5:
            remaining += varint_size(<uint32_t>properties_bytes) + properties_bytes
        if remaining > REMAINING_MAX or 1 + varint_size(<uint32_t>remaining) + remaining > self.other_bytes_max:
            return False
        make_room(&self.out, HEAD_BYTES_MAX + remaining)
        began = p = self.out.at + self.out.length
        p[0] = first if self.retains else first & 0xFE
        p = put_varint(p + 1, <uint32_t>remaining)
        p = put_u16(p, <uint16_t>(put + n - removed))
        memcpy(p, found.other_at, put)
        p += put
        memcpy(p, topic + removed, n - removed)
        p += n - removed
        if number:
            p = put_u16(p, number)
        if v5:
            p = put_varint(p, <uint32_t>properties_bytes)
            memcpy(p, properties, properties_bytes)
            p += properties_bytes
        memcpy(p, c.at, payload)
        p += payload
        self.out.length += <size_t>(p - began)
        return True

    cdef uint8_t judged(self, size_t began) except 0xFF:
        """Return why this broker would end the connection for the PUBLISH that begins here; 0: it would not."""
        cdef uint8_t* p = self.out.at + began
        cdef size_t header = 2
        cdef Publish pub
        if self.limits is None:
            return REASON_SUCCESS
        while p[header - 1] >= 0x80:
            header += 1
        try:
            decode_publish(&pub, p[0] & 0x0F, p + header, <uint32_t>(self.out.length - began - header), True,
                           &self.scratch)
            if pub.has_alias:
                return REASON_IMPLEMENTATION_SPECIFIC_ERROR     # none is offered
            self.cost(<uint64_t>pub.props_len // 1024 * KIBI)
            if not characters_allowed(pub.topic, pub.topic_len):
                return REASON_TOPIC_NAME_INVALID
            if pub.props_len > self.limits.unwalked_bytes and \
                    publish_lists_too_much(pub.props, pub.props_len, self.limits):
                return REASON_QUOTA_EXCEEDED
        except MqttError:
            return REASON_IMPLEMENTATION_SPECIFIC_ERROR
        return REASON_SUCCESS

    cdef int answer(self, uint8_t qos, uint16_t number, uint8_t reason) except -1:
        """Answer a message that does not cross. Before MQTT 5 there are no reasons: its PUBREL, which follows, crosses,
        and the other broker answers it.
        """
        if qos:
            make_room(&self.back, ACK_BYTES_MAX)
            self.put_ack(&self.back, PUBACK if qos == 1 else PUBREC, number, reason, self.version)
        return 0

    cdef int put_ack(self, PacketBytes* out, uint8_t kind, uint16_t number, uint8_t reason, uint8_t version) except -1:
        """Write an acknowledgement; there is room for it."""
        cdef uint8_t* p = out.at + out.length
        cdef bint with_reason = version == 5 and reason != REASON_SUCCESS
        p[0] = <uint8_t>(kind << 4) | (2 if kind == PUBREL else 0)
        p[1] = 3 if with_reason else 2
        put_u16(p + 2, number)
        if with_reason:
            p[4] = reason
        out.length += 5 if with_reason else 4
        return 0

    cdef int ack(self, uint8_t kind, Cursor* c) except -1:
        cdef uint8_t bit
        cdef uint8_t reason = REASON_SUCCESS
        cdef uint16_t number = <uint16_t>read_u16(c)
        bit = <uint8_t>(1 << (number & 7))
        if c.at != c.end:
            if self.version != 5:
                malformed("an acknowledgement of more than 2 bytes")
            reason = c.at[0]
        if number == 0 or not reason_allowed(kind, reason, True):
            malformed("an acknowledgement with Packet Identifier 0, or a Reason Code that it cannot have")
        if reason >= REASON_FAILED and (kind == PUBACK or kind == PUBREC):
            self.refused += 1
        if kind == PUBREL:
            if self.lowered_ids[number >> 3] & bit:
                self.lowered_ids[number >> 3] &= <uint8_t>~bit
                make_room(&self.back, ACK_BYTES_MAX)
                return self.put_ack(&self.back, PUBCOMP, number, REASON_SUCCESS, self.version)
            self.open_ids[number >> 3] &= <uint8_t>~bit
        elif self.partner is not None:
            if kind != PUBCOMP:
                self.partner.answered += 1
            elif self.ended_ids[number >> 3] & bit:
                self.ended_ids[number >> 3] &= <uint8_t>~bit
                self.partner.open_ids[number >> 3] &= <uint8_t>~bit
                return 0
            if kind == PUBACK and self.partner.lowered_ids[number >> 3] & bit:
                kind = PUBREC
        if reason == REASON_NO_MATCHING_SUBSCRIBERS:    # which only servers say
            reason = REASON_SUCCESS
        make_room(&self.out, ACK_BYTES_MAX)             # properties might be more than the other broker takes
        return self.put_ack(&self.out, kind, number, reason, self.other_version)
