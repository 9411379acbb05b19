"""A run as one self-contained HTML file: figures, and charts over time (pygal, as SVG).

Events during the run (lost connections, a restarted worker) are marked on every chart.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loadtest.generator import Load
from loadtest.run import Result

_LONG_SECONDS = 300
_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .2em .9em .2em 0; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
.bad { color: #a00; font-weight: bold }
svg { width: 100%; height: auto }
"""
#: (title, figures of the series with their names, divisor of the values)
_CHARTS: Sequence[tuple[str, Mapping[str, str], float]] = (
    ("Messages per second", {"sent_per_s": "sent", "received_per_s": "received"}, 1.0),
    (
        "From the time a message was due to its delivery, ms",
        {"delivery_p50_us": "p50", "delivery_p90_us": "p90", "delivery_p99_us": "p99"},
        1000.0,
    ),
    ("To the last acknowledgement, ms", {"acknowledgement_p50_us": "p50", "acknowledgement_p99_us": "p99"}, 1000.0),
    ("The generator's own lateness, ms", {"lateness_p50_us": "p50", "lateness_p99_us": "p99"}, 1000.0),
)


def write(path: Path, load: Load, result: Result, failures: Sequence[str], title: str) -> None:
    """Write the page. Raises OSError."""
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(_what(load))}</p>",
        *(f"<p class=bad>failed: {html.escape(line)}</p>" for line in failures),
        _figures(result.figures),
        *(_chart(name, result, columns, divisor) for name, columns, divisor in _CHARTS),
        _workers(result),
        _events_of(result),
    ]
    path.write_text(page(title, parts))


def page(title: str, parts: Sequence[str]) -> str:
    """Return a whole page of these parts, with the style of all our reports."""
    head = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{_STYLE}</style>"
    )
    return "\n".join([head, *filter(None, parts), "</html>"])


def _what(load: Load) -> str:
    of, target = load.scenario, load.target
    rate = f"{load.rate:,.0f} messages per second by a schedule" if load.rate else "as fast as acks and deliveries come"
    whats = dict.fromkeys(
        f"{each} bytes" if isinstance(each, int) else f"{len(each)} of a file" for each in load.payloads
    )
    return (
        f"{of.name} at {target.url}: {of.publishers:,} publishers, {of.subscribers:,} subscribers, "
        f"{of.idle:,} idle; QoS {load.qos}, {', '.join(whats)}, window {load.window}, {rate}"
    )


def _figures(figures: Mapping[str, float]) -> str:
    rows = []
    for name in ("connect", "acknowledgement", "delivery", "lateness"):
        if f"{name}_p50_us" in figures:
            values = [figures.get(f"{name}_{each}_us") for each in ("p50", "p90", "p99", "p99.9", "max")]
            cells = "".join(f"<td>{'' if value is None else f'{value / 1000:,.3f}'}</td>" for value in values)
            rows.append(f"<tr><td>{name}, ms</td>{cells}</tr>")
    durations = (
        "<table><tr><th></th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>most</th></tr>"
        + "".join(rows)
        + "</table>"
    )
    counts = "".join(
        f"<tr><td>{name.replace('_', ' ')}</td><td{_colour(name, value)}>{value:,.6g}</td></tr>"
        for name, value in figures.items()
        if not name.endswith("_us") or name.startswith("broker")
    )
    return f"{durations}<table>{counts}</table>"


def _colour(name: str, value: float) -> str:
    wrong = ("lost", "reordered", "duplicates", "corrupt", "protocol_errors", "connections_lost", "publishes_refused")
    return " class=bad" if name in wrong and value else ""


def _chart(title: str, result: Result, columns: Mapping[str, str], divisor: float) -> str:
    lines = {}
    for figure, name in columns.items():
        points = [(row["at"], row[figure] / divisor) for row in result.series if figure in row]
        if len(points) > 1:
            lines[name] = points
            if figure.endswith("_per_s") and points[-1][0] - points[0][0] > _LONG_SECONDS:
                lines[f"{name}, mean of 5 min"] = _means(points)
    return _drawn(title, lines, result)


def _means(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    means, total, first = [], 0.0, 0
    for i, (at, value) in enumerate(points):
        total += value
        while points[first][0] <= at - _LONG_SECONDS:
            total -= points[first][1]
            first += 1
        means.append((at, total / (i + 1 - first)))
    return means


def _workers(result: Result) -> str:
    names = sorted({name for row in result.balance for name in row if name != "at"})
    lines = {f"worker {name}": [(row["at"], row[name]) for row in result.balance if name in row] for name in names}
    return _drawn("Publishes received per second, by worker", lines, result)


def _drawn(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], result: Result) -> str:
    if not any(len(points) > 1 for points in lines.values()):
        return ""
    import pygal  # in the extra `loadtest`

    number: Callable[[float], str] = lambda value: f"{value:,.4g}"  # noqa: E731
    chart = pygal.XY(
        title=title, height=320, width=900, show_dots=False, js=[], explicit_size=False, include_x_axis=True,
        legend_at_bottom=True, x_title="seconds", value_formatter=number, disable_xml_declaration=True,
    )  # fmt: skip
    for name, points in lines.items():
        chart.add(name, list(points))
    most = max(value for points in lines.values() for _, value in points)
    for at, what in result.happened:
        chart.add(what, [(at, 0.0), (at, most)], stroke_style={"dasharray": "4, 4"})
    return str(chart.render(is_unicode=True))


def _events_of(result: Result) -> str:
    rows = "".join(f"<tr><td>{html.escape(what)}</td><td>{at:.1f} s</td></tr>" for at, what in result.happened)
    said = "".join(f"<li>{html.escape(line)}</li>" for line in dict.fromkeys(result.said))
    return (f"<h2>What happened</h2><table>{rows}</table>" if rows else "") + (f"<ul>{said}</ul>" if said else "")
