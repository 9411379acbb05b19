"""One connection to a broker on gevent's hub: TCP, optionally with TLS or a WebSocket.

No greenlet reads: the hub calls back when bytes have arrived, and they are processed there. So thousands of connections
cost a watcher each, and callbacks must not block.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

import gevent
from gevent import monkey

from loadtest.target import Target
from loadtest.transport import Transport, transport

READ_BYTES: Final = 65_536
_READ, _WRITE = 1, 2


class Connection:
    """A connection, which begins to connect when it is made. OSError: it cannot even begin.

    received: called with MQTT bytes. written: called when all output was sent. ended: called with this, and the reason,
    unless `close` was first; `received` and `ended` are called by the hub. number: of the client, selects its source
    address.
    """

    def __init__(
        self,
        target: Target,
        context: ssl.SSLContext | None,
        number: int,
        *,
        received: Callable[[bytes], None],
        written: Callable[[], None],
        ended: Callable[[Connection, str], None],
    ) -> None:
        self._received, self._written, self._ended = received, written, ended
        self._transport = transport(target, context)
        self._unsent = bytearray()
        self._is_connected = self._is_closed = False
        descriptor = target.dial(number)
        # the kernel's own class, also where locust has replaced it: the hub waits, never the socket
        self._socket: socket.socket = monkey.get_original("socket", "socket")(fileno=descriptor)
        self._hub = gevent.get_hub()
        self._reader = self._hub.loop.io(descriptor, _READ)
        self._writer = self._hub.loop.io(descriptor, _WRITE)
        self._writer.start(self._connected)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return len(self._unsent)

    def send(self, data: bytes | bytearray) -> None:
        """Send, now or as soon as it is connected and the socket has room."""
        if self._is_closed:
            return
        if self._transport is not None:
            self._transport.give(bytes(data))
            self._unsent += self._transport.outgoing()
        elif self._unsent:
            self._unsent += data
        else:
            self._unsent = data if isinstance(data, bytearray) else bytearray(data)
        self._flush()

    def finish(self) -> None:
        """Close it, with the closing handshake of TLS or WebSocket."""
        if self._transport is not None and not self._is_closed:
            self._transport.finish()
            self._unsent += self._transport.outgoing()
            self._flush()
        self.close()

    def close(self) -> None:
        """Close it without a closing handshake."""
        if self._is_closed:
            return
        self._is_closed = True
        for watcher in (self._reader, self._writer):
            watcher.stop()
            watcher.close()
        self._socket.close()

    def pause(self) -> None:
        """Stop reading: further data waits, in the end at the broker."""
        self._reader.stop()

    def resume(self) -> None:
        """Read again."""
        if self._is_connected and not self._is_closed and not self._reader.active:
            self._reader.start(self._readable)

    # ---------------------------------------------------------------- called by the hub

    def _connected(self) -> None:
        failed = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            self._end(os.strerror(failed))
            return
        self._is_connected = True
        self._writer.stop()
        self._reader.start(self._readable)
        if self._transport is not None:
            self._unsent += self._transport.outgoing()
        self._flush()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
            if not data:
                self._end("closed by the broker")
                return
            if self._transport is not None:
                data = self._taken(self._transport, data)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if data:
            self._received(data)

    def _taken(self, transport: Transport, data: bytes) -> bytes:
        # returns MQTT bytes; answers of the transport, such as an alert, are sent also when it raises
        try:
            return transport.take(data)
        finally:
            self._unsent += transport.outgoing()
            self._flush()

    def _flush(self) -> None:
        if self._is_closed or not self._is_connected:
            return
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                if not self._writer.active:
                    self._writer.start(self._flush)
                return
            except OSError as error:
                self._end(error.strerror or str(error))
                return
            if sent == len(self._unsent):
                self._unsent = bytearray()
            else:
                del self._unsent[:sent]
        self._writer.stop()
        self._written()

    def _end(self, why: str) -> None:
        if not self._is_closed:
            self.close()
            self._hub.loop.run_callback(self._ended, self, why)
