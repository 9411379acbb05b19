"""`mqttd store stats` and `mqttd store verify`: count the contents of a data directory's stores, and check that they
can be read.

Both take a directory that no broker uses, a copy of one, or a snapshot. They open the databases as a start does, so
LevelDB turns its logs into tables; nothing else is changed, and nothing is ever repaired. For a snapshot, a clone of
each database is opened, and `verify` also compares its files and counts with snapshot.json. `stats` may also ask a
running broker: its workers answer from their counters, with fewer figures than from a store that is read.

`verify` checks LevelDB's checksums (logs, tables), every record of every family by `leveldb_store.format.schema`, and
that the parts of indexes match each other and their blocks. Traces of a crash are not problems: a truncated last
record, records of a session that has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import plyvel

from broker.admin.requests import NoAnswer, StoreStats
from broker.cli import archive_checks as archive_inspection
from broker.cli.console_client import ConsoleClient, NoBroker, configured_directory
from broker.config.settings import ConfigError
from broker.persistence.record_checks import CHECKS
from broker.persistence.set_aside import UNREADABLE
from leveldb_store.engine.database import error_text
from leveldb_store.engine.disk_reserve import RESERVE_NAMES
from leveldb_store.engine.wal import whole_bytes
from leveldb_store.format import schema
from leveldb_store.format.events import KEY_BYTES, decode_event
from leveldb_store.format.queued_messages import message_key, message_of
from leveldb_store.reachability import unreachable
from leveldb_store.snapshots import snapshot
from leveldb_store.snapshots.clone import CloneError, clone_for_reading, opened_as_it_is
from leveldb_store.snapshots.snapshot import SnapshotError, StoreFacts
from shards import data_dir

__all__ = ["Place", "Unusable", "main", "stores_of"]

_PROBLEMS = 1
_BAD_USAGE = 2
_CANNOT_USE_DATA = 4
_LINES_MAX = 1000
"""Problems listed per store; further ones are counted."""

_FAMILIES = {
    b"\0": "about the store",
    schema.BLOCK: "blocks",
    schema.NAME: "indexes",
    schema.PART: "parts of indexes",
    schema.TRIMMED: "low-water marks",
    schema.DROPPED: "dropped spans",
    schema.GONE: "indexes being deleted",
    schema.WANTED: "counts of blocks",
    schema.SESSION: "sessions",
    schema.SUBSCRIPTION: "subscriptions",
    schema.WINDOW: "windows",
    schema.WINDOW_PAGE: "pages of windows",
    schema.QUEUED: "messages of one session",
    schema.MESSAGE: "messages of several sessions",
    schema.REPLAY: "replays",
    schema.RETAINED: "retained messages",
    schema.WILL: "wills",
    schema.HANDOFF: "hand-off logs",
    schema.PEER: "link positions",
    **archive_inspection.FAMILIES,
    schema.EVENT: "events",
    schema.SET_ASIDE: "records set aside",
}


class Unusable(Exception):
    """The stores cannot be used. The text is one line."""


def main(arguments: Sequence[str]) -> int:
    """Print the result. Exit status: 0 no problems, 1 problems, 2 wrong usage, 4 the directory cannot be used."""
    parser = argparse.ArgumentParser(
        prog="mqttd store",
        description="Inspect the stores of a stopped broker, or of a snapshot; stats: of a running broker, too.",
    )
    parser.add_argument(
        "what",
        choices=["stats", "verify", "discard"],
        help="count the contents; check that all of them can be read; delete unreadable records that were set aside",
    )
    parser.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        help="data directory, snapshot, or runtime directory of a running broker (default: as configured)",
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file of the broker; also MQTTD_CONFIG")
    parser.add_argument("--json", action="store_true", help="stats: print JSON")
    given = parser.parse_intermixed_args(arguments)
    with ExitStack() as stack:
        try:
            directory = given.directory or configured_directory(given.config)
            if given.what == "stats":
                with suppress(NoBroker):
                    return _stats_of_running(directory, given.json)
            stores = stores_of(directory, stack)
        except ConfigError as error:
            for line in error.lines:
                print(f"mqttd: {line}", file=sys.stderr)
            return _BAD_USAGE
        except NoAnswer as error:
            print(f"mqttd: {error}", file=sys.stderr)
            return _PROBLEMS
        except (Unusable, data_dir.DataDirError, SnapshotError) as error:
            print(f"mqttd: {error}", file=sys.stderr)
            return _CANNOT_USE_DATA
        if given.what == "verify":
            return verify(stores)
        if given.what == "discard":
            return _discard(stores)
        try:
            return _stats(stores, given.json)
        except (CloneError, OSError) as error:
            print(f"mqttd: {error} (mqttd store verify says more)", file=sys.stderr)
            return _PROBLEMS


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a store."""

    path: Path
    facts: StoreFacts | None = None
    """The store's manifest, if it is in a snapshot."""

    @contextmanager
    def to_open(self) -> Iterator[Path]:
        """Yield a path of the database that may be opened. Raises CloneError and OSError."""
        if self.facts is None:
            yield self.path
        else:
            with clone_for_reading(self.path, self.path.parent.parent) as cloned:
                yield cloned


