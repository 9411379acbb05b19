"""Coalescing: when the next batches leave for the peers.

A message that crosses alone wakes three threads (two of ZeroMQ's and the receiver's loop), so gathering pays. After a
quiet time batches leave at once; the next ones wait for company until `seconds` have passed since the last departure.
Nothing here looks at a clock: `now` (seconds, monotonic) is given, and the caller has the timer.
"""

from __future__ import annotations

__all__ = ["Coalescing"]


class Coalescing:
    """The departures of one worker's batches, all peers together. `seconds` between two of them; 0 = no waiting."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left_at = float("-inf")
        self._is_waiting = False

    def wait(self, now: float) -> float | None:
        """Ask to send. Return 0 if batches leave now, the seconds after which `end_wait` is to be called, or None if
        that is arranged already.
        """
        seconds = self._left_at + self.seconds - now
        if seconds <= 0:
            self._is_waiting = False
            return 0
        if self._is_waiting:
            return None
        self._is_waiting = True
        return seconds

    def end_wait(self) -> bool:
        """The timer fires. Return whether batches leave now: False if they have left since."""
        was_waiting, self._is_waiting = self._is_waiting, False
        return was_waiting

    def left(self, now: float) -> None:
        """Batches have left."""
        self._left_at = now
