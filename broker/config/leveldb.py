"""The settings of the LevelDB under a store; docs/store.md has what each was measured to do (`python -m
tests.benchmarks.store_settings`).

The table of the file is `[leveldb]`: `store` is a key of its own that says whether there is one.
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
_WRITE_BUFFER_SHARE = 64  # at most so much of a small disk
_RESERVE_BYTES = 128 * _MIB
_RESERVE_SHARE = 3  # likewise
_RESERVE_BESIDE_BYTES = (
    70 * _MIB
)  # what leveldb_store.engine.disk_reserve wants for an opening, and a compaction of 25 tables


class Sizes(NamedTuple):
    """What depends on the disk, in bytes, of each worker's database."""

    write_buffer_bytes: int
    reserve_bytes: int


class LevelDB(BaseModel):
    """What each worker's database is opened with."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    write_buffer_bytes: int | None = Field(
        default=None,
        ge=_WRITE_BUFFER_BYTES_MIN,
        le=1024 * _MIB,
        json_schema_extra={"restart": True},
        description="What is written gathers in memory up to here, then becomes a table. Up to twice that is held, per "
        "worker. Larger: fewer compactions; what has to be read at a start after a crash grows with it. Not set: 16 "
        "MiB, or a 64th of what a small disk has for each worker.",
    )
    block_cache_bytes: int = Field(
        default=8 * _MIB,
        ge=64 * _KIB,
        json_schema_extra={"restart": True},
        description="Blocks of tables that are kept in memory, unpacked, per worker.",
    )
    open_files_max: int = Field(
        default=256,
        ge=74,
        le=50_000,
        json_schema_extra={"restart": True},
        description="Tables that are held open, per worker; each costs a descriptor.",
    )
    bloom_bits: int = Field(
        default=10,
        ge=0,
        le=32,
        json_schema_extra={"restart": True},
        description="Bits per key by which tables are passed over that do not have it; 0: none.",
    )
    compression: Literal["snappy", "none"] = Field(
        default="snappy", json_schema_extra={"restart": True}, description="Of the blocks of tables."
    )
    reserve_bytes: int | None = Field(
        default=None,
        ge=0,
        json_schema_extra={"restart": True},
        description="Size of files that hold room, per worker, for the day on which the disk is full: they are given "
        "up then, so that clients can empty their queues. 0: none. Not set: 128 MiB, or what write_buffer_bytes takes, "
        "and not more than a third of what the disk has for each worker.",
    )

    @property
    def reserve_bytes_min(self) -> int:
        """A reserve that is less is of no use."""
        return 2 * (self.write_buffer_bytes or _WRITE_BUFFER_BYTES) + _RESERVE_BESIDE_BYTES

    def sizes(self, path: str | os.PathLike[str], workers: int) -> Sizes:
        """Those that are set, and others for so many databases on the disk of `path`. Raises OSError."""
        found = os.statvfs(path)
        share = found.f_blocks * found.f_frsize // workers
        buffer = self.write_buffer_bytes
        if buffer is None:
            buffer = max(_WRITE_BUFFER_BYTES_MIN, min(_WRITE_BUFFER_BYTES, share // _WRITE_BUFFER_SHARE))
        reserve = self.reserve_bytes
        if reserve is None:
            # a compaction reads no more than there is
            reserve = min(max(_RESERVE_BYTES, self.reserve_bytes_min), share // _RESERVE_SHARE)
        return Sizes(buffer, reserve)
