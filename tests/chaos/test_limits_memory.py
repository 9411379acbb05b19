"""Memory that clients fill up to the bounds is given back when they have left: queues, retained messages, outboxes,
incomplete packets, subscriptions. Limits by number also bound the bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager

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
ROOM_BYTES = 6 * MIB  # between two rounds an allocator may keep, and an interpreter grow by, so much
RELEASE_SECONDS_MAX = 40.0

_numbers = itertools.count()


class Burden:
    """Clients that fill everything up to the limits."""

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
        """Fill about 20 MB of each kind, where its bound allows it."""
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
        """Give everything up."""
        for number in range(1100):
            self.publisher.publish(f"{self.name}/kept/{number}", retain=True)
        self.publisher.expect_silence()
        for number in range(20):
            self.client(f"offline{number}", clean=True).disconnect()
        for client in self.clients:
            client.close()


@pytest.mark.long
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


LEVELS = 6
RETAINED = 1100
LONG = "x" * 4000


def overlapping(levels: int, end: str) -> list[str]:
    """Return Topic Filters that all match a topic of so many levels `a`, and `end`."""
    return ["/".join([*each, end]) for each in itertools.product("a+", repeat=levels)]


@contextmanager
def unanswering(broker: BrokerProcess) -> Iterator[tuple[Client, Client]]:
    """(subscriber, publisher): the subscriber takes one message at QoS 1 and acknowledges none, and 1,100 are retained
    that each of `overlapping(LEVELS, "#")` matches: one such subscription fills the queue.
    """
    with closing(Client(broker.address, 5)) as subscriber, closing(Client(broker.address, 4)) as publisher:
        publisher.connect("publisher")
        subscriber.connect("subscriber", properties={"receive_maximum": 1})
        for number in range(RETAINED):
            publisher.publish("/".join(["a"] * LEVELS) + f"/{number}", b"x", qos=1, retain=True)
        publisher.expect_silence()
        yield subscriber, publisher


@pytest.mark.parametrize("store", STORES)
def test_look_ups_of_subscriptions_that_have_ended_hold_nothing(
    store: str, start_broker: StartBroker, record_property: Record
) -> None:
    """SUBSCRIBE and UNSUBSCRIBE of long filters, again and again, while earlier look-ups wait for room: only those of
    existing subscriptions wait, and 48 MB of filters leave nothing behind.
    """
    broker = start_broker(1, "--store", store, **LIMITS)
    levels = 12
    filters = itertools.cycle(overlapping(levels, LONG))
    sizes = []
    with unanswering(broker) as (subscriber, publisher):
        publisher.publish("/".join(["a"] * levels + [LONG]), b"x", qos=1, retain=True)
        subscriber.subscribe(*overlapping(LEVELS, "#"), qos=1)
        for _ in range(30):
            some = list(itertools.islice(filters, 400))
            assert set(subscriber.subscribe(*some, qos=1)) == {1}
            subscriber.unsubscribe(*some)
            sizes.append(broker.pss_bytes())
    record_property("pss_bytes_after_each_round", sizes)
    assert max(sizes[5:]) <= max(sizes[:5]) + ROOM_BYTES


@pytest.mark.parametrize("store", STORES)
def test_topics_that_are_remembered_take_no_more_when_they_are_long(
    store: str, start_broker: StartBroker, record_property: Record
) -> None:
    """While retained messages are on their way to a session, the topics of live messages are remembered. 10,000 topics
    of 4,096 bytes cost next to nothing more than when none are on their way.
    """
    broker = start_broker(1, "--store", store, **LIMITS | {"retained_messages_max": RETAINED})  # no more are kept
    numbers = itertools.count()
    with unanswering(broker) as (subscriber, publisher):

        def publish_many() -> int:
            for _ in range(100):
                topics = [f"many/{next(numbers)}/".ljust(4096, "x") for _ in range(100)]
                publisher.send(*(wire.publish(4, topic, b"x", retain=True) for topic in topics))
                assert [subscriber.expect("PUBLISH").topic for _ in topics] == topics
            return broker.pss_bytes()

        subscriber.subscribe("many/#")
        before = publish_many()
        subscriber.subscribe(*overlapping(LEVELS, "#"), qos=1)
        subscriber.expect("PUBLISH", qos=1, retain=True)
        after = publish_many()
    record_property("pss_bytes", [before, after])
    assert after <= before + ROOM_BYTES
