"""Seeded worlds of workers, links and clients, without sockets (see tests.simulation.world). A failure names its seed:
`python -m tests.simulation --seed N --mode volatile -v` tells its story.
"""

from __future__ import annotations

import pytest

from broker import subscribing
from tests.simulation.seeds import alternate, failures
from tests.simulation.world import EVENTS, World


@pytest.mark.parametrize(
    ("first", "seeds"), [(0, 1000), pytest.param(1000, 20_000, marks=pytest.mark.soak)], ids=["some", "many"]
)
def test_promises_hold(first: int, seeds: int) -> None:
    """Nothing acknowledged is lost, QoS 2 once, order, one session, SUBACK promise, limits, books."""
    found = failures(alternate(first, seeds), say=print)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("seeds", [range(60, 120), pytest.param(range(1000, 3000), marks=pytest.mark.soak)], ids=len)
def test_promises_hold_where_packets_are_divided(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SUBSCRIBE or UNSUBSCRIBE of two filters is carried out in two ticks."""
    monkeypatch.setattr(subscribing, "AT_ONCE", 1)
    found = failures(alternate(seeds.start, len(seeds)), say=print)
    assert not found, "\n".join(found)


def test_a_seed_decides_everything() -> None:
    """The same seed is the same run: otherwise a failure could not be replayed."""
    world = World(7, "volatile")
    assert world.run() == World(7, "volatile").run()
    assert world.events >= EVENTS
