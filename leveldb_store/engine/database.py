"""A LevelDB on disk: opening, checking, repairing, writing, and reopening after an error.

Facts about LevelDB that this file relies on (observed with plyvel 1.5.1, LevelDB 1.22):

* `create_if_missing` in a directory whose CURRENT is lost makes a new, empty database there and deletes the old files.
* A write that fails may leave half a record in the log; records written behind it can be lost with it at the next
  start. So nothing is written after an error until the database was reopened, which keeps all whole records.
* A truncated last record is no corruption: it is what a crash leaves, and was never acknowledged. Any other damage in a
  log or a table is an error when opened with paranoid checks, and would be skipped silently without. One case is as
  harmless: a last record of which a power cut left some pages and not others: it is cut off.
* It makes, renames and removes files without syncing their directory, except for a new MANIFEST: after a power cut
  CURRENT may name a MANIFEST that was never synced. So the directory is synced after every opening.
* `repair_db` keeps what is readable, but reads logs without their checksums: it would accept flipped bits. So logs are
  cut at their first damaged record before (`leveldb_store.engine.wal`), which is also what keeps their batches in
  order without a gap. It moves files, so a copy is made first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import plyvel

from leveldb_store.contract import StoreError
from leveldb_store.engine.disk_reserve import RESERVE_NAMES, DiskReserve
from leveldb_store.engine.wal import cut_at_damage, cut_torn_end
from leveldb_store.format import schema

_NO_ROOM = os.strerror(errno.ENOSPC)
OPEN_SECONDS: Final = 5.0
"""Time for which opening is retried when the disk has no room: another compaction may be using it for a moment."""
_AGAIN_SECONDS = 0.5
PAGE_RECORDS_MAX: Final = 1000
PAGE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """The `[leveldb]` settings; docs/store.md has their costs."""

    write_buffer_bytes: int = 16 << 20
    block_cache_bytes: int = 8 << 20
    open_files_max: int = 256
    bloom_bits: int = 10
    compression: str | None = "snappy"
    reserve_bytes: int = 0
    """Size of the files that reserve room for a full disk (`leveldb_store.engine.disk_reserve`)."""


class WriteBatch:
    """Records gathered by one thread while another may reopen the database (`Database.reopen`). plyvel adds nothing to
    a batch of a closed database: the gathered records continue in a new one.
    """

    __slots__ = ("_database", "gathered")

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.lock:
            self.gathered = database.db.write_batch()

    def put(self, key: bytes, value: bytes) -> None:
        """As of a plyvel.WriteBatch."""
        try:
            self.gathered.put(key, value)
        except RuntimeError:
            self._begin_anew()
            self.gathered.put(key, value)

    def put_all(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Put these (key, value) records."""
        while True:
            put = self.gathered.put
            try:
                for key, value in records:
                    put(key, value)
            except RuntimeError:
                self._begin_anew()
            else:
                return

    def delete(self, key: bytes) -> None:
        """As of a plyvel.WriteBatch."""
        try:
            self.gathered.delete(key)
        except RuntimeError:
            self._begin_anew()
            self.gathered.delete(key)

    def _begin_anew(self) -> None:
        with self._database.lock:
            fresh = self._database.db.write_batch()
        fresh.append(self.gathered)
        self.gathered = fresh


