"""The bounds of the data path: a plain struct, filled from the settings.

The fields in limits.pxd are their only list: `broker.config.data_path` fills each from the setting of the same
name.
"""
cimport cython


@cython.final
cdef class Limits:
    def settle(self, str queue_full="drop_newest", rules=()):
        """Derive further values after the fields were set. `rules`: (full, messages_max, bytes_max) of each [[queue]]
        table, in order; a session's `queue_rule` is its number, from 1."""
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
        while i < QUEUE_RULES_MAX:          # for a session that has not been updated after a reload
            self.rules[i] = self.rules[0]
            i += 1
        # a User Property takes at least 5 bytes, a Topic Filter 3
        self.unwalked_bytes = <uint32_t>min(
            5 * <uint64_t>self.user_properties_max, <uint64_t>self.user_property_bytes_max,
            3 * <uint64_t>self.filters_per_packet_max, <uint64_t>0xFFFFFFFF,
        )
