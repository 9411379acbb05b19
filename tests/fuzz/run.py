"""``make fuzz``: mutate for some time, keep what opens a new way through the code, write down what breaks.

Two parts share the time: single packets against the codec (`tests.fuzz.targets`), and scripts of several clients
against workers without sockets (`tests.fuzz.stage`). A find lies in tests/fuzz/corpus from then on, a script cut down
to what it takes (`tests.fuzz.minimise`); ``test_corpus.py`` replays all of these. What is "new" is judged from outside:
a packet with an outcome (packets, errors) no other of that first byte had; a script that shows a packet with a reason
code, or moves a counter, in a company that no other did.

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
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import targets
from tests.fuzz.grammar import Grammar, vary
from tests.fuzz.minimise import failure, minimise
from tests.fuzz.mutation import mutate
from tests.fuzz.stage import Script, Stage

CORPUS = Path(__file__).with_name("corpus")
SESSIONS = CORPUS / "sessions"
CORPUS_INPUTS_MAX = 4000  # in memory; beyond it, a new input takes the place of an old one
INPUT_BYTES_MAX = 100_000
FINDS_MAX = 20
_SHARED_BYTES = 1 << 22


def corpus() -> Path:
    """Where finds are put: that of the repository, when this is a copy of it (`make fuzz-asan`)."""
    return Path(os.environ.get("FUZZ_CORPUS") or CORPUS)


def signature(data: bytes) -> tuple[object, ...]:
    """What distinguishes an input: its first byte and what becomes of it in each version."""
    return (data[:1], *(tuple(targets.stream(data, len(data), version)) for version in targets.VERSIONS))


def keep(name: str, data: bytes) -> Path:
    """Write a find down."""
    path = corpus() / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    return path


def keep_script(script: Script) -> Path:
    """Write a script down that broke something, cut down."""
    text = minimise(script, lambda line: print(line, flush=True)).to_json()
    path = corpus() / "sessions" / f"find-{hashlib.sha256(text.encode()).hexdigest()[:12]}.script"
    path.write_text(text)
    return path


class LastInput:
    """The input that is being tried, in memory that parent and child share."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _SHARED_BYTES)

    def write(self, data: bytes) -> None:
        """Called before an input is tried."""
        self.memory[: 4 + len(data)] = struct.pack("<I", len(data)) + data

    def read(self) -> bytes:
        """Called by the parent after a crash."""
        (size,) = struct.unpack_from("<I", self.memory)
        return bytes(self.memory[4 : 4 + size])


def fuzz_packets(seconds: float, seed: int, last: LastInput) -> int:
    """Fuzz all targets of single packets for this long; return the number of finds."""
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
    print(f"packets, seed {seed}: {runs} inputs, {len(seen)} different outcomes, {finds} finds", flush=True)
    return finds


def fuzz_sessions(seconds: float, seed: int, last: LastInput) -> int:
    """Play scripts for this long, new ones and variations of those that showed something; return the number of finds.

    Script n of a seed depends on the scripts before it only by what they showed: a find is replayed from its file.
    """
    kept = [Script.from_json(path.read_text()) for path in sorted(SESSIONS.glob("*.script"))]
    seen: set[object] = set()
    finds = runs = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and finds <= FINDS_MAX:
        rng = random.Random(f"{seed}/{runs}")
        varied = kept and rng.random() < 0.5
        script = vary(rng, rng.choice(kept), kept) if varied else Grammar(rng).script()
        runs += 1
        last.write(script.to_json().encode())
        try:
            shown = Stage(script).play()
        except Exception:  # noqa: BLE001  the invariant is that none comes
            finds += 1
            print(f"script {seed}/{runs - 1}: {failure(script)}", flush=True)
            print(f"  in {keep_script(script)}", flush=True)
            continue
        # pairs of what it shows: that a drop happened, and that a v5 client was told so, is more than the two alone
        marks = {(script.workers, a, b) for a in shown for b in shown if str(a) <= str(b)}
        if not marks <= seen:
            seen |= marks
            if len(kept) < CORPUS_INPUTS_MAX:
                kept.append(script)
            else:
                kept[rng.randrange(len(kept))] = script
    print(f"sessions, seed {seed}: {runs} scripts, {len(kept)} showed something new, {finds} finds", flush=True)
    return finds


PARTS: dict[str, tuple[Callable[[float, int, LastInput], int], Callable[[bytes], Path]]] = {
    "packets": (fuzz_packets, lambda data: keep("crash", data)),
    "sessions": (fuzz_sessions, lambda data: keep_script(Script.from_json(data.decode()))),
}


def run_part(name: str, seconds: float, seed: int) -> int:
    """One part in a child; 0: nothing was found."""
    fuzz, keep_crash = PARTS[name]
    last = LastInput()
    child = os.fork()
    if child == 0:
        os._exit(2 if fuzz(seconds, seed, last) else 0)
    _, status = os.waitpid(child, 0)
    if status == 0 or os.waitstatus_to_exitcode(status) == 2:
        return os.waitstatus_to_exitcode(status)
    data = last.read()
    print(f"crash, status {os.waitstatus_to_exitcode(status)}\n  input {data[:4000]!r}\n  in {keep_crash(data)}")
    return 1


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.run", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="makes a run again; a new one each time by default")
    parser.add_argument("--part", choices=PARTS, action="append", help="one part alone; all, in turn, by default")
    arguments = parser.parse_args()
    faulthandler.enable()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    parts = arguments.part or list(PARTS)
    print(f"fuzzing {', '.join(parts)} for {arguments.seconds:g} s, seed {seed}", flush=True)
    return max(run_part(name, arguments.seconds / len(parts), seed) for name in parts)


if __name__ == "__main__":
    sys.exit(main())
