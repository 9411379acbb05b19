"""The bounds the data path needs: a plain struct with defaults, filled by broker.config."""
cimport cython


@cython.final
cdef class Limits:
    def __cinit__(self, **values):
        self.packet_bytes_max = 16 << 20
        self.connect_bytes_max = 384 << 10
        self.topic_bytes_max = 4096
        self.topic_levels_max = 128
        self.topic_alias_max = 10
        self.user_properties_max = 1000
        self.user_property_bytes_max = 64 << 10
        self.filters_per_packet_max = 10_000
        self.outbox_bytes_max = 1 << 20
        self.share_large_bytes = 2048
        self.inflight_max = 100
        self.receive_maximum = 100
        self.queue_messages_max = 10_000
        self.queue_bytes_max = 16 << 20
        self.hold_ms_max = 5000
        self.store_error_ms_max = 10_000
        self.archive_gather_ms = 10
        self.retained_messages_max = 1_000_000
        self.retained_bytes_max = 1 << 30
        self.filters_per_session_max = 100_000
        self.tick_connection_bytes_max = 65536
        self.tick_connection_packets_max = 1000
        self.tick_filters_max = 64
        self.filters_per_second_max = 2000
        self.tick_peer_bytes_max = 1 << 20
        self.queue_qos0 = False
        self.maximum_qos = 2
        self.retain_available = True
        self.validate_payload_format = False
        self.lenient = False
        for name, value in values.items():
            setattr(self, name, value)
        self.settle()

    def settle(self, str queue_full="drop_newest", rules=()):
        """After the fields were set. `rules`: (full, messages_max, bytes_max) of each [[queue]] table, in order; a
        session's `queue_rule` is its number, from 1."""
        cdef uint32_t i = 0
        cdef dict words = {
            "drop_newest": DROP_NEWEST, "drop_oldest": DROP_OLDEST, "disconnect": DISCONNECT_WHEN_FULL, "hold": HOLD,
        }
        if len(rules) >= QUEUE_RULES_MAX:
            raise ValueError("too many rules for queues")
        self.queue_messages_least = self.queue_messages_max
        self.queue_bytes_least = self.queue_bytes_max
        for full, messages_max, bytes_max in [(queue_full, self.queue_messages_max, self.queue_bytes_max), *rules]:
            self.rules[i].full = words[full]
            self.rules[i].messages_max = messages_max
            self.rules[i].bytes_max = bytes_max
            self.queue_messages_least = min(self.queue_messages_least, self.rules[i].messages_max)
            self.queue_bytes_least = min(self.queue_bytes_least, self.rules[i].bytes_max)
            i += 1
        while i < QUEUE_RULES_MAX:          # of a session that has not been told of a reload
            self.rules[i] = self.rules[0]
            i += 1
        # a User Property takes 5 bytes and more, a Topic Filter 3
        self.unwalked_bytes = <uint32_t>min(
            5 * <uint64_t>self.user_properties_max, <uint64_t>self.user_property_bytes_max,
            3 * <uint64_t>self.filters_per_packet_max, <uint64_t>0xFFFFFFFF,
        )
