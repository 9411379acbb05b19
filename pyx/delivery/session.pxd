# cython: language_level=3
"""One session: its windows, the QoS 1 and 2 handshakes in both directions, its queue and its cursor.

window    outgoing messages without their last ack, a table by Packet Identifier: slot = id & (cap - 1). Identifiers
          count up; one whose slot is taken by an older one is skipped.
arrived   Packet Identifiers of QoS 2 publishes without their PUBREL, the same kind of table.
queue     messages of this session alone (retained ones for its SUBSCRIBEs, shares of a group): a ring.
log       all other unsent messages: the session holds a cursor, the store the messages. `behind`: new messages of
          QoS > 0 go to the log and not straight to the window; `cursor` is the last position that it has finished.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.flag cimport flag
from pyx.core.limits cimport QueueRule
from pyx.delivery.connection cimport Connection
from pyx.delivery.seen_messages cimport SeenMessages
from pyx.delivery.unread cimport Search, Unread
from pyx.delivery.watched_topics cimport WatchedTopics
from pyx.matching.filters cimport Formers
from pyx.matching.subscriptions cimport Membership, Memberships, Subscriptions
from pyx.protocol.message cimport Message


cdef enum:
    SHARED_COPY = 8             # flag of an in-flight or queued message: it belongs to a share group
    RETAINED_COPY = 16          # of either: a retained one, sent because of a SUBSCRIBE
    REPLAYED_COPY = 64          # of a queued message: read from the archive, for a subscription that replays


cdef enum WindowState:
    FREE = 0
    WAIT_PUBACK = 1
    WAIT_PUBREC = 2
    WAIT_PUBCOMP = 3


cdef struct Inflight:
    # strong; NULL if it will never be resent (the session ends with its connection)
    PyObject* message
    PyObject* identifiers       # strong bytes: Subscription Identifiers as properties; or NULL
    uint64_t order              # rises with each message sent
    uint16_t packet_id
    uint8_t state
    uint8_t flags               # bits 0-1 QoS, bit 2 RETAIN, SHARED_COPY, RETAINED_COPY
    # Group.number of the share group, or number of the SUBSCRIBE that asked for a retained message; of a slot that
    # waits for a PUBCOMP: 1 = its PUBREL is of a former connection
    uint32_t group
    # of the message in a store on disk: in the log, or (OWN_RECORD) number of its own record; 0 = not stored
    uint64_t position


cdef struct Queued:
    PyObject* message           # strong
    PyObject* identifiers       # strong or NULL
    # of a share of a group: its Group.number; of a retained message: the number of the SUBSCRIBE that asked for it;
    # of a replayed one: the number of the replay
    uint32_t origin
    uint8_t flags               # as in Inflight; RETAINED_COPY, REPLAYED_COPY
    uint64_t number             # of its own record in a store on disk; 0 = none
    uint64_t behind             # the messages of the log up to this position are sent before it


cdef struct Pages:              # of a window too large for one record (pyx.delivery.pages); a bit for each page
    uint64_t[16] out_changed    # since the window was stored
    uint64_t[16] out_stored
    uint64_t arrived_changed
    uint64_t arrived_stored
    bint is_out_paged
    bint is_arrived_paged


cdef class Hold:                # of a session whose publishers wait, or have waited (pyx.delivery.back_pressure)
    cdef uint64_t since         # ms
    cdef uint64_t messages      # in its queue when it gave up the hold
    cdef uint64_t bytes
    cdef list filters           # the filters it has flagged, or None
    cdef uint32_t left          # the number of its first subscriptions still to be flagged


cdef class Session:             # one for each client: without padding; state that few sessions have is in other objects
    cdef public str client_id
    cdef readonly uint64_t identity     # fixed hash of the client id: names it in share groups
    cdef public Connection connection   # None while offline
    cdef Memberships own
    cdef Inflight* window
    cdef int64_t inflight_room          # bytes by which the kept messages in flight may still grow
    cdef uint32_t window_cap
    cdef uint32_t told_left             # the number of its first subscriptions still to be announced to siblings
    # of 65,535 Packet Identifiers:
    cdef uint16_t inflight              # taken slots
    cdef uint16_t released              # slots of PUBRELs of former connections
    cdef public uint16_t inflight_max   # the lower of the client's Receive Maximum and ours
    cdef public uint16_t slots_max      # our own bound
    cdef uint64_t order
    cdef uint16_t next_id
    cdef public uint8_t version
    cdef readonly uint8_t queue_rule    # 0: the defaults, else the number of a [[queue]] table (Bounding.set_rule)
    cdef uint8_t hold_state             # pyx.delivery.back_pressure.SessionHold
    cdef public flag durable            # outlives its connection
    cdef flag behind
    cdef flag crowded                   # in the router's list of sessions whose bounds are to be checked
    cdef flag ready                     # in the router's list of sessions to be served
    cdef flag closing
    cdef flag unflagging                # its filters are being unflagged; only then may they be flagged again
    cdef flag flagging                  # in the router's list of sessions that are being flagged or unflagged
    cdef flag awaits_outbox             # a replay waits for room in its outbox
    # with a store on disk (pyx.delivery.windows):
    cdef flag window_dirty              # in the router's list of windows to be stored with this tick
    cdef flag window_lazy               # in its list of windows to be stored within LAZY_MS
    cdef flag awaiting                  # in its list of sessions that wait until their window is durable
    cdef flag kept                      # it has records in the store
    cdef flag over                      # it has ended: its window is no longer stored
    cdef uint64_t committing            # ticket of its last window that packets wait for
    cdef Pages* pages                   # NULL: the window is one record
    # [(order, packet_id)] still to be resent after a resumption, last first; or None
    cdef object releases                # PUBRELs: all of them first, whatever is in flight
    cdef object resend                  # PUBLISHes
    cdef uint32_t* arrived              # packet_id | 1 << 16, 0 = free
    cdef uint32_t arrived_cap
    cdef uint32_t arrived_count
    cdef Queued* queue
    cdef uint32_t queue_head
    cdef uint32_t queue_count
    cdef uint32_t queue_cap
    cdef uint32_t batch_at
    cdef uint64_t queue_bytes
    cdef object batch                   # pyx.storage.records.Batch being read, or None
    cdef uint64_t cursor
    cdef uint64_t stamp                 # of the router's last merge that included this session
    cdef uint32_t merged                # its index there
    cdef WatchedTopics watched          # while retained messages are on their way to it; or None
    cdef uint64_t swept                 # the last sweep that checked its bounds
    # [(from, to)] positions logged while it was offline and queue_qos0 was on, or None
    cdef list absences
    # what it has had, while another host may have some of it for it, too (pyx.delivery.moving); or None
    cdef SeenMessages seen
    cdef list holes                     # [(from, to)] positions that were dropped because the queue was full, or None
    # its unread messages, while it is behind with too many filters to merge their indexes; or None
    cdef Unread unread
    cdef Search search                  # while unread messages are sought in the log; or None
    cdef Hold hold                      # None: its publishers have never waited
    # a copy of its [[queue]] table, valid also when the configuration has changed; NULL: it has none
    cdef QueueRule* rule
    cdef uint64_t* drops                # of this minute, by reason (pyx.delivery.minute_statistics); NULL: none
    cdef public object replays          # set by broker: {Topic Filter: subscription that reads the archive}, or None
    cdef public object details          # set by broker: expiry, will, ...

    cdef Inflight* open_slot(self) except NULL
    # keep this message in a slot, to resend it; release the kept message
    cdef int keep_in(self, Inflight* slot, Message message, PyObject* identifiers) except -1
    cdef void let_go(self, Inflight* slot) noexcept
    cdef int grow_window(self) except -1
    cdef Inflight* slot(self, uint16_t packet_id) noexcept
    cdef void release(self, Inflight* slot) noexcept
    cdef int arrive(self, uint16_t packet_id) except -1         # 1: new; 0: known
    cdef bint leave(self, uint16_t packet_id) noexcept
    cdef bint put_up_again(self) except -1                      # fill `resend` and `releases`; False: both are empty
    cdef uint16_t next_again(self) except? 0
    cdef Inflight* place_slot(self, uint16_t packet_id) except NULL     # a slot with this Packet Identifier
    cdef int enqueue(self, Message message, PyObject* identifiers, uint8_t flags, uint32_t origin,
                     uint64_t number, uint64_t behind) except -1
    # remove and return the messages of that origin, as (message, number of its record); kind: SHARED_COPY, ...
    cdef list take_queued(self, uint32_t origin, uint8_t kind)
    cdef void dequeue(self) noexcept
    cdef int clear(self) except -1
    cdef int begin_watching(self) except -1
    cdef void end_watching(self) noexcept                       # if no retained message is on its way any more
    # before a subscription is replaced by one that would not get its queued messages: keep its options up to `last`
    cdef int keep_former(self, Subscriptions subscriptions, Membership* e, uint8_t options, uint64_t last) except -1
    cdef list formers(self, const Formers* formers, const Membership* e)
    # add their parts of the log to the spans
    cdef bint wants_formers(self, const Formers* formers, const Membership* e, set spans) except -1


cdef inline bint has_slot(Session s) noexcept:
    # may a PUBLISH of QoS > 0 be sent? Bytes are only checked to be below their bound, so that a message of any size
    # can be sent. A PUBREL does not count against Receive Maximum [MQTT-3.3.4-10], and a PUBREL of a former connection
    # not at all: its message was counted there (MQTT 5, 4.9); but its slot is taken
    # (inflight_max <= slots_max: the first comparison decides in nearly all cases)
    return (s.inflight < s.inflight_max or s.inflight - s.released < s.inflight_max and s.inflight < s.slots_max) and \
        s.inflight_room > 0


cdef inline bint may_go_on(Session s) noexcept:
    # may it be served, if its outbox has room?
    return s.behind and (has_slot(s) or s.resend is not None or s.releases is not None)


cdef inline bint is_stored(Session s) noexcept:
    # its state is in a store on disk and updated there: it outlives its connection, or has outlived a former one. Until
    # it ends, finished messages must not reappear there
    return s.durable or s.kept


cdef inline void out_changes(Session s, uint16_t packet_id) noexcept:
    # the entry in flight under this Packet Identifier has changed or is gone
    if s.pages != NULL:
        s.pages.out_changed[packet_id >> 12] |= <uint64_t>1 << (packet_id >> 6 & 63)


cdef inline void arrived_changes(Session s, uint16_t packet_id) noexcept:
    if s.pages != NULL:
        s.pages.arrived_changed |= <uint64_t>1 << (packet_id >> 10)


cdef inline bint has_arrived(Session s, uint16_t packet_id) noexcept:
    cdef uint32_t k, v = packet_id | 0x10000u
    if s.arrived_count == 0:
        return False
    k = v & (s.arrived_cap - 1)
    while s.arrived[k] and s.arrived[k] != v:
        k = (k + 1) & (s.arrived_cap - 1)
    return s.arrived[k] == v
