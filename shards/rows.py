"""Shared memory of a broker's processes: a row of counters for each worker."""

from __future__ import annotations

import mmap

_CACHE_LINE = 64


def shared_rows(workers: int, row_bytes: int) -> list[memoryview]:
    """Return zeroed counter rows in anonymous shared memory; no two workers write to one cache line."""
    stride = -(-row_bytes // _CACHE_LINE) * _CACHE_LINE
    shared = memoryview(mmap.mmap(-1, workers * stride))
    return [shared[index * stride : index * stride + row_bytes] for index in range(workers)]
