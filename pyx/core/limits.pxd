# cython: language_level=3
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef enum QueueFull:                # behaviour at the bound of a session's queue
    DROP_NEWEST = 0
    DROP_OLDEST = 1
    DISCONNECT_WHEN_FULL = 2
    HOLD = 3


cdef enum:
    QUEUE_RULES_MAX = 64            # the default and those of [[queue]]


cdef struct QueueRule:
    uint64_t bytes_max
    uint32_t messages_max
    uint8_t full


cdef class Limits:
    """The bounds of the data path, filled by broker.config.data_path; every name has its unit last."""
    cdef public uint32_t packet_bytes_max           # of a packet from a client
    cdef public uint32_t connect_bytes_max          # of a CONNECT
    cdef public uint32_t topic_bytes_max
    cdef public uint32_t topic_levels_max
    cdef public uint32_t topic_alias_max            # aliases a client may set
    cdef public uint32_t user_properties_max        # of a packet
    cdef public uint32_t user_property_bytes_max
    cdef public uint32_t filters_per_packet_max
    cdef public uint32_t filters_per_second_max     # of a connection; 0: any number
    cdef public uint32_t publish_per_second_max     # of a connection; 0: any number
    cdef public uint32_t publish_bytes_per_second_max
    cdef public uint32_t outbox_bytes_max           # not yet taken by the kernel, per connection
    cdef public uint32_t share_large_bytes          # payloads of at least this size are shared by reference
    cdef public uint32_t inflight_max               # outgoing QoS > 0 per session
    cdef public uint32_t receive_maximum            # incoming QoS > 0 per session
    cdef public uint32_t queue_messages_max
    cdef public uint64_t queue_bytes_max
    cdef public uint32_t hold_ms_max
    cdef public uint32_t store_error_ms_max
    cdef public uint64_t store_unwritten_bytes_max  # given to the store, not written yet; 0: any number
    cdef public uint32_t archive_gather_ms          # longest time that archived QoS 0 waits for others
    cdef public uint64_t retained_messages_max
    cdef public uint64_t retained_bytes_max
    cdef public uint32_t filters_per_session_max
    cdef public uint32_t tick_connection_bytes_max
    cdef public uint32_t tick_connection_packets_max
    cdef public uint32_t tick_filters_max
    cdef public uint32_t tick_peer_bytes_max
    cdef public bint queue_qos0
    cdef public uint8_t maximum_qos                 # of publishes from clients
    cdef public bint retain_available
    cdef public bint validate_payload_format
    cdef public bint lenient                        # acks of the wrong kind are ignored
    cdef QueueRule[QUEUE_RULES_MAX] rules           # [0]: queue_full, queue_messages_max, queue_bytes_max
    cdef uint32_t queue_messages_least              # of all rules: a backlog below it is within every bound
    cdef uint64_t queue_bytes_least
    cdef uint32_t unwalked_bytes                    # a packet below it cannot have too many User Properties or filters
