# cython: language_level=3
"""What a router consists of, and what all its parts use: time, the lists of the tick, the publish in hand, the log.

A Router is made in layers, each a file of its own that knows only those below it:

    pyx.delivery.routing        Routing      the state; the publish in hand; the log of the tick
    pyx.delivery.answering      Answering    acks and other answers, and what they wait for
    pyx.delivery.windows        Windows      what a disk has of a session's windows, and what waits for it
    pyx.delivery.back_pressure  BackPressure publishers that are made to wait: too fast, a full session, no memory
    pyx.delivery.bounding       Bounding     how much waits for sessions that are behind, its bounds, and forgetting
    pyx.delivery.backlog        Backlog      sessions that are behind: reading the log, resending
    pyx.delivery.fanout         FanOut       from a match to its subscribers; what is retained
    pyx.delivery.siblings       Siblings     the other workers: entries for them, entries from them
    pyx.delivery.sharing        Sharing      share groups: which worker, which member, and who is next
    pyx.delivery.ending         Ending       how sessions end
    pyx.delivery.router         Router       a publish; subscriptions and sessions; the tick
"""
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyx.core.clock cimport Clock
from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.core.timers cimport TimerWheel
from pyx.core.work cimport COPY, VISIT
from pyx.delivery.connection cimport Connection
from pyx.delivery.minute_statistics cimport Drops, Prefixes
from pyx.delivery.session cimport Session
from pyx.matching.subscriptions cimport Filter, Matches, Subscriptions
from pyx.protocol.frames cimport Frame
from pyx.protocol.message cimport Content, Message
from pyx.protocol.wire cimport put_varint
from pyx.storage.archive cimport Archiver
from pyx.storage.records cimport Block, LogKey, Packed


cdef enum:
    READ_BYTES_MAX = 262144         # of a log, at once
    MERGED_MAX = 64                 # filters of a session that reads their indexes merged
    SLICE = 5_000_000               # ns of work, nominal: long work is done so much at a time
    TURN = 2 * SLICE                # ... after which a connection's publishes leave the turn to others
    ROUND = 5 * TURN                # ... and those of all connections and siblings wait for the next tick
    SHARE = 500                     # ns of work, nominal: a share group that a publish is for
    NAMED = 6000                    # ... an index of the log that is told what a tick has for it
    LAID = 1000                     # indexes that are told so at a time
    OWN_FRAME_BYTES = 8192          # mesh payloads from here on travel in a frame of their own
    IDENTIFIER_BYTES_MAX = 5        # of a Subscription Identifier as a property
    NUMBER_WORKER_BITS = 8
    SAMPLE_MS = 10                  # between two publishes whose durations are measured
    OUTBOX_PART = 4                 # so much of outbox_bytes_max, one in ..., may a replay fill
    ABSENCES_MAX = 64               # disconnections a session remembers before it has caught up
    QUOTA_EXCEEDED = 0x97
    REFUSED_NO_MEMBER = 1           # zmq_mesh.envelope.Refusal
    REFUSED_OFFLINE = 4


cdef struct Pointers:               # a growing list of strong references
    PyObject** items
    uint32_t count
    uint32_t cap


cdef struct Merged:                 # one session in the merge of several filters
    PyObject* session               # borrowed
    uint32_t identifier             # first Subscription Identifier, 0 = none
    int32_t more                    # chain of further ones, -1 = none
    uint8_t options                 # QoS: the highest; Retain As Published: any
    uint32_t first                  # number of a match that wants QoS > 0 for it, or of the first one
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
    cdef list cut                   # batches of this tick that are full, as `take` gives them
    cdef readonly uint64_t acknowledged     # tick up to which it has everything
    cdef readonly uint64_t sent             # tick of the last sequenced entry
    cdef readonly uint64_t interest         # number of our interest it has taken


