"""The table of counters; a row belongs to one worker, and is mapped by the supervisor to outlive the worker."""

from collections.abc import Sequence
from typing import Any, Final, final

ROW_BYTES: Final[int]
NAMES: tuple[str, ...]
HISTOGRAMS: tuple[str, ...]
"""Names of the histograms, in order."""
BOUNDS_NS: tuple[int, ...]
"""Upper bounds of their buckets; one more bucket has no bound."""
LINK_TOTALS: tuple[str, ...]
"""Names of a link's places that only rise; LINK_GAUGES follow them in the row."""
LINK_GAUGES: tuple[str, ...]
LISTENER_NAMES: tuple[str, ...]
"""Names of a listener's places, in order."""
KEPT: tuple[str, ...]
"""Names of the counters that a store keeps with each commit, in order."""

HEARTBEAT: Final[int]
INCARNATION: Final[int]
CONNECTIONS: Final[int]
SESSIONS: Final[int]
SUBSCRIPTIONS: Final[int]
SHARED_SUBSCRIPTIONS: Final[int]
FILTERS: Final[int]
RETAINED_MESSAGES: Final[int]
RETAINED_BYTES: Final[int]
LOG_MESSAGES: Final[int]
LOG_BYTES: Final[int]
ARCHIVE_BYTES: Final[int]
EVENTS_BYTES: Final[int]
REPLAYS: Final[int]
STORE_FULL: Final[int]
STORE_FAILED: Final[int]
STORE_UNWRITTEN_BYTES: Final[int]
RECORDS_SET_ASIDE: Final[int]
CONNECTIONS_ACCEPTED: Final[int]
CONNECTIONS_HANDED_OVER: Final[int]
CONNECTIONS_TAKEN_IN: Final[int]
CONNECTIONS_OPENED: Final[int]
CONNECTIONS_REFUSED: Final[int]
CONNECTIONS_CLOSED: Final[int]
AUTHENTICATIONS_FAILED: Final[int]
AUTHENTICATIONS_REFUSED: Final[int]
AUTHENTICATIONS_REPEATED: Final[int]
CREDENTIALS_HASHED: Final[int]
CREDENTIALS_CACHED: Final[int]
SESSIONS_TAKEN_OVER: Final[int]
SESSIONS_EXPIRED: Final[int]
ACCEPT_ERRORS: Final[int]
KEEP_ALIVE_TIMEOUTS: Final[int]
PROTOCOL_ERRORS: Final[int]
INTERNAL_ERRORS: Final[int]
BYTES_RECEIVED: Final[int]
BYTES_SENT: Final[int]
PACKETS_RECEIVED: Final[int]
ANSWERS_SENT: Final[int]
RECV_CALLS: Final[int]
SEND_CALLS: Final[int]
TICKS: Final[int]
PUBLISH_RECEIVED: Final[int]
PUBLISH_RECEIVED_QOS1: Final[int]
PUBLISH_RECEIVED_QOS2: Final[int]
PUBLISH_DUPLICATES: Final[int]
PUBLISH_BYTES_RECEIVED: Final[int]
PUBLISH_REFUSED: Final[int]
SUBSCRIPTIONS_NOT_AUTHORISED: Final[int]
WILLS_REFUSED: Final[int]
PUBLISH_UNMATCHED: Final[int]
PUBLISH_BYTES_SENT: Final[int]
PUBLISH_SENT: Final[int]
PUBLISH_SENT_BY_ALIAS: Final[int]
REDELIVERED: Final[int]
RETAINED_REFUSED: Final[int]
MATCHED: Final[int]
DELIVERED_QOS0: Final[int]
DELIVERED_QOS1: Final[int]
DELIVERED_QOS2: Final[int]
DROPPED_EXPIRED: Final[int]
DROPPED_OFFLINE_QOS0: Final[int]
DROPPED_OUTBOX_FULL: Final[int]
DROPPED_CONNECTION_CLOSED: Final[int]
DROPPED_QUEUE_FULL: Final[int]
DROPPED_PACKET_TOO_LARGE: Final[int]
DROPPED_UNSUBSCRIBED: Final[int]
DROPPED_SESSION_ENDED: Final[int]
DROPPED_REFUSED: Final[int]
DROPPED_PEER_LOST: Final[int]
DROPPED_NO_MEMBER: Final[int]
DROPPED_OVERTAKEN: Final[int]
DROPPED_WORKER_LOST: Final[int]
SHARED_WAITED: Final[int]
SHARED_REASSIGNED: Final[int]
PACKETS_TOO_LARGE: Final[int]
CONNECTS_TOO_LARGE: Final[int]
TOPICS_TOO_LONG: Final[int]
TOPICS_TOO_DEEP: Final[int]
SHARE_NAMES_TOO_LONG: Final[int]
CLIENT_IDS_TOO_LONG: Final[int]
TOPIC_ALIASES_REFUSED: Final[int]
RECEIVE_MAXIMUM_EXCEEDED: Final[int]
USER_PROPERTIES_REFUSED: Final[int]
FILTERS_PER_PACKET_REFUSED: Final[int]
FILTERS_REFUSED: Final[int]
CONNECTIONS_OVER_MAX: Final[int]
SESSIONS_OVER_MAX: Final[int]
SESSIONS_ENDED_FOR_ROOM: Final[int]
SESSIONS_TOO_LARGE: Final[int]
CONNECT_TIMEOUTS: Final[int]
HALF_OPEN_REFUSED: Final[int]
CONNECTION_RATE_REFUSED: Final[int]
TAKEOVERS_REFUSED: Final[int]
KEEP_ALIVES_SHORTENED: Final[int]
SESSION_EXPIRIES_SHORTENED: Final[int]
PUBLISH_RATE_HELD: Final[int]
FILTERS_RATE_HELD: Final[int]
RECEIVE_MAXIMUM_HELD: Final[int]
INFLIGHT_FULL: Final[int]
QUEUES_HELD: Final[int]
QUEUE_FULL_HELD: Final[int]
HOLDS_GIVEN_UP: Final[int]
MEMORY_SECONDS: Final[int]
MEMORY_HELD: Final[int]
MEMORY_REFUSED: Final[int]
STORE_HELD: Final[int]
STORE_REFUSED: Final[int]
STORE_UNWRITTEN_HELD: Final[int]
STORE_BLOCKS_READ: Final[int]
STORE_READS_SHARED: Final[int]
STORE_BLOCKS_LEFT_OUT: Final[int]
ARCHIVED_MESSAGES: Final[int]
ARCHIVED_BYTES: Final[int]
ARCHIVE_DROPPED: Final[int]
ARCHIVE_REMOVED_MESSAGES: Final[int]
ARCHIVE_REMOVED_BYTES: Final[int]
EVENTS_RECORDED: Final[int]
EVENTS_SUPPRESSED: Final[int]
EVENTS_LOST: Final[int]
EVENTS_UNLISTED: Final[int]
RETAINED_WALKS_DEFERRED: Final[int]
RETAINED_UNWATCHED: Final[int]
TICK_PACKETS_CARRIED: Final[int]
TICK_PEER_CARRIED: Final[int]
HANDOFF_TIMEOUTS: Final[int]
HANDOFFS_REFUSED: Final[int]
PEERS_AWAY: Final[int]
REPLAYED_MESSAGES: Final[int]
REPLAYED_BYTES: Final[int]
REPLAY_PAGES: Final[int]
REPLAYS_REFUSED: Final[int]
REPLAYS_FALLEN_BEHIND: Final[int]
MESH_ENTRIES_SENT: Final[int]
MESH_ENTRIES_RECEIVED: Final[int]
MESH_BATCHES_RECEIVED: Final[int]
MESH_BYTES_RECEIVED: Final[int]
MESH_BATCHES_BEHIND: Final[int]
MESH_FRAMES_REFUSED: Final[int]
RETAINED_OFFERED: Final[int]
HOST_CLOCKS_REFUSED: Final[int]
READING_PAUSED: Final[int]
CLIENTS_MAXIMUM: Final[int]
COUNTERS_END: Final[int]

