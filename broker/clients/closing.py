"""The end of connections, whatever its cause, and its effect on their sessions.

Before CONNACK 0: refused with a CONNACK that names the reason, or closed without a word. After it: DISCONNECT of the
client or of ours, a timeout, an error, or a lost connection. The state is updated at once (`closed`); the socket is
closed when everything queued has been sent.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pyx.core import counters as count
from pyx.core.steps import Steps
from pyx.core.work import callback
from pyx.protocol.codec import encode_connack, encode_disconnect
from pyx.protocol.reasons import ReasonCode

if TYPE_CHECKING:
    from broker.clients.attachments import Attachments
    from broker.clients.authenticating import Authenticating
    from broker.clients.endings import Endings
    from broker.clients.unanswered import Unanswered
    from broker.clients.wills import Wills
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from broker.persistence.recording import Recording
    from broker.persistence.state_records import StateRecords
    from broker.replay.replaying import Replaying
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Disconnect

__all__ = ["AT_ONCE", "Closing"]

AT_ONCE = 0x100
"""Flag of a close reason: the client has disconnected (or cannot be reached): close without waiting for its FIN."""

_OPEN = 2


class Closing:
    """Ends connections."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        state_records: StateRecords,
        recording: Recording,
        authenticating: Authenticating,
        wills: Wills,
        replaying: Replaying,
        endings: Endings,
        attachments: Attachments,
        unanswered: Unanswered,
    ) -> None:
        self._context = context
        self._router = router = context.router
        self._write, self._close, self._detach = router.state.write, router.state.close, router.subscribing.detach
        self._row = context.counters
        self._log = context.log
        self._sessions = sessions
        self._state_records = state_records
        self._recording = recording
        self._authenticating = authenticating
        self._wills = wills
        self._replaying = replaying
        self._endings = endings
        self._attachments = attachments
        self._unanswered = unanswered
        self.other_servers = ""
        """Where clients are told to go while this host takes none, as a Server Reference; "": nowhere."""

    # ------------------------------------------------------------ before it is open

    def refuse(
        self, conn: Connection, reason: int, why: str, server_reference: str | None = None, **fields: Any
    ) -> None:
        """Send CONNACK with this reason (v3: its return code), and close. `fields` are added to the log line."""
        self._authenticating.forget(conn)
        client = fields.get("client") or self._attachments.awaited(conn)
        self._attachments.withdraw(conn)
        self._row.add(count.CONNECTIONS_REFUSED)
        version = conn.version or 4
        properties = {"reason_string": why}
        if server_reference is not None:
            properties["server_reference"] = server_reference
        packet = encode_connack(version, False, reason, properties, conn.packet_bytes_max)
        if len(packet) > conn.packet_bytes_max:
            packet = encode_connack(version, False, reason)
        if len(packet) <= conn.packet_bytes_max:
            self._write(conn, packet)
        self._log_refused(conn, why, code=int(reason), **fields)
        self._recording.refused(conn, int(reason), why, client, fields.get("username"))
        self._close(conn, int(reason), why)

    def unavailable(self, conn: Connection, why: str, **fields: Any) -> None:
        """Refuse with CONNACK 0x88 (v3: 3): its home cannot take the connection, its password cannot be checked, or its
        session cannot be stored.
        """
        self.refuse(conn, ReasonCode.SERVER_UNAVAILABLE, why, **fields)

    def connect_timeout(self, conn: Connection) -> None:
        """Close a connection that is not open within connect_seconds_max."""
        self._row.add(count.CONNECT_TIMEOUTS)
        if self._authenticating.waits(conn):
            self.unavailable(conn, "its password was not checked in time")
        elif self._attachments.awaited(conn) is not None:
            self.unavailable(conn, "its session was not stored in time")
        else:
            self.give_up(conn, "no AUTH in time" if conn.authenticating else "no CONNECT in time")

    def give_up(self, conn: Connection, why: str) -> None:
        """Close a connection that is not open, without sending anything."""
        self._authenticating.forget(conn)
        client = self._attachments.awaited(conn)
        self._attachments.withdraw(conn)
        self._row.add(count.CONNECTIONS_REFUSED)
        self._log_refused(conn, why)
        self._recording.refused(conn, 0, why, client)
        self._close(conn, AT_ONCE, why)

    def awaiting(self) -> list[Connection]:
        """Return the connections whose CONNACK waits for the disk."""
        return self._attachments.awaiting()

    def refuse_unstored(self, conn: Connection) -> None:
        """Refuse a connection that waits for a disk that has failed for store_error_seconds_max."""
        client = self._attachments.awaited(conn)
        if client is not None:
            why = "nothing can be stored at present"
            self._context.guard(conn, partial(self.unavailable, conn, why, client=client))

    def _refuse_bad_connect(self, conn: Connection, reason: int, why: str) -> None:
        if conn.version == 5 or reason == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            # an unknown protocol level is answered in the form of 3.1.1: return code 1 [MQTT-3.1.2-2]
            self.refuse(conn, reason, why)
            return
        self._row.add(count.CONNECTIONS_REFUSED)
        self._log_refused(conn, why, code=reason)
        self._recording.refused(conn, reason, why)
        self._close(conn, AT_ONCE, why)

    def _log_refused(self, conn: Connection, why: str, **fields: Any) -> None:
        listener = self._context.listener_of(conn)
        self._context.log.info("connection_refused", address=conn.address, listener=listener, reason=why, **fields)

    # ------------------------------------------------------------ open, or in any state

    def farewell(self) -> tuple[ReasonCode, str]:
        """Return the reason and text that every client gets when the broker stops."""
        protocol = self._context.settings.protocol
        if protocol.redirect is None:
            return ReasonCode.SERVER_SHUTTING_DOWN, "server is shutting down"
        reason = ReasonCode.SERVER_MOVED if protocol.redirect_permanent else ReasonCode.USE_ANOTHER_SERVER
        return reason, "server is shutting down, clients go to another server"

    def disconnect(self, conn: Connection, packet: Disconnect) -> None:
        """Handle DISCONNECT of the client: 0x00 discards its will, 0x04 does not [MQTT-3.1.2-8, MQTT-3.14.4-3]."""
        session = conn.session
        if session is None:
            self.give_up(conn, "disconnected by the client during its authentication")
            return
        details: Details = session.details
        asked = packet.properties.get("session_expiry_interval")
        if asked is not None:
            if details.expiry_interval == 0 and asked:  # [MQTT-3.14.2-2]: 0 in CONNECT may not be raised
                self.protocol_error_reason(conn, ReasonCode.PROTOCOL_ERROR, "Session Expiry after 0 in CONNECT")
                return
            details.expiry_interval = self._endings.expiry_granted(asked)
            session.durable = details.expiry_interval > 0
        if packet.reason_code == 0:
            details.will = None
        self.end_connection(conn, AT_ONCE, "disconnected by the client", told=packet.reason_code)

    def protocol_error(self, conn: Connection, error: Any) -> None:
        """Close after a malformed packet or protocol error: v5 gets the reason, v3 is just closed [MQTT-4.13.1-1]."""
        self.protocol_error_reason(conn, int(error.reason_code), error.args[0])

    def protocol_error_reason(self, conn: Connection, reason: int, why: str) -> None:
        """Do the same for an error found after decoding."""
        if conn.state < _OPEN:
            self._refuse_bad_connect(conn, reason, why)
            return
        listener, client = self._context.listener_of(conn), _client(conn)
        self._context.log.info(
            "protocol_error", client=client, address=conn.address, listener=listener, reason=why, code=reason
        )
        self.end_connection(conn, reason, why)

    def keep_alive_timeout(self, conn: Connection) -> None:
        """Close a connection that was silent for one and a half keep-alives [MQTT-3.1.2-22]."""
        self.end_connection(conn, ReasonCode.KEEP_ALIVE_TIMEOUT, "keep-alive timeout")

    def taken_over_elsewhere(self, session: Session) -> None:
        """Close the connection of a session, if it has one, because another host serves its client now."""
        details: Details = session.details
        if session.connection is not None:
            self._row.add(count.SESSIONS_TAKEN_OVER)
            self.end_connection(session.connection, ReasonCode.SESSION_TAKEN_OVER, "taken over at another host")
        elif details.awaiting is not None:
            self.give_up(details.awaiting, "taken over at another host before its session was stored")

    def end_connection(
        self, conn: Connection, reason: int, why: str, told: int | None = None, server: str | None = None
    ) -> None:
        """Close a connection from our side: DISCONNECT with a reason to v5, state updated at once; the socket is closed
        later. server: where the client is to go, if that is not where all go.
        """
        # the router may have asked for its end already in this tick: its session is detached now all the same
        self._close(conn, int(reason), why)
        self.closed(conn, int(reason) & 0xFF, why, told, server)

    @callback("closed")
    def closed(
        self, conn: Connection, reason: int, why: str, told: int | None = None, server: str | None = None
    ) -> None:
        """Detach the session of a connection that ends (by either side); its will is due."""
        self._authenticating.forget(conn)
        session: Session | None = conn.session
        if session is None:
            self._attachments.withdraw(conn)
            return
        conn.session = None
        self._row.add(count.CONNECTIONS_CLOSED)
        steps = Steps()
        steps.do(self._attachments.closed)
        if session.is_watching:
            steps.do(self._unanswered.interrupt, session)
        if reason and conn.version == 5:
            steps.do(self._say_goodbye, conn, reason, why, server)
        if self._recording.on:
            steps.do(self._recording.closed, conn, session, why, reason, told)
        if session.details.expiry_interval == 0:
            if self._state_records.keeps:
                steps.do(self._record_end, session)
            steps.do(self._endings.delete_state, session, self._detach)
            steps.do(self._sessions.remove, session)
        else:
            steps.do(self._detach, session)
            steps.do(self._sessions.left, session)
            steps.do(self._state_records.disconnected, session)
            steps.do(self._replaying.detached, session)
            steps.do(self._endings.expire_in, session, session.details.expiry_interval)
        if self._state_records.keeps or session.details.will is not None:
            steps.do(self._wills.left, session)
        if self._log.allows("connection_closed"):
            steps.do(self._recording.log_closed, conn, session, why, told)
        steps.finish()

    def _record_end(self, session: Session) -> None:
        if self._state_records.stores(session):
            self._recording.session_ended(session, "its Session Expiry Interval is 0 now")

    def fail(self, conn: Connection) -> None:
        """Close after an internal error while handling something of this connection: 0x83 to v5. Half-done work is
        undone (`Attachments.withdraw`), or ends as with any other connection.
        """
        reason, why = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "internal error"
        if conn.state >= _OPEN:
            self.end_connection(conn, reason, why)
        elif conn.version == 5:
            self.refuse(conn, reason, why)
        else:
            self.give_up(conn, why)

    def _say_goodbye(self, conn: Connection, reason: int, why: str, server: str | None) -> None:
        """Send DISCONNECT with its Reason String, and with the other server where the reason is a redirect."""
        properties = {"reason_string": why}
        reference = server or self.other_servers or self._context.settings.protocol.redirect
        if reference is not None and reason in (ReasonCode.USE_ANOTHER_SERVER, ReasonCode.SERVER_MOVED):
            properties["server_reference"] = reference
        packet = encode_disconnect(reason, properties, packet_bytes_max=conn.packet_bytes_max)
        self._write(conn, packet if len(packet) <= conn.packet_bytes_max else encode_disconnect(reason))

    def delete(self, client_id: str) -> bool:
        """End a session and its connection for the operator. Return False if there is none."""
        session = self._sessions.get(client_id)
        if session is None:
            return False
        why = "deleted by the operator"
        if session.connection is not None:
            self.end_connection(session.connection, ReasonCode.ADMINISTRATIVE_ACTION, why)
        elif session.details.awaiting is not None:
            self.give_up(session.details.awaiting, why)
        session = self._sessions.get(client_id)  # it may have ended with its connection
        if session is not None:
            self._recording.session_ended(session, why)
            self._endings.end(session)
        self._context.log.info("session_deleted", client=client_id)
        return True


def _client(conn: Connection) -> str | None:
    return conn.session.client_id if conn.session is not None else None
