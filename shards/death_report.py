"""Report on a dead worker for the log: the client whose packet it was processing, and how often that has happened.

A worker notes in its counter row whose packet it begins to process (`pyx.core.counters.note`), and that it is done. A
death in between need not be that client's doing; a second one with the same client is hardly a coincidence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["DeathReport"]

_CLIENTS_MAX = 1000


class DeathReport:
    """Called with a dead worker's row: settles it, and returns fields for the log."""

    def __init__(
        self, in_hand: Callable[[memoryview], tuple[str, str] | None], settle_row: Callable[[memoryview], object]
    ) -> None:
        self._in_hand = in_hand
        self._settle_row = settle_row
        self._deaths: dict[str, int] = {}

    def __call__(self, row: memoryview) -> dict[str, Any]:
        """Return the fields of the log line."""
        found = self._in_hand(row)
        self._settle_row(row)
        if found is None:
            return {}
        client, packet = found
        deaths = self._deaths.pop(client, 0) + 1
        self._deaths[client] = deaths  # moves it to the end
        if len(self._deaths) > _CLIENTS_MAX:
            del self._deaths[next(iter(self._deaths))]
        return {"client_in_hand": client, "packet_in_hand": packet, "deaths_with_this_client": deaths}
