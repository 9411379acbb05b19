"""A TCP relay on 127.0.0.1 that cuts its connections when a test says so."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

__all__ = ["CutConnections"]


class CutConnections:
    """Relays connections to `address` for a `with` block."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._wakes, self._woken = socket.socketpair()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._left: int | None = None
        """Bytes that are relayed before all connections are cut; None: they are not."""
        self._ends = False
        self._thread = threading.Thread(target=self._run)

    def cut(self, after_bytes: int = 0) -> None:
        """Cut all connections, after so many more bytes, in whichever direction."""
        self._left = after_bytes
        self._wakes.send(b"w")

    def __enter__(self) -> CutConnections:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._wakes.send(b"w")
        self._thread.join()
        for each in (self._listening, self._wakes, self._woken):
            each.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready:
            for each in (self._listening, self._woken):
                ready.register(each, selectors.EVENT_READ)
            while not self._ends:
                for key, _ in ready.select():
                    if key.fileobj is self._listening:
                        self._accept(ready)
                    elif key.fileobj is self._woken:
                        self._woken.recv(100)
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._pairs:
                        self._relay(ready, key.fileobj)
                if self._left == 0:
                    self._left = None
                    self._close(ready, *list(self._pairs))
            self._close(ready, *list(self._pairs))

    def _accept(self, ready: selectors.BaseSelector) -> None:
        came, _ = self._listening.accept()
        try:
            there = socket.create_connection(self._address, 10)
        except OSError:
            came.close()
            return
        for one, other in ((came, there), (there, came)):
            self._pairs[one] = other
            ready.register(one, selectors.EVENT_READ)

    def _relay(self, ready: selectors.BaseSelector, one: socket.socket) -> None:
        other = self._pairs[one]
        most = 65536 if self._left is None else self._left
        try:
            data = one.recv(most)
            other.sendall(data)
        except OSError:
            data = b""
        if self._left is not None:
            self._left -= len(data)
        if not data:
            self._close(ready, one)

    def _close(self, ready: selectors.BaseSelector, *sockets: socket.socket) -> None:
        for each in sockets:
            other = self._pairs.pop(each, None)
            if other is not None:
                del self._pairs[other]
                for closed in (each, other):
                    ready.unregister(closed)
                    with contextlib.suppress(OSError):
                        closed.close()
