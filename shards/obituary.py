"""What is said of a worker that has died: of which client it had a packet in hand, and how often that was so.

A worker notes in its counter row whose packets it takes (`pyx.core.counters.note`), and that it is done with them. A
death in between need not be that client's doing; the second one with the same client hardly is a chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Obituary"]

_CLIENTS_MAX = 1000


class Obituary:
    """Called with a dead worker's row: closes its books, and says what belongs into the log."""

    def __init__(
        self, in_hand: Callable[[memoryview], tuple[str, str] | None], bury: Callable[[memoryview], object]
    ) -> None:
        self._in_hand = in_hand
        self._bury = bury
        self._deaths: dict[str, int] = {}

    def __call__(self, row: memoryview) -> dict[str, Any]:
        """The fields of the log line."""
        found = self._in_hand(row)
        self._bury(row)
        if found is None:
            return {}
        client, packet = found
        deaths = self._deaths.pop(client, 0) + 1
        self._deaths[client] = deaths  # the last one of all
        if len(self._deaths) > _CLIENTS_MAX:
            del self._deaths[next(iter(self._deaths))]
        return {"client_in_hand": client, "packet_in_hand": packet, "deaths_with_this_client": deaths}
