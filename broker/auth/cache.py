"""Cache of user names and passwords that were verified recently, so that a thousand devices that reconnect do not cost
a thousand hashes.

It keeps keyed hashes (BLAKE2b under a random key that never leaves this process), never passwords; and only right ones,
so that wrong guesses evict nothing. The least recently used entry is evicted first.
"""

from __future__ import annotations

import hashlib
import secrets

__all__ = ["Cache"]


class Cache:
    """Verified pairs. `digest` identifies a pair; the other methods take the digest. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._used: dict[bytes, float] = {}  # in the order of their last use

    def __len__(self) -> int:
        return len(self._used)

    def digest(self, username: str, password: bytes) -> bytes:
        """Return the digest that identifies the pair."""
        name = username.encode()
        return hashlib.blake2b(len(name).to_bytes(4) + name + password, key=self._key, digest_size=32).digest()

    def has(self, digest: bytes, now: float, seconds_max: float) -> bool:
        """Return whether the pair is cached and was used at most `seconds_max` ago; if so, mark it as used now."""
        used = self._used.pop(digest, None)
        if used is None or now - used > seconds_max:
            return False
        self._used[digest] = now
        return True

    def put(self, digest: bytes, now: float, entries_max: int) -> None:
        """Add the pair, and evict the oldest above `entries_max`."""
        self._used.pop(digest, None)
        self._used[digest] = now
        while len(self._used) > entries_max:
            del self._used[next(iter(self._used))]

    def clear(self) -> None:
        """Remove all entries."""
        self._used.clear()
