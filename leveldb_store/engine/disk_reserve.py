"""Room on the disk: measures it, and keeps a reserve for the day on which there is none.

A log that only grows at its end needs room to shrink: a deletion is written first, and its space is released when a
compaction has rewritten the remaining records. On a disk without a free byte neither is possible, and clients that
empty their queues would make no room. So new messages are refused while there is little (`look`), and beside the
database are two files that occupy room, the *reserve*. They are deleted when a write fails all the same, because a
compaction, or another program, has taken the last room:

    RESERVE         for deletions and compactions, until there is room to recreate it
    RESERVE-OPEN    for reopening the database, as is necessary after each such error. LevelDB then removes what the
                    failed compaction left, and this file is recreated at once
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

RESERVE_NAMES: Final = ("RESERVE-OPEN", "RESERVE")
"""Their names, in the directory of the database: LevelDB ignores names that are not its own."""
ROOM_BYTES_MIN: Final = 4 << 20  # in addition to the write buffers
COMMIT_BYTES: Final = 16 << 20  # for data to be written once the database is open
AGAIN: Final = 1.5  # room must exceed the minimum by this factor before it counts as enough again


class DiskReserve:
    """The reserve of one database, for one thread. `reserve_bytes`: both files together, 0 = none. Raises OSError."""

    def __init__(self, path: Path, write_buffer_bytes: int, reserve_bytes: int) -> None:
        self._path = path
        # at an opening, full logs become tables of their size
        self._least = 2 * write_buffer_bytes + ROOM_BYTES_MIN
        opening = min(reserve_bytes // 2, self._least + COMMIT_BYTES)
        self._sizes = dict(zip(RESERVE_NAMES, (opening, reserve_bytes - opening), strict=True))
        self._is_low = False

    def free(self) -> int:
        """Return the bytes that may still be written."""
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize

    def wanted(self) -> int:
        """Return the free bytes that a new database without a reserve needs to take messages (`look`)."""
        return int(AGAIN * self._least) + sum(self._sizes.values())

    def has(self, size: int) -> bool:
        """Whether there is room to reopen the database and for `size` bytes."""
        return self.free() >= size + self._least

    def look(self) -> str | None:
        """Return why no new message may be stored, or None. Creates the reserve when there is room for all of it."""
        free = self.free()
        missing = sum(size for name, size in self._sizes.items() if not self._is_there(name))
        if free < self._least:
            self._is_low = True
        elif free >= AGAIN * self._least:
            self._is_low = False
        wanted = int(AGAIN * self._least) + missing
        if not self._is_low and (not missing or (free >= wanted and all(map(self._make, RESERVE_NAMES)))):
            return None
        return f"the disk has {free >> 20} MB free, but {wanted >> 20} MB are needed"

    def release(self) -> bool:
        """Delete the reserve; return False if there is none."""
        found = [self._remove(name) for name in RESERVE_NAMES]
        return any(found)

    def keep_opening(self) -> None:
        """Keep room for the next reopening, now that the database is open, if there is any."""
        name = RESERVE_NAMES[0]
        if self.free() >= self._sizes[name] + ROOM_BYTES_MIN:
            self._make(name)

    def _is_there(self, name: str) -> bool:
        try:
            return (self._path / name).stat().st_size == self._sizes[name]
        except FileNotFoundError:
            return not self._sizes[name]

    def _make(self, name: str) -> bool:
        if self._is_there(name):
            return True
        self._remove(name)
        if not self._sizes[name]:
            return True
        fd = os.open(self._path / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, self._sizes[name])
        except OSError:  # another program was faster, or the file system does not support it
            self._remove(name)
            return False
        finally:
            os.close(fd)
        return True

    def _remove(self, name: str) -> bool:
        try:
            (self._path / name).unlink()
        except FileNotFoundError:
            return False
        return True
