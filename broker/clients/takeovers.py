"""Limit on take-overs: two devices with one client id would otherwise take each other's session over forever.

A client id may be taken over takeovers_per_minute_max times a minute (all of them may come at once). Beyond that the
newer connection is refused, for 1 s at first and twice as long each time that the fight continues, 60 s at most; the
older one stays open. After a minute without a refusal the client id starts afresh.
"""

from __future__ import annotations

__all__ = ["Takeovers"]

_WAIT_SECONDS_FIRST = 1.0
_WAIT_SECONDS_MAX = 60.0
_MINUTE = 60.0
_FIGHTS_MAX = 10_000
"""Client ids remembered; beyond that, the one whose last take-over is oldest is forgotten."""


class _Fight:
    __slots__ = ("at", "left", "until", "wait")

    def __init__(self, left: float, at: float) -> None:
        self.left = left  # take-overs allowed now
        self.at = at  # time when `left` was computed
        self.wait = 0.0  # duration of the last refusal
        self.until = 0.0  # end of the last refusal


class Takeovers:
    """The take-overs of one worker's client ids. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._fights: dict[int, _Fight] = {}
        """By the hash of a client id, because an id may have 65,535 bytes."""

    def __len__(self) -> int:
        return len(self._fights)

    def refused_seconds(self, client_id: str, per_minute: int, now: float) -> float:
        """Return 0.0 if a take-over is allowed now, else the seconds for which it is refused."""
        if not per_minute:
            return 0.0
        key = hash(client_id)
        fight = self._fights.pop(key, None)
        if fight is None:
            if len(self._fights) >= _FIGHTS_MAX:
                del self._fights[next(iter(self._fights))]
            fight = _Fight(per_minute, now)
        self._fights[key] = fight  # moves it to the end
        if now < fight.until:
            return fight.until - now
        if now - fight.until > max(_MINUTE, fight.wait):
            fight.wait = 0.0
        fight.left = min(per_minute, fight.left + (now - fight.at) * per_minute / _MINUTE)
        fight.at = now
        if fight.left >= 1.0:
            fight.left -= 1.0
            return 0.0
        fight.wait = min(_WAIT_SECONDS_MAX, max(_WAIT_SECONDS_FIRST, fight.wait * 2))
        fight.until = now + fight.wait
        return fight.wait

    def forget_old(self, per_minute: int, now: float) -> None:
        """Free the memory of fights that are over; called now and then."""
        for key, fight in list(self._fights.items()):
            if now < fight.until + fight.wait or now - fight.at < _MINUTE:
                break  # all further ones are younger
            del self._fights[key]
        if not per_minute:
            self._fights.clear()
