"""Digests of the files of a snapshot: to detect disk damage at the speed of memory."""

from __future__ import annotations

import hashlib
from typing import Final

import xxhash

__all__ = ["DIGEST", "digest_of", "hasher"]

DIGEST: Final = "xxh3_128"


def hasher(digest: str) -> hashlib._Hash | xxhash.xxh3_128:
    """Return the hash object of a `FileFacts` digest's algorithm. ValueError: unknown."""
    name = digest.partition(":")[0]
    if name == "xxh3_128":
        return xxhash.xxh3_128()
    if name == "sha256":
        return hashlib.sha256()
    raise ValueError(f"{name} is no digest of a snapshot")


def digest_of(made: hashlib._Hash | xxhash.xxh3_128) -> str:
    """Return the digest in the form of `FileFacts`."""
    return f"{'xxh3_128' if isinstance(made, xxhash.xxh3_128) else made.name}:{made.hexdigest()}"
