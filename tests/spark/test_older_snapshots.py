"""Snapshots of this release and of earlier ones (`tests/golden`) as tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.whole import ARRIVED, IN_FLIGHT, LARGE, SUMMARISED
from tests.integration.test_older_stores import SCHEMAS, SESSIONS, WHOLE, unpacked
from tests.spark.conftest import Load


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_snapshot_of_an_earlier_release_as_tables(load: Load, schema: str, tmp_path: Path) -> None:
    """Sessions, windows, retained messages and the archive are read as written."""
    snapshot = unpacked(f"{schema}.snapshot", tmp_path / "snapshot")
    rows = {table: load(snapshot, table).collect() for table in ("messages", "retained", "sessions", "inflight")}
    sessions = {row["client"] for row in rows["sessions"]}
    retained = {row["topic"]: bytes(row["payload"]) for row in rows["retained"]}
    archived = sorted(
        bytes(row["payload"])
        for row in rows["messages"]
        if row["origin"] == "archive" and row["topic"].startswith("archived/")
    )
    in_flight = [row["direction"] for row in rows["inflight"] if row["client"] == "pages"]
    assert archived == [b"a%d" % number for number in range(10)]
    assert {topic: payload for topic, payload in retained.items() if topic.startswith("kept/")} == {
        "kept/expires": b"kx", **{f"kept/{number}": b"k%d" % number for number in range(12)},
    }  # fmt: skip
    if schema in WHOLE:
        assert sorted(sessions) == SESSIONS
        assert (in_flight.count("out"), in_flight.count("in")) == (IN_FLIGHT, ARRIVED)
        assert retained["large/2"] == LARGE + b"2"
        assert sum(row["topic"].startswith("summarised/") for row in rows["messages"]) == SUMMARISED
