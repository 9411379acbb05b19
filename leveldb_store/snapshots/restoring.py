"""The stores of a new data directory, made of a snapshot: `restore`.

They are copies of the snapshot's databases, under an epoch of their own. Links between workers go on as after a crash:
what a hand-off log has (family H) is sent again, and the sibling leaves out what it has taken (family P). One thing is
added. The numbers of a link go on beyond all that the worker's log says it may have used; its sibling may have been
cloned later, and know higher ones. So a log's head is told those.
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
from leveldb_store.snapshots.snapshot import LinkFacts, Manifest, SnapshotError, StoreFacts, digest_of, hasher

__all__ = ["restore"]

_PIECE_BYTES: Final = 1 << 20


def restore(
    directory: Path,
    manifest: Manifest,
    paths: list[Path],
    epoch: str,
    progress: Callable[[str, float], None] = lambda _what, _share: None,
) -> None:
    """Make `paths`, directories that are not there, of the stores of a snapshot, one for each worker.

    All of it is on the disk when this returns. Raises SnapshotError, CloneError and OSError; then what was made has to
    be removed.
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
                raise SnapshotError(f"{source}: is damaged (its digest is another one)")
            done += facts.bytes
        _settle(manifest, store, path, epoch)


def _settle(manifest: Manifest, store: StoreFacts, path: Path, epoch: str) -> None:
    with closing(opened(path)) as db:
        identity = {"worker": store.worker, "workers": manifest.workers, "epoch": manifest.epoch}
        named = db.get(schema.STORE, verify_checksums=True)
        if named is not None and json.loads(named) != identity:
            raise SnapshotError(f"{path}: says that it is another store: {named.decode(errors='replace')}")
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
    # the digest of what was copied
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
