"""Heartbeats in shared memory, seen by another process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Heartbeats"]


class Heartbeats:
    """Heartbeats, and the time at which each last changed."""

    def __init__(self, beats: Sequence[Callable[[], int]], now: float) -> None:
        self._beats = beats
        self._seen = [(beat(), now) for beat in beats]

    def ages(self, now: float) -> list[float]:
        """Read the heartbeats; return the seconds since each was last seen to change."""
        for index, beat in enumerate(self._beats):
            value = beat()
            if value != self._seen[index][0]:
                self._seen[index] = (value, now)
        return [now - at for _, at in self._seen]
