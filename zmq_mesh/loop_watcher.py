"""A watcher of descriptors for processes without a reactor, by the event loop in which it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["LoopWatcher"]


class LoopWatcher:
    """Implements `pyx.mesh.contract.Watcher` for sockets that are only read, as that of `zmq_mesh.curve.Door`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def watch_in_round(self, fd: int, callback: Callable[[], object]) -> None:
        """Call back when the descriptor is readable."""
        self._loop.add_reader(fd, callback)

    def watch_output(self, fd: int, on: bool) -> None:
        """Refuse: what is only read never waits for output."""
        raise NotImplementedError(f"the output of {fd} is not watched: {on}")

    def unwatch(self, fd: int) -> None:
        """Watch the descriptor no more."""
        self._loop.remove_reader(fd)
