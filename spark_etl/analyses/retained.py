"""Analyses of retained messages: their number, and their topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_etl.analyses.frames import moment, once, scope, steps
from spark_etl.analyses.registry import Plot, analysis

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["retained_growth", "retained_topics"]


@analysis(
    table="counters",
    columns=("host", "cluster", "number", "worker", "minute", "name", "value"),
    title="Growth of retained messages",
    look_at="A line that only rises: topics with an id in them that nobody clears.",
    plot=Plot("lines", "time", ("messages",), unit="retained messages"),
)
def retained_growth(counters: DataFrame, seconds: int = 60) -> DataFrame:
    """Retained messages and their bytes over time: the last sample of each worker in a step, all workers together; of
    the hosts of a cluster, which all have the same ones, that with the most.

    From the samples of each minute. A worker without a sample in a step (it did not run) is not in its sum; a step
    without retained messages is left out, as counters at 0 are. `retained_topics` has the topics.
    """

    def total(name: str, called: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("name") == name, F.col("value"))), F.lit(0)).alias(called)

    return (
        counters.where(F.col("name").isin("retained_messages", "retained_bytes"))
        .groupBy(scope(counters).alias("scope"), "host", "worker", "name", steps("minute", seconds).alias("time"))
        .agg(F.max_by("value", "number").alias("value"))
        .groupBy("scope", "host", "name", "time")
        .agg(F.sum("value").alias("value"))
        .groupBy("scope", "name", "time")
        .agg(F.max("value").alias("value"))
        .groupBy("time")
        .agg(total("retained_messages", "messages"), total("retained_bytes", "bytes"))
        .orderBy("time")
    )


@analysis(
    table="retained",
    columns=("taken", "host", "cluster_snapshot", "time", "topic", "payload_bytes"),
    title="Retained messages by topic",
    look_at="First levels with many that were set long ago: nobody will clear them.",
    plot=Plot("stacks", "taken", ("messages",), by="topic", unit="retained messages"),
)
def retained_topics(retained: DataFrame) -> DataFrame:
    """Retained messages by first level of the topic, in each snapshot: their number, their payloads, the oldest and the
    newest of them. Those of a cluster count once in a snapshot of all hosts.

    From the records of retained messages. A message set and replaced or cleared between two snapshots is in neither.
    """
    return (
        once("retained", retained)
        .groupBy(moment(retained).alias("moment"), F.substring_index("topic", "/", 1).alias("topic"))
        .agg(
            F.min("taken").alias("taken"),
            F.count("*").alias("messages"),
            F.sum("payload_bytes").alias("bytes"),
            F.min("time").alias("oldest"),
            F.max("time").alias("newest"),
        )
        .select("taken", "topic", "messages", "bytes", "oldest", "newest")
        .orderBy("taken", F.desc("messages"), "topic")
    )
