"""Each analysis on a few rows with a known answer, given only the columns that it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark_etl.analyses import ANALYSES, latest, once
from tests.spark.by_hand import at, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOST = {"host": "h", "taken": at(3600), "origin": "archive"}


def answer(
    spark: SparkSession, name: str, rows: list[dict[str, Any]], settings: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of an analysis, in its order."""
    each = ANALYSES[name]
    numbered = [{"number": number, **row} if "number" in each.columns else row for number, row in enumerate(rows)]
    made = each(once(each.table, frame(spark, each.table, each.columns, numbered, **HOST)), **(settings or {}))
    return [row.asDict() for row in made.collect()]


def some(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_throughput_counts_messages_and_bytes_by_level_and_step(spark: SparkSession) -> None:
    rows = [
        {"time": at(0), "topic": "a/b/c", "payload_bytes": 10},
        {"time": at(59.9), "topic": "a/x", "payload_bytes": 5},
        {"time": at(60), "topic": "a", "payload_bytes": 1},
        {"time": at(61), "topic": "/a", "payload_bytes": 2},
        {"time": at(61), "topic": "a", "payload_bytes": 7, "origin": "queue"},
    ]
    made = answer(spark, "throughput", rows)
    assert [(row["time"].minute, row["topic"], row["messages"], row["bytes"]) for row in made] == [
        (0, "a", 2, 15), (1, "", 1, 2), (1, "a", 1, 1),
    ]  # fmt: skip
    assert made[0]["messages_per_s"] == pytest.approx(2 / 60)
    deeper = answer(spark, "throughput", rows, {"seconds": 3600, "levels": 2})
    assert some(deeper, "topic", "messages") == [("/a", 1), ("a", 1), ("a/b", 1), ("a/x", 1)]


def test_what_two_snapshots_have_is_counted_once(spark: SparkSession) -> None:
    same = {"time": at(0), "topic": "a", "payload_bytes": 10, "number": 7}
    rows = [same, same, {**same, "host": "another"}]
    assert some(answer(spark, "throughput", rows), "messages") == [(2,)]


def test_once_takes_the_archive_and_the_last_snapshot(spark: SparkSession) -> None:
    columns = ("taken", "host", "number", "origin", "publisher")
    rows = [
        {"taken": at(1), "number": 1, "origin": "archive", "publisher": "p"},
        {"taken": at(2), "number": 1, "origin": "archive", "publisher": "p"},
        {"taken": at(2), "number": 1, "origin": "queue"},
    ]
    messages = frame(spark, "messages", columns, rows, host="h")
    (kept,) = once("messages", messages).collect()
    assert (kept["publisher"], kept["origin"]) == ("p", "archive")
    takens = sorted(row["taken"] for row in messages.collect())
    assert kept["taken"] == takens[-1] > takens[0]
    assert [row["taken"] for row in latest(messages).collect()] == [kept["taken"]] * 2
    assert once("cursors", messages) is messages
    assert once("messages", messages.select("host", "number", "origin")).count() == 1


def test_payload_sizes_have_powers_of_two_as_bounds(spark: SparkSession) -> None:
    sizes = [0, 1, 2, 3, 4, 5, 8, 9, 1 << 27, (1 << 27) + 1]
    made = answer(spark, "payload_sizes", [{"topic": "t/x", "payload_bytes": size} for size in sizes])
    assert some(made, "topic", "up_to_bytes", "messages") == [
        ("t", 0, 1), ("t", 1, 1), ("t", 2, 1), ("t", 4, 2), ("t", 8, 2), ("t", 16, 1), ("t", 1 << 27, 1),
        ("t", 1 << 28, 1),
    ]  # fmt: skip
    assert sum(row["bytes"] for row in made) == sum(sizes)


def test_hours_of_week_are_means_over_days(spark: SparkSession) -> None:
    week = 7 * 86400
    rows = [{"time": at(seconds)} for seconds in (0, 10, week, week + 20, week + 30, 3600, 86400)]
    assert some(answer(spark, "hours_of_week", rows), "weekday", "hour", "messages", "messages_per_hour") == [
        (0, 12, 5, 2.5), (0, 13, 1, 1.0), (1, 12, 1, 1.0),
    ]  # fmt: skip


def test_silent_devices_are_silent_for_their_own_measure(spark: SparkSession) -> None:
    rows = [{"publisher": "often", "time": at(10 * i)} for i in range(7)]  # to 60: silent for 3540 s
    rows += [{"publisher": "seldom", "time": at(1000 * i)} for i in range(3)]  # to 2000: 1600 s, every 1000 s
    rows += [{"publisher": "lively", "time": at(600 * i)} for i in range(7)]  # until the time of the snapshot
    rows += [{"publisher": "once", "time": at(600)}, {"publisher": None, "time": at(0)}]
    made = answer(spark, "silent_devices", rows)
    assert some(made, "publisher", "messages", "interval_s", "silent_s", "intervals") == [
        ("often", 7, 10.0, 3540.0, 354.0), ("once", 1, None, 3000.0, None),
    ]  # fmt: skip


def test_reconnects_tells_who_flaps_and_why(spark: SparkSession) -> None:
    opened: dict[str, Any] = {"kind": "connection_opened", "client": "flaps", "address": "10.0.0.1:50000"}
    closed = {"kind": "connection_closed", "client": "flaps", "by": "nobody", "reason": "connection lost"}
    rows: list[dict[str, Any]] = [
        {**opened, "time": at(0)}, {**closed, "time": at(2), "milliseconds": 2000},
        {**opened, "time": at(600), "address": "10.0.0.1:50001"},
        {**closed, "time": at(603), "milliseconds": 3000},
        {**opened, "time": at(1200), "address": "[::1]:50002"},
        {"kind": "session_taken_over", "client": "flaps", "time": at(1500)},
        {**closed, "time": at(1800), "milliseconds": 600_000, "by": "broker", "reason": "session taken over"},
        {**opened, "time": at(0), "client": "steady"},
        {"kind": "connection_refused", "client": "flaps", "time": at(1800)},
    ]  # fmt: skip
    (row,) = answer(spark, "reconnects", rows)
    assert row == {
        "host": "h", "client": "flaps", "connections": 3, "per_hour": 6.0, "short": 2, "median_s": 3.0, "lost": 2,
        "taken_over": 1, "most_ended": "connection lost", "addresses": 2,
    }  # fmt: skip


def test_backlog_is_of_the_last_snapshot(spark: SparkSession) -> None:
    rows: list[dict[str, Any]] = [
        {"client": "a", "lag_messages": 3, "lag_bytes": 30, "oldest": at(3540)},
        {"client": "a", "lag_messages": 1, "lag_bytes": 5, "oldest": at(3000)},
        {"client": "b", "lag_messages": 0, "lag_bytes": 0},
        {"client": "c", "lag_messages": 9, "lag_bytes": 90, "oldest": at(3599), "host": "another", "taken": at(3600)},
        {"client": "a", "lag_messages": 99, "lag_bytes": 990, "oldest": at(1), "taken": at(100)},
    ]
    made = answer(spark, "backlog", rows)
    assert some(made, "client", "messages", "bytes", "oldest_s") == [("c", 9, 90, 1.0), ("a", 4, 35, 600.0)]


def test_fan_out_is_what_matched_and_its_bytes(spark: SparkSession) -> None:
    rows = [
        {"topic": "all", "payload_bytes": 10, "matches": 100},
        {"topic": "all", "payload_bytes": 20, "matches": 200},
        {"topic": "none", "payload_bytes": 1000, "matches": 0},
    ]
    made = answer(spark, "fan_out", rows)
    assert some(made, "topic", "messages", "matches", "bytes_out", "unheard", "per_message") == [
        ("all", 2, 300, 5000, 0, 150.0), ("none", 1, 0, 0, 1, 0.0),
    ]  # fmt: skip


def test_topic_traffic_adds_minutes_and_workers(spark: SparkSession) -> None:
    traffic: dict[str, Any] = {"kind": "topic_traffic", "prefix": "a", "delivered": 5, "dropped": 1}
    rows = [traffic, {**traffic, "delivered": 7}, {**traffic, "prefix": None}, {"kind": "counters"}]
    assert some(answer(spark, "topic_traffic", rows), "topic", "delivered", "dropped") == [("a", 12, 2), (None, 5, 1)]


def test_shared_groups_compare_members_with_their_fair_part(spark: SparkSession) -> None:
    subscribed = {"kind": "subscription_made", "filter": "$share/g/t/#"}
    closed = {"kind": "connection_closed"}
    rows: list[dict[str, Any]] = [
        {**subscribed, "client": "m1"}, {**subscribed, "client": "m1"}, {**subscribed, "client": "m2"},
        {**subscribed, "client": "there"}, {**subscribed, "client": "alone", "filter": "t/#"},
        {**closed, "client": "m1", "messages_out": 20}, {**closed, "client": "m1", "messages_out": 10},
        {**closed, "client": "m2", "messages_out": 10}, {**closed, "client": "alone", "messages_out": 1000},
    ]  # fmt: skip
    assert some(answer(spark, "shared_groups", rows), "share", "client", "messages", "times_fair") == [
        ("$share/g/t/#", "m1", 30, 1.5), ("$share/g/t/#", "m2", 10, 0.5), ("$share/g/t/#", "there", None, None),
    ]  # fmt: skip


def test_drop_reasons_add_the_parts_of_a_minute(spark: SparkSession) -> None:
    rows = [
        {"minute": at(0), "reason": "queue_full", "messages": 3},
        {"minute": at(0), "reason": "queue_full", "messages": 4},
        {"minute": at(0), "reason": "expired", "messages": 1},
        {"minute": at(60), "reason": "expired", "messages": 2},
    ]
    assert some(answer(spark, "drop_reasons", rows), "reason", "messages") == [
        ("expired", 1), ("queue_full", 7), ("expired", 2),
    ]  # fmt: skip
    hourly = answer(spark, "drop_reasons", rows, {"seconds": 3600})
    assert some(hourly, "reason", "messages") == [("expired", 3), ("queue_full", 7)]


def test_delay_has_percentiles_of_all_workers_together(spark: SparkSession) -> None:
    kind = {"kind": "publish_to_ack", "minute": at(0)}
    rows: list[dict[str, Any]] = [
        {**kind, "samples": 60, "nanoseconds": 60_000_000, "rows": {"1000000": 60}},
        {**kind, "samples": 40, "nanoseconds": 140_000_000, "rows": {"1000000": 38, "2500000": 1, "50000000": 1}},
        {**kind, "minute": at(60), "samples": 2, "nanoseconds": 2_000_000_000, "rows": {"1000": 1, "more": 1}},
        {"kind": "counters", "minute": at(0), "rows": {"sessions": 1}},
    ]
    made = answer(spark, "delay", rows)
    assert some(made, "samples", "mean_ms", "p50_ms", "p99_ms") == [(100, 2.0, 1.0, 2.5), (2, 1000.0, 0.001, None)]


def test_retained_growth_takes_the_last_sample_of_each_worker(spark: SparkSession) -> None:
    sample: dict[str, Any] = {"name": "retained_messages", "minute": at(0), "worker": 0, "value": 5}
    rows: list[dict[str, Any]] = [
        sample, {**sample, "value": 6}, {**sample, "worker": 1, "value": 10},
        {**sample, "name": "retained_bytes", "value": 600}, {**sample, "name": "sessions", "value": 99},
        {**sample, "minute": at(60), "value": 8},
    ]  # fmt: skip
    made = answer(spark, "retained_growth", rows)
    assert some(made, "messages", "bytes") == [(16, 600), (8, 0)]
    assert some(answer(spark, "retained_growth", rows, {"seconds": 120}), "messages") == [(18,)]


def test_retained_topics_has_each_snapshot(spark: SparkSession) -> None:
    rows = [
        {"topic": "a/1", "payload_bytes": 1, "time": at(0), "taken": at(10)},
        {"topic": "a/1", "payload_bytes": 1, "time": at(0)},
        {"topic": "a/2", "payload_bytes": 2, "time": at(20)},
        {"topic": "b", "payload_bytes": 4, "time": at(20)},
    ]
    made = answer(spark, "retained_topics", rows)
    assert some(made, "topic", "messages", "bytes") == [("a", 1, 1), ("a", 2, 3), ("b", 1, 4)]
    assert made[1]["oldest"] < made[1]["newest"]


def test_all_that_is_asked_for_has_an_analysis() -> None:
    assert set(ANALYSES) == {
        "throughput", "silent_devices", "reconnects", "backlog", "fan_out", "topic_traffic", "payload_sizes",
        "retained_growth", "retained_topics", "shared_groups", "drop_reasons", "delay", "hours_of_week",
    }  # fmt: skip
    assert all(each.look_at.endswith((".", "?")) and "\n\nFrom " in each.says for each in ANALYSES.values())


@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_of_nothing_has_no_rows(spark: SparkSession, name: str) -> None:
    assert answer(spark, name, []) == []
