"""Upgrades the stores of an earlier release: each is copied, the copy converted, and put in the place of the old one.

`STEPS` has the conversion of a family's records from each version to the next. Other families keep their bytes: their
readers see from the record which form it has. The copy is a clone (`leveldb_store.snapshots.clone`): hard links of
tables, so that it costs no more than its conversion writes. The old store is opened once, which turns its log into
tables and repairs damage, and is not written to: until the copy of each store is on the disk and named by store.json
(`shards.data_dir`), an earlier release still starts with the old store, and the next attempt begins with it.

A new version of the schema is a row of `STEPS` and a store of the version before in tests/golden.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import plyvel

from leveldb_store.contract import StoreError
from leveldb_store.engine.database import Database, DatabaseOptions, error_text, sync_directory
from leveldb_store.format import schema
from leveldb_store.snapshots.clone import CloneError, clone, opened

__all__ = ["STEPS", "Convert", "Steps", "UpgradeError", "Upgraded", "upgrade"]

Convert: TypeAlias = Callable[[bytes, bytes], Iterable[tuple[bytes, bytes]]]
"""Returns the records that replace a record. SchemaError: it is unreadable, and is set aside."""
Steps: TypeAlias = Mapping[int, Mapping[bytes, Convert]]

STEPS: Final[Steps] = {1: {}}
"""Version -> family -> the conversion of its records to the next version."""

_BATCH_BYTES: Final = 1 << 20
_EVERY: Final = 1000  # records between two calls of `progress`


class UpgradeError(Exception):
    """The upgrade is impossible; the old stores are unchanged. The text is one line."""


@dataclass(slots=True)
class Upgraded:
    """The result of an upgrade."""

    versions: list[int]
    """Versions found, rising."""
    records: int = 0
    """Number of records converted."""
    set_aside: int = 0
    """Number of these that were set aside as unreadable."""


def upgrade(
    old: Sequence[Path],
    new: Sequence[Path],
    progress: Callable[[int], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    *,
    strict: bool = False,
    version: int = schema.VERSION,
    steps: Steps | None = None,
) -> Upgraded | None:
    """Make the stores `new`, in empty directories, from `old`, if any of these is older than `version`; everything is
    on the disk when this returns. None: none is older, and nothing was made. `progress` is called with the number of
    records converted, `say` with lines about damage, which is repaired unless `strict`.
    Raises UpgradeError.
    """
    try:
        found = {path: at for path in old if (at := _version_of(path, say, strict, None)) is not None}
        for path, at in found.items():
            if not schema.OLDEST_VERSION <= at <= version:
                wrong = f"schema version {at}, this mqttd reads versions {schema.OLDEST_VERSION} to {version}"
                raise UpgradeError(f"the store {path} has {wrong}")
        if all(at == version for at in found.values()):
            return None
        work = _Upgrade(
            version, STEPS if steps is None else steps, progress, say, strict, Upgraded(sorted(set(found.values())))
        )
        for source, target in zip(old, new, strict=True):
            if source in found:
                work.run(source, target, found[source])
            sync_directory(target)
    except (StoreError, CloneError) as error:
        raise UpgradeError(str(error)) from None
    except plyvel.Error as error:
        raise UpgradeError(error_text(error)) from None
    except OSError as error:
        raise UpgradeError(f"{error.filename or new[0].parent}: {error.strerror or error}") from None
    return work.done


def _version_of(path: Path, say: Callable[[str], None], strict: bool, repair: str | None) -> int | None:
    # None: it was never opened
    if not any(path.iterdir()):
        return None
    with closing(Database(path, DatabaseOptions(), say, strict, repair, any_version=True)) as database:
        value = database.get(schema.SCHEMA)
    return schema.VERSION if value is None else schema.decode_u32(value)


@dataclass(slots=True)
class _Upgrade:
    version: int
    steps: Steps
    progress: Callable[[int], None]
    say: Callable[[str], None]
    strict: bool
    done: Upgraded

    def run(self, source: Path, target: Path, at: int) -> None:
        try:
            self._convert(source, target, at)
        except plyvel.CorruptionError as error:
            if self.strict:
                raise
            for each in target.iterdir():
                each.unlink()
            _version_of(source, self.say, self.strict, error_text(error))
            self._convert(source, target, at)  # once more, with what the repair left

    def _convert(self, source: Path, target: Path, at: int) -> None:
        clone(source, target)
        with closing(opened(target)) as db:
            for step in range(at, self.version):
                for family, convert in self.steps[step].items():
                    self._convert_family(db, family, convert)
            db.put(schema.SCHEMA, schema.U32.pack(self.version))
        for file in target.iterdir():
            _sync(file)

    def _convert_family(self, db: plyvel.DB, family: bytes, convert: Convert) -> None:
        batch, size = db.write_batch(), 0
        # later writes are not seen: an iterator reads the database as it was
        with closing(db.iterator(prefix=family, fill_cache=False, verify_checksums=True)) as records:
            for key, value in records:
                batch.delete(key)
                for new in self._converted(key, value, convert):
                    batch.put(*new)
                    size += len(new[0]) + len(new[1])
                self.done.records += 1
                if self.done.records % _EVERY == 0:
                    self.progress(self.done.records)
                if size >= _BATCH_BYTES:
                    batch.write()
                    batch, size = db.write_batch(), 0
        batch.write()

    def _converted(self, key: bytes, value: bytes, convert: Convert) -> Iterable[tuple[bytes, bytes]]:
        try:
            return list(convert(key, value))
        except schema.SchemaError as error:
            if self.strict:
                raise UpgradeError(f"record {key!r} cannot be read: {error}") from None
            self.done.set_aside += 1
            self.say(f"record {key!r} cannot be read, and is set aside: {error}")
            return [(schema.set_aside_key(key), value)]


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
