"""Nanoseconds per match and bytes per filter, at 1,000, 100,000 and 1,000,000 filters of 30 bytes.

    python -m tests.benchmarks.run_subscriptions [filters ...]

1,000 clients (at 1,000 filters 10) share the filters evenly. "match": a topic drawn at random from as many as there
are filters, so that neither the result cache nor the processor's caches help at a million (at 1,000 the result cache
holds all). "none": the same with a last byte that no filter has. "cached": one of 500 topics matched before. Bytes are
the growth of the process's PSS (/proc/self/smaps_rollup) divided by the filters: Filter, subscriber, the session's
Membership, hash table, trie and malloc's overhead. "slowest": of a single hold + add. Times are the best of three
passes over the same topics. Each shape is measured in a separate process.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.benchmarks.bench_subscriptions import Population

LENGTH = 30
MATCHES = 300_000
PASSES = 3

#: name -> (filter i, a topic of 30 bytes that it matches)
SHAPES: dict[str, tuple[Callable[[int], bytes], Callable[[int], bytes]]] = {
    "exact": (
        lambda i: b"fleet/%04d/truck/%06d/status" % (i // 1000, i),
        lambda i: b"fleet/%04d/truck/%06d/status" % (i // 1000, i),
    ),
    "+": (
        lambda i: b"fleet/%04d/car/%06d/+/speeds" % (i // 1000, i),
        lambda i: b"fleet/%04d/car/%06d/x/speeds" % (i // 1000, i),
    ),
    "+ first": (
        lambda i: b"+/depot/%04d/car/%06d/speeds" % (i // 1000, i),
        lambda i: b"x/depot/%04d/car/%06d/speeds" % (i // 1000, i),
    ),
    "+ shared": (
        lambda i: b"fleet/%04d/car/%06d/+/speed%d" % (i // 1000, i // 2, i % 2),
        lambda i: b"fleet/%04d/car/%06d/x/speed%d" % (i // 1000, i // 2, i % 2),
    ),
    "#": (
        lambda i: b"fleet/%04d/vehicle/%06d/ab/#" % (i // 1000, i),
        lambda i: b"fleet/%04d/vehicle/%06d/ab/c" % (i // 1000, i),
    ),
}


class Measured(NamedTuple):
    """One line of the table."""

    match_ns: float
    none_ns: float
    cached_ns: float
    bytes_each: float
    slowest_ns: int


def pss_bytes() -> int:
    """Return the proportional set size of this process."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def measured(shape: str, filters: int) -> Measured:
    """Fill a table and match. The process must not be used for another measurement of memory."""
    filter_of, topic_of = SHAPES[shape]
    clients = min(1000, max(1, filters // 100))
    each = filters // clients
    chance = random.Random(filters)
    topics = b"".join(topic_of(chance.randrange(filters)) for _ in range(MATCHES))
    absent = b"".join(topic_of(chance.randrange(filters))[:-1] + b"_" for _ in range(MATCHES))
    few = b"".join(topic_of(chance.randrange(filters)) for _ in range(500)) * (MATCHES // 500)
    population = Population()
    gc.collect()
    before = pss_bytes()
    slowest = 0
    for client in range(clients):
        slowest = max(slowest, population.subscribe([filter_of(client * each + i) for i in range(each)]))
    each_bytes = (pss_bytes() - before) / (clients * each)
    passes = [population.match(topics, LENGTH) for _ in range(PASSES)]
    assert {found for _, found in passes} == {MATCHES}, (shape, passes)
    miss = min(ns for ns, _ in passes)
    none = min(population.match(absent, LENGTH)[0] for _ in range(PASSES))
    population.match(few, LENGTH)
    hit = min(population.match(few, LENGTH, cached=True)[0] for _ in range(PASSES))
    return Measured(miss, none, hit, each_bytes, slowest)


def line(shape: str, filters: int) -> None:
    """Measure and print one line of the table."""
    m = measured(shape, filters)
    print(
        f"{shape:9} {filters:9,} {m.match_ns:9.0f} {m.none_ns:9.0f} {m.cached_ns:9.1f} {m.bytes_each:8.0f} "
        f"{m.slowest_ns / 1000:10.0f}",
        flush=True,
    )


def main(sizes: Sequence[int] = (1000, 100_000, 1_000_000)) -> None:
    """Measure every shape at every size."""
    print(f"{'filters':9} {'count':>9} {'match ns':>9} {'none ns':>9} {'cached ns':>9} {'bytes':>8} {'slowest us':>10}")
    context = multiprocessing.get_context("spawn")
    for size in sizes:
        for shape in SHAPES:
            process = context.Process(target=line, args=(shape, size))
            process.start()
            process.join()


if __name__ == "__main__":
    if sys.argv[1:]:
        main([int(argument) for argument in sys.argv[1:]])
    else:
        main()
