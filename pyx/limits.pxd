# cython: language_level=3
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class Limits:
    """The bounds the data path needs, filled by broker.config; every name has its unit last."""
    cdef public uint32_t packet_bytes_max           # of a packet from a client
    cdef public uint32_t topic_bytes_max
    cdef public uint32_t topic_levels_max
    cdef public uint32_t topic_alias_max            # aliases a client may set
    cdef public uint32_t outbox_bytes_max           # not yet taken by the kernel, per connection
    cdef public uint32_t share_large_bytes          # payloads from here on are shared by reference
    cdef public uint32_t inflight_max               # outgoing QoS > 0 per session
    cdef public uint32_t receive_maximum            # incoming QoS > 0 per session
    cdef public uint32_t queue_messages_max
    cdef public uint64_t queue_bytes_max
    cdef public uint64_t retained_messages_max
    cdef public uint64_t retained_bytes_max
    cdef public uint32_t filters_per_session_max
    cdef public uint32_t tick_connection_bytes_max
    cdef public uint32_t tick_connection_packets_max
    cdef public uint32_t tick_peer_bytes_max
    cdef public bint drop_oldest                    # queue_full policy
    cdef public bint disconnect_when_full
    cdef public bint queue_qos0
    cdef public uint8_t maximum_qos                 # that a client may publish with
    cdef public bint retain_available
    cdef public bint validate_payload_format
