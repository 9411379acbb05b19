"""Hosts that are far from each other: 80 ms pass until what one of them sends is answered."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.cluster.namespaces import NamespacedHosts, namespaced_hosts_of
from tests.wire import publish

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")

ROUND_TRIP_MS = 80
MESSAGES = 10_000
ROUND_TRIPS_MAX = 50
"""For all messages. Ten times what an idle machine needs; one hundred messages to a round trip would need 100."""


@pytest.fixture(scope="module")
def far() -> Iterator[NamespacedHosts]:
    """Two hosts, the second of which is far from the first one and from etcd."""
    delays_ms = {1: ROUND_TRIP_MS // 2}
    with namespaced_hosts_of(
        [2, 2], delays_ms=delays_ms, receive_maximum=65_535, queue_messages_max=2 * MESSAGES
    ) as hosts:
        yield hosts


def test_acknowledgements_do_not_wait_for_each_other(far: NamespacedHosts) -> None:
    """QoS 1 to another host is not bound by the round trip: what has been sent is acknowledged together."""
    here, there = far
    subscriber = there.client("far", properties={"session_expiry_interval": 600})
    subscriber.subscribe("far/#", qos=1)
    subscriber.close()  # its queue takes what comes
    publisher = here.client("near")
    publisher.publish("far/first", b"", qos=1)
    started = time.monotonic()
    packets = [publish(5, "far/m", b"%d" % number, qos=1, packet_id=number + 1) for number in range(MESSAGES)]
    publisher.send(*packets)
    waited = {publisher.expect("PUBACK", reason=0).packet_id for _ in range(MESSAGES)}
    taken = time.monotonic() - started
    assert len(waited) == MESSAGES
    assert taken >= ROUND_TRIP_MS / 1000, "the hosts are not as far from each other as the test thinks"
    assert taken <= ROUND_TRIPS_MAX * ROUND_TRIP_MS / 1000
    again = there.client("far", clean=False)
    again.receive("far/first", b"", qos=1)
    for number in range(MESSAGES):
        again.receive("far/m", b"%d" % number, qos=1)


def test_a_local_topic_sends_nothing_across(far: NamespacedHosts) -> None:
    """What nobody wants on the far host stays here."""
    here, _ = far
    before = here.counter("mesh_entries_sent")
    subscriber, publisher = here.client_on(0, "local"), here.client_on(0, "local-publisher")
    subscriber.subscribe("local/#", qos=1)
    for number in range(100):
        publisher.publish("local/topic", b"%d" % number, qos=1)
        subscriber.receive("local/topic", b"%d" % number, qos=1)
    assert here.counter("mesh_entries_sent") == before


def test_a_session_comes_to_a_far_host(far: NamespacedHosts) -> None:
    """A takeover needs a few round trips, and loses nothing."""
    here, there = far
    first = here.client("wanders", properties={"session_expiry_interval": 600})
    first.subscribe("wanders/#", qos=1)
    first.close()
    publisher = here.client("sender")
    for number in range(100):
        publisher.publish("wanders/to", b"%d" % number, qos=1)
    second = there.client("wanders", clean=False)
    assert second.connack.session_present
    for number in range(100):
        second.receive("wanders/to", b"%d" % number, qos=1)
