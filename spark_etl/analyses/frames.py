"""DataFrames for analyses: each record once, the last snapshot of each host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["KEYS", "archived", "latest", "once", "read", "steps"]

KEYS: Final = {
    "messages": ("host", "number"),
    "events": ("host", "number"),
    "drops": ("host", "number"),
    "counters": ("host", "number", "name"),
}
"""Tables of events in time, with the columns that identify a row in several snapshots. The other tables have the state
at the time of a snapshot."""


def read(spark: SparkSession, table: str, snapshots: str, columns: Sequence[str] = ()) -> DataFrame:
    """Read a table of snapshots (a directory, several with commas, or a pattern), with all columns or these."""
    reader = spark.read.format("mqttd").option("table", table)
    if columns:
        reader = reader.option("columns", ",".join(columns))
    return reader.load(snapshots)


def once(table: str, frame: DataFrame) -> DataFrame:
    """Remove duplicates: of `messages` keep those of the archive, and of these, events, drops and counters each row
    once, however many snapshots have it: `taken` is then the last of them. Other tables are unchanged.
    """
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


def archived(messages: DataFrame) -> DataFrame:
    """Remove messages of the log, which only has those that sessions wait for, not all that were published."""
    return messages.where(F.col("origin") == "archive")


def latest(frame: DataFrame) -> DataFrame:
    """Return the rows of the last snapshot of each host."""
    newest = F.max("taken").over(Window.partitionBy("host"))
    return frame.withColumn("newest", newest).where(F.col("taken") == F.col("newest")).drop("newest")


def steps(column: str, seconds: int) -> Column:
    """Return the beginning of the step of this length, counted from 1970 UTC, in which a time is."""
    return F.timestamp_seconds(F.floor(F.unix_timestamp(column) / seconds) * seconds)
