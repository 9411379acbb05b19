"""Speed of Spark's reading: queries of a snapshot of a day, timed.

    python -m tests.benchmarks.analytics DIRECTORY [--messages 5000000] [--workers 4] [--block 100] [--payload 200]
                                         [--only make,all,few,heads,hour] [--rounds 3]

The snapshot is made once: messages of 100 first levels, evenly over 24 hours, `--block` of them in a block, with
payloads of JSON of which about half is random. Then, in local[2], `--rounds` times each:

    all     all columns are read and counted
    few     the same for number, time and topic
    heads   only the heads of blocks
    hour    all columns of one hour of one first level

Each line has rows per second; CPU seconds of the JVM and of Python per million rows; the peak memory of all processes
together (Pss); and how many of the blocks were read and decoded.

`tests.benchmarks.to_parquet` measures the job `parquet` on such a snapshot.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from leveldb_store.format.schema import StoredMessage
from tests.made_snapshot import archive_of, number_at, store_of, taken_of

START = 1_795_219_200  # 2026-11-21, UTC
DAY_SECONDS = 86_400
LEVELS = 100
BLOCK = 100
DEVICES = 1000
_SAMPLE_SECONDS = 1.0  # it costs milliseconds


def messages(worker: int, count: int, payload: int, block: int) -> Iterator[StoredMessage]:
    """Yield a day of one worker. The devices of a few first levels share a block."""
    chosen = random.Random(worker)
    for number in range(count):
        level = (number // block * 7 + chosen.randrange(4)) % LEVELS
        device = chosen.randrange(DEVICES)
        head = f'{{"device":{device},"sequence":{number},"value":{chosen.random():.4f},"data":"'
        data = head + chosen.randbytes(max(0, payload - len(head) - 2) // 2).hex()
        topic = f"fleet-{level}/device-{device}/state".encode()
        at = START + number * DAY_SECONDS / count
        yield StoredMessage(
            topic, f'{data:0<{payload - 2}}"}}'.encode(), number_at(at, worker), number % 3, publisher=f"d{device}"
        )


def records(worker: int, count: int, payload: int, block: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a store."""
    return archive_of(messages(worker, count, payload, block), "#", block=block)


def _made(path: Path, worker: int, count: int, payload: int, block: int) -> None:
    store_of(path, records(worker, count, payload, block))


def make(directory: Path, count: int, workers: int, payload: int, block: int) -> float:
    """Make the snapshot; return the seconds."""
    began = time.monotonic()
    each = count // workers
    with ProcessPoolExecutor(min(workers, len(os.sched_getaffinity(0))), get_context("spawn")) as pool:
        paths = [directory.with_name(f"{directory.name}.source-{worker}") for worker in range(workers)]
        list(pool.map(_made, paths, range(workers), *(itertools.repeat(value) for value in (each, payload, block))))
    taken_of(directory, paths)
    return time.monotonic() - began


# ---------------------------------------------------------------- CPU time and memory


def _tree(pid: int) -> list[int]:
    # a process and its descendants
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return found


def cpu_seconds() -> dict[str, float]:
    """Return the CPU seconds of this process and its descendants, ended ones included: `java` and the rest."""
    spent = {"java": 0.0, "python": 0.0}
    tick = os.sysconf("SC_CLK_TCK")
    for pid in _tree(os.getpid()):
        with contextlib.suppress(OSError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            fields = rest.split()
            is_java = name.endswith("(java")
            # the ended children of Java are Python processes, and count as Python
            spent["java" if is_java else "python"] += sum(map(int, fields[11:13])) / tick
            spent["python"] += sum(map(int, fields[13:15])) / tick
    return spent


def pss_bytes() -> int:
    """Return the memory of these processes, shared memory counted once."""
    total = 0
    for pid in _tree(os.getpid()):
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(rollup.partition("\nPss:")[2].split()[0]) * 1024
    return total


class Sampler(threading.Thread):
    """Samples the memory, and keeps the maximum."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Sample until `end` is called."""
        while not self._ended.wait(_SAMPLE_SECONDS):
            self.most = max(self.most, pss_bytes())

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self.join()


# ---------------------------------------------------------------- the queries

QUERIES = {
    "all": ("", ""),
    "few": ("number,time,topic", ""),
    "heads": ("origin,rule", "origin = 'archive'"),
    "hour": (
        "",
        "origin = 'archive' and first_level = 'fleet-42' and time >= '2026-11-21 07:00:00' "
        "and time < '2026-11-21 08:00:00'",
    ),
}


def measure(directory: Path, names: list[str], rounds: int) -> None:
    """Print a line for each query and round."""
    from pyspark.sql import SparkSession

    import spark_etl

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name in ("host", "bindAddress"):
        builder = builder.config(f"spark.driver.{name}", "127.0.0.1")
    spark = (
        builder.config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark_etl.register(spark)
    for name in names:
        columns, where = QUERIES[name]
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as metrics:
                source = spark.read.format("mqttd").option("metrics", metrics)
                if columns:
                    source = source.option("columns", columns)
                rows = source.load(str(directory))
                sampler = Sampler()
                sampler.start()
                before, began = cpu_seconds(), time.monotonic()
                counted = (rows.where(where) if where else rows).count()
                seconds, after = time.monotonic() - began, cpu_seconds()
                sampler.end()
                _print(name, counted, seconds, {kind: after[kind] - before[kind] for kind in after}, sampler.most)
                _print_read(Path(metrics))
    spark.stop()


def _print(name: str, rows: int, seconds: float, cpu: dict[str, float], memory: int) -> None:
    per = {kind: spent * 1e6 / rows if rows else 0.0 for kind, spent in cpu.items()}
    print(
        f"{name:6} {rows:>10,} rows {seconds:7.2f} s {rows / seconds:>12,.0f} rows/s; CPU us/row: JVM "
        f"{per['java']:.2f}, Python {per['python']:.2f}; {memory / 2**20:,.0f} MiB; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def _print_read(directory: Path) -> None:
    total: dict[str, int] = {}
    for file in directory.glob("*.json"):
        for name, value in json.loads(file.read_text()).items():
            if isinstance(value, int) and name != "store":
                total[name] = total.get(name, 0) + value
    print(f"       {', '.join(f'{name} {value:,}' for name, value in total.items())}", flush=True)


def main() -> None:
    """See the top."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--block", type=int, default=BLOCK)
    parser.add_argument("--payload", type=int, default=200)
    parser.add_argument("--only", default=",".join(("make", *QUERIES)))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    names = given.only.split(",")
    if "make" in names and not given.directory.exists():
        seconds = make(given.directory, given.messages, given.workers, given.payload, given.block)
        size = sum(file.stat().st_size for file in given.directory.rglob("*") if file.is_file())
        print(f"made {given.messages:,} messages in {seconds:.0f} s: {size / 2**20:,.0f} MiB", flush=True)
    measure(given.directory, [name for name in names if name in QUERIES], given.rounds)


if __name__ == "__main__":
    main()
