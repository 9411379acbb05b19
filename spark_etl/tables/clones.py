"""Clones of a snapshot's stores, one for each task: LevelDB lets one process open a database, and opening writes.

A clone is in a directory of its own, `.reading-...`, beside the snapshot's stores if that is writable, else in the
directory of temporary files. As long as its task lives it holds a lock on that directory, which the kernel releases
with the process: an unlocked one belongs to a task that was killed, and the next reader removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leveldb_store.snapshots.clone import clone, opened_as_it_is, remove

if TYPE_CHECKING:
    import plyvel

__all__ = ["cloned", "place_of", "sweep"]

PREFIX: Final = ".reading-"


@contextlib.contextmanager
def cloned(database: Path, scratch: str | None = None) -> Iterator[plyvel.DB]:
    """Yield a clone of a snapshot's database, open; it is removed at the end. Raises CloneError and OSError."""
    with _directory(place_of(database, scratch)) as directory:
        target = directory / database.name
        clone(database, target, is_kept=True)
        with opened_as_it_is(target) as db:
            yield db


def place_of(database: Path, scratch: str | None = None) -> Path:
    """Return the directory where its clones are made."""
    if scratch:
        return Path(scratch)
    beside = database.parent
    return beside if os.access(beside, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def sweep(place: Path) -> None:
    """Remove clones there whose tasks have ended."""
    for path in place.glob(f"{PREFIX}*"):
        lock = _lock(path)
        if lock is not None:
            remove(path)
            os.close(lock)


@contextlib.contextmanager
def _directory(place: Path) -> Iterator[Path]:
    lock = None
    while lock is None:  # again, if another task's sweep was faster than the lock
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
        lock = _lock(path)
    try:
        yield path
    finally:
        remove(path)
        os.close(lock)


def _lock(directory: Path) -> int | None:
    # a descriptor that holds its lock; None: another process holds it, or it is gone
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if not directory.exists():
        os.close(descriptor)
        return None
    return descriptor
