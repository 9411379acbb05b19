"""The sessions of one worker: who has one, when it ends.

A session ends with its connection (Session Expiry Interval 0), when its interval has passed since the connection
closed, or when its client asks for a clean start [MQTT-3.1.2-4]. Stored intervals are seconds; 0xFFFFFFFF never ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyx.session import Session

if TYPE_CHECKING:
    from broker.retaining import Walk
    from pyx.connection import Connection
    from pyx.packets import Will

NEVER = 0xFFFFFFFF


class Details:
    """What the broker, and not the data path, knows of a session."""

    __slots__ = (
        "awaiting",
        "created",
        "expiry_handle",
        "expiry_interval",
        "queue_rules",
        "stored_expiry",
        "username",
        "walks",
        "walks_waiting",
        "will",
        "will_handle",
        "will_stored",
    )

    def __init__(self) -> None:
        self.expiry_interval = 0
        """Seconds; 0 = ends with the connection, NEVER."""
        self.expiry_handle: Any = None
        self.will: Will | None = None
        """Of its connection, or of its last one while `will_handle` waits for the Will Delay Interval."""
        self.will_handle: Any = None
        self.will_stored = False
        """The store has a will of it."""
        self.stored_expiry = -1
        """Seconds: the `expiry_interval` that the store knows; -1: the store does not know the session."""
        self.created = 0
        """Unix time in ms, where the store knows it."""
        self.awaiting: Connection | None = None
        """The connection that is told of the session when the store has it (`Connecting`)."""
        self.username: str | None = None
        self.queue_rules: dict[int, int] | None = None
        """Number of a [[queue]] table -> subscriptions under it."""
        self.walks: list[Walk] = []
        """Topic Filters whose retained messages are being looked up."""
        self.walks_waiting: dict[bytes, int] = {}
        """Those whose turn has not come, in order, each with the number of its SUBSCRIBE (`Session.ask`): none that the
        session is not subscribed to, each once.
        """


class Sessions:
    """Client id -> Session, of this worker alone."""

    def __init__(self) -> None:
        self._by_client: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Any:
        return iter(list(self._by_client.values()))

    def get(self, client_id: str) -> Session | None:
        """The session, connected or not."""
        return self._by_client.get(client_id)

    def new(self, client_id: str, version: int) -> Session:
        """Make and keep one; the former one of that client must have been removed."""
        session = Session(client_id, version)
        session.details = Details()
        self._by_client[client_id] = session
        return session

    def remove(self, session: Session) -> None:
        """Forget it (the router must have ended it)."""
        if self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]
