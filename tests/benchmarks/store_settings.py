"""The effect of each setting of `[leveldb]`: `python -m tests.benchmarks.store_settings [DIRECTORY]`.

One store, filled as a worker fills it (a block per tick, several indexes), opened again, read by sessions that were
offline, and emptied; once for each value of each setting, the others at their defaults. Each run is in a separate
process, to measure its memory. Seconds are CPU seconds of all threads, compaction included: a busy machine changes
them little. The table is Markdown; docs/store.md has one.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from leveldb_store.engine.database import DatabaseOptions
from leveldb_store.store import LevelStore
from tests.contract.test_stores import Writer
from tests.waiting import wait_until

MESSAGES = 200_000
PER_TICK = 20
INDEXES = 50
PAYLOAD_BYTES = 400
UNDER_WAY_MAX = 64  # ticks that wait for the disk at the same time
SECONDS_MAX = 120.0
RUNS: dict[str, list[object]] = {
    "write_buffer_bytes": [1 << 20, 4 << 20, 16 << 20, 64 << 20],
    "block_cache_bytes": [1 << 20, 8 << 20, 64 << 20],
    "open_files_max": [74, 256, 2000],
    "bloom_bits": [0, 10, 16],
    "compression": [None, "snappy"],
}
COLUMNS = ("write, CPU s", "written MB", "on disk MB", "start, CPU s", "read, CPU s", "empty, CPU s", "memory MB")


def payload(number: int, dice: random.Random) -> bytes:
    """Return a payload like those of devices: JSON that compresses to about half."""
    text = json.dumps({"number": number, "at": 1795190000000 + number, "unit": "celsius", "site": "plant-7"})
    return text.encode().ljust(PAYLOAD_BYTES // 2) + dice.randbytes(PAYLOAD_BYTES // 2)


def filled(path: Path, options: DatabaseOptions) -> None:
    """Write messages tick by tick; several ticks wait for the disk, those that wait together share one fdatasync."""
    store = LevelStore(path, options=options)
    writer = Writer(store)
    dice = random.Random(1)
    for first in range(0, MESSAGES, PER_TICK):
        names = tuple(b"site/%d" % dice.randrange(INDEXES) for _ in range(3))
        records = [(payload(first + n, dice), (names[n % 3],)) for n in range(PER_TICK)]
        ticket = writer.append(*records)
        wait_until(lambda ticket=ticket: store.collect() >= ticket - UNDER_WAY_MAX, SECONDS_MAX, "it is written")  # type: ignore[misc]
    wait_until(lambda: store.collect() >= ticket, SECONDS_MAX, "it is written")
    store.close()


def read(store: LevelStore) -> None:
    """Read every session's backlog."""
    for name in store.names():
        after = 0
        while True:
            batch = store.read(name, after, 1 << 18)
            if not batch.count:
                break
            after = batch.last


def emptied(store: LevelStore) -> None:
    """Acknowledge and delete everything."""
    for name in store.names():
        store.trim(name, store.last_position)
    store.put(b"\xffmark", b"")
    ticket = store.flush()
    wait_until(lambda: store.collect() >= ticket, SECONDS_MAX, "it is written")
    wait_until(lambda: not store._writer._has_tidying(), SECONDS_MAX, "it is written")


def run(path: Path, options: DatabaseOptions) -> list[float]:
    """Return one row of the table."""

    def timed(what: Callable[[], object]) -> float:
        began = time.process_time()
        what()
        return time.process_time() - began

    def written() -> int:
        found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(found["write_bytes"])

    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    filling = timed(lambda: filled(path, options))
    size = sum(file.stat().st_size for file in path.iterdir())
    bytes_written = written()
    opened: list[LevelStore] = []
    starting = timed(lambda: opened.append(LevelStore(path, options=options)))
    store = opened[0]
    reading = timed(lambda: read(store))
    emptying = timed(lambda: emptied(store))
    store.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss
    return [filling, bytes_written / 1e6, size / 1e6, starting, reading, emptying, memory / 1e3]


def main(arguments: list[str]) -> int:
    """Print the table. DIRECTORY: on the disk to measure."""
    if arguments[:1] == ["--run"]:
        options = replace(DatabaseOptions(), **json.loads(arguments[2]))
        print(json.dumps(run(Path(arguments[1]), options)))
        return 0
    parent = arguments[0] if arguments else None
    print(f"| setting | {' | '.join(COLUMNS)} |")
    print(f"|---|{'---:|' * len(COLUMNS)}")
    for setting, values in RUNS.items():
        for value in values:
            with tempfile.TemporaryDirectory(dir=parent) as directory:
                command = [sys.executable, "-m", __spec__.name, "--run", f"{directory}/0", json.dumps({setting: value})]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            cells = [f"{cell:.2f}" if cell < 10 else f"{cell:.0f}" for cell in json.loads(done.stdout)]
            print(f"| `{setting} = {json.dumps(value)}` | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
