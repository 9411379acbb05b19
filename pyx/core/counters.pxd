# cython: language_level=3
"""The table of counters; a row belongs to one worker and is mapped by the supervisor, so that it outlives the worker.

    0   ..   the counters below, gauges first
    312 ..   listeners: LISTENER_PLACES for each
    344 ..   claims: this worker's part of counts that hold for all together (pyx.core.claims)
    352 ..   the packet being processed, in case the worker dies of it
    384 ..   histograms: HISTOGRAM_PLACES each
    512 ..   links: LINK_PLACES for each worker that this one sends to

Only the worker writes its row, and after its death, until its successor is forked, the supervisor (`settle_row`).
Gauges are amounts of a living worker; everything else only rises, over all incarnations of a worker. The claim of
sessions is left for the successor to set: the sessions in a store exist also while no worker serves them.
"""
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy


cpdef enum:
    HEARTBEAT                       # rises, see shards.worker_channel
    # gauges: from INCARNATION up to CONNECTIONS_ACCEPTED
    INCARNATION                     # microseconds since the epoch at the worker's fork
    CONNECTIONS                     # sockets of clients, before and after the CONNECT
    SESSIONS
    SUBSCRIPTIONS                   # including memberships of share groups
    SHARED_SUBSCRIPTIONS
    FILTERS                         # different Topic Filters, including siblings' interest
    RETAINED_MESSAGES
    RETAINED_BYTES
    LOG_MESSAGES                    # index entries of the log for sessions that are behind
    LOG_BYTES
    ARCHIVE_BYTES                   # of the archive's blocks
    EVENTS_BYTES                    # of recorded events on the disk
    REPLAYS                         # subscriptions that read the archive
    STORE_FULL                      # 1: the store takes no new message
    STORE_FAILED                    # 1: the disk fails, nothing becomes durable
    STORE_UNWRITTEN_BYTES           # given to the store, not written yet
    RECORDS_SET_ASIDE               # unreadable records of the store
    BRIDGES_CONNECTED               # connections of bridges that are joined with the other broker
    # connections
    CONNECTIONS_ACCEPTED
    CONNECTIONS_HANDED_OVER
    CONNECTIONS_TAKEN_IN
    CONNECTIONS_OPENED              # CONNACK 0
    CONNECTIONS_REFUSED
    CONNECTIONS_CLOSED
    AUTHENTICATIONS_FAILED          # wrong or missing credentials, of connections and of re-authentications
    AUTHENTICATIONS_REFUSED         # auth_pending_max reached
    AUTHENTICATIONS_REPEATED        # AUTH 0x19 that succeeded
    CREDENTIALS_HASHED              # password hashes computed
    CREDENTIALS_CACHED              # passwords accepted from the cache
    SESSIONS_TAKEN_OVER
    SESSIONS_EXPIRED
    ACCEPT_ERRORS
    KEEP_ALIVE_TIMEOUTS
    PROTOCOL_ERRORS
    INTERNAL_ERRORS                 # exceptions while processing a packet: its connection was closed
    # traffic
    BYTES_RECEIVED
    BYTES_SENT
    PACKETS_RECEIVED
    ANSWERS_SENT                    # packets put into outboxes other than PUBLISH
    RECV_CALLS
    SEND_CALLS
    TICKS
    PUBLISH_RECEIVED                # from clients, without duplicates of QoS 2
    PUBLISH_RECEIVED_QOS1
    PUBLISH_RECEIVED_QOS2
    PUBLISH_DUPLICATES              # repeated QoS 2 publishes
    PUBLISH_BYTES_RECEIVED          # payloads
    PUBLISH_REFUSED                 # $SYS, not authorised, beyond bounds, invalid UTF-8; the client stays connected
    SUBSCRIPTIONS_NOT_AUTHORISED
    WILLS_REFUSED                   # when they were due
    PUBLISH_UNMATCHED
    PUBLISH_BYTES_SENT              # payloads
    PUBLISH_SENT                    # PUBLISH packets put into outboxes, including redeliveries
    PUBLISH_SENT_BY_ALIAS           # of those: with a Topic Alias instead of their topic
    REDELIVERED
    RETAINED_REFUSED                # retained_messages_max or retained_bytes_max reached
    # copies: matched = delivered + expired + dropped + still queued or in flight
    MATCHED
    DELIVERED_QOS0
    DELIVERED_QOS1
    DELIVERED_QOS2
    # drops by reason
    DROPPED_EXPIRED
    DROPPED_OFFLINE_QOS0
    DROPPED_OUTBOX_FULL
    DROPPED_CONNECTION_CLOSED       # QoS 0 copies in an outbox that the kernel had not taken when the connection ended
    DROPPED_QUEUE_FULL
    DROPPED_PACKET_TOO_LARGE
    DROPPED_UNSUBSCRIBED
    DROPPED_SESSION_ENDED
    DROPPED_REFUSED                 # PUBREC with a reason code >= 0x80
    DROPPED_PEER_LOST
    DROPPED_NO_MEMBER
    DROPPED_OVERTAKEN               # retained messages: a newer one of the topic was sent live meanwhile
    DROPPED_WORKER_LOST
    # share groups
    SHARED_WAITED                   # no member had room for a message when it arrived: it was queued for one
    SHARED_REASSIGNED                    # chosen a second time: refused, its worker died, or its member left
    # limits that were reached (see broker/config/limits.py)
    PACKETS_TOO_LARGE               # packet_bytes_max
    CONNECTS_TOO_LARGE              # connect_bytes_max
    TOPICS_TOO_LONG
    TOPICS_TOO_DEEP
    SHARE_NAMES_TOO_LONG
    CLIENT_IDS_TOO_LONG             # v31_client_id_characters_max
    TOPIC_ALIASES_REFUSED
    RECEIVE_MAXIMUM_EXCEEDED
    USER_PROPERTIES_REFUSED         # packets with too many of them
    FILTERS_PER_PACKET_REFUSED
    FILTERS_REFUSED                 # subscriptions
    CONNECTIONS_OVER_MAX
    SESSIONS_OVER_MAX               # CONNECTs refused at sessions_max
    SESSIONS_ENDED_FOR_ROOM         # offline sessions ended at sessions_max to make room for another
    SESSIONS_TOO_LARGE              # subscriptions and CONNECTs beyond session_bytes_max
    CONNECT_TIMEOUTS
    HALF_OPEN_REFUSED
    CONNECTION_RATE_REFUSED
    TAKEOVERS_REFUSED
    KEEP_ALIVES_SHORTENED
    SESSION_EXPIRIES_SHORTENED
    PUBLISH_RATE_HELD               # times that reading a connection was paused because it published too fast
    FILTERS_RATE_HELD               # or subscribed too fast
    RECEIVE_MAXIMUM_HELD            # or sent more than Receive Maximum while answers were due to it
    INFLIGHT_FULL                   # times that a session fell behind because its window was full
    QUEUES_HELD                     # times that a session's queue was full and its publishers were made to wait
    QUEUE_FULL_HELD                 # times that reading a publisher was paused because of that
    HOLDS_GIVEN_UP
    MEMORY_SECONDS                  # seconds above worker_memory_bytes_max
    MEMORY_HELD                     # times that reading a publisher was paused because of that
    MEMORY_REFUSED                  # connections, subscriptions and publishes refused because of that
    STORE_HELD                      # times that reading a publisher before MQTT 5 was paused because the store was full
    # publishes refused because of that, connections closed, and acks that waited for store_error_seconds_max
    STORE_REFUSED
    STORE_UNWRITTEN_HELD            # times that reading a client was paused because of store_unwritten_bytes_max
    STORE_BLOCKS_READ               # from the disk, or its cache, for sessions that are behind
    STORE_READS_SHARED              # batches shared with another session that had just read them
    STORE_BLOCKS_LEFT_OUT           # unreadable blocks of the log
    # the archive
    ARCHIVED_MESSAGES
    ARCHIVED_BYTES                  # size of their records
    ARCHIVE_DROPPED                 # QoS 0, and the store was full or too slow
    ARCHIVE_REMOVED_MESSAGES        # by retention
    ARCHIVE_REMOVED_BYTES
    EVENTS_RECORDED                 # connections, sessions, subscriptions, and the samples of each minute
    EVENTS_SUPPRESSED               # events_per_second_max was reached
    EVENTS_LOST                     # the disk was full or failed
    EVENTS_UNLISTED                 # messages counted for "others", because a table of a minute was full
    RETAINED_WALKS_DEFERRED
    RETAINED_UNWATCHED              # live ones not remembered while retained ones were being sent
    TICK_PACKETS_CARRIED            # times that a connection had to continue in the next tick
    TICK_PEER_CARRIED               # the same for siblings
    HANDOFF_TIMEOUTS
    HANDOFFS_REFUSED
    PEERS_AWAY                      # times that a sibling was silent or stalled for too long
    # subscriptions that read the archive (broker/replay/replaying.py)
    REPLAYED_MESSAGES               # put into the queues of their sessions
    REPLAYED_BYTES                  # their topics, properties and payloads
    REPLAY_PAGES                    # read from the archive of this worker, for its own sessions and those of siblings
    REPLAYS_REFUSED
    REPLAYS_FALLEN_BEHIND           # times that retention had removed messages before a replay read them
    REPLAY_PAGES_FOR_HOSTS          # sent to replays on other hosts
    REPLAY_QUESTIONS_REFUSED        # of other hosts: replays_for_hosts_max
    REPLAY_HOSTS_LOST               # times that a replay lost a host that it was reading from
    ARCHIVE_MESSAGES_REFUSED        # messages of other hosts' archives that cannot be read
    # mesh; sending is counted per link, see below
    MESH_ENTRIES_SENT
    MESH_ENTRIES_RECEIVED
    MESH_BATCHES_RECEIVED
    MESH_BYTES_RECEIVED
    MESH_BATCHES_BEHIND             # sent batches that went to the hand-off log, because the sibling is too slow
    MESH_FRAMES_REFUSED             # malformed, or from or for an incarnation that is dead
    RETAINED_OFFERED                # retained messages sent to other hosts that may not have them
    HOST_CLOCKS_REFUSED             # messages of another host whose clock is too far ahead: numbered anew
    OWNERS_TAKEN                    # client ids taken over from other hosts
    OWNERS_DOUBTFUL                 # CONNECTs refused because this host may be no member of its cluster
    SESSIONS_MOVED                  # that have come from other hosts
    MOVES_REFUSED                   # because too many sessions were coming
    MESSAGES_HANDED_OVER            # that a former owner had for a session of this worker
    CLIENTS_SENT_AWAY               # connections closed because this host drains
    SESSIONS_OFFERED                # to other hosts, for the same reason
    MEMBERS_SENT_AWAY               # connections closed because the host has more members of a share group than others
    MEMBERS_CAME_BACK               # of these: the client has connected to this host again
    OWNER_REQUESTS                  # of clients that ask for the owner of a client id
    OWNER_REQUESTS_REFUSED          # of these: not answered, or with an error
    OWNERS_UNPROVEN                 # CONNECTs accepted although the coordinator did not say who owns the client id
    BRIDGE_MESSAGES_OUT             # to other brokers
    BRIDGE_MESSAGES_IN
    BRIDGE_REFUSED                  # of both: refused by the broker that was to get them, or not fit for it
    READING_PAUSED                  # times that reading a publisher was paused because a peer's outbox was full
    # $SYS
    CLIENTS_MAXIMUM                 # highest number of connected clients of all workers, as this one saw it
    COUNTERS_END


