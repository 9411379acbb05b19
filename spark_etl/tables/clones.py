"""Clones of a snapshot's stores, one for each task: LevelDB lets one process open a database, and opening writes.

A clone lies in a directory of its own, `.reading-...`, beside the snapshot's stores where that may be written to, else
where temporary files are. As long as its task lives it holds a lock on that directory, which goes with the process,
however that ends: what nobody has locked is of a task that was killed, and the next reader removes it.
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
    """A clone of a snapshot's database, opened, and removed at the end. Raises CloneError and OSError."""
    with _directory(place_of(database, scratch)) as directory:
        target = directory / database.name
        clone(database, target, is_kept=True)
        with opened_as_it_is(target) as db:
            yield db


def place_of(database: Path, scratch: str | None = None) -> Path:
    """Where its clones are made."""
    if scratch:
        return Path(scratch)
    beside = database.parent
    return beside if os.access(beside, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def sweep(place: Path) -> None:
    """Remove clones there whose tasks are gone."""
    for path in place.glob(f"{PREFIX}*"):
        lock = _lock(path)
        if lock is not None:
            remove(path)
            os.close(lock)


@contextlib.contextmanager
def _directory(place: Path) -> Iterator[Path]:
    lock = None
    while lock is None:  # again, where somebody's sweep was faster than the lock
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
        lock = _lock(path)
    try:
        yield path
    finally:
        remove(path)
        os.close(lock)


def _lock(directory: Path) -> int | None:
    # a descriptor that has it locked; None: somebody else has, or it is gone
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
