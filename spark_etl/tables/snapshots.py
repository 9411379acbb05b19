"""Snapshots on disk: finds them, and the stores in each, for the tables.

A snapshot of all hosts of a cluster is a directory with one of each host (`leveldb_store.snapshots.cluster_manifest`).
It is whole, or refused: of what is missing nobody would know.
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path

from leveldb_store.snapshots.cluster_manifest import NAME as CLUSTER_NAME
from leveldb_store.snapshots.cluster_manifest import directory_of, read_cluster_manifest
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

    @property
    def node(self) -> str | None:
        """The name of the host in its cluster; None: it is in none."""
        return None if self.manifest.cluster is None else self.manifest.cluster.node

    @property
    def cluster(self) -> str | None:
        """The name of its cluster; None: it is in none."""
        return None if self.manifest.cluster is None else self.manifest.cluster.name

    @property
    def cluster_snapshot(self) -> str | None:
        """The id of the snapshot of all hosts that it is a part of; None: it is none."""
        return None if self.manifest.cluster is None else self.manifest.cluster.id or None

    def others(self) -> dict[int, Manifest]:
        """Return the manifests of the other hosts of the same snapshot, by their numbers in the cluster."""
        found = {}
        if self.cluster_snapshot is not None:
            for path in sorted(self.directory.parent.glob(f"{directory_of('*')}/{NAME}")):
                other = read_manifest(path.parent)
                if other.cluster is not None and (other.cluster.id, other.cluster.node != self.node) == (
                    self.cluster_snapshot, True,
                ):  # fmt: skip
                    found[other.cluster.number] = other
        return found


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


def find(paths: str, *, partial: str = "refuse") -> list[Snapshot]:
    """Find snapshots by `paths`: directories with commas between them, each a snapshot, or a directory with some in it,
    or a pattern (glob) of such. Each once, by its path. Raises SnapshotError: none is found, one is damaged, or one of
    all hosts lacks some of them; `partial`: "skip" leaves such out, which may be about to be copied there, and then
    there may be none.
    """
    found: dict[Path, Snapshot] = {}
    for text in filter(None, (each.strip() for each in paths.split(","))):
        named = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        if not named:
            raise SnapshotError(f"{text}: matches nothing")
        for each in named:
            for directory in _below(Path(each).absolute(), partial):
                found[directory] = Snapshot(directory, read_manifest(directory))
    if not found and partial != "skip":
        raise SnapshotError("no snapshot is named")
    return [found[directory] for directory in sorted(found)]


def _below(directory: Path, partial: str) -> list[Path]:
    # itself, or those in it; an incomplete one has no manifest yet, and is ignored
    if (directory / NAME).exists() or not directory.is_dir():
        return [directory]
    found = []
    for path, names, files in os.walk(directory):
        names[:] = [name for name in names if not name.startswith(".")]
        if CLUSTER_NAME in files and not _is_whole(Path(path), partial):
            names.clear()
            continue
        if NAME in files:
            names.clear()
            found.append(Path(path))
    return found if found or partial == "skip" else [directory]


def _is_whole(directory: Path, partial: str) -> bool:
    try:
        read_cluster_manifest(directory)
    except SnapshotError:
        if partial != "skip":
            raise
        return False
    return True


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
