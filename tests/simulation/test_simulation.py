"""Seeded worlds of workers, links and clients, without sockets (see tests.simulation.world). A failure names its seed:
`python -m tests.simulation --seed N --mode volatile -v` tells its story.
"""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import MODES
from tests.simulation.world import Mode, World

SEEDS = 50


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_promises_hold(seed: int, mode: Mode) -> None:
    """Nothing acknowledged is lost, QoS 2 once, order, one session, SUBACK promise, limits, books."""
    World(seed, mode).run()


def test_a_seed_decides_everything() -> None:
    """The same seed is the same run: otherwise a failure could not be replayed."""
    assert World(7, "volatile").run() == World(7, "volatile").run()


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_promises_hold_for_many_seeds(mode: Mode) -> None:
    """As above, for as long as one is willing to wait: `python -m tests.simulation --seeds N` runs any number."""
    for seed in range(SEEDS, SEEDS + 2000):
        try:
            World(seed, mode).run()
        except AssertionError as error:
            raise AssertionError(f"python -m tests.simulation --seed {seed} --mode {mode} -v: {error}") from error