def stores_of(directory: str, stack: ExitStack) -> list[Place]:
    """Return the stores of a data directory, which stays locked until the stack is closed, or of a snapshot. Raises
    Unusable, DataDirError, SnapshotError.
    """
    if Path(directory, snapshot.NAME).exists():
        manifest = snapshot.read_manifest(Path(directory))
        return [Place(manifest.path(Path(directory).absolute(), each.worker), each) for each in manifest.stores]
    try:
        layout = data_dir.read_layout(directory)
        stack.callback(os.close, data_dir.lock(directory))
    except FileNotFoundError:
        raise Unusable(f"{directory}: is not a data directory of mqttd (it has no store.json)") from None
    except OSError as error:
        raise Unusable(f"{directory}: {error.strerror or error}") from None
    return [Place(Path(layout.path(directory, worker))) for worker in range(layout.workers)]


# ---------------------------------------------------------------- stats


@dataclass(slots=True)
class _Family:
    records: int = 0
    bytes: int = 0
    """Size of keys and values, before compression."""


def _stats(stores: list[Place], as_json: bool) -> int:
    found = []
    for store in stores:
        path = store.path
        families: dict[str, _Family] = {name: _Family() for name in _FAMILIES.values()}
        messages = first = last = 0
        archive = archive_inspection.ArchiveTally()
        try:
            with store.to_open() as place, _opened(place) as db, db.iterator(verify_checksums=True) as records:
                for key, value in records:
                    family = families.setdefault(_FAMILIES.get(key[:1], "unknown"), _Family())
                    family.records += 1
                    family.bytes += len(key) + len(value)
                    archive.add(key, value)
                    if key[:1] == schema.BLOCK:
                        count = schema.BLOCK_HEAD.unpack_from(value)[1]
                        first, last = first or schema.key_position(key), schema.key_position(key) + count - 1
                        messages += count
        except (plyvel.Error, schema.SchemaError, ValueError, OSError) as error:
            print(f"mqttd: {path}: cannot be read: {error_text(error)} (mqttd store verify says more)", file=sys.stderr)
            return _PROBLEMS
        size = sum(file.stat().st_size for file in path.iterdir() if file.name not in RESERVE_NAMES)
        found.append({
            "store": str(path), "bytes_on_disk": size, "messages": messages, "first_position": first,
            "last_position": last, "archive": archive.rules(),
            "families": {name: asdict(family) for name, family in families.items()},
        })  # fmt: skip
    print(json.dumps(found, indent=2) if as_json else "\n".join(map(_as_text, found)))
    return 0


def _stats_of_running(directory: str, as_json: bool) -> int:
    """Print the statistics of a running broker. Raises NoAnswer, NoBroker."""
    with ConsoleClient(directory) as broker:
        found = [broker.ask(worker, StoreStats())["store"] for worker in range(broker.workers)]
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    for store in found:
        print(f"worker {store.pop('worker')}:")
        for name, value in store.items():
            shown = {True: "yes", False: "no", None: "no"}[value] if isinstance(value, bool | None) else value
            print(f"  {name.replace('_', ' '):24} {shown!s:>12}")
    return 0


def _as_text(store: dict[str, object]) -> str:
    lines = [
        f"{store['store']}: {store['bytes_on_disk']} bytes on the disk, {store['messages']} messages "
        f"(positions {store['first_position']} to {store['last_position']})"
    ]
    families = store["families"]
    assert isinstance(families, dict)
    for name, family in families.items():
        if family["records"]:
            lines.append(f"  {name:24} {family['records']:12} {family['bytes']:15} bytes")
    archive = store["archive"]
    assert isinstance(archive, list)
    lines += map(archive_inspection.archive_as_text, archive)
    return "\n".join(lines)


def _discard(stores: list[Place]) -> int:
    if any(store.facts is not None for store in stores):
        print("mqttd: records of a snapshot cannot be discarded", file=sys.stderr)
        return _BAD_USAGE
    for store in stores:
        try:
            with _opened(store.path) as db:
                count = _discard_set_aside(db)
        except plyvel.Error as error:
            print(f"mqttd: {store.path}: {error_text(error)} (mqttd store verify says more)", file=sys.stderr)
            return _PROBLEMS
        print(f"{store.path}: {count} records set aside are deleted")
    return 0


