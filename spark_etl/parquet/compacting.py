"""The job `compact`: merges small Parquet files of one date and tenant. A commit of its own, with the same rows."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_etl.jobs import JobError
from spark_etl.parquet.committed import columns_of, of_files
from spark_etl.parquet.output import Commit, File, Output
from spark_etl.source.files import FILE_BYTES, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SMALL_FILES", "add_options", "compact", "run"]

SMALL_FILES: Final = 8
"""Number of files of one table, date and tenant that a run leaves."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the job."""
    parser.add_argument("--out", required=True, type=Path, help="directory of the Parquet tables")
    parser.add_argument("--master", default="local[*]", help="Spark's, where spark-submit has set none")


def run(options: Namespace) -> int:
    """Run the job, and print the result."""
    from spark_etl.progress import shown
    from spark_etl.session import session

    if not Output(options.out).is_there:
        raise JobError(f"{options.out}: is no output of the job parquet")
    with Output(options.out) as output, session("compact", options.master) as spark, shown(spark, "compact"):
        before = output.last()
        after = compact(spark, output)
    print(f"{len(before.files)} files, now {len((after or before).files)}")
    return 0


def compact(spark: SparkSession, output: Output, least: int = 2) -> Commit | None:
    """Merge groups of at least `least` small files; return None if there are none. `output` is locked.

    Raises JobError.
    """
    before = output.last()
    groups = _groups(before, least)
    if not groups:
        return None
    number = before.number + 1
    made: list[File] = []
    for group in groups:
        table = group[0].table
        rows = of_files(spark, [output.directory / file.path for file in group], columns_of(before, table))
        directory = output.staging(number) / f"making-{len(made)}"
        write(rows, table, directory, -(-sum(file.bytes for file in group) // FILE_BYTES))
        new = output.stage(number, table, directory, sum(file.table == table for file in made))
        if sum(file.rows for file in new) != sum(file.rows for file in group):
            raise JobError(f"{output.directory}: files of {table} have not the rows that they were committed with")
        made += new
    gone = {file.path for group in groups for file in group}
    kept = tuple(file for file in before.files if file.path not in gone)
    return output.commit(replace(before, number=number, job="compact", files=(*kept, *made)))


def _groups(commit: Commit, least: int) -> list[list[File]]:
    # groups of files to merge
    def place(file: File) -> tuple[str, str, str]:
        return file.table, file.date, file.tenant

    small = sorted((file for file in commit.files if file.bytes < FILE_BYTES // 2), key=place)
    groups = [list(files) for _, files in groupby(small, place)]
    return [files for files in groups if len(files) >= least]
