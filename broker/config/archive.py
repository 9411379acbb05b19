"""The `[[archive]]` tables: the archived topics, with bounds on age and size.

The first table whose Topic Filter matches a topic archives its messages, at the worker of their publisher. The bytes
are for the whole broker; each worker has an equal part. Storage and retention: `leveldb_store.archive.archive` and
docs/archive.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from broker.config.queues import wrong_with

if TYPE_CHECKING:
    from leveldb_store.archive.archive import ArchiveOptions, ArchiveTable

__all__ = ["ARCHIVE_RULES_MAX", "ArchiveRule", "archive_errors", "archive_options", "size_of"]

ARCHIVE_RULES_MAX = 64  # they are tried one after the other for each topic that is not cached

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]I?B)?", re.IGNORECASE)
_BYTES_MIN = 10**6
_BYTES_MAX = 1 << 60
_HOURS_MAX = 24 * 366 * 100
_MS_PER_HOUR = 3_600_000


def size_of(value: object) -> object:
    """Parse a size (`"10GB"`, `"512MiB"` or a number) into bytes. ValueError: invalid text; other types are left to
    validation.
    """
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise ValueError("should be a number of bytes, or one with a unit, as 512MB, 10GB or 2GiB")
    return int(float(found[1]) * _UNITS[(found[2] or "").upper()])


class ArchiveRule(BaseModel):
    """Archives messages of these topics, whether or not anybody subscribes. The first table whose Topic Filter matches
    applies. Messages beyond a table's age or size are removed, oldest first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    filter: str = Field(min_length=1, description="Topic Filter; `$SYS` and `$share` are not archived.")
    hours: float = Field(gt=0, le=_HOURS_MAX, description="Time that messages are kept.")
    bytes: Annotated[int, BeforeValidator(size_of)] = Field(
        ge=_BYTES_MIN,
        le=_BYTES_MAX,
        description="Size of all messages, as a number or `10GB`, `512MiB`; each worker has an equal part.",
    )


def archive_errors(rules: Sequence[ArchiveRule], store: str) -> Iterator[str]:
    """Yield the errors in the tables that no table shows by itself."""
    if rules and store == "memory":
        yield 'archive: the archive is on disk, but store is "memory"; remove the tables, or set store = "leveldb"'
    seen: dict[str, int] = {}
    for number, rule in enumerate(rules, 1):
        wrong = wrong_with(rule.filter)
        if rule.filter.split("/")[0] == "$share":
            wrong = "a share group cannot be archived; name its topics"
        elif rule.filter.split("/")[0] == "$SYS":
            wrong = "topics of $SYS are not archived"
        elif rule.filter in seen:
            wrong = f"table {seen[rule.filter]} has the same"
        seen.setdefault(rule.filter, number)
        if wrong:
            yield f"archive.filter: {rule.filter!r} (of table {number}): {wrong}"


def archive_options(
    rules: Sequence[ArchiveRule], epoch: str, worker: int, workers: int, pending_bytes_max: int
) -> ArchiveOptions:
    """Return the options with which one worker's archive is opened."""
    from leveldb_store.archive.archive import ArchiveOptions, ArchiveTable  # only where LevelDB is installed

    tables: tuple[ArchiveTable, ...] = tuple(
        ArchiveTable(rule.filter.encode(), max(1, int(rule.hours * _MS_PER_HOUR)), max(1, rule.bytes // workers))
        for rule in rules
    )
    return ArchiveOptions(epoch, worker, tables, pending_bytes_max)
