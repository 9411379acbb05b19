"""Authentication of clients: anonymous, by user name and password, or by an AUTH exchange (MQTT 5, 4.12).

    password    verified recently: decided at once. Else the hash is computed in a thread (`broker.auth.pool`) while
                the connection stays DECIDING: packets after its CONNECT wait. Connections that wait for the same name
                and password share one hash
    method      CONNECT -> AUTH 0x18 -> ... -> CONNACK. Between two messages the connection is OPENING again, with
                `authenticating` set: the dispatch lets only AUTH and DISCONNECT through
    again       AUTH 0x19 on an open connection: the same messages, while everything else goes on

The connect timer runs throughout. The session is not touched before the client is authenticated: a take-over happens in
`Connecting.open`. Of two connections with one client id the one that connected later stays, even if the earlier one is
decided last.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from broker.auth import METHODS
from broker.auth.cache import Cache
from broker.auth.contract import Method, MethodError
from broker.auth.pool import Submit, at_once
from broker.config.bridges import LOCAL_IDS
from pyx.core import counters as count
from pyx.protocol.codec import encode_auth
from pyx.protocol.reasons import ReasonCode

if TYPE_CHECKING:
    from broker.auth.chain import Chain
    from broker.context.context import Context
    from pyx.delivery.connection import Connection
    from pyx.protocol.packets import Auth, Connect

__all__ = ["Authenticating", "ConnectAttempt"]

_OPENING = 0
_OPEN = 2


class ConnectAttempt:
    """A connection whose CONNECT is valid, and whose client is not authenticated yet."""

    __slots__ = ("assigned", "check", "client_id", "conn", "epoch", "number", "packet")

    def __init__(self, conn: Connection, packet: Connect, client_id: str, assigned: bool) -> None:
        self.conn = conn
        self.packet = packet
        self.client_id = client_id
        self.assigned = assigned
        """Whether the broker has assigned the client id."""
        self.number = 0
        """Sequence number of its CONNECT in this worker: higher is newer."""
        self.check: _Check | None = None
        self.epoch = 0
        """Of this host's ownership of the client id (`broker.worker.owning`)."""


class _Check:
    """A password being hashed, and the connections that wait for it."""

    __slots__ = ("attempts", "backend", "cancel", "digest", "password", "username")

    def __init__(self, digest: bytes, username: str, password: bytes, backend: Chain) -> None:
        self.digest = digest
        self.username = username
        self.password = password
        self.backend = backend
        self.attempts: dict[Connection, ConnectAttempt] = {}
        self.cancel: Callable[[], None] = lambda: None


class _Exchange:
    """State of a connection that uses an Authentication Method."""

    __slots__ = ("attempt", "backend", "method", "name", "username")

    def __init__(self, name: str, attempt: ConnectAttempt) -> None:
        self.name = name
        self.method: Method | None = None
        """The authentication in progress."""
        self.backend: Chain | None = None
        """The back-ends in which `method` looks up users."""
        self.attempt: ConnectAttempt | None = attempt
        """Set until the CONNACK."""
        self.username = ""
        """The authenticated user, once known."""


class ConnectionOpener(Protocol):
    """The interface that takes authenticated clients (`broker.clients.connecting`)."""

    def open(self, attempt: ConnectAttempt, username: str | None, authentication: dict[str, Any]) -> None:
        """Open the connection. `authentication`: properties of the CONNACK."""


class ConnectionCloser(Protocol):
    """The interface that ends connections (`broker.clients.closing`)."""

    def refuse(self, conn: Connection, reason: int, why: str, **fields: Any) -> None:
        """Send CONNACK with this reason, and close. `fields` are added to the log line."""

    def unavailable(self, conn: Connection, why: str) -> None:
        """Refuse because authentication is impossible at present: CONNACK 0x88 (v3: 3)."""

    def give_up(self, conn: Connection, why: str) -> None:
        """Close without sending anything."""

    def protocol_error_reason(self, conn: Connection, reason: int, why: str) -> None:
        """Close because the client has broken the protocol."""

    def end_connection(self, conn: Connection, reason: int, why: str) -> None:
        """Close an open connection."""


