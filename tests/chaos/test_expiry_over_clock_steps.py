"""Expiry follows real time, over steps of the wall clock and restarts of workers and of the whole broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyx.core.placement import owner
from tests import wire
from tests.broker_process import BrokerProcess
from tests.chaos.crowd import ids_on
from tests.mqttd_command import mqttd
from tests.stepped_clock import SteppedClock
from tests.waiting import let_pass, wait_until
from tests.wire import Client, Will

WORKERS = 4
HOUR = 3600
OpenTo = Callable[[BrokerProcess, int], Client]
LASTING = [
    next(name for n in itertools.count() if owner((name := f"short/z{n}").encode(), WORKERS) == worker)
    for worker in range(WORKERS)
]
"""A topic of each worker, last in its answer to a subscription to short/#."""


def steps() -> list[Any]:
    """Return (seconds while it runs, seconds while it does not, whether it is killed): every step in both ways; in the
    short version, each step in one of the two.
    """
    found = []
    for number, step in enumerate([(2 * HOUR, 0), (-2 * HOUR, 0), (0, -2 * HOUR), (50 * 365 * 24 * HOUR, 0)]):
        for killed in (False, True):
            marks = [] if killed == bool(number % 2) else [pytest.mark.long]
            found.append(pytest.param(*step, killed, id=f"{number}-{'killed' if killed else 'stopped'}", marks=marks))
    return found


@pytest.mark.mqtt("5:3.3.2-5", "5:3.3.2-6", "5:3.1.2-23")
@pytest.mark.parametrize(("step", "away", "killed"), steps())
def test_an_hour_is_an_hour(open_to: OpenTo, tmp_path: Path, step: int, away: int, killed: bool) -> None:
    """`step`: the clock is set while the broker runs, `away`: while it does not. Afterwards a retained message, a
    queued message and an offline session have an hour less some seconds left, on all workers.
    """
    clock = SteppedClock(tmp_path)
    broker = BrokerProcess(WORKERS, ["--log-format", "json"], {**clock.environment, "MQTTD_STORE": "leveldb"}).start()
    ids = [next(ids_on(worker, WORKERS, "c")) for worker in range(WORKERS)]
    lasting = {"session_expiry_interval": HOUR}
    try:
        clients = [open_to(broker, 5) for _ in ids]
        for name, client in zip(ids, clients, strict=True):
            client.connect(name, properties=lasting)
            client.subscribe("waits/#", qos=1)
        for client in clients[1:]:
            client.disconnect()
        for number in range(8):
            for topic, retain in ((f"kept/{number}", True), (f"waits/{number}", False)):
                clients[0].publish(topic, b"x", qos=1, retain=retain, properties={"message_expiry_interval": HOUR})
        clock.step(step)
        if step:
            # the supervisor checks every second
            wait_until(lambda: "clock_stepped" in broker.logs, 60.0, "the supervisor has noticed")
        if killed:
            broker.kill()
        else:
            assert broker.stop() == 0
        clock.step(away)
        broker.start()
        for name in ids:
            client = open_to(broker, 5)
            assert client.connect(name, clean=False, properties=lasting).session_present, name
            client.subscribe("kept/#")
            left = waiting(client, 16)
            assert all(HOUR - 60 <= each <= HOUR for each in left), left
        assert broker.stop() == 0
    finally:
        broker.kill()
        broker.forget()


def waiting(client: Client, messages: int) -> list[int]:
    """Return the seconds that each of the next messages has left."""
    left: list[int] = []
    while len(left) < messages:
        packet = client.expect("PUBLISH")
        left.append(packet.properties["message_expiry_interval"])
        if packet.qos:
            client.ack("PUBACK", packet.packet_id)
    return left


