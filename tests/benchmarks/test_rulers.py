"""flood and the ruler get the same loads."""

from __future__ import annotations

import pytest

from loadtest import flood
from tests.benchmarks.rulers import ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_both_are_told_the_same(row: Row) -> None:
    load = flood.load_of(flood.parser({}).parse_args(row.flood.split()))
    words = row.mqload.split()
    theirs = dict(zip(words[1::2], words[2::2], strict=True))
    assert words[0] == load.scenario.name
    assert int(theirs["--pubs"]) == load.scenario.publishers == load.scenario.subscribers
    assert int(theirs["--qos"]) == load.qos
    assert float(theirs.get("--rate", 0)) == load.rate
    assert "--window" not in theirs or int(theirs["--window"]) == load.window
    assert load.payloads == (64,)
