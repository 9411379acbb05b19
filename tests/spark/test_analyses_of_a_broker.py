"""The analyses on snapshots of a real broker whose clients use most features."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from broker.testing import Mqttd
from spark_etl.analyses import ANALYSES, once, read
from tests.broker_process import KIND
from tests.mqttd_command import mqttd
from tests.wire import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no such stores"),
    pytest.mark.long,  # test_analyses.py has the same analyses over snapshots made by hand
]

MACHINES, SENT, QUEUE = 6, 10, 20
CONFIG: dict[str, Any] = {
    "store": "leveldb", "leveldb": {"reserve_bytes": 0}, "archive": [{"filter": "#", "hours": 1, "bytes": "10MB"}],
    "events": {"topic_levels": 1}, "limits": {"queue_messages_max": QUEUE},
}  # fmt: skip


def work(broker: Mqttd) -> None:
    """Publish SENT messages from each machine to an offline reader, two members of a share group, and a dashboard."""
    with closing(Client(broker.address, 5)) as away:
        away.connect("away", clean=False, properties={"session_expiry_interval": 2000})
        away.subscribe(("plant/#", 1))
        away.disconnect()
    with closing(Client(broker.address, 5)) as dashboard, closing(Client(broker.address, 5)) as member:
        dashboard.connect("dashboard")
        dashboard.subscribe(("plant/#", 0))
        member.connect("member")
        member.subscribe(("$share/group/plant/#", 0))
        for number in range(MACHINES):
            with closing(Client(broker.address, 5)) as machine:
                machine.connect(f"machine-{number}")
                for sent in range(SENT):
                    machine.publish(f"plant/{number}/t", bytes(10 * (1 + sent % 2)), qos=1)
                machine.publish(f"kept/{number}", b"12345", qos=1, retain=True)
                machine.disconnect()
        for client in (dashboard, member):
            for _ in range(MACHINES * SENT):
                client.expect("PUBLISH")
            client.disconnect()
    for _ in range(4):
        with closing(Client(broker.address, 5)) as flapping:
            flapping.connect("flapping")


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a directory of two snapshots: of the running broker, and of the stopped one with its last minute."""
    base = tmp_path_factory.mktemp("analysed")
    (base / "all").mkdir()
    broker = Mqttd(2, {**CONFIG, "data_dir": base / "data"})
    try:
        broker.start()
        work(broker)
        assert mqttd("snapshot", "--data-dir", base / "data", "--out", base / "all" / "running").status == 0
        assert broker.stop() == 0
        assert mqttd("snapshot", "--data-dir", base / "data", "--out", base / "all" / "stopped").status == 0
    finally:
        broker.kill()
        broker.forget()
    return str(base / "all")


@pytest.fixture(scope="module")
def answers(spark: SparkSession, snapshots: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every analysis."""
    tables = {each.table for each in ANALYSES.values()}
    frames = {table: once(table, read(spark, table, snapshots)).persist() for table in tables}
    return {name: [row.asDict() for row in each(frames[each.table]).collect()] for name, each in ANALYSES.items()}


Answers = dict[str, list[dict[str, Any]]]


def test_what_was_published_is_there_once(answers: Answers) -> None:
    published: Counter[str] = Counter()
    for row in answers["throughput"]:
        published[row["topic"]] += row["messages"]
    assert published == {"plant": MACHINES * SENT, "kept": MACHINES}
    sizes = [(row["topic"], row["up_to_bytes"], row["messages"]) for row in answers["payload_sizes"]]
    assert sizes == [("kept", 8, MACHINES), ("plant", 16, 5 * MACHINES), ("plant", 32, 5 * MACHINES)]
    assert sum(row["messages"] for row in answers["hours_of_week"]) == MACHINES * (SENT + 1)
    assert {row["topic"]: row["messages"] for row in answers["fan_out"]} == {
        **{f"plant/{number}/t": SENT for number in range(MACHINES)},
        **{f"kept/{number}": 1 for number in range(MACHINES)},
    }
    assert all(row["unheard"] == 1 for row in answers["fan_out"] if row["topic"].startswith("kept/"))


def test_what_waits_was_delivered_and_was_dropped(answers: Answers) -> None:
    (waiting,) = answers["backlog"]
    assert (waiting["client"], waiting["messages"]) == ("away", QUEUE)
    assert waiting["bytes"] >= QUEUE * (10 + len("plant/0/t"))
    assert 0 <= waiting["oldest_s"] < 600
    dropped: Counter[str] = Counter()
    for row in answers["drop_reasons"]:
        dropped[row["reason"]] += row["messages"]
    assert dropped == {"queue_full": MACHINES * SENT - QUEUE}
    assert [(row["topic"], row["delivered"]) for row in answers["topic_traffic"]] == [("plant", 2 * MACHINES * SENT)]
    (member,) = answers["shared_groups"]
    assert (member["share"], member["client"], member["messages"], member["times_fair"]) == (
        "$share/group/plant/#", "member", MACHINES * SENT, 1.0,
    )  # fmt: skip
    assert sum(row["samples"] for row in answers["delay"]) > 0
    assert all(row["mean_ms"] > 0 for row in answers["delay"])


def test_who_is_silent_and_who_flaps(answers: Answers) -> None:
    silent = {row["publisher"]: row for row in answers["silent_devices"]}
    assert set(silent) == {f"machine-{number}" for number in range(MACHINES)}
    assert all(row["messages"] == SENT + 1 and row["intervals"] > 5 for row in silent.values())
    (flapping,) = answers["reconnects"]
    assert (flapping["client"], flapping["connections"], flapping["short"], flapping["lost"]) == ("flapping", 4, 4, 4)
    assert flapping["addresses"] == 1


def test_what_is_retained(answers: Answers) -> None:
    assert [row["messages"] for row in answers["retained_growth"]][-1] == MACHINES
    topics = [(row["topic"], row["messages"], row["bytes"]) for row in answers["retained_topics"]]
    assert topics == [("kept", MACHINES, 5 * MACHINES)] * 2  # in each snapshot
