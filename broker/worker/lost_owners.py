"""Client ids that other hosts have taken from this one lately."""

from __future__ import annotations

from typing import Final

__all__ = ["LostOwners"]

_SECONDS: Final = 60.0
"""Longer than an answer of the coordinator, or a CONNECT, may wait."""


class LostOwners:
    """Tells an ownership that is heard of late, and has ended already, from one that counts: its epoch is lower than
    that of the host that has taken the client id.
    """

    def __init__(self) -> None:
        self._lost: dict[str, tuple[int, float]] = {}
        """By client id: the epoch of the other host, and when that was heard; the earliest first."""

    def add(self, client_id: str, epoch: int, now: float) -> None:
        """Note that another host owns it since this epoch."""
        former, _ = self._lost.pop(client_id, (0, 0.0))
        self._lost[client_id] = max(epoch, former), now

    def has_ended(self, client_id: str, epoch: int) -> bool:
        """Whether an ownership since this epoch was lost."""
        return epoch < self._lost.get(client_id, (0, 0.0))[0]

    def tick(self, now: float) -> None:
        """Forget what nobody can hear of late any more."""
        while self._lost and next(iter(self._lost.values()))[1] + _SECONDS <= now:
            del self._lost[next(iter(self._lost))]
