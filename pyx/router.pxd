# cython: language_level=3
"""One worker's router: a publish goes in, deliveries, log records, peer entries and acks come out.

Call order, one publish: begin -> publish -> (answer). One tick: any number of publishes, acks and slow packets -> commit ->
serve_ready -> (links take what peers want) -> release_acks -> the reactor sends what `dirty` names.
"""
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.connection cimport Connection
from pyx.counters cimport Row
from pyx.frames cimport Frame
from pyx.limits cimport Limits
from pyx.message cimport Content, Message
from pyx.records cimport Batch, Block, Entry, LogKey, Packed
from pyx.session cimport Inflight, Session
from pyx.subscriptions cimport Filter, Group, Matches, Subscriber, SubscriberList, Subscriptions
from pyx.timers cimport TimerWheel


cdef struct Pointers:               # a growing list of strong references
    PyObject** items
    uint32_t count
    uint32_t cap


cdef struct Merged:                 # one session in the merge of several filters
    PyObject* session               # borrowed
    uint32_t identifier             # first Subscription Identifier, 0 = none
    int32_t more                    # chain of further ones, -1 = none
    uint8_t options                 # QoS: the highest; Retain As Published: any
    uint64_t filters                # bit i: match i wants QoS > 0 for this session (63: it or a later one)


cdef struct Identifier:
    uint32_t value
    int32_t next


cdef class Peer:
    """What one sibling or host gets with the next batch."""
    cdef Packed volatile_entries    # QoS 0
    cdef Packed sequenced           # QoS > 0 and retained
    cdef list volatile_payloads
    cdef list sequenced_payloads
    cdef readonly uint64_t acknowledged     # tick up to which it has everything
    cdef readonly uint64_t sent             # tick of the last sequenced entry
    cdef readonly uint64_t interest         # number of our interest it has taken


