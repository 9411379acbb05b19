"""The job `quality`: checks that snapshots agree with their manifests, and the Parquet with its commits.

Each check gives findings, a line each; a report has all of them, as JSON and as HTML. Exit status 1: there are some.
"""

from __future__ import annotations

import html
import itertools
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from leveldb_store.format.archive_schema import TENANT
from spark_etl.jobs import JobError, one_line
from spark_etl.parquet.agreement import agreement
from spark_etl.parquet.committed import committed
from spark_etl.parquet.job import found
from spark_etl.parquet.output import Commit, Output, facts_of
from spark_etl.source.coverage import Sequences
from spark_etl.tables.snapshots import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CHECKS", "Check", "Looked", "add_options", "report", "run"]

_AHEAD_SECONDS: Final = 60
"""A snapshot takes less time, so anything later than this has a time that the clock had not reached."""
_LISTED: Final = 20
"""Findings of one check that are listed individually."""
_EXAMPLES: Final = 3
_KEYS: Final = {
    "messages": ["host", "number"],
    "events": ["host", "number"],
    "counters": ["host", "number", "name"],
    "drops": ["host", "number"],
}


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the job."""
    parser.add_argument("--snapshots", help="directories of snapshots, with commas between them; none: only the output")
    parser.add_argument("--out", required=True, type=Path, help="directory of the Parquet tables")
    parser.add_argument("--json", type=Path, help="the report (OUT/_mqttd/quality.json)")
    parser.add_argument("--html", type=Path, help="the same, to be read (OUT/_mqttd/quality.html)")
    parser.add_argument("--master", default="local[*]", help="Spark's, where spark-submit has set none")


def run(options: Namespace) -> int:
    """Run the checks, write the report, and print the findings."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from spark_etl.progress import shown
    from spark_etl.session import session

    output = Output(options.out)
    if not output.is_there:
        raise JobError(f"{options.out}: is no output of the job parquet")
    snapshots = found(options.snapshots) if options.snapshots else []
    try:
        with session("quality", options.master) as spark, shown(spark, "quality"):
            said = report(Looked(spark, output, output.last(), snapshots))
    except (PySparkException, Py4JError) as error:
        raise one_line(error) from None
    try:
        (options.json or options.out / "_mqttd" / "quality.json").write_text(json.dumps(said, indent=1) + "\n")
        (options.html or options.out / "_mqttd" / "quality.html").write_text(_page(said))
    except OSError as error:
        raise JobError(f"{error.filename}: {error.strerror}") from None
    for check in said["checks"]:
        print(f"{check['name']:10} {check['count'] or 'nothing'}")
        for line in check["findings"]:
            print(f"           {line}")
    return 0 if said["is_good"] else 1


@dataclass(frozen=True, slots=True)
class Looked:
    """The inputs of the checks."""

    spark: SparkSession
    output: Output
    commit: Commit
    snapshots: list[Snapshot]

    def table(self, name: str) -> DataFrame:
        """Return a table of the output."""
        return committed(self.spark, self.output.directory, name, self.commit)


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    about: str
    findings: Callable[[Looked], Iterator[str]]


def report(looked: Looked) -> dict[str, Any]:
    """Run all checks; return the report. Raises JobError, and Spark's errors."""
    checks = []
    for check in CHECKS:
        findings = list(check.findings(looked))
        more = [f"and {len(findings) - _LISTED:,} more"] if len(findings) > _LISTED else []
        checks.append(
            {"name": check.name, "about": check.about, "count": len(findings), "findings": findings[:_LISTED] + more}
        )
    return {
        "output": str(looked.output.directory),
        "commit": looked.commit.number,
        "snapshots": [str(snapshot.directory) for snapshot in looked.snapshots],
        "rows": {
            table: sum(file.rows for file in looked.commit.of(table))
            for table in sorted({file.table for file in looked.commit.files})
        },
        "is_good": not any(check["count"] for check in checks),
        "checks": checks,
    }


# ---------------------------------------------------------------- the checks


def _manifests(looked: Looked) -> Iterator[str]:
    for store, what, manifest, read in agreement(looked.spark, looked.snapshots):
        if manifest != read:
            yield f"{store.path}: {what}: {manifest:,} by the manifest, {read:,} were read"


def _files(looked: Looked) -> Iterator[str]:
    known = set()
    for path, file in zip(looked.output.paths_of(looked.commit.files, looked.commit), looked.commit.files, strict=True):
        known.add(file.path)
        try:
            rows = facts_of(path)[0]
        except OSError as error:
            yield f"{path}: {error.strerror or 'is no Parquet file'}"
            continue
        if rows != file.rows:
            yield f"{path}: has {rows:,} rows instead of {file.rows:,}"
    for path in sorted(looked.output.directory.glob("*/date=*/tenant=*/*.parquet")):
        name = str(path.relative_to(looked.output.directory))
        if name not in known:
            yield f"{path}: is none of the output's files"


