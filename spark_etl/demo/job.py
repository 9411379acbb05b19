"""`python -m spark_etl demo`: a broker that archives everything, a fleet, snapshots, every job and the report.

The fleet (`spark_etl.demo.fleet`) has data for each analysis: machines in a plant, orders for a share group, meters
whose readers are away until their queues are full, news for many, devices that fall silent, clients that reconnect
often. A snapshot is taken while it works, and another one when the broker has stopped. Then the numbers that the fleet
has published are compared with those that Spark counts, for each client and topic.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spark_etl.demo.fleet import Published, work
from spark_etl.jobs import JobError, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["add_options", "demo", "run"]

Say = Callable[[str], None]


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the job."""
    parser.add_argument("--out", type=Path, default=Path("mqttd-demo"), help="a new directory (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="run time of the fleet (default: %(default)g)")
    parser.add_argument("--master", default="local[*]", help="Spark's, where spark-submit has set none")


def run(options: Namespace) -> int:
    """Run the demo, and print where everything is."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from spark_etl.progress import shown
    from spark_etl.session import session

    look_for_programs()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {line}", flush=True)

    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if any(options.out.iterdir()):
            raise JobError(f"{options.out}: is not empty")
    except OSError as error:
        raise JobError(f"{error.filename}: {error.strerror}") from None
    published = work(options.out, options.seconds, say)
    try:
        with session("demo", options.master) as spark, shown(spark, "demo"):
            differences = demo(spark, options.out, published, say)
    except (PySparkException, Py4JError) as error:
        raise one_line(error) from None
    for line in differences:
        print(f"spark_etl: {line}", file=sys.stderr)
    return 1 if differences else 0


def look_for_programs() -> None:
    """Raise JobError where broker or load generator are not installed."""
    if not _is_there("pyx.loadgen.ledger"):
        raise JobError("demo starts mqttd, whose compiled code is not there: install mqttd with a compiler")
    for name in ("tqdm", "websockets"):
        if not _is_there(name):
            raise JobError(f"demo starts loadtest.flood, which needs {name}: pip install 'mqttd-broker[loadtest]'")


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even its package exists
        return False


def demo(spark: SparkSession, out: Path, published: Published, say: Say) -> list[str]:
    """Run every job and analysis on `out`/snapshots; return a line for each problem. Raises JobError."""
    from spark_etl.parquet import quality
    from spark_etl.parquet.job import found, parquet
    from spark_etl.parquet.output import Output
    from spark_etl.report import job as report

    snapshots = str(out / "snapshots")
    differences = compare(spark, snapshots, published)
    if not differences:
        say(f"{published.total():,} messages in the snapshots: the same, for each client and topic")
    with Output(out / "parquet") as output:
        parquet(spark, found(snapshots), output)
    say(f"snapshots  {snapshots}")
    say(f"parquet    {out / 'parquet'}")
    checks = quality.report(quality.Looked(spark, output, output.last(), found(snapshots)))["checks"]
    differences += [f"{check['name']}: {line}" for check in checks for line in check["findings"]]
    report.write(spark, snapshots, out / "report.html")
    say(f"report     {out / 'report.html'}")
    return differences


def compare(spark: SparkSession, snapshots: str, published: Published) -> list[str]:
    """Compare Spark's counts with the published numbers, by client and topic; return a line for each difference."""
    from spark_etl.analyses import once, read

    messages = once("messages", read(spark, "messages", snapshots, ("host", "number", "origin", "publisher", "topic")))
    counted = {(row[0], row[1]): row[2] for row in messages.groupBy("publisher", "topic").count().collect()}
    differences = []
    for key in sorted(published.keys() | counted.keys(), key=str):
        sent, there = published.get(key, 0), counted.get(key, 0)
        if sent != there:
            differences.append(f"{key[0]} has published {sent:,} messages on {key[1]}, the snapshots have {there:,}")
    return differences
