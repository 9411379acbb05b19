"""``make fuzz``: mutate for some time, keep what opens a new way through the code, write down what breaks.

A find lies in tests/fuzz/corpus under the name of its target; ``test_corpus.py`` replays all of these from then on.
What is "new" is judged from outside: an input with an outcome (packets, errors) no other input of that first byte had.

The targets run in a child process, which leaves each input in shared memory before it tries it: when a crash takes the
child away, the parent still knows what did it.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import mmap
import os
import random
import struct
import sys
import time
from pathlib import Path

from tests.fuzz import targets
from tests.fuzz.mutation import mutate

CORPUS = Path(__file__).with_name("corpus")
CORPUS_INPUTS_MAX = 4000  # in memory; beyond it, a new input takes the place of an old one
INPUT_BYTES_MAX = 100_000
FINDS_MAX = 20


def signature(data: bytes) -> tuple[object, ...]:
    """What distinguishes an input: its first byte and what becomes of it in each version."""
    return (data[:1], *(tuple(targets.stream(data, len(data), version)) for version in targets.VERSIONS))


def keep(name: str, data: bytes) -> Path:
    """Write a find down."""
    path = CORPUS / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    return path


class LastInput:
    """The input that is being tried, in memory that parent and child share."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1 << 20)

    def write(self, data: bytes) -> None:
        """Called before an input is tried."""
        self.memory[: 4 + len(data)] = struct.pack("<I", len(data)) + data

    def read(self) -> bytes:
        """Called by the parent after a crash."""
        (size,) = struct.unpack_from("<I", self.memory)
        return bytes(self.memory[4 : 4 + size])


def fuzz(seconds: float, seed: int, last: LastInput) -> int:
    """Fuzz all targets for this long; return the number of finds."""
    rng = random.Random(seed)
    inputs = targets.seeds() + [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]
    seen = {signature(data) for data in inputs}
    finds = runs = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and finds <= FINDS_MAX:
        batch = [mutate(rng, inputs)[:INPUT_BYTES_MAX] for _ in range(500)]
        for data in batch:
            last.write(data)
            for name, target in targets.TARGETS.items():
                try:
                    target(data)
                except Exception as error:  # noqa: BLE001  the invariant is that none comes
                    finds += 1
                    print(f"{name}: {type(error).__name__}: {error}\n  input {data.hex()}\n  in {keep(name, data)}")
            runs += 1
            if (mark := signature(data)) not in seen:
                seen.add(mark)
                if len(inputs) < CORPUS_INPUTS_MAX:
                    inputs.append(data)
                else:
                    inputs[rng.randrange(len(inputs))] = data
    print(f"seed {seed}: {runs} inputs, {len(seen)} different outcomes, {finds} finds", flush=True)
    return finds


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.run", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="makes a run again; a new one each time by default")
    arguments = parser.parse_args()
    faulthandler.enable()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"fuzzing {', '.join(targets.TARGETS)} for {arguments.seconds:g} s, seed {seed}", flush=True)
    last = LastInput()
    child = os.fork()
    if child == 0:
        os._exit(1 if fuzz(arguments.seconds, seed, last) else 0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        data = last.read()
        print(f"crash by signal {os.WTERMSIG(status)}\n  input {data.hex()}\n  in {keep('crash', data)}")
        return 1
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
