"""Requests reported in bulk give the same statistics as locust's one by one."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from loadtest.reporting import MqttFailure, log_requests


@pytest.fixture
def stats_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """locust's RequestStats, imported without its patches of the standard library: other tests run in this process."""
    monkeypatch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from locust.stats import RequestStats

    return RequestStats


def counted(stats: Any) -> list[dict[str, Any]]:
    """Return the fields of all entries except their times."""
    found = []
    for entry in (stats.total, *stats.entries.values()):
        fields = {name: value for name, value in vars(entry).items() if name not in ("stats", "start_time")}
        fields["per_second"] = sum(fields.pop("num_reqs_per_sec").values())
        fields["total_response_time"] = round(fields["total_response_time"], 6)
        assert fields.pop("last_request_timestamp") is not None
        fields.pop("response_times_cache")
        found.append(fields)
    return found


def test_in_bulk_as_one_by_one(stats_class: Any) -> None:
    rng = random.Random(1)
    one_by_one, in_bulk = stats_class(), stats_class()
    for _ in range(20):
        times = [rng.choice([None, rng.expovariate(1 / 50), rng.uniform(0, 20_000)]) for _ in range(rng.randint(1, 40))]
        kind, name = rng.choice(["PUBLISH", "DELIVERY"]), rng.choice("ab")
        for ms in times:
            one_by_one.log_request(kind, name, ms, 10)
        log_requests(in_bulk, kind, name, times, 10 * len(times))
    assert counted(in_bulk) == counted(one_by_one)


def test_the_cache_of_response_times_is_kept(stats_class: Any) -> None:
    """The cache has the state at the end of each second; locust's page computes current percentiles from it."""
    stats = stats_class()
    log_requests(stats, "PUBLISH", "t", [1.0], 0)
    entry = stats.total
    entry.response_times_cache.clear()
    before = int(time.time())
    log_requests(stats, "PUBLISH", "t", [2.0], 0)
    # the same second as the first, or a later one, whose start caches the state of the second before
    assert all(before - 1 <= second < time.time() for second in entry.response_times_cache)
    assert len(entry.response_times_cache) <= 1
    entry.response_times_cache.clear()
    entry.last_request_timestamp -= 2
    log_requests(stats, "PUBLISH", "t", [3.0], 0)
    [cached] = entry.response_times_cache.values()
    assert cached.num_requests == 2


@pytest.mark.parametrize(
    ("code", "is_return_code", "said"),
    [(0x87, False, "0x87 Not authorized"), (5, True, "0x05 Not authorized"), (0x7F, False, "0x7F Unknown")],
)
def test_a_failure_names_its_code(code: int, is_return_code: bool, said: str) -> None:
    failure = MqttFailure.of(code, is_return_code)
    assert (str(failure), failure.reason_code) == (said, code)
