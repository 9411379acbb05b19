"""Settings of the LevelDB under a store; docs/store.md has the measured effect of each (`python -m
tests.benchmarks.store_settings`).

They are in the table `[leveldb]` of the file; the separate key `store` decides whether LevelDB is used.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["LevelDB", "Sizes"]

_KIB = 1024
_MIB = 1024 * _KIB
_WRITE_BUFFER_BYTES = 16 * _MIB
_WRITE_BUFFER_BYTES_MIN = 64 * _KIB
_WRITE_BUFFER_SHARE = 64  # at most this fraction of a small disk
_RESERVE_BYTES = 128 * _MIB
_RESERVE_SHARE = 3  # at most this fraction of the disk
_RESERVE_BESIDE_BYTES = (
    70 * _MIB
)  # the room that leveldb_store.engine.disk_reserve keeps for an opening, and a compaction of 25 tables


class Sizes(NamedTuple):
    """Sizes in bytes that depend on the disk, for each worker's database."""

    write_buffer_bytes: int
    reserve_bytes: int


class LevelDB(BaseModel):
    """The options with which each worker's database is opened."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    write_buffer_bytes: int | None = Field(
        default=None,
        ge=_WRITE_BUFFER_BYTES_MIN,
        le=1024 * _MIB,
        json_schema_extra={"restart": True},
        description="Writes gather in memory up to this size, then become a table. Up to twice that is held, per "
        "worker. Larger: fewer compactions, and longer reading at a start after a crash. Not set: 16 MiB, or a 64th of "
        "each worker's part of a small disk.",
    )
    block_cache_bytes: int = Field(
        default=8 * _MIB,
        ge=64 * _KIB,
        json_schema_extra={"restart": True},
        description="Cache of uncompressed table blocks in memory, per worker.",
    )
    open_files_max: int = Field(
        default=256,
        ge=74,
        le=50_000,
        json_schema_extra={"restart": True},
        description="Tables kept open, per worker; each costs a descriptor.",
    )
    bloom_bits: int = Field(
        default=10,
        ge=0,
        le=32,
        json_schema_extra={"restart": True},
        description="Bits per key of the Bloom filters that skip tables without the key; 0: none.",
    )
    compression: Literal["snappy", "none"] = Field(
        default="snappy", json_schema_extra={"restart": True}, description="Compression of table blocks."
    )
    reserve_bytes: int | None = Field(
        default=None,
        ge=0,
        json_schema_extra={"restart": True},
        description="Size of files that reserve room, per worker, for the day on which the disk is full: they are "
        "deleted then, so that clients can empty their queues. 0: none. Not set: 128 MiB, or as write_buffer_bytes "
        "requires, and at most a third of each worker's part of the disk.",
    )

    @property
    def reserve_bytes_min(self) -> int:
        """The smallest useful reserve."""
        return 2 * (self.write_buffer_bytes or _WRITE_BUFFER_BYTES) + _RESERVE_BESIDE_BYTES

    def sizes(self, path: str | os.PathLike[str], workers: int) -> Sizes:
        """Return the configured sizes, or defaults for so many databases on the disk of `path`. Raises OSError."""
        found = os.statvfs(path)
        share = found.f_blocks * found.f_frsize // workers
        buffer = self.write_buffer_bytes
        if buffer is None:
            buffer = max(_WRITE_BUFFER_BYTES_MIN, min(_WRITE_BUFFER_BYTES, share // _WRITE_BUFFER_SHARE))
        reserve = self.reserve_bytes
        if reserve is None:
            # a compaction reads no more than the disk has
            reserve = min(max(_RESERVE_BYTES, self.reserve_bytes_min), share // _RESERVE_SHARE)
        return Sizes(buffer, reserve)