cdef enum:
    PLACES = 1024                   # of a row: room for more counters
    LISTENERS_AT = 312
    LISTENER_PLACES = 2
    LISTENERS_MAX = 16
    CLAIMS_AT = 344
    NOTE_AT = 352                   # the packets being processed: see `note`
    NOTE_PLACES = 32
    HISTOGRAMS_AT = 384
    HISTOGRAM_PLACES = 32           # sum in ns, then the samples of each bucket, the last one without a bound
    HISTOGRAMS_MAX = 4
    LINKS_AT = 512
    LINK_PLACES = 8
    LINKS_MAX = 64


cdef enum Histogram:  # samples, not every event: see `sample` in peers and subscriptions
    PUBLISH_DURATION                # a PUBLISH was received -> it is routed, its ack in the outbox
    DELIVERY_DURATION               # ... -> its copies on a worker were passed to the kernel
    MATCH_DURATION                  # a match that was not cached
    HISTOGRAMS_END


cdef enum ListenerPlace:
    LISTENER_ACCEPTED               # connections that this worker accepted on it, whichever worker serves them
    LISTENER_CONNECTIONS            # a gauge: connections that this worker serves, before and after the CONNECT
    LISTENER_PLACES_END


cdef enum LinkPlace:
    LINK_BATCHES
    LINK_MESSAGES
    LINK_BYTES
    LINK_RESENT
    LINK_QOS0_DROPPED
    LINK_UNACKNOWLEDGED             # from here on gauges
    LINK_OLDEST_MS
    LINK_OUTBOX_BYTES
    LINK_PLACES_END


