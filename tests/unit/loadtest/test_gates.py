"""Conditions under which a run of the load generator has failed."""

import pytest

from loadtest.gates import failed, gates


def test_durations_have_units_and_counts_have_none() -> None:
    found = gates("p99>20ms, lost>0,connect_p99>=1.5s,rate<1000")
    assert [(gate.figure, gate.bound) for gate in found] == [
        ("delivery_p99_us", 20_000.0), ("lost", 0.0), ("connect_p99_us", 1_500_000.0), ("received_per_s", 1000.0),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["p99", "p99>", "p99>20", "lost>1ms", "p99=3ms", "p99>-1ms", ">3"])
def test_what_is_no_condition_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"condition|say us|no duration"):
        gates(text)


def test_a_condition_that_holds_has_failed_the_run() -> None:
    conditions = gates("p99>20ms,lost>0,reordered>=0")
    assert failed(conditions, {"delivery_p99_us": 20_001.0, "lost": 0, "reordered": 0}) == [
        "p99>20ms: delivery_p99_us is 20,001",
        "reordered>=0: reordered is 0",
    ]


def test_a_figure_that_the_run_does_not_have_fails_it() -> None:
    assert failed(gates("p99>20ms"), {}) == ["p99>20ms: this run has no figure delivery_p99_us"]
