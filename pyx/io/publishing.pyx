"""PUBLISH packets of clients: decoded, judged, and routed or refused.

A publish passes, in this order: the bounds of its properties, its Topic Alias, its topic, the back-pressure, the topics
of the server's own, the authorisation, the payload's format, what the CONNACK announced, and Receive Maximum (not for a
bridge, for the other broker counts in its own way). The first that refuses it says why. One to $mqttd/owner is a
question to the broker, and is routed to nobody.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp

from pyx.core cimport counters as count
from pyx.delivery.back_pressure cimport HELD, REFUSED, UNSTORED
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport is_stored
from pyx.io.connections cimport OF_BRIDGES_
from pyx.protocol.bounds cimport publish_lists_too_much
from pyx.protocol.decoders cimport decode_publish
from pyx.protocol.message cimport Content
from pyx.protocol.packets cimport PUBACK, PUBREC
from pyx.protocol.reasons cimport protocol_error
from pyx.protocol.topics cimport level_count, topic_name_valid
from pyx.protocol.wire cimport utf8_valid

from pyx.protocol.encoders import encode_ack

cdef enum:
    NO_MATCHING_SUBSCRIBERS = 0x10
    PROTOCOL_ERROR = 0x82
    NOT_AUTHORIZED = 0x87
    TOPIC_NAME_INVALID = 0x90
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    QUOTA_EXCEEDED = 0x97
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B


cdef bint utf8_payload(const uint8_t* p, size_t n) noexcept nogil:
    """Return whether a payload is well-formed UTF-8. Unlike an MQTT string it may contain U+0000 [3.3.2.3.2]."""
    cdef const uint8_t* null
    while n:
        null = <const uint8_t*>memchr(p, 0, n)
        if null == NULL:
            return utf8_valid(p, n)
        if not utf8_valid(p, <size_t>(null - p)):
            return False
        n -= <size_t>(null - p) + 1
        p = null + 1
    return True


cdef inline bint is_below(const Publish* pub, const char* root, uint16_t n) noexcept nogil:
    """Return whether the topic is this one of `n` bytes, or below it."""
    return pub.topic_len >= n and memcmp(pub.topic, root, n) == 0 and (pub.topic_len == n or pub.topic[n] == c'/')


cdef bint is_servers_own(const Publish* pub, bint* asks) noexcept nogil:
    """Return whether clients may not publish to the topic; `asks`: whether it is that of requests to the broker. Below
    $SYS/broker/connection/ bridges of mosquitto say whether they are connected."""
    asks[0] = pub.topic_len == 12 and memcmp(pub.topic, b"$mqttd/owner", 12) == 0
    if asks[0] or pub.topic_len > 23 and memcmp(pub.topic, b"$SYS/broker/connection/", 23) == 0:
        return False
    return is_below(pub, b"$SYS", 4) or is_below(pub, b"$mqttd", 6)


cdef inline void fill_content(Content* c, const Publish* pub, uint64_t wall_ms, uint64_t number) noexcept nogil:
    c.number = number
    c.topic = pub.topic
    c.topic_len = pub.topic_len
    c.props = pub.props
    c.props_len = pub.props_len
    c.payload = pub.payload
    c.payload_len = pub.payload_len
    c.qos = pub.qos
    c.retain = pub.retain
    c.expiry_offset = pub.expiry_offset
    c.expires = wall_ms + <uint64_t>pub.expiry_interval * 1000 if pub.expiry_offset >= 0 else 0


@cython.final
cdef class Publishing:
    """The publishes of all clients of one router."""

    def __cinit__(self, Router router not None, Authorise authorise not None):
        self.router = router
        self.state = router.state
        self.counters = router.state.counters
        self.limits = router.state.limits
        self.subscriptions = router.state.subscriptions
        self.authorise = authorise
        self.scratch.buf = NULL
        self.scratch.cap = 0

    def __dealloc__(self):
        free(self.scratch.buf)

    cdef int publish(self, Connection conn, uint8_t flags, uint8_t* p, uint32_t header, uint32_t total) except -1:
        cdef Router router = self.router
        cdef Session s = <Session>conn.session
        cdef Publish pub
        cdef Content c
        cdef Matches* m
        cdef bint v5 = conn.version == 5, asks = False
        cdef int kind = -1, held
        cdef uint8_t reason
        cdef uint32_t id_at = 0
        decode_publish(&pub, flags, p + header, total - header, v5, &self.scratch)
        if pub.props_len > self.limits.unwalked_bytes:
            self.check_properties(&pub)
        if pub.has_alias:
            self.alias(conn, &pub)
        m = self.subscriptions.cached(pub.topic, pub.topic_len)
        if m == NULL:
            if not self.topic_fits(&pub):
                return self.refuse(conn, s, &pub, TOPIC_NAME_INVALID,
                                   "Topic Name beyond topic_bytes_max or topic_levels_max")
            m = self.subscriptions.match(pub.topic, pub.topic_len)
        if router.back_pressure.concerns(conn, pub.qos, pub.retain):
            held = self.guard(conn, s, &pub, m, total)
            if held:
                return held - 1
        conn.messages_in += 1
        if pub.topic[0] == c'$' and is_servers_own(&pub, &asks):
            return self.refuse(conn, s, &pub, NOT_AUTHORIZED, "a topic of the server's own")
        if self.authorise.restricts and not self.authorise.may_publish(
                &conn.verdicts, s, pub.topic, pub.topic_len, m.topic_hash, pub.qos, pub.retain):
            return self.refuse(conn, s, &pub, NOT_AUTHORIZED, "not authorised")
        if pub.payload_format and self.limits.validate_payload_format and \
                not utf8_payload(pub.payload, pub.payload_len):
            return self.refuse(conn, s, &pub, PAYLOAD_FORMAT_INVALID, "payload is not UTF-8, as its indicator says")
        if pub.retain and not self.limits.retain_available:
            protocol_error(RETAIN_NOT_SUPPORTED, "PUBLISH with RETAIN, and nothing is retained here")
        if pub.qos:
            if pub.qos > self.limits.maximum_qos:
                protocol_error(QOS_NOT_SUPPORTED, "QoS above Maximum QoS")
            if conn.unanswered + conn.unreleased >= self.limits.receive_maximum and v5 and conn.listener != OF_BRIDGES_:
                # a resent QoS 2 publish with a known identifier does not count again
                if pub.qos == 1 or not self.known(s, pub.packet_id):
                    if conn.ack_count:
                        conn.messages_in -= 1       # it will be decoded again
                        return router.back_pressure.await_answers(conn, s)
                    self.counters.at[count.RECEIVE_MAXIMUM_EXCEEDED] += 1
                    protocol_error(RECEIVE_MAXIMUM_EXCEEDED, "more than Receive Maximum unacknowledged publishes")
            if pub.qos == 2 and not self.arrives(conn, s, pub.packet_id):
                # a duplicate: its answer waits for the same conditions as the first one's
                self.counters.at[count.PUBLISH_DUPLICATES] += 1
                return self.answer_again(conn, s, pub.packet_id)
            self.counters.at[count.PUBLISH_RECEIVED_QOS1 if pub.qos == 1 else count.PUBLISH_RECEIVED_QOS2] += 1
        self.counters.at[count.PUBLISH_RECEIVED] += 1
        self.counters.at[count.PUBLISH_BYTES_RECEIVED] += pub.payload_len
        if asks:
            return self.ask(conn, s, &pub)
        fill_content(&c, &pub, self.state.wall_ms, self.state.new_number())
        if not pub.has_alias:
            kind = (1 if v5 else 0) | (2 if pub.qos else 0)
            id_at = header + 2 + pub.topic_len
        router.in_hand.begin(&c, s, s.client_id, p, total, kind, id_at)
        reason = 0 if router.publish(m) or not v5 else NO_MATCHING_SUBSCRIBERS
        if router.peers.full_peers and router.in_hand.matched_peers & router.peers.full_peers:
            router.peers.pause(conn)
        if pub.qos:
            router.answering.answer(
                conn, PUBACK if pub.qos == 1 else PUBREC, pub.packet_id, reason, router.in_hand.mask)
        if self.state.now_ms >= self.state.sample_ms:
            router.peers.sample(m, pub.qos == 0 or conn.ack_count == 0)
        return 0

    cdef int ask(self, Connection conn, Session s, Publish* pub) except -1:
        # a request to the broker itself: it is routed to nobody
        cdef Router router = self.router
        router.in_hand.logged = False
        router.in_hand.matched_peers = 0        # those that are sent the answer
        if pub.qos == 2 and self.state.keeps and is_stored(s):
            router.windows.mark_dirty(s)
        self.state.handler.asked_for_owner(
            s, PyBytes_FromStringAndSize(<char*>pub.payload, pub.payload_len),
            PyBytes_FromStringAndSize(<char*>pub.props, pub.props_len))
        if pub.qos:
            router.answering.answer(conn, PUBACK if pub.qos == 1 else PUBREC, pub.packet_id, 0, 0)
        if router.peers.full_peers and router.in_hand.matched_peers & router.peers.full_peers:
            router.peers.pause(conn)
        return 0

    cdef int answer_again(self, Connection conn, Session s, uint16_t packet_id) except -1:
        cdef Router router = self.router
        cdef RouterState state = self.state
        router.in_hand.logged = False
        if state.keeps and is_stored(s):
            router.windows.mark_dirty(s)
        router.answering.answer(conn, PUBREC, packet_id, 0, router.answering.unacknowledged_peers())
        state.acks_due = True
        return 0

    cdef int check_properties(self, Publish* pub) except -1:
        if publish_lists_too_much(pub.props, pub.props_len, self.limits):
            self.counters.at[count.USER_PROPERTIES_REFUSED] += 1
            protocol_error(QUOTA_EXCEEDED, "more than user_properties_max or user_property_bytes_max")
        return 0

    cdef bint topic_fits(self, Publish* pub) except -1:
        # called once for each topic in the match cache
        cdef Limits limits = self.limits
        if not topic_name_valid(pub.topic, pub.topic_len):
            protocol_error(TOPIC_NAME_INVALID, "Topic Name with wildcard, U+0000, bad UTF-8, or empty")
        if pub.topic_len > limits.topic_bytes_max:
            self.counters.at[count.TOPICS_TOO_LONG] += 1
            return False
        if level_count(pub.topic, pub.topic_len) > limits.topic_levels_max:
            self.counters.at[count.TOPICS_TOO_DEEP] += 1
            return False
        return True

    cdef int guard(self, Connection conn, Session s, Publish* pub, Matches* m, uint32_t total) except -1:
        # judges a publish while `guarded` is set (see pyx.delivery.back_pressure); returns 0: route it, 1: it is
        # finished, 2: not taken yet
        cdef int verdict
        if pub.qos == 2 and self.known(s, pub.packet_id):
            return 0                        # sent again: judged the first time
        verdict = self.router.back_pressure.judge(conn, s, pub.qos, pub.retain, m, total)
        if verdict == REFUSED:
            self.refuse(conn, s, pub, QUOTA_EXCEEDED, "worker_memory_bytes_max")
            return 1
        if verdict == UNSTORED and pub.qos == 0:
            self.counters.at[count.PUBLISH_REFUSED] += 1
            self.state.handler.publish_refused(
                conn, PyBytes_FromStringAndSize(<char*>pub.topic, pub.topic_len), QUOTA_EXCEEDED)
            return 1
        if verdict == UNSTORED:
            self.refuse(conn, s, pub, QUOTA_EXCEEDED, "nothing can be stored at present")
            return 1
        return 2 if verdict == HELD else 0

    cdef bint arrives(self, Connection conn, Session s, uint16_t packet_id) except -1:
        # returns False if the identifier is in use already
        if not s.arrive(packet_id):
            return False
        conn.unreleased += 1
        if self.state.keeps and is_stored(s):
            self.router.windows.mark_dirty(s)
        return True

    cdef bint known(self, Session s, uint16_t packet_id) except -1:
        if s.arrive(packet_id):
            s.leave(packet_id)
            return False
        return True

    cdef int refuse(self, Connection conn, Session s, Publish* pub, uint8_t reason, str why) except -1:
        # v5 gets the reason in the ack, at QoS 0 not at all [MQTT 5, 4.13.2]. v3 has no reasons: an unauthorised
        # publish is acked as if it were accepted, any other refusal closes the connection [MQTT-3.3.5-2]
        cdef uint8_t kind = PUBACK if pub.qos == 1 else PUBREC
        if pub.qos == 2 and self.known(s, pub.packet_id):
            # sent again: the first one was accepted, by the settings of that time; its identifier is in use
            self.counters.at[count.PUBLISH_DUPLICATES] += 1
            return self.answer_again(conn, s, pub.packet_id)
        if conn.version != 5 and reason != NOT_AUTHORIZED:
            protocol_error(reason, why)
        self.counters.at[count.PUBLISH_REFUSED] += 1
        if pub.qos and conn.version == 5:
            self.router.answering.answer_packet(conn, encode_ack(
                5, kind, pub.packet_id, reason, {"reason_string": why} if conn.problem_information else None, True,
                conn.packet_bytes_max))
        elif pub.qos:
            self.router.in_hand.logged = False
            if pub.qos == 2:
                self.arrives(conn, s, pub.packet_id)
            self.router.answering.answer(conn, kind, pub.packet_id, 0, 0)
        self.state.handler.publish_refused(conn, PyBytes_FromStringAndSize(<char*>pub.topic, pub.topic_len), reason)
        return 0

    cdef int alias(self, Connection conn, Publish* pub) except -1:
        cdef bytes topic
        if pub.topic_alias > conn.topic_alias_max:
            self.counters.at[count.TOPIC_ALIASES_REFUSED] += 1
            protocol_error(TOPIC_ALIAS_INVALID, "Topic Alias above Topic Alias Maximum")
        if pub.topic_len:
            if conn.aliases == NULL:
                conn.aliases = <PyObject**>calloc(conn.topic_alias_max + 1, sizeof(PyObject*))
                if conn.aliases == NULL:
                    raise MemoryError
            topic = PyBytes_FromStringAndSize(<char*>pub.topic, pub.topic_len)
            Py_XDECREF(conn.aliases[pub.topic_alias])
            Py_INCREF(topic)
            conn.aliases[pub.topic_alias] = <PyObject*>topic
        else:
            if conn.aliases == NULL or conn.aliases[pub.topic_alias] == NULL:
                protocol_error(PROTOCOL_ERROR, "Topic Alias that was never set")
            topic = <bytes>conn.aliases[pub.topic_alias]
            pub.topic = <const uint8_t*><const char*>topic
            pub.topic_len = <uint16_t>len(topic)
        return 0
