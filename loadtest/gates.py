"""Pass or fail: evaluates `--fail-if p99>20ms,lost>0` over the figures of a run."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

_GATE: Final = re.compile(r"^(?P<name>[a-z_0-9]+)\s*(?P<sign><=|>=|<|>)\s*(?P<value>\d+(\.\d+)?)(?P<unit>us|ms|s|)$")
SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
UNITS: Final = {"": 1.0, "us": 1.0, "ms": 1e3, "s": 1e6}
#: Common names for figures of the report.
_ALIASES: Final = {
    "loss": "lost", "dup": "duplicates", "p50": "delivery_p50_us", "p90": "delivery_p90_us", "p99": "delivery_p99_us",
    "p999": "delivery_p99.9_us", "max": "delivery_max_us", "ack_p50": "acknowledgement_p50_us",
    "ack_p99": "acknowledgement_p99_us", "connect_p99": "connect_p99_us", "rate": "received_per_s",
    "sent_rate": "sent_per_s",
}  # fmt: skip
_DURATION: Final = re.compile(r"_(p[\d.]+|max)$")
"""Figures that may be named without their unit: ack_p99 of flood, command_p99 of locust."""


class Gate(NamedTuple):
    """A condition for failure of a run."""

    text: str
    figure: str
    is_failed: Callable[[float, float], bool]
    bound: float
    """In the unit of the figure; durations in microseconds."""


def gates(text: str) -> list[Gate]:
    """Parse conditions, separated by commas. ValueError: one of them is invalid."""
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        match = _GATE.match(each)
        if match is None:
            raise ValueError(
                f"--fail-if: {each!r} is no condition: a figure, < or >, a number with us, ms or s; p99>20ms, lost>0"
            )
        figure = _DURATION.sub(r"\g<0>_us", _ALIASES.get(match["name"], match["name"]))
        if match["unit"] and not figure.endswith("_us"):
            raise ValueError(f"--fail-if: {each!r}: {match['name']} is no duration")
        if not match["unit"] and figure.endswith("_us"):
            raise ValueError(f"--fail-if: {each!r}: say us, ms or s")
        found.append(Gate(each, figure, SIGNS[match["sign"]], float(match["value"]) * UNITS[match["unit"]]))
    return found


def failed(conditions: list[Gate], figures: Mapping[str, float]) -> list[str]:
    """Return a line for each condition that is true, or names a figure that the run does not have."""
    lines = []
    for gate in conditions:
        value = figures.get(gate.figure)
        if value is None:
            lines.append(f"{gate.text}: this run has no figure {gate.figure}")
        elif gate.is_failed(value, gate.bound):
            lines.append(f"{gate.text}: {gate.figure} is {value:,.6g}")
    return lines
