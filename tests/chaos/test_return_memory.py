"""Many sessions that were away return to one large message: each worker reads it once, and holds it once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.chaos.conftest import OpenCrowd, Record
from tests.chaos.crowd import Crowd, Publisher, Subscriber, ids_on
from tests.counted import CountedBroker
from tests.waiting import wait_until

WORKERS = 4
BODY_BYTES = 1_000_000
FIRST_TRIM_SECONDS, TRIM_SECONDS = 3.0, 16.0  # then a worker has given free memory back, also one that rests
GROUP = 100  # connected at a time, so that no backlog is too short
RECEIVE_BYTES = 16_384  # of a client's kernel: unread bytes stay with the broker
CONNACK = b"\x20\x02\x01\x00"  # MQTT 3.1.1, with Session Present


class Sleeper(Subscriber):
    """Subscribes and leaves; after its return it counts the bytes of one message and acknowledges it."""

    scratch = bytearray(1 << 20)

    def __init__(self, crowd: Crowd, client_id: str) -> None:
        self.head: bytearray | None = None  # the first bytes received after its return
        super().__init__(crowd, client_id, "large", qos=1, clean=False, receive_buffer=RECEIVE_BYTES)

    def go(self) -> None:
        """Disconnect, and leave the session behind."""
        self.send(b"\xe0\x00")
        self.close()

    def come_back(self) -> None:
        """Connect, and read nothing for now."""
        self.head, self.bytes_in = bytearray(), 0
        self.open()
        self.read_on(False)

    def ready(self, events: int) -> None:
        if self.head is None:
            super().ready(events)
            return
        received = self.socket.recv_into(self.scratch)
        if not received:
            self._lost("closed by the broker")
        if len(self.head) < 32:
            self.head += self.scratch[: min(received, 32)]
        self.bytes_in += received

    def acknowledge(self) -> None:
        """Acknowledge the PUBLISH of QoS 1 that followed the CONNACK."""
        assert self.head is not None
        assert self.head[:4] == CONNACK
        assert self.head[4] == 0x32
        at = self.head.index(b"\x00\x05large") + 7
        self.send(b"\x40\x02" + self.head[at : at + 2])


@pytest.fixture
def broker() -> Iterator[CountedBroker]:
    broker = CountedBroker(WORKERS, environment={"MQTTD_STORE": "leveldb"}).start()
    yield broker
    try:
        assert broker.stop() == 0
    finally:
        broker.forget()


def pss_after(broker: CountedBroker, seconds: float) -> int:
    """Return the memory of the broker after that time, and a heartbeat of each worker that followed it."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 60.0, "the time")
    before = [row["heartbeat"] for row in broker.rows()]
    wait_until(
        lambda: all(row["heartbeat"] > least for row, least in zip(broker.rows(), before, strict=True)),
        60.0,
        "a heartbeat of each worker",
    )
    return broker.pss_bytes()


def until_counted(broker: CountedBroker, counter: str, least: int) -> None:
    wait_until(lambda: broker.counter(counter) >= least, 60.0, f"{counter} {least}")


def store(crowd: Crowd, publisher: Publisher) -> None:
    """Publish everything that the publisher has, and close it when that is acknowledged."""
    crowd.until(lambda: publisher.accepted_by_broker, "the publisher is connected")
    publisher.begin()
    crowd.until(lambda: publisher.done, "it is stored")
    publisher.close()


def have(sleepers: list[Sleeper], size: int) -> bool:
    return sum(each.bytes_in for each in sleepers) >= size


@pytest.mark.parametrize(
    ("sessions", "smaller"),
    [
        pytest.param(1000, 0, marks=pytest.mark.long),
        pytest.param(10_000, BODY_BYTES // 2, marks=pytest.mark.soak),
    ],
)
def test_a_megabyte_that_waited_for_everybody_is_read_once_per_worker(
    broker: CountedBroker, crowd_of: OpenCrowd, sessions: int, smaller: int, record_property: Record
) -> None:
    """After a restart nothing is in memory. All clients are back before any of them reads. Growth is less than two
    bodies per worker; with 10,000 sessions the cost of the connections is left out, by the difference to a message of
    half the size.
    """
    crowd = crowd_of(broker)
    sleepers: list[Sleeper] = []
    for first in range(0, sessions, GROUP):
        sleepers += [Sleeper(crowd, f"sleeper{number}") for number in range(first, first + GROUP)]
        crowd.settle()
    for each in sleepers:
        each.go()
    growth = {0: 0}
    for size in sorted({smaller, BODY_BYTES} - {0}):
        publisher = Publisher(crowd, next(ids_on(0, WORKERS, "pub")), "large", qos=1, payload_bytes=size, count=1)
        whole = len(CONNACK) + publisher.packet_bytes
        store(crowd, publisher)
        assert broker.stop() == 0
        broker.start()
        before = pss_after(broker, FIRST_TRIM_SECONDS)
        for first in range(0, sessions, GROUP):
            group = sleepers[first : first + GROUP]
            for each in group:
                each.come_back()
            until_counted(broker, "publish_sent", first + GROUP)
        growth[size] = pss_after(broker, TRIM_SECONDS) - before
        for each in sleepers:
            each.read_on(True)
        crowd.until(partial(have, sleepers, whole * sessions), "all have all", 300.0)
        assert {each.bytes_in for each in sleepers} == {whole}
        for each in sleepers:
            each.acknowledge()
        until_counted(broker, "delivered_qos1", sessions)
        wait_until(lambda: broker.counter("store_blocks_read"), 60.0, "the gauges have been written")
        assert [row["store_blocks_read"] for row in broker.rows()] == [1] * WORKERS
        for each in sleepers:
            each.go()
    bodies = (growth[BODY_BYTES] - growth[smaller]) / (WORKERS * (BODY_BYTES - smaller))
    record_property("bodies per worker", f"{bodies:.2f} of 2")
    record_property("growth", ", ".join(f"{size} bytes: {much / 1e6:.2f} MB" for size, much in growth.items()))
    assert bodies < 2
