"""Damage in LevelDB's log files, and in its MANIFEST, which has the same format.

A log is a sequence of blocks of 32 KB, a block a sequence of records: u32 masked CRC-32C of type and data, u16 length,
u8 type (1 whole, 2 first, 3 middle, 4 last part of an entry), data. Fewer than 7 bytes at the end of a block are zeros.
(leveldb/doc/log_format.md)
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from pyx.storage.stored import crc32c

BLOCK_BYTES: Final = 32_768
HEAD: Final = struct.Struct("<IHB")
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
_MASK: Final = 0xA282EAD8


def _record(data: bytes, at: int) -> tuple[int, int] | None:
    # (type, end) of the record that begins there; None: it is damaged or truncated, or there is none
    if at + HEAD.size > len(data):
        return None
    masked, length, kind = HEAD.unpack_from(data, at)
    end = at + HEAD.size + length
    if HEAD.size + length > BLOCK_BYTES - at % BLOCK_BYTES or end > len(data):
        return None
    if kind not in (WHOLE, FIRST, MIDDLE, LAST):
        return None
    rotated = (masked - _MASK) & 0xFFFFFFFF
    if crc32c(data[at + HEAD.size - 1 : end]) != (rotated >> 17 | rotated << 15) & 0xFFFFFFFF:
        return None
    return kind, end


def _begin(at: int) -> int:
    # the next place where a record can begin
    room = BLOCK_BYTES - at % BLOCK_BYTES
    return at + room if room < HEAD.size else at


def whole_bytes(data: bytes) -> tuple[int, bool]:
    """Return the number of bytes up to which a log's entries are whole, and whether another entry begins behind them.

    After a crash the last, unsynced entry may be incomplete, and none follows it. A damaged entry followed by others
    had been written long before.
    """
    at = good = 0
    is_inside = False
    while (record := _record(data, at)) is not None:
        kind, end = record
        if is_inside != (kind in (MIDDLE, LAST)):
            break
        is_inside = kind in (FIRST, MIDDLE)
        at = _begin(end)
        if not is_inside:
            good = end
    # behind the damage a record begins at each block; in its own block its length may still be right
    places = [*range(at - at % BLOCK_BYTES + BLOCK_BYTES, len(data), BLOCK_BYTES)]
    if at + HEAD.size <= len(data):
        places.append(_begin(at + HEAD.size + HEAD.unpack_from(data, at)[1]))
    for place in places:
        while (record := _record(data, place)) is not None:
            if record[0] in (WHOLE, FIRST):
                return good, True
            place = _begin(record[1])
    return good, False


def cut_torn_end(log: Path) -> int:
    """Cut off the remains of a log's last entry after a crash, if that is the only damage; return their bytes."""
    data = log.read_bytes()
    good, is_followed = whole_bytes(data)
    if is_followed or good == len(data):
        return 0
    os.truncate(log, good)
    return len(data) - good


def cut_at_damage(log: Path) -> int:
    """Cut a log behind its last whole entry before the first damage; return the number of bytes cut off."""
    data = log.read_bytes()
    good, _ = whole_bytes(data)
    if good < len(data):
        os.truncate(log, good)
    return len(data) - good
