"""The job `report`: snapshots as one self-contained HTML file, with a summary of the snapshots and the archive, and
every analysis with its plot.

Each table is read once, with the columns that its analyses need, and cached by Spark (in memory, and on disk for the
rest) until they are done.
"""

from __future__ import annotations

import html
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from spark_etl.analyses import ANALYSES, Analysis, once, read
from spark_etl.jobs import JobError, one_line
from spark_etl.parquet.agreement import Counted, agreement
from spark_etl.report import charts
from spark_etl.report.charts import OTHERS
from spark_etl.tables.catalogue import TABLES
from spark_etl.tables.snapshots import find

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["add_options", "page", "run", "write"]

SERIES_MAX: Final = 8
ROWS_MAX: Final = 20
STEPS_MAX: Final = 120
_STEPS: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400)
_STYLE: Final = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222 }
h2 { margin-top: 2.5em; border-top: 1px solid #ddd; padding-top: 1em }
h2 small { font-weight: normal; color: #888; font-size: .65em; margin-left: .6em }
table { border-collapse: collapse; margin: .8em 0; font-size: 13px }
td, th { padding: .2em 1em .2em 0; text-align: left; border-bottom: 1px solid #e5e5e5; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums }
nav a { margin-right: 1.2em; white-space: nowrap }
a { color: #2a4db0; text-decoration: none }
.note, details { color: #666; font-size: 13px }
.look { font-weight: 600 }
.bad { color: #a00; font-weight: 600 }
svg { width: 100%; height: auto }
"""

Rows = Sequence[dict[str, Any]]


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the job."""
    parser.add_argument("--snapshots", required=True, help="directories of snapshots, with commas between them")
    parser.add_argument("--out", required=True, type=Path, help="the HTML file")
    parser.add_argument("--zone", default="UTC", help="time zone of days, hours and times (default: %(default)s)")
    parser.add_argument("--master", default="local[*]", help="Spark's, where spark-submit has set none")


def run(options: Namespace) -> int:
    """Run the job."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from spark_etl.progress import shown
    from spark_etl.session import session

    try:
        ZoneInfo(options.zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise JobError(f"{options.zone}: is no time zone") from None
    if not options.out.absolute().parent.is_dir():
        raise JobError(f"{options.out.parent}: is not a directory")
    try:
        with session("report", options.master) as spark, shown(spark, "report"):
            spark.conf.set("spark.sql.session.timeZone", options.zone)
            write(spark, options.snapshots, options.out)
    except (PySparkException, Py4JError) as error:
        raise one_line(error) from None
    except OSError as error:
        raise JobError(f"{options.out}: {error.strerror}") from None
    return 0


def write(spark: SparkSession, snapshots: str, out: Path, say: Callable[[str], None] = lambda _: None) -> None:
    """Write the report of snapshots (a directory, several with commas, or a pattern). say: called with each step.
    Raises OSError.
    """
    out.write_text(page(spark, snapshots, say))


def page(spark: SparkSession, snapshots: str, say: Callable[[str], None] = lambda _: None) -> str:
    """Return the report as HTML."""
    say("snapshots")
    stores, rules = (_collected(read(spark, name, snapshots)) for name in ("stores", "rules"))
    agreed = list(agreement(spark, find(snapshots)))
    answers = {each.name: part for table in _tables() for each, part in _of_table(spark, table, snapshots, say)}
    links = "".join(f'<a href="#{each.name}">{html.escape(each.title)}</a> ' for each in ANALYSES.values())
    title = "What the snapshots say"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}{charts.STYLE}</style>",
        f"<h1>{title}</h1>",
        f"<p class=note>Times are {html.escape(_zone(spark).key)}. Where nothing was counted a line is at 0, where "
        "nothing was measured it has a gap.</p>",
        f"<nav>{links}</nav>",
        _of_snapshots(stores, rules),
        _of_agreement(agreed),
        _of_rules(stores, rules),
        *(answers[name] for name in ANALYSES),
        "</html>",
    ]
    return "\n".join(part for part in parts if part)


# -- reading


def _tables() -> list[str]:
    return list(dict.fromkeys(each.table for each in ANALYSES.values()))


def _of_table(
    spark: SparkSession, table: str, snapshots: str, say: Callable[[str], None]
) -> Iterator[tuple[Analysis, str]]:
    theirs = [each for each in ANALYSES.values() if each.table == table]
    needed = TABLES[table].chosen([name for each in theirs for name in each.columns])
    say(f"table {table}")
    frame = once(table, read(spark, table, snapshots, [column.name for column in needed]))
    with _kept(frame) as rows:
        seconds = _step(rows)
        for each in theirs:
            say(each.title)
            with _kept(each(rows, seconds=seconds) if each.is_over_time else each(rows)) as made:
                yield each, _of_analysis(each, made)


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _step(frame: DataFrame) -> int:
    # seconds of a step, chosen to limit the number of steps in a plot
    column = "minute" if "minute" in frame.columns else "time"
    if column not in frame.columns:
        return _STEPS[0]
    first, last = frame.agg(F.unix_seconds(F.min(column)), F.unix_seconds(F.max(column))).collect()[0]
    least = 60 if column == "minute" else 1
    span = 0 if first is None else last - first
    return next((each for each in _STEPS if each >= least and span / each <= STEPS_MAX), _STEPS[-1])


def _zone(spark: SparkSession) -> ZoneInfo:
    return ZoneInfo(spark.conf.get("spark.sql.session.timeZone") or "UTC")


def _collected(frame: DataFrame) -> Rows:
    # times in the session's zone; collect() would give them in the machine's
    zone = _zone(frame.sparkSession)
    times = [field.name for field in frame.schema if isinstance(field.dataType, TimestampType)]
    rows = [row.asDict() for row in frame.withColumns({name: F.unix_micros(name) for name in times}).collect()]
    for row in rows:
        for name in times:
            if row[name] is not None:
                row[name] = datetime.fromtimestamp(row[name] / 1e6, zone).replace(tzinfo=None)
    return rows


# -- writing


def _of_analysis(each: Analysis, made: DataFrame) -> str:
    count = made.count()
    head = (
        f"<h2 id={each.name}>{html.escape(each.title)}<small>{each.name} of {each.table}</small></h2>"
        f"<p class=look>{html.escape(each.look_at)}</p>"
    )
    said = "".join(f"<p class=note>{html.escape(part)}</p>" for part in each.says.split("\n\n"))
    if not count:
        of_archive = ' <a href="#rules">These archive rules</a> were in force.' if each.table == "messages" else ""
        return f"{head}<p>There is nothing of it in these snapshots.{of_archive}</p>{said}"
    rows = _collected(made.limit(ROWS_MAX))
    shown = f"{count:,}" if count <= ROWS_MAX else f"first {ROWS_MAX} of {count:,}"
    return (
        f"{head}{charts.chart(each.plot, _drawn(each, made, rows))}"
        f"<details><summary>Rows: {shown}</summary>{charts.table(rows, made.columns)}</details>{said}"
    )


def _drawn(each: Analysis, made: DataFrame, rows: Rows) -> Rows:
    plot, by = each.plot, each.plot.by
    if plot.kind == "bars":
        return rows
    if by is None:
        return _collected(made)
    (column,) = plot.y
    largest = made.groupBy(by).agg(F.sum(column).alias("all")).orderBy(F.desc("all"), by)
    names = [row[0] for row in largest.limit(SERIES_MAX + 1).collect()]
    if len(names) > SERIES_MAX:
        # null is one of the others
        named = F.when(F.col(by).isin(names[:SERIES_MAX]), F.col(by)).otherwise(F.lit(OTHERS))
        made = made.groupBy(plot.x, named.alias(by)).agg(F.sum(column).alias(column))
        names[SERIES_MAX:] = [OTHERS]
    places = {name: place for place, name in enumerate(names)}
    return sorted(_collected(made), key=lambda row: places.get(row[by], SERIES_MAX))


def _of_snapshots(stores: Rows, rules: Rows) -> str:
    rows: dict[str, dict[str, Any]] = {}
    for store in stores:
        row = rows.setdefault(
            store["snapshot"],
            {
                "snapshot": store["snapshot"], "taken": store["taken"], "host": store["host"],
                "mqttd": store["version"], "workers": store["workers"],
                "sessions": 0, "retained": 0, "in_the_log": 0, "archived": 0,
            },
        )  # fmt: skip
        row["sessions"] += (store["records"] or {}).get("S", 0)
        row["retained"] += (store["records"] or {}).get("R", 0)
        row["in_the_log"] += store["messages"]
    for rule in rules:
        rows[rule["snapshot"]]["archived"] += rule["messages"]
    found = sorted(rows.values(), key=lambda row: (row["taken"], row["snapshot"]))
    return "<h2 id=snapshots>Snapshots</h2>" + charts.table(found, list(found[0]) if found else [])


def _of_agreement(counts: Sequence[Counted]) -> str:
    wrong = [
        {"store": str(each.store.path), "what": each.what, "manifest": each.manifest, "read": each.read}
        for each in counts
        if each.manifest != each.read
    ]
    head = "<h2 id=quality>Quality</h2>"
    if not wrong:
        return (
            f"{head}<p>Of every store as many records are read as its manifest says: messages in the archive, in the "
            "log and kept for one session, sessions, subscriptions, retained messages, events.</p>"
        )
    return f"{head}<p class=bad>What is read is not what the manifests say:</p>{charts.table(wrong, list(wrong[0]))}"


def _of_rules(stores: Rows, rules: Rows) -> str:
    head = "<h2 id=rules>Archive rules in force</h2>"
    last = {store["host"]: store["taken"] for store in sorted(stores, key=lambda store: store["taken"])}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for rule in rules:
        if rule["taken"] != last[rule["host"]]:
            continue
        row = rows.setdefault(
            (rule["host"], rule["filter"]),
            {
                "host": rule["host"], "filter": rule["filter"], "hours": rule["age_seconds"] / 3600, "bytes": 0,
                "messages": 0, "in_the_configuration": rule["place"] is not None,
            },
        )  # fmt: skip
        row["bytes"] += rule["bytes_max"]
        row["messages"] += rule["messages"]
    if not rows:
        return (
            f"{head}<p class=bad>None: no <code>[[archive]]</code> table was in the configuration, so nothing is "
            "archived, and analyses of <code>messages</code> have nothing to say.</p>"
        )
    found = list(rows.values())
    return (
        f"{head}<p class=note>Of the last snapshot of each host. What is published on other topics is not in "
        f"<code>messages</code>.</p>{charts.table(found, list(found[0]))}"
    )
