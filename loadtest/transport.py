"""What lies between MQTT and the socket, without the socket: TLS, WebSocket frames, and these in that.

Bytes in, bytes out: `take` gets what the socket received and gives MQTT's bytes, `give` gets MQTT's bytes, and what is
to be written then is `outgoing`. What is given before the handshakes are over waits for them.
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
    """Raises OSError when the other side does not keep to it, or is not who it should be."""

    def take(self, data: bytes) -> bytes:
        """MQTT's bytes of what the socket received; there may be something outgoing afterwards."""

    def give(self, data: bytes) -> None:
        """MQTT's bytes, to be sent."""

    def finish(self) -> None:
        """Say goodbye; nothing is given afterwards."""

    def outgoing(self) -> bytes:
        """What the socket is to send."""


class Tls:
    """TLS as a client. host: whose certificate is expected; a name or an address."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._waiting = b""
        self._is_open = False
        self._shake_hands()

    def take(self, data: bytes) -> bytes:
        """See Transport."""
        self._incoming.write(data)
        parts = []
        try:
            if not self._is_open:
                self._shake_hands()
            while self._is_open and (part := self._tls.read(_READ_BYTES)):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass  # that was all
        except ssl.SSLCertVerificationError as error:
            raise ConnectionError(f"TLS: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise ConnectionError(f"TLS: {error.reason or error}") from None
        return b"".join(parts)

    def give(self, data: bytes) -> None:
        """See Transport."""
        if self._is_open:
            self._tls.write(data)
        else:
            self._waiting += data

    def finish(self) -> None:
        """See Transport."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(ssl.SSLWantReadError):  # nobody waits for the other's goodbye
                self._tls.unwrap()

    def outgoing(self) -> bytes:
        """See Transport."""
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
    """A WebSocket as a client, whose binary frames are MQTT's bytes, cut anywhere [MQTT-6.0.0-1, 2]. url: ws or wss."""

    def __init__(self, url: str) -> None:
        self._frames = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=None)
        self._frames.send_request(self._frames.connect())
        self._waiting = b""

    def take(self, data: bytes) -> bytes:
        """See Transport."""
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
        """See Transport."""
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
        elif self._frames.state is State.CONNECTING:
            self._waiting += data

    def finish(self) -> None:
        """See Transport."""
        if self._frames.state is State.OPEN:
            self._frames.send_close()

    def outgoing(self) -> bytes:
        """See Transport."""
        return b"".join(self._frames.data_to_send())


class Layered:
    """`inner` in `outer`: frames in TLS."""

    def __init__(self, outer: Transport, inner: Transport) -> None:
        self._outer = outer
        self._inner = inner

    def take(self, data: bytes) -> bytes:
        """See Transport."""
        return self._inner.take(self._outer.take(data))

    def give(self, data: bytes) -> None:
        """See Transport."""
        self._inner.give(data)

    def finish(self) -> None:
        """See Transport."""
        self._inner.finish()
        self._pass_on()
        self._outer.finish()

    def outgoing(self) -> bytes:
        """See Transport."""
        self._pass_on()
        return self._outer.outgoing()

    def _pass_on(self) -> None:
        data = self._inner.outgoing()
        if data:
            self._outer.give(data)


def transport(target: Target, context: ssl.SSLContext | None) -> Transport | None:
    """For one connection. context: `target.tls()`, shared by all; None: mqtt:// needs nothing between."""
    if context is None:
        return WebSocket(target.url) if target.is_websocket else None
    tls = Tls(context, target.host)
    return Layered(tls, WebSocket(target.url)) if target.is_websocket else tls