class Authenticating:
    """Decides about authentication. `submit` computes hashes: in place, until the worker sets a pool's."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._row = context.counters
        self.opener: ConnectionOpener
        self.closer: ConnectionCloser
        """Both are set once, by the code that passes CONNECTs here."""
        self._cache = Cache()
        self._numbers = itertools.count(1)
        self._undecided: dict[Connection, ConnectAttempt] = {}
        self._by_client: dict[str, list[ConnectAttempt]] = {}
        self._checks: dict[bytes, _Check] = {}
        self._waiting = 0
        self._exchanges: dict[Connection, _Exchange] = {}
        self._trusted: set[Connection] = set()
        """Connections of bridges, before their CONNECT."""
        self.submit: Submit = at_once
        self._anonymous_allowed = context.settings.anonymous_allowed

    @property
    def pending(self) -> int:
        """Return the number of connections that wait for a hash or for the client's AUTH."""
        return len(self._undecided)

    def reload(self) -> None:
        """Use the present settings and forget cached results: the password file was read again."""
        self._anonymous_allowed = self._context.settings.anonymous_allowed
        self._cache.clear()

    def forget(self, conn: Connection) -> None:
        """Remove a connection that ends. A hash that no connection waits for any more is not computed."""
        if self._exchanges:
            self._exchanges.pop(conn, None)
        if self._trusted:
            self._trusted.discard(conn)
        attempt = self._undecided.get(conn) if self._undecided else None
        if attempt is not None:
            check = attempt.check
            self._decided(attempt)
            if check is not None and not check.attempts and self._checks.pop(check.digest, None) is not None:
                check.cancel()

    # ------------------------------------------------------------ CONNECT

    def begin(self, attempt: ConnectAttempt) -> None:
        """Decide about a CONNECT, now or later."""
        packet, backend = attempt.packet, self._context.settings.credentials
        attempt.number = next(self._numbers)
        if attempt.conn in self._trusted or attempt.client_id.startswith(LOCAL_IDS):
            self._begin_bridge(attempt)
        elif "authentication_method" in packet.properties:
            self._begin_exchange(attempt, backend)
        elif packet.username is None or backend is None:
            if self._anonymous_allowed:
                self._accept(attempt, packet.username)
            else:
                self._reject(attempt, ReasonCode.NOT_AUTHORIZED, "anonymous clients are not allowed")
        elif packet.password is None:
            self._reject(attempt, ReasonCode.BAD_USER_NAME_OR_PASSWORD, "no password")
        else:
            self._check_password(attempt, packet.username, packet.password, backend)

    def trust(self, conn: Connection) -> None:
        """Accept the next CONNECT of a connection: it is a bridge's of this worker."""
        self._trusted.add(conn)

    def _begin_bridge(self, attempt: ConnectAttempt) -> None:
        if attempt.conn in self._trusted:
            self._trusted.discard(attempt.conn)
            self._accept(attempt, None)
        else:
            why = f"only bridges have client ids that begin with {LOCAL_IDS}"
            self.closer.refuse(attempt.conn, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, why, client=attempt.client_id)

    def waits(self, conn: Connection) -> bool:
        """Whether the next step of the authentication is ours, not the client's."""
        attempt = self._undecided.get(conn)
        return attempt is not None and attempt.check is not None

    def _accept(
        self, attempt: ConnectAttempt, username: str | None, method: _Exchange | None = None, data: bytes = b""
    ) -> None:
        if self._by_client:
            for other in list(self._by_client.get(attempt.client_id, ())):
                if other.number < attempt.number:  # it has no CONNACK yet, so nothing is sent to it [MQTT-3.2.0-1]
                    self.closer.give_up(other.conn, "a newer connection of this client id was faster")
        properties = {}
        if method is not None:
            properties = {"authentication_method": method.name, "authentication_data": data}
        attempt.conn.authenticating = False
        self.opener.open(attempt, username, properties)

    def _reject(self, attempt: ConnectAttempt, reason: int, why: str, **fields: str) -> None:
        self._row.add(count.AUTHENTICATIONS_FAILED)
        named = {"client": attempt.client_id, "username": attempt.packet.username, **fields}
        self.closer.refuse(attempt.conn, reason, why, **named)

    def _undecide(self, attempt: ConnectAttempt, check: _Check | None = None) -> None:
        self._undecided[attempt.conn] = attempt
        self._by_client.setdefault(attempt.client_id, []).append(attempt)
        if check is not None:
            attempt.check = check
            check.attempts[attempt.conn] = attempt
            self._waiting += 1

    def _decided(self, attempt: ConnectAttempt) -> None:
        del self._undecided[attempt.conn]
        same = self._by_client[attempt.client_id]
        same.remove(attempt)
        if not same:
            del self._by_client[attempt.client_id]
        if attempt.check is not None:
            del attempt.check.attempts[attempt.conn]
            attempt.check = None
            self._waiting -= 1

    # ------------------------------------------------------------ passwords

    def _check_password(self, attempt: ConnectAttempt, username: str, password: bytes, backend: Chain) -> None:
        limits = self._context.limits
        digest = self._cache.digest(username, password)
        if self._cache.has(digest, time.monotonic(), limits.auth_cache_seconds_max):
            self._row.add(count.CREDENTIALS_CACHED)
            self._accept(attempt, username)
            return
        if self._waiting >= limits.auth_pending_max:
            self._row.add(count.AUTHENTICATIONS_REFUSED)
            self.closer.refuse(
                attempt.conn,
                ReasonCode.QUOTA_EXCEEDED,
                "too many passwords wait to be checked",
                client=attempt.client_id,
                username=username,
            )
            return
        check = self._checks.get(digest)
        if check is not None:
            self._undecide(attempt, check)
            return
        check = self._checks[digest] = _Check(digest, username, password, backend)
        self._undecide(attempt, check)
        self._start(check)

    def _start(self, check: _Check) -> None:
        self._row.add(count.CREDENTIALS_HASHED)
        backend, username, password = check.backend, check.username, check.password
        check.cancel = self.submit(lambda: backend.check(username, password), lambda result: self._done(check, result))

    def _done(self, check: _Check, result: bool | Exception) -> None:
        try:
            self._checked(check, result)
        except Exception as error:  # noqa: BLE001  the one door
            for attempt in list(check.attempts.values()):
                self._context.router.state.fail(attempt.conn, error)

    def _checked(self, check: _Check, result: bool | Exception) -> None:
        backend = self._context.settings.credentials
        if backend is not None and backend is not check.backend:  # reloaded meanwhile: the new file decides
            check.backend = backend
            self._start(check)
            return
        del self._checks[check.digest]
        limits = self._context.limits
        if result is True:
            self._cache.put(check.digest, time.monotonic(), limits.auth_cache_entries_max)
        elif result is not False:
            self._row.add(count.INTERNAL_ERRORS)
            self._context.log.error("password_check_failed", username=check.username, reason=repr(result))
        for attempt in list(check.attempts.values()):
            if attempt.conn not in check.attempts:
                continue  # a newer connection of its client id has just been accepted
            self._context.guard(attempt.conn, self._settle, attempt, check.username, result)

    def _settle(self, attempt: ConnectAttempt, username: str, result: bool | Exception) -> None:
        """Accept or reject after its password was checked."""
        self._decided(attempt)
        if result is True:
            self._accept(attempt, username)
            self._context.dispatch.resume(attempt.conn)
        elif result is False:
            self._reject(attempt, ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong user name or password")
        else:
            self.closer.unavailable(attempt.conn, "its password could not be checked")

    # ------------------------------------------------------------ AUTH

    def _begin_exchange(self, attempt: ConnectAttempt, backend: Chain | None) -> None:
        properties = attempt.packet.properties
        name = properties["authentication_method"]
        if backend is None or name not in METHODS:
            self._reject(attempt, ReasonCode.BAD_AUTHENTICATION_METHOD, "no such authentication method")
            return
        self._undecide(attempt)
        exchange = self._exchanges[attempt.conn] = _Exchange(name, attempt)
        self._first_step(attempt.conn, exchange, backend, properties.get("authentication_data"))

    def auth(self, conn: Connection, packet: Auth) -> None:
        """Handle AUTH of a client, before its CONNACK or after."""
        exchange = self._exchanges.get(conn)
        error = self.closer.protocol_error_reason
        if exchange is None:  # [MQTT-4.12.0-7]
            error(conn, ReasonCode.PROTOCOL_ERROR, "AUTH without authentication method")
        elif packet.properties["authentication_method"] != exchange.name:  # [MQTT-4.12.0-5, MQTT-4.12.1-1]
            error(conn, ReasonCode.BAD_AUTHENTICATION_METHOD, "another authentication method than in CONNECT")
        elif packet.reason_code == ReasonCode.RE_AUTHENTICATE:
            if exchange.method is not None:
                error(conn, ReasonCode.PROTOCOL_ERROR, "re-authentication during an authentication")
            elif (backend := self._context.settings.credentials) is None:
                self._fail(conn, exchange, "there are no users any more")
            else:
                self._first_step(conn, exchange, backend, packet.properties.get("authentication_data"))
        elif exchange.method is None:
            error(conn, ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication under way")
        else:
            self._step(conn, exchange, packet.properties.get("authentication_data", b""))

    def _first_step(self, conn: Connection, exchange: _Exchange, backend: Chain, data: bytes | None) -> None:
        exchange.method, exchange.backend = METHODS[exchange.name](backend), backend
        if data is None:  # the server sends the first message; the client's comes in its AUTH
            self._say(conn, exchange, ReasonCode.CONTINUE_AUTHENTICATION, None)
        else:
            self._step(conn, exchange, data)

    def _step(self, conn: Connection, exchange: _Exchange, data: bytes) -> None:
        method = exchange.method
        assert method is not None
        try:
            if len(data) > self._context.limits.auth_data_bytes_max:
                raise MethodError("more than auth_data_bytes_max of Authentication Data")
            answer = method.step(data)
            if exchange.attempt is None and method.username != exchange.username:
                raise MethodError("re-authentication as another user")
            if method.done and self._context.settings.credentials is not exchange.backend:
                raise MethodError("the users were read again meanwhile")
        except MethodError as error:
            self._fail(conn, exchange, str(error))
            return
        if not method.done:
            self._say(conn, exchange, ReasonCode.CONTINUE_AUTHENTICATION, answer)
            return
        exchange.method = exchange.backend = None
        if exchange.attempt is None:
            self._row.add(count.AUTHENTICATIONS_REPEATED)
            self._say(conn, exchange, ReasonCode.SUCCESS, answer)
            return
        attempt, exchange.attempt = exchange.attempt, None
        exchange.username = method.username
        self._decided(attempt)
        self._accept(attempt, method.username, exchange, answer)

    def _say(self, conn: Connection, exchange: _Exchange, reason: int, data: bytes | None) -> None:
        properties: dict[str, str | bytes] = {"authentication_method": exchange.name}
        if data is not None:
            properties["authentication_data"] = data
        packet = encode_auth(reason, properties)
        if len(packet) > conn.packet_bytes_max:  # [MQTT-3.1.2-24]
            self._fail(conn, exchange, "AUTH is larger than the client's Maximum Packet Size")
            return
        self._context.router.state.write(conn, packet)
        if exchange.attempt is not None:
            conn.authenticating = True
            conn.state = _OPENING

    def _fail(self, conn: Connection, exchange: _Exchange, why: str) -> None:
        name = exchange.method.username if exchange.method is not None else exchange.username
        if exchange.attempt is not None:
            reason = ReasonCode.NOT_AUTHORIZED
            self._reject(exchange.attempt, reason, "authentication failed", username=name, detail=why)
            return
        self._row.add(count.AUTHENTICATIONS_FAILED)
        listener = self._context.listener_of(conn)
        self._context.log.info(
            "reauthentication_failed", address=conn.address, listener=listener, username=name, reason=why
        )
        self.closer.end_connection(conn, ReasonCode.NOT_AUTHORIZED, "re-authentication failed")
