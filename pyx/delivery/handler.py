"""What the data path asks of the broker, and tells it: what `RouterState.handler` is.

Router, Dispatch and Reactor decide nothing about clients. They call these methods, in the tick in which it happens;
what one raises is an error of ours while something of that connection's was handled (`internal_error`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyx.core.peer import Peer
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.message import Message
    from pyx.protocol.packets import Auth, Connect, Disconnect, Subscribe, Unsubscribe
    from pyx.protocol.reasons import MqttError

__all__ = ["Handler"]


class Handler(Protocol):
    """All of it."""

    # ------------------------------------------------------------ packets

    def connect(self, conn: Connection, packet: Connect, raw: bytes) -> None:
        """A whole CONNECT has come; `raw` are its bytes, for a hand-off."""

    def auth(self, conn: Connection, packet: Auth) -> None:
        """AUTH, before the CONNACK or after."""

    def subscribe(self, conn: Connection, session: Session, packet: Subscribe) -> None:
        """SUBSCRIBE. Raises MalformedPacket."""

    def unsubscribe(self, conn: Connection, session: Session, packet: Unsubscribe) -> None:
        """UNSUBSCRIBE. Raises MalformedPacket."""

    def disconnect(self, conn: Connection, packet: Disconnect) -> None:
        """DISCONNECT."""

    def protocol_error(self, conn: Connection, error: MqttError) -> None:
        """What has come is malformed, or breaks the protocol."""

    def publish_refused(self, conn: Connection, topic: bytes, reason: int) -> None:
        """A publish that this client may not make; it is answered."""

    # ------------------------------------------------------------ connections

    def too_many_connections(self) -> None:
        """One was closed as it came: there are as many as can be."""

    def source_refused(self, conn: Connection, counter: int) -> None:
        """One was closed as it came: its address has too many. `counter`: the reason."""

    def accept_failed(self, error: int) -> None:
        """Out of descriptors or memory (errno): none is accepted for a while."""

    def connect_timeout(self, conn: Connection) -> None:
        """It is not open in time."""

    def keep_alive_timeout(self, conn: Connection) -> None:
        """Nothing came for one and a half keep-alives."""

    def closed(self, conn: Connection, reason: int, why: str) -> None:
        """It ends. Nothing, if that was told already."""

    def dropping(self, conn: Connection, counter: int) -> None:
        """Messages for it begin to be dropped. `counter`: the reason."""

    def dropping_ended(self, conn: Connection) -> None:
        """Nothing waits for it any more."""

    # ------------------------------------------------------------ sessions and what is kept

    def queue_full(self, session: Session, dropped: int) -> None:
        """Its backlog has reached its bound: so many messages were dropped."""

    def queue_held(self, session: Session) -> None:
        """The same, and its publishers wait."""

    def hold_changed(self, text: bytes, held: bool) -> None:
        """Publishers that match this Topic Filter are to wait, or no longer."""

    def retained_full(self, topic: bytes) -> None:
        """There is no room for this retained message, which was delivered."""

    def retained_changed(self, changes: Mapping[bytes, Message | None]) -> None:
        """Once per tick that is stored: the retained messages that it leaves, by topic; None: there is none now."""

    def drained(self, sessions: list[Session]) -> None:
        """The own queues of these have room, and their outboxes."""

    def store_unwritten(self) -> None:
        """The store of this worker has store_unwritten_bytes_max to write."""

    def unstored(self, conn: Connection) -> None:
        """It waits for a disk that fails, and cannot be told so."""

    # ------------------------------------------------------------ siblings

    def told(self, peer: Peer, kind: bytes, payload: bytes) -> None:
        """A word of a sibling's broker (`Peers.tell`). Raises nothing."""

    def hold(self, peers: int) -> None:
        """What these siblings (a bit for each) get of this tick is to be stored with it, and leaves after that."""

    # ------------------------------------------------------------ the tick

    def work_on(self) -> bool:
        """Do a piece of what is divided. False: that was the last one."""

    # ------------------------------------------------------------ errors of ours, which are counted

    def internal_error(self, conn: Connection, error: Exception) -> None:
        """Something of this connection's was being handled: it is to end. Raises nothing."""

    def defect(self, client: str | None, error: Exception) -> None:
        """It concerns this client, or nobody, and no connection. Raises nothing."""
