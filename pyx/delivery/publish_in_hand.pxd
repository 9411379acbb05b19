# cython: language_level=3
"""The publish in hand, the one that is being routed: see the .pyx."""
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.connection cimport Connection
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Session
from pyx.matching.subscriptions cimport Subscriptions
from pyx.protocol.frames cimport Frame
from pyx.protocol.message cimport Content, Message
from pyx.storage.entries cimport Entry


cdef struct Merged:                 # one session in the merge of several filters
    PyObject* session               # borrowed
    uint32_t identifier             # first Subscription Identifier, 0 = none
    int32_t more                    # chain of further ones, -1 = none
    uint8_t options                 # QoS: the highest; Retain As Published: any
    uint32_t first                  # number of the first match with QoS > 0 for it; without one, of the first match
    uint64_t filters                # bit i: match i has QoS > 0 for this session (63: it or a later one)


cdef struct Identifier:
    uint32_t value
    int32_t next


cdef class PublishInHand:
    cdef RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions

    # the publish in hand
    cdef const Content* content
    cdef Session origin                 # of the publisher; None: from a peer, a will, the broker
    # its client id; its hash, if the publish is from a sibling and a group chooses by it; None: not known
    cdef object publisher
    cdef uint32_t sharing               # number of the group for which a copy is made, with SHARED_COPY
    cdef Message held                   # made when the publish must first be kept
    cdef Connection adoptable           # its inbox has only this packet: the Message may take over the buffer
    cdef Frame[4] frames                # MQTT 5: 1, with Packet Identifier: 2
    cdef uint64_t alias_hash            # of its topic, for Topic Aliases; 0 = not computed yet
    cdef uint64_t marked                # its mark (pyx.delivery.seen_messages); 0 = not computed yet
    cdef uint64_t here                  # its position in the log, if it is logged
    cdef bint logged
    cdef uint64_t matched_peers         # peers that were sent it, acknowledged or not
    cdef uint64_t mask                  # peers whose acknowledgement the publisher's ack waits for
    cdef uint64_t stamp
    cdef Merged* merged
    cdef uint32_t merged_cap
    cdef Identifier* identifiers
    cdef uint32_t identifiers_count
    cdef uint32_t identifiers_cap
    cdef uint8_t* ids                   # Subscription Identifiers of one delivery, as properties
    cdef uint32_t ids_cap
    cdef int begin(self, const Content* c, Session origin, object publisher, const uint8_t* raw, uint32_t raw_len,
                   int raw_kind, uint32_t raw_id_at) except -1
    cdef Message hold(self)
    cdef uint64_t mark(self) noexcept
    cdef uint8_t* ids_room(self, uint32_t n) except NULL
    # put a PUBLISH that is not a copy of a frame into the outbox; the caller adds a payload that is shared
    cdef int put_publish(self, Connection conn, const Content* c, uint8_t first, uint16_t packet_id, bint with_id,
                         const uint8_t* ids, uint32_t ids_len, uint64_t* hash_) except -1
    cdef int grow_merged(self) except -1
    cdef uint32_t put_identifiers(self, Merged* e, uint8_t* ids) noexcept
    cdef int32_t chain_identifier(self, uint32_t value, int32_t after) except -1
    cdef int check_frame(self, Entry* e, list payloads, int used) except -1
    cdef int begin_entry(self, Entry* e, list payloads, int used) except -1
    cdef Message borrow(self, const Content* c, object owner)
