"""The bounds the data path needs: a plain struct with defaults, filled by broker.config."""

from typing import Any, final

@final
class Limits:
    packet_bytes_max: int
    topic_bytes_max: int
    topic_levels_max: int
    topic_alias_max: int
    outbox_bytes_max: int
    share_large_bytes: int
    inflight_max: int
    receive_maximum: int
    queue_messages_max: int
    queue_bytes_max: int
    retained_messages_max: int
    retained_bytes_max: int
    filters_per_session_max: int
    tick_connection_bytes_max: int
    tick_connection_packets_max: int
    tick_peer_bytes_max: int
    drop_oldest: bool
    disconnect_when_full: bool
    queue_qos0: bool
    maximum_qos: int
    retain_available: bool
    validate_payload_format: bool
    def __new__(cls, **values: Any) -> Limits: ...
