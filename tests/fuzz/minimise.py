"""Cuts a script that fails down to what it takes: steps, then packets, then their bytes, while it fails alike.

Each try runs in a forked child, so that a crash is a failure like any other, and one that never ends has a limit.
"""

from __future__ import annotations

import faulthandler
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from tests.fuzz.stage import Script, Stage
from tests.fuzz.watcher import split

TRY_CPU_SECONDS = 20
TRY_SECONDS = 200
"""A child that waits uses no CPU time: one that is forked while another thread has a lock waits for it for ever."""
MINIMISE_SECONDS = 120.0
BYTES_MAX = 2000


def failure(script: Script) -> str:
    """How the script fails in this process; "" if all its invariants hold."""
    try:
        Stage(script).play()
    except Exception as error:  # noqa: BLE001  whatever comes is a find
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {os.path.basename(where.filename)}:{where.name}: {error}"
    return ""


def failure_of_child(script: Script) -> str:
    """The same in a child: a crash is named by its signal or exit status."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        faulthandler.disable()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (TRY_CPU_SECONDS, TRY_CPU_SECONDS))
        signal.alarm(TRY_SECONDS)
        os.write(writing, failure(script).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if status:
        return f"crash: {f'signal {os.WTERMSIG(status)}' if os.WIFSIGNALED(status) else f'status {status >> 8}'}"
    return told


def kind_of(told: str) -> str:
    """What makes two failures the same: without the numbers and bytes in them."""
    if "Traceback" in told:
        told = told.rstrip().splitlines()[-1] + re.sub(r"(?s).*, in ", " in ", told).splitlines()[0]
    return re.sub(r"[0-9a-f]{2,}|\d+", "N", told)[:70]


def without(parts: Sequence[Any], fails: Callable[[list[Any]], bool]) -> list[Any]:
    """The fewest of the parts, in order, that still fail (delta debugging: halves, quarters, ... single ones)."""
    left = list(parts)
    size = max(1, len(left) // 2)
    while size:
        at = 0
        while at < len(left):
            tried = left[:at] + left[at + size :]
            if fails(tried):
                left = tried
            else:
                at += size
        size //= 2
    return left


def minimise(script: Script, say: Callable[[str], None] = lambda _: None) -> Script:
    """A smaller script that fails in the same way."""
    wanted = kind_of(failure_of_child(script))
    deadline = time.monotonic() + MINIMISE_SECONDS

    def fails(steps: list[Any]) -> bool:
        if time.monotonic() > deadline:
            return False
        return kind_of(failure_of_child(Script(script.workers, script.house, steps))) == wanted

    say(f"minimising {len(script.steps)} steps: {wanted}")
    steps = without(script.steps, fails)
    for cut in (packets_of, bytes_of):
        for at, step in enumerate(steps):
            if step[0] != "send":
                continue

            def still(parts: list[bytes], at: int = at, step: Any = step) -> bool:
                return fails([*steps[:at], ("send", step[1], b"".join(parts).hex()), *steps[at + 1 :]])

            steps[at] = ("send", step[1], b"".join(without(cut(bytes.fromhex(step[2])), still)).hex())
    return Script(script.workers, script.house, steps)


def packets_of(data: bytes) -> list[bytes]:
    """Its packets, and what is left behind the last."""
    ends = [0, *(end for _, _, end in split(data)), len(data)]
    return [data[begin:end] for begin, end in pairwise(ends) if begin < end]


def bytes_of(data: bytes) -> list[bytes]:
    """Its bytes; what is long is left alone."""
    return [data[at : at + 1] for at in range(len(data))] if len(data) < BYTES_MAX else [data]


def main(path: str) -> int:
    """python -m tests.fuzz.minimise FILE: prints the smaller script."""
    with open(path, encoding="utf-8") as file:
        script = Script.from_json(file.read())
    print(failure_of_child(script), file=sys.stderr)
    print(minimise(script, lambda line: print(line, file=sys.stderr)).to_json(), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
