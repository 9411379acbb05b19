"""Runs `tests.machine.lives` while time remains: the seeds are printed, and `MQTTD_MACHINE_SEED=N` runs one alone."""

from __future__ import annotations

import itertools
import os
import time

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.broker_process import KIND
from tests.machine.lives import MANY, Lives

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="the processes, settings and stores of mqttd")

SETTINGS = settings(
    max_examples=4,
    stateful_step_count=25,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


class ManyFilters(Lives):
    """A session with more filters than one callback should ever process at once."""

    deep_filters = MANY


@pytest.mark.parametrize(
    ("machine", "first", "seconds"),
    [
        (Lives, 16, 10),
        pytest.param(Lives, 17, 60, marks=pytest.mark.long),
        pytest.param(ManyFilters, None, 600, marks=pytest.mark.soak),
    ],
    ids=["some", "more", "many"],
)
def test_what_must_always_be_so(machine: type[Lives], first: int | None, seconds: float) -> None:
    """The invariants of `Lives` hold: the same runs in ten seconds or a minute, others each time in ten minutes."""
    asked = os.environ.get("MQTTD_MACHINE_SEED")
    if first is None:
        first = time.time_ns() // 1_000_000_000
    ends = time.monotonic() + seconds
    for number in [int(asked)] if asked else itertools.count(first):
        if time.monotonic() >= ends:
            break
        print(f"MQTTD_MACHINE_SEED={number}")
        run_state_machine_as_test(seed(number)(machine), settings=SETTINGS)
