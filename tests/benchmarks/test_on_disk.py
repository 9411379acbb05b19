"""The bounds on bytes in docs/store.md hold with fewer records of each kind, and the tables can be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import on_disk
from tests.benchmarks.on_disk import Row


@pytest.mark.parametrize(
    ("measure", "count"), [(on_disk.of_sessions, 1000), (on_disk.of_messages, 2000), (on_disk.of_copies, 100)]
)
def test_nothing_takes_more_than_it_may(tmp_path: Path, measure: on_disk.Measure, count: int) -> None:
    rows: list[Row] = measure(tmp_path / "store", count)
    for row in rows:
        assert row.sizes.tables > 0, row
        assert row.sizes.tables <= (row.most or row.sizes.plain), row
    assert len(on_disk.bytes_table(rows)) == 2 + len(rows)


def test_a_thousand_sessions_cost_a_message_no_more_than_one(tmp_path: Path) -> None:
    """LevelDB is given at most 1.05 times as many bytes per message for a thousand sessions."""
    one, many = (on_disk.given(tmp_path / str(sessions), sessions, 500) for sessions in (1, 1000))
    assert many <= 1.05 * one


def test_writing_is_counted(tmp_path: Path) -> None:
    """All messages are given to LevelDB and written to its log, whatever is merged on the way."""
    for what, qos, is_online in on_disk.TRAFFIC:
        found = on_disk.written(tmp_path / f"{qos}-{is_online}", what, qos, is_online, 2000, 0.2)
        assert found.messages == 400
        assert found.given > found.messages * on_disk.PAYLOAD_BYTES
        assert found.log_bytes > found.messages * on_disk.PAYLOAD_BYTES
        assert found.commits > 0
        assert found.writer_seconds > 0
