"""Runner of `make test` and `make test-all`: pytest in several processes, then pytest for the tests that run alone.

    python -m tests.run [--long] [--jobs N] [arguments of pytest]

Without `--long` it runs all tests but those marked `long` or `soak`, with it those marked `long`. Tests marked `alone`
measure the machine, or need all of it: they run one after the other when the others have ended. Many tests wait (for
MQTT's seconds, a disk, starting processes), so there are more processes than cores (tests/groups.py defines the groups
of tests that stay together).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

from shards.cores import usable_cores
from tests.broker_process import ROOT

JOBS_PER_CORE = 2

JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Spark's JVMs: they end too early for the second compiler to pay, which took half of the processor time."""


def commands(is_long: bool, jobs: int, arguments: list[str]) -> list[list[str]]:
    """Return the two calls of pytest: for tests in several processes, for tests alone."""
    which = "long and not soak" if is_long else "not long and not soak"
    together = ["-n", str(jobs), "--dist", "loadscope", "--no-loadscope-reorder"]
    return [
        [sys.executable, "-m", "pytest", "-m", f"{which} and not alone", *together, *arguments],
        [sys.executable, "-m", "pytest", "-m", f"{which} and alone", *arguments],
    ]


def environment() -> dict[str, str]:
    """Return the environment of all tests, with bytecode: else thousands of interpreters would compile mqttd anew."""
    inherited = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"SPARK_SUBMIT_OPTS": JVM, **inherited}


def status_of(statuses: list[int]) -> int:
    """Return the first failure, else 0. One run may collect no tests, but not both."""
    nothing = int(pytest.ExitCode.NO_TESTS_COLLECTED)
    if all(each == nothing for each in statuses):
        return nothing
    return next((each for each in statuses if each not in (0, nothing)), 0)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run", allow_abbrev=False)
    parser.add_argument("--long", action="store_true", help="run those marked `long` instead")
    parser.add_argument("--jobs", type=int, default=max(2, int(usable_cores() * JOBS_PER_CORE)), help="processes")
    own, arguments = parser.parse_known_args(words)
    statuses = []
    for command in commands(own.long, own.jobs, arguments):
        print("==", *command[1:], flush=True)
        statuses.append(subprocess.run(command, cwd=ROOT, env=environment()).returncode)
    return status_of(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
