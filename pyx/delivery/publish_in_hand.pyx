"""The publish in hand: the one that is being routed, from `begin` until the next one.

Its content stays where it was received. A frame is made for each kind of subscriber (MQTT 5 or not, with a Packet
Identifier or not) when the first one needs it; a Message is made (`hold`) when it must first be kept.
"""
cimport cython
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from pyx.core cimport counters as count
from pyx.core.hashing cimport hash_bytes
from pyx.core.outbox cimport outbox_reserve
from pyx.delivery.connection cimport Connection
from pyx.delivery.router_state cimport IDENTIFIER_BYTES_MAX, RouterState, find_expiry, put_identifier
from pyx.delivery.seen_messages cimport mark_of
from pyx.delivery.session cimport Session
from pyx.protocol.aliases cimport ALIAS_BYTES, ALIAS_TOPIC_BYTES_MIN, alias_for
from pyx.protocol.frames cimport Frame, put_head, remaining_length
from pyx.protocol.message cimport Content, Message, message_adopt, message_borrow, message_copy
from pyx.protocol.wire cimport varint_size
from pyx.storage.entries cimport ENTRY_OWN_FRAME, Entry


cdef inline bint lies_in(Connection conn, const uint8_t* p) noexcept:
    return conn.part != NULL and conn.part <= p <= conn.part + conn.part_len


