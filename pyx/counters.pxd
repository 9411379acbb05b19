# cython: language_level=3
"""One table of counters; a row is one worker's, mapped by the supervisor so that it outlives the worker."""
from libc.stdint cimport uint64_t


cpdef enum:
    # what a worker is (gauges, set by the worker)
    HEARTBEAT                       # ticks of the worker's 100 ms timer
    INCARNATION
    CONNECTIONS
    SESSIONS
    SUBSCRIPTIONS
    FILTERS
    RETAINED_MESSAGES
    RETAINED_BYTES
    RETAINED_REFUSED                # retained_messages_max or retained_bytes_max reached
    QUEUED_MESSAGES
    LOG_BYTES
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
    CREDENTIALS_CACHED              # passwords found right without
    SESSIONS_TAKEN_OVER
    SESSIONS_EXPIRED
    ACCEPT_ERRORS
    KEEP_ALIVE_TIMEOUTS
    PROTOCOL_ERRORS
    INTERNAL_ERRORS                 # exceptions of ours while a packet was handled: its connection was closed
    # traffic
    BYTES_RECEIVED
    BYTES_SENT
    PACKETS_RECEIVED
    RECV_CALLS
    SEND_CALLS
    TICKS
    PUBLISH_RECEIVED                # from clients, duplicates of QoS 2 not counted
    PUBLISH_RECEIVED_QOS1
    PUBLISH_RECEIVED_QOS2
    PUBLISH_DUPLICATES              # QoS 2 publishes that were there already
    PUBLISH_UNMATCHED
    PUBLISH_SENT                    # PUBLISH packets put into outboxes, redeliveries included
    REDELIVERED
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
    DROPPED_WORKER_LOST
    # mesh
    MESH_ENTRIES_SENT
    MESH_ENTRIES_RECEIVED
    MESH_BATCHES_SENT
    MESH_BATCHES_RECEIVED
    MESH_BYTES_SENT
    MESH_BYTES_RECEIVED
    MESH_RESENT
    MESH_REFUSED_FRAMES
    READING_PAUSED                  # times a publisher was not read because a peer's outbox was full
    COUNTERS_END


cdef enum:
    PLACES = 1024                   # of a row: room for more counters


cdef class Row:
    """Somebody's row: either mapped memory that outlives the process, or memory of its own."""
    cdef uint64_t* at
    cdef object owner
    cdef uint64_t[PLACES] own
