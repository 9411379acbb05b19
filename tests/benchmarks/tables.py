"""The tables of the measurements: for the terminal and, between two marks, for docs/benchmarks.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtest.comparison import ratio_shown
from tests.benchmarks.scenarios import Scenario, Target

BEGIN = "<!-- measured: python -m tests.benchmarks.run -->"


@dataclass
class Result:
    """The result of one scenario, in plain values that JSON can hold."""

    date: str
    commit: str
    runs: int
    medians: dict[str, dict[str, float]] = field(default_factory=dict)
    spreads: dict[str, dict[str, float]] = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Result:
        """Return a result from its JSON."""
        return cls(**values)


#: figure -> (its title, format of a value)
FIGURES: dict[str, tuple[str, str]] = {
    "broker_us_per_msg": ("CPU", "{:.3g} us"),
    "out_per_s": ("delivered", "{:,.0f}/s"),
    "per_s": ("cycles", "{:,.0f}/s"),
    "lat_p50_us": ("p50", "{:.0f} us"),
    "lat_p99_us": ("p99", "{:.0f} us"),
    "bytes_per_conn": ("PSS each", "{:,.0f} B"),
    "ramp_per_s": ("connected", "{:,.0f}/s"),
    "bytes_per_filter": ("PSS each", "{:.0f} B"),
    "match_ns": ("match", "{:.0f} ns"),
    "subscribe_s": ("subscribed in", "{:.1f} s"),
    "growth_bytes": ("PSS growth", "{:,.0f} B"),
    "socket_bytes": ("socket buffers", "{:,.0f} B"),
    "slab_bytes": ("kernel objects", "{:,.0f} B"),
    "pss_bytes": ("PSS", "{:,.0f} B"),
    "seconds": ("time", "{:.1f} s"),
    "hold_broker_cpu_pct": ("CPU", "{:.2f} %"),
    "ack_p50_us": ("p50", "{:.0f} us"),
    "ack_p99_us": ("p99", "{:.0f} us"),
    "ack_memory_p50_us": ("in memory p50", "{:.0f} us"),
    "fdatasync_p50_us": ("fdatasync p50", "{:.0f} us"),
    "record_bytes": ("of", "{:.0f} B"),
    "ack_fdatasyncs": ("longer by", "{:.2f} fdatasync"),
    "given_bytes": ("given to LevelDB each", "{:.1f} B"),
    "store_per_s": ("stored", "{:,.0f}/s"),
    "drain_per_s": ("drained", "{:,.0f}/s"),
    "store_broker_us_per_msg": ("CPU of storing", "{:.3g} us"),
    "drain_broker_us_per_msg": ("CPU of draining", "{:.3g} us"),
    "replay_per_s": ("replayed", "{:,.0f}/s"),
    "replay_us": ("CPU", "{:.3g} us"),
    "ping_alone_p50_us": ("p50 alone", "{:.0f} us"),
    "ping_ratio": ("p50 beside it", "{:.2f}"),
    "start_s": ("ready after", "{:.2f} s"),
    "store_bytes": ("store", "{:,.0f} B"),
    "ping_p50_us": ("p50", "{:.0f} us"),
    "ping_p99_us": ("p99", "{:,.0f} us"),
    "ping_max_ms": ("slowest", "{:.1f} ms"),
    "gap_ms": ("gap", "{:.0f} ms"),
    "ack_ms": ("ack", "{:.0f} ms"),
    "ack_to_stopped_ms": ("ack of what goes to it", "{:.0f} ms"),
    "serves_s": ("successor serves after", "{:.2f} s"),
    "end_s": ("ended after", "{:.2f} s"),
    "answer_ms": ("answer", "{:.2f} ms"),
    "disk_wait_pct": ("loop waits for the disk", "{:.2f} %"),
}


def shown(figure: str, value: float | None) -> str:
    """Return a value with its unit."""
    return "-" if value is None or math.isnan(value) else FIGURES[figure][1].format(value)


@dataclass(frozen=True)
class Judgement:
    """A target beside the measured figures."""

    of: str
    than: str
    reached: str
    at_most: str
    met: bool | None
    """None: not measured."""


def judged(target: Target, result: Result) -> Judgement:
    """Compare a target with the medians."""
    value = result.medians.get(target.of, {}).get(target.figure)
    spread = result.spreads.get(target.of, {}).get(target.figure, 0.0)
    of = f"{target.of}: {shown(target.figure, value)} (+-{spread / 2:.0f} %)"
    least = ">= " if target.is_least else ""
    if target.than is None:
        met = None if value is None else _holds(target, value)
        return Judgement(of, "", shown(target.figure, value), least + shown(target.figure, target.at_most), met)
    base = result.medians.get(target.than, {}).get(target.figure)
    base_spread = result.spreads.get(target.than, {}).get(target.figure, 0.0)
    than = f"{target.than}: {shown(target.figure, base)} (+-{base_spread / 2:.0f} %)"
    if value is None or not base:
        return Judgement(of, than, "-", least + ratio_shown(target.at_most), None)
    ratio = value / base
    return Judgement(of, than, ratio_shown(ratio), least + ratio_shown(target.at_most), _holds(target, ratio))


def _holds(target: Target, reached: float) -> bool:
    return reached >= target.at_most if target.is_least else reached <= target.at_most


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _title(scenario: Scenario, target: Target) -> str:
    """Return the title of a scenario, with the figure if it has several."""
    figures = {each.figure for each in scenario.targets}
    name = FIGURES[target.figure][0]
    is_named = len(figures) > 1 and target.figure != "broker_us_per_msg" and name not in scenario.title
    return f"{scenario.title} ({name})" if is_named else scenario.title


def targets_table(scenarios: Iterable[Scenario], results: Mapping[str, Result]) -> list[str]:
    """Return the table of targets and the ratios reached."""
    titles = ("scenario", "measured", "compared with", "reached", "at most (>=: at least)", "met")
    lines = [_row(titles), "|---|---|---|---:|---:|---|"]
    for scenario in scenarios:
        result = results.get(scenario.name)
        if result is None:
            continue
        for target in scenario.targets:
            j = judged(target, result)
            met = "-" if j.met is None else "yes" if j.met else "**no**"
            lines.append(_row((_title(scenario, target), j.of, j.than, j.reached, j.at_most, met)))
    return lines


def figures_table(scenarios: Iterable[Scenario], results: Mapping[str, Result]) -> list[str]:
    """Return the table of each variant's figures, with its CPU ratio to the first variant (mosquitto where present)."""
    lines = [_row(("scenario", "broker", "figures", "spread", "CPU ratio", "remark")), "|---|---|---|---:|---:|---|"]
    for scenario in scenarios:
        result = results.get(scenario.name)
        if result is None:
            continue
        measured = [result.medians[v.name] for v in scenario.variants if v.name in result.medians]
        first = measured[0].get("broker_us_per_msg") if measured else None
        remark = scenario.remark
        for variant in scenario.variants:
            if variant.name not in result.medians:
                continue
            medians = result.medians[variant.name]
            figures = ", ".join(
                f"{FIGURES[name][0]} {shown(name, medians.get(name))}" for name in scenario.figures if name in medians
            )
            spread = result.spreads[variant.name].get(scenario.figures[0])
            cpu = medians.get("broker_us_per_msg")
            ratio = ratio_shown(cpu / first) if cpu and first and "broker_us_per_msg" in scenario.figures else ""
            said = "; ".join(text for text in (remark, result.complaints.get(variant.name, "")) if text)
            lines.append(
                _row((scenario.title, variant.name, figures, "" if spread is None else f"{spread:.0f} %", ratio, said))
            )
            remark = ""
    return lines


