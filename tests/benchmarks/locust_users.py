"""python -m tests.benchmarks.locust_users: the number of users and messages that one locust process carries.

Each row starts an mqttd of one worker and one locust process whose users (tests.benchmarks.locust_echo) publish to
themselves. It reports whole seconds after the last user had started: medians per second of the PUBLISHes and deliveries
in locust's statistics; latencies of the deliveries as locust reports them; CPU of the locust process over the whole
run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from broker.testing import Mqttd

ROOT = Path(__file__).resolve().parents[2]
LOCUSTFILE = Path(__file__).with_name("locust_echo.py")
SPAWN_PER_SECOND = 500
NAMES = {"PUBLISH": "published", "DELIVERY": "delivered"}


class Row(NamedTuple):
    """A run. `period_seconds`: interval of a user's messages; 0: as fast as possible."""

    name: str
    users: int
    qos: int
    period_seconds: float
    waits: bool = True
    listens: bool = False
    """Whether a listener of locust's request event exists: then every request is reported singly."""


ROWS = (
    Row("5,000 users, 2 msg/s each", 5000, 0, 0.5),
    Row("5,000 users, 2 msg/s each", 5000, 1, 0.5),
    Row("200 users, as fast as acks come", 200, 1, 0.0),
    Row("the same, and a listener of every request", 200, 1, 0.0, listens=True),
    Row("10 users that wait for nothing", 10, 0, 0.0, waits=False),
)


def measured(row: Row, seconds: int) -> dict[str, float]:
    """Return the figures of a run. RuntimeError: locust failed, or a request did."""
    spawning = row.users / SPAWN_PER_SECOND
    echo = {
        "ECHO_PERIOD_SECONDS": str(row.period_seconds), "ECHO_WAITS": str(int(row.waits)),
        "ECHO_LISTENS": str(int(row.listens)),
    }  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Mqttd(1) as broker:
        done = subprocess.run(
            [sys.executable, "-m", "loadtest", "locust", "-f", str(LOCUSTFILE), "--headless", "--json", "-u",
             str(row.users), "-r", str(SPAWN_PER_SECOND), "-t", f"{round(spawning + seconds + 3)}s", "--host",
             f"mqtt://127.0.0.1:{broker.port}", "--qos", str(row.qos)],
            cwd=ROOT, env={**os.environ, **echo}, capture_output=True, text=True,
        )  # fmt: skip
        # before the CPU time of the broker is added to that of reaped children
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{row.name}: locust ended with {done.returncode}: {done.stderr[-1000:]}")
    entries = {entry["method"]: entry for entry in json.loads(done.stdout)}
    figures: dict[str, float] = {
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "connected": entries["CONNECT"]["num_requests"],
        **{NAMES[kind]: per_second(entries[kind], seconds) for kind in NAMES},
    }
    times = {float(ms): count for ms, count in entries["DELIVERY"]["response_times"].items()}
    figures |= {f"p{percent}_ms": percentile(times, percent) for percent in (50, 99)}
    return figures


def per_second(entry: dict[str, Any], seconds: int) -> float:
    """Return the median of the last whole seconds."""
    counts = [count for _, count in sorted((int(at), count) for at, count in entry["num_reqs_per_sec"].items())]
    return float(median(counts[-1 - seconds : -1]))


def percentile(times: dict[float, int], percent: float) -> float:
    """Return a percentile of a histogram."""
    wanted, seen = sum(times.values()) * percent / 100, 0
    for ms in sorted(times):
        seen += times[ms]
        if seen >= wanted:
            return ms
    return 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="locust_users", description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="that count, of each run (default: 10)")
    parser.add_argument("--rows", default="", help="their numbers, from 1, with commas (default: all)")
    options = parser.parse_args(arguments)
    chosen = [int(each) - 1 for each in options.rows.split(",") if each] or range(len(ROWS))
    print("| run | QoS | users | published/s | delivered/s | delivery p50 | p99 | CPU seconds of locust |")
    print("|---|---|---|---|---|---|---|---|")
    for number in chosen:
        row = ROWS[number]
        got = measured(row, options.seconds)
        print(
            f"| {row.name} | {row.qos} | {got['connected']:,.0f} | {got['published']:,.0f} | {got['delivered']:,.0f} "
            f"| {got['p50_ms']:g} ms | {got['p99_ms']:g} ms | {got['cpu_seconds']:.1f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
