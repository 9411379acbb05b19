"""A program that opens a data directory for some number of workers, as a broker does when it starts, and then writes a
mark to the trace.

    python -m tests.power.repartitioner DATA_DIR TRACE WORKERS

"""

from __future__ import annotations

import sys

from broker.config.leveldb import LevelDB
from broker.repartition.supervision import Repartitioning
from shards.data_dir import DataDir
from tests.power.trace import mark
from tests.sansio import KeptLog


def run(data_dir: str, trace: str, workers: int) -> None:
    """Open the data directory, then write the mark."""
    DataDir(data_dir, workers, Repartitioning(KeptLog(), LevelDB(reserve_bytes=0))).close()
    mark(trace, b"%d" % workers)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
