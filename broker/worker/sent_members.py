"""Clients that were sent to another host, so that those who come back are not sent away for ever.

A client may not follow the Server Reference (one of MQTT 3 has none), and connect to the same host again. It is sent
away once more after AGAIN_SECONDS, and if it comes back then, too, it stays for STAYS_SECONDS. A client that another
host serves since then is forgotten: it has followed.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

__all__ = ["AGAIN_SECONDS", "REMEMBERED_MAX", "STAYS_SECONDS", "SentMembers"]

AGAIN_SECONDS: Final = 300.0
_REMEMBERED_SECONDS: Final = 3600.0
"""Time after which a client that was sent away once counts as one that never was."""
STAYS_SECONDS: Final = 86_400.0
REMEMBERED_MAX: Final = 100_000
"""Clients of a worker that are remembered, of those sent once, and of those sent twice; then the first ones are
forgotten.
"""
_FORGOTTEN_AT_ONCE: Final = 1000


class SentMembers:
    """Those of one worker. Times are seconds of a monotonic clock."""

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._remembered_max = remembered_max
        self._once: dict[int, float] = {}
        """When a client was sent away, by the hash of its id, which may have 65,535 bytes; the earliest first."""
        self._twice: dict[int, float] = {}
        """The same of those that were sent away a second time."""
        self._back: set[int] = set()
        """Those of both that were seen here again."""

    def __len__(self) -> int:
        return len(self._once) + len(self._twice)

    def may_be_sent(self, client_id: str, now: float) -> bool:
        """Return whether a client that is connected here may be sent away."""
        key = hash(client_id)
        sent_at = self._once.get(key)
        return key not in self._twice and (sent_at is None or now - sent_at >= AGAIN_SECONDS)

    def came_back(self, client_id: str) -> bool:
        """Note that a client is connected here. Return whether it has come back since it was sent away, and that was
        not known yet.
        """
        key = hash(client_id)
        if key in self._back or not (key in self._once or key in self._twice):
            return False
        self._back.add(key)
        return True

    def sent(self, client_id: str, now: float) -> None:
        """Note that a client is sent away."""
        key = hash(client_id)
        self._back.discard(key)
        where = self._once if self._once.pop(key, None) is None and key not in self._twice else self._twice
        where.pop(key, None)
        where[key] = now
        if len(where) > self._remembered_max:
            self._forget(where, next(iter(where)))

    def followed(self, client_id: str) -> None:
        """Note that another host serves a client."""
        key = hash(client_id)
        for where in (self._once, self._twice):
            if key in where:
                self._forget(where, key)

    def forget_old(self, now: float) -> None:
        """Forget those whose time is over, at most 1,000 of each kind."""
        for where, seconds in ((self._once, _REMEMBERED_SECONDS), (self._twice, STAYS_SECONDS)):
            for key, sent_at in list(islice(where.items(), _FORGOTTEN_AT_ONCE)):
                if now - sent_at < seconds:
                    break
                self._forget(where, key)

    def _forget(self, where: dict[int, float], key: int) -> None:
        del where[key]
        self._back.discard(key)
