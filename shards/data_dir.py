"""The data directory, which outlives the broker: one store for each worker, and files shared by all.

    mqttd.lock      locked by every process of the broker that uses the directory, as long as one of them lives
    clock.json      the broker's time at its last run, see shards.clock
    store.json      {"format": 1, "workers": N, "epoch": "...", "generation": G, "archive": "...", "schema": V}:
                    identifies the current stores
    worker-I        the store of worker I, a LevelDB; of generation G > 0: worker-I.G

The worker of a session or a retained message depends on the number of workers. For another number, new stores are made
beside the old ones, under the next generation, by a function given here; then store.json is replaced, which makes them
the current stores; then the old ones are removed. Opening the directory removes stores of any other generation than
that in store.json: incomplete new stores, or remaining old ones. A new epoch is drawn with each generation: it
identifies these stores and no others. The epoch of the archive is drawn once and kept, so positions in the archive that
clients hold stay valid.

Stores of an older schema are upgraded in the same way, before anything else: new ones are made beside them, by another
function given here. They are the same stores in another form, and keep their epoch.

A broker that was killed leaves nothing behind that must be removed by hand. Its workers die with it, a moment later: a
broker that starts at once waits for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from shards import clock

FORMAT = 1
LOCK_SECONDS_MAX = 2.0
"""Time that a start waits for a broker that is dying."""

_LOCK = "mqttd.lock"
_STORE = "store.json"
_WORKER = "worker-"
_EVERY_SECONDS = 0.02
_OF_FILE_SYSTEMS = {"lost+found"}  # may be in a new, empty file system that is mounted here
_NAME = re.compile(r"worker-(\d+)(?:\.(\d+))?")


class DataDirError(Exception):
    """The directory cannot be used. The text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The content of store.json."""

    workers: int
    epoch: str
    generation: int = 0
    archive: str = ""
    """The epoch of the archive: drawn once, and kept by all later generations."""
    schema: int = 0
    """Schema version of all stores; 0: not known (an earlier release, or a restored snapshot)."""

    def path(self, data_dir: str, worker: int) -> str:
        """Return the path of a worker's store."""
        suffix = f".{self.generation}" if self.generation else ""
        return os.path.join(data_dir, f"{_WORKER}{worker}{suffix}")


@dataclass(frozen=True, slots=True)
class StoreChange:
    """A change from the stores of one number of workers, or of one schema, to those of another."""

    old: list[Path]
    new: list[Path]
    """Paths of the new stores: empty directories."""
    old_epoch: str
    epoch: str


def read_layout(data_dir: str) -> StoreLayout:
    """Read store.json. FileNotFoundError: missing. DataDirError: damaged, or of another format."""
    try:
        found = json.loads(Path(data_dir, _STORE).read_text())
        known, workers, epoch, generation = (
            found["format"], found["workers"], found["epoch"], found.get("generation", 0),
        )  # fmt: skip
        archive, schema = found.get("archive", epoch), int(found.get("schema", 0))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataDirError(f"data_dir {data_dir}: {_STORE} is damaged") from None
    if known != FORMAT:
        raise DataDirError(f"data_dir {data_dir}: has format {known}, this is mqttd for format {FORMAT}")
    return StoreLayout(workers, epoch, generation, archive, schema)


def store_path(data_dir: str, worker: int) -> str:
    """Return the path of a worker's store, in a directory that a DataDir has opened."""
    return read_layout(data_dir).path(data_dir, worker)


def epoch_of(data_dir: str) -> str:
    """Return the epoch of a directory that a DataDir has opened."""
    return read_layout(data_dir).epoch


def archive_epoch_of(data_dir: str) -> str:
    """Return the archive's epoch of a directory that a DataDir has opened."""
    return read_layout(data_dir).archive


