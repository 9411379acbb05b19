"""Several listeners: a connection keeps its listener's number, also at its home, in log lines and in metrics."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_process import KIND, BrokerProcess
from tests.chaos.crowd import ids_on
from tests.integration.test_admin import samples
from tests.waiting import wait_until
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="listeners, logs and metrics are mqttd's own")

OwnBroker = Callable[..., BrokerProcess]
SECONDS = 60.0
TABLES = """\
[[listener]]
name = "plant"
port = 0
host = "127.0.0.1"

[[listener]]
name = "office.2"
kind = "tcp"
port = 0
host = ["127.0.0.1"]
"""


@pytest.fixture
def start(own_broker: OwnBroker, tmp_path: Path) -> Callable[..., BrokerProcess]:
    """``start(tables, workers, arguments)``: a broker with such a configuration file."""

    def started(tables: str, workers: int = 1, *arguments: str) -> BrokerProcess:
        file = tmp_path / "mqttd.toml"
        file.write_text(tables)
        flags = ["--config", str(file), "--log-format", "json", "--admin", "127.0.0.1:0", *arguments]
        return own_broker(workers, flags)

    return started


@pytest.fixture
def dial() -> Iterator[Callable[[str], Client]]:
    """``dial("HOST:PORT")``: return a connection, closed with the test."""
    opened: list[Client] = []

    def dialled(address: str) -> Client:
        host, _, port = address.rpartition(":")
        opened.append(Client((host, int(port)), 5))
        return opened[-1]

    yield dialled
    for each in opened:
        each.close()


def figures(broker: BrokerProcess, name: str) -> dict[str, float]:
    """Return the metric by listener, over all workers."""
    found: dict[str, float] = {}
    for labels, value in samples(broker, name):
        found[labels["listener"]] = found.get(labels["listener"], 0) + value
    return found


def test_a_connection_is_counted_and_logged_with_its_listener_wherever_it_lives(
    start: Callable[..., BrokerProcess], dial: Callable[[str], Client], workers: int
) -> None:
    broker = start(TABLES, workers)
    addresses: list[str] = broker.logged("start")[0]["listeners"]
    names = ["default", "plant", "office.2"]
    assert len(addresses) == 3
    assert int(addresses[0].rpartition(":")[2]) == broker.port
    came: dict[str, str] = {}
    for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
        for worker in range(workers):  # most are handed off to a worker that did not accept them
            for client_id, _ in zip(ids_on(worker, workers, f"l{number}-"), range(number + 1), strict=False):
                dial(address).connect(client_id)
                came[client_id] = name
    assert {line["client"]: line["listener"] for line in broker.logged("connection_opened")} == came
    expected = {name: float(workers * (number + 1)) for number, name in enumerate(names)}
    assert figures(broker, "mqttd_listener_connections_accepted_total") == expected
    wait_until(lambda: figures(broker, "mqttd_listener_connections") == expected, SECONDS, "each has its connections")
    host, _, port = addresses[1].rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(10) == b""
    wait_until(lambda: bool(broker.logged("connection_refused")), SECONDS, "the stranger is refused")
    assert broker.logged("connection_refused")[0]["listener"] == "plant"


def test_of_a_worker_that_dies_no_connection_is_left_and_what_was_accepted_stays_counted(
    start: Callable[..., BrokerProcess], dial: Callable[[str], Client]
) -> None:
    broker = start(TABLES, 1)
    plant = broker.logged("start")[0]["listeners"][1]
    dial(plant).connect("one")
    wait_until(lambda: figures(broker, "mqttd_listener_connections")["plant"] == 1, SECONDS, "it is counted")
    broker.kill_worker(0)
    assert figures(broker, "mqttd_listener_connections") == {"default": 0, "plant": 0, "office.2": 0}
    dial(plant).connect("one")  # the socket has outlived the worker
    assert figures(broker, "mqttd_listener_connections_accepted_total")["plant"] == 2
    assert figures(broker, "mqttd_listener_connections")["plant"] == 1


def test_a_reload_says_that_listeners_need_a_restart(start: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = start(TABLES)
    since = broker.stderr_size()
    (tmp_path / "mqttd.toml").write_text(TABLES.replace("plant", "field"))
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: bool(broker.logged("reload_needs_restart", since)), SECONDS, "it is said")
    assert broker.logged("reload_needs_restart", since)[0]["keys"] == ["listener"]
    wait_until(lambda: bool(broker.logged("reloaded", since)), SECONDS, "the rest is reloaded")
    line: dict[str, Any] = broker.logged("reloaded", since)[0]
    assert line["level"] == "info"
