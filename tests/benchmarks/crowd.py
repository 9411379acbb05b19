"""Many subscribers in one thread, on raw sockets: they read everything or nothing, unlike those of mqload."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Self

from tests import wire

_WAVE = 100
_READ_BYTES = 256 * 1024
_SAMPLE_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0


class Crowd:
    """Subscribed connections. `filters(i)`: those of connection i, with their QoS."""

    def __init__(
        self,
        port: int,
        count: int,
        name: str,
        filters: Callable[[int], Sequence[tuple[str, int]]],
        receive_buffer: int = 0,
    ) -> None:
        self.sockets: list[socket.socket] = []
        self._buffer = memoryview(bytearray(_READ_BYTES))
        for first in range(0, count, _WAVE):
            wave = range(first, min(first + _WAVE, count))
            for i in wave:
                self.sockets.append(_dial(port, receive_buffer))
                self.sockets[i].sendall(wire.connect(4, f"{name}{i}") + _subscribe(filters(i)))
            for i in wave:
                self._await_answers(i, filters(i))

    def _await_answers(self, i: int, filters: Sequence[tuple[str, int]]) -> None:
        size = 4 + (len(_suback(filters)) if filters else 0)
        got = _receive(self.sockets[i], size)
        if got[:4] != b"\x20\x02\x00\x00" or len(got) != size:
            raise RuntimeError(f"connection {i}: CONNACK and SUBACK expected, {got[:20]!r} of {size} bytes came")

    def __len__(self) -> int:
        return len(self.sockets)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.sockets:
            each.close()

    def read(self, bytes_each: int, sample: Callable[[], None] = lambda: None) -> None:
        """Read this many bytes from every connection; call `sample` every 50 ms meanwhile."""
        missing = {each.fileno(): bytes_each for each in self.sockets}
        sockets = {each.fileno(): each for each in self.sockets}
        poll = select.epoll()
        for number in missing:
            poll.register(number, select.EPOLLIN)
        began = sampled = time.monotonic()
        while missing:
            for number, _ in poll.poll(_SAMPLE_SECONDS, 256):
                missing[number] -= sockets[number].recv_into(self._buffer[: min(_READ_BYTES, missing[number])])
                if not missing[number]:
                    poll.unregister(number)
                    del missing[number]
            now = time.monotonic()
            if now - sampled >= _SAMPLE_SECONDS:
                sampled = now
                sample()
            if now - began > _PATIENCE_SECONDS:
                raise TimeoutError(f"{len(missing)} of {len(self)} connections did not get their {bytes_each} bytes")
        poll.close()


class Publisher:
    """A connection that publishes at QoS 0 and can wait until the broker has handled its messages."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = _dial(port, 0)
        self._socket.sendall(wire.connect(4, name))
        assert _receive(self._socket, 4) == b"\x20\x02\x00\x00"

    def publish(self, topic: str, payload: bytes) -> None:
        """Send one message."""
        self._socket.sendall(wire.publish(4, topic, payload))

    def handled(self) -> None:
        """Return when the broker has read everything."""
        self._socket.sendall(wire.PINGREQ)
        assert _receive(self._socket, 2) == b"\xd0\x00"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _dial(port: int, receive_buffer: int) -> socket.socket:
    dialled = socket.socket()
    if receive_buffer:
        dialled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    dialled.settimeout(_PATIENCE_SECONDS)
    dialled.connect(("127.0.0.1", port))
    return dialled


def _receive(source: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size and (more := source.recv(size - len(got))):
        got += more
    return got


def _subscribe(filters: Sequence[tuple[str, int]]) -> bytes:
    return wire.subscribe(4, 1, *filters) if filters else b""


def _suback(filters: Sequence[tuple[str, int]]) -> bytes:
    return wire.packet("SUBACK", 0, b"\x00\x01", bytes(len(filters)))