cdef class Routing:
    cdef readonly Subscriptions subscriptions
    cdef readonly Limits limits
    cdef readonly Row counters
    cdef readonly TimerWheel timers
    cdef public object handler          # broker's decisions
    cdef readonly object retained       # pyx.matching.retained.Retained
    cdef uint64_t retained_bytes
    cdef public object interest         # zmq_mesh.interest.Publisher, None = no siblings
    cdef public object store            # leveldb_store contract
    cdef public bint keeps              # the store's: what it holds outlives the worker
    cdef bint recorded                  # something but the block is to be stored with this tick
    cdef list durabilities              # [(Topic Filter, synced), ...]; None: all is as safe as the store makes it
    cdef bint others_synced             # what no rule matches
    cdef bint synced                    # what is to be stored with this tick is for the disk itself, by the rules
    cdef object when_stored             # deque of (ticket, callback, connection or None), in order
    cdef readonly Archiver archiver     # of what this worker's clients publish; None: nothing is archived
    cdef bint archive_due               # it has gathered something
    cdef bint archive_awaited           # ... for which an ack waits
    cdef uint64_t archived_ms           # when that was last given to the store
    cdef uint64_t number_kept           # the store has it that numbers up to here are not given again
    cdef public Drops drops             # of this minute, by session
    cdef public Prefixes prefixes       # what came and went in this minute, by topic
    cdef public object on_durable       # called whenever tickets have become durable; None: nobody waits for that
    cdef dict retained_changes          # topic -> Message, or None: none any more; of this tick, to be stored with it
    cdef readonly int worker
    cdef readonly int workers
    cdef readonly uint64_t now_ms       # monotonic
    # the broker's time: Unix time when it was started, since then monotonic: steps of the wall clock change nothing
    cdef readonly uint64_t wall_ms
    cdef uint64_t wall_offset
    cdef readonly Clock clock           # what numbers come from
    # sampling of durations, in the monotonic clock's ns; 0 = nothing
    cdef uint64_t tick_ns               # when this tick began; 0 without a reactor: then nothing is sampled
    cdef uint64_t sample_ms             # the next PUBLISH at or after this time is sampled
    cdef uint64_t finished_since        # a sampled PUBLISH that is done with in this tick was received then
    cdef uint64_t delivered_since       # ... that was delivered to sessions of this worker

    # the publish in hand
    cdef const Content* content
    cdef Session origin                 # of the publisher; None: a peer, a will, the broker
    # its client id; or, of a sibling's where a group chooses by it, the hash of that; None: not known
    cdef object publisher
    cdef uint32_t sharing               # number of the group for which a copy is being made, where SHARED_COPY is set
    cdef Message held                   # made when the first one wants to keep it
    cdef Connection adoptable           # its inbox holds just this packet: the Message may take it over
    cdef Frame[4] frames                # MQTT 5: 1, with Packet Identifier: 2
    cdef uint64_t alias_hash            # of its topic, for Topic Aliases; 0 = not computed yet
    cdef uint64_t here                  # arrival position it gets if it is logged
    cdef bint logged
    cdef uint64_t spent                 # ns of work, nominal, that publishes have cost by their subscribers: only rises
    cdef uint64_t round_until           # `effort` with which the publishes of this tick end
    cdef uint64_t matched_peers         # peers that were given it, acknowledged or not
    cdef uint64_t mask                  # peers whose acknowledgement the publisher's ack waits for
    cdef uint64_t stamp
    cdef Merged* merged
    cdef uint32_t merged_cap
    cdef Identifier* identifiers
    cdef uint32_t identifiers_count
    cdef uint32_t identifiers_cap
    cdef uint8_t* ids                   # Subscription Identifiers of one delivery, as properties
    cdef uint32_t ids_cap

    # the tick
    cdef readonly uint64_t tick
    cdef Block block
    # one of very many indexes, appended in pieces; or None. Until the last one is in nothing is read of the log and
    # nothing is given to the disk: then all that has been decided meanwhile is, with it
    cdef Block laid
    cdef public uint32_t laid_at_once   # indexes in a piece
    cdef public uint64_t batch_turn     # ns of work, nominal, after which what is left of a sibling's batch waits
    cdef bint takes_none                # what came while another one was: no PUBLISH is taken until it is in
    cdef uint64_t next_position
    cdef public uint64_t durable_ticket
    cdef uint64_t last_ticket
    cdef Pointers dirty                 # connections with output
    cdef Pointers ready                 # sessions to be served
    cdef list drained                   # those with replays whose own queue or outbox has room: the handler is told
    cdef Pointers waiting               # connections with pending acks
    cdef list peers                     # Peer or None, by worker
    cdef public uint64_t dirty_peers    # have entries to take
    # get something of this tick that must not be lost with this worker: of QoS 2, from a publisher whose session lasts
    # (it will not send it again), or a will
    cdef uint64_t held_peers
    cdef uint64_t full_peers            # publishers that match them are not read
    cdef uint64_t live_peers            # acks wait for them
    cdef uint64_t unsure_peers          # may want more than is known: they get every publish of QoS 1 or 2
    cdef uint64_t live_for_interest     # SUBACKs wait for them: live and not away
    cdef list paused                    # connections not read because of full_peers
    cdef public list resumed            # connections to be read again: the reactor takes them
    # connections that the handler or the router wants closed: (connection, reason code, why)
    cdef public list closing
    cdef object after_acks              # deque of (connection, what to call when the acks of this round are out)
    cdef list keys                      # LogKeys of all indexes
    cdef bint acks_due
    cdef public bint divided            # the handler has work that it goes on with at the end of each tick
    cdef public object forward_now      # called at the end of a tick with entries for peers or new interest
    cdef public bint interest_due

    cdef int output_taken(self, Connection conn, size_t n) except -1
    cpdef int discard_output(self, Connection conn) except -1
    cdef inline uint64_t new_number(self) noexcept:
        return self.clock.next() << NUMBER_WORKER_BITS | <uint64_t>self.worker

    cdef inline uint64_t effort(self) noexcept:
        # ns of work, nominal, that publishes have cost: only rises
        return self.spent + self.subscriptions.trie.walked

    cdef inline uint64_t count_effort(self, const Matches* m) noexcept:
        # before a publish goes to its plain subscribers: how many they are
        cdef uint64_t local = 0
        cdef uint32_t i
        for i in range(m.count):
            local += m.filters[i].plain.count
        self.spent += m.count * <uint64_t>(2 * VISIT) + local * <uint64_t>(VISIT + COPY)
        return local

    cpdef uint64_t next_number(self)
    cpdef int fail(self, Connection conn, error) except -1
    cdef int fail_session(self, Session s, error) except -1
    cdef int attempt(self, Connection conn, callback) except -1     # fail, if it raises
    cdef int set_dirty(self, Connection conn) except -1
    cdef int set_ready(self, Session s) except -1
    cdef int begin(self, const Content* c, Session origin, object publisher, const uint8_t* raw, uint32_t raw_len,
                   int raw_kind, uint32_t raw_id_at) except -1
    cdef Message hold(self)
    cdef int drop(self, Connection conn, int counter) except -1
    cdef int note_drops(self, Connection conn, int counter, uint64_t dropped) except -1
    cdef uint64_t all_dropped(self) noexcept
    cdef int fell_behind(self, Session s) except -1
    cdef uint64_t packet_total(self, const Content* c, bint v5, bint with_id, uint32_t ids_len) noexcept
    cdef uint8_t* ids_room(self, uint32_t n) except NULL
    # a PUBLISH that is no copy of a frame, into the outbox; a payload that is to be shared is left to the caller
    cdef int put_publish(self, Connection conn, const Content* c, uint8_t first, uint16_t packet_id, bint with_id,
                         const uint8_t* ids, uint32_t ids_len, uint64_t* hash_) except -1
    cdef LogKey key_of(self, Filter* f)
    cdef int drop_key(self, LogKey key) except -1
    cdef int log(self, Filter* f) except -1
    cdef uint64_t next_ticket(self) noexcept
    cdef int archive(self, const Matches* m, uint32_t matches, bint is_full) except -1
    cdef int settle_durability(self, const Content* c) except -1
    cdef int pause(self, Connection conn) except -1
    cdef int sample(self, const Matches* m, bint answered) except -1
    cdef int tell_in_passing(self, int peer, const Content* c) except -1


cdef int pointers_push(Pointers* list_, object item) except -1
cdef void free_pointers(Pointers* p) noexcept
cdef int32_t find_expiry(const Content* c) except -2


cdef inline uint32_t put_identifier(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = 0x0B
    return <uint32_t>(put_varint(p + 1, value) - p)
