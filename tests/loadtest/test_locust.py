"""locust as users start it: headless, distributed, with its web page; over TCP, TLS and WebSocket.

The users are those of tests.loadtest.echo_users.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import ROOT, BrokerProcess
from tests.loadtest.mosquitto import PASSWORD, USER, Mosquitto
from tests.waiting import wait_until

USERS = Path(__file__).with_name("echo_users.py")
MESSAGES = 10
EACH = 3 * MESSAGES
SECURE = ("mqtts", "wss")
CLOCK_MS_MAX = 1_000_000
"""Below a difference between two clocks, above the duration of any run."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "loadtest", "locust", "-f", str(USERS), *arguments]


class Outcome:
    """The JSON and the stderr of a locust run, which ends when all users have left, or after -t."""

    def __init__(self, host: str, *arguments: str, users: int = 3, seconds: int = 100, **environment: str) -> None:
        done = subprocess.run(
            command("--headless", "--json", "-u", str(users), "-r", "100", "-t", f"{seconds}s", "--host", host,
                    *arguments),
            cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        self.status, self.said = done.returncode, done.stderr
        self.entries: dict[str, dict[str, Any]] = {}
        for entry in last_of(done.stdout):
            self.entries[entry["method"]] = entry
        self.counts = {
            kind: (entry["num_requests"], entry["num_failures"]) for kind, entry in sorted(self.entries.items())
        }


def last_of(text: str) -> list[dict[str, Any]]:
    """Return the last of several JSON documents: workers print an empty one each."""
    found: list[dict[str, Any]] = []
    while text.strip():
        found, end = json.JSONDecoder().raw_decode(text.lstrip())
        text = text.lstrip()[end:]
    return found


def whole(users: int, messages: int = EACH) -> dict[str, tuple[int, int]]:
    """Return the counts of a run without failures."""
    return {
        "CONNECT": (users, 0), "DELIVERY": (users * messages, 0), "PUBLISH": (users * (messages + 1), 0),
        "RECEIVED": (users, 0), "SUBSCRIBE": (users, 0),
    }  # fmt: skip


def trust(broker: Mosquitto, scheme: str) -> list[str]:
    return ["--cafile", str(broker.directory / "ca.pem")] if scheme in SECURE else []


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    process = BrokerProcess(2)
    with process:
        yield process


def url(broker: BrokerProcess) -> str:
    return f"mqtt://127.0.0.1:{broker.port}"


@pytest.mark.parametrize("version", ["3", "4", "5"])
def test_every_request_is_counted(broker: BrokerProcess, version: str) -> None:
    found = Outcome(url(broker), "--mqtt-version", version, "--client-prefix", f"v{version}-")
    assert (found.status, found.counts) == (0, whole(3)), found.said
    assert found.entries["RECEIVED"]["num_none_requests"] == 3
    assert found.entries["DELIVERY"]["num_none_requests"] == 0
    assert 0 <= found.entries["DELIVERY"]["max_response_time"] < CLOCK_MS_MAX
    assert {entry["name"] for kind, entry in found.entries.items() if kind != "CONNECT"} == {"echo"}


def test_options_come_from_the_environment_too(broker: BrokerProcess) -> None:
    found = Outcome(
        url(broker), "--payload", "64,3000", MQTTD_LOAD_QOS="0", MQTTD_LOAD_CLIENT_PREFIX="environment-",
        MQTTD_LOAD_TOPIC="other/%i",
    )  # fmt: skip
    assert (found.status, found.counts) == (0, whole(3, MESSAGES)), found.said
    assert found.entries["DELIVERY"]["total_content_length"] == 3 * MESSAGES * (64 + 3000) // 2


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
def test_it_is_not_tied_to_mqttd(mosquitto: Mosquitto, scheme: str) -> None:
    found = Outcome(
        mosquitto.url(scheme), *trust(mosquitto, scheme), "--client-prefix", f"locust-{scheme}-", "--topic",
        f"{scheme}/%c", "--payload", "3:64,30000", "--mqtt-version", "4" if scheme == "ws" else "5",
    )  # fmt: skip
    assert (found.status, found.counts) == (0, whole(3)), found.said


@pytest.mark.long
def test_workers_of_a_distributed_run_get_the_options(mosquitto: Mosquitto) -> None:
    """Workers get the names of files, not their content; latencies use the wall clock."""
    found = Outcome(
        mosquitto.url("mqtts"), *trust(mosquitto, "mqtts"), "--processes", "2", "--client-prefix", "distributed-",
        users=6, seconds=15,
    )  # fmt: skip
    assert (found.status, found.counts) == (0, whole(6)), found.said
    assert 0 <= found.entries["DELIVERY"]["max_response_time"] < CLOCK_MS_MAX


def test_clients_show_a_certificate(mosquitto: Mosquitto) -> None:
    of = mosquitto.directory
    shown = ["--cert", str(of / "client.pem"), "--key", str(of / "client.key")]
    found = Outcome(mosquitto.url_with_certificate, *trust(mosquitto, "mqtts"), *shown, users=1)
    assert (found.status, found.counts) == (0, whole(1)), found.said


def test_a_password_comes_from_a_file(mosquitto: Mosquitto, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    found = Outcome(mosquitto.url_with_password, "--user", USER, "--password-file", str(file), users=1)
    assert (found.status, found.counts) == (0, whole(1)), found.said


@pytest.mark.parametrize(
    ("version", "failure"), [("4", "0x05 Not authorized"), ("5", "0x87 Not authorized")], ids=["v4", "v5"]
)
def test_a_refusal_has_its_reason_code(mosquitto: Mosquitto, version: str, failure: str) -> None:
    found = Outcome(mosquitto.url_with_password, "--mqtt-version", version, users=2)
    assert (found.status, found.counts["CONNECT"]) == (1, (2, 2))
    assert f"CONNECT Echo: MqttFailure('{failure}')" in found.said


def test_a_broker_that_is_not_trusted_fails(mosquitto: Mosquitto) -> None:
    other = str(mosquitto.directory / "other-ca.pem")
    found = Outcome(mosquitto.url("wss"), "--cafile", other, users=1)
    assert (found.status, found.counts["CONNECT"]) == (1, (1, 1))
    assert "MqttFailure('TLS: self-signed certificate in certificate chain')" in found.said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "http://127.0.0.1"], "locust: http://127.0.0.1: mqtt://, mqtts://, ws:// or wss://, not http://"),
        (["--payload", "/nowhere"], "locust: --payload /nowhere: neither a number of bytes nor a file: "),
        (["--host", "mqtts://127.0.0.1", "--cafile", "/nowhere"], "locust: --cafile /nowhere: No such file"),
        (["--qos", "3"], "locust: error: argument --qos: invalid choice: 3"),
    ],
    ids=["scheme", "payload", "cafile", "qos"],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        command("--headless", "-t", "1s", *arguments), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_the_web_page_starts_a_test_and_shows_it(broker: BrokerProcess, tmp_path: Path) -> None:
    page = f"http://127.0.0.1:{free_port()}"
    log = tmp_path / "log"
    with log.open("wb") as file:
        web = subprocess.Popen(
            command("--web-host", "127.0.0.1", "--web-port", page.rpartition(":")[2]),
            cwd=ROOT,
            stdout=file,
            stderr=file,
        )
    try:
        wait_until(lambda: reads(page) is not None or web.poll() is not None, 60, "the page is there")
        assert "client_prefix" in (reads(page) or ""), log.read_text()
        # the form of a browser: every field, most of them empty
        form = {"user_count": 2, "spawn_rate": 10, "host": url(broker), "qos": "1", "cafile": "", "session_expiry": "",
                "mqtt_version": "", "rate": "", "client_prefix": "web-"}  # fmt: skip
        answer = urllib.request.urlopen(f"{page}/swarm", urllib.parse.urlencode(form).encode(), timeout=60)
        assert json.load(answer)["success"]
        expected = {"CONNECT": 2, "SUBSCRIBE": 2, "PUBLISH": 2 + 4 * MESSAGES, "DELIVERY": 4 * MESSAGES, "RECEIVED": 2}
        wait_until(lambda: requests(page) == expected, 60, "all of it is shown")
        web.send_signal(signal.SIGINT)
        assert web.wait(60) == 0, log.read_text()
    finally:
        web.kill()
        web.wait()


def reads(page: str) -> str | None:
    """Return the page's text, None while the server does not answer."""
    try:
        return str(urllib.request.urlopen(page, timeout=60).read().decode())
    except OSError:
        return None


def requests(page: str) -> dict[str, int]:
    stats = json.load(urllib.request.urlopen(f"{page}/stats/requests", timeout=60))["stats"]
    return {entry["method"]: entry["num_requests"] for entry in stats if entry["method"]}


def test_the_tools_have_one_door() -> None:
    def said(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "loadtest", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
        )

    assert "python -m loadtest TOOL" in said("--help").stdout
    for tool in ("flood", "compare", "plan"):
        assert re.match(rf"usage: .*{tool}", said(tool, "--help").stdout)
    assert "--client-prefix" in said("locust", "-f", str(USERS), "--help").stdout
    wrong = said("fload")
    assert (wrong.returncode, wrong.stderr) == (2, "loadtest: no tool fload: locust, flood, compare, plan\n")
    assert said().returncode == 2
