"""Iteration over the records of a LevelDB that skips unreadable ones.

LevelDB can continue behind a damaged table block, or a table that it cannot open, but plyvel's iterators repeat the
error and return nothing more. Its raw iterators raise it, too, but can still be asked for their place. So after an
error the next record is found with a raw one, and read on from there with another iterator.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator
from typing import Final

import plyvel

__all__ = ["Readable", "last_of", "readable"]

NONE: Final = (b"", b"")
_PASSING: Final = tuple(os.strerror(each) for each in (errno.EMFILE, errno.ENFILE, errno.ENOMEM))


def _is_passing(error: plyvel.Error) -> bool:
    # the error is not about the contents of the disk
    return any(each in str(error) for each in _PASSING)


class Readable:
    """Records from `start` to before `stop`, rising by key. Raises plyvel.Error when the system has no descriptor or
    no memory for it, which is temporary.
    """

    def __init__(self, db: plyvel.DB, start: bytes, stop: bytes | None) -> None:
        self.error: plyvel.Error | None = None
        """Why something before the last returned record could not be read; None: everything could."""
        self._db = db
        self._from = start
        self._stop = stop
        self._records: plyvel.Iterator | None = self._behind(start)

    def _behind(self, start: bytes) -> plyvel.Iterator:
        return self._db.iterator(start=start, stop=self._stop, verify_checksums=True, fill_cache=False)

    def next(self) -> tuple[bytes, bytes]:
        """Return (key, value); both empty: there is none."""
        self.error = None
        try:
            key, value = next(self._records, NONE) if self._records is not None else NONE
        except plyvel.Error as error:
            if _is_passing(error):
                raise
            self.error = error
            self.close()
            key, value = self._past()
            self._records = self._behind(key + b"\0") if key else None
        if key:
            self._from = key + b"\0"
        return key, value

    def _past(self) -> tuple[bytes, bytes]:
        with contextlib.closing(self._db.raw_iterator(verify_checksums=True, fill_cache=False)) as raw:
            with contextlib.suppress(plyvel.Error):
                raw.seek(self._from)
            if not raw.valid() or (self._stop is not None and raw.key() >= self._stop):
                return NONE
            return raw.key(), raw.value()

    def seek(self, start: bytes) -> None:
        """Continue with records from this key."""
        self.close()
        self._from = start
        self._records = self._behind(start)

    def close(self) -> None:
        """Close the iterators."""
        if self._records is not None:
            self._records.close()
            self._records = None


def readable(db: plyvel.DB, start: bytes, stop: bytes | None) -> Generator[tuple[bytes, bytes]]:
    """Yield the same records, as an iterator to be closed."""
    records = Readable(db, start, stop)
    try:
        while (found := records.next()) != NONE:
            yield found
    finally:
        records.close()


def last_of(db: plyvel.DB, start: bytes, stop: bytes | None) -> tuple[bytes, bytes]:
    """Return the last readable record from `start` to before `stop`; both empty: there is none."""
    with contextlib.closing(db.raw_iterator(verify_checksums=True, fill_cache=False)) as raw:
        with contextlib.suppress(plyvel.Error):
            if stop is not None:
                raw.seek(stop)
        with contextlib.suppress(plyvel.Error):
            if stop is not None and raw.valid():
                raw.prev()
            else:
                raw.seek_to_last()
        if not raw.valid() or raw.key() < start:
            return NONE
        return raw.key(), raw.value()
