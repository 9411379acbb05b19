"""`mqttd snapshot` copies all stores while the broker runs; `mqttd restore` makes a data directory of such a copy.

A snapshot asks nothing of a running broker: cloning the stores (`leveldb_store.snapshots.clone`) takes a moment, and
the slow part, reading all of it for counts and checksums, is done in this process at low priority. Without `--out` it
is one of all hosts of a cluster (`broker.cli.cluster_snapshot`), each of which runs this command for its own stores.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plyvel

import broker
from broker.config.loading import ENVIRONMENT_CONFIG, load
from broker.config.settings import ConfigError
from leveldb_store.engine.database import error_text
from leveldb_store.format import schema
from leveldb_store.snapshots.clone import CloneError, remove
from leveldb_store.snapshots.cluster_facts import ClusterFacts
from leveldb_store.snapshots.restoring import restore
from leveldb_store.snapshots.snapshot import NAME as SNAPSHOT_NAME
from leveldb_store.snapshots.snapshot import Manifest, SnapshotError, Taking, read_manifest
from shards import clock, data_dir
from shards.console import BrokerFile
from shards.data_dir import DataDirError, StoreLayout

__all__ = ["restore_main", "snapshot_main"]

_BAD_USAGE = 2
_CANNOT_USE_DATA = 4
_INTERRUPTED = 130
_ATTEMPTS = 3
_NICE = 10
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE_CLASS = 3 << 13  # linux/ioprio.h
_PROGRESS_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_ROOM_BYTES = 64 << 20  # spare room beside the stores: the contents of logs become tables


class _Refused(Exception):
    """An error for the user, in one line."""

    def __init__(self, line: str, status: int = _CANNOT_USE_DATA) -> None:
        super().__init__(line)
        self.status = status


def snapshot_main(arguments: Sequence[str]) -> int:
    """Take a snapshot. Exit status: 0 done, 1 no broker answers, 2 wrong usage, 3 done, but some hosts are missing,
    4 the data directory or the disk cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="mqttd snapshot",
        description="Copy the stores of a broker, which may be running, into a new directory; without --out the stores "
        "of all hosts of its cluster, each into the directory that is configured there (cluster.snapshot_dir).",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data-dir", metavar="DIR", help="data directory of the broker (default: as configured)")
    where.add_argument("--runtime-dir", metavar="DIR", help="runtime directory of a broker with its store in memory")
    of = parser.add_mutually_exclusive_group()
    of.add_argument("--out", metavar="DIR", help="directory to create; may exist if empty")
    of.add_argument("--node", metavar="NODE", help="without --out: of this host alone")
    parser.add_argument("--config", metavar="FILE", help="configuration file of the broker; also MQTTD_CONFIG")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--of-cluster", type=json.loads, help=argparse.SUPPRESS)  # what a broker says that runs this
    given = parser.parse_args(arguments)
    if given.out is None:
        taken: int = importlib.import_module("broker.cli.cluster_snapshot").take(given)
        return taken
    if given.runtime_dir is not None:
        parser.error("--runtime-dir: a store in memory cannot be copied")
    with _one_line_each() as (status, interruption):
        directory = given.data_dir or load(given.config or os.environ.get(ENVIRONMENT_CONFIG), os.environ).data_dir
        cluster = _cluster_of(directory) if given.of_cluster is None else _end_with_broker(given.of_cluster)
        if cluster is not None and cluster.id:
            Path(given.out).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _snapshot(directory, Path(given.out), cluster, interruption, as_json=given.json)
    return status[0]


