"""Planning of the tasks that read a table: each reads a part of one store, by ranges of keys.

A small store is one task. A larger one is opened once to be divided: LevelDB estimates the bytes of its files in a
range of keys, so ranges of about the same size are found by halving, whatever the keys are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveldb_store.format import archive_schema, schema
from leveldb_store.snapshots.clone import CloneError
from spark_etl.tables import clones
from spark_etl.tables.conditions import Conditions
from spark_etl.tables.reading import KeySpan, families_of
from spark_etl.tables.snapshots import SnapshotError, SnapshotStore, damage

if TYPE_CHECKING:
    import plyvel

__all__ = ["PARTITION_BYTES", "spans_of"]

PARTITION_BYTES: Final = 32 << 20
"""Bytes of files for one task: about a second of work."""

_DIGITS: Final = 16  # bytes of a key after the common prefix of its range that determine its place
_HALVINGS: Final = 40
_NUMBER_MAX: Final = (1 << 64) - 1


def spans_of(
    store: SnapshotStore, table: str, conditions: Conditions, bytes_max: int, scratch: str | None
) -> Iterator[list[KeySpan]]:
    """Return the spans of a store that the tasks of a table read. Raises SnapshotError."""
    whole = [_whole(family) for family in families_of(store, table) if _is_there(store, family)]
    if not whole or not _may_have(store, table, conditions):
        return
    if store.bytes <= bytes_max:
        yield whole
        return
    import plyvel

    try:
        with clones.cloned(store.path, scratch) as db:
            yield from _divided(db, whole, conditions, bytes_max)
    except (CloneError, schema.SchemaError, plyvel.Error) as error:
        raise SnapshotError(f"{damage(store)} ({error})") from None


def _whole(family: bytes) -> KeySpan:
    return KeySpan(family, bytes((family[0] + 1,)))


def _is_there(store: SnapshotStore, family: bytes) -> bool:
    return store.facts.records.get(family.decode("latin-1"), 0) > 0


def _may_have(store: SnapshotStore, table: str, conditions: Conditions) -> bool:
    # by the manifest
    if conditions.first > conditions.last:
        return False
    if not (
        conditions.allow("snapshot", str(store.snapshot.directory))
        and conditions.allow("host", store.snapshot.host)
        and conditions.allow("store", store.facts.worker)
        and conditions.allow("node", store.snapshot.node)
        and conditions.allow("cluster", store.snapshot.cluster)
        and conditions.allow("cluster_snapshot", store.snapshot.cluster_snapshot)
    ):
        return False
    if table != "messages" or conditions.allow("origin", "queue"):
        return True
    archived = [facts for facts in store.facts.archived.values() if facts.messages]
    return any(facts.first <= conditions.last and facts.last >= conditions.first for facts in archived)


def _divided(db: plyvel.DB, whole: list[KeySpan], conditions: Conditions, bytes_max: int) -> Iterator[list[KeySpan]]:
    spans: list[KeySpan] = []
    room = bytes_max
    for family in whole:
        ranges = _sequences(db, family, conditions) if family.start == schema.ARCHIVED else [family]
        for span in ranges:
            for piece, size in _pieces(db, span, bytes_max):
                if spans and size > room:
                    yield spans
                    spans, room = [], bytes_max
                spans.append(piece)
                room -= size
    if spans:
        yield spans


def _sequences(db: plyvel.DB, family: KeySpan, conditions: Conditions) -> list[KeySpan]:
    # parts of the archive that may have the selected numbers, by rule and origin
    found = []
    with db.iterator(
        start=family.start, stop=family.stop, include_value=False, fill_cache=False, verify_checksums=True
    ) as keys:
        key = next(keys, None)
        while key is not None:
            rule, origin, _ = archive_schema.split_block(key)
            first = max(key, archive_schema.block_key(rule, origin, conditions.first))
            # the block that has the last number may end with a higher one
            keys.seek(archive_schema.block_key(rule, origin, conditions.last))
            last = next(keys, None)
            behind = archive_schema.block_key(rule, origin, _NUMBER_MAX) + b"\0"
            stop = behind if last is None or last >= behind else last + b"\0"
            if first < stop:
                found.append(KeySpan(first, stop))
            keys.seek(behind)
            key = next(keys, None)
    return found


def _pieces(db: plyvel.DB, span: KeySpan, bytes_max: int) -> Iterator[tuple[KeySpan, int]]:
    # (part of the span, its bytes), of about the same size
    size = db.approximate_size(span.start, span.stop)
    count = -(-size // bytes_max)
    if count <= 1:
        yield span, size
        return
    bounds = [span.start]
    low, high = _ends(db, span)
    for at in range(1, count):
        bound = _found(db, span.start, low, high, size * at // count)
        if bounds[-1] < bound < span.stop:
            bounds.append(bound)
    bounds.append(span.stop)
    for start, stop in itertools.pairwise(bounds):
        yield KeySpan(start, stop), size // (len(bounds) - 1)


def _ends(db: plyvel.DB, span: KeySpan) -> tuple[bytes, bytes]:
    # its first and its last key
    ends = []
    for reverse in (False, True):
        with db.iterator(
            start=span.start,
            stop=span.stop,
            reverse=reverse,
            include_value=False,
            fill_cache=False,
            verify_checksums=True,
        ) as keys:
            ends.append(next(keys, span.start))
    return ends[0], ends[1]


def _found(db: plyvel.DB, start: bytes, low: bytes, high: bytes, wanted: int) -> bytes:
    # a key between two keys, with about this many bytes between `start` and it
    shared = next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    prefix = low[:shared]
    least, most = (int.from_bytes(key[shared : shared + _DIGITS].ljust(_DIGITS, b"\0")) for key in (low, high))
    for _ in range(_HALVINGS):
        middle = (least + most) // 2
        if db.approximate_size(start, prefix + middle.to_bytes(_DIGITS)) < wanted:
            least = middle
        else:
            most = middle
    return prefix + most.to_bytes(_DIGITS)
