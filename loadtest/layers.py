"""TLS and WebSocket without sockets: bytes of the network in, bytes of the layer above out, and the other way.

Layers stand upon each other (`stack`): a WebSocket upon TLS is two. What is sent before a layer is open waits in it.
"""

from __future__ import annotations

import ssl
from typing import Protocol

from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from loadtest.target import SUBPROTOCOL, Target


class LayerFailed(Exception):
    """The peer, or we, cannot go on: one line that says why."""


class Layer(Protocol):
    """What stands between MQTT and the socket."""

    is_open: bool

    def begin(self) -> None:
        """The layer below is open."""

    def send(self, data: bytes | bytearray) -> None:
        """From above."""

    def receive(self, data: bytes) -> bytes:
        """From below; returns what is for above. LayerFailed."""

    def take_output(self) -> bytes:
        """For below."""


class Tls:
    """TLS as a client; the broker's certificate must be for `server_name`."""

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self.is_open = False
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=server_name)
        self._waiting = bytearray()

    def begin(self) -> None:
        """Say ClientHello."""
        self.receive(b"")

    def send(self, data: bytes | bytearray) -> None:
        """Encrypt, or keep until the handshake is done."""
        if self.is_open:
            self._tls.write(data)
        else:
            self._waiting += data

    def receive(self, data: bytes) -> bytes:
        """Go on with the handshake, then decrypt."""
        self._in.write(data)
        parts = []
        try:
            if not self.is_open:
                self._tls.do_handshake()
                self.is_open = True
                if self._waiting:
                    self._tls.write(self._waiting)
                    self._waiting = bytearray()
            while part := self._tls.read(65_536):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            raise LayerFailed(f"TLS: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise LayerFailed(f"TLS: {error.reason or error}") from None
        return b"".join(parts)

    def take_output(self) -> bytes:
        """What is encrypted."""
        return self._out.read()


class WebSocket:
    """A WebSocket of subprotocol "mqtt", binary frames alone [MQTT-6.0.0-1 to -4]."""

    def __init__(self, url: str) -> None:
        self.is_open = False
        self._protocol = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=None)
        self._waiting = bytearray()

    def begin(self) -> None:
        """Ask for the upgrade."""
        self._protocol.send_request(self._protocol.connect())

    def send(self, data: bytes | bytearray) -> None:
        """One frame, or keep it until the upgrade is done."""
        if self.is_open:
            self._protocol.send_binary(bytes(data))
        else:
            self._waiting += data

    def receive(self, data: bytes) -> bytes:
        """The content of binary frames."""
        self._protocol.receive_data(data)
        parts = [self._content(event) for event in self._protocol.events_received()]
        failed = self._protocol.handshake_exc or self._protocol.parser_exc
        if failed is not None:
            raise LayerFailed(f"WebSocket: {failed}")
        if not self.is_open and self._protocol.state is State.OPEN:
            if self._protocol.subprotocol != SUBPROTOCOL:
                raise LayerFailed("WebSocket: the broker does not speak subprotocol mqtt")
            self.is_open = True
            if self._waiting:
                self._protocol.send_binary(bytes(self._waiting))
                self._waiting = bytearray()
        return b"".join(parts)

    def _content(self, event: Frame | Response | object) -> bytes:
        if not isinstance(event, Frame):
            return b""
        if event.opcode is Opcode.TEXT:
            raise LayerFailed("WebSocket: a text frame [MQTT-6.0.0-1]")
        return bytes(event.data) if event.opcode in (Opcode.BINARY, Opcode.CONT) else b""

    def take_output(self) -> bytes:
        """Frames, and answers to pings."""
        return b"".join(self._protocol.data_to_send())


def stack(target: Target, context: ssl.SSLContext | None) -> list[Layer]:
    """The layers to a target, the lowest first. context: as `target.tls()` made it, for mqtts and wss."""
    layers: list[Layer] = []
    try:
        if context is not None:
            layers.append(Tls(context, target.host))
        if target.is_websocket:
            layers.append(WebSocket(target.url))
    except WebSocketException as error:
        raise LayerFailed(f"{target.url}: {error}") from None
    return layers
