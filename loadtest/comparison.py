"""The results of a comparison: runs by scenario and broker, their medians, spreads and ratios, tables, conditions.

A figure of a run is a number with a name in FIGURES; a median is over the runs that have the figure. A ratio is a
median divided by the base's. Spread is smallest and largest. Plain values, so that all of it can be stored as JSON.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from loadtest.gates import SIGNS, UNITS


class Figure(NamedTuple):
    """The display of a figure."""

    title: str
    text: Callable[[float], str]
    is_duration: bool = False


def _microseconds(value: float) -> str:
    return f"{value:.3g} us" if value < 1000 else f"{value / 1000:,.3g} ms" if value < 1e6 else f"{value / 1e6:,.3g} s"


def _bytes(value: float) -> str:
    return f"{value:,.0f} B" if value < 1e5 else f"{value / 1e6:,.1f} MB"


FIGURES: Final[Mapping[str, Figure]] = {
    "rate": Figure("delivered", lambda value: f"{value:,.0f}/s"),
    "cpu": Figure("CPU per message", _microseconds, True),
    "p50": Figure("p50", _microseconds, True),
    "p99": Figure("p99", _microseconds, True),
    "p999": Figure("p99.9", _microseconds, True),
    "ack_p50": Figure("ack p50", _microseconds, True),
    "ack_p99": Figure("ack p99", _microseconds, True),
    "connect_p50": Figure("CONNACK p50", _microseconds, True),
    "connect_p99": Figure("CONNACK p99", _microseconds, True),
    "connect_cpu": Figure("CPU per connection", _microseconds, True),
    "client_bytes": Figure("memory per client", _bytes),
    "idle_cpu": Figure("CPU while idle", lambda value: f"{value:.2f} %"),
    "memory": Figure("memory", _bytes),
    "lost": Figure("lost", lambda value: f"{value:,.0f}"),
    "duplicates": Figure("twice", lambda value: f"{value:,.0f}"),
}
"""cpu: of the broker with all its processes, per delivered message; memory: their proportional set size at the end of
the measured time. Durations in microseconds.
"""


@dataclass
class Cell:
    """One broker in one scenario."""

    runs: list[dict[str, float]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Why runs failed, and refusals."""

    def values(self, figure: str) -> list[float]:
        """Return the values of all runs that have it."""
        return [run[figure] for run in self.runs if figure in run]

    def median(self, figure: str) -> float | None:
        """Return the median; None: no run has it."""
        values = self.values(figure)
        return statistics.median(values) if values else None

    def shown(self, figure: str) -> str:
        """Return `median (smallest-largest)`."""
        values = self.values(figure)
        if not values:
            return "-"
        text = FIGURES[figure].text
        middle, least, most = (text(each) for each in (statistics.median(values), min(values), max(values)))
        if least == most:
            return middle
        unit = middle.lstrip("0123456789.,")  # shown once, if it is the same
        return f"{middle} ({least.removesuffix(unit)} - {most.removesuffix(unit)})"


@dataclass
class Row:
    """One scenario with all brokers, in order."""

    title: str
    flood: str
    """The common arguments of `python -m loadtest.flood`."""
    shows: list[str]
    """Figures, in the order of the table."""
    beside: list[str]
    """Those of them whose ratio to the base is in the table."""
    date: str
    commit: str
    seconds: float
    busy: float
    """Fraction of the machine used by other programs, 0 to 1, just before."""
    cells: dict[str, Cell] = field(default_factory=dict)

    def ratio(self, broker: str, figure: str, base: str) -> float | None:
        """Return the ratio; None: one of the two has no median, or the base's is 0."""
        of, than = (self.cells.get(name, Cell()).median(figure) for name in (broker, base))
        return of / than if of is not None and than else None


@dataclass
class Comparison:
    """The whole comparison."""

    machine: str
    base: str
    brokers: dict[str, dict[str, str]]
    """By name: version, command, files (as one text), keeps."""
    rows: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Comparison:
        """Parse JSON values. Raises KeyError or TypeError when they are invalid."""
        rows = {
            name: Row(**{**row, "cells": {broker: Cell(**cell) for broker, cell in row["cells"].items()}})
            for name, row in values["rows"].items()
        }
        return cls(values["machine"], values["base"], values["brokers"], rows)

    def values(self) -> dict[str, Any]:
        """Return JSON values: the input of `of`, with medians and ratios for other programs."""
        found = dataclasses.asdict(self)
        for name, row in self.rows.items():
            for broker, cell in row.cells.items():
                figures = [figure for figure in FIGURES if cell.values(figure)]
                found.setdefault("medians", {}).setdefault(name, {})[broker] = {
                    figure: cell.median(figure) for figure in figures
                }
                found.setdefault("ratios", {}).setdefault(name, {})[broker] = {
                    figure: ratio for figure in figures if (ratio := row.ratio(broker, figure, self.base)) is not None
                }
        return found

    def failures(self) -> list[str]:
        """Return a line for each broker that failed in a scenario."""
        return [
            f"{name}: {line}"
            for name, row in self.rows.items()
            for cell in row.cells.values()
            for line in dict.fromkeys(cell.said)
        ]


