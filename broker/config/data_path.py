"""The bounds of the data path, filled from the settings: `pyx.core.limits.Limits`, whose fields are their only list.

A field has the name of the setting that fills it: a bound of `broker.config.limits`, or a setting of `[protocol]` or of
the top level. A field in milliseconds (`hold_ms_max`) is filled from the bound with the same stem and another unit
(`hold_seconds_max`). So a new bound is one field in each of the two, and no other list. A field that no setting fills
is a misspelt one, and the broker does not start.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.config.limits import Limits as Bounds
from broker.config.protocol import Protocol
from pyx.core.limits import Limits

if TYPE_CHECKING:
    from pydantic import BaseModel

    from broker.config.settings import Settings

__all__ = ["FieldSource", "fields", "fill", "sources"]

_MILLISECONDS = re.compile(r"(.+)_ms(?:_max)?")


class FieldSource(NamedTuple):
    """The setting that fills a field."""

    table: str
    """Table of the configuration; "": the top level."""
    key: str
    factor: int

    def value(self, settings: Settings) -> Any:
        """Return the value for the field."""
        value = getattr(getattr(settings, self.table) if self.table else settings, self.key)
        return value if self.factor == 1 else int(value * self.factor)


def fields() -> list[str]:
    """Return all fields of the data path's bounds."""
    return [name for name, member in vars(Limits).items() if inspect.isdatadescriptor(member)]


def sources(names: Iterable[str], models: dict[str, type[BaseModel]]) -> dict[str, FieldSource]:
    """Return the setting of each field, `models` by table. LookupError unless exactly one setting fills each."""
    found: dict[str, FieldSource] = {}
    for name in names:
        there = [
            FieldSource(table, key, factor)
            for key, factor in _candidates(name)
            for table, model in models.items()
            if key in model.model_fields
        ]
        if len(there) != 1:
            wrong = "is the name of more than one setting" if there else "is the name of no setting"
            raise LookupError(f"pyx.core.limits.Limits.{name} {wrong}")
        found[name] = there[0]
    return found


def _candidates(name: str) -> Iterator[tuple[str, int]]:
    yield name, 1
    if found := _MILLISECONDS.fullmatch(name):
        yield f"{found[1]}_seconds_max", 1000
        yield f"{found[1]}_milliseconds_max", 1


@cache
def _sources(settings: type[Settings]) -> dict[str, FieldSource]:
    return sources(fields(), {"limits": Bounds, "protocol": Protocol, "": settings})


def fill(limits: Limits, settings: Settings) -> Limits:
    """Copy the data path's part of the settings into its struct."""
    for name, source in _sources(type(settings)).items():
        setattr(limits, name, source.value(settings))
    bounds = settings.limits
    limits.settle(
        settings.queue_full,
        [
            (rule.full, rule.messages_max or bounds.queue_messages_max, rule.bytes_max or bounds.queue_bytes_max)
            for rule in settings.queue
        ],
    )
    return limits