cdef class Router:
    cdef readonly Subscriptions subscriptions
    cdef readonly Limits limits
    cdef readonly Row counters
    cdef readonly TimerWheel timers
    cdef public object handler          # broker's decisions
    cdef readonly object retained       # pyx.retained.Retained
    cdef uint64_t retained_bytes
    cdef public object interest         # zmq_mesh.interest.Publisher, None = no siblings
    cdef public object store            # leveldb_store contract
    cdef readonly int worker
    cdef readonly int workers
    cdef readonly uint64_t now_ms       # monotonic
    cdef readonly uint64_t wall_ms      # started from the wall clock, then monotonic: steps of the clock change nothing
    cdef uint64_t wall_offset
    cdef uint64_t last_number

    # the publish in hand
    cdef const Content* content
    cdef Session origin                 # of the publisher; None: a peer, a will, the broker
    cdef object publisher
    cdef Message held                   # made when the first one wants to keep it
    cdef Connection adoptable           # its inbox holds just this packet: the Message may take it over
    cdef Frame[4] frames                # MQTT 5: 1, with Packet Identifier: 2
    cdef uint64_t here                  # arrival position it gets if it is logged
    cdef bint logged
    cdef uint64_t matched_peers         # peers that were given it, acknowledged or not
    cdef uint64_t mask                  # peers whose acknowledgement the publisher's ack waits for
    cdef uint64_t stamp
    cdef Merged* merged
    cdef uint32_t merged_cap
    cdef Identifier* identifiers
    cdef uint32_t identifiers_count
    cdef uint32_t identifiers_cap

    # the tick
    cdef readonly uint64_t tick
    cdef Block block
    cdef uint64_t next_position
    cdef public uint64_t durable_ticket
    cdef uint64_t last_ticket
    cdef Pointers dirty                 # connections with output
    cdef Pointers ready                 # sessions to be served
    cdef Pointers waiting               # connections with pending acks
    cdef list peers                     # Peer or None, by worker
    cdef public uint64_t dirty_peers    # have entries to take
    cdef uint64_t full_peers            # publishers that match them are not read
    cdef uint64_t live_peers            # acks wait for them
    cdef uint64_t live_for_interest     # SUBACKs wait for them: live and not away
    cdef list paused                    # connections not read because of full_peers
    cdef public list resumed            # connections to be read again: the reactor takes them
    cdef public list closing            # connections that the handler or the router wants closed: (connection, reason code, why)
    cdef list after_acks                # to be called when the acks of this round are out
    cdef dict keys                      # log index name -> LogKey
    cdef bint acks_due
    cdef public object forward_now      # called at the end of a tick with entries for peers or new interest
    cdef public bint interest_due

    cdef int set_dirty(self, Connection conn) except -1
    cdef int set_ready(self, Session s) except -1
    cdef Message hold(self)
    cdef int begin(self, const Content* c, Session origin, object publisher, const uint8_t* raw, uint32_t raw_len, int raw_kind, uint32_t raw_id_at) except -1
    cdef int publish(self, Matches* m) except -1            # 1: somebody matches
    cdef int answer(self, Connection conn, uint8_t packet_type, uint16_t packet_id, uint8_t reason, uint64_t mask) except -1
    cdef int release_acks(self) except -1
    cdef int puback(self, Session s, uint16_t packet_id, uint8_t reason) except -1
    cdef int pubrec(self, Session s, Connection conn, uint16_t packet_id, uint8_t reason) except -1
    cdef int pubcomp(self, Session s, uint16_t packet_id) except -1
    cdef int serve(self, Session s) except -1
    cdef int log(self, Filter* f) except -1
    cdef int log_own(self, Session s) except -1
    cdef LogKey key_of(self, Filter* f)
    cdef int send_held(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, bint dup, uint16_t packet_id, PyObject* ids) except -1
    cdef int fan_out(self, Filter* f) except -1
    cdef int fan_out_merged(self, Matches* m) except -1
    cdef int deliver(self, Session s, uint8_t qos, uint8_t first, const uint8_t* ids, uint32_t ids_len, uint8_t flags) except -1
    cdef int entry(self, int peer, uint8_t flags, bytes choice) except -1
    cdef int32_t chain_identifier(self, uint32_t value, int32_t after) except -1
    cdef int fell_behind(self, Session s) except -1
    cdef bint offline(self, Filter* f, uint32_t sessions) noexcept
    cdef bint was_absent(self, Session s, uint64_t position)
    cdef int choose_among(self, Group* g, int refused, list choices) except -1
    cdef int wait_longer(self, int peer, uint64_t tick, int other) except -1
    cdef uint64_t in_holes(self, Session s, uint64_t* size) except? 0xFFFFFFFFFFFFFFFF
    cdef int choose_worker(self, Group* g, list choices) except -1
    cdef int queue_for(self, Session s, Message m, uint8_t qos, bint retain, object identifiers, uint8_t flags) except -1
    cdef Batch read_log(self, Session s)
    cdef int caught_up(self, Session s) except -1
    cdef bint in_hole(self, Session s, uint64_t position)
    cdef int deliver_logged(self, Session s, Connection conn, Message m) except -1
    cdef int send_copy(self, Session s, Connection conn, Message m, uint8_t qos, bint retain, object identifiers, uint8_t flags) except -1
    cdef uint64_t packet_total(self, const Content* c, bint v5, bint with_id, uint32_t ids_len) noexcept
    cdef int resend_next(self, Session s, Connection conn) except -1
    cdef int share_again(self, Message m, list groups) except -1
    cdef int sweep_grown(self, list keys) except -1
    cdef int sweep_key(self, LogKey key) except -1
    cdef int bound(self, Session s) except -1
    cdef uint64_t make_hole(self, Session s, uint64_t total, uint64_t total_bytes, uint64_t last) except? 0xFFFFFFFFFFFFFFFF
    cdef tuple backlog_after(self, Session s, uint64_t position)
    cdef uint64_t unacknowledged_peers(self) noexcept
    cdef int keep(self) except -2
    cdef int tell_interest(self, Filter* f, Group* g, bytes text, bytes group, bint durable) except -1
    cdef Group* group_of(self, Filter* f, bytes name) noexcept
    cdef int pause(self, Connection conn) except -1
    cdef Message borrow(self, const Content* c, object owner)
    cdef bint chosen(self, Entry* e) except -1
    cdef Group* named(self, const uint8_t* name, uint32_t n) noexcept
    cdef int begin_entry(self, Entry* e, list payloads, int used) except -1
    cpdef uint64_t next_number(self)
    cdef int choose_local(self, Group* g, uint32_t turn) except -1
    cdef int forward(self, uint64_t mask) except -1
    cdef int drop(self, Connection conn, int counter) except -1
    cdef uint64_t needed_up_to(self, Session s) except? 0xFFFFFFFFFFFFFFFF
    cdef int note_drops(self, Connection conn, int counter, uint64_t dropped) except -1
