"""The bounds the data path needs: a plain struct with defaults, filled by broker.config."""
cimport cython


@cython.final
cdef class Limits:
    def __cinit__(self, **values):
        self.packet_bytes_max = 16 << 20
        self.topic_bytes_max = 4096
        self.topic_levels_max = 128
        self.topic_alias_max = 10
        self.outbox_bytes_max = 1 << 20
        self.share_large_bytes = 2048
        self.inflight_max = 100
        self.receive_maximum = 100
        self.queue_messages_max = 10_000
        self.queue_bytes_max = 16 << 20
        self.retained_messages_max = 1_000_000
        self.retained_bytes_max = 1 << 30
        self.filters_per_session_max = 100_000
        self.tick_connection_bytes_max = 65536
        self.tick_connection_packets_max = 1000
        self.tick_peer_bytes_max = 1 << 20
        self.drop_oldest = False
        self.disconnect_when_full = False
        self.queue_qos0 = False
        self.maximum_qos = 2
        self.retain_available = True
        self.validate_payload_format = False
        for name, value in values.items():
            setattr(self, name, value)
