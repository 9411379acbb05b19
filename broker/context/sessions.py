"""The sessions of one worker: their state outside the data path, and their expiry.

A session ends with its connection (Session Expiry Interval 0), when its interval has passed since the connection
closed, or when its client asks for a clean start [MQTT-3.1.2-4]. Stored intervals are seconds; 0xFFFFFFFF never ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.config.bridges import LOCAL_IDS
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


class RetainedWalk:
    """The retained messages look-up for one filter of one session. `parts`: each worker that has not sent all, and the
    end of its last page (b"": there was none yet).
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
        """Workers whose next page waits for room in the session's queue: one timer each."""
        self.is_queued = False
        self.over = False


Asks = list[tuple[int, list[bytes]]]
"""What a SUBSCRIBE asks for: numbers of `Unanswered.ask`, each with at most 500 Topic Filters."""
WalksWaiting = OrderedDict[bytes, tuple[int, int, "dict[Peer, bytes] | None"]]
NONE_WAITING: Final[WalksWaiting] = OrderedDict()
NO_WALKS: Final[dict[RetainedWalk, None]] = {}
"""Shared by all sessions that have none: never modified."""


class Details:
    """State of a session that only the broker needs, and not the data path."""

    __slots__ = (
        "awaiting",
        "began",
        "began_clean",
        "created",
        "epoch",
        "expiry_handle",
        "expiry_interval",
        "filter_bytes",
        "left_behind",
        "own_bytes",
        "queue_rules",
        "ruling",
        "stored_expiry",
        "unanswered",
        "username",
        "walks",
        "walks_waiting",
        "will",
        "will_handle",
        "will_stored",
    )

    def __init__(self, ruling: int) -> None:
        self.expiry_interval = 0
        """Session Expiry Interval in seconds; 0: ends with the connection; NEVER."""
        self.filter_bytes = 0
        """Size of its subscriptions' Topic Filters."""
        self.own_bytes = 0
        """Size of its client id, user name and will."""
        self.expiry_handle: Any = None
        self.will: Will | None = None
        """User name of its connection, or of its last one while `will_handle` waits for the Will Delay Interval."""
        self.will_handle: Any = None
        self.will_stored = False
        """Whether the store has a will of it."""
        self.stored_expiry = -1
        """Seconds: the `expiry_interval` in the store; -1: the session is not stored."""
        self.created = 0
        """Unix time in ms, where the store has it."""
        self.epoch = 0
        """Of this host's ownership of the client id; 0: it is not in a cluster, or not known to own it."""
        self.left_behind = False
        """Whether it has moved to another host, and is here for what hosts that are away have for it."""
        self.began = 0
        """Unix time in ms of its first CONNECT, 0: not known."""
        self.began_clean = False
        """Whether that had Clean Start; not known after a restart."""
        self.awaiting: Connection | None = None
        """The connection that is answered when the store has the session (`Attachments`)."""
        self.username: str | None = None
        self.queue_rules: dict[int, int] | None = None
        """Number of a [[queue]] table -> subscriptions under it."""
        self.ruling = ruling
        """Number of the configuration that has these tables."""
        self.walks: dict[RetainedWalk, None] = NO_WALKS
        """Topic Filters whose retained messages are being looked up, in order."""
        self.walks_waiting: WalksWaiting = NONE_WAITING
        """Topic Filters that wait for their look-up, in order, each with the number of its SUBSCRIBE (`Session.ask`)
        and `RetainedWalk.parts` (None: everything of every worker). All of them are subscribed to; each occurs once.
        """
        self.unanswered: dict[bytes, None] | None = None
        """Topic Filters of SUBSCRIBEs that have no SUBACK yet, or whose connection ended before it (`Unanswered`)."""


def own_bytes(client_id: str, username: str | None, will: Will | None) -> int:
    """Return the size of a session without its subscriptions, as session_bytes_max counts it."""
    size = len(client_id) if client_id.isascii() else len(client_id.encode())
    if username:
        size += len(username.encode())
    return size if will is None else size + len(will.topic) + len(will.payload) + len(will.properties)


class Sessions:
    """Client id -> Session, of this worker alone."""

    def __init__(self) -> None:
        self._by_client: dict[str, Session] = {}
        self._offline: dict[Session, None] = {}
        """Offline sessions, the longest offline first."""
        self._claims = Claims([bytearray(ROW_BYTES)], 0, claims.SESSIONS)
        self._reserved = 0
        self.when_removed: Callable[[Session], None] = lambda _session: None
        """Called when a session has ended."""
        self.when_begun: Callable[[Session], None] = lambda _session: None
        """Called when the first CONNECT of a session has given it its terms."""
        self.ruling = 0
        """The present `ruling` of `Details`."""

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Any:
        spend(len(self) * HELD // 3)
        return iter(list(self._by_client.values()))

    def clients(self) -> list[str]:
        """Return all client ids."""
        spend(len(self) * HELD // 3)
        return list(self._by_client)

    def get(self, client_id: str) -> Session | None:
        """Return the session, connected or not."""
        return self._by_client.get(client_id)

    def new(self, client_id: str, version: int) -> Session:
        """Create and keep a session; a former one of that client must have been removed."""
        session = Session(client_id, version)
        session.details = Details(self.ruling)
        self._by_client[client_id] = session
        if self._reserved:
            self._reserved -= 1  # it is counted as a session now
        else:
            self._count()
        return session

    def remove(self, session: Session) -> None:
        """Remove a session (which the router must have ended)."""
        self._offline.pop(session, None)
        if self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]
            self._claims.give_back()
            self.when_removed(session)

    # ------------------------------------------------------------ their number

    def share(self, claims: Claims) -> None:
        """Use the counts of all workers together."""
        self._claims = claims
        self._count()

    @property
    def held(self) -> int:
        """Return the number of sessions of all workers, reserved ones included."""
        return self._claims.held

    def reserve(self, most: int) -> bool:
        """Reserve a place if all workers have less than `most` sessions (0: no bound); used by `new` or `release`."""
        if not self._claims.take(most):
            return False
        self._reserved += 1
        return True

    def release(self) -> None:
        """Give back a reserved place."""
        self._reserved = max(0, self._reserved - 1)
        self._count()

    def recount(self) -> None:
        """Drop all reservations."""
        self._reserved = 0
        self._claims.set(len(self._by_client))

    def _count(self) -> None:
        self._claims.set(len(self._by_client) + self._reserved)

    # ------------------------------------------------------------ offline sessions

    def left(self, session: Session) -> None:
        """Note that its connection has ended, and the session has not."""
        self._offline.pop(session, None)
        if not session.client_id.startswith(LOCAL_IDS):  # those of bridges do not make room for others
            self._offline[session] = None

    def came(self, session: Session) -> None:
        """Note that it has a connection."""
        self._offline.pop(session, None)

    def longest_offline(self) -> Session | None:
        """Return the session that has been offline for longest."""
        return next(iter(self._offline), None)
