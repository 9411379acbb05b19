"""Two devices with one client id: a bounded number of take-overs, and refusals that last longer each time."""

from __future__ import annotations

import tracemalloc

import pytest

from broker.clients.takeovers import Takeovers
from tests.sansio import Host


def test_a_fight_is_slowed_down_more_and_more() -> None:
    takeovers = Takeovers()
    now = 100.0
    assert [takeovers.refused_seconds("x", 3, now) for _ in range(3)] == [0, 0, 0]
    refusals: list[float] = []
    while len(refusals) < 9:
        seconds = takeovers.refused_seconds("x", 3, now)
        if not seconds:
            continue  # it has regained one meanwhile
        refusals.append(seconds)
        assert takeovers.refused_seconds("x", 3, now + seconds / 2) == pytest.approx(seconds / 2)
        now += seconds
    assert refusals == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert takeovers.refused_seconds("y", 3, now) == 0


def test_a_quiet_minute_and_all_is_forgotten() -> None:
    takeovers = Takeovers()
    for _ in range(5):
        takeovers.refused_seconds("x", 3, 0.0)
    takeovers.forget_old(3, 30.0)
    assert len(takeovers) == 1
    takeovers.forget_old(3, 70.0)
    assert len(takeovers) == 0


def test_0_is_any_number_and_costs_nothing() -> None:
    takeovers = Takeovers()
    assert {takeovers.refused_seconds("x", 0, 0.0) for _ in range(1000)} == {0.0}
    assert len(takeovers) == 0


def test_the_table_is_bounded() -> None:
    takeovers = Takeovers()
    for number in range(10_500):
        takeovers.refused_seconds(f"c{number}", 3, 0.0)
    assert len(takeovers) == 10_000


@pytest.mark.parametrize("version", [4, 5])
def test_the_older_keeps_its_connection_and_the_newer_comes_later(version: int) -> None:
    host = Host(limits={"takeovers_per_minute_max": 2})
    peers = [host.connect("x", version) for _ in range(3)]
    assert [peer.closed for peer in peers] == [True, True, False]
    with pytest.raises(AssertionError, match="reason=151" if version == 5 else "reason=3"):
        host.connect("x", version)
    host.pass_time(31)
    host.connect("x", version)
    host.pass_time(100)
    assert host.counters()["takeovers_refused"] == 1
    assert host.counters()["sessions_taken_over"] == 3


def test_long_client_ids_are_not_kept() -> None:
    takeovers = Takeovers()
    tracemalloc.start()
    try:
        for number in range(100):
            takeovers.refused_seconds("x" * 65_530 + f"{number:05}", 60, 0.0)
        assert len(takeovers) == 100
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
