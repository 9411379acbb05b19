"""A large message to many subscribers exists once per worker, however many there are."""

from __future__ import annotations

import time

import pytest

from tests.chaos.conftest import OpenCrowd, Record, StartBroker
from tests.chaos.crowd import Crowd, Publisher, Subscriber, ids_on

WORKERS = 4
BODY_BYTES = 1_000_000
CONNECTION_BYTES = 1024


class Sink(Subscriber):
    """Counts and discards bytes once it has subscribed."""

    scratch = bytearray(1 << 20)

    def ready(self, events: int) -> None:
        if not self.subscribed:
            super().ready(events)
            return
        try:
            received = self.socket.recv_into(self.scratch)
        except OSError as error:
            self._lost(f"recv: {error.strerror}")
            return
        if not received:
            self._lost("closed by the broker")
        self.bytes_in += received


@pytest.mark.parametrize("subscribers", [1000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_a_megabyte_to_everybody_costs_two_bodies_per_worker(
    start_broker: StartBroker, crowd_of: OpenCrowd, subscribers: int, record_property: Record
) -> None:
    """While all clients read: growth <= 2 bodies per worker + 1 KB per connection."""
    broker = start_broker(WORKERS)
    crowd = crowd_of(broker)
    sinks = connect_sinks(crowd, subscribers)
    publisher = Publisher(crowd, next(ids_on(0, WORKERS, "pub")), "large", payload_bytes=BODY_BYTES, count=1)
    small = Publisher(crowd, next(ids_on(0, WORKERS, "small")), "large", payload_bytes=100, count=20)
    crowd.settle()
    small.begin()  # every connection has its outbox
    expected = [each.bytes_in + 20 * small.packet_bytes for each in sinks]
    crowd.until(lambda: [each.bytes_in for each in sinks] == expected, "the small ones have come")
    before = peak = broker.pss_bytes()
    looked_at = 0.0

    def look(now: float) -> None:
        nonlocal peak, looked_at
        if now - looked_at > 0.02:
            peak, looked_at = max(peak, broker.pss_bytes()), time.monotonic()

    crowd.on_turn.append(look)
    publisher.begin()
    whole = [each + publisher.packet_bytes for each in expected]
    seconds = crowd.until(lambda: sum(each.bytes_in for each in sinks) >= sum(whole), "everybody has all", 300.0)
    assert [each.bytes_in for each in sinks] == whole
    allowed = 2 * BODY_BYTES * WORKERS + CONNECTION_BYTES * subscribers
    record_property("growth", f"{(peak - before) / 1e6:.2f} MB of {allowed / 1e6:.2f} MB, {seconds:.1f} s")
    assert peak - before <= allowed


def connect_sinks(crowd: Crowd, count: int) -> list[Sink]:
    """Connect so many sinks, in groups that fit into any backlog."""
    sinks: list[Sink] = []
    for first in range(0, count, 100):
        sinks += [Sink(crowd, f"sink{number}", "large") for number in range(first, first + 100)]
        crowd.settle()
    return sinks
