"""Parquet files by date and tenant, of a size that is efficient to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from leveldb_store.format.archive_schema import TENANT
from spark_etl.source.plan import PARTITION_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DAY_MICROSECONDS", "FILE_BYTES", "LOGS", "files_of_rows", "files_of_stores", "write"]

LOGS: Final = {"messages": "messages", "events": "events", "counters": "events", "drops": "events"}
"""Tables whose rows occur once, and the kind of their sequences (`spark_etl.source.coverage`)."""

FILE_BYTES: Final = 128 << 20
"""Approximate size of a Parquet file, which is read in a second or two."""

_ROWS: Final = 2_000_000
DAY_MICROSECONDS: Final = 86_400_000_000


def write(rows: DataFrame, table: str, directory: Path, files: int) -> None:
    """Write rows to Parquet, by date (UTC) and tenant, in `files` tasks: at most as many files for each of them."""
    from pyspark.sql import functions as sf

    microseconds = "shiftright(number, 8)" if table in LOGS else "unix_micros(taken)"
    rows = rows.withColumn("date", sf.expr(f"date_from_unix_date(int({microseconds} div {DAY_MICROSECONDS}))"))
    if "tenant" not in rows.columns:
        rows = rows.withColumn("tenant", sf.lit(TENANT))
    rows.coalesce(files).write.partitionBy("date", "tenant").parquet(str(directory))


def files_of_rows(rows: int) -> int:
    """Return the number of files for this many short rows."""
    return 1 + rows // _ROWS


def files_of_stores(size: int, parallel: int) -> int:
    """Return the number of files for the messages in stores of this size: one, or one for each parallel task, or as
    many as keep each file small enough.
    """
    return min(-(-size // PARTITION_BYTES) or 1, max(parallel, -(-size // FILE_BYTES)))
