"""Copies of a LevelDB that another process may be writing to: `clone`. `reading` opens a clone, to keep the original as
it is.

LevelDB cannot open a database for reading only, and only one process can open it. So a program that reads the database
of a running worker makes a clone, which costs hard links of its tables (they never change once they are finished) and a
copy of its last log, and opens that.

Observed to destroy the source: linking every table in its directory. A table younger than the copied MANIFEST has a
number that MANIFEST considers free; the recovery of the copy gives it to a table of its own, and truncates the file,
which is the source's as well. The safe steps, done here:

1. Read CURRENT and the MANIFEST that it names; take the latter up to its last whole record.
2. Link the tables that it names, no others: each has a number below its next free one.
3. Copy the logs from its log number on, oldest first. They have everything that is not in a table.
4. Read CURRENT and MANIFEST again. If the log number has changed, a log may have become a table that was not
   linked; if a file of step 2 or 3 was gone, a compaction had removed it: start again.

A clone has a prefix of what was written: each log is copied up to some length, and LevelDB skips a truncated last
record. The writing process is not involved, and notices nothing.

On another file system tables cannot be linked. Then they are linked beside the source (`.clone-PID-NAME`), which
takes no time, and copied from there, which does.

This module needs plyvel to open, and nothing of ours: other programs use it on snapshots. Formats:
leveldb/doc/log_format.md, leveldb/db/version_edit.cc.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import plyvel

__all__ = ["Clone", "CloneError", "Version", "clone", "opened", "opened_as_it_is", "reading", "remove", "version_of"]

ATTEMPTS_MAX: Final = 100
"""A writer that fills a write buffer in less time than a clone takes is faster than any disk."""
WRITE_BUFFER_BYTES: Final = 64 << 20
OPEN_FILES: Final = 80
CACHE_BYTES: Final = 1 << 20

_BLOCK_BYTES: Final = 32_768
_HEAD: Final = struct.Struct("<IHB")  # masked CRC-32C, length, type
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MANIFEST: Final = re.compile(r"MANIFEST-\d+")
_LOG_NAME: Final = re.compile(r"(\d+)\.log")
_STAGE: Final = re.compile(r"\.clone-(\d+)-.*")
_PIECE_BYTES: Final = 1 << 20
_CANNOT_LINK: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}
_NUMBER: Final = re.compile(r"\d+")
_IN_THE_WAY: Final = 8
"""Table names that are occupied: more than a compaction can have begun meanwhile."""
_OF_AN_OPENING: Final = ("LOG", "LOG.old", "LOCK")


class CloneError(Exception):
    """The database cannot be cloned or opened: one line."""


class _Moved(Exception):
    """The database has changed meanwhile."""


@dataclass(slots=True)
class Version:
    """The content of a MANIFEST: the files that make up the database."""

    log_number: int = 0
    """Logs with a lower number are in tables."""
    previous_log: int = 0
    """An older log still needed; 0: none."""
    next_file: int = 0
    tables: dict[int, int] = field(default_factory=dict)
    """Number -> bytes."""
    whole_bytes: int = 0
    """Length of the MANIFEST, up to the end of its last whole record."""


@dataclass(frozen=True, slots=True)
class Clone:
    """The result of cloning."""

    tables: int
    table_bytes: int
    log_bytes: int
    attempts: int
    is_linked: bool
    """Whether tables are the same files as those of the source, or symbolic links to them."""


def clone(source: Path, target: Path, *, is_kept: bool = False) -> Clone:
    """Make `target`, missing or empty, a copy of the database `source`, which may be written to meanwhile.

    `is_kept`: `source` is never written to and exists as long as the copy (a snapshot): if its tables cannot be linked,
    because of their owner or another file system, symbolic links are made.

    Raises CloneError and OSError; then `target` has no files.
    """
    target.mkdir(mode=0o700, exist_ok=True)
    if any(target.iterdir()):
        raise CloneError(f"{target}: is not empty")
    try:
        try:
            return _again_and_again(source, target)
        except OSError as error:
            _empty(target)
            if error.errno not in _CANNOT_LINK:
                raise
        return _again_and_again(source, target, _name) if is_kept else _by_copying(source, target)
    except BaseException:
        _empty(target)
        raise


def remove(path: Path) -> None:
    """Remove a clone."""
    shutil.rmtree(path, ignore_errors=True)


def opened(path: Path) -> plyvel.DB:
    """Open a clone, never an original. The contents of its logs become tables. Raises CloneError."""
    import plyvel

    try:
        return plyvel.DB(
            str(path),
            create_if_missing=False,
            paranoid_checks=True,
            write_buffer_size=WRITE_BUFFER_BYTES,
            lru_cache_size=CACHE_BYTES,
            max_open_files=OPEN_FILES,
            bloom_filter_bits=10,
        )
    except plyvel.Error as error:
        raise CloneError(f"{path}: cannot be opened: {_error_text(error)}") from None


@contextlib.contextmanager
def opened_as_it_is(path: Path) -> Iterator[plyvel.DB]:
    """Open a clone for reading only: its tables stay those of the source. Raises CloneError.

    LevelDB compacts an open database whenever a level is too large, as one of a store under load mostly is: that takes
    a third of a reader's CPU time, and makes new files instead of links. No option turns it off; but a compaction that
    cannot create its table does, until the database is closed. So directories occupy the names of the next tables
    meanwhile.
    """
    db = opened(path)
    taken = [int(found[0]) for name in os.listdir(path) if (found := _NUMBER.search(name))]
    in_the_way = [path / f"{max(taken) + each:06}.ldb" for each in range(1, _IN_THE_WAY + 1)]
    try:
        for directory in in_the_way:
            with contextlib.suppress(FileExistsError):  # a compaction was faster: it fails at the next one
                directory.mkdir()
        yield db
    finally:
        db.close()
        for directory in in_the_way:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                directory.rmdir()


@contextlib.contextmanager
def reading(path: Path, beside: Path | None = None) -> Iterator[plyvel.DB]:
    """Open the content of the database at `path`, which nobody writes to and which stays as it is.

    Opens a clone in a directory of its own: below `beside`, or the directory of `path`, where tables can be linked,
    else in the directory of temporary files. Raises CloneError and OSError.
    """
    with clone_for_reading(path, beside) as cloned, opened_as_it_is(cloned) as db:
        yield db


@contextlib.contextmanager
def clone_for_reading(path: Path, beside: Path | None = None) -> Iterator[Path]:
    """Make the same clone without opening it."""
    directory: str | None = str(beside or path.parent)
    if not os.access(str(directory), os.W_OK | os.X_OK):
        directory = None
    with tempfile.TemporaryDirectory(prefix=f".clone-{os.getpid()}-", dir=directory) as name:
        cloned = Path(name, path.name)
        clone(path, cloned)
        yield cloned


def closed_for_good(path: Path) -> None:
    """Clean up a closed database that will not be opened again: remove the extra files that openings leave."""
    for name in _OF_AN_OPENING:
        (path / name).unlink(missing_ok=True)


# ---------------------------------------------------------------- MANIFEST


def version_of(manifest: bytes) -> Version:
    """Parse a MANIFEST up to its last whole record. Raises CloneError if it is invalid."""
    version = Version()
    for record, end in _records(manifest):
        try:
            _apply(version, record)
        except (IndexError, KeyError, ValueError) as error:
            raise CloneError(f"MANIFEST: a record that ends at byte {end} is damaged: {error!r}") from None
        version.whole_bytes = end
    return version


def _records(data: bytes) -> Iterator[tuple[bytes, int]]:
    # (record, offset of its end), as far as they are whole. Checksums are left to LevelDB.
    parts: list[bytes] = []
    at = 0
    while True:
        room = _BLOCK_BYTES - at % _BLOCK_BYTES
        if room < _HEAD.size:
            at += room
            continue
        if at + _HEAD.size > len(data):
            return
        _, length, kind = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if end > len(data) or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or _HEAD.size + length > room:
            return
        if kind in (_WHOLE, _FIRST):
            parts = []
        parts.append(data[at + _HEAD.size : end])
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts), end
        at = end


class _Fields:
    # the fields of a record: varints, and strings with their length before them
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def skip_text(self) -> None:
        size = self.number()
        self._at += size
        if self._at > len(self._data):
            raise ValueError("cut off")


def _apply(version: Version, record: bytes) -> None:
    fields = _Fields(record)
    while fields:
        match fields.number():
            case 1:  # the comparator's name
                fields.skip_text()
            case 2:
                version.log_number = fields.number()
            case 3:
                version.next_file = fields.number()
            case 4:  # the last sequence number
                fields.number()
            case 5:  # where the next compaction of a level begins
                fields.number()
                fields.skip_text()
            case 6:
                fields.number()
                del version.tables[fields.number()]
            case 7:
                fields.number()
                number = fields.number()
                version.tables[number] = fields.number()
                fields.skip_text()
                fields.skip_text()
            case 9:
                version.previous_log = fields.number()
            case tag:
                raise ValueError(f"tag {tag}")


# ---------------------------------------------------------------- files


def _again_and_again(source: Path, target: Path, take: _Take | None = None) -> Clone:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return _attempt(source, target, attempt, take or _link)
        except _Moved:
            for log in target.glob("*.log"):
                log.unlink()  # linked tables that are still named are kept: only few are new each time
    raise CloneError(f"{source}: it was compacted faster than it could be cloned, {ATTEMPTS_MAX} times")


def _attempt(source: Path, target: Path, attempt: int, take: _Take) -> Clone:
    name, manifest, version = _look(source)
    size = 0
    for file in target.iterdir():
        if int(file.stem) not in version.tables:
            file.unlink()
    for number, wanted in version.tables.items():
        if number >= version.next_file:
            raise CloneError(f"{source}: MANIFEST lists table {number}, but counts its number as free")
        size += _take_table(source, target, number, wanted, take)
    numbers = sorted(each for each in _logs(source) if each >= version.log_number or each == version.previous_log)
    if version.log_number not in numbers:
        raise _Moved
    logged = sum(_copy(source / f"{number:06}.log", target / f"{number:06}.log") for number in numbers)
    name_now, _, now = _look(source)
    if (name_now, now.log_number, now.previous_log) != (name, version.log_number, version.previous_log):
        raise _Moved
    (target / name).write_bytes(manifest[: version.whole_bytes])
    (target / "CURRENT").write_text(f"{name}\n")
    return Clone(len(version.tables), size, logged, attempt, take is not _copy)


def _look(source: Path) -> tuple[str, bytes, Version]:
    # (MANIFEST's name, its content, its parsed version)
    try:
        name = (source / "CURRENT").read_text().strip()
    except FileNotFoundError:
        raise CloneError(f"{source}: is not a database (it has no CURRENT)") from None
    if not _MANIFEST.fullmatch(name):
        raise CloneError(f"{source}: CURRENT is damaged")
    try:
        manifest = (source / name).read_bytes()
    except FileNotFoundError:
        raise _Moved from None
    version = version_of(manifest)
    if not version.whole_bytes:
        raise CloneError(f"{source}: {name} is damaged")
    return name, manifest, version


def _logs(source: Path) -> Iterator[int]:
    for name in os.listdir(source):
        found = _LOG_NAME.fullmatch(name)
        if found is not None:
            yield int(found[1])


def _take_table(source: Path, target: Path, number: int, wanted: int, take: _Take) -> int:
    for suffix in ("ldb", "sst"):  # the latter of LevelDB before 1.14
        name = f"{number:06}.{suffix}"
        try:
            size = wanted if (target / name).exists() else take(source / name, target / name)
        except FileNotFoundError:
            continue
        except _Moved:
            continue
        if size != wanted:
            raise CloneError(f"{source}: table {name} has {size} bytes, MANIFEST says {wanted}")
        return size
    raise _Moved


_Take: TypeAlias = Callable[[Path, Path], int]
"""Links or copies a table, and returns its size. FileNotFoundError, _Moved: it does not exist."""


def _link(source: Path, target: Path) -> int:
    os.link(source, target, follow_symlinks=False)
    return os.stat(target).st_size


def _name(source: Path, target: Path) -> int:
    size = os.stat(source).st_size
    os.symlink(source.resolve(), target)
    return size


def _copy(source: Path, target: Path) -> int:
    # up to its present length, which is returned
    try:
        read = open(source, "rb", buffering=0)  # noqa: SIM115  it is closed below
    except FileNotFoundError:
        raise _Moved from None
    with read, open(target, "xb", buffering=0, opener=_private) as written:
        size, at = os.fstat(read.fileno()).st_size, 0
        while at < size:
            piece = os.pread(read.fileno(), min(size - at, _PIECE_BYTES), at)
            if not piece:
                break
            written.write(piece)
            at += len(piece)
        return at


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _by_copying(source: Path, target: Path) -> Clone:
    for each in source.parent.iterdir():
        found = _STAGE.fullmatch(each.name)
        if found is not None and not os.path.exists(f"/proc/{found[1]}"):
            remove(each)  # the remains of a killed process
    stage = source.parent / f".clone-{os.getpid()}-{source.name}"
    try:
        stage.mkdir(mode=0o700)
        made = _again_and_again(source, stage)
    except OSError as error:
        remove(stage)
        if error.errno not in {*_CANNOT_LINK, errno.EACCES, errno.EROFS}:
            raise
        return _again_and_again(source, target, _copy)  # not written to, or small
    except BaseException:
        remove(stage)
        raise
    try:
        for file in sorted(stage.iterdir()):
            _copy(file, target / file.name)
    finally:
        remove(stage)
    return Clone(made.tables, made.table_bytes, made.log_bytes, made.attempts, False)


def _empty(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()


def _error_text(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
