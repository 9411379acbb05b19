"""Layers between MQTT and the socket, without the socket: TLS, WebSocket frames, and frames in TLS.

Bytes in, bytes out: `take` gets bytes from the socket and returns MQTT bytes, `give` gets MQTT bytes, and `outgoing`
returns the bytes to be written then. Bytes given before the handshakes are over wait for them.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final, Protocol

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from loadtest.target import SUBPROTOCOL, Target

_READ_BYTES: Final = 262_144


class Transport(Protocol):
    """A layer. Raises OSError when the other side violates the protocol, or cannot be authenticated."""

    def take(self, data: bytes) -> bytes:
        """Return the MQTT bytes of data from the socket; there may be outgoing bytes afterwards."""

    def give(self, data: bytes) -> None:
        """Send MQTT bytes."""

    def finish(self) -> None:
        """Begin the closing handshake; nothing is given afterwards."""

    def outgoing(self) -> bytes:
        """Return the bytes that the socket must send."""


class Tls:
    """TLS as a client. host: name or address whose certificate is expected."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._waiting = b""
        self._is_open = False
        self._shake_hands()

    def take(self, data: bytes) -> bytes:
        """Implements Transport."""
        self._incoming.write(data)
        parts = []
        try:
            if not self._is_open:
                self._shake_hands()
            while self._is_open and (part := self._tls.read(_READ_BYTES)):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass  # all data was read
        except ssl.SSLCertVerificationError as error:
            raise ConnectionError(f"TLS: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise ConnectionError(f"TLS: {error.reason or error}") from None
        return b"".join(parts)

    def give(self, data: bytes) -> None:
        """Implements Transport."""
        if self._is_open:
            self._tls.write(data)
        else:
            self._waiting += data

    def finish(self) -> None:
        """Implements Transport."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(ssl.SSLWantReadError):  # the other side's closing alert is not waited for
                self._tls.unwrap()

    def outgoing(self) -> bytes:
        """Implements Transport."""
        return self._outgoing.read()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        self._is_open = True
        if self._waiting:
            self._tls.write(self._waiting)
            self._waiting = b""


class WebSocket:
    """A WebSocket as a client, whose binary frames are MQTT bytes, split anywhere [MQTT-6.0.0-1, 2]. url: ws or wss."""

    def __init__(self, url: str) -> None:
        self._frames = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=None)
        self._frames.send_request(self._frames.connect())
        self._waiting = b""

    def take(self, data: bytes) -> bytes:
        """Implements Transport."""
        if data:
            self._frames.receive_data(data)
        parts = []
        for event in self._frames.events_received():
            if isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:
                    raise ConnectionError("WebSocket: a text frame [MQTT-6.0.0-1]")
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    parts.append(event.data)
            elif self._frames.handshake_exc is None and self._frames.subprotocol != SUBPROTOCOL:
                raise ConnectionError(f"WebSocket: the subprotocol {SUBPROTOCOL} was not accepted [MQTT-6.0.0-4]")
        wrong = self._frames.handshake_exc or self._frames.parser_exc
        if wrong is not None:
            raise ConnectionError(f"WebSocket: {wrong}")
        if self._waiting and self._frames.state is State.OPEN:
            self._frames.send_binary(self._waiting)
            self._waiting = b""
        return b"".join(parts)

    def give(self, data: bytes) -> None:
        """Implements Transport."""
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
        elif self._frames.state is State.CONNECTING:
            self._waiting += data

    def finish(self) -> None:
        """Implements Transport."""
        if self._frames.state is State.OPEN:
            self._frames.send_close()

    def outgoing(self) -> bytes:
        """Implements Transport."""
        return b"".join(self._frames.data_to_send())


class Layered:
    """`inner` in `outer`: frames in TLS."""

    def __init__(self, outer: Transport, inner: Transport) -> None:
        self._outer = outer
        self._inner = inner

    def take(self, data: bytes) -> bytes:
        """Implements Transport."""
        return self._inner.take(self._outer.take(data))

    def give(self, data: bytes) -> None:
        """Implements Transport."""
        self._inner.give(data)

    def finish(self) -> None:
        """Implements Transport."""
        self._inner.finish()
        self._pass_on()
        self._outer.finish()

    def outgoing(self) -> bytes:
        """Implements Transport."""
        self._pass_on()
        return self._outer.outgoing()

    def _pass_on(self) -> None:
        data = self._inner.outgoing()
        if data:
            self._outer.give(data)


def transport(target: Target, context: ssl.SSLContext | None) -> Transport | None:
    """Return the layers for one connection. context: `target.tls()`, shared by all; None: mqtt:// needs none."""
    if context is None:
        return WebSocket(target.url) if target.is_websocket else None
    tls = Tls(context, target.host)
    return Layered(tls, WebSocket(target.url)) if target.is_websocket else tls
