"""Many runs, in as many processes as there are cores."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterable, Iterator

from shards.cores import usable_cores
from tests.simulation.world import Mode, World

MODES: tuple[Mode, ...] = ("survives", "volatile")


def alternate(first: int, seeds: int) -> Iterator[tuple[int, Mode]]:
    """Return each seed with one of the modes in turn."""
    return ((seed, MODES[seed % 2]) for seed in range(first, first + seeds))


def attempt(run: tuple[int, Mode]) -> str | None:
    """Return the violation in a run and the command that replays it; None: no violation."""
    seed, mode = run
    try:
        World(seed, mode).run()
    except Exception as error:  # noqa: BLE001 (whatever it is, the seed must be named)
        what = f"{type(error).__name__}: {error}"
        return f"seed {seed} {mode}: {what}\n    python -m tests.simulation --seed {seed} --mode {mode} -v"
    return None


def failures(runs: Iterable[tuple[int, Mode]], jobs: int = 0, say: Callable[[str], None] = lambda _: None) -> list[str]:
    """Run them in as many processes as there are usable cores (or `jobs`); return failures, and `say` each at once."""
    found = []
    rarely = (200_000, 10, 10)  # a run keeps nearly all its objects: the collector would traverse them for nothing
    with multiprocessing.get_context("fork").Pool(jobs or usable_cores(), gc.set_threshold, rarely, 50) as pool:
        for failure in pool.imap_unordered(attempt, runs):
            if failure is not None:
                say(failure)
                found.append(failure)
    return found
