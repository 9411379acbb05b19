"""A small world for the sockets of the mesh: a watcher of descriptors with its own rounds, and a Pull that keeps what
it hears.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyx.mesh.connection import ReceiveBuffer
from pyx.mesh.receiver import Receiver
from pyx.mesh.sockets import Pull, Push
from tests import rounds


class Rounds(rounds.Rounds):
    """Rounds that close what was made for them."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = ReceiveBuffer()
        self.opened: list[Pull | Push] = []

    def push(self, path: Path, when_writable: Callable[[], object] = lambda: None) -> Push:
        made = Push(str(path), self, when_writable, self.buffer)
        self.opened.append(made)
        return made

    def close(self) -> None:
        for each in self.opened:
            each.close()
        assert not self.watched


class Heard(Receiver):
    """A Pull, and all messages that it has passed on."""

    def __init__(self, rounds: Rounds, path: Path) -> None:
        self.messages: list[list[bytes]] = []
        self.most: int | None = None
        """Messages taken until the Pull must be asked to go on; None: all."""
        self.pull = Pull(str(path), rounds, self, rounds.buffer)
        rounds.opened.append(self.pull)

    def received(self, frames: list[bytes]) -> bool:
        """Keep a message."""
        self.messages.append(frames)
        return self.most is not None and len(self.messages) >= self.most


def connected(rounds: Rounds, path: Path, when_writable: Callable[[], object] = lambda: None) -> Push:
    """Return a Push whose peer has greeted."""
    push = rounds.push(path, when_writable)
    rounds.until(lambda: push.is_connected, "the peer has greeted")
    return push
