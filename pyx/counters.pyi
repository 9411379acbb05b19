"""One table of counters; a row is one worker's, mapped by the supervisor so that it outlives the worker."""

from typing import Any, Final, final

ROW_BYTES: Final[int]
NAMES: tuple[str, ...]

HEARTBEAT: Final[int]
INCARNATION: Final[int]
CONNECTIONS: Final[int]
SESSIONS: Final[int]
SUBSCRIPTIONS: Final[int]
FILTERS: Final[int]
RETAINED_MESSAGES: Final[int]
RETAINED_BYTES: Final[int]
RETAINED_REFUSED: Final[int]
QUEUED_MESSAGES: Final[int]
LOG_BYTES: Final[int]
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
RECV_CALLS: Final[int]
SEND_CALLS: Final[int]
TICKS: Final[int]
PUBLISH_RECEIVED: Final[int]
PUBLISH_RECEIVED_QOS1: Final[int]
PUBLISH_RECEIVED_QOS2: Final[int]
PUBLISH_DUPLICATES: Final[int]
PUBLISH_UNMATCHED: Final[int]
PUBLISH_SENT: Final[int]
REDELIVERED: Final[int]
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
DROPPED_WORKER_LOST: Final[int]
MESH_ENTRIES_SENT: Final[int]
MESH_ENTRIES_RECEIVED: Final[int]
MESH_BATCHES_SENT: Final[int]
MESH_BATCHES_RECEIVED: Final[int]
MESH_BYTES_SENT: Final[int]
MESH_BYTES_RECEIVED: Final[int]
MESH_RESENT: Final[int]
MESH_REFUSED_FRAMES: Final[int]
READING_PAUSED: Final[int]
COUNTERS_END: Final[int]

def names() -> tuple[str, ...]: ...

@final
class Row:
    """A row of uint64 counters. ``Row()`` owns its memory; ``Row(buffer)`` writes into `buffer`."""

    def __new__(cls, buffer: Any = None) -> Row: ...
    def __getitem__(self, name: str, /) -> int: ...
    def get(self, counter: int) -> int: ...
    def set(self, counter: int, value: int) -> None: ...
    def add(self, counter: int, n: int = 1) -> None: ...
    def as_dict(self) -> dict[str, int]: ...
