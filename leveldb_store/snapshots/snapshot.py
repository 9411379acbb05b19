"""Snapshots: a copy of all stores of a broker, made while it runs, with a manifest.

    DIR/worker-I        a clone of the store of worker I (leveldb_store.snapshots.clone), sealed: its log is empty
    DIR/snapshot.json   `Manifest`, written last: a directory without it is not a snapshot

Each store is a prefix of what its worker has committed; they are not of one instant. Everything acknowledged before it
began is included. One case needs care: the hand-off log (family H) of worker A for its sibling B loses an entry when B
has it. Were A cloned after that and B before it, neither clone would have the entry. So all workers but the first are
cloned twice, and entries that are in the first clone of A, not in the second, and that B has not taken either, are put
back. With that, both sides of a link match as they do after a crash
(docs/adr/0024-snapshots.md).

Databases of a snapshot must not be opened: opening writes. `leveldb_store.snapshots.clone.reading` opens a clone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from leveldb_store.format import archive_schema, link_schema, schema
from leveldb_store.format.persisted_counters import decode_counters
from leveldb_store.snapshots.clone import Clone, CloneError, clone, closed_for_good, opened, opened_as_it_is, remove
from leveldb_store.snapshots.cluster_facts import ClusterFacts
from leveldb_store.snapshots.digests import DIGEST, digest_of, hasher

if TYPE_CHECKING:
    import plyvel

    from pyx.core.peer import Peer

__all__ = ["FORMAT", "NAME", "Manifest", "SnapshotError", "StoreFacts", "Taking", "differences", "read_manifest"]

FORMAT: Final = 2
"""Format 1 had `sha256` instead of `digest`; it is read as well."""
NAME: Final = "snapshot.json"

_BEFORE: Final = ".before-"
_PIECE_BYTES: Final = 1 << 20
_EVERY: Final = 10_000  # records between two calls of `progress`
_PUT_BYTES: Final = 1 << 20
_THREADS_MAX: Final = 4


class SnapshotError(Exception):
    """The snapshot cannot be taken, read or restored: one line."""


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """One worker's state of the link to a sibling, in both directions."""

    taken_stream: int = 0
    """Number of the sibling's stream; 0: nothing was taken."""
    taken: int = 0
    """Everything of that stream up to this number is in the store."""
    stream: int = 0
    """Number of the own stream; 0: there is none."""
    begins: int = 0
    """First number of the incarnation that was running."""
    waiting: int = 0
    """Entries of the hand-off log."""
    put_back: int = 0
    """Of these: entries removed before the worker was cloned, and not taken by the sibling when that was cloned."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file of a store."""

    bytes: int
    digest: str
    """Algorithm, a colon, hexadecimal digits: `xxh3_128:...`; `sha256:...` of format 1."""


