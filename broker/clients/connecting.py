"""CONNECT, DISCONNECT and the end of connections: who may come in, which session it gets, what becomes of it after.

The way of a CONNECT: the accepting worker decodes it; if the client id's home is a sibling, the socket goes there with
all that was read, and the sibling starts anew. At home: credentials (`broker.clients.authenticating`, which may take a
while), an older connection of the same client id is closed (take-over, one session and never two), the session is
resumed or made, CONNACK, then whatever the session waits for.

Where the store keeps sessions, a CONNACK that promises what the store does not hold yet waits for it: the connection
stays DECIDING, its session has no connection, and what comes behind the CONNECT waits too. A newer CONNECT of the same
client id takes the place of one that waits; that one is told nothing [MQTT-3.2.0-1]. Whoever ends without its CONNACK
has changed nothing: the session that it found is what it was (`_Before`), one that it made is none.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.clients.admission import offers, refusal
from broker.clients.authenticating import Entrant
from broker.clients.takeovers import Takeovers
from broker.context.sessions import Details, own_bytes
from pyx.core import counters as count
from pyx.core.steps import Steps
from pyx.core.work import callback
from pyx.protocol.codec import encode_connack, encode_disconnect
from pyx.protocol.reasons import ReasonCode
from shards.placement import home

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.clients.authenticating import Authenticating
    from broker.clients.authorising import Authorising
    from broker.clients.capacity import Capacity
    from broker.clients.endings import Endings
    from broker.clients.retaining import Retaining
    from broker.clients.wills import Wills
    from broker.context.context import Context
    from broker.context.sessions import Sessions
    from broker.persistence.recording import Recording
    from broker.persistence.state_records import StateRecords
    from broker.replay.replaying import Replaying
    from pyx.delivery.connection import Connection
    from pyx.delivery.session import Session
    from pyx.protocol.packets import Connect, Disconnect, Will

__all__ = ["Connecting"]

AT_ONCE = 0x100
"""Flag of a close reason: the client said goodbye (or cannot hear us): close without waiting for its FIN."""

_DECIDING = 1
_OPEN = 2
_CLIENT_ID = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
_PACKET_BYTES_MAX = 268_435_460
"""The largest packet that MQTT can say: 5 bytes of fixed header and 268,435,455 more."""


class _Before(NamedTuple):
    """What an offline session was when a CONNECT found it."""

    expiry_interval: int
    version: int
    username: str | None
    will: Will | None
    will_due: int
    """ms of the router's clock, if there is one."""

    @classmethod
    def of(cls, session: Session) -> _Before:
        """What it is now."""
        details: Details = session.details
        due = 0 if details.will_handle is None else details.will_handle.deadline
        return cls(details.expiry_interval, session.version, details.username, details.will, due)


class _Awaiting:
    """A connection whose session is made or resumed, and whose CONNACK waits for the store. `before`: the session that
    was there.
    """

    __slots__ = ("before", "entrant", "granted", "keep_alive", "session")

    def __init__(
        self,
        entrant: Entrant,
        session: Session,
        before: _Before | None,
        granted: dict[str, Any] | None,
        keep_alive: int,
    ) -> None:
        self.entrant = entrant
        self.session = session
        self.before = before
        self.granted = granted
        self.keep_alive = keep_alive

    @property
    def present(self) -> bool:
        """Of Session Present."""
        return self.before is not None


