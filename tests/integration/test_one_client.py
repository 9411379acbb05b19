"""The most that a client can do to its broker is to end its own connection. Over sockets, with the default limits."""

from __future__ import annotations

import itertools
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.testing import wait_until
from shards.placement import home
from tests import wire
from tests.broker_process import KIND, BrokerProcess
from tests.integration.test_admin import report
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="the processes and settings of mqttd")

ROOT = Path(__file__).resolve().parents[2]
RESPONSES = "responses/"
TOPIC_BYTES_MAX = 4096
SECONDS_MAX = 60.0
DIES = """
import os, signal
from broker.clients.subscribing import Subscribing
subscribe = Subscribing.subscribe
def dying(self, conn, session, packet):
    if any(item.filter == b"die" for item in packet.filters):
        os.kill(os.getpid(), signal.SIGSEGV)
    return subscribe(self, conn, session, packet)
Subscribing.subscribe = dying
"""


@pytest.fixture(params=[1, 2])
def answering(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A broker that grants Response Information."""
    environment = {"MQTTD_PROTOCOL__RESPONSE_INFORMATION": RESPONSES}
    broker = BrokerProcess(request.param, environment=environment)
    with broker:
        yield broker


@pytest.mark.mqtt("5:3.1.2-28")
@pytest.mark.parametrize(
    "letters",
    [TOPIC_BYTES_MAX - len(RESPONSES), TOPIC_BYTES_MAX - len(RESPONSES) + 1, 65_525, 65_526, 65_530, 65_535],
)
def test_a_client_id_that_leaves_no_room_for_response_information(answering: BrokerProcess, letters: int) -> None:
    """The client gets none if no topic could begin with it, and is served like any other."""
    before = answering.worker_pids()
    with closing(Client(answering.address, 5)) as client:
        client.send(wire.connect(5, "x" * letters, properties={"request_response_information": 1}))
        told = client.expect("CONNACK", reason=0).properties.get("response_information")
        assert told == (RESPONSES + "x" * letters if len(RESPONSES) + letters <= TOPIC_BYTES_MAX else None)
        client.subscribe("t", qos=1)
        client.publish("t", b"served", qos=1)
        client.receive("t", b"served")
    assert answering.worker_pids() == before


def test_a_worker_that_dies_of_a_clients_packet_names_the_client(tmp_path: Path) -> None:
    """Scenario: a packet kills the worker, twice; a worker killed in another way names no client."""
    (tmp_path / "sitecustomize.py").write_text(DIES)
    killer = next(name for name in (f"killer-{i}" for i in range(99)) if home(name, 2) == 0)
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    broker = BrokerProcess(2, ["--log-format", "json"], {"PYTHONPATH": path, "MQTTD_STORE": "memory"})
    with broker:
        for times in (1, 2):
            died = killed_by_a_packet(broker, killer, times)
            assert died["worker"] == 0
            assert (died["client_in_hand"], died["packet_in_hand"]) == (killer, "SUBSCRIBE")
            assert died["deaths_with_this_client"] == times
        os.kill(broker.worker_pids()[1], signal.SIGKILL)
        logged(broker, "worker_died", 3)
        assert "client_in_hand" not in broker.logged("worker_died")[-1]


def killed_by_a_packet(broker: BrokerProcess, client_id: str, times: int) -> dict[str, Any]:
    """Kill the worker by a packet and return its last worker_died line; there must be so many by now."""
    with closing(Client(broker.address, 5)) as client:
        client.connect(client_id)
        client.send(wire.subscribe(5, 1, ("die", 1)))
        logged(broker, "worker_died", times)
    logged(broker, "worker_ready", 2 + times)
    return broker.logged("worker_died")[-1]


def logged(broker: BrokerProcess, event: str, times: int) -> None:
    """Wait for so many lines of the event."""
    wait_until(lambda: len(broker.logged(event)) == times, SECONDS_MAX, f"{event} {times} times")


def test_publishes_that_cost_much_keep_no_timer_from_running() -> None:
    """A publish walks all the filters that differ from its topic at their end; pings wake the worker in between. The
    rest of the work wakes the worker again, but once: its heartbeat continues.
    """
    filters = ["/".join(levels) + "/x" * 40 for levels in itertools.product("x+", repeat=12)]
    environment = {"MQTTD_LIMITS__FILTERS_PER_SECOND_MAX": "0", "MQTTD_LIMITS__WILDCARD_ARRANGEMENTS_MAX": "0"}
    broker = BrokerProcess(1, ["--admin", "127.0.0.1:0"], environment)
    with broker, closing(Client(broker.address, 5)) as wide, closing(Client(broker.address, 5)) as other:
        wide.connect()
        for end in "ab":
            for at in range(0, len(filters), 512):
                wide.subscribe(*[f"{each}/{end}" for each in filters[at : at + 512]])
        other.connect()
        topic = "/".join("x" * 52) + "/"
        wide.send(*[wire.publish(5, f"{topic}{number}") for number in range(600)], wire.PINGREQ)
        began, oldest = time.monotonic(), 0.0
        until = began + SECONDS_MAX
        while not select.select([wide.socket], [], [], 0)[0]:
            for _ in range(5):
                other.expect_silence()
            oldest = max(oldest, report(broker, "/health")["workers"][0]["heartbeat_age_seconds"])
            assert time.monotonic() < until
        wide.expect("PINGRESP")
        seconds = time.monotonic() - began
    # in one piece the heartbeat would stand still all the time
    assert oldest < max(1.5, seconds / 2)
