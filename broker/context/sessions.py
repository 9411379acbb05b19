"""The sessions of one worker: who has one, when it ends, and what the broker knows of it.

A session ends with its connection (Session Expiry Interval 0), when its interval has passed since the connection
closed, or when its client asks for a clean start [MQTT-3.1.2-4]. Stored intervals are seconds; 0xFFFFFFFF never ends.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from pyx.core import claims
from pyx.core.claims import Claims
from pyx.core.counters import ROW_BYTES
from pyx.core.work import HELD, spend
from pyx.delivery.session import Session

if TYPE_CHECKING:
    from pyx.core.peer import Peer
    from pyx.delivery.connection import Connection
    from pyx.protocol.packets import Will

NEVER = 0xFFFFFFFF


class Walk:
    """The look-up for one filter of one session. `parts`: each worker that has not given all, and where its last page
    ended (b"": there was none yet).
    """

    __slots__ = ("asked", "filter", "is_queued", "numbers", "over", "parts", "session", "since", "waits")

    def __init__(self, session: Session, filter: bytes, asked: int, since: int, parts: dict[Peer, bytes]) -> None:
        self.session = session
        self.filter = filter
        self.asked = asked
        self.since = since
        """Messages with higher numbers were published after the SUBACK."""
        self.parts = parts
        self.numbers: dict[Peer, int] = {}
        """Sibling -> number of the question that it has not answered."""
        self.waits: set[Peer] = set()
        """Workers whose next page waits for room in the session's queue: one timer for each."""
        self.is_queued = False
        self.over = False


WalksWaiting = OrderedDict[bytes, tuple[int, int, "dict[Peer, bytes] | None"]]
NONE_WAITING: Final[WalksWaiting] = OrderedDict()
NO_WALKS: Final[dict[Walk, None]] = {}
"""Of all sessions that have none: nobody puts anything there."""


class Details:
    """What the broker, and not the data path, knows of a session."""

    __slots__ = (
        "awaiting",
        "created",
        "expiry_handle",
        "expiry_interval",
        "filter_bytes",
        "own_bytes",
        "queue_rules",
        "ruling",
        "stored_expiry",
        "username",
        "walks",
        "walks_waiting",
        "will",
        "will_handle",
        "will_stored",
    )

    def __init__(self, ruling: int) -> None:
        self.expiry_interval = 0
        """Seconds; 0 = ends with the connection, NEVER."""
        self.filter_bytes = 0
        """Of its subscriptions' Topic Filters."""
        self.own_bytes = 0
        """Of its client id, user name and will."""
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
        """The connection that is told of the session when the store has it (`Occupants`)."""
        self.username: str | None = None
        self.queue_rules: dict[int, int] | None = None
        """Number of a [[queue]] table -> subscriptions under it."""
        self.ruling = ruling
        """Which of the configurations that there were has these tables."""
        self.walks: dict[Walk, None] = NO_WALKS
        """Topic Filters whose retained messages are being looked up, in order."""
        self.walks_waiting: WalksWaiting = NONE_WAITING
        """Those whose turn has not come, in order, each with the number of its SUBSCRIBE (`Session.ask`) and with
        `Walk.parts` (None: all of every worker): none that the session is not subscribed to, each once.
        """


def own_bytes(client_id: str, username: str | None, will: Will | None) -> int:
    """What session_bytes_max counts of a session beside its subscriptions."""
    size = len(client_id.encode()) + len((username or "").encode())
    return size if will is None else size + len(will.topic) + len(will.payload) + len(will.properties)


class Sessions:
    """Client id -> Session, of this worker alone."""

    def __init__(self) -> None:
        self._by_client: dict[str, Session] = {}
        self._offline: dict[Session, None] = {}
        """Longest first."""
        self._claims = Claims([bytearray(ROW_BYTES)], 0, claims.SESSIONS)
        self._reserved = 0
        self.ruling = 0
        """The present one of `Details`."""

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Any:
        spend(len(self) * HELD // 3)
        return iter(list(self._by_client.values()))

    def clients(self) -> list[str]:
        """The client ids of all."""
        spend(len(self) * HELD // 3)
        return list(self._by_client)

    def get(self, client_id: str) -> Session | None:
        """The session, connected or not."""
        return self._by_client.get(client_id)

    def new(self, client_id: str, version: int) -> Session:
        """Make and keep one; the former one of that client must have been removed."""
        session = Session(client_id, version)
        session.details = Details(self.ruling)
        self._by_client[client_id] = session
        if self._reserved:
            self._reserved -= 1  # it is counted
        else:
            self._count()
        return session

    def remove(self, session: Session) -> None:
        """Forget it (the router must have ended it)."""
        self._offline.pop(session, None)
        if self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]
            self._count()

    # ------------------------------------------------------------ how many there may be

    def share(self, claims: Claims) -> None:
        """Of all workers together."""
        self._claims = claims
        self._count()

    @property
    def held(self) -> int:
        """Those of all workers, with those that are about to be made."""
        return self._claims.held

    def reserve(self, most: int) -> bool:
        """If all workers have less than `most` (0: any number), there will be one more: `new`, or `release`."""
        if not self._claims.take(most):
            return False
        self._reserved += 1
        return True

    def release(self) -> None:
        """What was reserved is there, or will not be."""
        self._reserved = max(0, self._reserved - 1)
        self._count()

    def recount(self) -> None:
        """Nothing is reserved."""
        self._reserved = 0
        self._claims.set(len(self._by_client))

    def _count(self) -> None:
        self._claims.set(len(self._by_client) + self._reserved)

    # ------------------------------------------------------------ who is away

    def left(self, session: Session) -> None:
        """Its connection has ended, and the session has not."""
        self._offline.pop(session, None)
        self._offline[session] = None

    def came(self, session: Session) -> None:
        """It has a connection."""
        self._offline.pop(session, None)

    def longest_offline(self) -> Session | None:
        """The one that has been offline for longest."""
        return next(iter(self._offline), None)
