"""Analyses of delivery: backlogs, cost of topics, drops, balance of share groups, and delay of acks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_etl.analyses.frames import archived, latest, scope, steps
from spark_etl.analyses.registry import Plot, analysis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["backlog", "delay", "drop_reasons", "fan_out", "shared_groups", "topic_traffic"]


@analysis(
    table="cursors",
    columns=(
        "taken",
        "host",
        "cluster",
        "cluster_snapshot",
        "client",
        "lag_messages",
        "lag_bytes",
        "oldest",
        "seen",
    ),
    title="Backlog by session",
    look_at="Sessions whose oldest message is old: their client does not come back. Many bytes: queues that fill up.",
    plot=Plot("bars", "client", ("messages",), unit="messages that wait"),
)
def backlog(cursors: DataFrame) -> DataFrame:
    """Messages that wait for each session in the last snapshot of its host, and the age of the oldest.

    From the sessions' positions in the log of their store, and their own queues. A message that matches two Topic
    Filters of a session counts for each. Messages sent and not answered are not included (see `inflight`), nor those
    that a replay would send from the archive.
    """
    age = (F.unix_micros(F.first("taken")) - F.unix_micros(F.min("oldest"))) / 1e6
    return (
        latest(cursors)
        .groupBy("host", "client")
        .agg(
            F.sum("lag_messages").alias("messages"),
            F.sum("lag_bytes").alias("bytes"),
            F.min("oldest").alias("oldest"),
            F.greatest(F.lit(0.0), age).alias("oldest_s"),
        )
        .where(F.col("messages") > 0)
        .orderBy(F.desc("messages"), "host", "client")
    )


@analysis(
    table="messages",
    columns=("host", "number", "origin", "topic", "payload_bytes", "matches"),
    title="Fan-out cost by topic",
    look_at="Topics whose every message goes to many: they cost most. Topics that nobody hears: who publishes them?",
    plot=Plot("bars", "topic", ("bytes_out",), unit="bytes of payload to subscribers"),
)
def fan_out(messages: DataFrame) -> DataFrame:
    """Matching subscriptions, and the bytes of payload sent to them, by topic.

    From the archive: a topic without `[[archive]]` table is not included. `matches` counts subscriptions of the worker
    that received the message: with several workers it is a part of all. `topic_traffic` counts the copies sent to
    clients by all workers.
    """
    return (
        archived(messages)
        .groupBy("topic")
        .agg(
            F.count("*").alias("messages"),
            F.sum("matches").alias("matches"),
            F.sum(F.col("matches") * F.col("payload_bytes")).alias("bytes_out"),
            F.count_if(F.col("matches") == 0).alias("unheard"),
        )
        .withColumn("per_message", F.col("matches") / F.col("messages"))
        .orderBy(F.desc("bytes_out"), F.desc("messages"), "topic")
    )


@analysis(
    table="events",
    columns=("host", "number", "kind", "prefix", "delivered", "dropped"),
    title="Deliveries by topic",
    look_at="Topics with most deliveries, and those of which much is dropped.",
    plot=Plot("bars", "topic", ("delivered", "dropped"), unit="copies"),
)
def topic_traffic(events: DataFrame) -> DataFrame:
    """Copies sent to clients and copies dropped, by the first levels of their topic. null: all other topics.

    From the events of each minute, of all workers, which a broker records when `[events] topic_levels` is not 0. Drops
    by full queues are not included (see `drop_reasons`), nor the minute in which the snapshot was taken.
    """
    return (
        events.where(F.col("kind") == "topic_traffic")
        .groupBy(F.col("prefix").alias("topic"))
        .agg(F.sum("delivered").alias("delivered"), F.sum("dropped").alias("dropped"))
        .orderBy(F.desc("delivered"), "topic")
    )


@analysis(
    table="events",
    columns=("host", "cluster", "number", "kind", "client", "filter", "messages_out"),
    title="Balance of shared groups",
    look_at="Members with far more, or far less, than their fair share.",
    plot=Plot("bars", "client", ("messages",), by="share", unit="messages given to the member"),
)
def shared_groups(events: DataFrame) -> DataFrame:
    """Members of each share group and the messages sent to each; `times_fair` is 1 for an equal share.

    From events: all clients that have subscribed to `$share/...`, and the messages sent on each of their connections
    until it ended, which include those of other subscriptions. null: it is still connected, and counted when it ends. A
    client that was on several hosts of a cluster is a member on each of them.
    """
    given = (
        events.where(F.col("kind") == "connection_closed")
        .groupBy("host", "client")
        .agg(F.sum("messages_out").alias("messages"))
    )
    of_group = Window.partitionBy("scope", "share")
    return (
        events.where((F.col("kind") == "subscription_made") & F.col("filter").startswith("$share/"))
        .select(scope(events).alias("scope"), "host", F.col("filter").alias("share"), "client")
        .distinct()
        .join(given, ["host", "client"], "left")
        .withColumn("members", F.count("messages").over(of_group))
        .withColumn("times_fair", F.try_divide(F.col("messages") * F.col("members"), F.sum("messages").over(of_group)))
        .select("host", "share", "client", "messages", "times_fair")
        .orderBy("host", "share", F.desc("messages"), "client")
    )


@analysis(
    table="drops",
    columns=("host", "number", "minute", "reason", "messages"),
    title="Drops by reason",
    look_at="Anything that is not 0; docs/operations.md says what each reason means.",
    plot=Plot("lines", "time", ("messages",), by="reason", unit="copies dropped"),
)
def drop_reasons(drops: DataFrame, seconds: int = 60) -> DataFrame:
    """Copies dropped by reason, in steps of time.

    From the events that workers record at the end of each minute: the minute in which the snapshot was taken is not
    included, nor the last one of a worker that was killed.
    """
    return (
        drops.groupBy(steps("minute", seconds).alias("time"), "reason")
        .agg(F.sum("messages").alias("messages"))
        .orderBy("time", "reason")
    )


@analysis(
    table="events",
    columns=("host", "number", "kind", "minute", "samples", "nanoseconds", "rows"),
    title="Delay from publish to ack",
    look_at="The 99th percentile beside the mean: a disk or a sibling that is slow now and then.",
    plot=Plot("lines", "time", ("mean_ms", "p50_ms", "p99_ms"), unit="milliseconds"),
)
def delay(events: DataFrame, seconds: int = 60) -> DataFrame:
    """Time from the beginning of the tick that received a PUBLISH to the end of its routing, or to its ack leaving if
    that waits for the disk or another worker: mean, and the durations that 50 % and 99 % of the samples did not exceed.

    From the samples of `mqtt_publish_duration_seconds` that events have for each minute: one every 10 ms at most, by
    bounds of a histogram, so percentiles are upper bounds (null: beyond the last bound). Networks and clients are not
    included; nor is the delivery to subscribers (`mqtt_delivery_duration_seconds` of /metrics has it).
    """
    sampled = events.where(F.col("kind") == "publish_to_ack").withColumn("time", steps("minute", seconds))
    means = sampled.groupBy("time").agg(
        F.sum("samples").alias("samples"), (F.sum("nanoseconds") / F.sum("samples") / 1e6).alias("mean_ms")
    )
    bound = F.when(F.col("key") != "more", F.col("key").cast("bigint"))
    whole = Window.partitionBy("time")
    up_to = whole.orderBy(F.col("bound").asc_nulls_last())
    part = F.sum("value").over(up_to.rowsBetween(Window.unboundedPreceding, 0)) / F.sum("value").over(whole)
    percentiles = (
        sampled.select("time", F.explode("rows"))
        .groupBy("time", bound.alias("bound"))
        .agg(F.sum("value").alias("value"))
        .withColumn("part", part)
        .groupBy("time")
        .agg(
            *(
                (F.min_by("bound", F.when(F.col("part") >= each / 100, F.col("part"))) / 1e6).alias(f"p{each}_ms")
                for each in (50, 99)
            )
        )
    )
    return means.join(percentiles, "time").orderBy("time")