@cython.final
cdef class PublishInHand:
    """The publish that is being routed: its content, the frames made of it, and its recipients."""

    def __cinit__(self, RouterState state not None):
        self.state = state
        self.counters = state.counters
        self.limits = state.limits
        self.subscriptions = state.subscriptions

    def __dealloc__(self):
        cdef int i
        for i in range(4):
            free(self.frames[i].store)
        free(self.merged)
        free(self.identifiers)
        free(self.ids)

    cdef int begin(self, const Content* c, Session origin, object publisher, const uint8_t* raw, uint32_t raw_len,
                   int raw_kind,
                   uint32_t raw_id_at) except -1:
        # raw: the packet as received; raw_kind: the frame that equals it (except first byte and identifier), -1
        # = none
        cdef Frame* f
        self.content = c
        self.origin = origin
        self.publisher = publisher
        self.held = None
        self.alias_hash = 0
        self.marked = 0
        self.logged = False
        self.here = self.state.next_position
        self.mask = 0
        self.matched_peers = 0
        self.frames[0].ready = self.frames[1].ready = self.frames[2].ready = self.frames[3].ready = False
        if raw_kind >= 0:
            f = &self.frames[raw_kind]
            f.data = raw
            f.total = raw_len
            f.length = raw_len if c.payload_len < self.limits.share_large_bytes else raw_len - c.payload_len
            f.id_at = raw_id_at
            f.ready = True
        return 0

    cdef uint64_t mark(self) noexcept:
        if not self.marked:
            self.marked = mark_of(self.content)
        return self.marked

    cdef Message hold(self):
        cdef Connection conn
        if self.held is None:
            conn = self.adoptable
            # a topic replaced by an alias, and properties without their alias, are in other buffers
            if conn is not None and lies_in(conn, self.content.payload) and lies_in(conn, self.content.topic) and \
                    (self.content.props_len == 0 or lies_in(conn, self.content.props)):
                self.held = message_adopt(self.content, conn.part, self.publisher)
                conn.part = NULL
                conn.part_len = conn.part_cap = conn.part_want = 0
            else:
                self.held = message_copy(self.content, self.publisher)
        return self.held

    cdef uint8_t* ids_room(self, uint32_t n) except NULL:
        # the buffer for Subscription Identifiers, with room for n of them; its content is kept
        cdef uint8_t* grown
        if self.ids_cap < n * IDENTIFIER_BYTES_MAX:
            grown = <uint8_t*>realloc(self.ids, 2 * n * IDENTIFIER_BYTES_MAX)
            if grown == NULL:
                raise MemoryError
            self.ids = grown
            self.ids_cap = 2 * n * IDENTIFIER_BYTES_MAX
        return self.ids

    cdef int put_publish(self, Connection conn, const Content* c, uint8_t first, uint16_t packet_id, bint with_id,
                         const uint8_t* ids, uint32_t ids_len, uint64_t* hash_) except -1:
        cdef bint v5 = conn.version == 5
        cdef bint share = c.payload_len >= self.limits.share_large_bytes
        cdef int32_t alias = 0
        cdef uint32_t remaining, n
        cdef uint8_t* p
        # no alias if it would make the packet too large
        if conn.topic_alias_out_max and c.topic_len >= ALIAS_TOPIC_BYTES_MIN and \
                self.state.packet_total(c, True, with_id, ids_len + ALIAS_BYTES) <= conn.packet_bytes_max:
            if hash_[0] == 0:
                hash_[0] = hash_bytes(&self.subscriptions.key, c.topic, c.topic_len)
            alias = alias_for(&conn.aliases_out, conn.topic_alias_out_max, c.topic, c.topic_len, <uint32_t>hash_[0])
        remaining = <uint32_t>remaining_length(c, v5, with_id, ids_len + (ALIAS_BYTES if alias else 0))
        if alias > 0:
            remaining -= c.topic_len
            self.counters.at[count.PUBLISH_SENT_BY_ALIAS] += 1
        n = 1 + varint_size(remaining) + remaining - (c.payload_len if share else 0)
        p = outbox_reserve(&conn.out, n)
        p = put_head(p, c, first, remaining, v5, packet_id, with_id, alias, ids, ids_len, self.state.wall_ms)
        if not share:
            memcpy(p, c.payload, c.payload_len)
        return 0

    cdef int grow_merged(self) except -1:
        cdef uint32_t cap = self.merged_cap * 2 if self.merged_cap else 64
        cdef Merged* grown = <Merged*>realloc(self.merged, cap * sizeof(Merged))
        if grown == NULL:
            raise MemoryError
        self.merged = grown
        self.merged_cap = cap
        return 0

    cdef uint32_t put_identifiers(self, Merged* e, uint8_t* ids) noexcept:
        cdef uint32_t n = put_identifier(ids, e.identifier)
        cdef int32_t at = e.more
        while at >= 0:
            n += put_identifier(ids + n, self.identifiers[at].value)
            at = self.identifiers[at].next
        return n

    cdef int32_t chain_identifier(self, uint32_t value, int32_t after) except -1:
        cdef Identifier* grown
        cdef uint32_t cap
        if self.identifiers_count == self.identifiers_cap:
            cap = self.identifiers_cap * 2 if self.identifiers_cap else 64
            grown = <Identifier*>realloc(self.identifiers, cap * sizeof(Identifier))
            if grown == NULL:
                raise MemoryError
            self.identifiers = grown
            self.identifiers_cap = cap
        self.identifiers[self.identifiers_count].value = value
        self.identifiers[self.identifiers_count].next = after
        self.identifiers_count += 1
        return <int32_t>(self.identifiers_count - 1)

    cdef int check_frame(self, Entry* e, list payloads, int used) except -1:
        cdef const uint8_t[::1] view
        if e.flags & ENTRY_OWN_FRAME:
            if used >= len(payloads):
                raise ValueError("mesh entry without its payload frame")
            view = payloads[used]
            if view.shape[0] != e.content.payload_len:
                raise ValueError("mesh payload frame of another size than its entry says")
        return 0

    cdef int begin_entry(self, Entry* e, list payloads, int used) except -1:
        # begin with an entry of a sibling; returns the number of payload frames taken so far
        cdef const uint8_t[::1] view
        if e.content.expires:
            e.content.expiry_offset = find_expiry(&e.content)
        self.begin(&e.content, None, None, NULL, 0, -1, 0)
        if not e.flags & ENTRY_OWN_FRAME:
            return used
        self.check_frame(e, payloads, used)
        owner = payloads[used]
        view = owner
        e.content.payload = &view[0] if view.shape[0] else <const uint8_t*>b""
        # topic and properties are copied, the body is not
        self.held = self.borrow(&e.content, owner)
        return used + 1

    cdef Message borrow(self, const Content* c, object owner):
        cdef bytes head = (<const char*>c.topic)[:c.topic_len] + (<const char*>c.props)[:c.props_len]
        cdef Message m = message_borrow(c, (owner, head))
        m.content.topic = <const uint8_t*><const char*>head
        m.content.props = m.content.topic + c.topic_len
        return m