def _discard_set_aside(db: plyvel.DB) -> int:
    count = 0
    with (
        db.write_batch(sync=True) as batch,
        db.iterator(prefix=schema.SET_ASIDE, include_value=False, verify_checksums=True) as keys,
    ):
        for key in keys:
            batch.delete(key)
            count += 1
    return count


def _opened(path: Path) -> plyvel.DB:
    # damage in logs was found before (verify), or is an error (stats: paranoid)
    return plyvel.DB(str(path), create_if_missing=False, paranoid_checks=True)


# ---------------------------------------------------------------- verify


def verify(stores: list[Place]) -> int:
    """Print everything that cannot be read, and a summary line per store. Returns the exit status."""
    problems = 0
    for place in stores:
        store = _Store(place.path)
        if place.facts is None:
            store.run(place.path)
        else:
            _verify_snapshot(store, place, place.facts)
        problems += store.problems
        if store.problems > _LINES_MAX:
            print(f"{place.path}: {store.problems - _LINES_MAX} more problems")
        count = "no problems" if not store.problems else f"{store.problems} problem{'s' if store.problems > 1 else ''}"
        print(f"{place.path}: {store.records} records, {count}")
    return _PROBLEMS if problems else 0


def _verify_snapshot(store: _Store, place: Place, facts: StoreFacts) -> None:
    try:
        for problem in snapshot.differences(place.path.parent, facts):
            store.say(problem)
        with place.to_open() as cloned:
            store.run(cloned)
            if store.problems:
                return  # comparing the counts would report the same again
            with opened_as_it_is(cloned) as db:
                found = snapshot.count(db)
    except (CloneError, OSError) as error:
        store.say(str(error))
        return
    pairs = {
        "records": (found.records, facts.records),
        "messages": (found.messages, facts.messages),
        "the last position": (found.last_position, facts.last_position),
        "counters": (found.counters, facts.counters),
        "the archive": (found.archived, facts.archived),
    }
    for name, (there, said) in pairs.items():
        if there != said:
            store.say(f"{name}: {there}, and {snapshot.NAME} says {said}")


