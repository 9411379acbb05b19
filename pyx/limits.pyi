"""The bounds the data path needs: a plain struct with defaults, filled by broker.config."""

from collections.abc import Sequence
from typing import Any, final

@final
class Limits:
    packet_bytes_max: int
    connect_bytes_max: int
    topic_bytes_max: int
    topic_levels_max: int
    topic_alias_max: int
    user_properties_max: int
    user_property_bytes_max: int
    filters_per_packet_max: int
    filters_per_second_max: int
    publish_per_second_max: int
    publish_bytes_per_second_max: int
    outbox_bytes_max: int
    share_large_bytes: int
    inflight_max: int
    receive_maximum: int
    queue_messages_max: int
    queue_bytes_max: int
    hold_ms_max: int
    store_error_ms_max: int
    archive_gather_ms: int
    retained_messages_max: int
    retained_bytes_max: int
    filters_per_session_max: int
    tick_connection_bytes_max: int
    tick_connection_packets_max: int
    tick_filters_max: int
    tick_peer_bytes_max: int
    queue_qos0: bool
    maximum_qos: int
    retain_available: bool
    validate_payload_format: bool
    lenient: bool
    def __new__(cls, **values: Any) -> Limits: ...
    def settle(self, queue_full: str = "drop_newest", rules: Sequence[tuple[str, int, int]] = ()) -> None: ...
