"""The measurement of replays runs, with few messages."""

from __future__ import annotations

from tests.benchmarks import replaying


def test_a_replay_is_measured() -> None:
    figures = replaying.replay(messages=3000, workers=2, turns=1, base_seconds=0.2)
    assert figures["ok"]
    assert figures["replay_per_s"] > 0
    assert figures["ping_p50_us"] > 0
    assert figures["ping_alone_p50_us"] > 0
