"""A store written by a repartition (`broker.repartition.stores`), and the totals over all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.repartition.position_map import Segment
from leveldb_store.engine.database import Database, DatabaseOptions, sync_directory
from leveldb_store.format import schema
from pyx.storage.stored import part_before, part_running

__all__ = ["Moved", "NewStore", "empty", "opened"]

_WRITE_BYTES: Final = 1 << 20  # size of a write batch
_WRITE_BUFFER_BYTES: Final = 4 << 20
_HIGHEST: Final = 2**64 - 1


@dataclass(slots=True)
class Moved:
    """Totals of a repartition."""

    sessions: int = 0
    subscriptions: int = 0
    retained: int = 0
    wills: int = 0
    queued: int = 0
    """Messages queued for one session each."""
    blocks: int = 0
    bytes: int = 0
    """Bytes written in all."""
    archived: int = 0
    """Blocks of archives."""
    handed_on: int = 0
    """Messages of hand-off logs delivered to a session."""
    events: int = 0
    set_aside: int = 0
    """Records set aside as unreadable."""


class _Index:
    __slots__ = ("bytes", "messages", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.messages = 0
        self.bytes = 0


class NewStore:
    """A new store being written."""

    def __init__(self, index: int, path: Path, moved: Moved) -> None:
        self.index = index
        self.path = path
        self.database = opened(path)
        self.segments: dict[int, Segment] = {}
        """By old worker."""
        self.end = 0
        """The last position of the log."""
        self._moved = moved
        self._indexes: dict[bytes, _Index] = {}
        self._batch = self.database.db.write_batch()
        self._size = 0

    def put(self, key: bytes, value: bytes) -> None:
        """Put a record."""
        self._batch.put(key, value)
        self._size += len(key) + len(value)
        if self._size >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the batch, so that its records can be read."""
        self._batch.write()
        self._moved.bytes += self._size
        self._batch = self.database.db.write_batch()
        self._size = 0

    def put_part(self, name: bytes, first: int, behind_block: int, indexes: int, entries: bytes, size: int) -> None:
        """Add a part to an index. `entries`: in the form of a part; `size`: the sum of their bytes. Its running counts
        are right if parts are put in order of positions; else `finish` corrects them.
        """
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = _Index(len(self._indexes) + 1)
            self.put(schema.name_key(name), schema.U32.pack(index.number))
        count = len(entries) // schema.PART_ENTRY.size
        head = schema.PART_HEAD.pack(count, index.messages, index.bytes, behind_block, indexes)
        self.put(schema.part_key(index.number, first), head + entries)
        index.messages += count
        index.bytes += size

    def _count(self) -> None:
        # Parts were put in the order of the old workers, those of hand-off logs last: not in the order of their
        # positions, by which an index counts what is before each
        self.flush()
        number = messages = size = 0
        for key, value in self.database.scan(schema.PART):
            if schema.key_number(key) != number:
                number, messages, size = schema.key_number(key), 0, 0
            part = value
            if part_before(value) != (messages, size):
                count, _, _, behind_block, indexes = schema.PART_HEAD.unpack_from(value)
                head = schema.PART_HEAD.pack(count, messages, size, behind_block, indexes)
                part = head + value[schema.PART_HEAD.size :]
                self.put(key, part)
            messages, size = part_running(part, schema.key_position(key), _HIGHEST)

    def finish(self, workers: int, epoch: str) -> None:
        """Complete the store and close it, with everything on the disk."""
        self._count()
        identity = {"worker": self.index, "workers": workers, "epoch": epoch}
        self.put(schema.STORE, json.dumps(identity).encode())
        self.put(schema.POSITION, schema.U64.pack(self.end))
        self.flush()
        self.database.close()
        for file in self.path.iterdir():
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(self.path)


def opened(
    path: Path, say: Callable[[str], None] = lambda _: None, strict: bool = False, repair: str | None = None
) -> Database:
    """Open a store for a repartition; `strict`, `repair`: as of Database. Raises StoreError."""
    return Database(path, DatabaseOptions(write_buffer_bytes=_WRITE_BUFFER_BYTES), say, strict, repair)


def empty(path: Path) -> None:
    """Delete everything written to a store, which is closed."""
    for file in path.iterdir():
        file.unlink()