def document(scenarios: Iterable[Scenario], results: Mapping[str, Result], machine: str, command: str) -> str:
    """Return the text between the marks."""
    scenarios = list(scenarios)
    origins: dict[tuple[str, str, int], list[str]] = {}
    for scenario in scenarios:
        if scenario.name in results:
            r = results[scenario.name]
            origins.setdefault((r.date, r.commit, r.runs), []).append(scenario.name)
    measured = [
        f"- {date}, commit {commit}, medians of {runs}: " + ("all" if len(origins) == 1 else ", ".join(names))
        for (date, commit, runs), names in origins.items()
    ]
    first = [scenario for scenario in scenarios if not scenario.section]
    parts = [
        f"Machine: {machine}.", "", f"    {command}", "", *measured, "",
        "### What had to be reached", "", *targets_table(first, results), "",
        "### All figures", "",
        "CPU: of the broker with all its processes, user and system, per delivered message (per cycle for connect). "
        "Spread: (largest - smallest) / median of the first figure.",
        "", *figures_table(first, results),
    ]  # fmt: skip
    for section in dict.fromkeys(scenario.section for scenario in scenarios if scenario.section):
        own = [scenario for scenario in scenarios if scenario.section == section]
        parts += ["", f"### {section}", "", *targets_table(own, results), "", *figures_table(own, results)]
    return "\n".join(parts)
