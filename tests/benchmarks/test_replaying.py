"""The measurement of replays can be made."""

from __future__ import annotations

from tests.benchmarks import replaying


def test_a_replay_is_measured() -> None:
    figures = replaying.replay(messages=3000, workers=2, turns=1, base_seconds=0.2)
    assert figures["messages_per_s_median"] > 0
    assert figures["p50_us_before"][0] > 0
    assert figures["p50_us_during"][0] > 0
