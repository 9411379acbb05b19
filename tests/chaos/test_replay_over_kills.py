"""Workers die one after the other while clients publish and others replay: no acknowledged message is skipped, the
order of each publisher is kept, and only the last moments before a connection ended are repeated.

Readers reconnect with the position of the last message they got, or have a lasting session.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.broker_process import KIND, BrokerProcess
from tests.chaos.conftest import StartBroker
from tests.waiting import let_pass
from tests.wire import Client, Closed

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="mosquitto has no archive")

WORKERS = 4
ROUNDS = 6
DEADLINE_SECONDS = 60.0
NEVER = 0xFFFFFFFF
BROKEN = (Closed, OSError, TimeoutError, AssertionError)
"""Exceptions of a client whose worker dies; an AssertionError is a packet that was cut off, or CONNACK 0x88."""


class Publisher(threading.Thread):
    """Publishes numbers one after the other, at QoS 1, each until it is acknowledged."""

    def __init__(self, broker: BrokerProcess, name: str, stopped: threading.Event) -> None:
        super().__init__()
        self.broker = broker
        self.name = name
        self.stopped = stopped
        self.acknowledged = -1
        """All numbers up to this one are acknowledged."""
        self.sent_again: set[int] = set()

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                with closing(Client(self.broker.address, 5)) as client:
                    client.connect(self.name)
                    self.publish(client)
            except BROKEN:
                self.sent_again.add(self.acknowledged + 1)
                let_pass(0.02)

    def publish(self, client: Client) -> None:
        while not self.stopped.is_set():
            number = self.acknowledged + 1
            client.publish(f"a/{self.name}", b"%s %d" % (self.name.encode(), number), qos=1)
            self.acknowledged = number


class Reader(threading.Thread):
    """Reads everything, from the earliest message on. `lasting`: the broker keeps its position."""

    def __init__(self, broker: BrokerProcess, name: str, lasting: bool) -> None:
        super().__init__()
        self.broker = broker
        self.name = name
        self.lasting = lasting
        self.position = "earliest"
        self.got: list[bytes] = []
        self.connections = 0
        self.is_complete: Callable[[set[bytes]], bool] = lambda _: False

    def run(self) -> None:
        seen: set[bytes] = set()
        ends = time.monotonic() + DEADLINE_SECONDS
        while not self.is_complete(seen) and time.monotonic() < ends:
            try:
                with closing(Client(self.broker.address, 5)) as client:
                    self.read(client, seen, ends)
            except BROKEN:
                let_pass(0.02)

    def read(self, client: Client, seen: set[bytes], ends: float) -> None:
        expiry = {"session_expiry_interval": NEVER} if self.lasting else {}
        client.connect(self.name, clean=not self.lasting, properties=expiry)
        self.connections += 1
        if not client.connack.session_present:
            asked = {"user_property": [("mqttd-offset", self.position)]}
            assert client.subscribe(("a/#", 1), properties=asked) == (1,)
        while not self.is_complete(seen) and time.monotonic() < ends:
            packet = client.read(1.0)
            assert packet.kind == "PUBLISH", packet
            self.got.append(packet.payload)
            seen.add(packet.payload)
            self.position = dict(packet.properties["user_property"])["mqttd-offset"]
            client.ack("PUBACK", packet.packet_id)


def test_workers_die_while_some_publish_and_some_replay(tmp_path: Path, start_broker: StartBroker) -> None:
    config = tmp_path / "mqttd.toml"
    config.write_text('[[archive]]\nfilter = "a/#"\nhours = 1\nbytes = "1GB"\n')
    broker = start_broker(WORKERS, "--store", "leveldb", "--data-dir", str(tmp_path / "data"), "--config", str(config))
    stopped = threading.Event()
    publishers = [Publisher(broker, f"publisher-{number}", stopped) for number in range(WORKERS)]
    readers = [Reader(broker, f"reader-{number}", lasting=number % 2 == 1) for number in range(4)]
    for thread in (*publishers, *readers):
        thread.start()
    for worker in itertools.islice(itertools.cycle(range(WORKERS)), ROUNDS):
        let_pass(0.3)
        broker.kill_worker(worker)
    let_pass(0.3)
    stopped.set()
    for publisher in publishers:
        publisher.join()
    wanted = {b"%s %d" % (each.name.encode(), number) for each in publishers for number in range(each.acknowledged + 1)}
    for reader in readers:
        reader.is_complete = wanted.issubset
    for reader in readers:
        reader.join()
    for reader in readers:
        missing = wanted - set(reader.got)
        assert not missing, f"{reader.name} misses {len(missing)}: {sorted(missing)[:5]}"
        check_order(reader, publishers)
        assert reader.connections > 1


def check_order(reader: Reader, publishers: list[Publisher]) -> None:
    for each in publishers:
        numbers = [int(body.split()[1]) for body in dict.fromkeys(reader.got) if body.split()[0] == each.name.encode()]
        numbers = [number for number in numbers if number not in each.sent_again]
        assert numbers == sorted(numbers), f"{reader.name}, {each.name}"
