"""Bar charts of several brokers side by side, as SVG (pygal), identical for identical figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from loadtest.comparison import FIGURES, Comparison

_CHARTS: Sequence[tuple[str, str]] = (
    ("cpu", "CPU per delivered message, us (less is better)"),
    ("rate", "Delivered messages per second (more is better)"),
    ("p50", "p50 from the time a message was due to its delivery, us (less is better)"),
    ("ack_p50", "p50 from publish to acknowledgement, us (less is better)"),
    ("client_bytes", "Memory per idle client, bytes (less is better)"),
)
_NO_DATE = re.compile(r"<script.*?</script>|<!--.*?-->", re.DOTALL)


def charts(comparison: Comparison) -> dict[str, str]:
    """Return an SVG by name for each figure that some scenario's table shows."""
    found = {}
    for figure, title in _CHARTS:
        rows = {name: row for name, row in comparison.rows.items() if figure in row.shows}
        series = {
            broker: [row.cells[broker].median(figure) if broker in row.cells else None for row in rows.values()]
            for broker in comparison.brokers
        }
        if any(value for values in series.values() for value in values):
            found[figure] = bars(figure, title, list(rows), series)
    return found


def bars(name: str, title: str, labels: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """Return a logarithmic bar chart; `name` keeps the styles of several charts on a page apart."""
    import pygal  # in the extra `loadtest`

    values = [value for each in series.values() for value in each if value]
    lowest = min(values) / 2  # so that the bar of the smallest value is visible
    chart = pygal.Bar(
        title=title, height=320, width=900, js=[], explicit_size=False, legend_at_bottom=True, logarithmic=True,
        range=(lowest, max(values)), zero=lowest, value_formatter=FIGURES[name].text, disable_xml_declaration=True,
        show_minor_y_labels=False,
    )  # fmt: skip
    chart.uuid = name
    chart.x_labels = labels
    for each, of in series.items():
        chart.add(each, list(of))
    return _NO_DATE.sub("", str(chart.render(is_unicode=True)))
