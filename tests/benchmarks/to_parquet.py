"""The speed and memory of the job `parquet`.

    python -m tests.benchmarks.to_parquet SNAPSHOT OUT [--master local[2]] [--rounds 2]

SNAPSHOT: one made by `tests.benchmarks.analytics`. Its messages are written to Parquet in a directory below OUT,
`--rounds` times, each into a new one; then once more into the last, where nothing is new. Rows per second from the
job's start to its commit; the first round includes the start of Spark's workers and the warm-up of its compiler.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from spark_etl.parquet.job import found, parquet
from spark_etl.parquet.output import Output
from spark_etl.session import session
from tests.benchmarks.analytics import Sampler, cpu_seconds


def main() -> None:
    """Measure, and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot")
    parser.add_argument("out", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    snapshots = found(options.snapshot)
    with session("benchmark", options.master) as spark:
        for turn in [*range(options.rounds), options.rounds - 1]:
            sampler = Sampler()
            sampler.start()
            before, began = cpu_seconds(), time.monotonic()
            with Output(options.out / str(turn)) as output:
                commits = parquet(spark, snapshots, output, ("messages",))
            seconds = time.monotonic() - began
            spent = {name: value - before[name] for name, value in cpu_seconds().items()}
            sampler.end()
            files = [file for _, new in commits for file in new]
            rows = sum(file.rows for file in files)
            print(
                f"{rows:,} rows in {seconds:.1f} s: {rows / seconds:,.0f} rows/s; CPU: "
                + ", ".join(f"{name} {value:.1f} s" for name, value in spent.items())
                + f"; {sampler.most / 1e6:,.0f} MB at most; {len(files)} files, "
                f"{sum(file.bytes for file in files) / 1e6:,.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
