"""python -m tests.benchmarks.rulers --ruler DIR: flood and the ruler's mqload measure the same brokers, in one run.

Each run has a fresh broker, and one process that generates; flood and mqload take turns. Their throughput, latency and
CPU time of the broker per message should agree within 15 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.benchmarks.ruler import ROOT, Figures, Ruler, Running

WITHIN: Final = 0.15
_OWN: Final = "own lateness, p50 us"
"""Part of the latency, caused by the generator and not by the broker: shown, not judged."""


class Row(NamedTuple):
    """A load in both tools' options, and the compared figures: (title, flood's name, mqload's name)."""

    name: str
    flood: str
    mqload: str
    figures: tuple[tuple[str, str, str], ...]


_RATE: Final = ("received/s", "received_per_s", "out_per_s")
_CPU: Final = ("broker us/msg", "broker_cpu_us", "broker_us_per_msg")
_LATENCY: Final = (
    ("p50 us", "delivery_p50_us", "lat_p50_us"),
    ("p99 us", "delivery_p99_us", "lat_p99_us"),
    (_OWN, "lateness_p50_us", "late_p50_us"),
)
ROWS: Final = (
    Row("pair, QoS 0, as fast as it goes", "pair -c 20 -q 0", "pair --pubs 20 --qos 0", (_RATE, _CPU)),
    Row("pair, QoS 1, as fast as it goes", "pair -c 20 -q 1 --window 50", "pair --pubs 20 --qos 1 --window 50",
        (_RATE, _CPU)),
    Row("pair, QoS 0, 5,000 msg/s", "pair -c 20 -q 0 --rate 5000", "pair --pubs 20 --qos 0 --rate 5000",
        (_CPU, *_LATENCY)),
    Row("pair, QoS 1, 5,000 msg/s", "pair -c 20 -q 1 --rate 5000 --window 1000",
        "pair --pubs 20 --qos 1 --rate 5000 --window 1000", (_CPU, *_LATENCY)),
)  # fmt: skip


def by_flood(row: Row, running: Running, seconds: float) -> Figures:
    """Run flood once, as users start it. RuntimeError: flood failed."""
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.flood", *row.flood.split(), "--host", f"127.0.0.1:{running.port}",
         "-t", "bench/pair/%i", "--pid", str(running.pid), "--processes", "1", "--seconds", str(seconds),
         "--warmup", "0.5", "--quiet", "--json", "-"],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"flood {row.flood}: {done.stderr}")
    figures: Figures = json.loads(done.stdout)["figures"]
    return figures


def by_mqload(ruler: Ruler, row: Row, running: Running, seconds: float) -> Figures:
    """Run the ruler's mqload once."""
    figures = ruler.generate(running, f"{row.mqload} --seconds {seconds} --warmup 0.5")
    if not figures["ok"]:
        raise RuntimeError(f"mqload {row.mqload}: {figures.get('why', figures)}")
    return figures


def main() -> int:
    """Print the table; the exit status is 1 when a figure differs by more than 15 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ruler", type=Path, required=True, help="its folder")
    parser.add_argument("--brokers", default="mqttd/1,mosquitto", help="as of tests.benchmarks.ruler")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rows", default="", help="those whose names have this in them")
    options = parser.parse_args()
    ruler = Ruler.at(options.ruler)
    if ruler is None:
        parser.error(f"{options.ruler} has no ruler")
    differ = 0
    print("| load | broker | figure | flood | mqload | flood / mqload |")
    print("|---|---|---|---:|---:|---:|")
    for row in (each for each in ROWS if options.rows in each.name):
        brokers = options.brokers.split(",")
        ours: dict[str, list[Figures]] = {broker: [] for broker in brokers}
        theirs: dict[str, list[Figures]] = {broker: [] for broker in brokers}
        for _ in range(options.runs):
            for broker in brokers:
                with ruler.started(broker) as running:
                    ours[broker].append(by_flood(row, running, options.seconds))
                with ruler.started(broker) as running:
                    theirs[broker].append(by_mqload(ruler, row, running, options.seconds))
        for broker in brokers:
            for title, name, other in row.figures:
                flood = statistics.median(each[name] for each in ours[broker])
                mqload = statistics.median(each[other] for each in theirs[broker])
                differ += title != _OWN and not 1 - WITHIN <= flood / mqload <= 1 + WITHIN
                cells = f"{title} | {flood:,.6g} | {mqload:,.6g} | {flood / mqload:.2f}"
                print(f"| {row.name} | {broker} | {cells} |", flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
