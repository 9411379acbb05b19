"""Which user names and passwords were found right lately, so that a thousand devices that come back do not cost a
thousand hashes.

What is kept is a keyed hash (BLAKE2b under a key that this process drew and that never leaves it), never a password;
only what was right is kept, so that wrong guesses push nothing out. The least recently used goes first.
"""

from __future__ import annotations

import hashlib
import secrets

__all__ = ["Cache"]


class Cache:
    """Pairs that were right. `digest` names a pair, the other methods take its digest. Seconds are monotonic."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._used: dict[bytes, float] = {}  # in the order of their last use

    def __len__(self) -> int:
        return len(self._used)

    def digest(self, username: str, password: bytes) -> bytes:
        """The pair's name here."""
        name = username.encode()
        return hashlib.blake2b(len(name).to_bytes(4) + name + password, key=self._key, digest_size=32).digest()

    def has(self, digest: bytes, now: float, seconds_max: float) -> bool:
        """Whether it is there, last used at most `seconds_max` ago; it is used now."""
        used = self._used.pop(digest, None)
        if used is None or now - used > seconds_max:
            return False
        self._used[digest] = now
        return True

    def put(self, digest: bytes, now: float, entries_max: int) -> None:
        """Keep it, and no more than `entries_max`."""
        self._used.pop(digest, None)
        self._used[digest] = now
        while len(self._used) > entries_max:
            del self._used[next(iter(self._used))]

    def clear(self) -> None:
        """Forget all."""
        self._used.clear()
