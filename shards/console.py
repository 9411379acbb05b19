"""The supervisor's control socket: requests to workers, and their answers, one JSON object per line.

    -> {"worker": I, "ask": {...}}
    <- {"worker": I, "answer": {...}}    or {"worker": I, "error": "..."}

A unix socket in the runtime directory, accessible to its owner only (0600). `broker.json`, in the data directory and in
the runtime directory, has its path. Workers interpret the requests (`broker.worker.administration`); here they are
forwarded (`shards.worker_requests`), one request of a client at a time. A client that does not read its answers, or
sends an invalid request, is disconnected.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shards.worker_channel import Message
from shards.worker_requests import WorkerRequests

__all__ = ["REQUEST_BYTES_MAX", "BrokerFile", "Console"]

ANSWER_BYTES_MAX = 65536
REQUEST_BYTES_MAX = 512 << 10
"""A request may have a client id of 65,535 bytes, which JSON makes six times as long."""

_READ_BYTES = 65536
_CLIENTS_MAX = 16
_WORKERS_MAX = 256
_NAME = "console"
_FILE = "broker.json"


class BrokerFile:
    """The file `broker.json` in a directory, which exists as long as the broker runs."""

    def __init__(self, directory: str, console: str, workers: int, cluster: Message | None = None) -> None:
        """Write it. cluster: what others are to know of the host's cluster.

        Raises OSError; a file of a killed broker is removed then, too, because its sockets are gone.
        """
        self._path = Path(directory, _FILE)
        self.remove()
        part = self._path.with_suffix(".part")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                said = {"pid": os.getpid(), "control": console, "workers": workers}
                file.write(json.dumps(said if cluster is None else {**said, "cluster": cluster}) + "\n")
        except OSError:
            part.unlink()
            raise
        part.rename(self._path)

    def remove(self) -> None:
        """Remove the file when the broker has ended."""
        self._path.unlink(missing_ok=True)

    @staticmethod
    def read(directory: str) -> Message:
        """Read the file of a broker, which may have been killed. OSError, ValueError: there is none."""
        found: Message = json.loads(Path(directory, _FILE).read_text())
        return found


@dataclass(slots=True)
class _Client:
    socket: socket.socket
    unread: bytes = b""
    number: int | None = None
    """Number of the request in progress; None: none."""


class Console:
    """The listening socket and its clients."""

    def __init__(self, runtime_dir: str) -> None:
        """Open the socket. Raises OSError."""
        self.path = os.path.join(runtime_dir, _NAME)
        self.requests = WorkerRequests(lambda _worker, _message: False)
        """Forwards clients' requests; set by the code that can reach workers."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        mask = os.umask(0o177)
        try:
            self._listener.bind(self.path)
        finally:
            os.umask(mask)
        self._listener.listen(_CLIENTS_MAX)
        self._clients: dict[int, _Client] = {}

    def sockets(self) -> list[socket.socket]:
        """Return the sockets to watch for reading."""
        return [self._listener, *(client.socket for client in self._clients.values())]

    def readable(self, descriptor: int) -> None:
        """Handle one that is readable."""
        client = self._clients.get(descriptor)
        if client is not None:
            self._read(client)
        elif descriptor == self._listener.fileno():
            with contextlib.suppress(OSError):  # the client has already gone
                accepted, _ = self._listener.accept()
                accepted.setblocking(False)
                if len(self._clients) >= _CLIENTS_MAX:
                    accepted.close()
                else:
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * ANSWER_BYTES_MAX)
                    self._clients[accepted.fileno()] = _Client(accepted)

    def close(self) -> None:
        """Close all sockets; in a forked child its copies of them."""
        for each in self.sockets():
            each.close()
        self._clients.clear()

    def _read(self, client: _Client) -> None:
        try:
            data = client.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.unread += data
        if not data or len(client.unread) > REQUEST_BYTES_MAX:
            self._drop(client)
            return
        self._next(client)

    def _next(self, client: _Client) -> None:
        if client.number is not None or b"\n" not in client.unread:
            return
        line, _, client.unread = client.unread.partition(b"\n")
        asked = _asked(line)
        if asked is None:
            self._drop(client)
        else:
            client.number = self.requests.ask(*asked, partial(self._say, client))

    def _say(self, client: _Client, message: Message) -> None:
        client.number = None
        line = json.dumps(message).encode() + b"\n"
        try:
            sent = client.socket.send(line)
        except OSError:
            sent = 0
        if sent < len(line):
            self._drop(client)
        else:
            self._next(client)

    def _drop(self, client: _Client) -> None:
        if client.number is not None:
            self.requests.forget(client.number)
        self._clients.pop(client.socket.fileno(), None)
        client.socket.close()


def _asked(line: bytes) -> tuple[int, dict[str, Any]] | None:
    """Return the worker and the request, an object without nested objects. None: invalid."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match said:
        case {"worker": int(worker), "ask": dict(ask)} if 0 <= worker < _WORKERS_MAX:
            return None if any(isinstance(each, dict | list) for each in ask.values()) else (worker, ask)
    return None
