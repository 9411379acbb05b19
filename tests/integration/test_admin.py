"""The admin interface of a real broker: its answers, and figures that agree with what clients count."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shards.placement import home
from shards.worker_requests import REQUEST_SECONDS_MAX
from tests.broker_process import KIND, ROOT, BrokerProcess
from tests.waiting import wait_until
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no admin interface")

SECONDS_MAX = 60.0
ADMIN = ["--admin", "127.0.0.1:0"]
OwnBroker = Callable[..., BrokerProcess]
OpenClient = Callable[[BrokerProcess, int], Client]


@pytest.fixture
def open_client() -> Iterator[OpenClient]:
    """``open_client(broker, version)``: return a connection, closed at the end."""
    opened: list[Client] = []

    def open_one(broker: BrokerProcess, version: int) -> Client:
        opened.append(Client(broker.address, version))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def ask(broker: BrokerProcess, path: str, method: str = "GET", seconds: float = SECONDS_MAX) -> tuple[int, str, bytes]:
    """Return (status, content type, body)."""
    connection = http.client.HTTPConnection(*broker.admin, timeout=seconds)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def status_of(broker: BrokerProcess, path: str) -> int:
    return ask(broker, path)[0]


def report(broker: BrokerProcess, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(broker, path)[2])
    return found


def totals(broker: BrokerProcess) -> dict[str, float]:
    """Return every metric, summed over the workers and other labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(ask(broker, "/metrics")[2].decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def samples(broker: BrokerProcess, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and the value of each sample of a metric."""
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(ask(broker, "/metrics")[2].decode())
        for sample in family.samples
        if sample.name == name
    ]


def ids_on(worker: int, workers: int) -> str:
    """Return a client id whose home is that worker."""
    return next(f"c{n}" for n in range(1000) if home(f"c{n}", workers) == worker)


def test_health_ready_and_errors(own_broker: OwnBroker) -> None:
    """The JSON names every worker; paths that do not exist and methods not allowed give a problem document."""
    broker = own_broker(2, ADMIN)
    wait_until(lambda: status_of(broker, "/ready") == 200, SECONDS_MAX, "it is ready")
    for path, said in (("/health", "ok"), ("/ready", "ready")):
        status, kind, body = ask(broker, path)
        assert (status, kind) == (200, "application/json")
        found = json.loads(body)
        assert (found["status"], found["broker"], found["supervisor"]["pid"]) == (said, "serving", broker.pid)
        assert {each["worker"]: each["pid"] for each in found["workers"]} == broker.worker_pids()
        assert [each["state"] for each in found["workers"]] == ["ready", "ready"]
        assert max(each["heartbeat_age_seconds"] for each in found["workers"]) < 3.0
    for method, path, status in (("GET", "/nothing", 404), ("POST", "/ready", 405), ("DELETE", "/metrics", 405)):
        answered, kind, body = ask(broker, path, method)
        assert (answered, kind) == (status, "application/problem+json")
        assert json.loads(body)["status"] == status
    assert ask(broker, "/ready", "HEAD") == (200, "application/json", b"")


@pytest.mark.parametrize("store", ["memory", "leveldb"])
def test_stores_are_what_the_workers_answer(own_broker: OwnBroker, open_client: OpenClient, store: str) -> None:
    """Workers answer for both kinds of store, through the supervisor and back."""
    broker = own_broker(2, [*ADMIN, "--store", store])
    for worker in (0, 1):
        client = open_client(broker, 5)
        client.connect(ids_on(worker, 2), clean=False, properties={"session_expiry_interval": 100})
        client.subscribe(("t", 1))
    publisher = open_client(broker, 5)
    publisher.connect("publisher")
    for number in range(4):
        publisher.publish(f"retained/{number}", b"x", qos=1, retain=True)

    def stores() -> list[dict[str, Any]]:
        status, kind, body = ask(broker, "/api/v1/stores")
        assert (status, kind) == (200, "application/json")
        found: list[dict[str, Any]] = json.loads(body)["stores"]
        return found

    def is_all() -> bool:
        found = stores()
        many = [sum(each[name] for each in found) for name in ("retained_messages", "sessions", "subscriptions")]
        return many == [4, 3, 2]

    wait_until(is_all, SECONDS_MAX, "the gauges are written")
    found = stores()
    assert [each["worker"] for each in found] == [0, 1]
    assert [each["kept"] for each in found] == [store == "leveldb"] * 2
    assert not any(each["full"] or each["failed"] for each in found)


def test_a_worker_that_does_not_answer_is_named(own_broker: OwnBroker) -> None:
    """The answers of the others are shown; the next request finds all workers again."""
    broker = own_broker(2, ADMIN)
    wait_until(lambda: status_of(broker, "/ready") == 200, SECONDS_MAX, "it is ready")
    os.kill(broker.worker_pids()[1], signal.SIGSTOP)  # until it is killed as hung
    status, kind, body = ask(broker, "/api/v1/stores", seconds=2 * REQUEST_SECONDS_MAX)
    assert (status, kind) == (503, "application/json")
    well, ill = json.loads(body)["stores"]
    assert well["worker"] == 0
    assert "error" not in well
    assert ill["worker"] == 1
    assert ill["error"] in (
        "worker 1 has died",
        f"worker 1 has not answered in {REQUEST_SECONDS_MAX:g} s",
    )
    wait_until(lambda: status_of(broker, "/api/v1/stores") == 200, 3 * SECONDS_MAX, "worker 1 is back")


def test_metrics_agree_with_what_clients_count(own_broker: OwnBroker, open_client: OpenClient, workers: int) -> None:
    """Connections, messages, bytes and payloads, in and out, agree to the byte, on any worker."""
    broker = own_broker(workers, ADMIN)
    clients = [open_client(broker, 4 + number % 2) for number in range(8)]
    sent = received = 0

    def counted(client: Client) -> Client:
        send, recv = client.send, client._fill

        def count_sent(*packets: bytes) -> None:
            nonlocal sent
            sent += sum(len(each) for each in packets)
            send(*packets)

        def count_received(count: int, seconds: float) -> None:
            nonlocal received
            before = len(client.received)
            recv(count, seconds)
            received += len(client.received) - before

        client.send = count_sent  # type: ignore[method-assign]
        client._fill = count_received  # type: ignore[method-assign]
        return client

    for number, client in enumerate(clients):
        counted(client).connect(f"c{number}")
    for client in clients:
        client.subscribe("all/#", qos=1)
        client.subscribe(f"own/{client.last_packet_id}", "$share/g/shared", qos=1)
    for number, client in enumerate(clients):
        client.publish(f"all/{number}", b"x" * 100, qos=number % 3, retain=number < 3)
        for each in clients:
            each.receive(f"all/{number}", b"x" * 100)
    for client in clients:
        client.expect_silence()
    for client in clients[:2]:
        client.disconnect()
    wait_until(lambda: totals(broker)["mqtt_connections_current"] == 6, SECONDS_MAX, "two are gone")
    # each worker writes its gauges on its own timer
    wait_until(
        lambda: totals(broker)["mqttd_shared_subscriptions"] == totals(broker)["mqtt_sessions_active"] == 6,
        SECONDS_MAX,
        "the gauges are of now",
    )
    found = totals(broker)
    assert {name: found[name] for name in (
        "mqtt_connections_total", "mqtt_messages_received_total", "mqtt_messages_sent_total",
        "mqttd_publish_bytes_received_total", "mqttd_publish_bytes_sent_total", "mqtt_retained_messages",
        "mqtt_sessions_active", "mqttd_shared_subscriptions", "mqtt_messages_dropped_total",
    )} == {
        "mqtt_connections_total": 8, "mqtt_messages_received_total": 8, "mqtt_messages_sent_total": 64,
        "mqttd_publish_bytes_received_total": 800, "mqttd_publish_bytes_sent_total": 6400, "mqtt_retained_messages": 3,
        "mqtt_sessions_active": 6, "mqttd_shared_subscriptions": 6, "mqtt_messages_dropped_total": 0,
    }  # fmt: skip
    assert found["mqtt_bytes_received_total"] == sent
    assert found["mqtt_bytes_sent_total"] == received
    # CONNECT, SUBSCRIBE twice, PINGREQ; PUBLISH, PUBREL of QoS 2; PUBACK for each of the copies of QoS 1
    publishes, releases, answered = 8, 2, 8 * 5
    assert found["mqttd_packets_received_total"] == 8 * 4 + publishes + releases + answered + 2
    # CONNACK, SUBACK twice, PINGRESP; PUBACK, PUBREC, PUBCOMP
    assert found["mqttd_answers_sent_total"] == 8 * 4 + 3 + 2 + 2
    assert found["mqtt_publish_duration_seconds_count"] > 0
    assert found["mqtt_delivery_duration_seconds_count"] > 0
    if workers > 1:
        assert found["mqttd_link_messages_total"] > 0
        wait_until(lambda: not totals(broker)["mqttd_link_unacknowledged_batches"], SECONDS_MAX, "all is acknowledged")


def test_a_killed_worker_is_not_ready_and_its_totals_stay(own_broker: OwnBroker, open_client: OpenClient) -> None:
    """/ready 503, then 200; no total falls; the dead worker's gauges read 0; its log had matched nothing."""
    broker = own_broker(2, [*ADMIN, "--store", "memory"])
    offline, publisher = open_client(broker, 5), open_client(broker, 5)
    offline.connect(ids_on(1, 2), properties={"session_expiry_interval": 100})
    offline.subscribe("kept/#", qos=1)
    offline.disconnect()
    publisher.connect(ids_on(0, 2))
    for _ in range(5):
        publisher.publish("kept/x", b"x", qos=1)
    stays = open_client(broker, 5)
    stays.connect(ids_on(1, 2) + "x" if home(ids_on(1, 2) + "x", 2) == 1 else next(
        f"d{n}" for n in range(1000) if home(f"d{n}", 2) == 1))  # fmt: skip
    stays.subscribe("kept/#", qos=0)
    wait_until(lambda: totals(broker)["mqttd_log_messages"] == 5, SECONDS_MAX, "five wait")
    before = totals(broker)
    assert before["mqtt_connections_current"] == 2
    os.kill(broker.worker_pids()[1], signal.SIGSTOP)  # so that the time in between cannot be missed
    os.kill(broker.worker_pids()[1], signal.SIGKILL)
    wait_until(lambda: report(broker, "/ready")["workers"][1]["restarts"] == 1, SECONDS_MAX, "it was restarted")
    wait_until(lambda: status_of(broker, "/ready") == 200, SECONDS_MAX, "it serves again")
    after = totals(broker)
    assert not {name: (before[name], after[name]) for name in before if name.endswith("_total")
                and after[name] < before[name]}  # fmt: skip
    assert after["mqtt_connections_current"] == 1
    assert after["mqtt_sessions_active"] == 1
    assert after["mqttd_log_messages"] == 0
    assert after["mqttd_worker_restarts_total"] == 1
    # Messages that wait in a log are not matched yet: those five were never counted as copies.
    assert after["mqttd_matched_total"] == before["mqttd_matched_total"]


def test_copies_in_the_windows_of_a_killed_worker_are_worker_lost(
    own_broker: OwnBroker, open_client: OpenClient
) -> None:
    """Copies sent at QoS 1 and not acknowledged at the death: matched, and dropped with that reason; the sums agree."""
    broker = own_broker(2, ADMIN)
    subscriber, publisher = open_client(broker, 4), open_client(broker, 4)
    subscriber.connect(ids_on(1, 2))
    subscriber.subscribe("w/#", qos=1)
    publisher.connect(ids_on(0, 2))
    for number in range(7):
        publisher.publish("w/x", b"%d" % number, qos=1)
    for _ in range(7):
        subscriber.expect("PUBLISH")
    os.kill(broker.worker_pids()[1], signal.SIGKILL)
    wait_until(lambda: totals(broker)["mqtt_messages_dropped_total"] == 7, SECONDS_MAX, "they are booked as lost")
    assert b'mqtt_messages_dropped_total{reason="worker_lost",worker="1"} 7.0' in ask(broker, "/metrics")[2]
    assert totals(broker)["mqttd_matched_total"] == 7


def test_a_worker_that_is_down_is_neither_ready_nor_healthy_for_long(own_broker: OwnBroker) -> None:
    """The heartbeat of a stopped worker stands still: 503 after 5 s; 200 again when it continues."""
    broker = own_broker(2, ADMIN)
    pid = broker.worker_pids()[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: status_of(broker, "/health") == 503, SECONDS_MAX, "it is missed")
        assert report(broker, "/health")["workers"][0]["heartbeat_age_seconds"] > 5.0
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: status_of(broker, "/health") == 200, SECONDS_MAX, "it is back")


def test_the_broker_is_not_ready_while_it_stops(own_broker: OwnBroker, open_client: OpenClient) -> None:
    """/ready says 503 from SIGTERM to the end of the last worker; then the control process ends too."""
    broker = own_broker(2, ["--log-format", "json", *ADMIN])
    idle = open_client(broker, 4)
    idle.connect("idle")
    os.kill(broker.worker_pids()[home("idle", 2)], signal.SIGSTOP)
    os.kill(broker.pid, signal.SIGTERM)
    wait_until(lambda: status_of(broker, "/ready") == 503, SECONDS_MAX, "not ready")
    assert report(broker, "/ready")["broker"] == "stopping"
    os.kill(broker.worker_pids()[home("idle", 2)], signal.SIGCONT)
    wait_until(lambda: not broker.alive(), SECONDS_MAX, "it has ended")
    assert broker.stop() == 0
    assert not broker.logged("workers_killed_stopping")
    assert not broker.logged("control_died_stopping")


def mqttd_status(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker", "status", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60.0, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_mqttd_status(own_broker: OwnBroker, open_client: OpenClient) -> None:
    """A table for people, JSON for programs, exit status 0; the address from the flag or the configuration."""
    broker = own_broker(2, ADMIN)
    client = open_client(broker, 4)
    client.connect("c")
    client.publish("a", b"x", qos=1)
    address = "{}:{}".format(*broker.admin)
    wait_until(lambda: totals(broker)["mqtt_sessions_active"] == 1, SECONDS_MAX, "the session is seen")
    said = mqttd_status("--admin", address)
    assert (said.returncode, said.stderr) == (0, "")
    lines = said.stdout.splitlines()
    assert re.fullmatch(r"mqttd \d+\.\d+\.\d+: ready, serving, up \d+ s", lines[0])
    assert lines[1].split() == [
        "worker", "state", "pid", "restarts", "connections", "sessions", "subscriptions", "retained", "received",
        "sent", "dropped",
    ]  # fmt: skip
    assert lines[4].split() == ["all", "0", "1", "1", "0", "0", "1", "0", "0"]
    as_json = mqttd_status("--json", MQTTD_ADMIN=address)
    found = json.loads(as_json.stdout)
    assert (as_json.returncode, found["status"], len(found["workers"])) == (0, "ready", 2)
    assert {"name": "mqttd_uptime_seconds", "labels": {}} in [
        {key: each[key] for key in ("name", "labels")} for each in found["metrics"]
    ]
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        assert mqttd_status("--admin", address).returncode == 0, "workers serve on without their supervisor"
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_mqttd_status_of_nobody() -> None:
    """Without an answer: one line, exit status 1. Without an address: 2."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        said = mqttd_status("--admin", address)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == f"mqttd: no answer from {address}: Connection refused\n"
    for arguments, environment in ((("--admin", "8083"), {}), ((), {"MQTTD_ADMIN": "none"})):
        said = mqttd_status(*arguments, **environment)
        assert said.returncode == 2
        assert said.stderr.count("\n") == 1