@dataclass(slots=True)
class _Index:
    last: int = 0
    messages: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Store:
    path: Path
    records: int = 0
    problems: int = 0
    _positions: array[int] = field(default_factory=lambda: array("Q"))
    _counts: array[int] = field(default_factory=lambda: array("I"))
    _names: set[int] = field(default_factory=set)
    _indexes: dict[int, _Index] = field(default_factory=dict)
    _events_end: int = -1
    """Total size of events up to and including the previous one."""

    def run(self, path: Path) -> None:
        """Check everything in `path`, which is `self.path` or a clone of it; print problems."""
        if not path.is_dir():
            self.say("is missing")
            return
        if not any(path.iterdir()):
            return  # a start was killed before it made the store
        if not self._files(path):
            return
        try:
            db = plyvel.DB(str(path), create_if_missing=False)
        except plyvel.Error as error:
            self.say(f"cannot be opened: {error_text(error)}")
            return
        with db:
            self._version(db)
            for prefix, check in self._checks().items():
                self._family(db, prefix, check)
            self._unknown(db)
            self._queued(db)
            self._reachable(db)

    def say(self, problem: str) -> None:
        """Print a problem and count it."""
        self.problems += 1
        if self.problems <= _LINES_MAX:
            print(f"{self.path}: {problem}")

    def _files(self, path: Path) -> bool:
        # checks the logs; False: opening would make LevelDB skip and forget records that it cannot read
        if not (path / "CURRENT").exists():
            self.say("its file CURRENT is missing")
            return False
        is_whole = True
        for file in sorted([*path.glob("*.log"), *path.glob("MANIFEST-*")]):
            data = file.read_bytes()
            good, is_followed = whole_bytes(data)
            if is_followed:
                self.say(f"{file.name}: damaged at byte {good} of {len(data)}, records follow")
                is_whole = False
        return is_whole

    def _version(self, db: plyvel.DB) -> None:
        try:
            value = db.get(schema.SCHEMA, verify_checksums=True)
            version = None if value is None else schema.decode_u32(value)
        except (plyvel.Error, schema.SchemaError) as error:
            self.say(f"does not say its schema: {error_text(error)}")
            return
        if version is None:
            self.say("does not say its schema")
        elif (wrong := schema.unread_version(version)) is not None:
            self.say(f"has {wrong}")

    def _checks(self) -> dict[bytes, Callable[[bytes, bytes], object]]:
        # names and blocks before the parts that refer to them
        own = {
            schema.NAME: self._name,
            schema.GONE: self._gone,
            schema.BLOCK: self._block,
            schema.PART: self._part,
            **archive_inspection.ArchiveCheck().checks(),
            schema.EVENT: self._event,
            schema.SET_ASIDE: self._aside,
        }
        return own | {family: check for family, check in CHECKS.items() if family not in own}

    def _family(self, db: plyvel.DB, prefix: bytes, check: Callable[[bytes, bytes], object]) -> None:
        key = prefix
        try:
            with db.iterator(prefix=prefix, verify_checksums=True) as records:
                for key, value in records:
                    self.records += 1
                    try:
                        check(key, value)
                    except UNREADABLE as error:
                        self.say(f"{_FAMILIES[prefix]}: record {key!r}: {error}")
        except plyvel.Error as error:
            self.say(f"{_FAMILIES[prefix]}: cannot be read behind {key!r}: {error_text(error)}")

    def _queued(self, db: plyvel.DB) -> None:
        # messages that wait for several sessions exist
        with suppress(plyvel.Error, schema.SchemaError):  # already reported
            for key, value in db.iterator(prefix=schema.QUEUED, verify_checksums=True):
                number = message_of(value)
                if number is not None and db.get(message_key(number), verify_checksums=True) is None:
                    self.say(f"{_FAMILIES[schema.QUEUED]}: record {key!r}: message {number} is not there")

    def _unknown(self, db: plyvel.DB) -> None:
        for first, behind in _gaps(sorted(_FAMILIES)):
            try:
                with db.iterator(start=first, stop=behind, verify_checksums=True) as records:
                    for key, _ in records:
                        self.records += 1
                        self.say(f"record {key!r}: of no family")
            except plyvel.Error as error:
                self.say(f"cannot be read behind {first!r}: {error_text(error)}")

    def _reachable(self, db: plyvel.DB) -> None:
        # prints one line for each kind
        strays: dict[str, list[bytes]] = {}
        try:
            records = partial(db.iterator, verify_checksums=True)
            for stray in unreachable(lambda prefix: records(prefix=prefix), partial(db.get, verify_checksums=True)):
                known = strays.setdefault(stray.kind, [])
                known.append(stray.key)
        except (plyvel.Error, schema.SchemaError, ValueError, LookupError):
            if not self.problems:
                raise
            return  # unreadable records were reported
        for kind, keys in strays.items():
            self.say(f"{len(keys)} of these belong to nothing: {kind}; the first is {keys[0]!r}")

    def _aside(self, key: bytes, _: bytes) -> None:
        self.say(f"record {key[1:]!r}: is set aside, because it could not be read")

    def _name(self, _: bytes, value: bytes) -> None:
        number = schema.decode_u32(value)
        if number in self._names:
            raise ValueError(f"another index has number {number}, too")
        self._names.add(number)

    def _gone(self, key: bytes, _: bytes) -> None:
        self._names.add(schema.key_number(key))

    def _block(self, key: bytes, value: bytes) -> None:
        position = schema.key_position(key)
        if self._positions and self._positions[-1] + self._counts[-1] > position:
            raise ValueError("begins before the block before it ends")
        self._positions.append(position)
        self._counts.append(schema.BLOCK_HEAD.unpack_from(value)[1] if len(value) >= schema.BLOCK_HEAD.size else 0)
        for _ in schema.decode_block(value):
            pass

    def _event(self, key: bytes, value: bytes) -> None:
        event = decode_event(key, value)
        if event.before < self._events_end:
            raise ValueError("begins before the event before it ends")
        self._events_end = event.before + KEY_BYTES + len(value)

    def _part(self, key: bytes, value: bytes) -> None:
        part, number = schema.decode_part(key, value), schema.key_number(key)
        if number not in self._names:
            raise ValueError(f"index {number} has no name")
        index = self._indexes.setdefault(number, _Index())
        last = part.entries[-1][0]
        at = bisect_right(self._positions, part.first) - 1
        if at < 0 or self._positions[at] != part.block or last >= part.block + self._counts[at]:
            raise ValueError(f"block {part.block} is missing or has no position {last}")
        if part.first <= index.last or part.messages_before < index.messages or part.bytes_before < index.bytes:
            raise ValueError("does not fit to the part before it")
        index.last = last
        index.messages = part.messages_before + len(part.entries)
        index.bytes = part.bytes_before + sum(size for _, size in part.entries)


def _gaps(prefixes: list[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield (first key, first key behind) of each range between the ranges of these one-byte prefixes."""
    at = b""
    for prefix in prefixes:
        if at < prefix:
            yield at, prefix
        at = bytes((prefix[0] + 1,))
    yield at, None
