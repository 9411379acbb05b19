"""flood as users start it: every scenario against real brokers, and planted faults that it must find and name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import ROOT, BrokerProcess
from tests.loadtest.mosquitto import Mosquitto
from tests.loadtest.running import SHORT, WRONG, flood, refused, run
from tests.loadtest.stub import Fault, Stub


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    process = BrokerProcess(2)
    with process:
        yield process


@pytest.fixture(scope="module", params=["mqttd", "mosquitto"])
def url(request: pytest.FixtureRequest) -> str:
    """URL of mqttd, then of mosquitto."""
    if request.param == "mosquitto":
        theirs: Mosquitto = request.getfixturevalue("mosquitto")
        return theirs.url("mqtt")
    ours: BrokerProcess = request.getfixturevalue("broker")
    return f"mqtt://127.0.0.1:{ours.address[1]}"


@pytest.mark.parametrize(("qos", "version"), [("0", "3"), ("1", "5"), ("2", "4")])
@pytest.mark.parametrize("scenario", ["pair", "fanin", "fanout", "shared"])
def test_a_scenario_is_delivered_whole(url: str, scenario: str, qos: str, version: str) -> None:
    found = flood(
        url, scenario, "-c", "6", "-q", qos, "--version", version, "--rate", "600", "--processes", "2",
        "--client-prefix", f"{scenario}{qos}{version}-", "-t", f"{scenario}{qos}{version}/%i", "--idle", "3",
    )  # fmt: skip
    figures = found["figures"]
    assert found["ok"]
    assert [figures[name] for name in WRONG] == [0] * len(WRONG)
    copies = 6 if scenario == "fanout" else 1
    assert figures["total_received"] == copies * figures["total_sent"] >= 20
    published = found["published"]
    assert sum(each["messages"] for each in published) == figures["total_sent"]
    assert published[0]["client"] == f"{scenario}{qos}{version}-p0"
    assert published[0]["topic"] == f"{scenario}{qos}{version}/0"
    assert figures["delivery_p50_us"] > 0
    assert figures["connected"] == {"pair": 12, "fanin": 7, "fanout": 7, "shared": 12}[scenario] + 3
    assert len(found["series"]) == 0  # whole seconds only


def test_without_a_schedule_nothing_is_lost(broker: BrokerProcess) -> None:
    figures = flood(broker.address[1], "pair", "-c", "4", "-s", "64,2000", "--pid", str(broker.pid))["figures"]
    assert figures["lost"] == figures["corrupt"] == 0
    assert figures["total_received"] == figures["total_sent"] > 100
    assert figures["broker_cpu_us"] > 0


def test_a_process_that_hears_late_of_the_end_is_waited_for(broker: BrokerProcess) -> None:
    """The process publishes until it sees the end; the other processes' subscribers receive those messages, too."""
    found = flood(
        broker.address[1], "fanout", "-c", "6", "--rate", "600", "--processes", "2", "-t", "late/%i",
        module="tests.loadtest.hard_of_hearing",
    )  # fmt: skip
    figures = found["figures"]
    assert figures["total_received"] == 6 * figures["total_sent"] > 0
    assert [figures[name] for name in WRONG] == [0] * len(WRONG)


def test_payloads_of_a_file_beside_others(broker: BrokerProcess, tmp_path: Path) -> None:
    """Payloads are checked as sent: 16 bytes of head, the file, 4 bytes of checksum; or the given bytes in all."""
    file = tmp_path / "reading"
    file.write_bytes(bytes(range(256)) * 10)
    found = flood(broker.address[1], "pair", "-c", "2", "--rate", "800", "--payload", f"3:64,1:{file}", "-t", "file/%i")
    figures = found["figures"]
    assert [figures[name] for name in WRONG] == [0] * len(WRONG)
    mean = figures["bytes_received_per_s"] / figures["received_per_s"]
    # the measured time begins and ends anywhere in the cycle of four
    assert (4 * 64 + 2580) / 5 < mean < (2 * 64 + 2580) / 3


