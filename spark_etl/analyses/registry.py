"""The registry of analyses: an analysis is a function from one DataFrame to another, with its source table and plot.

    @analysis(table="messages", columns=(...), title="...", look_at="...", plot=Plot(...))
    def throughput(messages: DataFrame, seconds: int = 60) -> DataFrame: ...

The decorator adds a row to `spark_etl.analyses.ANALYSES`, and returns the function unchanged: `throughput(frame)` in a
notebook. It only needs `columns` of its table, and one row per message or event (`spark_etl.analyses.frames.once`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from spark_etl.tables.catalogue import table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Analysis", "Plot", "analysis", "row_of"]

Made = Callable[..., "DataFrame"]


@dataclass(frozen=True, slots=True)
class Plot:
    """The plot of an analysis."""

    kind: Literal["lines", "bars", "stacks", "weeks"]
    """lines: `y` over `x`, which is a time; bars: `y` of each row, `x` its name; stacks: a bar for each `x`, with the
    values of `by` stacked; weeks: `y` by weekday and hour."""
    x: str
    y: tuple[str, ...]
    by: str | None = None
    """lines, stacks: one for each value of this column, if `y` may be added up. bars: shown before `x`."""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Analysis:
    """A row of the registry."""

    name: str
    table: str
    """Its source table."""
    columns: tuple[str, ...]
    """The columns of that table that it needs."""
    title: str
    look_at: str
    """Hint for reading its rows."""
    plot: Plot
    function: Made

    @property
    def is_over_time(self) -> bool:
        """Whether it takes `seconds`, the length of its steps."""
        return "seconds" in inspect.signature(self.function).parameters

    @property
    def says(self) -> str:
        """Its docstring: the source of its data, and its limits."""
        return inspect.getdoc(self.function) or ""

    def __call__(self, frame: DataFrame, **settings: Any) -> DataFrame:
        """Run it on rows of its table."""
        return self.function(frame, **settings)


_ROWS: Final[dict[Made, Analysis]] = {}


def analysis(*, table: str, columns: tuple[str, ...], title: str, look_at: str, plot: Plot) -> Callable[[Made], Made]:
    """Register the decorated function. Raises TableError where there is no such table or column."""
    table_of(table).chosen(list(columns))

    def made(function: Made) -> Made:
        _ROWS[function] = Analysis(function.__name__, table, columns, title, look_at, plot, function)
        return function

    return made


def row_of(function: Made) -> Analysis:
    """Return the registry's row of a function that is an analysis."""
    return _ROWS[function]