class Database:
    """One LevelDB. `db` is replaced when it is reopened: readers hold `lock` while they use it."""

    def __init__(
        self,
        path: Path,
        options: DatabaseOptions,
        say: Callable[[str], None],
        strict: bool = False,
        repair: str | None = None,
        *,
        any_version: bool = False,
    ) -> None:
        """`strict`: damage is not repaired; `repair`: it is repaired before opening, for that reason. `any_version`:
        the caller checks the schema. Raises StoreError.
        """
        self.path = path
        self._is_strict = strict
        self._say = say
        self.lock = threading.Lock()
        """Held while something is read."""
        self.archive_lock = threading.Lock()
        """Held while the archive is read: other reads do not wait for that."""
        self._options = options
        self.reserve = DiskReserve(path, options.write_buffer_bytes, options.reserve_bytes)
        try:
            make_directory(path)
            self.db = self._open_or_repair(say) if repair is None else self._repaired(repair, say, True)
        except OSError as error:
            raise StoreError(f"the store {path} cannot be used: {error.strerror or error}") from None
        try:
            if not any_version:
                self._check_schema()
        except BaseException:
            self.db.close()
            raise

    @property
    def write_buffer_bytes(self) -> int:
        """Bytes gathered before they become a table."""
        return self._options.write_buffer_bytes

    def batch(self) -> WriteBatch:
        """Return a batch to write later; the database may be reopened meanwhile."""
        return WriteBatch(self)

    def write(self, batches: list[plyvel.WriteBatch], fsync: bool) -> None:
        """Write these as one; return when they are on the disk (`fsync`), or at the operating system. Raises
        plyvel.Error and OSError; then nothing may be written before `reopen`.
        """
        merged = self.db.write_batch(sync=fsync)
        for batch in batches:
            merged.append(batch)
        merged.write()

    def reopen(self, why: Exception) -> None:
        """Reopen after a write that failed for this reason, keeping all whole records of its log. LevelDB refuses all
        writes once a compaction has met a damaged table, and would meet it again: then it is repaired.

        Raises plyvel.Error, OSError and StoreError.
        """
        with self.lock, self.archive_lock:
            self.db.close()
            if isinstance(why, plyvel.CorruptionError) and not self._is_strict:
                self.db = self._repaired(error_text(why), self._say, is_read=True)
            else:
                self.db = self._open(create=False)

    def get(self, key: bytes) -> bytes | None:
        """Return a value; plyvel.CorruptionError if it cannot be read."""
        with self.lock:
            value: bytes | None = self.db.get(key, verify_checksums=True)
        return value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield a whole family, rising by key. It is read in pages, each consistent in itself: between two the database
        may be reopened, which no iterator survives.
        """
        start, stop = prefix, schema.prefix_end(prefix)
        while True:
            page, is_all = self._page(start, stop)
            yield from page
            if is_all:
                return
            start = page[-1][0] + b"\0"

    def _page(self, start: bytes, stop: bytes | None) -> tuple[list[tuple[bytes, bytes]], bool]:
        # (records, whether these are all)
        page: list[tuple[bytes, bytes]] = []
        left = PAGE_BYTES_MAX
        with self.lock, self.db.iterator(start=start, stop=stop, verify_checksums=True) as found:
            for key, value in found:
                page.append((key, value))
                left -= len(key) + len(value)
                if left <= 0 or len(page) == PAGE_RECORDS_MAX:
                    return page, False
        return page, True

    def close(self) -> None:
        """Close it."""
        with self.lock, self.archive_lock:
            self.db.close()

    def _open(self, create: bool) -> plyvel.DB:
        options = self._options
        db = plyvel.DB(
            str(self.path),
            create_if_missing=create,
            paranoid_checks=True,
            write_buffer_size=options.write_buffer_bytes,
            lru_cache_size=options.block_cache_bytes,
            max_open_files=options.open_files_max,
            bloom_filter_bits=options.bloom_bits,
            compression=options.compression,
        )
        try:
            sync_directory(self.path)
        except OSError:
            db.close()
            raise
        return db

    def _open_or_repair(self, say: Callable[[str], None], until: float | None = None) -> plyvel.DB:
        files = {entry.name for entry in self.path.iterdir()}
        is_there = any(name.startswith("MANIFEST-") or name.endswith((".ldb", ".sst", ".log")) for name in files)
        if is_there and "CURRENT" not in files:
            return self._repaired("its file CURRENT is missing", say)
        try:
            return self._open(create=not is_there)
        except plyvel.IOError as error:
            if "lock" in str(error):
                raise StoreError(f"the store {self.path} is in use by another process") from None
            if _NO_ROOM in str(error) and self.reserve.release():
                say(f"the disk of the store {self.path} is full: it is opened with the room of its reserve")
                return self._open_or_repair(say, until)
            if _NO_ROOM in str(error) and is_there and (until is None or time.monotonic() < until):
                if until is None:
                    until = time.monotonic() + OPEN_SECONDS
                    say(f"the disk of the store {self.path} is full: it is tried again for {OPEN_SECONDS:.0f} s")
                # nothing else can be done before it is open; another thread updates the heartbeat
                time.sleep(_AGAIN_SECONDS)
                return self._open_or_repair(say, until)
            if "No such file" not in str(error) and "NotFound" not in str(error):
                raise StoreError(f"the store {self.path} cannot be opened: {error_text(error)}") from None
            return self._repaired(error_text(error), say)
        except plyvel.Error as error:
            if not is_there:
                raise StoreError(f"the store {self.path} cannot be made: {error_text(error)}") from None
            torn = sum(cut_torn_end(file) for kind in ("*.log", "MANIFEST-*") for file in self.path.glob(kind))
            if torn:
                say(f"the last record of the store {self.path} is torn: {torn} bytes, never durable, are left out")
                with contextlib.suppress(plyvel.Error):
                    return self._open(create=False)
            return self._repaired(error_text(error), say)

    def _repaired(self, why: str, say: Callable[[str], None], is_read: bool = False) -> plyvel.DB:
        # `is_read`: it can be opened, but not be read
        if self._is_strict:
            raise StoreError(f"the store {self.path} is damaged ({why}), and is not repaired where strict_store is set")
        copy = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        say(f"the store {self.path} is damaged ({why}): copying it to {copy}, then repairing it")
        try:
            shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns(*RESERVE_NAMES))
            lost = sum(cut_at_damage(log) for log in sorted(self.path.glob("*.log")))
            try:
                if is_read:
                    raise plyvel.CorruptionError(why)
                db = self._open(create=False)
            except plyvel.Error:
                plyvel.repair_db(
                    str(self.path),
                    paranoid_checks=is_read,  # table blocks with a wrong checksum are left out
                    write_buffer_size=self._options.write_buffer_bytes,
                    bloom_filter_bits=self._options.bloom_bits,
                    compression=self._options.compression,
                )
                db = self._open(create=False)
        except (plyvel.Error, OSError) as error:
            raise StoreError(
                f"the store {self.path} is damaged ({why}) and cannot be repaired: {error_text(error)}"
            ) from None
        say(f"the store {self.path} is repaired, {lost} bytes of its logs were lost; as it was: {copy}")
        return db

    def _check_schema(self) -> None:
        try:
            value = self.db.get(schema.SCHEMA, verify_checksums=True)
            if value is None:
                with self.db.iterator(include_value=False, verify_checksums=True) as keys:
                    if next(keys, None) is not None:
                        raise StoreError(f"the store {self.path} does not say its schema: it is not ours")
                self.db.put(schema.SCHEMA, schema.U32.pack(schema.VERSION), sync=True)
                return
            version = schema.decode_u32(value)
        except (plyvel.Error, schema.SchemaError) as error:
            raise StoreError(f"the store {self.path} does not say its schema: {error_text(error)}") from None
        if (wrong := schema.unread_version(version)) is not None:
            raise StoreError(f"the store {self.path} has {wrong}")
        if version != schema.VERSION:
            raise StoreError(
                f"the store {self.path} has schema version {version}, and is upgraded to {schema.VERSION} when a "
                "broker starts on its data directory"
            )


def make_directory(path: Path) -> None:
    """Create it, for its owner alone, with missing parents; their names are durable."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)


def sync_directory(path: Path) -> None:
    """Make files created, renamed and removed in it durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def error_text(error: Exception) -> str:
    """Return LevelDB's error as text."""
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(error) or type(error).__name__
