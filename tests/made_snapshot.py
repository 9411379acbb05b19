"""Makers of snapshots without a broker: they put records into stores and copy these as `mqttd snapshot` does."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import plyvel

from leveldb_store.format import archive_schema, schema
from leveldb_store.format.archive_schema import ArchivedMessage, Rule
from leveldb_store.format.schema import StoredMessage
from leveldb_store.snapshots.cluster_facts import ClusterFacts
from leveldb_store.snapshots.snapshot import Manifest, Taking

__all__ = ["archive_of", "log_of", "number_at", "snapshot_of", "store_of", "taken_of"]

Records = Iterable[tuple[bytes, bytes]]

_BATCH_BYTES = 4 << 20
DAY_MS = 86_400_000


def number_at(seconds: float, worker: int = 0) -> int:
    """Return a message number of this Unix time."""
    return round(seconds * 1_000_000) << archive_schema.NUMBER_WORKER_BITS | worker


def snapshot_of(
    directory: Path,
    stores: Sequence[Records],
    host: str = "host",
    taken_ms: int = 0,
    cluster: ClusterFacts | None = None,
) -> Manifest:
    """Make a snapshot with a store for each sequence of records, in a directory that must not exist."""
    paths = [directory.with_name(f"{directory.name}.source-{worker}") for worker in range(len(stores))]
    for path, records in zip(paths, stores, strict=True):
        store_of(path, records)
    return taken_of(directory, paths, host, taken_ms, cluster)


def store_of(path: Path, records: Records) -> None:
    """Make a store with these records."""
    db = plyvel.DB(str(path), create_if_missing=True, write_buffer_size=16 << 20, bloom_filter_bits=10)
    _put(db, itertools.chain([(schema.SCHEMA, schema.U32.pack(schema.VERSION))], records))
    db.close()


def taken_of(
    directory: Path,
    stores: Sequence[Path],
    host: str = "host",
    taken_ms: int = 0,
    cluster: ClusterFacts | None = None,
) -> Manifest:
    """Make a snapshot of stores, and remove the stores."""
    directory.mkdir()
    taking = Taking(list(stores), directory)
    taking.clone()
    if taken_ms:
        taking.taken_ms = taken_ms
    manifest = taking.finish("0.0", f"{host}-epoch", 0, host, cluster=cluster)
    for path in stores:
        shutil.rmtree(path)
    return manifest


def _put(db: plyvel.DB, records: Records) -> None:
    batch, size = db.write_batch(), 0
    for key, value in records:
        batch.put(key, value)
        size += len(key) + len(value)
        if size >= _BATCH_BYTES:
            batch.write()
            batch, size = db.write_batch(), 0
    batch.write()


def archive_of(
    messages: Iterable[StoredMessage], rule: str = "#", number: int = 1, block: int = 100, matches: int = 1
) -> Iterator[tuple[bytes, bytes]]:
    """Yield a rule and its archived blocks: messages of one worker by rising number, `block` messages in each."""
    yield (
        archive_schema.rule_key(rule.encode()),
        archive_schema.encode_rule(Rule(rule.encode(), number, number - 1, DAY_MS, 1 << 40)),
    )
    count = size = 0
    left = iter(messages)
    while some := [ArchivedMessage(each, matches) for each in itertools.islice(left, block)]:
        last = some[-1].message.number
        key = archive_schema.block_key(number, last & 0xFF, last)
        value = archive_schema.encode_block(some, count, size)
        yield key, value
        count += len(some)
        size += len(key) + len(value)


def log_of(messages: Iterable[StoredMessage], first: int = 1, block: int = 100) -> Iterator[tuple[bytes, bytes]]:
    """Yield the blocks of a log, `block` messages in each."""
    left = iter(messages)
    while some := list(itertools.islice(left, block)):
        yield schema.block_key(first), schema.encode_block(some)
        first += len(some)
