"""The job `prune`: removes snapshots that are in the Parquet, except the newest of each host. One of all hosts of a
cluster goes as a whole.
"""

from __future__ import annotations

import contextlib
import shutil
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from leveldb_store.snapshots.cluster_manifest import NAME as CLUSTER_NAME
from leveldb_store.snapshots.snapshot import NAME
from spark_etl.jobs import JobError
from spark_etl.parquet.job import found, taken_of
from spark_etl.parquet.output import Commit, Output
from spark_etl.tables.snapshots import Snapshot

__all__ = ["add_options", "prunable", "run"]


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the job."""
    parser.add_argument("--snapshots", required=True, help="directories of snapshots, with commas between them")
    parser.add_argument("--out", required=True, type=Path, help="directory of the Parquet tables")
    parser.add_argument("--keep", type=_count, default=2, help="so many of each host stay (%(default)s)")


def run(options: Namespace) -> int:
    """Run the job, and print the snapshots removed. While the output is locked no job reads them."""
    if not Output(options.out).is_there:
        raise JobError(f"{options.out}: is no output of the job parquet")
    with Output(options.out) as output:
        for snapshot in prunable(found(options.snapshots), output.last(), options.keep):
            try:
                # without it a directory is not a snapshot, so a partly removed one is never read
                if snapshot.cluster_snapshot is not None:
                    (snapshot.directory.parent / CLUSTER_NAME).unlink(missing_ok=True)
                (snapshot.directory / NAME).unlink()
                shutil.rmtree(snapshot.directory)
                if snapshot.cluster_snapshot is not None:
                    with contextlib.suppress(OSError):  # the other hosts' come next
                        snapshot.directory.parent.rmdir()
            except OSError as error:
                raise JobError(f"{snapshot.directory}: {error.strerror or error}") from None
            print(f"removed {snapshot.directory}")
    return 0


def prunable(snapshots: Sequence[Snapshot], commit: Commit, keep: int) -> list[Snapshot]:
    """Return those in the output, except the newest `keep` of each host. `snapshots`: by time."""
    taken = {each.identity for each in commit.snapshots}
    gone = []
    for host in sorted({snapshot.host for snapshot in snapshots}):
        there = [snapshot for snapshot in snapshots if snapshot.host == host]
        old = there[: len(there) - keep] if keep else there
        gone += [snapshot for snapshot in old if taken_of(snapshot).identity in taken]
    stays = {each.cluster_snapshot for each in snapshots if each not in gone and each.cluster_snapshot is not None}
    return [snapshot for snapshot in gone if snapshot.cluster_snapshot not in stays]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is no number of snapshots")
    return int(text)
