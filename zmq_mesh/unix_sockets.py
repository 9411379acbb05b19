"""The transport inside a host: a unix stream socket to each sibling, in the reactor's own poller (`pyx.mesh.sockets`).

A batch costs one system call on each side, and wakes no thread beside the sibling's own. What is sent in a round leaves
at its end, mostly in one write.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from pyx.core.peer import Peer
from pyx.mesh.connection import ReceiveBuffer
from pyx.mesh.contract import Watcher
from pyx.mesh.receiver import Receiver
from pyx.mesh.sockets import SOCKET_PATH_BYTES_MAX, Pull, Push
from zmq_mesh.contract import Outlet

__all__ = ["UnixSockets", "path_of"]


def path_of(runtime_dir: str, worker: int) -> str:
    """Return the path where that worker listens. ValueError when it is too long for a unix socket."""
    path = os.path.join(runtime_dir, f"mesh.{worker}")
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"{path}: longer than {SOCKET_PATH_BYTES_MAX} bytes, choose a shorter --runtime-dir")
    return path


class UnixSockets:
    """Implements `zmq_mesh.contract.Transport`. `runtime_dir` holds the sockets `mesh.<i>`."""

    is_immediate = True

    def __init__(self, own: Peer, runtime_dir: str, watcher: Watcher) -> None:
        self._own = own
        self._runtime_dir = runtime_dir
        self._watcher = watcher
        self._buffer = ReceiveBuffer()
        self._pushes: list[Push] = []
        self._pull: Pull | None = None

    def listen(self, receiver: Receiver) -> None:
        """Implements Transport."""
        path = path_of(self._runtime_dir, self._own)
        self._pull = Pull(path, self._watcher, receiver, self._buffer)

    def connect(self, peer: Peer, when_writable: Callable[[], object]) -> Outlet:
        """Implements Transport."""
        push = Push(path_of(self._runtime_dir, peer), self._watcher, when_writable, self._buffer)
        self._pushes.append(push)
        return Outlet(push, push.reconnect, None)

    @property
    def malformed(self) -> int:
        """Implements Transport."""
        return self._pull.malformed if self._pull is not None else 0

    def receive(self) -> bool:
        """Implements Transport."""
        for push in self._pushes:
            push.receive()
        return self._pull is not None and self._pull.receive() and len(self._pull) == len(self._pushes)

    def go_on(self) -> None:
        """Implements Transport."""
        if self._pull is not None:
            self._pull.go_on()

    def tick(self) -> None:
        """Implements Transport."""
        now_ms = time.monotonic_ns() // 1_000_000
        for push in self._pushes:
            push.tick(now_ms)
        if self._pull is not None:
            self._pull.tick(now_ms)

    def close(self) -> None:
        """Implements Transport."""
        for push in self._pushes:
            push.close()
        if self._pull is not None:
            self._pull.close()
