"""The job `parquet` in a separate process, killed at random moments and started again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from leveldb_store.format.schema import StoredMessage
from spark_etl.parquet.output import Output
from tests.made_snapshot import archive_of, log_of, number_at, snapshot_of
from tests.waiting import let_pass, wait_until

ROOT = Path(__file__).resolve().parents[2]
T = 1_790_000_000
KILLS = 12
LAST_SECONDS_MAX = 300.0

pytestmark = pytest.mark.soak


def of_session(leader: int) -> list[int]:
    """Return the processes of the session of this leader."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def start(snapshots: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spark_etl", "parquet", "--snapshots", snapshots, "--out", out, "--master", "local[2]"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the process with its JVM and the JVM's workers."""
    for pid in of_session(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not of_session(process.pid), 30, "its processes are gone")


def numbers(out: Path, table: str) -> list[int]:
    paths = Output(out).paths(table)
    return sorted(number for path in paths for number in pq.read_table(path, columns=["number"])["number"].to_pylist())


def test_whatever_moment_it_is_killed_at_the_next_run_makes_it_whole(tmp_path: Path) -> None:
    chosen = random.Random(7)
    snapshots, out = tmp_path / "snapshots", tmp_path / "out"
    snapshots.mkdir()
    count = 30_000
    for turn in range(3):
        some = [
            [StoredMessage(b"t", b"%d" % each, number_at(T + each, worker), publisher="p") for each in range(count)]
            for worker in range(2)
        ]
        stores = [[*archive_of(each, block=100), *log_of(each[:2000])] for each in some]
        snapshot_of(tmp_path / f"made{turn}", [iter(each) for each in stores], taken_ms=(T + turn) * 1000)
        (tmp_path / f"made{turn}").rename(snapshots / f"at{turn}")
        count += 10_000
    whole = {number_at(T + each, worker) for worker in range(2) for each in range(count - 10_000)}
    longest, kills = 40.0, 0
    while kills < KILLS:
        process = start(snapshots, out)
        let_pass(chosen.uniform(1.0, longest))
        if process.poll() is not None:
            process.communicate()
            longest = max(5.0, longest / 2)
            assert process.returncode == 0
        kill(process)
        kills += 1
        found = numbers(out, "messages") if (out / "_mqttd").is_dir() else []
        assert len(set(found)) == len(found)
        assert set(found) in (set(), whole)
    last = start(snapshots, out)
    said, told = last.communicate(timeout=LAST_SECONDS_MAX)
    assert last.returncode == 0, (said, told)
    assert set(numbers(out, "messages")) == whole
    assert len(numbers(out, "messages")) == len(whole)
    wait_until(lambda: not of_session(last.pid), 30, "its processes are gone")
    assert not list(snapshots.rglob(".reading-*"))
