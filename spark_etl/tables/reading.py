"""The readers of the tables: by schema version of the stores, then by table, then by family of keys.

A store is read in spans of keys, each of one family. The reader of a family gets a
`spark_etl.tables.opened.Reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import plyvel

from leveldb_store.format import schema
from leveldb_store.format.schema import SchemaError
from leveldb_store.snapshots.clone import CloneError
from leveldb_store.snapshots.snapshot import SnapshotError
from spark_etl.tables import clones, cursors, event_tables, messages, state
from spark_etl.tables.conditions import Conditions
from spark_etl.tables.frames import Frames
from spark_etl.tables.opened import Reading
from spark_etl.tables.snapshots import SnapshotStore, damage

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeySpan", "families_of", "read"]


class KeySpan(NamedTuple):
    """Keys of one family, from `start` on, before `stop`."""

    start: bytes
    stop: bytes


_Reader = Callable[[Reading, bytes, bytes], Iterator["pa.RecordBatch"]]

_TABLES: Final[dict[str, dict[bytes, _Reader]]] = {
    "messages": {
        schema.ARCHIVED: messages.archived,
        schema.BLOCK: messages.logged,
        schema.QUEUED: messages.kept,
    },
    "retained": {schema.RETAINED: messages.retained},
    "sessions": {schema.SESSION: state.sessions},
    "subscriptions": {schema.SUBSCRIPTION: state.subscriptions, schema.REPLAY: state.replays},
    "inflight": {schema.WINDOW: state.inflight},
    "cursors": {schema.SESSION: cursors.cursors},
    "handoff": {schema.HANDOFF: state.handoff},
    "events": {schema.EVENT: event_tables.events},
    "counters": {schema.EVENT: event_tables.counters},
    "drops": {schema.EVENT: event_tables.drops},
}

#: by schema version; the decoders of `leveldb_store` see from each record which form it has
_VERSIONS: Final = dict.fromkeys(range(schema.OLDEST_VERSION, schema.VERSION + 1), _TABLES)


def families_of(store: SnapshotStore, table: str) -> dict[bytes, _Reader]:
    """Return the families of keys from which a table is made, with their readers. Raises SnapshotError."""
    version = store.snapshot.manifest.schema
    if version not in _VERSIONS:
        raise SnapshotError(
            f"{store.snapshot.directory}: the stores have schema version {version}, "
            f"this mqttd reads {', '.join(map(str, _VERSIONS))}"
        )
    return _VERSIONS[version][table]


def read(
    store: SnapshotStore, table: str, spans: list[KeySpan], conditions: Conditions, frames: Frames, scratch: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a table from spans of one store. Raises SnapshotError, with the damaged file."""
    readers = families_of(store, table)
    try:
        with clones.cloned(store.path, scratch) as db:
            frames.counts.clones += 1
            reading = Reading(db, store, conditions, frames)
            for span in spans:
                yield from readers[span.start[:1]](reading, span.start, span.stop)
    except (CloneError, SchemaError, plyvel.Error) as error:
        raise SnapshotError(f"{damage(store)} ({error})") from None
