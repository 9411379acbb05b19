"""CONNECT, up to its CONNACK: admits the connection and gives it a session. `broker.clients.closing` ends connections.

The steps of a CONNECT: the accepting worker decodes it; if the client id's home is a sibling, the socket is handed over
with all that was read, and the sibling starts afresh. At home: credentials (`broker.clients.authenticating`, which may
take a while); an older connection of the same client id is closed (take-over: one session and never two); the session
is resumed or created; CONNACK; then the messages that the session has queued. While a CONNACK waits for the store, the
connection is held by `broker.clients.occupants`.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.clients.admission import offers, refusal
from broker.clients.authenticating import Entrant
from broker.clients.takeovers import Takeovers
from broker.context.sessions import own_bytes
from pyx.core import counters as count
from pyx.protocol.codec import encode_connack
from pyx.protocol.reasons import ReasonCode
from shards.placement import home

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.clients.authenticating import Authenticating
    from broker.clients.authorising import Authorising
    from broker.clients.capacity import Capacity
    from broker.clients.closing import Closing
    from broker.clients.endings import Endings
    from broker.clients.occupants import Occupants, PendingConnack
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
        occupants: Occupants,
        closing: Closing,
        retaining: Retaining,
        replaying: Replaying,
    ) -> None:
        self._context = context
        self._router = context.router
        self._row = context.counters
        self._sessions = sessions
        self._state_records = state_records
        self._recording = recording
        self._authenticating = authenticating
        self._authorising = authorising
        self._capacity = capacity
        self._endings = endings
        self._occupants = occupants
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
        self._authenticating.begin(Entrant(conn, packet, client_id, assigned))

    def _no_home(self, conn: Connection, _worker: int, _raw: bytes) -> None:
        self._closing.unavailable(conn, "its worker cannot be reached")

    def open(self, entrant: Entrant, username: str | None, authentication: dict[str, Any], tries: int = 0) -> None:
        """Give an authenticated client its session. `authentication`: properties of the CONNACK; `tries`: the number of
        times that it has waited for another session to end.
        """
        conn, packet, client_id = entrant.conn, entrant.packet, entrant.client_id
        if self._endings.is_ending(client_id):
            self._wait_for_end(entrant, username, authentication, tries)
            return
        limits = self._context.settings.limits
        asked = keep_alive = packet.keep_alive
        if limits.keep_alive_seconds_max and (not asked or asked > limits.keep_alive_seconds_max):
            # v5 is told; v3 cannot be told, and may be closed all the same when it is silent (3.1.1, 3.1.2.10)
            keep_alive = limits.keep_alive_seconds_max
            self._row.add(count.KEEP_ALIVES_SHORTENED)
        expiry = self._expiry(packet)
        granted = self._granted(entrant, expiry, keep_alive, authentication)
        told = "maximum_packet_size" not in packet.properties
        if not told and len(encode_connack(5, False, 0, granted)) > conn.packet_bytes_max:
            # [MQTT-3.1.2-24]: the CONNACK that it needs would be too large for it
            why = "Maximum Packet Size is too small for CONNACK"
            self._closing.refuse(conn, ReasonCode.PACKET_TOO_LARGE, why, client=client_id)
            return
        session = self._sessions.get(client_id)
        if wrong := self._authorising.wrong_with(packet.will, conn, client_id, username, session):
            self._closing.refuse(conn, ReasonCode.NOT_AUTHORIZED, wrong, client=client_id)
            return
        size = own_bytes(client_id, username, packet.will)
        if not self._may_open(entrant, size, session):
            return
        waits = self._state_records.promises(client_id, session, expiry, packet.clean_start, packet.will is not None)
        if waits and self._state_records.refuses(frees=expiry == 0 and packet.will is None):
            self._closing.unavailable(conn, "nothing can be stored at present", client=client_id)
            return
        if not self._finds_connection_room(entrant, session):
            return
        if session is not None:
            self._sessions.reserve(0)  # keeps its place, should it end and begin anew
        elif not self._finds_session_room(client_id):
            self._wait_for_room(entrant, tries, partial(self.open, entrant, username, authentication, tries + 1))
            return
        if session is not None:
            self._take_over(session, conn)
            session = self._sessions.get(client_id)  # it may have ended with its connection
        if session is not None and packet.clean_start:
            self._recording.session_ended(session, "clean start")
            self._endings.end(session)
            session = None
        if session is None and self._endings.is_ending(client_id):
            self._wait_for_end(entrant, username, authentication, tries)
            self._sessions.release()
            self._occupants.count()
            return
        pending = self._occupants.enter(entrant, session, granted, keep_alive)
        session = pending.session
        self._equip(session, entrant, expiry, username, size)
        self._state_records.connected(session)
        if waits:
            conn.state = _DECIDING
            self._router.journal.when_durable(lambda: self._stored(pending), conn)
        else:
            self._admit(pending)

    def _wait_for_end(self, entrant: Entrant, username: str | None, authentication: dict[str, Any], tries: int) -> None:
        """Open it later: a former session of this client has ended, and is not cleared yet."""
        conn = entrant.conn
        for other in self._endings.waiting(entrant.client_id):
            if other is not conn:
                self._give_way(other)
        self._endings.wait(conn, entrant.client_id, partial(self.open, entrant, username, authentication, tries))
        conn.state = _DECIDING

    def _take_over(self, session: Session, by: Connection) -> None:
        """Close the session's connection, if it has one."""
        awaiting: Connection | None = session.details.awaiting
        former = self._occupants.of(session)
        if former is not None:
            self._row.add(count.SESSIONS_TAKEN_OVER)
            self._recording.taken_over(session, by, former)
        if session.connection is not None:
            self._closing.end_connection(session.connection, ReasonCode.SESSION_TAKEN_OVER, "taken over")
        elif awaiting is not None:
            self._closing.give_up(awaiting, "taken over before its session was stored")

    def _equip(self, session: Session, entrant: Entrant, expiry: int, username: str | None, size: int) -> None:
        """Apply the settings of CONNECT to the session."""
        conn, packet = entrant.conn, entrant.packet
        limits = self._context.settings.limits
        details: Details = session.details
        if details.expiry_handle is not None:
            details.expiry_handle.cancel()
            details.expiry_handle = None
        if details.will_handle is not None:  # [MQTT-3.1.3-9]: reconnected before the Will Delay Interval has passed
            details.will_handle.cancel()
            details.will_handle = None
        details.expiry_interval = expiry
        session.durable = expiry > 0
        session.version = packet.version
        session.slots_max = limits.inflight_max
        session.bound_inflight(limits.inflight_bytes_max)
        details.username = username
        details.will = packet.will
        details.own_bytes = size
        if packet.version == 5:
            properties = packet.properties
            session.inflight_max = min(properties.get("receive_maximum", 65535), limits.inflight_max)
            conn.topic_alias_max = limits.topic_alias_max
            conn.topic_alias_out_max = min(properties.get("topic_alias_maximum", 0), limits.topic_alias_out_max)
            conn.problem_information = bool(properties.get("request_problem_information", 1))
        else:
            session.inflight_max = limits.inflight_max

    def _stored(self, pending: PendingConnack) -> None:
        """Admit the client: the store has everything that the CONNACK promises."""
        if not self._occupants.is_pending(pending):
            return  # it was closed meanwhile
        self._admit(pending)
        self._context.dispatch.resume(pending.entrant.conn)

    def _admit(self, pending: PendingConnack) -> None:
        conn, packet, session = pending.entrant.conn, pending.entrant.packet, pending.session
        conn.keep_alive_ms = pending.keep_alive * 1500
        self._router.state.write(conn, self._connack(packet.version, pending.present, pending.granted))
        self._occupants.opened(pending)
        self._row.add(count.CONNECTIONS_OPENED)
        self._router.subscribing.attach(session, conn)
        self._go_on(session)
        self.opened(conn)
        self._recording.log_opened(conn, packet, session, pending.present, pending.keep_alive)
        self._recording.opened(conn, packet, session, pending.present, pending.keep_alive)
        if session.durable and not pending.present:
            self._recording.session_created(session)

    def _go_on(self, session: Session) -> None:
        """Resume piecewise work for a session that has a connection again."""
        if self._endings.works_for(session):
            self._replaying.attached(session)
            self._retaining.resumed(session)

    def _finds_connection_room(self, entrant: Entrant, session: Session | None) -> bool:
        """Claim room under connections_max and count the connection; return False if it was refused."""
        if self._capacity.for_connection(taking_over=session is not None and self._occupants.of(session) is not None):
            return True
        self.too_many_connections()
        self._closing.refuse(entrant.conn, ReasonCode.QUOTA_EXCEEDED, "too many connections", client=entrant.client_id)
        return False

    def _finds_session_room(self, client_id: str) -> bool:
        for other in self._capacity.waiting_for(client_id):
            self._give_way(other)
        return self._capacity.for_session()

    def _give_way(self, conn: Connection) -> None:
        """Close a connection that waits; nothing was sent to it yet [MQTT-3.2.0-1]."""
        self._closing.give_up(conn, "a newer connection of this client id was faster")

    def _wait_for_room(self, entrant: Entrant, tries: int, again: Callable[[], None]) -> None:
        """At sessions_max: refuse, or call `again` when another session may have ended."""
        conn, client_id = entrant.conn, entrant.client_id
        self._occupants.count()
        if self._capacity.wait(conn, client_id, tries, again):
            conn.state = _DECIDING
            return
        self._row.add(count.SESSIONS_OVER_MAX)
        self._context.log.warning("sessions_max_reached", sessions_max=self._context.settings.limits.sessions_max)
        self._closing.refuse(conn, ReasonCode.QUOTA_EXCEEDED, "too many sessions", client=client_id)

    def too_many_connections(self) -> None:
        """Refuse a socket because of connections_max, or because the worker can have no more."""
        self._row.add(count.CONNECTIONS_OVER_MAX)
        self._context.log.warning(
            "connections_max_reached", connections_max=self._context.settings.limits.connections_max
        )

    def _may_open(self, entrant: Entrant, size: int, session: Session | None) -> bool:
        # the bounds that depend on the client and not only on its packet; `size`: as session_bytes_max counts
        conn, packet, client_id = entrant.conn, entrant.packet, entrant.client_id
        limits = self._context.settings.limits
        if size > limits.session_bytes_max:
            self._row.add(count.SESSIONS_TOO_LARGE)
            self._closing.refuse(conn, ReasonCode.QUOTA_EXCEEDED, "session_bytes_max", client=client_id)
            return False
        if self._router.back_pressure.is_memory_full and (session is None or packet.clean_start):
            self._row.add(count.MEMORY_REFUSED)
            self._closing.refuse(conn, ReasonCode.QUOTA_EXCEEDED, "worker_memory_bytes_max", client=client_id)
            return False
        occupant = None if session is None else self._occupants.of(session)
        if occupant is None:
            return True
        now = self._router.state.now_ms / 1000
        seconds = self._takeovers.refused_seconds(client_id, limits.takeovers_per_minute_max, now)
        if not seconds:
            return True
        self._row.add(count.TAKEOVERS_REFUSED)
        self._context.log.warning(
            "takeover_refused",
            client=client_id,
            address=conn.address,
            address_connected=occupant.address,
            listener=self._context.listener_of(conn),
            seconds=round(seconds, 1),
        )
        self._closing.refuse(conn, ReasonCode.QUOTA_EXCEEDED, "too many take-overs of this client id", client=client_id)
        return False

    def sweep(self) -> None:
        """Forget everything that is over; called every second."""
        self._capacity.connections(len(self._occupants))
        self._capacity.sweep()
        self._takeovers.forget_old(
            self._context.settings.limits.takeovers_per_minute_max, self._router.state.now_ms / 1000
        )

    def _granted(
        self, entrant: Entrant, expiry: int, keep_alive: int, authentication: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the properties of CONNACK."""
        packet = entrant.packet
        if packet.version < 5:
            return None
        properties = {**offers(self._context.settings, packet, entrant.client_id), **authentication}
        if expiry != packet.properties.get("session_expiry_interval", 0):
            properties["session_expiry_interval"] = expiry
        if entrant.assigned:
            properties["assigned_client_identifier"] = entrant.client_id
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
        limits = self._context.settings.limits
        if packet.version == 5:
            asked: int = packet.properties.get("session_expiry_interval", 0)
        else:
            asked = 0 if packet.clean_start else limits.session_expiry_seconds_default_v3
        return self._endings.expiry_granted(asked)

    def _assign(self) -> str:
        # the home of an assigned id is the accepting worker: the connection stays where it is
        while True:
            client_id = "auto-" + secrets.token_hex(12)
            if home(client_id, self._context.workers) == self._context.index and self._sessions.get(client_id) is None:
                return client_id
