"""Ways to start jobs: by name, by spark-submit, by systemd."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spark_etl.__main__ import main, options_of
from spark_etl.jobs import JOBS, one_line

ROOT = Path(__file__).resolve().parents[2]


def test_the_file_of_the_jobs_can_be_started_as_spark_submit_does() -> None:
    said = subprocess.run(
        [sys.executable, ROOT / "spark_etl" / "__main__.py", "list"],
        cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")
    assert [line.split()[0] for line in said.stdout.splitlines()[1 : 1 + len(JOBS)]] == list(JOBS)


def test_what_systemd_and_cron_start_are_jobs_with_their_options() -> None:
    service = (ROOT / "deploy" / "mqttd-analytics.service").read_text()
    cron = re.findall(r"-m spark_etl ([^&\n]+)", (ROOT / "docs" / "analytics.md").read_text().replace("\\\n", ""))
    lines = re.findall(r"-m spark_etl (.+)", service)
    assert [line.split()[0] for line in lines] == ["parquet", "prune"]
    for line in (*lines, *(each for each in cron if "--snapshots $S" in each)):
        assert options_of(shlex.split(line)).out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "the following arguments are required: JOB"),
        (["parket"], "argument JOB: invalid choice: 'parket'"),
        (["parquet", "--out", "x"], "the following arguments are required: --snapshots"),
        (
            ["prune", "--snapshots", "x", "--out", "y", "--keep", "-1"],
            "argument --keep: '-1' is no number of snapshots",
        ),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"spark_etl: {line}")


def test_of_an_error_of_spark_the_line_that_was_ours_is_said() -> None:
    text = "An exception was thrown from the Python worker:\n  File x\n{}\n\n\tat org.apache.spark"
    ours = "leveldb_store.snapshots.snapshot.SnapshotError: /s/worker-0/1.ldb: is damaged"
    assert str(one_line(ValueError(text.format(ours)))) == "/s/worker-0/1.ldb: is damaged"
    assert str(one_line(ValueError(text.format("ValueError: year 58692")))) == "ValueError: year 58692"
    assert str(one_line(ValueError("[X] no room\nmore"))) == "[X] no room"
    of_java = "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b\n"
    assert str(one_line(ValueError(of_java))) == "org.apache.spark.SparkException: Job aborted"
    of_java += "Caused by: java.io.IOException: No space left on device\n\tat c.d\n"
    assert str(one_line(ValueError(of_java))) == "java.io.IOException: No space left on device"
