"""Memory of a worker's process: returns free memory to the kernel, and watches worker_memory_bytes_max."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyx.core import counters as count
from pyx.core.allocator import trim_memory

if TYPE_CHECKING:
    from broker.context.context import Context
    from broker.logs import Log
    from broker.worker.sibling_messages import SiblingMessages

__all__ = ["Memory"]

_TRIM_SECONDS_FIRST = 1.0  # early, because recovery has used more memory than it keeps
_TRIM_SECONDS = 10.0
_ROOM_AGAIN = 0.95  # fraction of worker_memory_bytes_max below which the limit ends
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class Memory:
    """The memory of one worker. `now`: monotonic seconds."""

    def __init__(self, context: Context, sibling_messages: SiblingMessages, log: Log, now: float) -> None:
        self._context = context
        self._set_full = sibling_messages.set_memory_full
        self._log = log
        self._trim_at = now + _TRIM_SECONDS_FIRST

    def trim(self, now: float) -> None:
        """Return free memory to the kernel, if that is due."""
        if now >= self._trim_at:
            self._trim_at = now + _TRIM_SECONDS
            trim_memory()

    def measure(self) -> None:
        """Tell this worker and its siblings whether memory is full."""
        most = self._context.settings.limits.worker_memory_bytes_max
        was_full = self._context.router.back_pressure.is_memory_full
        if not most:
            if was_full:
                self._log.warning("memory_has_room")
                self._set_full(False)
            return
        used = _anonymous_bytes()
        if used >= most:
            trim_memory()  # memory that is free but not returned must not count
            used = _anonymous_bytes()
        if used >= most:
            self._context.counters.add(count.MEMORY_SECONDS)
        if used >= most and not was_full:
            self._log.warning("memory_full", bytes=used, worker_memory_bytes_max=most)
            self._set_full(True)
        elif was_full and used < most * _ROOM_AGAIN:
            self._log.warning("memory_has_room", bytes=used)
            self._set_full(False)


def _anonymous_bytes() -> int:
    """Return the anonymous resident memory of this process: its own, not the code that it shares."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * _PAGE_BYTES