@dataclass(frozen=True, slots=True)
class ArchiveFacts:
    """The messages that a store has archived by one rule."""

    rule: int
    """Number of the rule in this store."""
    place: int
    """Place in the configuration, from 0; 65535: no longer configured."""
    age_ms: int
    bytes_max: int
    messages: int = 0
    first: int = 0
    """Number of the first message; 0: there is none."""
    last: int = 0


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Contents of one worker's store."""

    worker: int
    directory: str
    last_position: int
    last_number: int
    """The last message number that the worker had given out; 0: none."""
    messages: int
    """Messages in its log."""
    records: dict[str, int]
    """By family: the first letter of its keys."""
    counters: dict[str, int]
    """Counters of the last commit (leveldb_store.format.persisted_counters); empty: there was none."""
    links: dict[Peer, LinkFacts]
    """By sibling."""
    archived: dict[str, ArchiveFacts]
    """By the filter of a rule."""
    files: dict[str, FileFacts]

    @property
    def peer(self) -> Peer:
        """Return the worker's number among its siblings."""
        return cast("Peer", self.worker)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of snapshot.json."""

    format: int
    schema: int
    version: str
    """Version of the mqttd that took it."""
    taken_ms: int
    """Unix time when cloning began: everything acknowledged until then is included."""
    workers: int
    epoch: str
    generation: int
    archive_epoch: str
    archive_rules: list[dict[str, Any]]
    """The rules in force, in order: filter, age_ms, bytes_max (per store)."""
    stores: list[StoreFacts]
    clock: tuple[int, int] | None = None
    """The broker's time, and the wall clock's at that moment (shards.clock); None: the clock was never set."""
    cluster: ClusterFacts | None = None
    """The host in its cluster; None: it is alone, or of an earlier release."""

    def path(self, directory: Path, worker: int) -> Path:
        """Return the path of a worker's database."""
        return directory / self.stores[worker].directory

    def total(self, family: bytes) -> int:
        """Return the number of records of a family in all stores."""
        return sum(store.records.get(_letter(family), 0) for store in self.stores)


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest. Raises SnapshotError if it is missing, of a newer format, or damaged."""
    try:
        found = json.loads((directory / NAME).read_text())
        known, version = int(found["format"]), int(found["schema"])
    except FileNotFoundError:
        raise SnapshotError(f"{directory}: is not a snapshot of mqttd, or is incomplete") from None
    except OSError as error:
        raise SnapshotError(f"{directory}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise SnapshotError(f"{directory}: {NAME} is damaged") from None
    if not 1 <= known <= FORMAT:
        raise SnapshotError(f"{directory}: the snapshot has format {known}, this mqttd reads formats 1 to {FORMAT}")
    if (wrong := schema.unread_version(version)) is not None:
        raise SnapshotError(f"{directory}: the stores have {wrong}")
    try:
        stores = [_store_facts(each) for each in found["stores"]]
        manifest = Manifest(
            known, version, str(found["version"]), int(found["taken_ms"]), int(found["workers"]), str(found["epoch"]),
            int(found["generation"]), str(found["archive_epoch"]), list(found["archive_rules"]), stores,
            None if (times := found.get("clock")) is None else (int(times[0]), int(times[1])),
            ClusterFacts.decode(found.get("cluster")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise SnapshotError(f"{directory}: {NAME} is damaged") from None
    if [store.worker for store in stores] != list(range(manifest.workers)):
        raise SnapshotError(f"{directory}: {NAME} is damaged")
    return manifest


def _store_facts(found: Any) -> StoreFacts:
    directory = str(found["directory"])
    if directory != os.path.basename(directory) or directory in ("", ".", ".."):
        raise ValueError(directory)
    return StoreFacts(
        int(found["worker"]), directory, int(found["last_position"]), int(found["last_number"]),
        int(found["messages"]), {str(name): int(count) for name, count in found["records"].items()},
        {str(name): int(count) for name, count in found["counters"].items()},
        {cast("Peer", int(peer)): LinkFacts(**link) for peer, link in found["links"].items()},
        {str(text): ArchiveFacts(**facts) for text, facts in found["archived"].items()},
        {_file_name(name): _stated(file) for name, file in found["files"].items()},
    )  # fmt: skip


def _stated(found: Any) -> FileFacts:
    digest = f"sha256:{found['sha256']}" if "sha256" in found else str(found["digest"])
    hasher(digest)
    return FileFacts(int(found["bytes"]), digest)


def _file_name(name: str) -> str:
    if name != os.path.basename(name) or name in ("", ".", ".."):
        raise ValueError(name)
    return name


def differences(directory: Path, store: StoreFacts) -> Iterator[str]:
    """Yield the differences between a store's files and the manifest; reads all of them. Raises OSError."""
    there = {file.name for file in (directory / store.directory).iterdir()}
    for name in sorted(store.files.keys() | there):
        if name not in there:
            yield f"{name}: is missing"
        elif name not in store.files:
            yield f"{name}: is none of the snapshot"
        else:
            wanted = store.files[name]
            found = _file_facts(directory / store.directory / name, wanted.digest)
            if found.bytes != wanted.bytes:
                yield f"{name}: has {found.bytes} bytes instead of {wanted.bytes}"
            elif found.digest != wanted.digest:
                yield f"{name}: is damaged (its digest differs)"


# ---------------------------------------------------------------- taking it


@dataclass(slots=True)
class StoreCounts:
    """Counts of a store's contents."""

    records: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    last_position: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    archived: dict[str, ArchiveFacts] = field(default_factory=dict)


