"""Every input that once was a find, and a short seeded run: ``make test`` and ``make asan`` fuzz a little too."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.mutation import mutate
from tests.fuzz.run import CORPUS
from tests.fuzz.targets import TARGETS, seeds


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.bin")), ids=lambda path: path.stem)
def test_former_finds(path: Path) -> None:
    """Inputs of the corpus keep the invariant of every target."""
    for target in TARGETS.values():
        target(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_every_prefix_of_every_seed(name: str) -> None:
    """Each sane packet, cut at every byte."""
    for data in seeds():
        for size in range(len(data) + 1):
            TARGETS[name](data[:size])


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("seed", range(4))
def test_short_run(name: str, seed: int) -> None:
    """Two thousand mutations of a fixed seed."""
    rng, inputs = random.Random(seed), seeds()
    for _ in range(2000):
        data = mutate(rng, inputs)
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error
