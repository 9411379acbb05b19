"""CONNECT, up to its CONNACK: admits the connection and gives it a session. `broker.clients.closing` ends connections.

The steps of a CONNECT: the accepting worker decodes it; if the client id's home is a sibling, the socket is handed over
with all that was read, and the sibling starts afresh. At home: credentials (`broker.clients.authenticating`, which may
take a while); an older connection of the same client id is closed (take-over: one session and never two); the session
is resumed or created; CONNACK; then the messages that the session has queued. While a CONNACK waits for the store, the
connection is held by `broker.clients.attachments`.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.clients.admission import offers, refusal
from broker.clients.authenticating import ConnectAttempt
from broker.clients.takeovers import Takeovers
from broker.config.bridges import LOCAL_IDS
from broker.context.sessions import own_bytes
from pyx.core import counters as count
from pyx.protocol.codec import encode_connack
from pyx.protocol.reasons import ReasonCode
from shards.placement import home

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.clients.attachments import Attachments, PendingConnack
    from broker.clients.authenticating import Authenticating
    from broker.clients.authorising import Authorising
    from broker.clients.capacity import Capacity
    from broker.clients.closing import Closing
    from broker.clients.endings import Endings
    from broker.clients.retaining import Retaining
    from broker.context.context import Context
    from broker.context.sessions import Details, Sessions
    from broker.persistence.recording import Recording
    from broker.persistence.state_records import StateRecords
    from broker.replay.replaying import Replaying
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Connect

__all__ = ["Connecting"]

_DECIDING = 1
_CLIENT_ID = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
_PACKET_BYTES_MAX = 268_435_460
"""The largest possible MQTT packet: 5 bytes of fixed header and 268,435,455 more."""


class Connecting:
    """Opens connections."""

    def __init__(
        self,
        context: Context,
        sessions: Sessions,
        state_records: StateRecords,
        recording: Recording,
        authenticating: Authenticating,
        authorising: Authorising,
        capacity: Capacity,
        endings: Endings,
        attachments: Attachments,
        closing: Closing,
        retaining: Retaining,
        replaying: Replaying,
    ) -> None:
        self._context = context
        self._router = router = context.router
        self._back_pressure = router.back_pressure
        self._write, self._attach = router.state.write, router.subscribing.attach
        self._row = context.counters
        self._log = context.log
        self._sessions = sessions
        self._state_records = state_records
        self._recording = recording
        self._authenticating = authenticating
        self._authorising = authorising
        self._capacity = capacity
        self._endings = endings
        self._attachments = attachments
        self._closing = closing
        self._retaining = retaining
        self._replaying = replaying
        self._takeovers = Takeovers()
        self._plain_connack: dict[tuple[int, bool], bytes] = {}
        self.hand_over: Callable[[Connection, int, bytes], None] = self._no_home
        """Passes a connection, and the bytes of its CONNECT, to its home worker."""
        self.opened: Callable[[Connection], None] = lambda _conn: None
        """Called when a CONNACK 0 is in the outbox: the reactor starts the keep-alive timer."""

    def connect(self, conn: Connection, packet: Connect, raw: bytes) -> None:
        """Handle a complete CONNECT; `raw` are its bytes, for a hand-off."""
        context = self._context
        client_id = packet.client_id
        assigned = not client_id
        if packet.version == 5:
            conn.packet_bytes_max = min(
                packet.properties.get("maximum_packet_size", _PACKET_BYTES_MAX), _PACKET_BYTES_MAX
            )
        refused = refusal(packet, context.settings)
        if refused is not None:
            self._row.add(count.CLIENT_IDS_TOO_LONG, bool(client_id) and refused.reason == _CLIENT_ID)
            self._closing.refuse(conn, refused.reason, refused.why, refused.server_reference, client=client_id)
            return
        if assigned:
            client_id = self._assign()
        elif context.workers > 1:
            worker = home(client_id, context.workers)
            if worker != context.index:
                self.hand_over(conn, worker, raw)
                return
        self._authenticating.begin(ConnectAttempt(conn, packet, client_id, assigned))

    def _no_home(self, conn: Connection, _worker: int, _raw: bytes) -> None:
        self._closing.unavailable(conn, "its worker cannot be reached")

    def open(
        self, attempt: ConnectAttempt, username: str | None, authentication: dict[str, Any], tries: int = 0
    ) -> None:
        """Give an authenticated client its session. `authentication`: properties of the CONNACK; `tries`: the number of
        times that it has waited for another session to end.
        """
        conn, packet, client_id = attempt.conn, attempt.packet, attempt.client_id
        if client_id in self._endings.clients:
            self._wait_for_end(attempt, username, authentication, tries)
            return
        limits = self._context.limits
        keep_alive = self._keep_alive(packet.keep_alive)
        expiry = self._expiry(packet) if packet.version == 5 or not packet.clean_start else 0
        granted = self._granted(attempt, expiry, keep_alive, authentication) if packet.version == 5 else None
        if "maximum_packet_size" in packet.properties and not self._fits(attempt, granted):
            return
        session = self._sessions.get(client_id)
        if self._authorising.has_rules and not self._is_authorised(attempt, username, session):
            return
        size = own_bytes(client_id, username, packet.will)
        if size > limits.session_bytes_max:
            self._row.add(count.SESSIONS_TOO_LARGE)
            self._refuse_quota(attempt, "session_bytes_max")
            return
        if self._back_pressure.is_memory_full and (session is None or packet.clean_start):
            self._row.add(count.MEMORY_REFUSED)
            self._refuse_quota(attempt, "worker_memory_bytes_max")
            return
        older = None if session is None else self._attachments.of(session)
        if older is not None and not self.may_take_over(attempt, older.address):
            return
        records = self._state_records
        has_will = packet.will is not None
        changes = records.keeps and records.changes(session, expiry, packet.clean_start, has_will)
        waits = changes or (records.keeps and records.is_unsettled(client_id, session))
        if waits and self._is_refused(changes, packet.clean_start, frees=expiry == 0 and not has_will):
            self._closing.unavailable(conn, "nothing can be stored at present", client=client_id)
            return
        if not self._capacity.for_connection(older is not None):
            self.too_many_connections()
            self._refuse_quota(attempt, "too many connections")
            return
        if session is not None:
            self._sessions.reserve(0)  # keeps its place, should it end and begin anew
            session = self._take_over(session, conn)
        else:
            if self._capacity.waiting:
                self._make_way(client_id)
            if not self._capacity.for_session():
                self._wait_for_room(attempt, tries, partial(self.open, attempt, username, authentication, tries + 1))
                return
        if session is not None and packet.clean_start:
            self._recording.session_ended(session, "clean start")
            self._endings.end(session)
            session = None
        if session is None and client_id in self._endings.clients:
            self._wait_for_end(attempt, username, authentication, tries)
            self._sessions.release()
            self._attachments.count()
            return
        pending = self._attachments.enter(attempt, session, granted, keep_alive)
        session = pending.session
        self._equip(session, attempt, expiry, username, size)
        if waits:
            conn.state = _DECIDING
            self._router.journal.when_durable(partial(self._stored, conn), conn)
        else:
            self._admit(pending)

    def _keep_alive(self, wanted: int) -> int:
        longest = self._context.limits.keep_alive_seconds_max
        if not longest or 0 < wanted <= longest:
            return wanted
        # v5 is told; v3 cannot be told, and may be closed all the same when it is silent (3.1.1, 3.1.2.10)
        self._row.add(count.KEEP_ALIVES_SHORTENED)
        return longest

    def _fits(self, attempt: ConnectAttempt, granted: dict[str, Any] | None) -> bool:
        # [MQTT-3.1.2-24]: refuse a client for which the CONNACK that it needs would be too large
        if len(encode_connack(5, False, 0, granted)) <= attempt.conn.packet_bytes_max:
            return True
        why = "Maximum Packet Size is too small for CONNACK"
        self._closing.refuse(attempt.conn, ReasonCode.PACKET_TOO_LARGE, why, client=attempt.client_id)
        return False

    def _is_authorised(self, attempt: ConnectAttempt, username: str | None, session: Session | None) -> bool:
        conn, client_id = attempt.conn, attempt.client_id
        wrong = self._authorising.wrong_with(attempt.packet.will, conn, client_id, username, session)
        if wrong:
            self._closing.refuse(conn, ReasonCode.NOT_AUTHORIZED, wrong, client=client_id)
        return not wrong

    def _is_refused(self, changes: bool, clean: bool, frees: bool) -> bool:
        """Whether to refuse a CONNECT that must wait for the store. Unless the store has failed, a stored session is
        resumed and a CONNECT that frees room is accepted. Others are refused while the store is behind, because the
        waiting CONNECTs would take memory as well.
        """
        resumes = not changes and not clean
        is_wanted = resumes or (changes and frees)
        return self._state_records.refuses(resumes or frees) or (not is_wanted and self._back_pressure.is_store_behind)

    def _refuse_quota(self, attempt: ConnectAttempt, why: str) -> None:
        self._closing.refuse(attempt.conn, ReasonCode.QUOTA_EXCEEDED, why, client=attempt.client_id)

    def _wait_for_end(
        self, attempt: ConnectAttempt, username: str | None, authentication: dict[str, Any], tries: int
    ) -> None:
        """Open it later: a former session of this client has ended, and is not cleared yet."""
        conn = attempt.conn
        for other in self._endings.waiting(attempt.client_id):
            if other is not conn:
                self._give_way(other)
        self._endings.wait(conn, attempt.client_id, partial(self.open, attempt, username, authentication, tries))
        conn.state = _DECIDING

    def _take_over(self, session: Session, by: Connection) -> Session | None:
        """Close the session's connection, if it has one; return the session if it has not ended with it."""
        awaiting: Connection | None = session.details.awaiting
        former = self._attachments.of(session)
        if former is not None:
            self._row.add(count.SESSIONS_TAKEN_OVER)
            self._recording.taken_over(session, by, former)
        if session.connection is not None:
            self._closing.end_connection(session.connection, ReasonCode.SESSION_TAKEN_OVER, "taken over")
        elif awaiting is not None:
            self._closing.give_up(awaiting, "taken over before its session was stored")
        return self._sessions.get(session.client_id)

    def _equip(self, session: Session, attempt: ConnectAttempt, expiry: int, username: str | None, size: int) -> None:
        """Apply the settings of CONNECT to the session, and store them."""
        conn, packet = attempt.conn, attempt.packet
        limits = self._context.limits
        details: Details = session.details
        if details.expiry_handle is not None:
            details.expiry_handle.cancel()
            details.expiry_handle = None
        if details.will_handle is not None:  # [MQTT-3.1.3-9]: reconnected before the Will Delay Interval has passed
            details.will_handle.cancel()
            details.will_handle = None
        details.epoch, details.left_behind = attempt.epoch, False
        details.expiry_interval = expiry
        session.durable = expiry > 0
        if not details.began:
            details.began, details.began_clean = self._router.state.wall_ms, packet.clean_start
            self._sessions.when_begun(session)
        session.version = packet.version
        details.username = username
        details.will = packet.will
        details.own_bytes = size
        if packet.version == 5:
            properties = packet.properties
            inflight_max = min(properties.get("receive_maximum", 65535), limits.inflight_max)
            conn.topic_alias_max = limits.topic_alias_max
            conn.topic_alias_out_max = min(properties.get("topic_alias_maximum", 0), limits.topic_alias_out_max)
            conn.problem_information = bool(properties.get("request_problem_information", 1))
        else:
            inflight_max = limits.inflight_max
        session.bound_inflight(limits.inflight_max, inflight_max, limits.inflight_bytes_max)
        if self._state_records.keeps:
            self._state_records.connected(session)

    def _stored(self, conn: Connection) -> None:
        """Admit the client: the store has everything that the CONNACK promises."""
        pending = self._attachments.pending(conn)
        if pending is not None:  # else it was closed meanwhile; its CONNECT is not held until now
            self._admit(pending)
            self._context.dispatch.resume(conn)

    def _admit(self, pending: PendingConnack) -> None:
        conn, packet, session = pending.attempt.conn, pending.attempt.packet, pending.session
        present = pending.present
        conn.keep_alive_ms = pending.keep_alive * 1500
        self._write(conn, self._connack(packet.version, present, pending.granted))
        self._attachments.opened(pending)
        self._row.add(count.CONNECTIONS_OPENED)
        self._attach(session, conn)
        if present:
            self._go_on(session)
        self.opened(conn)
        if self._log.allows("connection_opened"):
            self._recording.log_opened(conn, packet, session, present, pending.keep_alive)
        if self._recording.on:
            self._recording.opened(conn, packet, session, present, pending.keep_alive)
        if session.durable and not present:
            self._recording.session_created(session)

    def _go_on(self, session: Session) -> None:
        """Resume piecewise work for a session that has a connection again."""
        if self._endings.works_for(session):
            self._replaying.attached(session)
            self._retaining.resumed(session)

    def _make_way(self, client_id: str) -> None:
        for other in self._capacity.waiting_for(client_id):
            self._give_way(other)

    def _give_way(self, conn: Connection) -> None:
        """Close a connection that waits; nothing was sent to it yet [MQTT-3.2.0-1]."""
        self._closing.give_up(conn, "a newer connection of this client id was faster")

    def _wait_for_room(self, attempt: ConnectAttempt, tries: int, again: Callable[[], None]) -> None:
        """At sessions_max: refuse, or call `again` when another session may have ended."""
        conn, client_id = attempt.conn, attempt.client_id
        self._attachments.count()
        if self._capacity.wait(conn, client_id, tries, again):
            conn.state = _DECIDING
            return
        self._row.add(count.SESSIONS_OVER_MAX)
        self._context.log.warning("sessions_max_reached", sessions_max=self._context.limits.sessions_max)
        self._refuse_quota(attempt, "too many sessions")

    def too_many_connections(self) -> None:
        """Refuse a socket because of connections_max, or because the worker can have no more."""
        self._row.add(count.CONNECTIONS_OVER_MAX)
        self._context.log.warning("connections_max_reached", connections_max=self._context.limits.connections_max)

    def may_take_over(self, attempt: ConnectAttempt, address: str) -> bool:
        """Whether a client may be taken over from where it is connected; if not, it is refused."""
        conn, client_id = attempt.conn, attempt.client_id
        now, most = self._router.state.now_ms / 1000, self._context.limits.takeovers_per_minute_max
        seconds = self._takeovers.refused_seconds(client_id, most, now)
        if not seconds:
            return True
        self._row.add(count.TAKEOVERS_REFUSED)
        self._context.log.warning(
            "takeover_refused",
            client=client_id,
            address=conn.address,
            address_connected=address,
            listener=self._context.listener_of(conn),
            seconds=round(seconds, 1),
        )
        self._refuse_quota(attempt, "too many take-overs of this client id")
        return False

    def sweep(self) -> None:
        """Forget everything that is over; called every second."""
        self._capacity.set_connections(len(self._attachments))
        self._capacity.sweep()
        self._takeovers.forget_old(self._context.limits.takeovers_per_minute_max, self._router.state.now_ms / 1000)

    def _granted(
        self, attempt: ConnectAttempt, expiry: int, keep_alive: int, authentication: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the properties of CONNACK (MQTT 5)."""
        packet = attempt.packet
        properties = {**offers(self._context.settings, packet, attempt.client_id), **authentication}
        if expiry != packet.properties.get("session_expiry_interval", 0):
            properties["session_expiry_interval"] = expiry
        if attempt.assigned:
            properties["assigned_client_identifier"] = attempt.client_id
        if keep_alive != packet.keep_alive:
            properties["server_keep_alive"] = keep_alive
        return properties

    def _connack(self, version: int, present: bool, granted: dict[str, Any] | None) -> bytes:
        if version == 5:
            return encode_connack(5, present, 0, granted)
        key = (version, present)
        plain = self._plain_connack.get(key)
        if plain is None:
            plain = self._plain_connack[key] = encode_connack(version, present and version == 4, 0)
        return plain

    def _expiry(self, packet: Connect) -> int:
        # of MQTT 5, or of a session that is not clean
        if packet.version == 5:
            asked: int = packet.properties.get("session_expiry_interval", 0)
        else:
            asked = self._context.limits.session_expiry_seconds_default_v3
        if packet.client_id.startswith(LOCAL_IDS):  # what waits for a bridge lasts as long as its configuration
            return asked
        return self._endings.expiry_granted(asked) if asked else 0

    def _assign(self) -> str:
        # the home of an assigned id is the accepting worker: the connection stays where it is
        while True:
            client_id = "auto-" + secrets.token_hex(12)
            if home(client_id, self._context.workers) == self._context.index and self._sessions.get(client_id) is None:
                return client_id