class Taking:
    """The taking of one snapshot: `clone`, as short as possible, then `finish`, which reads everything.

    `sources`: the stores, by worker. `directory` exists and is empty. `progress` is called now and then with the
    current step and its progress (0 to 1). Raises CloneError, SnapshotError and OSError; the caller then removes the
    contents of `directory`.
    """

    def __init__(
        self, sources: list[Path], directory: Path, progress: Callable[[str, float], None] = lambda _what, _share: None
    ) -> None:
        self.clones: list[Clone] = []
        self.taken_ms = 0
        self.seconds = 0.0
        """Duration of the cloning."""
        self._sources = sources
        self._directory = directory
        self._told = progress
        self._is_given_up = False
        self._versions: list[int] = []

    def clone(self) -> None:
        """Clone the databases, as they are now."""
        began = time.monotonic()
        self.taken_ms = time.time_ns() // 1_000_000
        for worker in range(1, len(self._sources)):
            clone(self._sources[worker], self._before(worker))
        self.clones = [clone(source, self._path(worker)) for worker, source in enumerate(self._sources)]
        self.seconds = time.monotonic() - began

    def finish(
        self,
        version: str,
        epoch: str,
        generation: int,
        archive_epoch: str,
        clock: tuple[int, int] | None = None,
        cluster: ClusterFacts | None = None,
    ) -> Manifest:
        """Seal them, count their contents, write the manifest; everything is on the disk then."""
        workers = range(len(self._sources))
        # LevelDB and the digests release the GIL; threads start with the priority of this one
        with ThreadPoolExecutor(min(_THREADS_MAX, len(os.sched_getaffinity(0)))) as pool:
            try:
                links = list(pool.map(self._sealed, workers))
                for worker in workers:
                    if worker:
                        self._put_back(worker, links)
                        remove(self._before(worker))
                stores = list(pool.map(self._read, workers, links))
            except BaseException:
                self._is_given_up = True
                raise
        manifest = Manifest(
            FORMAT, min(self._versions), version, self.taken_ms, len(stores), epoch, generation, archive_epoch,
            _rules(stores), stores, clock, cluster,
        )  # fmt: skip
        write_manifest(self._directory, manifest)
        return manifest

    def _progress(self, what: str, share: float) -> None:
        if self._is_given_up:  # another thread has failed, or the user has interrupted this
            raise SnapshotError("cancelled")
        self._told(what, share)

    def _path(self, worker: int) -> Path:
        return self._directory / f"worker-{worker}"

    def _before(self, worker: int) -> Path:
        return self._directory / f"{_BEFORE}{worker}"

    def _sealed(self, worker: int) -> dict[Peer, LinkFacts]:
        # turns its log into tables; returns its positions in its siblings' streams
        self._progress(f"worker {worker}: its log", 0.0)
        links: dict[Peer, LinkFacts] = {}
        try:
            with opened_as_it_is(self._path(worker)) as db:
                for key, value in _scan(db, schema.PEER):
                    if schema.is_refusals(key):
                        continue
                    taken = link_schema.decode_peer(value)
                    links[schema.peer_of_key(key)] = LinkFacts(taken.stream, taken.number)
        except CloneError as error:
            raise SnapshotError(
                f"the store {self._sources[worker]} is damaged (mqttd repairs it when it starts): {error}"
            ) from None
        return links

    def _put_back(self, worker: int, links: list[dict[Peer, LinkFacts]]) -> None:
        # entries for a sibling that were in the first clone, are not in the second, and that the sibling has not taken
        put: dict[Peer, int] = {}
        with ExitStack() as stack:
            before = stack.enter_context(closing(opened(self._before(worker))))
            db = stack.enter_context(closing(opened(self._path(worker))))
            now = stack.enter_context(closing(_scan(db, schema.HANDOFF)))
            at, _ = next(now, (None, None))
            stream = size = 0
            batch = db.write_batch(sync=True)
            for key, value in _scan(before, schema.HANDOFF):
                while at is not None and at < key:
                    at, _ = next(now, (None, None))
                peer = schema.peer_of_key(key)
                if schema.key_position(key) == 0:
                    stream, _ = link_schema.decode_handoff_head(value)
                    continue
                taken = links[peer].get(cast("Peer", worker), LinkFacts()) if peer < len(links) else LinkFacts()
                if at != key and (taken.taken_stream != stream or taken.taken < schema.key_position(key)):
                    put[peer] = put.get(peer, 0) + 1
                    batch.put(key, value)
                    size += len(value)
                    if size >= _PUT_BYTES:
                        batch.write()
                        batch, size = db.write_batch(sync=True), 0
            batch.write()
        for peer, count in put.items():
            links[worker][peer] = dataclasses.replace(links[worker].get(peer, LinkFacts()), put_back=count)

    def _read(self, worker: int, links: dict[Peer, LinkFacts]) -> StoreFacts:
        path = self._path(worker)
        size = self.clones[worker].table_bytes + self.clones[worker].log_bytes or 1
        with opened_as_it_is(path) as db:
            value = db.get(schema.SCHEMA, verify_checksums=True)
            version = 0 if value is None else schema.decode_u32(value)
            if schema.unread_version(version):
                raise SnapshotError(f"the store of worker {worker} has a schema version that this mqttd cannot read")
            self._versions.append(version)
            _handoffs(db, links)
            found = count(db, lambda done: self._progress(f"worker {worker}: counting", done / size))
        closed_for_good(path)
        files, done = {}, 0
        for file in sorted(path.iterdir()):
            self._progress(f"worker {worker}: checksums", done / size)
            files[file.name] = _file_facts(file)
            done += files[file.name].bytes
            if file.stat().st_nlink == 1:  # a linked file was on the disk before the source named it
                _sync(file)
        _sync(path)
        return StoreFacts(
            worker, path.name, found.last_position, _number(found.counters, worker), found.messages, found.records,
            found.counters, links, found.archived, files,
        )  # fmt: skip