def names() -> tuple[str, ...]: ...
def is_gauge(counter: int) -> bool:
    """Return whether a counter is a gauge: an amount of a living worker, not a count of events."""

def in_hand(row: Any) -> tuple[str, str] | None: ...
def settle_row(row: Any) -> int:
    """Close the books of a dead worker's row; return the copies lost with its memory, now counted as worker_lost."""

@final
class Row:
    """A row of uint64 counters. ``Row()`` owns its memory; ``Row(buffer)`` writes into `buffer`."""

    def __new__(cls, buffer: Any = None) -> Row: ...
    def __getitem__(self, name: str, /) -> int: ...
    def get(self, counter: int) -> int: ...
    def set(self, counter: int, value: int) -> None: ...
    def add(self, counter: int, n: int = 1) -> None: ...
    def link(self, peer: int) -> list[int]: ...
    def set_link(self, peer: int, values: Sequence[int]) -> None: ...
    def listener(self, index: int) -> list[int]: ...
    def histogram(self, which: int) -> tuple[int, list[int]]: ...
    def observe(self, which: int, ns: int) -> None: ...
    def kept(self, time_ms: int, position: int, number: int, sessions: int) -> bytes:
        """Return what a store keeps of it with each commit: the arguments, then the KEPT counters, as varints."""

    def as_dict(self) -> dict[str, int]: ...
