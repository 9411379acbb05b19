"""Retention at full ingest: the disk space of an archive beyond the limit of its rule, and the speed of reading it.

    python -m tests.benchmarks.retention DIRECTORY [--bytes 512MiB] [--times 6] [--message 1000] [--block 65536]

A store of one worker archives messages of random bytes as fast as its writer takes them, until `--times` the bytes of
the rule are written. Every 50 ms the blocks of all its files are added up. Then it is read from its start to its end by
pages of 64 KB. `--block 1`: a commit for each message, as a slow publisher causes them.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from broker.config.archive import size_of
from leveldb_store.archive.archive import ArchiveOptions, ArchiveTable
from leveldb_store.engine.disk_reserve import RESERVE_NAMES
from leveldb_store.store import LevelStore
from pyx.protocol.message import Message

_SAMPLE_SECONDS = 0.05
_PAGE_BYTES = 65536
_STAT_BLOCK_BYTES = 512
_POOL = 4096
_HOURS = 24 * 3_600_000


class Sampler(threading.Thread):
    """Samples the size of all files of a directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.sizes: list[int] = []
        self._path = path
        self._stop_it = threading.Event()

    def run(self) -> None:
        """Sample until `end` is called."""
        while not self._stop_it.wait(_SAMPLE_SECONDS):
            self.sizes.append(on_disk(self._path))

    def end(self) -> None:
        """Stop sampling."""
        self._stop_it.set()
        self.join()


def on_disk(path: Path) -> int:
    """Return the bytes of all files; a file that is removed meanwhile counts 0."""
    total = 0
    for entry in os.scandir(path):
        try:
            total += 0 if entry.name in RESERVE_NAMES else entry.stat().st_blocks * _STAT_BLOCK_BYTES
        except FileNotFoundError:
            continue
    return total


def fill(store: LevelStore, size: int, message_bytes: int, block_bytes: int, pending_max: int = 16 << 20) -> int:
    """Archive this number of bytes; return the number of messages."""
    archiver = store.archive.archiver
    payloads = [os.urandom(message_bytes) for _ in range(_POOL)]
    number = max(store.archive.highest, time.time_ns() // 1000 << 8)
    begun = committed = archiver.record_bytes
    count = 0
    while archiver.record_bytes - begun < size:
        number = max(number + 256, time.time_ns() // 1000 << 8)
        archiver.add(
            Message.create(b"sensor/%d" % (count % 100), payloads[count % _POOL], number=number, publisher="p")
        )
        count += 1
        if archiver.record_bytes - committed >= block_bytes:
            committed = archiver.record_bytes
            store.append_archived()
            store.flush(False)
            store.collect()
            while archiver.pending_bytes > pending_max:
                select.select([store.fileno()], [], [])
                store.collect()
    store.append_archived()
    ticket = store.flush(False)
    while store.collect() < ticket:
        select.select([store.fileno()], [], [])
    return count


def read_all(store: LevelStore, filters: list[bytes]) -> tuple[int, float, float]:
    """Return (messages, seconds, the longest page in seconds)."""
    began, after, messages, longest = time.perf_counter(), 0, 0, 0.0
    while True:
        page_began = time.perf_counter()
        page = store.archive.read(filters, after, _PAGE_BYTES, with_gaps=True)
        longest = max(longest, time.perf_counter() - page_began)
        messages += len(page.messages)
        after = page.up_to
        if page.is_end:
            return messages, time.perf_counter() - began, longest


def measure(directory: Path, size: int, times: float, message_bytes: int, block_bytes: int) -> dict[str, Any]:
    """Measure once; the store is left in the directory."""
    store = LevelStore(directory, archive=ArchiveOptions("e", 0, (ArchiveTable(b"#", _HOURS, size),)))
    sampler = Sampler(directory)
    fill(store, size, message_bytes, block_bytes)
    sampler.start()
    began, cpu = time.perf_counter(), time.process_time()
    count = fill(store, int(size * (times - 1)), message_bytes, block_bytes)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    sampler.end()
    shares = sorted(each / size for each in sampler.sizes)
    held = store.archive.held_bytes
    messages, read_seconds, longest = read_all(store, [b"#"])
    store.close()
    return {
        "bytes": size,
        "written_mb_per_s": round(size * (times - 1) / seconds / 1e6, 1),
        "messages_per_s": round(count / seconds),
        "cpu_share": round(cpu / seconds, 2),
        "samples": len(shares),
        "disk_min": round(shares[0], 3),
        "disk_median": round(statistics.median(shares), 3),
        "disk_p99": round(shares[int(len(shares) * 0.99)], 3),
        "disk_max": round(shares[-1], 3),
        "held_share": round(held / size, 3),
        "read_messages_per_s": round(messages / read_seconds),
        "read_page_max_ms": round(longest * 1000, 2),
    }


def main() -> int:
    """Print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="for the store; empty")
    parser.add_argument("--bytes", default="512MiB", help="what the rule allows")
    parser.add_argument("--times", type=float, default=6, help="how often that goes through it")
    parser.add_argument("--message", type=int, default=1000, help="bytes of a payload")
    parser.add_argument("--block", type=int, default=65536, help="bytes of a commit")
    given = parser.parse_args()
    size = size_of(given.bytes)
    assert isinstance(size, int)
    print(json.dumps(measure(given.directory, size, given.times, given.message, given.block)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
