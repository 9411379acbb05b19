"""The output: a directory of Parquet tables with atomic commits, all of a run or nothing (docs/adr/0028).

    OUT/TABLE/date=D/tenant=T/N-K.parquet    rows of commit N
    OUT/_mqttd/N.json                        the commit: all files of the output, and the snapshots in it
    OUT/_mqttd/staging/N/                    files of commit N, until they are moved to their place after it

A commit exists when its file does. The file is made last, by one `link`, which fails if it exists already. The next run
removes staged files without a commit, and moves committed ones to their place. So the list of snapshots and their rows
always agree, whenever a crash occurs.

Readers that use the commit (`Output.paths`) see whole commits. Readers that use the directories see the same except
while files are being moved to their place, and never a row twice.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from spark_etl.jobs import JobError

__all__ = ["FORMAT", "Commit", "File", "Output", "TakenSnapshot", "facts_of", "with_columns"]

FORMAT: Final = 1
_OWN: Final = "_mqttd"
_KEPT: Final = 10
"""Commits whose files are kept, for reference; only the last one is used."""


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file of the output."""

    path: str
    """Its name in the output."""
    table: str
    date: str
    tenant: str
    rows: int
    bytes: int
    first: int | None = None
    """The lowest number of its rows; None: they have no numbers. The same for the next field."""
    last: int | None = None
    has_queued: bool = False
    """Whether some of them may be messages that were in no archive (`origin`)."""


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """A snapshot that is in the output."""

    host: str
    epoch: str
    taken_ms: int
    path: str
    """Its path; it may have been removed since."""

    @property
    def identity(self) -> tuple[str, str, int]:
        """The snapshot's identity, wherever it or a copy of it is."""
        return self.host, self.epoch, self.taken_ms


@dataclass(frozen=True, slots=True)
class Commit:
    """The complete state of an output, as of one commit."""

    number: int = 0
    job: str = ""
    files: tuple[File, ...] = ()
    snapshots: tuple[TakenSnapshot, ...] = ()
    sequences: tuple[dict[str, Any], ...] = ()
    """The parts of each sequence of messages and events in the output (`spark_etl.source.coverage`)."""
    columns: dict[str, list[list[str]]] = field(default_factory=dict)
    """By table: [name, Spark type] of each column that some file has."""
    tables: tuple[str, ...] = ()
    """The tables of each snapshot that are written: the same from the first commit on."""
    replaced: tuple[str, ...] = ()
    """Files of the previous commit that are not in this one."""

    def of(self, table: str) -> list[File]:
        """Return the files of a table."""
        return [file for file in self.files if file.table == table]


