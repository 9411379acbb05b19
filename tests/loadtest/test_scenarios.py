"""Every scenario, small, against mqttd and against mosquitto, with counts that must agree.

All runs start with the module and rarely wait for one another: they are mostly asleep. Other load on the machine must
not matter: a condition on a duration only checks that the figure exists (no run has 1,000 s), and the minimum of
publishes shows that the scenario has done its work.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

import pytest

from tests.broker_process import ROOT, BrokerProcess
from tests.loadtest.locust_command import Report, locust
from tests.loadtest.mosquitto import PASSWORD, USER, Mosquitto
from tests.waiting import wait_until

TOGETHER: Final = 6
"""Number of concurrent runs."""
#: attacks that mosquitto 2.0.11 permits: no bound is set for these, and it waits 90 s for a CONNECT
UNBOUNDED: Final = "-silence,-half-a-connect,-claims-200-megabytes,-long-topic"

RUNS: Final[dict[str, str]] = {
    "TelemetryFleet": "-u 20 -r 100 -t 3s --fail-if ack_p99>1000s,acknowledgement_failures>0",
    "PayloadMix": "-u 5 -r 100 -t 3s --rate 50 --fail-if p99>1000s,lost>0",
    "StarConsumer": "-u 21 -r 100 -t 3s --rate 200 --fail-if p99>1000s,lost>0,duplicates>0",
    # a device has to be connected before the second update
    "OverTheAirUpdate": "-u 11 -r 100 -t 8s --every 3 --chunks 3 --payload 20000 --fail-if update_p99>1000s,lost>0",
    "CommandAndResponse": "-u 10 -r 100 -t 3s --rate 30 --fail-if command_p99>1000s,lost>0",
    "ExpensivePublisher": "-u 6 -r 100 -t 3s --payload 100000 --fail-if p99>1000s,lost>0",
    "SharedBackend": "-r 100 -t 3s --members 12 --consumers 3 --rate 60 --fail-if work_p99>1000s,lost>0,duplicates>0",
    "Phones": "-u 5 -r 100 -t 5s --away 0.2 --backlog 7 --fail-if backlog_p99>1000s,lost>0",
    "ReconnectStorm": "-u 12 -r 100 -t 7s --every 2 --rate 24 --fail-if return_p99>1000s,lost>0",
    "Dashboards": "-u 6 -r 100 -t 5s --fail-if page_p99>1000s,lost>0",
}
HOSTILE: Final = "-u 24 -r 100 -t 20s --fail-if failures>0,lost>0,p99>1000s"
RESTART: Final = "-u 9 -r 100 -t 12s --every 2 --fail-if lost>0"
PATIENCE: Final = "60"
"""Maximum seconds of any wait; successful requests never take this long."""
CONNECT_SECONDS: Final = "5"
"""Short enough to refuse silent connections within their run; no honest client is this slow."""


@pytest.fixture(scope="module")
def runs(
    mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str, str], Future[Report]]]:
    """``runs(broker, scenario)``: a started run. Those that no selected test looks at are not started."""
    specifications = [getattr(item, "callspec", None) for item in request.session.items if item.path == Path(__file__)]
    against = {each.params.get("report_of") for each in specifications if each is not None}
    directory = tmp_path_factory.mktemp("scenarios")
    restarting = BrokerProcess(2, ["--admin", "127.0.0.1:0"])
    bounds = {"MQTTD_LIMITS__CONNECT_SECONDS_MAX": CONNECT_SECONDS}
    with (
        BrokerProcess(2, [], bounds) as broker,
        restarting,
        ThreadPoolExecutor(TOGETHER) as pool,
    ):
        urls = {"mqttd": f"mqtt://127.0.0.1:{broker.address[1]}", "mosquitto": mosquitto.url("mqtt")}
        host, port = restarting.admin
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports = "--master-bind-port {0} --master-port {0}".format(free.getsockname()[1])
        urls["wss"] = mosquitto.url("wss")
        trust = f"--cafile {mosquitto.directory}/ca.pem"
        urls["restarting"] = f"mqtt://127.0.0.1:{restarting.address[1]}"
        planned = {(kind, scenario): text for scenario, text in RUNS.items() for kind in ("mqttd", "mosquitto")} | {
            ("restarting", "RollingRestart"): f"{RESTART} --metrics http://{host}:{port}",
            ("mqttd", "HostileClients"): HOSTILE,
            ("mosquitto", "HostileClients"): f"{HOSTILE} --attacks all,{UNBOUNDED}",
            ("wss", "CommandAndResponse"): f"{RUNS['CommandAndResponse']} --topic wss/%i {trust}",
            ("mqttd", ""): "-u 30 -r 100 -t 8s --members 5 --consumers 2 --every 1 --fail-if failures>0",
            ("mosquitto", ""): f"-u 30 -r 100 -t 12s --mqtt-version 4 --fail-if failures>0 --processes 2 {ports}",
        }
        started: dict[tuple[str, str], Future[Report]] = {}
        # the mix uses the topics of all scenarios: it runs before them
        for is_mix in (True, False):
            for (kind, scenario), arguments in planned.items():
                if is_mix == (not scenario) and (kind in against or kind not in ("mqttd", "mosquitto")):
                    started[kind, scenario] = pool.submit(
                        locust, directory / f"{kind}-{scenario}", urls[kind], *arguments.split(),
                        "--patience", PATIENCE, "--client-prefix", f"{kind}-{scenario}-", *filter(None, [scenario]),
                    )  # fmt: skip
            if is_mix:
                wait(started.values())
        yield lambda kind, scenario: started[kind, scenario]
        for each in started.values():
            each.cancel()


@pytest.fixture(params=["mqttd", pytest.param("mosquitto", marks=pytest.mark.long)])
def report_of(request: pytest.FixtureRequest, runs: Callable[[str, str], Future[Report]]) -> Callable[[str], Report]:
    """``report_of(scenario)``: the report of a run without failures and with no condition true."""

    def of(scenario: str) -> Report:
        report = runs(request.param, scenario).result()
        assert report.failures() == 0, (report.errors, report.said)
        assert report.status == 0, report.said
        return report

    return of


def test_telemetry_fleet_is_acknowledged_and_a_tenth_hears_itself(report_of: Callable[[str], Report]) -> None:
    report = report_of("TelemetryFleet")
    assert report.requests("CONNECT") == 20
    assert report.requests("PUBLISH") >= 20
    assert report.requests("SUBSCRIBE") == 2
    assert 0 < report.requests("DELIVERY") <= report.requests("PUBLISH") / 5


def test_payloads_of_a_mix_come_back(report_of: Callable[[str], Report]) -> None:
    report = report_of("PayloadMix")
    assert report.requests("DELIVERY") == report.requests("PUBLISH") >= 5 * 3
    lengths = {each["method"]: each["total_content_length"] for each in report.entries}
    # payloads of 64 and 4096, four to one: a mean of 870; from 3 messages of each on within these bounds
    assert 600 < lengths["DELIVERY"] / report.requests("DELIVERY") < 1500


def test_star_consumer_hears_everything(report_of: Callable[[str], Report]) -> None:
    report = report_of("StarConsumer")
    assert report.requests("CONNECT", "Star") == 1
    assert report.requests("DELIVERY") == report.requests("PUBLISH") >= 40


def test_each_device_gets_each_update_whole(report_of: Callable[[str], Report]) -> None:
    report = report_of("OverTheAirUpdate")
    versions = report.requests("PUBLISH", "update") // 3
    assert versions >= 2
    assert report.requests("UPDATE") == 10 * versions
    assert report.requests("DELIVERY") >= 10 * 3 * versions


def test_each_command_gets_its_response(report_of: Callable[[str], Report]) -> None:
    report = report_of("CommandAndResponse")
    commands = report.requests("COMMAND")
    assert commands >= 10
    assert report.requests("PUBLISH", "command/%i") - commands in range(11)  # those cut off by the end
    assert report.requests("DELIVERY", "command/%i/response") >= commands


def test_a_scenario_over_websocket_and_tls(runs: Callable[[str, str], Future[Report]]) -> None:
    report = runs("wss", "CommandAndResponse").result()
    assert report.status == 0, (report.errors, report.said)
    assert report.requests("COMMAND") >= 10


def test_cheap_publishers_beside_an_expensive_one(report_of: Callable[[str], Report]) -> None:
    report = report_of("ExpensivePublisher")
    assert report.requests("DELIVERY", "cheap/%i") == report.requests("PUBLISH", "cheap/%i") >= 5
    pictures = report.requests("DELIVERY", "camera/%i")
    assert report.requests("PUBLISH", "camera/%i") - pictures in (0, 1)
    assert pictures >= 2


def test_each_message_of_the_group_is_done_once(report_of: Callable[[str], Report]) -> None:
    report = report_of("SharedBackend")
    assert report.requests("CONNECT", "SharedBackend") == 12
    assert report.requests("CONNECT", "Consumer") == 3
    published = report.requests("PUBLISH", "backend/%i/work")
    assert published >= 24
    assert report.requests("WORK") == report.requests("DELIVERY", "backend/%i/work") == published


def test_the_backlog_of_each_phone_is_complete(report_of: Callable[[str], Report]) -> None:
    report = report_of("Phones")
    backlogs = report.requests("BACKLOG")
    assert backlogs >= 3
    assert report.requests("DELIVERY") >= 7 * backlogs


def test_everybody_is_back_after_each_storm(report_of: Callable[[str], Report]) -> None:
    report = report_of("ReconnectStorm")
    returned = report.requests("RETURN")
    assert returned >= 12
    # besides its first and last connection each user has one per storm; the end of the run may cut off the last
    assert report.requests("CONNECT") - 2 * 12 - returned in range(13)
    # an ack in flight at the storm is not counted; the scenario itself checks that each message arrived once
    assert report.requests("DELIVERY") >= report.requests("PUBLISH") >= 24


def test_each_page_of_a_dashboard_has_all_its_values(report_of: Callable[[str], Report]) -> None:
    report = report_of("Dashboards")
    assert report.requests("PAGE", "dashboard/ready") == 5
    assert report.requests("PAGE") >= 5 + 5
    assert len(report.names("PAGE")) >= 2


def test_hostile_clients_are_refused_and_nobody_else_notices(report_of: Callable[[str], Report]) -> None:
    report = report_of("HostileClients")
    assert len(report.names("REFUSAL")) >= 14
    assert report.names("SURVIVAL") == {"publish-flood", "subscribe-flood", "connect-flood", "slow-reader"}
    assert report.requests("DELIVERY", "control/%i") == report.requests("PUBLISH", "control/%i") >= 20


def test_workers_restart_one_by_one_and_nothing_is_lost(runs: Callable[[str, str], Future[Report]]) -> None:
    """Each worker restarts once, and every message is delivered. Only mqttd has workers."""
    report = runs("restarting", "RollingRestart").result()
    assert report.status == 0, (report.errors, report.said)
    assert report.names("RESTART") == {"worker 0", "worker 1"}
    assert report.requests("RETURN") == report.requests("ENDED") >= 8
    # an ack in flight when the worker ends is not counted; the scenario itself checks that each message arrived once
    assert report.requests("DELIVERY") >= report.requests("PUBLISH") >= 16


def test_without_a_name_a_mixed_fleet_runs(report_of: Callable[[str], Report]) -> None:
    report = report_of("")
    for kind in ("COMMAND", "WORK", "BACKLOG", "PAGE", "UPDATE", "DELIVERY"):
        assert report.requests(kind) > 0, kind
    for name in ("star/%i/state", "mix/%i"):  # figures of the last moment are included, also those of locust's workers
        assert report.requests("DELIVERY", name) == report.requests("PUBLISH", name) > 0
    assert not {"REFUSAL", "RETURN", "RESTART"} & {each["method"] for each in report.entries}


def test_passwords_are_not_guessed(
    mosquitto: Mosquitto, own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    file = tmp_path / "passwords"
    command = [sys.executable, "-m", "broker", "passwd", "--password-stdin", str(file), USER]
    subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True)
    ours = own_broker(1, ["--password-file", str(file)])
    arguments = (
        f"-u 4 -r 10 -t 3s --patience {PATIENCE} --attacks wrong-password,noise --fail-if failures>0 HostileClients"
    )
    for url in (f"mqtt://127.0.0.1:{ours.address[1]}", mosquitto.url_with_password):
        report = locust(tmp_path / "run", url, "--user", USER, "--password", PASSWORD, *arguments.split())
        assert report.status == 0, report.said
        assert report.requests("REFUSAL", "wrong-password") >= 1


def test_what_is_not_refused_is_a_failure(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """An attack that succeeds is a failure: mosquitto does not bound the length of topics."""
    arguments = "-u 3 -r 10 -t 5s --patience 1 --attacks long-topic HostileClients"
    report = locust(tmp_path, mosquitto.url("mqtt"), *arguments.split())
    assert report.status == 1
    assert report.failures("REFUSAL") == report.requests("REFUSAL") >= 1
    assert {each["Error"] for each in report.errors} == {"NotRefused('no answer for 1 s')"}


def test_a_condition_that_is_true_fails_the_run(mosquitto: Mosquitto, tmp_path: Path) -> None:
    arguments = "-u 5 -r 10 -t 3s --fail-if p99<100s,publish_requests>3,acknowledgement_p99>100s TelemetryFleet"
    report = locust(tmp_path, mosquitto.url("mqtt"), *arguments.split())
    assert report.status == 1
    assert report.failures() == 0
    assert "locust: failed: p99<100s: delivery_p99_us is " in report.said
    assert "locust: failed: publish_requests>3: this run has no figure publish_requests" in report.said
    assert "locust: failed: acknowledgement" not in report.said


def test_a_shape_says_how_many_users_there_are(mosquitto: Mosquitto, tmp_path: Path) -> None:
    arguments = "-u 6 -r 50 -t 4s --shape steps --shape-steps 2 TelemetryFleet"
    report = locust(tmp_path, mosquitto.url("mqtt"), *arguments.split())
    assert report.status == 0, report.said
    assert re.findall(r"Shape test updating to (\d+) users", report.said) == ["3", "6"]
    assert report.requests("CONNECT") == 6


def test_a_scenario_chosen_on_the_web_page_brings_who_runs_beside_it(mosquitto: Mosquitto, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        page = f"http://127.0.0.1:{free.getsockname()[1]}"
    log = tmp_path / "log"
    arguments = ["--host", mosquitto.url("mqtt"), "--class-picker", "--web-host", "127.0.0.1", "--rate", "50"]
    with log.open("wb") as file:
        web = subprocess.Popen(
            [sys.executable, "-m", "loadtest", "locust", *arguments, "--web-port", page.rpartition(":")[2]],
            cwd=ROOT, stdout=file, stderr=file,
        )  # fmt: skip

    def shown(path: str, form: str | None = None) -> Any:
        try:
            with urllib.request.urlopen(f"{page}/{path}", form.encode() if form else None, timeout=60) as answer:
                return json.load(answer)
        except OSError:
            assert web.poll() is None, log.read_text()
            return {"stats": []}  # not ready yet

    try:
        wait_until(lambda: shown("stats/requests")["stats"], 60, "the page is there")
        answer = shown("swarm", "user_count=7&spawn_rate=20&user_classes=SharedBackend&consumers=2&client_prefix=page-")
        assert answer["success"], answer

        def counts() -> dict[str, int]:
            stats = shown("stats/requests")["stats"]
            return {each["name"]: each["num_requests"] for each in stats if each["method"] in ("CONNECT", "WORK")}

        wait_until(lambda: counts().get("backend/%i/work", 0) > 10, 60, "work is done")
        assert counts()["Consumer"] == 2
        assert counts()["SharedBackend"] == 5
        # then a shape, which needs the duration of the run
        assert shown("stop", "now=1")["success"]
        wait_until(lambda: shown("stats/requests").get("state") == "stopped", 60, "the run is over")
        form = "user_count=4&spawn_rate=20&user_classes=TelemetryFleet&shape_class=Spike"
        assert shown("swarm", f"{form}&run_time=3s")["success"]
        updates = "Shape test updating to 4 users", "Shape test stopping"
        wait_until(lambda: all(line in log.read_text() for line in updates), 60, "the spike, and its end")
    finally:
        web.send_signal(signal.SIGINT)
        assert web.wait(60) == 0, log.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--fail-if p99>fast TelemetryFleet", "error: argument --fail-if: "),
        ("--shape ramp TelemetryFleet", "locust: --shape needs -t"),
        ("--class-picker --shape ramp", "locust: --shape: with --class-picker it is chosen on the page"),
        ("-u 3 SharedBackend", "locust: -u 3: 3 users are beside those of the scenario, so 4 at least"),
        ("--topic a/%i", "locust: --topic is for one scenario: name it"),
        ("RollingRestart", "locust: RollingRestart needs --pid"),
        ("--pid 1 RollingRestart", "locust: 1: no worker of an mqttd is there"),
        ("--attacks poke HostileClients", "locust: --attacks: poke is none of "),
    ],
)
def test_wrong_use_is_said_in_one_line(arguments: str, said: str, tmp_path: Path) -> None:
    report = locust(tmp_path, "mqtt://127.0.0.1:1", *arguments.split(), "--loglevel", "ERROR")
    assert report.status == 2, report.said
    assert said in report.said
    assert report.said.count("\n") == 1