def _gaps(looked: Looked) -> Iterator[str]:
    for sequence, parts in Sequences(looked.commit.sequences):
        told = f"of {sequence.rule}, worker {sequence.worker}" if sequence.rule else f"of store {sequence.worker}"
        what = "messages" if sequence.kind == "messages" else "bytes of events"
        ordered = sorted(parts, key=lambda each: each.first)
        for one, other in itertools.pairwise(ordered):
            if other.first > one.last and other.before > one.behind:
                yield (
                    f"{sequence.host}: {other.before - one.behind:,} {what} {told} were removed before a snapshot was "
                    f"taken, between numbers {one.last} and {other.first}"
                )


def _times(looked: Looked) -> Iterator[str]:
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    order = Window.partitionBy("host", "worker").orderBy("number")
    samples = looked.table("events").where("kind = 'counters'").select("host", "worker", "number", "time", "minute")
    back = samples.withColumn("_before", sf.lag("minute").over(order)).where("minute < _before")
    for row in back.orderBy("host", "worker", "number").limit(_LISTED + 1).collect():
        yield f"{row.host}: worker {row.worker}: the minute {row.minute} comes after {row._before}"
    late = looked.table("messages").where(f"time > taken + INTERVAL {_AHEAD_SECONDS} SECONDS")
    for row in late.groupBy("host", "worker").agg(sf.count("*").alias("n"), sf.max("time").alias("t")).collect():
        yield f"{row.host}: worker {row.worker}: {row.n:,} messages are later than their snapshot, up to {row.t}"


def _tenants(looked: Looked) -> Iterator[str]:
    rows: dict[str, int] = {}
    for file in looked.commit.files:
        if file.tenant != TENANT:
            rows[file.tenant] = rows.get(file.tenant, 0) + file.rows
    for tenant, count in sorted(rows.items()):
        yield f"{count:,} rows are of tenant {tenant}, which is not known"


def _doubles(looked: Looked) -> Iterator[str]:
    for table, key in _KEYS.items():
        if not looked.commit.of(table):
            continue
        rows = looked.table(table)
        if table == "messages" and rows.where("cluster is not null").limit(1).count():
            rows, key = _of_clusters(rows), ["host", "number", "mark"]
        twice = rows.groupBy(*key).count().where("count > 1")
        some = twice.orderBy(*key).limit(_EXAMPLES).collect()
        if some:
            told = "; ".join(f"{', '.join(map(str, row[:-1]))} {row[-1]} times" for row in some)
            yield f"{table}: {twice.count():,} are there more than once: {told}"


def _of_clusters(messages: DataFrame) -> DataFrame:
    # by the cluster instead of the host, with what tells its messages of one number apart (spark_etl.parquet.identity)
    from pyspark.sql import functions as sf

    mark = sf.when(sf.col("cluster").isNotNull(), sf.xxhash64("topic", "payload"))
    return messages.select(sf.coalesce("cluster", "host").alias("host"), "number", mark.alias("mark"))


CHECKS: Final = (
    Check("manifests", "rows of the snapshots are as many as their manifests say", _manifests),
    Check("files", "the output's files are those that were committed, with as many rows", _files),
    Check("gaps", "nothing was removed by retention before a snapshot was taken", _gaps),
    Check("times", "no clock has gone back", _times),
    Check("tenants", "all tenants are known", _tenants),
    Check("doubles", "no message and no event is there twice", _doubles),
)


# ---------------------------------------------------------------- the report

_STYLE: Final = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse } td { padding: .2em 1em .2em 0; border-bottom: 1px solid #ddd; vertical-align: top }
.bad { color: #a00 } .good { color: #070 } td.n { text-align: right }
"""


def _page(said: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(check['name'])}<td>{html.escape(check['about'])}"
        f"<td class={'bad' if check['count'] else 'good'}>{check['count'] or 'yes'}"
        f"<td class=bad>{'<br>'.join(map(html.escape, check['findings']))}\n"
        for check in said["checks"]
    )
    tables = "".join(f"<tr><td>{html.escape(name)}<td class=n>{count:,}\n" for name, count in said["rows"].items())
    of = ", ".join(said["snapshots"]) or "none"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Quality</title><style>{_STYLE}</style>"
        f"<h1>Quality</h1><p>{html.escape(said['output'])}, commit {said['commit']}. Snapshots: {html.escape(of)}.</p>"
        f"<table>{rows}</table><h2>Rows</h2><table>{tables}</table></html>\n"
    )
