"""The program that measures flood against a sink counts correctly."""

from __future__ import annotations

import os

import pytest

from tests.benchmarks.generating import ROWS, Row, once


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_all_that_is_generated_comes_to_the_sink(row: Row) -> None:
    """Every generated message reaches the sink: `once` compares the counts."""
    cores = os.sched_getaffinity(0)
    try:
        figures = once(row, 0.3, (max(cores), min(cores))).figures
    finally:
        os.sched_setaffinity(0, cores)
    assert figures["total_sent"] > 1000
    assert figures[row.figure] > 0
