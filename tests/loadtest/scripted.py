"""A broker scripted by a test: its answer to each packet is given as bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from tests import wire

Answers = Callable[[str, int, bytes], bytes | None]
"""(kind, number of the connection, the packet after its fixed header) -> bytes to send; None: close the connection."""


class Scripted:
    """A broker that runs for a `with` block, with one thread per connection."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard: list[str] = []
        """Kinds of the packets received on all connections."""
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Scripted:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for one in self._open:
            with suppress(OSError):  # its thread or its client may have closed it
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        self._listener.close()

    def say(self, data: bytes) -> None:
        """Send data on the last connection, without a request for it."""
        self._open[-1].sendall(data)

    def _accept(self) -> None:
        while True:
            try:
                one = self._listener.accept()[0]
            except OSError:
                return  # the test is over
            self._open.append(one)
            self._threads.append(threading.Thread(target=self._serve, args=(one, len(self._open) - 1)))
            self._threads[-1].start()

    def _serve(self, one: socket.socket, number: int) -> None:
        with one, one.makefile("rb") as stream, suppress(ConnectionError):  # a client may close at any moment
            while first := stream.read(1):
                length, shift = 0, 0
                while byte := stream.read(1):
                    length |= (byte[0] & 0x7F) << shift
                    shift += 7
                    if byte[0] < 0x80:
                        break
                body = stream.read(length)
                if not byte or len(body) < length:
                    return  # closed in the middle of a packet
                kind = wire.KINDS[first[0] >> 4]
                self.heard.append(kind)
                answer = self._answers(kind, number, body)
                if answer is None:
                    return
                one.sendall(answer)
