"""`python -m tests.simulation --seed N --mode volatile -v` runs one seed and tells its story; `--seeds N` runs many."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.world import Mode, World

MODES: tuple[Mode, ...] = ("survives", "volatile")


def main() -> int:
    """Exit status: 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--seeds", type=int, default=50, help="run so many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mode", choices=MODES, help="default: both")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell the story of each run")
    arguments = parser.parse_args()
    seeds = (
        [arguments.seed] if arguments.seed is not None else range(arguments.first, arguments.first + arguments.seeds)
    )
    failed = 0
    began = time.monotonic()
    for seed in seeds:
        for mode in MODES if arguments.mode is None else (arguments.mode,):
            try:
                digest = World(seed, mode, print if arguments.verbose else None).run()
            except Exception as error:  # noqa: BLE001
                failed += 1
                if arguments.verbose:
                    traceback.print_exc()
                print(f"seed {seed} {mode}: {error}\n    python -m tests.simulation --seed {seed} --mode {mode} -v")
            else:
                if arguments.seed is not None:
                    print(f"seed {seed} {mode}: {digest}")
    print(f"{len(seeds)} seeds, {failed} failures, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