class DataDir:
    """An open data directory; forked processes inherit the lock, which ends with the last of them."""

    def __init__(
        self,
        path: str,
        workers: int,
        repartition: Callable[[StoreChange], None] | None = None,
        upgrade: Callable[[StoreChange], bool] | None = None,
        schema: int = 0,
    ) -> None:
        """`path` is created (0700) if it is missing, its parents are not. `repartition` fills the stores for another
        number of workers than the directory was made for; when it returns they are on the disk. Without it, another
        number is refused. `upgrade` does the same for stores that may be older than `schema`, or returns False if none
        is, and has then made none. Raises DataDirError, and the exceptions of `repartition` and `upgrade`.
        """
        self.path = os.path.abspath(path)
        self._repartition = repartition
        self._upgrade = upgrade
        self._schema = schema
        try:
            self._open(workers)
        except OSError as error:
            raise DataDirError(f"data_dir {self.path}: {error.strerror or error}") from None

    def close(self) -> None:
        """Close it, and release this process's lock."""
        os.close(self._lock)

    def _open(self, workers: int) -> None:
        made = False
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
            made = True
        names = set(os.listdir(self.path)) - _OF_FILE_SYSTEMS
        if names and not names & {_LOCK, _STORE}:
            raise DataDirError(f"data_dir {self.path}: is not empty, and not a data directory of mqttd")
        self._lock = lock(self.path)
        try:
            self._settle(workers)
        except BaseException:
            os.close(self._lock)
            raise
        if made:
            _sync(os.path.dirname(self.path))

    def _settle(self, workers: int) -> None:
        try:
            now = read_layout(self.path)
        except FileNotFoundError:
            if any(name.startswith(_WORKER) for name in os.listdir(self.path)):
                raise DataDirError(f"data_dir {self.path}: has stores, but no {_STORE} with their number") from None
            now = StoreLayout(workers, secrets.token_hex(8), archive=secrets.token_hex(8), schema=self._schema)
            self._replace(self._write_part(now))
        if now.schema > self._schema > 0:
            raise DataDirError(
                f"data_dir {self.path}: has schema version {now.schema}, which a newer mqttd has written: this one "
                f"knows version {self._schema}"
            )
        self._remove_others(now)
        if now.schema < self._schema and self._upgrade is not None:
            now = self._upgraded(now, self._upgrade)
        if now.workers != workers:
            now = self._change(now, workers)
        self.epoch = now.epoch
        self._make(now)

    def _upgraded(self, now: StoreLayout, upgrade: Callable[[StoreChange], bool]) -> StoreLayout:
        new = replace(now, generation=now.generation + 1, schema=self._schema)
        return self._superseded(now, new, upgrade)

    def _superseded(self, now: StoreLayout, new: StoreLayout, make: Callable[[StoreChange], bool]) -> StoreLayout:
        """Make new stores beside the current ones, which they then replace: store.json names complete stores at every
        moment. `make` fills them; False: there was nothing to do, and the stores stay as they are.
        """
        change = StoreChange(*self._stores_of(now, new), now.epoch, new.epoch)
        self._make(now)
        try:
            self._make(new)
            if not make(change):
                new = replace(new, generation=now.generation)
            part = self._write_part(new)
        except BaseException:
            self._remove_others(now)
            raise
        self._replace(part)  # after an error from here on, neither may be removed
        self._remove_others(new)
        return new

    def _stores_of(self, now: StoreLayout, new: StoreLayout) -> tuple[list[Path], list[Path]]:
        old, beside = ([Path(each.path(self.path, i)) for i in range(each.workers)] for each in (now, new))
        return old, beside

    def _change(self, now: StoreLayout, workers: int) -> StoreLayout:
        repartition = self._repartition
        if repartition is None:
            raise DataDirError(
                f"data_dir {self.path}: was made for {now.workers} workers, not for {workers}: start with "
                f"--workers {now.workers}, or with another --data-dir"
            )

        def make(change: StoreChange) -> bool:
            repartition(change)
            return True

        new = StoreLayout(workers, secrets.token_hex(8), now.generation + 1, now.archive, now.schema)
        return self._superseded(now, new, make)

    def _write_part(self, now: StoreLayout) -> Path:
        """Write the next store.json to a temporary file on the disk."""
        part = Path(self.path, _STORE).with_suffix(".part")
        _write(part, _content(now))
        return part

    def _replace(self, part: Path) -> None:
        part.rename(Path(self.path, _STORE))
        _sync(self.path)

    def _make(self, now: StoreLayout) -> None:
        for worker in range(now.workers):
            with contextlib.suppress(FileExistsError):
                os.mkdir(now.path(self.path, worker), 0o700)
        _sync(self.path)

    def _remove_others(self, now: StoreLayout) -> None:
        for name in os.listdir(self.path):
            found = _NAME.fullmatch(name)
            if found is not None and int(found[2] or 0) != now.generation:
                shutil.rmtree(os.path.join(self.path, name))


@contextlib.contextmanager
def making(path: str, workers: int, archive: str) -> Iterator[tuple[list[Path], str]]:
    """A new data directory, with an archive of that epoch. Yields the paths of its stores, which do not exist yet, and
    its epoch; it is complete when the block ends. If the block raises, its contents are removed. Its parent must exist.

    Raises DataDirError if it is not empty, and OSError.
    """
    made = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        made = True
    if set(os.listdir(path)) - _OF_FILE_SYSTEMS:
        raise DataDirError(f"data_dir {path}: is not empty")
    held = lock(path)
    new = StoreLayout(workers, secrets.token_hex(8), archive=archive)
    stores = [Path(new.path(path, worker)) for worker in range(workers)]
    store, part = Path(path, _STORE), Path(path, _STORE).with_suffix(".part")
    try:
        yield stores, new.epoch
        _write(part, _content(new))
        part.rename(store)
        _sync(path)
        _sync(os.path.dirname(os.path.abspath(path)))
    except BaseException:
        for each in stores:
            shutil.rmtree(each, ignore_errors=True)
        for file in (part, store, Path(path, clock.FILE), Path(path, _LOCK)):
            file.unlink(missing_ok=True)
        if made:
            os.rmdir(path)
        raise
    finally:
        os.close(held)


def _content(now: StoreLayout) -> str:
    content = {
        "format": FORMAT, "workers": now.workers, "epoch": now.epoch, "generation": now.generation,
        "archive": now.archive, "schema": now.schema,
    }  # fmt: skip
    return json.dumps(content) + "\n"


def lock(path: str, seconds: float = LOCK_SECONDS_MAX) -> int:
    """Lock the directory, waiting a moment for a dying broker; return the lock's descriptor. DataDirError: in use."""
    descriptor = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(descriptor)
                raise DataDirError(f"data_dir {path}: in use by another mqttd") from None
            time.sleep(_EVERY_SECONDS)
        else:
            return descriptor


def _write(file: Path, text: str) -> None:
    """Write the file to the disk with all of the text; after an error there is no file."""
    try:
        with open(file, "w", opener=lambda path, flags: os.open(path, flags | os.O_CLOEXEC, 0o600)) as written:
            written.write(text)
            written.flush()
            os.fsync(written.fileno())
    except OSError:
        file.unlink(missing_ok=True)
        raise


def _sync(directory: str) -> None:
    """Make the names in the directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
