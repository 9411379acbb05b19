"""Rows of an analysis as self-contained HTML: charts (pygal, as SVG), heat maps and tables.

A row is a dict of plain values. Times are shown as they are given: the caller chooses their zone.
"""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from spark_etl.analyses.registry import Plot

__all__ = ["OTHERS", "STYLE", "chart", "table", "text"]

Row = Mapping[str, Any]

OTHERS: Final = "(others)"
_NOTHING: Final = "(none)"
_EPOCH: Final = datetime(1970, 1, 1)  # for times without zone, which pygal would not take
_LABEL_CHARACTERS_MAX: Final = 40
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_COLOURS: Final = (
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0",
)  # fmt: skip
STYLE: Final = """\
.weeks { border-collapse: separate; border-spacing: 2px; font-size: 12px; table-layout: fixed; width: 100% }
.weeks td, .weeks th { border: 0; padding: .25em 0; text-align: center; font-weight: normal; color: #666 }
.weeks td { color: transparent; border-radius: 3px; height: 1.6em }
.weeks td:hover { color: inherit }
.rows { overflow-x: auto }
"""


def chart(plot: Plot, rows: Sequence[Row]) -> str:
    """Return the rows as a chart of the plot's kind; empty when there is nothing to draw."""
    if not rows:
        return ""
    return {"lines": _lines, "bars": _bars, "stacks": _stacks, "weeks": _weeks}[plot.kind](plot, rows)


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return the rows as an HTML table."""
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in columns)
    kinds = ["n" if all(isinstance(row[name], int | float | None) for row in rows) else "t" for name in columns]
    body = "".join(
        "<tr>"
        + "".join(
            f"<td class={kind}>{html.escape(text(row[name]))}</td>" for name, kind in zip(columns, kinds, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<div class=rows><table><tr>{head}</tr>{body}</table></div>"


def text(value: Any) -> str:
    """Return a value as text for people."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case _:
            return str(value)


def _settings(plot: Plot, height: int) -> dict[str, Any]:
    from pygal.style import Style

    style = Style(
        background="transparent", plot_background="transparent", foreground="#444", foreground_strong="#222",
        foreground_subtle="#ddd", colors=_COLOURS, font_family="system-ui, sans-serif", label_font_size=11,
        major_label_font_size=11, legend_font_size=12, title_font_size=13, tooltip_font_size=12, opacity=".85",
        guide_stroke_color="#ddd", major_guide_stroke_color="#ddd", guide_stroke_dasharray="1",
        major_guide_stroke_dasharray="1",
        value_font_size=11, no_data_font_size=14,
    )  # fmt: skip
    number: Callable[[Any], str] = lambda value: text(value if isinstance(value, int) else float(value or 0))  # noqa: E731
    return {
        "style": style, "height": height, "width": 900, "js": [], "explicit_size": False, "legend_at_bottom": True,
        "disable_xml_declaration": True, "value_formatter": number, "title": plot.unit, "margin": 8,
        "truncate_legend": _LABEL_CHARACTERS_MAX, "legend_at_bottom_columns": 3, "truncate_label": -1,
    }  # fmt: skip


def _name(value: Any) -> str:
    named = _NOTHING if value is None else text(value) if not isinstance(value, str) else value or '""'
    return named if len(named) <= _LABEL_CHARACTERS_MAX else named[: _LABEL_CHARACTERS_MAX - 1] + "…"


def _lines(plot: Plot, rows: Sequence[Row]) -> str:
    import pygal

    lines: dict[str, dict[datetime, float]] = defaultdict(dict)
    times: list[datetime] = sorted({row[plot.x] for row in rows})
    if len(times) == 1:
        return _columns(plot, rows)
    for row in rows:
        for column in plot.y:
            name = column.replace("_", " ") if plot.by is None else _name(row[plot.by])
            lines[name][row[plot.x]] = row[column]
    # a missing count is 0; a missing measurement is unknown
    absent = None if plot.by is None else 0.0
    days = times[-1].date() != times[0].date()
    drawn = pygal.XY(
        **_settings(plot, 340), show_legend=plot.by is not None or len(plot.y) > 1, show_dots=len(times) < 40,
        dots_size=2.5, stroke_style={"width": 2}, include_x_axis=True,
        x_value_formatter=lambda at: f"{_EPOCH + timedelta(seconds=at):{'%m-%d %H:%M' if days else '%H:%M:%S'}}",
    )  # fmt: skip
    drawn.x_labels = [_seconds(time) for time in times[:: max(1, len(times) // 8)]]
    for name, values in lines.items():
        drawn.add(name, [(_seconds(time), values.get(time, absent)) for time in times])
    return str(drawn.render(is_unicode=True))


def _columns(plot: Plot, rows: Sequence[Row]) -> str:
    # for lines with a single time, because a point would hardly be seen
    named = [
        {
            "name": text(row[plot.x]) + (f" {_name(row[plot.by])}" if plot.by else ""),
            **{each: row[each] for each in plot.y},
        }
        for row in rows
    ]
    return _bars(Plot("bars", "name", plot.y, unit=plot.unit), named)


def _seconds(time: datetime) -> float:
    return (time - _EPOCH).total_seconds()


def _bars(plot: Plot, rows: Sequence[Row]) -> str:
    import pygal

    settings = _settings(plot, 90 + 24 * len(rows) * len(plot.y))
    drawn = pygal.HorizontalBar(**settings, show_legend=len(plot.y) > 1, print_values=False)
    above = list(reversed(rows))  # pygal draws the first one lowest
    drawn.x_labels = [
        _name(row[plot.x] if plot.by is None else f"{_name(row[plot.by])} {_name(row[plot.x])}") for row in above
    ]
    for column in plot.y:
        drawn.add(column.replace("_", " "), [row[column] for row in above])
    return str(drawn.render(is_unicode=True))


def _stacks(plot: Plot, rows: Sequence[Row]) -> str:
    import pygal

    (column,) = plot.y
    places = sorted({row[plot.x] for row in rows})
    stacks: dict[str, dict[Any, float]] = defaultdict(dict)
    for row in rows:
        stacks["" if plot.by is None else _name(row[plot.by])][row[plot.x]] = row[column]
    drawn = pygal.StackedBar(**_settings(plot, 340), x_title=plot.x.replace("_", " "))
    drawn.x_labels = [text(place) for place in places]
    for name, values in stacks.items():
        drawn.add(name, [values.get(place) for place in places])
    return str(drawn.render(is_unicode=True))


def _weeks(plot: Plot, rows: Sequence[Row]) -> str:
    (column,) = plot.y
    values = {(row["weekday"], row["hour"]): row[column] for row in rows}
    most = max(values.values()) or 1
    head = "<tr><th></th>" + "".join(f"<th>{hour}</th>" for hour in range(24)) + "</tr>"
    lines = []
    for weekday, day in enumerate(_DAYS):
        cells = []
        for hour in range(24):
            value = values.get((weekday, hour))
            share = 0.0 if value is None else 0.12 + 0.88 * value / most
            said = f"{day} {hour}:00: {'nothing' if value is None else f'{text(value)} {plot.unit}'}"
            cells.append(
                f'<td title="{html.escape(said)}" style="background: rgba(66, 105, 208, {share:.2f})">'
                f"{'' if value is None else text(value)}</td>"
            )
        lines.append(f"<tr><th>{day}</th>{''.join(cells)}</tr>")
    return f"<table class=weeks>{head}{''.join(lines)}</table><p class=note>Darkest: {text(most)} {plot.unit}.</p>"
