"""`make test` and `make test-all`: pytest twice, once in several processes, then for what has to be alone.

    python -m tests.run [--long] [--jobs N] [arguments of pytest]

Without `--long` it runs all tests but those marked `long` or `soak`, with it those marked `long`. Tests marked `alone`
measure the machine, or need all of it: they run one after the other when the rest is through. Many tests wait (for
MQTT's seconds, for a disk, for processes that start): so there are more processes than cores (tests/groups.py says what
stays together).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

from shards.cores import usable_cores
from tests.broker_process import ROOT

JOBS_PER_CORE = 1.5

JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""None of Spark's lives long enough for its second compiler to pay, which took half of the processor time."""


def commands(is_long: bool, jobs: int, arguments: list[str]) -> list[list[str]]:
    """The calls of pytest: together, alone."""
    which = "long and not soak" if is_long else "not long and not soak"
    together = ["-n", str(jobs), "--dist", "loadscope", "--no-loadscope-reorder"]
    return [
        [sys.executable, "-m", "pytest", "-m", f"{which} and not alone", *together, *arguments],
        [sys.executable, "-m", "pytest", "-m", f"{which} and alone", *arguments],
    ]


def environment() -> dict[str, str]:
    """Of all tests: thousands of interpreters start, each of which would compile all of mqttd without its bytecode."""
    inherited = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"SPARK_SUBMIT_OPTS": JVM, **inherited}


def status_of(statuses: list[int]) -> int:
    """The first that is a failure. Arguments may choose tests of one kind only, not none at all."""
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