cdef int observe(uint64_t* row, Histogram which, uint64_t ns) noexcept nogil


cdef inline void note(uint64_t* row, uint8_t packet_type, uint8_t kind, const uint8_t* text, size_t n) noexcept nogil:
    # The first place: u8 packet type (0: messages, or no whole packet yet), u8 kind of the text (1 a client id, 4 or 6
    # an address), u16 its length, u32 1; 0 = nothing is being processed. The text follows, as far as it fits. Called
    # once per recv
    if n > (NOTE_PLACES - 1) * sizeof(uint64_t):
        n = (NOTE_PLACES - 1) * sizeof(uint64_t)
    memcpy(row + NOTE_AT + 1, text, n)
    row[NOTE_AT] = packet_type | <uint64_t>kind << 8 | <uint64_t>n << 16 | <uint64_t>1 << 32


cdef inline void note_packet(uint64_t* row, uint8_t packet_type) noexcept nogil:
    (<uint8_t*>(row + NOTE_AT))[0] = packet_type


cdef inline void note_nothing(uint64_t* row) noexcept nogil:
    row[NOTE_AT] = 0


cdef inline uint64_t* listener_places(uint64_t* row, uint8_t listener) noexcept nogil:
    return row + LISTENERS_AT + listener % LISTENERS_MAX * LISTENER_PLACES


cdef class Row:
    """One worker's row: either mapped memory that outlives the process, or memory of its own."""
    cdef uint64_t* at
    cdef object owner
    cdef uint64_t[PLACES] own
