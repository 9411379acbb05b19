"""The measurement of a day's archive runs, with a short day."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import archive_day


def test_a_short_day_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "day"
    archive_day.fill(path, 2000, 50, workers=2)
    figures = archive_day.measured(path, workers=2, per_second=50, seconds=0.3, dense=500, sparse=1, waiting=33)
    assert figures["ok"]
    assert figures["rare"]["first"] > 0
    for name in (
        "quiet",
        "rare",
        "nothing",
        "rare16",
        "nothing16",
        "sparse",
        "dense",
        "cancelled",
        "waiting16",
        "waiting33",
    ):
        assert figures[name]["ping_p50_us"] > 0
    assert figures["dense"]["per_second"] > 0
    assert figures["retention_us_per_block"] > 0
    assert figures["disk_mb"] > 0
