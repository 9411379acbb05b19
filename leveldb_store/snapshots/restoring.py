"""Restores the stores of a snapshot into a new data directory: `restore`.

They are copies of the snapshot's databases, under an epoch of their own. Links between workers continue as after a
crash: entries of a hand-off log (family H) are sent again, and the sibling skips those that it has taken (family P).
One thing is added. The numbers of a link continue above all that the worker's log shows as possibly used; its sibling
may have been cloned later, and know higher ones. So these are added to a log's head.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from leveldb_store.format import link_schema, schema
from leveldb_store.snapshots.clone import closed_for_good, opened
from leveldb_store.snapshots.digests import digest_of, hasher
from leveldb_store.snapshots.snapshot import LinkFacts, Manifest, SnapshotError, StoreFacts

__all__ = ["restore"]

_PIECE_BYTES: Final = 1 << 20


def restore(
    directory: Path,
    manifest: Manifest,
    paths: list[Path],
    epoch: str,
    progress: Callable[[str, float], None] = lambda _what, _share: None,
) -> None:
    """Make `paths`, directories that do not exist, from the stores of a snapshot, one for each worker.

    Everything is on the disk when this returns. Raises SnapshotError, CloneError and OSError; then the caller must
    remove what was made.
    """
    size = sum(file.bytes for store in manifest.stores for file in store.files.values()) or 1
    done = 0
    for store, path in zip(manifest.stores, paths, strict=True):
        path.mkdir(mode=0o700)
        for name, facts in store.files.items():
            progress(f"worker {store.worker}", done / size)
            source = directory / store.directory / name
            try:
                digest = _copied(source, path / name, facts.digest)
            except FileNotFoundError:
                raise SnapshotError(f"{source}: is missing") from None
            if digest != facts.digest:
                raise SnapshotError(f"{source}: is damaged (its digest differs)")
            done += facts.bytes
        _settle(manifest, store, path, epoch)


def _settle(manifest: Manifest, store: StoreFacts, path: Path, epoch: str) -> None:
    with closing(opened(path)) as db:
        identity = {"worker": store.worker, "workers": manifest.workers, "epoch": manifest.epoch}
        named = db.get(schema.STORE, verify_checksums=True)
        if named is not None and json.loads(named) != identity:
            raise SnapshotError(f"{path}: names another store: {named.decode(errors='replace')}")
        with db.write_batch(sync=True) as batch:
            batch.put(schema.STORE, json.dumps({**identity, "epoch": epoch}).encode())
            for other in manifest.stores:
                taken = other.links.get(store.peer, LinkFacts())
                key = schema.handoff_key(other.peer, 0)
                head = None if other is store else db.get(key, verify_checksums=True)
                if head is None:
                    continue
                stream, begins = link_schema.decode_handoff_head(head)
                if stream == taken.taken_stream and begins < taken.taken:
                    batch.put(key, link_schema.encode_handoff_head(stream, taken.taken))
    closed_for_good(path)
    for each in (*path.iterdir(), path):
        _sync(each)


def _copied(source: Path, target: Path, like: str) -> str:
    # returns the digest of the copy
    digest = hasher(like)
    with source.open("rb", buffering=0) as read, target.open("xb", buffering=0) as written:
        while piece := read.read(_PIECE_BYTES):
            digest.update(piece)
            written.write(piece)
    return digest_of(digest)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
