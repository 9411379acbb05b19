"""Tables of an output as DataFrames, by its last commit: whole runs, whatever is being written meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_etl.jobs import JobError
from spark_etl.parquet.output import Commit, Output
from spark_etl.tables.catalogue import TABLES, TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["columns_of", "committed"]


def columns_of(commit: Commit, table: str) -> list[tuple[str, str]]:
    """Return a table's columns in an output, with their Spark types: those of this release, `date`, then older ones.

    Raises TableError.
    """
    if table not in TABLES and table not in commit.columns:
        raise TableError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    found = {column.name: column.type for column in TABLES[table].columns} if table in TABLES else {}
    found |= {"tenant": "string", "date": "date"}
    for name, kind in commit.columns.get(table, []):
        found.setdefault(name, kind)
    return list(found.items())


def committed(spark: SparkSession, directory: Path, table: str, commit: Commit | None = None) -> DataFrame:
    """Return a table of the output in a directory. A column that a file does not have is null in its rows.

    Raises JobError and TableError.
    """
    output = Output(directory)
    if not output.is_there:
        raise JobError(f"{directory}: is no output of the job parquet")
    commit = commit or output.last()
    return of_files(spark, output.paths(table, commit), columns_of(commit, table))


def of_files(spark: SparkSession, paths: list[Path], columns: list[tuple[str, str]]) -> DataFrame:
    """Return Parquet files below `date=.../tenant=...` as a DataFrame of these columns."""
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in columns)
    names = [name for name, _ in columns]
    found = spark.createDataFrame([], ddl)
    for base in sorted({path.parents[2] for path in paths}):
        some = [str(path) for path in paths if path.parents[2] == base]
        read = spark.read.schema(ddl).option("basePath", str(base)).parquet(*some).select(*names)
        found = read if len(some) == len(paths) else found.unionByName(read)
    return found
