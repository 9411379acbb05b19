"""Rows of DataFrames in a form that tests can compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import Row

__all__ = ["rows_of"]


def rows_of(rows: Iterable[Row]) -> Iterator[tuple[object, ...]]:
    """Yield rows as hashable tuples: maps, lists and bytes are converted."""
    return (tuple(_plain(value) for value in row) for row in rows)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    if isinstance(value, list):
        return tuple(value)
    return bytes(value) if isinstance(value, bytearray) else value