class Connecting:
    """Decisions at the beginning and at the end of a connection."""

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
        wills: Wills,
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
        self._wills = wills
        self._retaining = retaining
        self._replaying = replaying
        self._takeovers = Takeovers()
        self._plain_connack: dict[tuple[int, bool], bytes] = {}
        self._connected = 0
        self._awaiting: dict[Connection, _Awaiting] = {}
        self.hand_over: Callable[[Connection, int, bytes], None] = self._no_home
        """Pass a connection, and the bytes of its CONNECT, to the worker that is its home."""
        self.opened: Callable[[Connection], None] = lambda _conn: None
        """Called when a CONNACK 0 is in the outbox: the reactor starts the keep-alive timer."""

    # ------------------------------------------------------------ in

    def connect(self, conn: Connection, packet: Connect, raw: bytes) -> None:
        """A whole CONNECT has come; `raw` are its bytes, for a hand-off."""
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
            self.refuse(conn, refused.reason, refused.why, refused.server_reference, client=client_id)
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
        self.unavailable(conn, "its worker cannot be reached")

    def open(self, entrant: Entrant, username: str | None, authentication: dict[str, Any], tries: int = 0) -> None:
        """The client is known: give it its session. `authentication`: properties of the CONNACK; `tries`: how often it
        has waited for another session to end.
        """
        conn, packet, client_id = entrant.conn, entrant.packet, entrant.client_id
        if self._endings.is_ending(client_id):
            self._wait_for_end(entrant, username, authentication, tries)
            return
        limits = self._context.settings.limits
        version = packet.version
        asked = keep_alive = packet.keep_alive
        if limits.keep_alive_seconds_max and (not asked or asked > limits.keep_alive_seconds_max):
            # v5 is told; v3 has no way to be told, and may be closed all the same when nothing comes (3.1.1, 3.1.2.10)
            keep_alive = limits.keep_alive_seconds_max
            self._row.add(count.KEEP_ALIVES_SHORTENED)
        expiry = self._expiry(packet)
        granted = self._granted(entrant, expiry, keep_alive, authentication)
        told = "maximum_packet_size" not in packet.properties
        if not told and len(encode_connack(5, False, 0, granted)) > conn.packet_bytes_max:
            # [MQTT-3.1.2-24]: what it must know cannot be said
            why = "Maximum Packet Size is too small for CONNACK"
            self.refuse(conn, ReasonCode.PACKET_TOO_LARGE, why, client=client_id)
            return
        session = self._sessions.get(client_id)
        if wrong := self._authorising.wrong_with(packet.will, conn, client_id, username, session):
            self.refuse(conn, ReasonCode.NOT_AUTHORIZED, wrong, client=client_id)
            return
        size = own_bytes(client_id, username, packet.will)
        if not self._may_open(entrant, size, session):
            return
        waits = self._state_records.promises(client_id, session, expiry, packet.clean_start, packet.will is not None)
        if waits and self._state_records.refuses(frees=expiry == 0 and packet.will is None):
            self.unavailable(conn, "nothing can be stored at present", client=client_id)
            return
        if not self._finds_connection_room(entrant, session):
            return
        if session is not None:
            self._sessions.reserve(0)  # should it end and begin anew, its place is kept
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
            self._count()
            return
        before = None
        if session is None:
            session = self._sessions.new(client_id, version)
        else:
            self._sessions.release()
            self._sessions.came(session)
            before = _Before.of(session)
        awaiting = _Awaiting(entrant, session, before, granted, keep_alive)
        session.details.awaiting = conn  # until its CONNACK: whatever fails, `_withdraw` takes all of it back
        self._awaiting[conn] = awaiting
        self._equip(session, entrant, expiry, username, size)
        self._state_records.connected(session)
        if waits:
            conn.state = _DECIDING
            self._router.when_durable(lambda: self._stored(awaiting), conn)
        else:
            self._admit(awaiting)

    def _wait_for_end(self, entrant: Entrant, username: str | None, authentication: dict[str, Any], tries: int) -> None:
        """Something is left of a session of this client that has ended: it is opened after that."""
        conn = entrant.conn
        for other in self._endings.waiting(entrant.client_id):
            if other is not conn:
                self._give_way(other)
        self._endings.wait(conn, entrant.client_id, partial(self.open, entrant, username, authentication, tries))
        conn.state = _DECIDING

    def _take_over(self, session: Session, by: Connection) -> None:
        """Close the connection that the session has, if it has one."""
        awaiting: Connection | None = session.details.awaiting
        former = self._occupant(session)
        if former is not None:
            self._row.add(count.SESSIONS_TAKEN_OVER)
            self._recording.taken_over(session, by, former)
        if session.connection is not None:
            self.end_connection(session.connection, ReasonCode.SESSION_TAKEN_OVER, "taken over")
        elif awaiting is not None:
            self.give_up(awaiting, "taken over before its session was stored")

    def _equip(self, session: Session, entrant: Entrant, expiry: int, username: str | None, size: int) -> None:
        """What CONNECT says of the session is so from now on."""
        conn, packet = entrant.conn, entrant.packet
        limits = self._context.settings.limits
        details: Details = session.details
        if details.expiry_handle is not None:
            details.expiry_handle.cancel()
            details.expiry_handle = None
        if details.will_handle is not None:  # [MQTT-3.1.3-9]: back before the Will Delay Interval has passed
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

    def _stored(self, awaiting: _Awaiting) -> None:
        """The store has what the CONNACK promises."""
        conn = awaiting.entrant.conn
        if self._awaiting.get(conn) is not awaiting:
            return  # it has gone meanwhile
        self._admit(awaiting)
        self._context.dispatch.resume(conn)

    def _admit(self, awaiting: _Awaiting) -> None:
        conn, packet, session = awaiting.entrant.conn, awaiting.entrant.packet, awaiting.session
        conn.keep_alive_ms = awaiting.keep_alive * 1500
        self._router.write(conn, self._connack(packet.version, awaiting.present, awaiting.granted))
        del self._awaiting[conn]
        session.details.awaiting = None
        self._connected += 1
        self._row.add(count.CONNECTIONS_OPENED)
        self._router.attach(session, conn)
        self._go_on(session)
        self.opened(conn)
        self._recording.log_opened(conn, packet, session, awaiting.present, awaiting.keep_alive)
        self._recording.opened(conn, packet, session, awaiting.present, awaiting.keep_alive)
        if session.durable and not awaiting.present:
            self._recording.session_created(session)

    def _go_on(self, session: Session) -> None:
        """With what is done for it in pieces: it has a connection."""
        if self._endings.works_for(session):
            self._replaying.attached(session)
            self._retaining.resumed(session)

    def _withdraw(self, conn: Connection) -> None:
        """If a CONNACK waits for the store: it will not be sent. The client was told nothing, so its will is none, a
        session that was made for it ends, and one that was there is what it was.
        """
        if self._capacity.waiting:
            self._capacity.forget(conn)
        if self._endings.clients:
            self._endings.forget(conn)
        awaiting = self._awaiting.pop(conn, None)
        if awaiting is None:
            return
        steps = Steps()
        steps.do(self._count)
        steps.do(self._take_back, awaiting)
        steps.finish()

    def _take_back(self, awaiting: _Awaiting) -> None:
        session, before = awaiting.session, awaiting.before
        details: Details = session.details
        details.awaiting = None
        if before is None:
            details.will = None
            self._state_records.will_gone(session)
            self._endings.end(session)
            return
        session.durable = True
        session.version = before.version
        self._sessions.left(session)
        details.username = before.username
        details.expiry_interval = before.expiry_interval
        details.will = before.will
        details.own_bytes = own_bytes(session.client_id, before.username, before.will)
        if before.will is None:
            self._state_records.will_gone(session)
        else:
            left = max(0, before.will_due - self._router.now_ms)
            self._state_records.will_waits(session, self._router.wall_ms + left)
            self._wills.start_delay(session, left / 1000)
        self._state_records.disconnected(session)
        self._endings.expire_in(session, details.expiry_interval)

    def _awaited(self, conn: Connection) -> str | None:
        """The client id of a connection whose CONNACK waits for the store."""
        awaiting = self._awaiting.get(conn)
        return None if awaiting is None else awaiting.entrant.client_id

    def awaiting(self) -> list[Connection]:
        """Those whose CONNACK waits for the disk."""
        return list(self._awaiting)

    def refuse_unstored(self, conn: Connection) -> None:
        """The disk has failed for store_error_seconds_max: one that waits for it waits no longer."""
        awaiting = self._awaiting.get(conn)
        if awaiting is not None:
            why, client = "nothing can be stored at present", awaiting.session.client_id
            self._context.guard(conn, partial(self.unavailable, conn, why, client=client))

    def _finds_connection_room(self, entrant: Entrant, session: Session | None) -> bool:
        """Whether connections_max lets it in: then it is counted. Else it is refused."""
        if self._capacity.for_connection(taking_over=session is not None and self._occupant(session) is not None):
            return True
        self.too_many_connections()
        self.refuse(entrant.conn, ReasonCode.QUOTA_EXCEEDED, "too many connections", client=entrant.client_id)
        return False

    def _finds_session_room(self, client_id: str) -> bool:
        for other in self._capacity.waiting_for(client_id):
            self._give_way(other)
        return self._capacity.for_session()

    def _give_way(self, conn: Connection) -> None:
        """It has waited; it was told nothing yet [MQTT-3.2.0-1]."""
        self.give_up(conn, "a newer connection of this client id was faster")

    def _wait_for_room(self, entrant: Entrant, tries: int, again: Callable[[], None]) -> None:
        """There are sessions_max: it is refused, or `again` is called when another session may have ended."""
        conn, client_id = entrant.conn, entrant.client_id
        self._count()
        if self._capacity.wait(conn, client_id, tries, again):
            conn.state = _DECIDING
            return
        self._row.add(count.SESSIONS_OVER_MAX)
        self._context.log.warning("sessions_max_reached", sessions_max=self._context.settings.limits.sessions_max)
        self.refuse(conn, ReasonCode.QUOTA_EXCEEDED, "too many sessions", client=client_id)

    def too_many_connections(self) -> None:
        """connections_max, or what the worker can have."""
        self._row.add(count.CONNECTIONS_OVER_MAX)
        self._context.log.warning(
            "connections_max_reached", connections_max=self._context.settings.limits.connections_max
        )

    def _count(self) -> None:
        self._capacity.connections(self._connected + len(self._awaiting))

    def _occupant(self, session: Session) -> Connection | None:
        """The connection that a newer one of this client id would take the place of."""
        return session.connection or session.details.awaiting

    def _may_open(self, entrant: Entrant, size: int, session: Session | None) -> bool:
        # the bounds that concern a client and not its packet; `size`: what session_bytes_max counts
        conn, packet, client_id = entrant.conn, entrant.packet, entrant.client_id
        limits = self._context.settings.limits
        if size > limits.session_bytes_max:
            self._row.add(count.SESSIONS_TOO_LARGE)
            self.refuse(conn, ReasonCode.QUOTA_EXCEEDED, "session_bytes_max", client=client_id)
            return False
        if self._router.is_memory_full and (session is None or packet.clean_start):
            self._row.add(count.MEMORY_REFUSED)
            self.refuse(conn, ReasonCode.QUOTA_EXCEEDED, "worker_memory_bytes_max", client=client_id)
            return False
        occupant = None if session is None else self._occupant(session)
        if occupant is None:
            return True
        now = self._router.now_ms / 1000
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
        self.refuse(conn, ReasonCode.QUOTA_EXCEEDED, "too many take-overs of this client id", client=client_id)
        return False

    def sweep(self) -> None:
        """Called every second: forget what is over."""
        self._capacity.connections(self._connected + len(self._awaiting))
        self._capacity.sweep()
        self._takeovers.forget_old(self._context.settings.limits.takeovers_per_minute_max, self._router.now_ms / 1000)

    def _granted(
        self, entrant: Entrant, expiry: int, keep_alive: int, authentication: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The properties of CONNACK."""
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
        return self._expiry_granted(asked)

    def _expiry_granted(self, asked: int) -> int:
        most = self._context.settings.limits.session_expiry_seconds_max
        if not most or asked <= most:
            return asked
        self._row.add(count.SESSION_EXPIRIES_SHORTENED)
        return most

    def _assign(self) -> str:
        # an assigned id's home is the accepting worker: the connection stays where it is
        while True:
            client_id = "auto-" + secrets.token_hex(12)
            if home(client_id, self._context.workers) == self._context.index and self._sessions.get(client_id) is None:
                return client_id

    def refuse(
        self, conn: Connection, reason: int, why: str, server_reference: str | None = None, **fields: Any
    ) -> None:
        """CONNACK with this reason (v3: its return code), and the end. `fields` go into the log line."""
        self._authenticating.forget(conn)
        client = fields.get("client") or self._awaited(conn)
        self._withdraw(conn)
        self._row.add(count.CONNECTIONS_REFUSED)
        version = conn.version or 4
        properties = {"reason_string": why}
        if server_reference is not None:
            properties["server_reference"] = server_reference
        packet = encode_connack(version, False, reason, properties, conn.packet_bytes_max)
        if len(packet) > conn.packet_bytes_max:
            packet = encode_connack(version, False, reason)
        if len(packet) <= conn.packet_bytes_max:
            self._router.write(conn, packet)
        self._log_refused(conn, why, code=int(reason), **fields)
        self._recording.refused(conn, int(reason), why, client, fields.get("username"))
        self._router.close(conn, int(reason), why)

    def unavailable(self, conn: Connection, why: str, **fields: Any) -> None:
        """Its home cannot take the connection, its password cannot be checked, or its session not be stored: CONNACK
        0x88 (v3: 3).
        """
        self.refuse(conn, ReasonCode.SERVER_UNAVAILABLE, why, **fields)

    def connect_timeout(self, conn: Connection) -> None:
        """Not open within connect_seconds_max."""
        self._row.add(count.CONNECT_TIMEOUTS)
        if self._authenticating.waits(conn):
            self.unavailable(conn, "its password was not checked in time")
        elif conn in self._awaiting:
            self.unavailable(conn, "its session was not stored in time")
        else:
            self.give_up(conn, "no AUTH in time" if conn.authenticating else "no CONNECT in time")

    def give_up(self, conn: Connection, why: str) -> None:
        """Close a connection that is not open, and say nothing."""
        self._authenticating.forget(conn)
        client = self._awaited(conn)
        self._withdraw(conn)
        self._row.add(count.CONNECTIONS_REFUSED)
        self._log_refused(conn, why)
        self._recording.refused(conn, 0, why, client)
        self._router.close(conn, AT_ONCE, why)

    # ------------------------------------------------------------ out

    def farewell(self) -> tuple[ReasonCode, str]:
        """What every client is told when the broker stops."""
        protocol = self._context.settings.protocol
        if protocol.redirect is None:
            return ReasonCode.SERVER_SHUTTING_DOWN, "server is shutting down"
        reason = ReasonCode.SERVER_MOVED if protocol.redirect_permanent else ReasonCode.USE_ANOTHER_SERVER
        return reason, "server is shutting down, clients go to another server"

    def disconnect(self, conn: Connection, packet: Disconnect) -> None:
        """DISCONNECT of the client: 0x00 takes its will away, 0x04 does not [MQTT-3.1.2-8, MQTT-3.14.4-3]."""
        session = conn.session
        if session is None:
            self.give_up(conn, "disconnected by the client during its authentication")
            return
        details: Details = session.details
        asked = packet.properties.get("session_expiry_interval")
        if asked is not None:
            if details.expiry_interval == 0 and asked:  # [MQTT-3.14.2-2]: may not come back to life
                self.protocol_error_reason(conn, ReasonCode.PROTOCOL_ERROR, "Session Expiry after 0 in CONNECT")
                return
            details.expiry_interval = self._expiry_granted(asked)
            session.durable = details.expiry_interval > 0
        if packet.reason_code == 0:
            details.will = None
        self.end_connection(conn, AT_ONCE, "disconnected by the client", told=packet.reason_code)

    def protocol_error(self, conn: Connection, error: Any) -> None:
        """A malformed packet or a protocol error: v5 is told why, v3 is just closed [MQTT-4.13.1-1]."""
        self.protocol_error_reason(conn, int(error.reason_code), error.args[0])

    def protocol_error_reason(self, conn: Connection, reason: int, why: str) -> None:
        """The same for an error found later than in the codec."""
        if conn.state < _OPEN:
            self._refuse_bad_connect(conn, reason, why)
            return
        listener, client = self._context.listener_of(conn), self._client(conn)
        self._context.log.info(
            "protocol_error", client=client, address=conn.address, listener=listener, reason=why, code=reason
        )
        self.end_connection(conn, reason, why)

    def _refuse_bad_connect(self, conn: Connection, reason: int, why: str) -> None:
        if conn.version == 5 or reason == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            # an unknown level is answered in the form that all versions understand: return code 1 [MQTT-3.1.2-2]
            self.refuse(conn, reason, why)
            return
        self._row.add(count.CONNECTIONS_REFUSED)
        self._log_refused(conn, why, code=reason)
        self._recording.refused(conn, reason, why)
        self._router.close(conn, AT_ONCE, why)

    def _log_refused(self, conn: Connection, why: str, **fields: Any) -> None:
        listener = self._context.listener_of(conn)
        self._context.log.info("connection_refused", address=conn.address, listener=listener, reason=why, **fields)

    def keep_alive_timeout(self, conn: Connection) -> None:
        """Nothing came for one and a half keep-alives [MQTT-3.1.2-22]."""
        self.end_connection(conn, ReasonCode.KEEP_ALIVE_TIMEOUT, "keep-alive timeout")

    def end_connection(self, conn: Connection, reason: int, why: str, told: int | None = None) -> None:
        """Close a connection from our side: DISCONNECT to v5 with a reason, books closed at once; the socket
        follows.
        """
        # the router may have asked for its end already in this tick: its session is let go now all the same
        self._router.close(conn, int(reason), why)
        self.closed(conn, int(reason) & 0xFF, why, told)

    @callback("closed")
    def closed(self, conn: Connection, reason: int, why: str, told: int | None = None) -> None:
        """The connection ends (ours or the client's doing): its session is detached, its will is due."""
        self._authenticating.forget(conn)
        session: Session | None = conn.session
        if session is None:
            self._withdraw(conn)
            return
        conn.session = None
        self._connected -= 1
        self._row.add(count.CONNECTIONS_CLOSED)
        steps = Steps()
        steps.do(self._count)
        if reason and conn.version == 5:
            steps.do(self._say_goodbye, conn, reason, why)
        steps.do(self._recording.log_closed, conn, session, why, told)
        steps.do(self._recording.closed, conn, session, why, reason, told)
        if session.details.expiry_interval == 0:
            if self._state_records.keeps:
                steps.do(self._record_end, session)
            steps.do(self._endings.bury, session, self._router.detach)
            steps.do(self._sessions.remove, session)
        else:
            steps.do(self._router.detach, session)
            steps.do(self._sessions.left, session)
            steps.do(self._state_records.disconnected, session)
            steps.do(self._replaying.detached, session)
            steps.do(self._endings.expire_in, session, session.details.expiry_interval)
        if self._state_records.keeps or session.details.will is not None:
            steps.do(self._wills.left, session)
        steps.finish()

    def _record_end(self, session: Session) -> None:
        if self._state_records.stores(session):
            self._recording.session_ended(session, "its Session Expiry Interval is 0 now")

    def fail(self, conn: Connection) -> None:
        """An error of ours while something of this connection's was handled: 0x83 to v5, and the end. What was half
        done is taken back (`_withdraw`), or ends as with any other connection.
        """
        reason, why = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "internal error"
        if conn.state >= _OPEN:
            self.end_connection(conn, reason, why)
        elif conn.version == 5:
            self.refuse(conn, reason, why)
        else:
            self.give_up(conn, why)

    def _say_goodbye(self, conn: Connection, reason: int, why: str) -> None:
        """DISCONNECT with its Reason String, and with the other server where it names one."""
        properties = {"reason_string": why}
        reference = self._context.settings.protocol.redirect
        if reference is not None and reason in (ReasonCode.USE_ANOTHER_SERVER, ReasonCode.SERVER_MOVED):
            properties["server_reference"] = reference
        packet = encode_disconnect(reason, properties, packet_bytes_max=conn.packet_bytes_max)
        self._router.write(conn, packet if len(packet) <= conn.packet_bytes_max else encode_disconnect(reason))

    def delete(self, client_id: str) -> bool:
        """The operator ends a session, and its connection with it. False: there is none."""
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

    def _client(self, conn: Connection) -> str | None:
        return conn.session.client_id if conn.session is not None else None
