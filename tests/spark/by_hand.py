"""Hand-made rows of the tables of spark_etl, for tests that know the answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from spark_etl.tables.catalogue import table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MONDAY = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return the time this many seconds after Monday noon."""
    return MONDAY + timedelta(seconds=seconds)


def frame(
    spark: SparkSession, table: str, columns: tuple[str, ...], rows: list[dict[str, Any]], **same: Any
) -> DataFrame:
    """Return a frame with only these columns of a table. A value that a row lacks is taken from `same`, else null."""
    chosen = table_of(table).chosen(list(columns))
    unknown = {name for row in rows for name in row} - {column.name for column in chosen}
    assert not unknown, f"{table}: {unknown} are not among the columns that the analysis says it needs"
    common = {name: value for name, value in same.items() if name in columns}
    values = [tuple({**common, **row}.get(column.name) for column in chosen) for row in rows]
    return spark.createDataFrame(values, ", ".join(f"`{column.name}` {column.type}" for column in chosen))
