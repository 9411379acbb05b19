"""`python -m tests.simulation --seed N --mode volatile -v` runs one seed and prints it; `--seeds N` runs many."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.seeds import MODES, alternate, failures
from tests.simulation.world import World


def main() -> int:
    """Run the command line; exit status 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--seeds", type=int, default=50, help="run so many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mode", choices=MODES, help="default: both for --seed, each seed in one of them for --seeds")
    parser.add_argument("--jobs", type=int, default=0, help="processes; default: one for each usable core")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell the story of a run")
    arguments = parser.parse_args()
    began = time.monotonic()
    if arguments.seed is not None:
        failed = 0
        for mode in MODES if arguments.mode is None else (arguments.mode,):
            try:
                world = World(arguments.seed, mode, print if arguments.verbose else None)
                print(f"seed {arguments.seed} {mode}: {world.run()}, {world.events} events")
            except Exception:  # noqa: BLE001 (the traceback is the message)
                failed += 1
                traceback.print_exc()
        return 1 if failed else 0
    runs = list(alternate(arguments.first, arguments.seeds))
    if arguments.mode is not None:
        runs = [(seed, arguments.mode) for seed, _ in runs]
    failed = len(failures(runs, arguments.jobs, lambda text: print(text, flush=True)))
    print(f"{len(runs)} seeds, {failed} failures, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
