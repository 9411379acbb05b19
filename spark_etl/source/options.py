"""Options of the data source `mqttd`, with their validation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from spark_etl.source.plan import PARTITION_BYTES
from spark_etl.tables.catalogue import Column, Table, table_of

__all__ = ["OPTIONS", "OptionError", "Options"]

OPTIONS: Final = {"path", "paths", "table", "columns", "partition_bytes", "scratch", "metrics", "missing"}


class OptionError(Exception):
    """An option is wrong: one line."""


@dataclass(frozen=True, slots=True)
class Options:
    """The validated options."""

    paths: str
    table: Table
    columns: tuple[Column, ...]
    partition_bytes: int = PARTITION_BYTES
    scratch: str | None = None
    metrics: str | None = None
    missing: str = "fail"

    @classmethod
    def of(cls, given: dict[str, str]) -> Options:
        """Parse the options of a DataFrameReader. Raises OptionError, TableError."""
        given = {name.lower(): value for name, value in given.items()}
        unknown = given.keys() - OPTIONS
        if unknown:
            raise OptionError(
                f"there is no option {', '.join(sorted(unknown))}; there are {', '.join(sorted(OPTIONS))}"
            )
        paths = given.get("path", "")
        if "paths" in given:
            paths = ",".join(json.loads(given["paths"]))
        if not paths:
            raise OptionError("no snapshot is named: load(DIRECTORY)")
        table = table_of(given.get("table", "messages"))
        names = [name.strip() for name in given.get("columns", ",".join(table.names)).split(",")]
        size = given.get("partition_bytes", str(PARTITION_BYTES))
        if not size.isdecimal() or not int(size):
            raise OptionError(f"partition_bytes is {size!r}, not a number of bytes")
        missing = given.get("missing", "fail")
        if missing not in ("fail", "skip"):
            raise OptionError(f"missing is {missing!r}, neither fail nor skip")
        return cls(
            paths, table, table.chosen(names), int(size), given.get("scratch") or None, given.get("metrics") or None,
            missing,
        )  # fmt: skip
