"""Snapshots on disk: finds them, and the stores in each, for the tables."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path

from leveldb_store.snapshots.snapshot import NAME, Manifest, SnapshotError, StoreFacts, differences, read_manifest

__all__ = ["Snapshot", "SnapshotError", "SnapshotStore", "damage", "find", "store_at", "stores_of"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot."""

    directory: Path
    manifest: Manifest

    @property
    def host(self) -> str:
        """The data directory that it is of."""
        return self.manifest.archive_epoch


@dataclass(frozen=True, slots=True)
class SnapshotStore:
    """One store of a snapshot."""

    snapshot: Snapshot
    facts: StoreFacts

    @property
    def path(self) -> Path:
        """Path of its database, which must not be opened: opening writes."""
        return self.snapshot.directory / self.facts.directory

    @property
    def bytes(self) -> int:
        """Size of its files."""
        return sum(file.bytes for file in self.facts.files.values())

    @property
    def rules(self) -> dict[int, str]:
        """Topic Filters of the archive's rules, by their number in this store."""
        return {facts.rule: text for text, facts in self.facts.archived.items()}


def find(paths: str) -> list[Snapshot]:
    """Find snapshots by `paths`: directories with commas between them, each a snapshot, or a directory with some in it,
    or a pattern (glob) of such. Each once, by its path. Raises SnapshotError: none is found, or one is damaged.
    """
    found: dict[Path, Snapshot] = {}
    for text in filter(None, (each.strip() for each in paths.split(","))):
        named = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        if not named:
            raise SnapshotError(f"{text}: matches nothing")
        for each in named:
            for directory in _below(Path(each).absolute()):
                found[directory] = Snapshot(directory, read_manifest(directory))
    if not found:
        raise SnapshotError("no snapshot is named")
    return [found[directory] for directory in sorted(found)]


def _below(directory: Path) -> list[Path]:
    # itself, or those in it; an incomplete one has no manifest yet, and is ignored
    if (directory / NAME).exists() or not directory.is_dir():
        return [directory]
    found = []
    for path, names, files in os.walk(directory):
        names[:] = [name for name in names if not name.startswith(".")]
        if NAME in files:
            names.clear()
            found.append(Path(path))
    return found or [directory]


def stores_of(snapshots: list[Snapshot]) -> list[SnapshotStore]:
    """Return all stores, by snapshot and worker."""
    return [SnapshotStore(snapshot, facts) for snapshot in snapshots for facts in snapshot.manifest.stores]


def store_at(directory: str, worker: int) -> SnapshotStore:
    """Return the store of a worker in the snapshot in a directory. Raises SnapshotError."""
    (snapshot,) = find(directory)
    return SnapshotStore(snapshot, snapshot.manifest.stores[worker])


def damage(store: SnapshotStore) -> str:
    """Return which file of an unreadable store has changed since the snapshot was made; else its directory."""
    try:
        for line in differences(store.snapshot.directory, store.facts):
            return f"{store.path / line}"
    except OSError as error:
        return f"{store.path}: {error.strerror or error}"
    return f"{store.path}: is damaged, although its files are as they were when the snapshot was made"
