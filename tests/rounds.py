"""The part of the reactor that a transport of the mesh uses (`pyx.mesh.contract.Watcher`), over poll(2)."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from pyx.mesh.receiver import EventReceiver, Receiver

SECONDS = 30.0


class Keeps(Receiver):
    """Keeps all messages."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []

    def received(self, frames: list[bytes]) -> bool:
        """Keep a message."""
        self.messages.append(frames)
        return False


class Worked(EventReceiver):
    """Batches are events of the links, and the test says how much the worker has to do."""

    sated = False
    full = False

    def is_sated(self) -> bool:
        """Return whether this round has taken enough."""
        return self.sated

    def is_full(self) -> bool:
        """Return whether nothing more should be read."""
        return self.full


class Rounds:
    """Watches descriptors; its rounds are run by the test."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.watched: dict[int, Callable[[], object]] = {}

    def watch_in_round(self, fd: int, callback: Callable[[], object]) -> None:
        """Implements Watcher."""
        self.watched[fd] = callback
        self._poll.register(fd, select.POLLIN)

    def watch_output(self, fd: int, on: bool) -> None:
        """Implements Watcher."""
        self._poll.modify(fd, select.POLLIN | select.POLLOUT if on else select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Implements Watcher."""
        del self.watched[fd]
        self._poll.unregister(fd)

    def once(self, milliseconds: float = 0) -> bool:
        """Run one round, waiting so long for its first event; return whether there was any."""
        found = self._poll.poll(milliseconds)
        for fd, _ in found:
            callback = self.watched.get(fd)
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
        """Run rounds until there are no events."""
        while self.once():
            pass
