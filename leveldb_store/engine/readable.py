"""Records of a LevelDB one behind the other, past what cannot be read.

LevelDB goes on behind a damaged block of a table, or behind a table that it cannot open, but plyvel's iterators say the
error again and again and give nothing more. Its raw ones say it as well, and can be asked all the same where they are.
So behind an error the next record is found with a raw one, and read on from there with another iterator.
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
    # it says nothing of what is on the disk
    return any(each in str(error) for each in _PASSING)


class Readable:
    """Records from `start` to before `stop`, rising by key. Raises plyvel.Error when the system has no descriptor or
    no memory for it: that passes.
    """

    def __init__(self, db: plyvel.DB, start: bytes, stop: bytes | None) -> None:
        self.error: plyvel.Error | None = None
        """Why something that lay before the record given last could not be read; None: nothing did."""
        self._db = db
        self._from = start
        self._stop = stop
        self._records: plyvel.Iterator | None = self._behind(start)

    def _behind(self, start: bytes) -> plyvel.Iterator:
        return self._db.iterator(start=start, stop=self._stop, verify_checksums=True, fill_cache=False)

    def next(self) -> tuple[bytes, bytes]:
        """(key, value); both empty: there is none."""
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
        """Go on with records from this key."""
        self.close()
        self._from = start
        self._records = self._behind(start)

    def close(self) -> None:
        """Let go of it."""
        if self._records is not None:
            self._records.close()
            self._records = None


def readable(db: plyvel.DB, start: bytes, stop: bytes | None) -> Generator[tuple[bytes, bytes]]:
    """The same as an iterator, to be closed."""
    records = Readable(db, start, stop)
    try:
        while (found := records.next()) != NONE:
            yield found
    finally:
        records.close()


def last_of(db: plyvel.DB, start: bytes, stop: bytes | None) -> tuple[bytes, bytes]:
    """The last record from `start` to before `stop` that can be read; both empty: there is none."""
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