def _cluster_of(directory: str) -> ClusterFacts | None:
    """Return what a running broker says of its cluster; None: none runs there, or it is in none."""
    try:
        return ClusterFacts.decode(BrokerFile.read(directory).get("cluster"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _end_with_broker(said: dict[str, Any]) -> ClusterFacts | None:
    """End as if interrupted when the process ends that has started this one."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != said["parent"]:
        raise KeyboardInterrupt
    return ClusterFacts.decode(said)


def restore_main(arguments: Sequence[str]) -> int:
    """Make a data directory. Exit status: 0 done, 2 wrong usage, 4 the snapshot or the disk cannot be used."""
    parser = argparse.ArgumentParser(prog="mqttd restore", description="Make a data directory from a snapshot.")
    parser.add_argument("--from", dest="snapshot", metavar="SNAPSHOT", required=True, help="made by `mqttd snapshot`")
    parser.add_argument("--data-dir", metavar="DIR", required=True, help="directory to create; may exist if empty")
    given = parser.parse_args(arguments)
    with _one_line_each() as (status, interruption):
        _restore(Path(given.snapshot), given.data_dir, interruption)
    return status[0]


class _Interruption:
    """SIGINT and SIGTERM, handled only where progress is reported; they raise nothing anywhere else. So code that makes
    a directory always knows that it has, a removal is always completed, and no thread's lock is left held.
    """

    def __init__(self) -> None:
        self._is_due = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Handle the signals inside this context."""
        former = {number: signal.signal(number, self._come) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def look(self) -> None:
        """Raise KeyboardInterrupt if a signal has arrived."""
        if self._is_due:
            raise KeyboardInterrupt

    def _come(self, *_: object) -> None:
        self._is_due = True


@contextlib.contextmanager
def _one_line_each() -> Iterator[tuple[list[int], _Interruption]]:
    # yields a list that takes the exit status
    status, interruption = [0], _Interruption()
    try:
        with interruption.watched():
            yield status, interruption
    except ConfigError as error:
        for line in error.lines:
            print(f"mqttd: {line}", file=sys.stderr)
        status[0] = _BAD_USAGE
    except KeyboardInterrupt:
        print("mqttd: interrupted; all new files were removed", file=sys.stderr)
        status[0] = _INTERRUPTED
    except _Refused as error:
        print(f"mqttd: {error}", file=sys.stderr)
        status[0] = error.status
    except (DataDirError, CloneError, SnapshotError) as error:
        print(f"mqttd: {error}", file=sys.stderr)
        status[0] = _CANNOT_USE_DATA
    except (plyvel.Error, schema.SchemaError) as error:
        print(f"mqttd: a store cannot be read: {error_text(error)} (mqttd store verify says more)", file=sys.stderr)
        status[0] = _CANNOT_USE_DATA
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"mqttd: {where}{error.strerror or error}", file=sys.stderr)
        status[0] = _CANNOT_USE_DATA


# ---------------------------------------------------------------- snapshot


def _snapshot(
    directory: str, out: Path, cluster: ClusterFacts | None, interruption: _Interruption, *, as_json: bool
) -> None:
    now = _layout(directory)
    made = _make_out(directory, out)
    progress = _Progress(f"mqttd: snapshot {out}", interruption)
    try:
        _check_room(out, _wanted(directory, now, out))
        taking, now = _cloned(directory, now, out, progress)
        _step_back()
        times = clock.kept(directory)
        manifest = taking.finish(broker.__version__, now.epoch, now.generation, now.archive, times, cluster)
    except BaseException:
        _empty(out)
        if made:
            out.rmdir()
        raise
    progress.end()
    _say_copied(taking, out)
    if as_json:
        print(json.dumps(_facts_of(manifest, taking, out)))
        return
    print(f"{_summary_of(manifest, out)}; cloned in {taking.seconds:.3f} s, all in {progress.seconds():.3f} s")


def _layout(directory: str) -> StoreLayout:
    try:
        return data_dir.read_layout(directory)
    except FileNotFoundError:
        raise _Refused(f"{directory}: is not a data directory of mqttd (it has no store.json)") from None


def _make_out(directory: str, out: Path) -> bool:
    # returns whether the directory did not exist
    inside, outside = Path(directory).resolve(), out.resolve()
    if inside == outside or inside in outside.parents:
        raise _Refused(f"{out}: lies in the data directory", _BAD_USAGE)
    _check_outside(out)
    try:
        out.mkdir(mode=0o700)
    except FileExistsError:
        if not out.is_dir() or any(out.iterdir()):
            raise _Refused(f"{out}: exists and is not empty", _BAD_USAGE) from None
        return False
    except FileNotFoundError:
        raise _Refused(f"{out.parent}: is not a directory", _BAD_USAGE) from None
    return True


def _empty(out: Path) -> None:
    # the directory was empty, so everything in it is ours
    for each in out.iterdir():
        if each.is_dir():
            remove(each)
        else:
            each.unlink()


def _check_outside(path: Path) -> None:
    # a snapshot is never changed: verifying or removing it must not meet foreign files
    for each in path.resolve().parents:
        if (each / SNAPSHOT_NAME).is_file():
            raise _Refused(f"{path}: lies in the snapshot {each}", _BAD_USAGE)


def _wanted(directory: str, now: StoreLayout, out: Path) -> int:
    # logs are copied twice and become tables once; tables are linked on the same file system
    is_other = os.stat(directory).st_dev != os.stat(out).st_dev
    size = 0
    for worker in range(now.workers):
        for file in Path(now.path(directory, worker)).iterdir():
            if file.suffix == ".log" or (is_other and file.suffix == ".ldb"):
                with contextlib.suppress(FileNotFoundError):
                    size += file.stat().st_size * (3 if file.suffix == ".log" else 1)
    return size


def _cloned(directory: str, now: StoreLayout, out: Path, progress: _Progress) -> tuple[Taking, StoreLayout]:
    # a start with another number of workers makes new stores and removes the old ones: then it is done once more
    for _ in range(_ATTEMPTS):
        taking = Taking([Path(now.path(directory, worker)) for worker in range(now.workers)], out, progress)
        held = _held(directory)
        try:
            taking.clone()
        except (CloneError, OSError):
            if _layout(directory) == now:
                raise
        else:
            if _layout(directory) == now:
                return taking, now
        finally:
            if held is not None:
                os.close(held)
        _empty(out)
        now = _layout(directory)
    raise _Refused(f"{directory}: the number of workers is being changed: try again")


def _held(directory: str) -> int | None:
    # locks a directory that no broker uses, so that none starts on it; None: a broker holds the lock
    try:
        return data_dir.lock(directory, 0.0)
    except DataDirError:
        with contextlib.suppress(OSError, ValueError, KeyError):
            print(f"mqttd: the broker (process {BrokerFile.read(directory)['pid']}) keeps running", file=sys.stderr)
        return None
    except PermissionError:  # the directory of another user; it can be read
        return None


def _step_back() -> None:
    # yields processor and disk to everything else that runs
    os.nice(_NICE)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _IDLE_CLASS)  # may be refused: not essential


def _say_copied(taking: Taking, out: Path) -> None:
    if not all(each.is_linked for each in taking.clones):
        size = sum(each.table_bytes for each in taking.clones)
        print(f"mqttd: {out} is on another file system: {size} bytes of tables were copied", file=sys.stderr)


def _facts_of(manifest: Manifest, taking: Taking, out: Path) -> dict[str, Any]:
    return {
        "path": str(out.absolute()),
        "release": manifest.version,
        "workers": manifest.workers,
        "taken_ms": manifest.taken_ms,
        "cloned_ms": manifest.taken_ms + round(1000 * taking.seconds),
        "sessions": manifest.total(schema.SESSION),
        "messages": sum(store.messages for store in manifest.stores),
        "retained": manifest.total(schema.RETAINED),
        "bytes": sum(file.bytes for store in manifest.stores for file in store.files.values()),
    }


def _summary_of(manifest: Manifest, where: Path | str) -> str:
    size = sum(file.bytes for store in manifest.stores for file in store.files.values())
    return (
        f"{where}: {manifest.workers} workers, {manifest.total(schema.SESSION)} sessions, "
        f"{sum(store.messages for store in manifest.stores)} logged and {manifest.total(schema.RETAINED)} retained "
        f"messages, {size} bytes"
    )


# ---------------------------------------------------------------- restore


def _restore(snapshot: Path, directory: str, interruption: _Interruption) -> None:
    manifest = read_manifest(snapshot)
    parent = Path(directory).absolute().parent
    if not parent.is_dir():
        raise _Refused(f"{parent}: is not a directory", _BAD_USAGE)
    _check_outside(Path(directory))
    progress = _Progress(f"mqttd: restore {directory}", interruption)
    try:
        with data_dir.making(directory, manifest.workers, manifest.archive_epoch) as (stores, epoch):
            _check_room(directory, sum(each.bytes for store in manifest.stores for each in store.files.values()))
            restore(snapshot, manifest, stores, epoch, progress)
            if manifest.clock is not None:
                clock.keep(directory, manifest.clock)
    except DataDirError as error:
        raise _Refused(str(error), _BAD_USAGE) from None
    progress.end()
    print(f"{_summary_of(manifest, directory)}; restored in {progress.seconds():.3f} s")


def _check_room(directory: str | Path, size: int) -> None:
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    wanted = _ROOM_BYTES + size
    if free < wanted:
        raise _Refused(f"{directory}: the disk has {free >> 20} MB free, but {wanted >> 20} MB are needed")


@dataclass(slots=True)
class _Progress:
    """Progress: a line that is updated on a terminal, otherwise a line now and then; nothing if it is over quickly."""

    text: str
    _interruption: _Interruption
    _began: float = 0.0
    _said: float = 0.0
    _has_said: bool = False

    def __post_init__(self) -> None:
        self._began = self._said = time.monotonic()

    def __call__(self, what: str, share: float) -> None:
        """Show progress. Raises KeyboardInterrupt."""
        self._interruption.look()
        now = time.monotonic()
        if now - self._said < _PROGRESS_SECONDS:
            return
        self._said, self._has_said = now, True
        line = f"{self.text}: {what}, {min(share, 1.0):.0%}, {self.seconds():.0f} s"
        end = "\033[K" if sys.stderr.isatty() else "\n"
        print(f"\r{line}" if sys.stderr.isatty() else line, end=end, file=sys.stderr, flush=True)

    def seconds(self) -> float:
        """Return the seconds since it began."""
        return time.monotonic() - self._began

    def end(self) -> None:
        """Finish the line."""
        if self._has_said and sys.stderr.isatty():
            print(f"\r{self.text}: done\033[K", file=sys.stderr, flush=True)
