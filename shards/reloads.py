"""A reload: tracks which processes have applied the new settings, until the result is known for all.

Processes forked after it have them already. If one dies before it has answered, its successor has them. A process that
serves and does not answer is not waited for longer than a hung one would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shards.policy import Policy
from shards.worker_channel import Message


class ReloadRefused(Exception):
    """The new settings are wrong; the old ones stay. The text is for the log."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of reading the configuration again."""

    settings: Any
    """For workers forked from now on (`WorkerChannel.settings`)."""
    message: Message
    """For running workers: the "settings" of their "reload" message (JSON types only)."""
    policy: Policy


class Reload:
    """One reload, from its messages to its end."""

    def __init__(self, number: int, told: dict[int, int], now: float) -> None:
        """`told`: incarnations by index."""
        self.refused: dict[int, str] = {}
        """Index -> why it keeps the old settings."""
        self._number = number
        self._waits = told
        self._began = now

    def heard(self, number: int, index: int, incarnation: int, reason: str | None) -> None:
        """Note the answer of a process; ignored for an earlier reload."""
        if number == self._number and self._waits.get(index) == incarnation:
            del self._waits[index]
            if reason is not None:
                self.refused[index] = reason

    def is_over(self, running: Mapping[int, tuple[int, float]], now: float, seconds_max: float) -> bool:
        """Whether the result is known for all; `running`: (incarnation, time since which it serves or 0) by index."""
        for index, incarnation in list(self._waits.items()):
            found, ready_at = running.get(index, (0, 0.0))
            if found != incarnation:
                del self._waits[index]
            elif ready_at and now - max(self._began, ready_at) > seconds_max:
                del self._waits[index]
                self.refused[index] = "it does not answer"
        return not self._waits
