"""Default payloads of a client: sizes, or contents, in turn."""

from __future__ import annotations

from functools import lru_cache

from pyx.loadgen.client import STAMP_BYTES

__all__ = ["Payloads", "filler"]


@lru_cache(maxsize=256)
def filler(size: int) -> bytes:
    """Return this many bytes of filler, which nobody reads."""
    return (b"abcdefghijklmnopqrstuvwxyz" * (size // 26 + 1))[:size]


class Payloads:
    """The payloads of one client. `first`: index of the first one."""

    def __init__(self, payloads: tuple[int | bytes, ...], first: int) -> None:
        self._payloads, self._turn = payloads, first

    def next(self, size: int | None) -> tuple[bytes, bool]:
        """Return the next one, or `size` bytes; and whether it is to be stamped."""
        what: int | bytes
        if size is None:
            what = self._payloads[self._turn % len(self._payloads)]
            self._turn += 1
        else:
            what = size
        if isinstance(what, bytes):
            return what, True
        return (filler(what - STAMP_BYTES), True) if what >= STAMP_BYTES else (filler(what), False)
