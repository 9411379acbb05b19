"""What clients make a worker hold, up to its bounds, is given back when they are gone: queues, retained messages,
outboxes, packets that never become whole, subscriptions.
"""

from __future__ import annotations

import itertools

import pytest

from tests import wire
from tests.broker_process import STORES, BrokerProcess
from tests.chaos.conftest import Record, StartBroker
from tests.waiting import wait_until
from tests.wire import Client

MIB = 1 << 20
LIMITS = {
    "queue_bytes_max": MIB,
    "retained_bytes_max": 20 * MIB,
    "outbox_bytes_max": MIB,
    "packet_bytes_max": 5 * MIB,
    "filters_per_session_max": 10_000,
    "filters_per_second_max": 0,
    "user_property_bytes_max": 4096,
}
ROUNDS = 2
ROOM_BYTES = 6 * MIB  # what an allocator may keep, and an interpreter grow, between two rounds
RELEASE_SECONDS_MAX = 40.0

_numbers = itertools.count()


class Burden:
    """Clients that fill everything they may."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.name = f"b{next(_numbers)}"
        self.clients: list[Client] = []
        self.publisher = self.client("publisher")

    def client(self, client_id: str = "", version: int = 4, **options: object) -> Client:
        self.clients.append(Client(self.broker.address, version))
        if client_id:
            self.clients[-1].connect(f"{self.name}{client_id}", **options)
        return self.clients[-1]

    def fill(self) -> None:
        """Of each kind about 20 MB, where its bound allows it."""
        body = b"x" * 20_000
        for number in range(20):
            offline = self.client(f"offline{number}", clean=False)
            offline.subscribe((f"{self.name}/queue/{number}", 1))
            offline.disconnect()
            deaf = self.client(f"deaf{number}")
            deaf.subscribe(f"{self.name}/out")
        for number in range(20):
            for _ in range(60):
                self.publisher.publish(f"{self.name}/queue/{number}", body, qos=1)
        for number in range(1100):
            self.publisher.publish(f"{self.name}/kept/{number}", body, qos=1, retain=True)
        for _ in range(200):
            self.publisher.publish(f"{self.name}/out", body)
        self.publisher.expect_silence()
        for _ in range(50):
            self.client().send(bytes((0x10,)) + wire.varint(380_000) + b"\0\4MQTT\4\2\0\0" + bytes(370_000))
        for number in range(4):
            whole = wire.publish(4, self.name, bytes(4 * MIB))
            self.client(f"part{number}").send(whole[:-10])
        many = self.client("many")
        for first in range(0, 10_000, 1000):
            many.subscribe(*(f"{self.name}/filter/{first + number}" for number in range(1000)))

    def lift(self) -> None:
        """Everything is given up."""
        for number in range(1100):
            self.publisher.publish(f"{self.name}/kept/{number}", retain=True)
        self.publisher.expect_silence()
        for number in range(20):
            self.client(f"offline{number}", clean=True).disconnect()
        for client in self.clients:
            client.close()


@pytest.mark.parametrize("store", STORES)
def test_what_was_held_up_to_the_bounds_is_given_back(
    store: str, start_broker: StartBroker, record_property: Record
) -> None:
    broker = start_broker(1, "--store", store, **LIMITS)
    after: list[int] = []
    for _ in range(ROUNDS + 1):
        before = broker.pss_bytes()
        burden = Burden(broker)
        burden.fill()
        full = broker.pss_bytes()
        assert full > before + 60 * MIB
        burden.lift()
        allowed = after[0] + ROOM_BYTES if after else full - 60 * MIB
        wait_until(lambda: broker.pss_bytes() <= allowed, RELEASE_SECONDS_MAX, f"{full} bytes fall to {allowed}")  # noqa: B023
        after.append(broker.pss_bytes())
    record_property("pss_bytes_after_each_round", after)
