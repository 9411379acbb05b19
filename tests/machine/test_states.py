"""Runs `tests.machine.states`: the same examples each time, more of them in `make test-all`; in `make soak` other ones
while time remains.

"""

from __future__ import annotations

import itertools
import os
import time

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from broker.clients import retaining
from tests.machine.expected import PAGE, QUEUED
from tests.machine.states import States

SETTINGS = settings(
    max_examples=1500,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
SOAK_SECONDS = 600.0


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few retained messages fill several pages."""
    monkeypatch.setattr(retaining, "_PAGE", PAGE)
    monkeypatch.setattr(retaining, "_QUEUED_MAX", QUEUED)


@pytest.mark.parametrize("examples", [300, pytest.param(1500, marks=pytest.mark.long)])
def test_what_must_always_be_so(examples: int) -> None:
    run_state_machine_as_test(States, settings=settings(SETTINGS, max_examples=examples))


@pytest.mark.soak
def test_what_must_be_so_for_long() -> None:
    """The invariants hold for many seeds, which are printed; MQTTD_MACHINE_SEED=N runs one of them alone."""
    asked = os.environ.get("MQTTD_MACHINE_SEED")
    others = settings(SETTINGS, derandomize=False, max_examples=200)
    ends = time.monotonic() + SOAK_SECONDS
    for number in [int(asked)] if asked else itertools.count(time.time_ns() // 1_000_000_000):
        if time.monotonic() >= ends:
            break
        print(f"MQTTD_MACHINE_SEED={number}")
        run_state_machine_as_test(seed(number)(States), settings=others)
