"""Analyses of devices: those that have fallen silent, and those that reconnect often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_etl.analyses.frames import archived, scope
from spark_etl.analyses.registry import Plot, analysis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["reconnects", "silent_devices"]

_OF_RECONNECTS = (
    "connections", "per_hour", "short", "median_s", "lost", "taken_over", "most_ended", "addresses",
)  # fmt: skip


@analysis(
    table="messages",
    columns=("taken", "host", "cluster", "number", "origin", "time", "publisher"),
    title="Silent devices",
    look_at="Devices near the top: they used to publish every few seconds, and then nothing came.",
    plot=Plot("bars", "publisher", ("silent_s",), unit="seconds of silence before the snapshot"),
)
def silent_devices(messages: DataFrame, times: float = 5.0) -> DataFrame:
    """Publishers that have been silent for more than `times` their mean interval, or have published only once: their
    last message, their mean interval and their silence until the last snapshot of their host was taken. In a cluster
    `host` is the last one.

    From the archive: a device that publishes on topics without `[[archive]]` table, or whose messages retention has
    removed, is not included, and neither is one that never published. Whether the device is connected is not known.
    """
    seconds = F.unix_micros("time") / 1e6
    taken = F.max("taken").over(Window.partitionBy("scope"))
    silent = F.greatest(F.lit(0.0), F.unix_micros("taken") / 1e6 - F.col("until"))
    return (
        archived(messages)
        .where(F.col("publisher").isNotNull())
        .groupBy(scope(messages).alias("scope"), "publisher")
        .agg(
            F.max_by("host", "time").alias("host"),
            F.count("*").alias("messages"),
            F.max("time").alias("last"),
            F.min(seconds).alias("since"),
            F.max(seconds).alias("until"),
            F.max("taken").alias("taken"),
        )
        .withColumn("taken", taken)
        .withColumn("silent_s", silent)
        .withColumn("interval_s", F.try_divide(F.col("until") - F.col("since"), F.col("messages") - 1))
        .withColumn("intervals", F.try_divide("silent_s", "interval_s"))
        .where(F.col("interval_s").isNull() | (F.col("silent_s") > times * F.col("interval_s")))
        .select("host", "publisher", "messages", "last", "interval_s", "silent_s", "intervals")
        .orderBy(F.desc("silent_s"), "host", "publisher")
    )


@analysis(
    table="events",
    columns=("host", "cluster", "number", "time", "kind", "client", "address", "reason", "by", "milliseconds"),
    title="Reconnect flapping",
    look_at="Clients with many short connections: bad radio, a client id that two devices use, one that crashes.",
    plot=Plot("bars", "client", ("connections",), unit="connections"),
)
def reconnects(events: DataFrame, least: int = 3, short_s: float = 60.0) -> DataFrame:
    """Clients that have connected `least` times or more: connections, per hour, ended ones that lasted less than
    `short_s`, their median duration, those lost or taken over, the most frequent reason, the number of addresses.

    From events: connections beyond `[events] events_per_second_max` are not included, nor those of a broker with its
    store in memory. Refused connections are another kind of event and not counted. When a worker is killed its
    connections end without an event. In a cluster those of all hosts count; `host`: the last one.
    """
    opened, closed = F.col("kind") == "connection_opened", F.col("kind") == "connection_closed"
    hours = F.greatest((F.max(F.unix_micros("time")) - F.min(F.unix_micros("time"))) / 3.6e9, F.lit(1 / 60))
    return (
        events.where(opened | closed | (F.col("kind") == "session_taken_over"))
        .groupBy(scope(events).alias("scope"), "client")
        .agg(
            F.max_by("host", "time").alias("host"),
            F.count_if(opened).alias("connections"),
            (F.count_if(opened) / hours).alias("per_hour"),
            F.count_if(closed & (F.col("milliseconds") < short_s * 1000)).alias("short"),
            (F.median(F.when(closed, F.col("milliseconds"))) / 1000).alias("median_s"),
            F.count_if(closed & (F.col("by") == "nobody")).alias("lost"),
            F.count_if(F.col("kind") == "session_taken_over").alias("taken_over"),
            F.mode(F.when(closed, F.col("reason")), True).alias("most_ended"),
            F.count_distinct(F.when(opened, F.regexp_replace("address", r":\d+$", ""))).alias("addresses"),
        )
        .where(F.col("connections") >= least)
        .select("host", "client", *_OF_RECONNECTS)
        .orderBy(F.desc("connections"), "host", "client")
    )
