"""Room on the disk: how much there is, and some that is kept for the day on which there is none.

A log that only grows at its end needs room to shrink: what is deleted is written first, as a deletion, and given back
when a compaction has written anew what is left. On a disk without a byte neither can be done, and clients that empty
their queues would make no room. So new messages are refused while there is little (`look`), and beside the database lie
two files that hold room by their mere size, the *reserve*, and are given up when a write fails all the same, because a
compaction, or somebody else, has taken the last:

    RESERVE         for deletions and compactions, until there is room to make it anew
    RESERVE-OPEN    for opening the database anew, as has to be done after each such error. LevelDB removes then what
                    the compaction that failed has left, and this part is taken back at once
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

RESERVE_NAMES: Final = ("RESERVE-OPEN", "RESERVE")
"""In the directory of the database: LevelDB leaves names alone that are none of its own."""
ROOM_BYTES_MIN: Final = 4 << 20  # beside the write buffers
COMMIT_BYTES: Final = 16 << 20  # for what is to be written once the database is open
AGAIN: Final = 1.5  # so much of what is too little is enough again


class DiskReserve:
    """Of one database; one thread uses it. `reserve_bytes`: both files together, 0 = none. Raises OSError."""

    def __init__(self, path: Path, write_buffer_bytes: int, reserve_bytes: int) -> None:
        self._path = path
        # logs that are full become tables of their size when it is opened
        self._least = 2 * write_buffer_bytes + ROOM_BYTES_MIN
        opening = min(reserve_bytes // 2, self._least + COMMIT_BYTES)
        self._sizes = dict(zip(RESERVE_NAMES, (opening, reserve_bytes - opening), strict=True))
        self._is_low = False

    def free(self) -> int:
        """Bytes that we may still write."""
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize

    def wanted(self) -> int:
        """Bytes that a new database without a reserve must find free to take messages (`look`)."""
        return int(AGAIN * self._least) + sum(self._sizes.values())

    def has(self, size: int) -> bool:
        """Whether there is room to open the database anew and for `size` bytes."""
        return self.free() >= size + self._least

    def look(self) -> str | None:
        """Why no new message may be stored, None: they may. Makes the reserve when there is room for all of it."""
        free = self.free()
        missing = sum(size for name, size in self._sizes.items() if not self._is_there(name))
        if free < self._least:
            self._is_low = True
        elif free >= AGAIN * self._least:
            self._is_low = False
        wanted = int(AGAIN * self._least) + missing
        if not self._is_low and (not missing or (free >= wanted and all(map(self._make, RESERVE_NAMES)))):
            return None
        return f"the disk has {free >> 20} MB of room, and {wanted >> 20} MB are wanted"

    def release(self) -> bool:
        """Give up the reserve; False: there is none."""
        found = [self._remove(name) for name in RESERVE_NAMES]
        return any(found)

    def keep_opening(self) -> None:
        """The database is open: hold on to what the next time takes, if it is there."""
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
        except OSError:  # somebody was faster, or the file system has no such thing
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