def test_publishers_and_subscribers_of_two_commands(url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "loadtest.flood", "pub", "--host", url, "-c", "1",
         "-t", "two/%i", "-q", "1", "-I", "2", "--seconds", "100", "--client-prefix", "speak-", "--quiet", "-s", "100"],
        cwd=ROOT,
    ) as speaking:  # fmt: skip
        try:
            heard: dict[str, float] = {}
            for _ in range(20):  # until it publishes
                found = flood(url, "sub", "-c", "2", "-t", "two/%i", "-q", "1", "--client-prefix", "listen-")
                heard = found["figures"]
                if heard["received"]:
                    break
        finally:
            speaking.kill()
    assert heard["received"] > 0
    assert heard["foreign"] == heard["lost"] == heard["duplicates"] == 0
    assert heard["delivery_p50_us"] > 0


def test_connections_that_say_nothing(url: str) -> None:
    figures = flood(url, "conn", "-c", "50", "-i", "0")["figures"]
    assert figures["connected"] == 50
    assert figures["connect_p50_us"] > 0


PLANTED = ("--drain", "5")
"""Seconds to wait for messages that never arrive."""


def drop(count: int, payload: bytes) -> list[bytes]:
    return [] if count == 50 else [payload]


def double(count: int, payload: bytes) -> list[bytes]:
    return [payload, payload] if count == 50 else [payload]


def damage(count: int, payload: bytes) -> list[bytes]:
    return [payload[:30] + b"!" + payload[31:]] if count == 50 else [payload]


def late() -> Fault:
    held: list[bytes] = []

    def fault(count: int, payload: bytes) -> list[bytes]:
        if count == 50:
            held.append(payload)
            return []
        return [payload, held.pop()] if count == 60 else [payload]

    return fault


@pytest.mark.parametrize(
    ("fault", "named", "status"),
    [(drop, "lost", 0), (double, "duplicates", 0), (late(), "reordered", 0), (damage, "corrupt", 1)],
    ids=["dropped", "doubled", "late", "damaged"],
)
def test_a_planted_fault_is_named(fault: Fault, named: str, status: int) -> None:
    with Stub(fault) as broker:
        found = flood(
            broker.port, "fanin", "-c", "1", "--rate", "400", "--seconds", "1", "--processes", "1", *PLANTED,
            status=status,
        )  # fmt: skip
    figures = found["figures"]
    assert figures["total_sent"] > 60
    expected = {"lost": 0, "duplicates": 0, "reordered": 0, "corrupt": 0} | {named: 1}
    if named == "corrupt":
        expected["lost"] = 1  # the damaged message cannot be identified
    assert {name: figures[name] for name in expected} == expected


def test_a_damaged_byte_of_a_file_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "reading"
    file.write_bytes(b"a reading of twenty-one degrees")
    with Stub(damage) as broker:
        figures = flood(
            broker.port,
            "fanin",
            "-c",
            "1",
            "--rate",
            "400",
            "--processes",
            "1",
            "--payload",
            f"{file},64",
            *PLANTED,
            status=1,
        )["figures"]
    assert figures["corrupt"] == 1


def test_what_never_came_at_the_end_is_lost() -> None:
    with Stub(lambda count, payload: [payload] if count < 50 else []) as broker:
        figures = flood(broker.port, "fanin", "-c", "1", "--rate", "400", "--processes", "1", *PLANTED)["figures"]
    assert figures["total_received"] == 50
    assert figures["lost"] == figures["total_sent"] - 50 > 0


def test_a_broker_that_stalls_cannot_hide_it() -> None:
    """The publisher waits for acks that never arrive; messages due meanwhile count as late."""
    with Stub(forgets_acks=True) as broker:
        figures = flood(
            broker.port, "pub", "-c", "1", "-q", "1", "--rate", "400", "--window", "10", "--processes", "1",
            "--seconds", "1", *PLANTED,
        )["figures"]  # fmt: skip
    assert figures["total_sent"] == 10
    assert figures["acknowledged"] == 0
    assert figures["late_now"] >= 20


@pytest.mark.parametrize(
    ("connack", "suback", "said"),
    [(5, 0, "CONNACK with Reason Code 0x05"), (0, 0x80, "SUBACK with Reason Code 0x80")],
)
def test_refusals_are_named(connack: int, suback: int, said: str) -> None:
    with Stub(connack=connack, suback=suback) as broker:
        done = run("sub", "-c", "1", "--host", f"127.0.0.1:{broker.port}")
    assert done.returncode in (1, 2)
    assert said in done.stdout + done.stderr