def count(db: plyvel.DB, progress: Callable[[int], None] = lambda _: None) -> StoreCounts:
    """Count the contents of a database; reads everything. `progress` is called with the bytes so far.

    Raises plyvel.Error and SchemaError.
    """
    found = StoreCounts()
    archived: dict[int, tuple[int, int, int]] = {}
    rules: list[archive_schema.Rule] = []
    size = 0
    for handled, (key, value) in enumerate(_scan(db)):
        letter = _letter(key)
        found.records[letter] = found.records.get(letter, 0) + 1
        if key[:1] == schema.BLOCK:
            many = schema.BLOCK_HEAD.unpack_from(value)[1]
            found.messages += many
            found.last_position = max(found.last_position, schema.key_position(key) + many - 1)
        elif key == schema.POSITION:
            found.last_position = max(found.last_position, schema.decode_u64(value))
        elif key == schema.COUNTERS:
            found.counters = decode_counters(value)
        elif key[:1] == schema.ARCHIVED:
            with contextlib.suppress(schema.SchemaError):  # a damaged one is copied as it is
                _count_archived(archived, key, value)
        elif key[:1] == schema.ARCHIVE_RULE:
            with contextlib.suppress(schema.SchemaError):
                rules.append(archive_schema.decode_rule(key, value))
        size += len(key) + len(value)
        if handled % _EVERY == 0:
            progress(size)
    for rule in rules:
        facts = ArchiveFacts(rule.number, rule.place, rule.age_ms, rule.bytes_max, *archived.get(rule.number, ()))
        found.archived[rule.topic_filter.decode()] = facts
    return found


def _count_archived(archived: dict[int, tuple[int, int, int]], key: bytes, value: bytes) -> None:
    # by rule: messages, first and last number
    rule, _, last = archive_schema.split_block(key)
    head = archive_schema.decode_head(value)
    messages, first, highest = archived.get(rule, (0, head.first, 0))
    archived[rule] = messages + head.messages, min(first, head.first), max(highest, last)


def _rules(stores: list[StoreFacts]) -> list[dict[str, Any]]:
    places: dict[int, dict[str, Any]] = {}
    for store in stores:
        for text, facts in store.archived.items():
            if facts.place != archive_schema.NOT_CONFIGURED:
                places[facts.place] = {"filter": text, "age_ms": facts.age_ms, "bytes_max": facts.bytes_max}
    return [places[place] for place in sorted(places)]


def _number(counters: dict[str, int], worker: int) -> int:
    given = counters.get("number", 0)
    return given << archive_schema.NUMBER_WORKER_BITS | worker if given else 0


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write snapshot.json to the disk, all or nothing."""
    part = directory / f"{NAME}.part"
    part.write_text(json.dumps(dataclasses.asdict(manifest), indent=1) + "\n")
    _sync(part)
    part.rename(directory / NAME)
    _sync(directory)


def _scan(db: plyvel.DB, prefix: bytes = b"") -> Generator[tuple[bytes, bytes], None, None]:
    # `mqttd store verify` checks LevelDB's own checksums: here they would take as long as everything else
    with db.iterator(prefix=prefix or None, fill_cache=False) as records:
        yield from records


def _handoffs(db: plyvel.DB, links: dict[Peer, LinkFacts]) -> None:
    for key, value in _scan(db, schema.HANDOFF):
        peer = schema.peer_of_key(key)
        known = links.get(peer, LinkFacts())
        if schema.key_position(key) == 0:
            stream, begins = link_schema.decode_handoff_head(value)
            links[peer] = dataclasses.replace(known, stream=stream, begins=begins)
        else:
            links[peer] = dataclasses.replace(known, waiting=known.waiting + 1)


def _letter(key: bytes) -> str:
    return "0" if key[:1] == b"\0" else key[:1].decode("latin-1")


def _file_facts(file: Path, like: str = DIGEST) -> FileFacts:
    made, piece = hasher(like), memoryview(bytearray(_PIECE_BYTES))
    with file.open("rb", buffering=0) as opened_file:
        os.posix_fadvise(opened_file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := opened_file.readinto(piece):
            made.update(piece[:count])
        return FileFacts(os.fstat(opened_file.fileno()).st_size, digest_of(made))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
