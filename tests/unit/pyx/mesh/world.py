"""A small world for the sockets of the mesh: a watcher of descriptors with its own rounds, and a Pull that keeps what
it hears.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path

from pyx.mesh.connection import ReceiveBuffer
from pyx.mesh.sockets import Pull, Push

SECONDS = 30.0


class Rounds:
    """The part of the reactor that the mesh's sockets use, over poll(2)."""

    def __init__(self) -> None:
        self.poller = select.poll()
        self.watchers: dict[int, Callable[[], object]] = {}
        self.buffer = ReceiveBuffer()
        self.opened: list[Pull | Push] = []
        """To be closed at the end."""

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        self.watchers[fd] = callback
        self.poller.register(fd, select.POLLIN)

    def watch_output(self, fd: int, on: bool) -> None:
        self.poller.modify(fd, select.POLLIN | select.POLLOUT if on else select.POLLIN)

    def unwatch(self, fd: int) -> None:
        del self.watchers[fd]
        self.poller.unregister(fd)

    def push(self, path: Path, when_writable: Callable[[], object] = lambda: None) -> Push:
        made = Push(str(path), self, when_writable, self.buffer)
        self.opened.append(made)
        return made

    def close(self) -> None:
        for each in self.opened:
            each.close()
        assert not self.watchers

    def once(self, milliseconds: float = 0) -> bool:
        """Run one round; return whether anything was ready."""
        found = self.poller.poll(milliseconds)
        for fd, _ in found:
            callback = self.watchers.get(fd)
            if callback is not None:
                callback()
        return bool(found)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Run rounds until the condition is true; fail after SECONDS."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
            self.once(10)

    def settle(self) -> None:
        """Run rounds until nothing is ready."""
        while self.once():
            pass


class Heard:
    """A Pull, and all messages that it has passed on."""

    def __init__(self, rounds: Rounds, path: Path) -> None:
        self.messages: list[list[bytes]] = []
        self.most: int | None = None
        """Messages taken until the Pull must be asked to go on; None: all."""
        self.pull = Pull(str(path), rounds, self._hear, rounds.buffer)
        rounds.opened.append(self.pull)

    def _hear(self, frames: list[bytes]) -> bool:
        self.messages.append(frames)
        return self.most is not None and len(self.messages) >= self.most


def connected(rounds: Rounds, path: Path, when_writable: Callable[[], object] = lambda: None) -> Push:
    """Return a Push whose peer has greeted."""
    push = rounds.push(path, when_writable)
    rounds.until(lambda: push.is_connected, "the peer has greeted")
    return push
