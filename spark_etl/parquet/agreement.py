"""Comparison of snapshots with their manifests: the number of rows read must be that in the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_etl.tables.snapshots import Snapshot, SnapshotStore, stores_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Counted", "agreement"]

_FAMILIES: Final = {"sessions": "S", "subscriptions": "TO", "retained": "R", "events": "E"}
"""Tables whose rows are records, and the families of keys of these."""


class Counted(NamedTuple):
    """The count of one kind of records in one store."""

    store: SnapshotStore
    what: str
    manifest: int
    read: int


def agreement(spark: SparkSession, snapshots: Sequence[Snapshot]) -> Iterator[Counted]:
    """Yield for each store the counts of every kind of record. Raises PySparkException."""
    paths = [str(snapshot.directory) for snapshot in snapshots]
    if not paths:
        return

    def read(table: str, columns: str) -> DataFrame:
        return spark.read.format("mqttd").option("table", table).option("columns", columns).load(paths)

    columns = "snapshot,store,origin,rule,session"
    messages = read("messages", columns).selectExpr(*columns.split(",")[:4], "session is not null as is_kept")
    grouped = messages.groupBy("snapshot", "store", "origin", "rule", "is_kept").count()
    counts: dict[tuple[Any, ...], int] = {tuple(row[:5]): row[5] for row in grouped.collect()}
    others = {
        (table, row[0], row[1]): row[2]
        for table in _FAMILIES
        for row in read(table, "snapshot,store").groupBy("snapshot", "store").count().collect()
    }
    for store in stores_of(list(snapshots)):
        facts, where = store.facts, (str(store.snapshot.directory), store.facts.worker)
        for rule, each in facts.archived.items():
            found = counts.get((*where, "archive", rule, False), 0)
            yield Counted(store, f"archived by {rule}", each.messages, found)
        in_log, kept = (counts.get((*where, "queue", None, is_kept), 0) for is_kept in (False, True))
        yield Counted(store, "messages of the log", facts.messages, in_log)
        yield Counted(store, "messages kept for one session", facts.records.get("Q", 0), kept)
        for table, letters in _FAMILIES.items():
            records = sum(facts.records.get(letter, 0) for letter in letters)
            yield Counted(store, table, records, others.get((table, *where), 0))
