"""Analyses of published messages: over time, by size, by hour of the week."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_etl.analyses.frames import archived, steps
from spark_etl.analyses.registry import Plot, analysis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["hours_of_week", "payload_sizes", "throughput"]


@analysis(
    table="messages",
    columns=("host", "number", "origin", "time", "topic", "payload_bytes"),
    title="Throughput by topic",
    look_at="Topics that grow when nobody expects it; gaps, where nothing came.",
    plot=Plot("lines", "time", ("messages_per_s",), by="topic", unit="messages per second"),
)
def throughput(messages: DataFrame, seconds: int = 60, levels: int = 1) -> DataFrame:
    """Messages and bytes of payload published, by the first levels of their topics, in steps of time.

    From the archive: a topic without `[[archive]]` table is not included, nor messages that retention has removed. The
    first and the last step may be shorter.
    """
    return (
        archived(messages)
        .groupBy(steps("time", seconds).alias("time"), F.substring_index("topic", "/", levels).alias("topic"))
        .agg(F.count("*").alias("messages"), F.sum("payload_bytes").alias("bytes"))
        .withColumn("messages_per_s", F.col("messages") / seconds)
        .orderBy("time", "topic")
    )


@analysis(
    table="messages",
    columns=("host", "number", "origin", "topic", "payload_bytes"),
    title="Payload sizes",
    look_at="The few large ones: they have most of the bytes, and fill queues first.",
    plot=Plot("stacks", "up_to_bytes", ("messages",), by="topic", unit="messages"),
)
def payload_sizes(messages: DataFrame) -> DataFrame:
    """Number of payloads by size class (at most so many bytes, more than half of that) and first level of the topic.

    From the archive: a topic without `[[archive]]` table is not included. Payloads only, without topic and properties.
    """
    size = F.col("payload_bytes")
    # number of bits of size - 1: exact, unlike logarithms
    up_to = F.when(size <= 1, size.cast("bigint")).otherwise(
        F.expr("shiftleft(1L, length(bin(payload_bytes - 1)))")  # pyspark's own takes no Column as number of bits
    )
    return (
        archived(messages)
        .groupBy(F.substring_index("topic", "/", 1).alias("topic"), up_to.alias("up_to_bytes"))
        .agg(F.count("*").alias("messages"), F.sum("payload_bytes").alias("bytes"))
        .orderBy("topic", "up_to_bytes")
    )


@analysis(
    table="messages",
    columns=("host", "number", "origin", "time"),
    title="Hours of the week",
    look_at="When the fleet works and when it sleeps: an hour without its usual colour, maintenance at a bad time.",
    plot=Plot("weeks", "hour", ("messages_per_hour",), unit="messages per hour"),
)
def hours_of_week(messages: DataFrame) -> DataFrame:
    """Messages published by weekday (0 is Monday) and hour, in the session's time zone (`spark.sql.session.timeZone`).

    From the archive: a topic without `[[archive]]` table is not included. `messages_per_hour` is the mean over the days
    that have messages in that hour: days without any are left out.
    """
    return (
        archived(messages)
        .groupBy(F.weekday("time").alias("weekday"), F.hour("time").alias("hour"), F.to_date("time").alias("date"))
        .agg(F.count("*").alias("messages"))
        .groupBy("weekday", "hour")
        .agg(F.sum("messages").alias("messages"), F.count("*").alias("days"))
        .withColumn("messages_per_hour", F.col("messages") / F.col("days"))
        .orderBy("weekday", "hour")
    )
