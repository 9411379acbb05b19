"""A broker with planted faults: forwarded messages pass a function that may drop, delay, duplicate or damage them."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from tests import wire

Fault = Callable[[int, bytes], list[bytes]]
"""(number of messages before this one, its payload) -> payloads to deliver in its place."""


class Stub:
    """Handles CONNECT, SUBSCRIBE, PUBLISH at QoS 0 and 1, and DISCONNECT; sends all subscribers everything at QoS 0."""

    def __init__(
        self,
        fault: Fault = lambda _, payload: [payload],
        *,
        connack: int = 0,
        suback: int = 0,
        forgets_acks: bool = False,
        is_early: bool = False,
    ) -> None:
        self._fault = fault
        self._connack = connack
        self._suback = suback
        self._forgets_acks = forgets_acks
        self._is_early = is_early
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._stop, self._stopped = socket.socketpair()
        self._parts: dict[socket.socket, bytes] = {}
        self._subscribers: list[socket.socket] = []
        self._count = 0
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Stub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.close()
        self._thread.join()
        for each in [*self._parts, self._listener, self._stopped]:
            each.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    if one is self._stopped:
                        return
                    if one is self._listener:
                        accepted = one.accept()[0]
                        self._parts[accepted] = b""
                        selector.register(accepted, selectors.EVENT_READ)
                        continue
                    try:
                        data = one.recv(65_536)
                    except ConnectionError:  # a client may close with data unread
                        data = b""
                    if not data:
                        selector.unregister(one)
                        if one in self._subscribers:
                            self._subscribers.remove(one)
                        del self._parts[one]
                        one.close()
                        continue
                    for first, body in self._packets(one, data):
                        self._packet(one, first, body)

    def _packets(self, one: socket.socket, data: bytes) -> Iterator[tuple[int, bytes]]:
        # (first byte, bytes after the Remaining Length) of each complete packet
        self._parts[one] += data
        while True:
            part = self._parts[one]
            length, at = 0, 1
            while at < len(part):
                length |= (part[at] & 0x7F) << 7 * (at - 1)
                at += 1
                if part[at - 1] < 0x80:
                    break
            else:
                return
            if len(part) < at + length:
                return
            self._parts[one] = part[at + length :]
            yield part[0], part[at : at + length]

    def _send(self, one: socket.socket, data: bytes) -> None:
        with suppress(ConnectionError):  # closed by the client: the next recv says so as well
            one.sendall(data)

    def _packet(self, one: socket.socket, first: int, body: bytes) -> None:
        kind = wire.KINDS[first >> 4]
        if kind == "CONNECT":
            self._send(one, bytes((0x20, 2, 0, self._connack)))
        elif kind == "SUBSCRIBE":
            if self._suback < 0x80:
                self._subscribers.append(one)
            if self._is_early:
                self._send(one, wire.publish(4, "t/0", b"of somebody else"))
            self._send(one, b"\x90\x03" + body[:2] + bytes((self._suback,)))
        elif kind == "PUBLISH":
            end = 2 + int.from_bytes(body[:2], "big")
            topic, rest = body[2:end].decode(), body[end:]
            if first & 0x06:
                if not self._forgets_acks:
                    self._send(one, b"\x40\x02" + rest[:2])
                rest = rest[2:]
            for payload in self._fault(self._count, rest):
                for subscriber in self._subscribers:
                    self._send(subscriber, wire.publish(4, topic, payload))
            self._count += 1
