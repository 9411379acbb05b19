"""Seeded worlds of workers, links and clients, without sockets (see tests.simulation.world). A failure names its seed:
`python -m tests.simulation --seed N --mode volatile -v` prints its events.

"""

from __future__ import annotations

from typing import Any

import pytest

from broker.clients import subscribing
from tests.simulation.seeds import alternate, failures
from tests.simulation.world import EVENTS, World

SOME = 25
"""Seeds of `make test`."""
MORE = 200
"""Those up to this one are in `make test-all`, those after it in `make soak`."""


def pieces(count: int, marks: Any = (), first: int = 0) -> list[Any]:
    """Return (first seed, seeds, processes): the seeds in parts, which run at the same time as other tests."""
    return [pytest.param(first + at, 25, 1, marks=marks) for at in range(0, count, 25)]


@pytest.mark.parametrize(
    ("first", "seeds", "jobs"),
    [
        *pieces(SOME),
        *pieces(MORE - SOME, pytest.mark.long, SOME),
        pytest.param(MORE, 20_400, 0, marks=pytest.mark.soak),
    ],
)
def test_promises_hold(first: int, seeds: int, jobs: int) -> None:
    """Nothing acknowledged is lost; QoS 2 once, order, one session, SUBACK promise, limits and counters hold."""
    found = failures(alternate(first, seeds), jobs, say=print)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "seeds",
    [
        range(60, 75),
        pytest.param(range(60, 120), marks=pytest.mark.long),
        pytest.param(range(1000, 3000), marks=pytest.mark.soak),
    ],
    ids=len,
)
def test_promises_hold_where_packets_are_divided(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """The promises hold where a SUBSCRIBE or UNSUBSCRIBE of two filters is executed in two ticks."""
    monkeypatch.setattr(subscribing, "AT_ONCE", 1)
    found = failures(alternate(seeds.start, len(seeds)), say=print)
    assert not found, "\n".join(found)


def test_a_seed_decides_everything() -> None:
    """Two runs of the same seed are equal: otherwise a failure could not be replayed."""
    world = World(7, "volatile")
    assert world.run() == World(7, "volatile").run()
    assert world.events >= EVENTS
