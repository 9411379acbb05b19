"""The snapshot made for the measurement of reading has the requested messages."""

from __future__ import annotations

from pathlib import Path

from leveldb_store.format.archive_schema import unix_ms
from leveldb_store.snapshots.snapshot import read_manifest
from tests.benchmarks import analytics


def test_the_snapshot_has_a_day_of_messages(tmp_path: Path) -> None:
    analytics.make(tmp_path / "made", 600, 2, 200, 10)
    manifest = read_manifest(tmp_path / "made")
    assert [store.archived["#"].messages for store in manifest.stores] == [300, 300]
    assert [store.records["A"] for store in manifest.stores] == [30, 30]
    first, last = manifest.stores[0].archived["#"].first, manifest.stores[0].archived["#"].last
    assert unix_ms(first) == analytics.START * 1000
    assert 0.99 < (unix_ms(last) - unix_ms(first)) / (analytics.DAY_SECONDS * 1000) < 1
    made = list(analytics.messages(0, 300, 200, 10))
    assert {len(message.payload) for message in made} == {200}


def test_what_is_measured_of_this_process_is_something() -> None:
    assert analytics.cpu_seconds()["python"] > 0
    assert analytics.pss_bytes() > 1 << 20
