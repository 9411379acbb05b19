"""DataFrames for analyses: each record once, the last snapshot of each host.

In a cluster every host has all retained messages, and a session that moves while hosts are copied one after the other
is in the snapshots of two: of these the newest counts. Frames without the columns `cluster` and `cluster_snapshot` are
of hosts that are alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["KEYS", "archived", "latest", "moment", "once", "read", "scope", "steps"]

KEYS: Final = {
    "messages": ("host", "number"),
    "events": ("host", "number"),
    "drops": ("host", "number"),
    "counters": ("host", "number", "name"),
}
"""Tables of events in time, with the columns that identify a row in several snapshots. The other tables have the state
at the time of a snapshot."""

_OF_CLIENTS: Final = ("sessions", "subscriptions", "inflight", "cursors")


def read(spark: SparkSession, table: str, snapshots: str, columns: Sequence[str] = ()) -> DataFrame:
    """Read a table of snapshots (a directory, several with commas, or a pattern), with all columns or these."""
    reader = spark.read.format("mqttd").option("table", table)
    if columns:
        reader = reader.option("columns", ",".join(columns))
    return reader.load(snapshots)


def once(table: str, frame: DataFrame) -> DataFrame:
    """Remove duplicates: of `messages` keep those of the archive, and of these, events, drops and counters each row
    once, however many snapshots have it: `taken` is then the last of them. Of a snapshot of all hosts of a cluster keep
    each retained message once, and what is known of a session from one host: where its client was connected last.
    Other tables are unchanged.
    """
    if table in _OF_CLIENTS:
        return _of_one_host(frame, moment(frame), "client", F.struct("seen", "taken", "host"))
    if table == "retained":
        return _of_one_host(frame, moment(frame), "topic", F.struct("time", "taken", "host"))
    key = KEYS.get(table)
    if key is None:
        return frame
    if table == "messages":
        frame = archived(frame)
    others = [name for name in frame.columns if name not in key]
    if not others:
        return frame.distinct()
    return frame.groupBy(*key).agg(
        *(F.max(name).alias(name) if name == "taken" else F.first(name).alias(name) for name in others)
    )


def _of_one_host(frame: DataFrame, together: Column, name: str, rank: Column) -> DataFrame:
    # of rows with the same name, and together in a snapshot, those of the highest rank, which all rows of a host share
    if "cluster_snapshot" not in frame.columns:
        return frame
    highest = F.max("_rank").over(Window.partitionBy("_together", name))
    ranked = frame.withColumns({"_rank": rank, "_together": together}).withColumn("_highest", highest)
    return ranked.where(F.col("_rank") == F.col("_highest")).drop("_rank", "_together", "_highest")


def moment(frame: DataFrame) -> Column:
    """Return what the rows of one snapshot have in common, also if it is of all hosts of a cluster."""
    if "cluster_snapshot" not in frame.columns:
        return F.col("taken").cast("string")
    return F.coalesce("cluster_snapshot", F.col("taken").cast("string"))


def scope(frame: DataFrame) -> Column:
    """Return within what a client id is one client: the name of the cluster, or the host if it is in none."""
    return F.coalesce("cluster", "host") if "cluster" in frame.columns else F.col("host")


def archived(messages: DataFrame) -> DataFrame:
    """Remove messages of the log, which only has those that sessions wait for, not all that were published."""
    return messages.where(F.col("origin") == "archive")


def latest(frame: DataFrame) -> DataFrame:
    """Return the rows of the last snapshot of each host; of a client of several hosts of a cluster, those of one."""
    newest = F.max("taken").over(Window.partitionBy("host"))
    found = frame.withColumn("newest", newest).where(F.col("taken") == F.col("newest")).drop("newest")
    if {"client", "seen"} <= set(frame.columns):
        return _of_one_host(found, scope(frame), "client", F.struct("seen", "taken", "host"))
    return found


def steps(column: str, seconds: int) -> Column:
    """Return the beginning of the step of this length, counted from 1970 UTC, in which a time is."""
    return F.timestamp_seconds(F.floor(F.unix_timestamp(column) / seconds) * seconds)