def test_a_publish_may_come_before_the_suback() -> None:
    """MQTT 5, 3.8.4: the Server may start sending PUBLISH packets before it sends the SUBACK."""
    with Stub(is_early=True) as broker:
        figures = flood(broker.port, "sub", "-c", "1", "--processes", "1")["figures"]
    assert (figures["connected"], figures["foreign"], figures["protocol_errors"]) == (1, 1, 0)


def test_gates_decide_the_status(broker: BrokerProcess) -> None:
    port = broker.address[1]
    assert flood(port, "pair", "-c", "2", "--rate", "100", "--fail-if", "lost>0,corrupt>0,p99>1000s")["failed"] == []
    failed = flood(port, "pair", "-c", "2", "--rate", "100", "--fail-if", "p50>0us,rate<1", status=1)["failed"]
    assert len(failed) == 1
    assert failed[0].startswith("p50>0us: delivery_p50_us is ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pair", "--host", "http://127.0.0.1:1"], "mqtt://, mqtts://, ws:// or wss://, not http://"),
        (["pair", "-s", "10"], "one that is checked has 20 bytes at least"),
        (["pair", "-t", "one"], "the topic of pairs must have"),
        (["pair", "--rate", "5", "-I", "5"], "one of them"),
        (["pair", "--fail-if", "p99>20"], "say us, ms or s"),
        (["pair", "--fail-if", "nonsense"], "is no condition"),
        (["pair", "--window", "0"], "--window: 0: a number from 1 on"),
        (["pair", "--window", "70000"], "--window: 1 to 65535"),
        (["pair", "--run", "date"], "--run date: SECONDS:COMMAND"),
        (["pair", "--run=-1:date"], "--run -1:date: SECONDS:COMMAND"),
        (["pair", "--pid", "99999999"], "there is no process 99999999"),
        (["conn", "--payload", "none.json"], "--payload none.json: neither a number of bytes nor a file"),
        (["pair", "--host", "mqtt://127.0.0.1:1"], "no client is connected"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)


def test_a_report_shows_the_run_and_what_happened(tmp_path: Path) -> None:
    """The report marks both commands of a run, one that kills a worker and one that fails, with their outcomes."""
    broker = BrokerProcess(2, ["--admin", "127.0.0.1:0"])
    with broker:
        host, port = broker.admin
        path = tmp_path / "report.html"
        killing = f"kill -9 {broker.worker_pids()[0]}"
        found = flood(
            broker.address[1], "pair", "-c", "8", "-q", "1", "--rate", "400", "--seconds", "8", "--drain", "0.5",
            "--report", str(path), "--metrics", f"http://{host}:{port}", "--pid", str(broker.pid),
            "--run", f"1.2:{killing}", "--run", "2:exit '3'", "--run", "2:sleep 1000", "--run", "99:date", status=1,
        )  # fmt: skip
    happened = {what: at for at, what in found["happened"]}
    assert happened[killing] >= 1.2
    assert "exit '3': ended with status 3" in happened
    assert "worker 0 was restarted" in happened
    assert any("connections were lost" in what and at >= happened[killing] for what, at in happened.items())
    assert "--run sleep 1000: was ended with the run" in found["said"]
    assert "--run 99:date: the run was over before" in found["said"]
    assert {"0", "1"} <= set(found["balance"][0])
    assert found["figures"]["broker_bytes"] > 10 << 20
    assert found["figures"]["broker_bytes_per_client"] > 100
    page = path.read_text()
    assert page.count("<svg") == 5
    assert page.count(killing) >= 6
    assert "worker 0 was restarted" in page
    assert not re.search(r"(src|href)=.?http", page)


def test_options_come_from_the_environment_too(broker: BrokerProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.flood", "conn", *SHORT],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
        env=os.environ | {"MQTTD_LOAD_HOST": f"127.0.0.1:{broker.address[1]}", "MQTTD_LOAD_CLIENTS": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["figures"]["connected"] == 3
