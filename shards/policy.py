"""The bounds of the supervisor."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Policy"]


@dataclass(frozen=True, slots=True)
class Policy:
    """The supervisor's own bounds."""

    worker_hang_seconds_max: float = 10.0
    stop_seconds_max: float = 10.0
