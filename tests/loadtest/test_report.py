"""The page of a run with known figures."""

from __future__ import annotations

from pathlib import Path

from loadtest import report
from loadtest.generator import Load
from loadtest.run import Result
from loadtest.scenario import scenario
from loadtest.target import Target


def page(tmp_path: Path, seconds: int, *happened: tuple[float, str]) -> str:
    """Return the page of a run whose rate doubles in the middle."""
    series = [
        {"at": float(i), "sent_per_s": 100.0, "received_per_s": 100.0 if i < seconds / 2 else 200.0}
        for i in range(1, seconds + 1)
    ]
    load = Load(
        Target.parse("wss://broker:8084/mqtt"), scenario("pair", 2, None, None, "t/%i", "x"), (64, b"abc"), rate=5
    )
    path = tmp_path / "page.html"
    report.write(path, load, Result({"lost": 3.0}, series, happened=list(happened)), ["lost>0: lost is 3"], "a run")
    return path.read_text()


def test_long_runs_have_their_means_of_five_minutes_too(tmp_path: Path) -> None:
    text = page(tmp_path, 900)
    assert "received, mean of 5 min" in text
    assert "mean of 5 min" not in page(tmp_path, 200)


def test_a_mean_is_of_the_last_five_minutes() -> None:
    points = [(float(i), 100.0 if i <= 450 else 200.0) for i in range(1, 901)]
    means = dict(report._means(points))
    assert means[450.0] == 100.0
    assert means[600.0] == 150.0  # half of them are from before
    assert means[900.0] == 200.0


def test_what_happened_is_marked_and_escaped(tmp_path: Path) -> None:
    text = page(tmp_path, 10, (4.5, "kill -9 $(pgrep <mqttd>)"))
    assert text.count("kill -9 $(pgrep &lt;mqttd&gt;)") >= 2  # in the chart and in the table
    assert "<mqttd>" not in text
    assert "4.5 s" in text
    assert "pair at wss://broker:8084/mqtt: 2 publishers" in text
    assert "64 bytes, 3 of a file" in text
    assert "failed: lost&gt;0: lost is 3" in text
