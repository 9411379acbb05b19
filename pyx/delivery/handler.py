"""The interface through which the data path calls the broker: `RouterState.handler`.

Router, Dispatch and Reactor decide nothing about clients. They call these methods, in the tick of the event; an
exception of one is handled as an internal error of that connection (`internal_error`).
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
    """The methods of the broker that the data path calls."""

    # ------------------------------------------------------------ packets

    def connect(self, conn: Connection, packet: Connect, raw: bytes) -> None:
        """Handle a CONNECT; `raw`: its bytes, for a hand-off."""

    def auth(self, conn: Connection, packet: Auth) -> None:
        """Handle an AUTH, before the CONNACK or after."""

    def subscribe(self, conn: Connection, session: Session, packet: Subscribe) -> None:
        """Handle a SUBSCRIBE. Raises MalformedPacket."""

    def unsubscribe(self, conn: Connection, session: Session, packet: Unsubscribe) -> None:
        """Handle an UNSUBSCRIBE. Raises MalformedPacket."""

    def disconnect(self, conn: Connection, packet: Disconnect) -> None:
        """Handle a DISCONNECT."""

    def protocol_error(self, conn: Connection, error: MqttError) -> None:
        """End a connection whose input is malformed, or breaks the protocol."""

    def publish_refused(self, conn: Connection, topic: bytes, reason: int) -> None:
        """Note a publish that this client may not make; it was answered."""

    def asked_for_owner(self, session: Session, payload: bytes, properties: bytes) -> None:
        """Answer a publish to $mqttd/owner; `properties`: in wire form."""

    # ------------------------------------------------------------ connections

    def too_many_connections(self) -> None:
        """Note that a new connection was closed: the bound of connections is reached."""

    def source_refused(self, conn: Connection, counter: int) -> None:
        """Note that a new connection was closed: its address has too many. `counter`: the reason."""

    def accept_failed(self, error: int) -> None:
        """Note that accept failed for want of descriptors or memory (`error`: errno) and pauses for a while."""

    def connect_timeout(self, conn: Connection) -> None:
        """End a connection that was not open in time."""

    def keep_alive_timeout(self, conn: Connection) -> None:
        """End a connection that was silent for one and a half times its Keep Alive."""

    def closed(self, conn: Connection, reason: int, why: str) -> None:
        """Handle the end of a connection; do nothing if it was handled already."""

    def dropping(self, conn: Connection, counter: int) -> None:
        """Note that messages for a connection begin to be dropped. `counter`: the reason."""

    def dropping_ended(self, conn: Connection) -> None:
        """Note that drops have ended: no message waits for the connection any more."""

    # ------------------------------------------------------------ sessions, retained messages and the store

    def queue_full(self, session: Session, dropped: int) -> None:
        """Note that a backlog has reached its bound, and the number of messages dropped."""

    def queue_held(self, session: Session) -> None:
        """Note that a backlog has reached its bound, and publishers wait for it."""

    def hold_changed(self, text: bytes, held: bool) -> None:
        """Tell siblings that publishers to this Topic Filter must wait, or no longer."""

    def retained_full(self, topic: bytes) -> None:
        """Note that a message was delivered but not retained, for want of room."""

    def retained_changed(self, changes: Mapping[bytes, Message | None]) -> None:
        """Store the retained messages changed in a tick, by topic; None: cleared. Called once per commit."""

    def drained(self, sessions: list[Session]) -> None:
        """Continue the replays of these sessions: their own queues or outboxes have room."""

    def store_unwritten(self) -> None:
        """Note that the store of this worker has store_unwritten_bytes_max to write."""

    def unstored(self, conn: Connection) -> None:
        """Close a connection that waits for a failing disk, if no answer can say so."""

    # ------------------------------------------------------------ siblings

    def sibling_message(self, peer: Peer, kind: bytes, payload: bytes) -> None:
        """Handle a message from a sibling's broker (`Peers.tell`). Raises nothing."""

    def hold(self, peers: int) -> None:
        """Store this tick's entries for these siblings (a bit for each) before they are sent."""

    # ------------------------------------------------------------ the tick

    def work_on(self) -> bool:
        """Do a piece of long work. Return False after the last one."""

    # ------------------------------------------------------------ internal errors, which are counted

    def internal_error(self, conn: Connection, error: Exception) -> None:
        """End the connection for which the error occurred. Raises nothing."""

    def defect(self, client: str | None, error: Exception) -> None:
        """Log an error that concerns this client, or none, but no connection. Raises nothing."""
