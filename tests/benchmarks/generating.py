"""python -m tests.benchmarks.generating: the rate and the punctuality of one process of flood.

One core generates; on another one a sink reads, counts and acknowledges in compiled code. Measured are messages per
second at QoS 0 and 1, and the lateness of scheduled messages. Every sent message must reach the sink.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from loadtest import processor
from loadtest.figures import SharedFigures
from loadtest.generator import Load
from loadtest.run import Result, run
from loadtest.scenario import scenario
from loadtest.target import Target
from tests.benchmarks.sink import Sink

_SLICE_NS: Final = 10_000_000
_CLIENTS: Final = 50
_LAST_SECONDS: Final = 10.0


class Row(NamedTuple):
    """A load, the figure measured under it, and its target."""

    name: str
    qos: int
    rate: float
    figure: str
    wanted: str


ROWS: Final = (
    Row("QoS 0, as fast as it goes", 0, 0, "sent_per_s", ">= 5,000,000"),
    Row("QoS 1, as fast as acks come", 1, 0, "acknowledged_per_s", ">= 500,000"),
    Row("QoS 0, 20,000 msg/s", 0, 20_000, "lateness_p50_us", "< 50"),
    Row("QoS 1, 20,000 msg/s", 1, 20_000, "lateness_p50_us", "< 50"),
)


def sink(listener: socket.socket, answers: Connection, core: int) -> None:
    """Run a sink: accept connections and count until the number of sent messages arrives, then answer the count."""
    os.sched_setaffinity(0, {core})
    shared = SharedFigures(1, 1)
    into = Sink(
        shared.row(0), shared.deliveries, shared.deliveries, shared.sent, [b"t"], [20],
        pairs=False, group=False, strict=False,
    )  # fmt: skip
    listener.setblocking(False)
    while not answers.poll():
        try:
            while True:
                one, _ = listener.accept()
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                into.accept(one.detach())
        except BlockingIOError:
            into.run(time.monotonic_ns() + _SLICE_NS)
    sent, until = answers.recv(), time.monotonic() + _LAST_SECONDS
    while into.received < sent and time.monotonic() < until:  # data still in the generator's kernel buffers
        into.run(time.monotonic_ns() + _SLICE_NS)
    answers.send(into.received)


@contextmanager
def sinking(core: int) -> Iterator[tuple[int, int, Connection]]:
    """Yield the sink's port, its pid, and a connection that takes the number of sent messages and returns the count."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=sink, args=(listener, theirs, core), daemon=True)
    process.start()
    port = listener.getsockname()[1]
    listener.close()
    try:
        yield port, process.pid or 0, ours
    finally:
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def once(row: Row, seconds: float, cores: tuple[int, int]) -> Result:
    """Run once; raise AssertionError if a message did not arrive."""
    os.sched_setaffinity(0, {cores[0]})
    with sinking(cores[1]) as (port, pid, told):
        used = processor.seconds(pid)
        result = run(
            Load(
                Target("127.0.0.1", port), scenario("pub", _CLIENTS, None, None, "t/%i", "g-"), (64,), row.qos,
                window=1000, lag=0, rate=row.rate,
            ),
            processes=1, seconds=seconds, warmup=0.5,
        )  # fmt: skip
        used = processor.seconds(pid) - used
        told.send(result.figures["total_sent"])
        came = told.recv()
    assert came == result.figures["total_sent"], f"{result.figures['total_sent']} sent, {came} came"
    result.figures["sink_percent"] = 100 * used / (seconds + 0.5)
    return result


def main() -> None:
    """Print the medians of each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("one core generates, and another takes: this machine has one")
    print("| 64 bytes, 50 connections, one process | wanted | median | of |")
    print("|---|---:|---:|---|")
    for row in ROWS:
        runs = [once(row, options.seconds, (cores[-1], cores[0])).figures for _ in range(options.runs)]
        values = [each[row.figure] for each in runs]
        said = f"| {row.name}: {row.figure} | {row.wanted} | {statistics.median(values):,.0f} | "
        said += ", ".join(f"{each:,.0f}" for each in sorted(values))
        if row.rate:
            p99 = statistics.median(each["lateness_p99_us"] for each in runs)
            said += f"; p99 {p99:,.0f} us"
        said += f"; the sink had {statistics.median(each['sink_percent'] for each in runs):.0f} % of its core |"
        print(said, flush=True)


if __name__ == "__main__":
    main()
