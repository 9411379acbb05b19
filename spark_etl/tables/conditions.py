"""Conditions of a query (`pushFilters`), used to limit the records that are read.

Spark checks every row once more: only records that cannot match are skipped here. An unknown condition skips nothing.
Conditions on these columns are used:

    number, time               of messages and events: a range of message numbers, as in the keys of blocks
    first_level, topic         the first levels of topics, as in the heads of the archive's blocks
    origin, worker, rule       families of records, and sequences of the archive
    kind                       events to decode
    snapshot, host, store, node, cluster, cluster_snapshot
                               stores
"""

from __future__ import annotations

import calendar
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from leveldb_store.format.archive_schema import NUMBER_WORKER_BITS

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

__all__ = ["HIGHEST", "Conditions", "conditions_of"]

HIGHEST: Final = (1 << 63) - 1
_WORKERS: Final = (1 << NUMBER_WORKER_BITS) - 1
_SETS: Final = {
    "snapshot", "host", "store", "node", "cluster", "cluster_snapshot", "origin", "worker", "rule", "first_level",
    "topic", "kind",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conditions:
    """Properties of all rows that match."""

    first: int = 0
    """Message numbers from this one ..."""
    last: int = HIGHEST
    """... up to and including this one."""
    values: dict[str, frozenset[Any]] = field(default_factory=dict)
    """By column: one of these."""
    prefix: str = ""
    """Prefix of the topics."""

    def allow(self, column: str, value: object) -> bool:
        """Whether rows with this value of a column may match."""
        return column not in self.values or value in self.values[column]

    @property
    def first_levels(self) -> frozenset[bytes] | None:
        """The first levels that topics may have; None: any."""
        sets = []
        if "first_level" in self.values:
            sets.append(self.values["first_level"])
        if "topic" in self.values:
            sets.append(frozenset(topic.partition("/")[0] for topic in self.values["topic"]))
        if "/" in self.prefix:
            sets.append(frozenset((self.prefix.partition("/")[0],)))
        return frozenset(each.encode() for each in frozenset.intersection(*sets)) if sets else None

    @property
    def are_of_messages(self) -> bool:
        """Whether they exclude some messages of a block and not others."""
        return self.first > 0 or self.last < HIGHEST or self.are_of_topics

    @property
    def are_of_topics(self) -> bool:
        """Whether they exclude messages by topic."""
        return bool(self.prefix) or "topic" in self.values or "first_level" in self.values


def conditions_of(filters: Iterable[Filter]) -> Conditions:
    """Return the conditions that follow from all of these filters."""
    found = Conditions()
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        if len(attribute) == 1:
            found = _and(found, attribute[0], type(each).__name__, getattr(each, "value", None))
    return found


def _and(known: Conditions, column: str, kind: str, value: Any) -> Conditions:
    if column in ("number", "time"):
        first, last = _range(column, kind, value)
        return replace(known, first=max(known.first, first), last=min(known.last, last))
    if column == "topic" and kind == "StringStartsWith":
        return replace(known, prefix=max(known.prefix, str(value), key=len))
    if column in _SETS and kind in ("EqualTo", "EqualNullSafe", "In"):
        # only `<=>`, which is left to Spark, matches null
        wanted = frozenset(each for each in (value if kind == "In" else (value,)) if each is not None)
        if kind == "EqualNullSafe" and not wanted:
            return known
        before = known.values.get(column, wanted)
        return replace(known, values={**known.values, column: wanted & before})
    return known


def _range(column: str, kind: str, value: Any) -> tuple[int, int]:
    # (first, last) number allowed by a comparison
    bounds = [_bounds(column, each) for each in (value if kind == "In" else (value,)) if each is not None]
    known = [each for each in bounds if each is not None]
    if not known or len(known) != len(bounds):
        return 0, HIGHEST
    low, high = min(each[0] for each in known), max(each[1] for each in known)
    match kind:
        case "EqualTo" | "EqualNullSafe" | "In":
            return low, high
        case "GreaterThan":
            return high + 1, HIGHEST
        case "GreaterThanOrEqual":
            return low, HIGHEST
        case "LessThan":
            return 0, low - 1
        case "LessThanOrEqual":
            return 0, high
    return 0, HIGHEST


def _bounds(column: str, value: Any) -> tuple[int, int] | None:
    # the numbers that correspond to a value of the column; None: unknown
    if column == "number":
        return int(value), int(value)
    if not isinstance(value, datetime) or value.tzinfo is None:  # TIMESTAMP_NTZ depends on the session's time zone
        return None
    microseconds = calendar.timegm(value.utctimetuple()) * 1_000_000 + value.microsecond
    return microseconds << NUMBER_WORKER_BITS, microseconds << NUMBER_WORKER_BITS | _WORKERS