def ratio_shown(ratio: float) -> str:
    """Format a ratio: 0.0125 -> 1/80, 0.87 -> 0.87, 129.2 -> 129."""
    if 0 < ratio < 0.4:
        inverse = 1 / ratio
        return f"1/{inverse:.1f}" if inverse < 10 and abs(inverse - round(inverse)) > 0.01 else f"1/{inverse:.0f}"
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def table(row: Row, base: str) -> list[list[str]]:
    """Return cells of text, titles first."""
    titles = ["broker", *(FIGURES[figure].title for figure in row.shows), f"beside {base}", "remark"]
    lines = [titles]
    for broker, cell in row.cells.items():
        ratios = [
            f"{FIGURES[figure].title} {ratio_shown(ratio)}"
            for figure in row.beside
            if (ratio := row.ratio(broker, figure, base)) is not None and broker != base
        ]
        said = "; ".join(dict.fromkeys(cell.said))
        lines.append([broker, *(cell.shown(figure) for figure in row.shows), ", ".join(ratios), said])
    return lines


def markdown(cells: Sequence[Sequence[str]], numbers: Iterable[int] = ()) -> list[str]:
    """Return the lines of a table; `numbers` are the columns aligned right."""
    right = set(numbers)
    rule = "|" + "|".join("---:" if i in right else "---" for i in range(len(cells[0]))) + "|"
    lines = ["| " + " | ".join(each.replace("|", "\\|") for each in line) + " |" for line in cells]
    return [lines[0], rule, *lines[1:]]


def tables(comparison: Comparison) -> str:
    """Return the tables of all scenarios, as Markdown."""
    parts: list[str] = []
    for name, row in comparison.rows.items():
        cells = table(row, comparison.base)
        parts += [f"#### {name}: {row.title}", "", f"`flood {row.flood}`", ""]
        parts += [*markdown(cells, range(1, len(cells[0]) - 1)), ""]
    return "\n".join(parts).strip()


def how(comparison: Comparison, levels: str = "###") -> str:
    """Return machine, commits and brokers with their settings, as Markdown."""
    origins: dict[tuple[str, str, int, float], list[tuple[str, float]]] = {}
    for name, row in comparison.rows.items():
        runs = max((len(cell.runs) for cell in row.cells.values()), default=0)
        origins.setdefault((row.date, row.commit, runs, row.seconds), []).append((name, row.busy))
    lines = [f"Machine: {comparison.machine}.", ""]
    lines += [
        f"- {date}, commit {commit}, {runs} runs of {seconds:g} s, in turn: {', '.join(name for name, _ in rows)}; "
        f"others had up to {100 * max(busy for _, busy in rows):.0f} % of the machine"
        for (date, commit, runs, seconds), rows in origins.items()
    ]
    lines += ["", f"{levels} The brokers", ""]
    titles = ["broker", "version", "started as", "what is there after a crash"]
    cells = [
        [name, about["version"] or "-", f"`{about['command']}`", about["keeps"]]
        for name, about in comparison.brokers.items()
    ]
    lines += markdown([titles, *cells])
    files = {name: about["files"] for name, about in comparison.brokers.items() if about["files"]}
    for name, text in files.items():
        lines += ["", f"{name}:", "", *(f"    {line}" for line in text.splitlines())]
    return "\n".join(lines)


_CONDITION: Final = re.compile(
    r"^(?P<name>[\w.+-]+?)\s*(?P<sign><=|>=|<|>)\s*(?P<value>\d+(\.\d+)?)(?P<unit>us|ms|s|)$"
)


class Condition(NamedTuple):
    """A condition for failure: [SCENARIO.][BROKER.]FIGURE[.ratio] < or > a number."""

    text: str
    scenario: str
    broker: str
    figure: str
    is_ratio: bool
    sign: str
    bound: float


def conditions(text: str, scenarios: Iterable[str], brokers: Iterable[str]) -> list[Condition]:
    """Parse conditions, separated by commas. ValueError: one is invalid, or names something that is not measured."""
    scenarios, brokers = list(scenarios), list(brokers)
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        match = _CONDITION.match(each)
        if match is None:
            raise ValueError(f"{each!r} is no condition: pair0.cpu.ratio>0.1, p99>20ms, mosquitto.lost>0")
        parts = match["name"].split(".")
        is_ratio = parts[-1] == "ratio"
        figure = parts[-2] if is_ratio and len(parts) > 1 else parts[-1]
        rest = parts[: -2 if is_ratio else -1]
        scenario = rest.pop(0) if rest and rest[0] in scenarios else ""
        broker = rest.pop(0) if rest and rest[0] in brokers else ""
        if rest or figure not in FIGURES:
            raise ValueError(f"{each!r}: {rest[0] if rest else figure} is no scenario, broker or figure of this run")
        if is_ratio and match["unit"]:
            raise ValueError(f"{each!r}: a ratio has no unit")
        if not is_ratio and bool(match["unit"]) is not FIGURES[figure].is_duration:
            raise ValueError(f"{each!r}: " + ("say us, ms or s" if not match["unit"] else f"{figure} is no duration"))
        bound = float(match["value"]) * UNITS[match["unit"]]
        found.append(Condition(each, scenario, broker, figure, is_ratio, match["sign"], bound))
    return found


def failed(wanted: Iterable[Condition], comparison: Comparison) -> list[str]:
    """Return a line for each condition that is true somewhere, or without measurements."""
    lines = []
    for each in wanted:
        measured = False
        for name, row in comparison.rows.items():
            for broker, cell in row.cells.items():
                if each.scenario not in ("", name) or each.broker not in ("", broker):
                    continue
                if each.is_ratio and broker == comparison.base:
                    continue
                ratio = row.ratio(broker, each.figure, comparison.base)
                value = ratio if each.is_ratio else cell.median(each.figure)
                if value is None:
                    continue
                measured = True
                if SIGNS[each.sign](value, each.bound):
                    what = ratio_shown(value) if each.is_ratio else FIGURES[each.figure].text(value)
                    lines.append(f"{each.text}: {name}, {broker}: {what}")
        if not measured:
            lines.append(f"{each.text}: nothing was measured for it")
    return lines
