"""The measurements of the store run, and their conditions hold with small numbers."""

from __future__ import annotations

import pytest

from tests.benchmarks import durable


def test_acks_are_measured() -> None:
    figures = durable.acks_of(25)
    assert figures["ok"]
    assert figures["record_bytes"] > 64
    assert 0 < figures["ack_memory_p50_us"] < figures["ack_p50_us"] <= figures["ack_p99_us"]


@pytest.mark.parametrize("are_in_flight", [False, True])
def test_a_start_is_measured_and_nothing_is_missing(are_in_flight: bool) -> None:
    figures = durable.start_with(300, 4, ping_seconds=0.1, are_in_flight=are_in_flight)
    assert figures["ok"], figures
    assert 0 < figures["start_s"] < 20
    assert figures["store_bytes"] > 300 * 4 * 64
