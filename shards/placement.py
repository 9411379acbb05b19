"""The home of a client id: a pure function of the *configured* number of workers (retained topics: pyx.core.placement).

Rendezvous hashing: every worker draws a number from the key and the highest draw wins, so growing from N to N + 1
workers moves only the keys that the new worker wins (1 / (N + 1) of them) and nothing else. The draws are the 64-bit
words of BLAKE2b digests of the key: one digest serves eight workers, worker i draws word i % 8 of digest i // 8.
BLAKE2b and not `hash()`, because every process, every Python version and every later run must agree (sessions on disk
depend on it).

It ranges over the configured workers and never over the live ones, else a client id would have two homes.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from struct import Struct

_DRAWS = Struct("<8Q")
_DRAWS_PER_DIGEST = 8
_CLIENT_ID = b"mqttd client id "
"""Separates these digests from those of any other use (BLAKE2b's `person`)."""


def home(client_id: str, workers: int) -> int:
    """Return the worker, 0 .. workers - 1, that owns the session of `client_id` (about 1 us up to 8 workers)."""
    if workers == 1:
        return 0
    return _winner(client_id.encode("utf-8", "surrogatepass"), workers)


def elsewhere(own: int, workers: int) -> Callable[[bytes], int]:
    """Return a function that returns the home of a client id (UTF-8) if that is another worker than `own`, else -1."""

    def home_of(client_id: bytes) -> int:
        worker = _winner(client_id, workers)
        return -1 if worker == own else worker

    return home_of


def _winner(key: bytes, workers: int) -> int:
    draws = _DRAWS.unpack(blake2b(key, person=_CLIENT_ID).digest())
    if workers > _DRAWS_PER_DIGEST:
        blocks = (workers - 1) // _DRAWS_PER_DIGEST
        for block in range(1, blocks + 1):
            draws += _DRAWS.unpack(blake2b(key, person=_CLIENT_ID, salt=block.to_bytes(16, "little")).digest())
    draws = draws[:workers]
    return draws.index(max(draws))  # equal draws (2**-64): the lower index
