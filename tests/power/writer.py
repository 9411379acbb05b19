"""A program that writes batches to a plain LevelDB and marks in the trace which of them are promised.

    python -m tests.power.writer DIRECTORY TRACE {sync|unsync|careless} BATCHES

*unsync* asks for no sync of a batch. *careless* does, and relies on LevelDB for the rest; *sync* syncs the directory
as well once the database is open. Without that CURRENT may still name the first MANIFEST after a power cut, which
LevelDB 1.22 has never synced.

Batch N is a function of N, and so is the whole database after it: N in the database determines all other content.

"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import plyvel

from leveldb_store.engine.wal import cut_torn_end
from tests.power.trace import mark

KEYS = 400
WRITE_BUFFER_BYTES = 1 << 15
"""Small, so that logs are switched, tables written and compacted every few batches."""

HEAD = b"head"


@cache
def batch(number: int) -> dict[bytes, bytes | None]:
    """Return the changes of batch `number`: puts, or deletes (None)."""
    rng = random.Random(number)
    puts: dict[bytes, bytes | None] = {HEAD: b"%d" % number}
    for _ in range(rng.randrange(1, 8)):
        longest = rng.choice((30, 300, 3000))
        puts[b"%06d" % rng.randrange(KEYS)] = rng.choice((None, *3 * [rng.randbytes(rng.randrange(longest))]))
    return puts


def after(number: int) -> dict[bytes, bytes]:
    """Return the whole database after batch `number`; 0: nothing."""
    found: dict[bytes, bytes] = {}
    for each in range(1, number + 1):
        for key, value in batch(each).items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
    return found


def content(directory: Path) -> dict[bytes, bytes]:
    """Return the content of a database; opening it recovers it. A cut may leave some pages of the last record of its
    MANIFEST and not others: LevelDB considers that damage; `leveldb_store.engine.database` cuts the record off, and so
    does this function.
    """
    try:
        database = plyvel.DB(str(directory), write_buffer_size=WRITE_BUFFER_BYTES)
    except plyvel.CorruptionError:
        if not sum(cut_torn_end(manifest) for manifest in directory.glob("MANIFEST-*")):
            raise
        database = plyvel.DB(str(directory), write_buffer_size=WRITE_BUFFER_BYTES)
    try:
        return dict(database)
    finally:
        database.close()


def run(directory: str, promise: Callable[[int], None], how: str, batches: int) -> None:
    """Write batches, continuing after those that are there."""
    database = plyvel.DB(directory, create_if_missing=True, write_buffer_size=WRITE_BUFFER_BYTES)
    if how == "sync":
        sync_directory(directory)
    first = int(database.get(HEAD, b"0")) + 1
    for number in range(first, first + batches):
        with database.write_batch(sync=how != "unsync") as changes:
            for key, value in batch(number).items():
                if value is None:
                    changes.delete(key)
                else:
                    changes.put(key, value)
        promise(number)
    database.close()


def sync_directory(directory: str) -> None:
    """Make changes of names in the directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


if __name__ == "__main__":
    _directory, _trace, _how, _batches = sys.argv[1:]
    run(_directory, lambda number: mark(_trace, b"%d" % number), _how, int(_batches))
