"""The jobs on a Spark standalone cluster by spark-submit: a master, two workers, executors in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from leveldb_store.format.schema import StoredMessage
from spark_etl.parquet.output import Output
from tests.made_snapshot import archive_of, log_of, number_at, snapshot_of

ROOT = Path(__file__).resolve().parents[2]
T = 1_790_000_000
SECONDS_MAX = 300.0

pytestmark = pytest.mark.soak


def test_parquet_by_spark_submit_on_a_cluster(tmp_path: Path) -> None:
    def messages(worker: int, count: int) -> list[StoredMessage]:
        return [StoredMessage(b"t/%d" % each, b"x", number_at(T + each, worker), 1) for each in range(count)]

    stores = [archive_of(messages(worker, 3000)) for worker in range(4)]
    snapshot_of(tmp_path / "snapshot", [*stores, log_of(messages(4, 50))], taken_ms=(T + 3600) * 1000)
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }  # fmt: skip
    home = Path(pyspark.__file__).parent
    command: list[str | Path] = [
        home / "bin" / "spark-submit", "--master", "local-cluster[2,1,1024]", "--conf", "spark.ui.enabled=false",
        ROOT / "spark_etl" / "__main__.py", "parquet", "--snapshots", tmp_path / "snapshot", "--out", tmp_path / "out",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "commit 1: 12,050 messages, 5 stores, 4 rules" in done.stdout
    paths = Output(tmp_path / "out").paths("messages")
    numbers = [number for path in paths for number in pq.read_table(path, columns=["number"])["number"].to_pylist()]
    wanted = [(worker, each) for worker, count in enumerate([3000, 3000, 3000, 3000, 50]) for each in range(count)]
    assert sorted(numbers) == sorted(number_at(T + each, worker) for worker, each in wanted)
