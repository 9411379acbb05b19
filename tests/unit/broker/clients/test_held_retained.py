"""Retained messages whose batches wait for the disk: a subscription made meanwhile at a sibling gets them."""

from __future__ import annotations

import itertools

import pytest

from pyx.core.placement import owner as owner_of
from tests import wire
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.pyx.delivery.test_router import client_at

WORKERS = 3


def topic_of(owner: int) -> str:
    """Return a topic whose retained message that worker has."""
    return next(name for number in itertools.count() if owner_of((name := f"t/{number}").encode(), WORKERS) == owner)


def subscribing(host: Host, topic: str, worker: int) -> Peer:
    """Return a client of that worker that has sent its SUBSCRIBE."""
    late = host.connect(client_at(worker, WORKERS, f"late{worker}"), 5)
    late.send(wire.subscribe(5, 1, (topic, 1)))
    host.settle()
    return late


@pytest.mark.parametrize("what", ["will", "QoS 2"])
@pytest.mark.parametrize("worker", range(WORKERS))
@pytest.mark.parametrize("owner", range(WORKERS))
def test_a_subscription_made_while_it_waits_for_the_disk_gets_it(what: str, owner: int, worker: int) -> None:
    """Clients of the publisher's worker have it already, and may have told the subscriber."""
    stores = [KeptStore() for _ in range(WORKERS)]
    host = Host(WORKERS, stores=stores)
    topic = topic_of(owner)
    watching = host.connect(client_at(0, WORKERS, "watching"), 5)
    watching.subscribe((topic, 1))
    if what == "will":
        gone = host.connect(client_at(0, WORKERS, "gone"), 5, will=wire.Will(topic, b"x", qos=1, retain=True))
        stores[0].manual = True
        host.lose(gone)
    else:
        client = host.connect(client_at(0, WORKERS, "stays"), 5, clean=False, expiry=1000)
        stores[0].manual = True
        client.publish(topic, b"x", 2, retain=True)
        host.settle()
    assert [packet.payload for packet in watching.receive()] == [b"x"]
    late = subscribing(host, topic, worker)
    stores[0].manual = False
    stores[0].sync()
    host.settle()
    host.pass_time(0.2)
    got = late.receive()
    assert [(packet.payload, packet.retain) for packet in got] == [(b"x", True)]
