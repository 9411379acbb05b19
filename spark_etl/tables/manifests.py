"""The tables `stores` and `rules`, from the manifests of snapshots. No database is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from leveldb_store.format.archive_schema import NOT_CONFIGURED
from spark_etl.tables.catalogue import TABLES
from spark_etl.tables.frames import Frames
from spark_etl.tables.snapshots import SnapshotStore

__all__ = ["OF_MANIFESTS"]


def _stores(store: SnapshotStore, frames: Frames) -> Iterator[pa.RecordBatch]:
    manifest, facts = store.snapshot.manifest, store.facts
    row = (
        manifest.version, manifest.workers, manifest.epoch, manifest.generation, facts.last_position,
        facts.last_number or None, facts.messages, list(facts.records.items()), list(facts.counters.items()),
    )  # fmt: skip
    return frames.of_rows(TABLES["stores"].own_names, [row])


def _rules(store: SnapshotStore, frames: Frames) -> Iterator[pa.RecordBatch]:
    rows = [
        (
            text, None if facts.place == NOT_CONFIGURED else facts.place, facts.age_ms // 1000, facts.bytes_max,
            facts.messages, facts.first or None, facts.last or None,
        )
        for text, facts in store.facts.archived.items()
    ]  # fmt: skip
    return frames.of_rows(TABLES["rules"].own_names, rows)


OF_MANIFESTS: Final[dict[str, Callable[[SnapshotStore, Frames], Iterator[pa.RecordBatch]]]] = {
    "stores": _stores,
    "rules": _rules,
}
