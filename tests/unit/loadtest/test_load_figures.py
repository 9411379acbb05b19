"""Rows of a load test: histograms, sums, differences; which publisher sends what to which subscriber."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.figures import Durations, Moment, SharedFigures
from loadtest.scenario import filter_for, scenario
from loadtest.target import Target
from pyx.loadgen.ledger import FIGURES, HISTOGRAM_FIRST, HISTOGRAM_PLACES, HISTOGRAMS, ROW_PLACES, place_value


def test_places_of_a_histogram_rise_and_are_at_most_a_64th_apart() -> None:
    values = [place_value(place) for place in range(HISTOGRAM_PLACES)]
    assert values[:128] == list(range(128))
    assert all(a < b <= a + max(1, a // 64) for a, b in pairwise(values))


@given(
    st.lists(st.integers(0, HISTOGRAM_PLACES - 2), min_size=1, max_size=200), st.sampled_from([50, 90, 99, 99.9, 100])
)
def test_a_percentile_is_the_value_that_so_many_do_not_exceed(places: list[int], percent: float) -> None:
    counts = [0] * HISTOGRAM_PLACES
    for place in places:
        counts[place] += 1
    value = Durations(counts).percentile(percent) * 1000
    below = sum(place_value(place + 1) <= value * (1 + 1e-9) for place in places)
    assert below >= len(places) * percent / 100
    less = sum(place_value(place + 1) < value * (1 - 1e-9) for place in places)
    assert less < len(places) * percent / 100 or less == 0


def test_a_percentile_of_nothing_is_0() -> None:
    assert Durations([0] * HISTOGRAM_PLACES).percentile(50) == 0.0


def test_rows_of_processes_are_summed_and_lie_beside_each_other() -> None:
    shared = SharedFigures(3, 5)
    for process in range(3):
        shared.row(process)[FIGURES.index("sent")] = process + 1
        shared.row(process)[HISTOGRAM_FIRST + HISTOGRAMS.index("connect") * HISTOGRAM_PLACES + 7] = 1
    shared.deliveries[14] = 9
    shared.sent[0] = 8
    now = shared.moment(2.0)
    assert now["sent"] == 6
    assert now["connected"] == 0
    assert now.durations("connect").count == 3
    assert now.durations("delivery").count == 0
    assert now.since(Moment([[0] * ROW_PLACES], 1.0))["sent"] == 6
    assert shared.row(2)[ROW_PLACES - 1] == 0


@pytest.mark.parametrize(
    ("topic", "expected"), [("t/%i", "t/+"), ("%c/a/x%i", "+/a/+"), ("one", "one"), ("a/%i/b", "a/+/b")]
)
def test_the_filter_of_all_takes_every_topic(topic: str, expected: str) -> None:
    assert filter_for(topic) == expected


def test_a_pair_hears_its_own_publisher_alone() -> None:
    pair = scenario("pair", 3, None, None, "t/%c", "x-")
    assert pair.topics == [b"t/x-p0", b"t/x-p1", b"t/x-p2"]
    assert [pair.filter_of(i) for i in range(3)] == ["t/x-p0", "t/x-p1", "t/x-p2"]
    assert pair.copies == 1


def test_copies() -> None:
    assert scenario("fanout", 7, None, None, "t/%i", "x-").copies == 7
    assert scenario("shared", 7, None, 3, "t/%i", "x-").copies == 1
    assert scenario("pub", 7, None, None, "t/%i", "x-").copies == 0


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [("mqtt://h:1", "h", 1), ("h:2", "h", 2), ("h", "h", 1883), ("mqtt://[::1]:9", "::1", 9)],
)
def test_addresses(url: str, host: str, port: int) -> None:
    target = Target.parse(url)
    assert (target.host, target.port) == (host, port)
