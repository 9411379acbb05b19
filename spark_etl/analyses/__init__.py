"""Analyses: functions that answer questions from the tables of snapshots (docs/analytics.md), by name in `ANALYSES`."""

from typing import Final

from spark_etl.analyses.delivery import backlog, delay, drop_reasons, fan_out, shared_groups, topic_traffic
from spark_etl.analyses.devices import reconnects, silent_devices
from spark_etl.analyses.frames import latest, once, read
from spark_etl.analyses.registry import Analysis, Plot, row_of
from spark_etl.analyses.retained import retained_growth, retained_topics
from spark_etl.analyses.traffic import hours_of_week, payload_sizes, throughput

__all__ = [
    "ANALYSES",
    "Analysis",
    "Plot",
    "backlog",
    "delay",
    "drop_reasons",
    "fan_out",
    "hours_of_week",
    "latest",
    "once",
    "payload_sizes",
    "read",
    "reconnects",
    "retained_growth",
    "retained_topics",
    "shared_groups",
    "silent_devices",
    "throughput",
    "topic_traffic",
]

ANALYSES: Final[dict[str, Analysis]] = {
    function.__name__: row_of(function)
    for function in (
        throughput, hours_of_week, payload_sizes, fan_out, topic_traffic, shared_groups, silent_devices, reconnects,
        backlog, drop_reasons, delay, retained_growth, retained_topics,
    )
}  # fmt: skip
"""In the order of reports."""