def test_an_hour_is_an_hour_in_a_copy_and_with_other_workers(open_to: OpenTo, tmp_path: Path) -> None:
    """Expiry holds after the clock is set and a snapshot is taken, restored and served by another number of workers."""
    clock = SteppedClock(tmp_path)
    environment = {**clock.environment, "MQTTD_STORE": "leveldb"}
    brokers = [BrokerProcess(2, environment={**environment, "MQTTD_DATA_DIR": str(tmp_path / "first")})]
    lasting = {"session_expiry_interval": HOUR}
    try:
        brokers[0].start()
        client = open_to(brokers[0], 5)
        client.connect("c", properties=lasting)
        client.subscribe("waits/#", qos=1)
        client.disconnect()
        publisher = open_to(brokers[0], 5)
        publisher.connect("p")
        clock.step(50 * HOUR)
        wait_until(lambda: "clock_stepped" in brokers[0].logs, 60.0, "the supervisor has noticed")
        for number in range(8):
            for topic, retain in ((f"kept/{number}", True), (f"waits/{number}", False)):
                publisher.publish(topic, b"x", qos=1, retain=retain, properties={"message_expiry_interval": HOUR})
        taken = mqttd("snapshot", "--data-dir", tmp_path / "first", "--out", tmp_path / "snapshot")
        assert taken.status == 0, taken.err
        restored = mqttd("restore", "--from", tmp_path / "snapshot", "--data-dir", tmp_path / "second")
        assert restored.status == 0, restored.err
        brokers.append(BrokerProcess(3, environment={**environment, "MQTTD_DATA_DIR": str(tmp_path / "second")}))
        brokers[1].start()
        client = open_to(brokers[1], 5)
        assert client.connect("c", clean=False, properties=lasting).session_present
        client.subscribe("kept/#")
        left = waiting(client, 16)
        assert all(HOUR - 60 <= each <= HOUR for each in left), left
        assert [each.stop() for each in brokers] == [0, 0]
    finally:
        for each in brokers:
            each.kill()
            each.forget()


@pytest.mark.mqtt("5:3.3.2-5", "5:3.1.3-9")
@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR])
def test_seconds_pass_for_all_workers_alike(open_to: OpenTo, tmp_path: Path, step: int) -> None:
    """After the clock is set and one worker replaced, a message that expires after two seconds is gone on every worker
    then and not before, and a will that waits a second is published.
    """
    clock = SteppedClock(tmp_path)
    broker = BrokerProcess(WORKERS, ["--log-format", "json"], {**clock.environment, "MQTTD_STORE": "memory"}).start()
    try:
        clock.step(step)
        broker.kill_worker(0)
        clients = [open_to(broker, 5) for _ in range(WORKERS)]
        for worker, client in enumerate(clients):
            client.connect(next(ids_on(worker, WORKERS, "c")))
        watcher = clients[3]
        watcher.subscribe("will/+")
        mortal = open_to(broker, 5)
        will = Will("will/1", b"gone", properties={"will_delay_interval": 1})
        mortal.connect(next(ids_on(0, WORKERS, "m")), will=will, properties={"session_expiry_interval": HOUR})
        mortal.close()
        for worker, client in enumerate(clients):
            for number in range(4):
                expiry = {"message_expiry_interval": 2}
                client.publish(f"short/{worker}/{number}", b"x", qos=1, retain=True, properties=expiry)
        for topic in LASTING:
            clients[0].publish(topic, b"x", qos=1, retain=True)
        found = [retained(client) for client in clients]
        assert all(each.keys() == found[0].keys() and len(each) == 20 for each in found)
        assert all(1 <= left <= 2 for each in found for left in each.values() if left)
        watcher.expect("PUBLISH", topic="will/1")
        let_pass(2.2)
        assert [retained(client) for client in clients] == [dict.fromkeys(LASTING, 0)] * WORKERS
        assert broker.stop() == 0
    finally:
        broker.kill()
        broker.forget()


def retained(client: Client) -> dict[str, int]:
    """Return the topics of retained messages, with the seconds that they have left; 0: they do not expire."""
    found: dict[str, int] = {}
    client.subscribe("short/#")
    while not found.keys() >= set(LASTING):
        packet = client.expect("PUBLISH", retain=True)
        found[packet.topic] = packet.properties.get("message_expiry_interval", 0)
    client.unsubscribe("short/#")
    client.send(wire.PINGREQ)
    client.expect("PINGRESP")
    return found