class Output:
    """The output in a directory; `with` locks it for one run at a time, and completes or undoes an earlier run.

    Raises JobError: it is not an output, of a newer mqttd, damaged, or in use. Reading needs no lock.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._own = directory / _OWN
        self._lock = -1

    def __enter__(self) -> Self:
        try:
            if self.directory.is_dir() and not self._own.is_dir() and any(self.directory.iterdir()):
                raise JobError(f"{self.directory}: is not empty, and no output of mqttd")
            self._own.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise JobError(f"{self.directory}: another job is writing to it") from None
        except OSError as error:
            raise JobError(f"{self.directory}: {error.strerror or error}") from None
        self._settle(self.last())
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    # ---------------------------------------------------------------- reading

    @property
    def is_there(self) -> bool:
        """Whether the directory is an output."""
        return self._own.is_dir()

    def last(self) -> Commit:
        """Return the last commit; before the first one an empty one."""
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else Commit()

    def paths(self, table: str, commit: Commit | None = None) -> list[Path]:
        """Return the files of a table, as of the last commit."""
        commit = commit or self.last()
        return self.paths_of(commit.of(table), commit)

    def paths_of(self, files: Iterable[File], commit: Commit) -> list[Path]:
        """Return the paths of files of a commit, in order."""
        return [self._path(file, commit.number) for file in files]

    def _path(self, file: File, number: int) -> Path:
        # in its place, or in staging until it was moved there
        placed, staged = self.directory / file.path, self.staging(number) / file.path
        return staged if staged.exists() else placed

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._own.glob("*.json") if path.stem.isdecimal())

    def _read(self, number: int) -> Commit:
        path = self._own / f"{number:08}.json"
        try:
            found = json.loads(path.read_text())
            known = int(found["format"])
            if known > FORMAT:
                raise JobError(f"{path}: has format {known}, this mqttd reads {FORMAT}")
            return Commit(
                int(found["number"]), found["job"],
                tuple(File(**each) for each in found["files"]),
                tuple(TakenSnapshot(**each) for each in found["snapshots"]),
                tuple(found["sequences"]), found["columns"], tuple(found["tables"]),
                tuple(found["replaced"]),
            )  # fmt: skip
        except OSError as error:
            raise JobError(f"{path}: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError):
            raise JobError(f"{path}: is damaged") from None

    # ---------------------------------------------------------------- writing

    def staging(self, number: int) -> Path:
        """Return the directory of this commit's files before it."""
        return self._own / "staging" / f"{number:08}"

    def stage(self, number: int, table: str, made: Path, kept: int) -> list[File]:
        """Name the Parquet files that Spark has written below `made` as files of commit `number`, from `kept` on."""
        files: list[File] = []
        for path in sorted(made.glob("date=*/tenant=*/*.parquet")):
            date, tenant = path.parent.parent.name, path.parent.name
            name = f"{table}/{date}/{tenant}/{number:08}-{kept + len(files):05}.parquet"
            target = self.staging(number) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            facts = facts_of(target)
            _sync(target)
            files.append(
                File(name, table, _value(date), _value(tenant), facts[0], target.stat().st_size, *facts[1:])
            )  # fmt: skip
        for directory in {(self.staging(number) / file.path).parent for file in files}:
            _sync(directory)
        shutil.rmtree(made, ignore_errors=True)
        return files

    def commit(self, after: Commit) -> Commit:
        """Make it the last commit; its new files are staged. It is on the disk when this returns."""
        before = self.last()
        if after.number != before.number + 1:
            raise JobError(f"{self.directory}: another job has written to it")
        kept = {file.path for file in after.files}
        after = replace(after, replaced=tuple(file.path for file in before.files if file.path not in kept))
        _sync_tree(self.staging(after.number))
        part = self._own / f"{after.number:08}.part"
        part.write_text(json.dumps({"format": FORMAT, **asdict(after)}, indent=1) + "\n")
        _sync(part)
        os.link(part, self._own / f"{after.number:08}.json")
        part.unlink()
        _sync(self._own)
        self._settle(after)
        return after

    def _settle(self, commit: Commit) -> None:
        # after a commit, and after a crash anywhere
        staged = self.staging(commit.number)
        for name in commit.replaced:
            (self.directory / name).unlink(missing_ok=True)
        touched = set()
        for file in commit.files:
            source, target = staged / file.path, self.directory / file.path
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
                touched |= {target.parent, target.parent.parent, target.parent.parent.parent, self.directory}
        for directory in touched:
            _sync(directory)
        shutil.rmtree(self._own / "staging", ignore_errors=True)
        for part in self._own.glob("*.part"):
            part.unlink(missing_ok=True)
        for number in self._numbers()[:-_KEPT]:
            (self._own / f"{number:08}.json").unlink(missing_ok=True)


def with_columns(known: dict[str, list[list[str]]], table: str, columns: Iterable[tuple[str, str]]) -> None:
    """Add a table's present columns to `known`: columns of other releases stay, types are those of this one."""
    today = dict(columns)
    before = {name: kind for name, kind in known.get(table, []) if name not in today}
    known[table] = [[name, kind] for name, kind in {**today, **before}.items()]


def facts_of(path: Path) -> tuple[int, int | None, int | None, bool]:
    """Return a Parquet file's rows, lowest and highest number, and whether some may be of queues. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
    except pa.ArrowInvalid as error:
        raise OSError(errno.EIO, "is no Parquet file", str(path)) from error
    low, high = _bounds(metadata, "number")
    return metadata.num_rows, low, high, _bounds(metadata, "origin")[1] == "queue"


def _bounds(metadata: Any, name: str) -> tuple[Any, Any]:
    # the lowest and the highest value of a column; None: there is no column or value
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if name not in names:
        return None, None
    groups = [metadata.row_group(group).column(names.index(name)) for group in range(metadata.num_row_groups)]
    known = [each.statistics for each in groups if each.statistics is not None and each.statistics.has_min_max]
    return min((each.min for each in known), default=None), max((each.max for each in known), default=None)


def _value(directory: str) -> str:
    # Spark escapes characters that a path cannot have as %XX
    from urllib.parse import unquote

    return unquote(directory.partition("=")[2])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(directory: Path) -> None:
    for path, _, _ in os.walk(directory):
        _sync(Path(path))
