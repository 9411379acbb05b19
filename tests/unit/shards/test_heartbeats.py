"""The age of heartbeats, as another process sees it."""

from shards.heartbeats import Heartbeats


def test_ages() -> None:
    beats = [0, 7]
    seen = Heartbeats([lambda: beats[0], lambda: beats[1]], 10.0)
    assert seen.ages(11.0) == [1.0, 1.0]
    beats[1] += 1
    assert seen.ages(12.5) == [2.5, 0.0]
    beats[0] -= 1
    assert seen.ages(20.0) == [0.0, 7.5]
    assert seen.ages(20.0) == [0.0, 7.5]
