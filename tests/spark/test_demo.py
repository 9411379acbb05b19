"""End to end: a broker under load, its snapshots and the Spark report agree with the load generator's counts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.testing import Mqttd
from leveldb_store.snapshots.snapshot import read_manifest
from spark_etl.analyses import ANALYSES, read
from spark_etl.demo import job as demo
from spark_etl.demo.fleet import Published, work
from spark_etl.jobs import JobError
from spark_etl.parquet.agreement import agreement
from spark_etl.report import job as report
from spark_etl.tables.snapshots import find
from tests.broker_process import KIND, ROOT
from tests.mqttd_command import mqttd
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no such stores")

SECONDS = 5.0


@dataclass
class Worked:
    """The output of a short demo before Spark reads it."""

    out: Path
    published: Published
    said: list[str]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Worked:
    out = tmp_path_factory.mktemp("demo")
    said: list[str] = []
    return Worked(out, work(out, SECONDS, said.append), said)


@pytest.mark.long
def test_the_demo_counts_what_its_fleet_has_published(spark: SparkSession, worked: Worked) -> None:
    out, published, said = worked.out, worked.published, worked.said
    assert len(published) == 50 + 40 + 30 + 2 + 10
    assert published.total() > SECONDS * 1000
    assert demo.demo(spark, out, published, said.append) == []
    assert f"{published.total():,} messages in the snapshots: the same, for each client and topic" in said
    page = (out / "report.html").read_text()
    for each in ANALYSES.values():
        assert f"<h2 id={each.name}>" in page
    sections = re.findall(r"<h2 id=(\w+)>(.*?)(?=<h2 id=|\Z)", page, re.DOTALL)
    empty = {name for name, section in sections if "There is nothing of it" in section}
    assert "retained_topics" in empty  # no client has retained anything
    # events that are rare, or happen at the end of a minute, may be absent within a few seconds
    assert empty <= {"retained_topics", "retained_growth", "reconnects", "silent_devices", "backlog", "drop_reasons"}
    assert page.count("<svg") >= len(ANALYSES) - 1 - len(empty)
    assert "as many records are read as its manifest says" in page
    assert f"{published.total():,}" in page  # archived by the rule
    missing = published.copy()
    missing["plant-p0", "plant/0/temperature"] += 1
    (line,) = demo.compare(spark, str(out / "snapshots"), missing)
    there = published["plant-p0", "plant/0/temperature"]
    assert line == (
        f"plant-p0 has published {there + 1:,} messages on plant/0/temperature, the snapshots have {there:,}"
    )


@pytest.mark.long
def test_the_walkthrough_of_the_documentation_runs(
    spark: SparkSession, worked: Worked, capsys: pytest.CaptureFixture[str]
) -> None:
    document = (ROOT / "docs" / "analytics.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", document.partition("## Options")[0], re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    known: dict[str, object] = {}
    for block in blocks:
        exec(compile(block.replace("mqttd-demo", str(worked.out)), "docs/analytics.md", "exec"), known)
    assert known["spark"] is spark
    said = capsys.readouterr().out
    assert f"{worked.published.total()} messages" in said
    assert "away-s0" in said  # a session with queued messages
    plant = sum(count for (_, topic), count in worked.published.items() if topic.startswith("plant/"))
    assert re.search(rf"^plant +{plant}$", said, re.MULTILINE)


def test_the_documentation_lists_all_analyses() -> None:
    document = (ROOT / "docs" / "analytics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", document.partition("## Options")[0], re.MULTILINE)
    assert rows == [(each.name, each.table, each.title) for each in ANALYSES.values()]


@pytest.mark.long
def test_a_snapshot_at_full_load_agrees_with_its_counters(spark: SparkSession, tmp_path: Path) -> None:
    """Each store's counters match its messages in a snapshot taken while publishers send as fast as acks arrive."""
    config = {
        "store": "leveldb", "data_dir": tmp_path / "data", "leveldb": {"reserve_bytes": 0},
        "archive": [{"filter": "#", "hours": 1, "bytes": "1GB"}],
    }  # fmt: skip
    out = tmp_path / "out"
    command = [sys.executable, "-m", "loadtest.flood", "pair", "-c", "8", "-q", "1", "--processes", "1", "--quiet"]
    with Mqttd(2, config) as broker:
        with subprocess.Popen(
            [*command, "--host", broker.url, "--seconds", "60"], cwd=ROOT, stdout=subprocess.DEVNULL
        ) as flood:
            try:
                data = tmp_path / "data"
                wait_until(lambda: sum(map(size, data.rglob("*.log"))) > 1_000_000, 30.0, "it is under load")
                said = mqttd("snapshot", "--data-dir", tmp_path / "data", "--out", out)
                assert said.status == 0, said
                assert flood.poll() is None
            finally:
                flood.kill()
    manifest = read_manifest(out)
    messages = read(spark, "messages", str(out), ("store", "origin", "number", "qos"))
    counted = Counter({row[0]: row[1] for row in messages.groupBy("store").count().collect()})
    assert counted.total() > 1000
    for store in manifest.stores:
        assert counted[store.worker] == store.counters["publish_received_qos1"] == store.archived["#"].messages
    counts = list(agreement(spark, find(str(out))))
    assert {each.what for each in counts} >= {"archived by #", "messages of the log", "sessions", "events"}
    assert all(each.manifest == each.read for each in counts)
    assert messages.select("number").distinct().count() == counted.total()


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


@pytest.mark.long
def test_without_a_rule_the_report_says_that_nothing_is_archived(spark: SparkSession, tmp_path: Path) -> None:
    config = {"store": "leveldb", "data_dir": tmp_path / "data", "leveldb": {"reserve_bytes": 0}}
    with Mqttd(1, config):
        assert mqttd("snapshot", "--data-dir", tmp_path / "data", "--out", tmp_path / "out").status == 0
    page = report.page(spark, str(tmp_path / "out"))
    assert "no <code>[[archive]]</code> table was in the configuration" in page
    assert page.count("There is nothing of it") >= len(ANALYSES) - 1
    assert page.count('<a href="#rules">These archive rules</a> were in force.') == 5


def test_what_the_demo_needs_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "something").touch()
    command = [sys.executable, "-m", "spark_etl", "demo", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"spark_etl: {tmp_path}: is not empty\n")
    monkeypatch.setitem(sys.modules, "websockets", None)
    with pytest.raises(JobError, match=r"needs websockets: pip install 'mqttd-broker\[loadtest\]'"):
        demo.look_for_programs()
