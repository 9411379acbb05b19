"""Retained messages on their way to a new subscription: what was sent live meanwhile, and how many wait."""

from __future__ import annotations

import pytest

from pyx.placement import owner
from tests import wire
from tests.sansio import Host
from tests.unit.test_router import client_at, publish_many


def test_a_live_message_is_not_followed_by_an_older_retained_one() -> None:
    host = Host(limits={"inflight_max": 1})
    subscriber, publisher = host.connect("subscriber"), host.connect("publisher")
    subscriber.subscribe(("block", 1))
    publisher.publish("r", b"old", 1, retain=True)
    publish_many(publisher, "block", [b"1", b"2"])
    subscriber.send(wire.subscribe(4, 9, ("r", 1)))  # the retained message waits behind what is in flight
    publisher.publish("r", b"new", 0)
    got = subscriber.receive()
    assert [p.payload for p in got if p.topic == "r"] == [b"new"]
    host.check_books()


def test_the_late_answer_to_an_earlier_subscribe_is_not_sent_a_second_time() -> None:
    """The message was sent live since the first SUBSCRIBE asked, but not since the second."""
    host = Host(3)
    subscriber = host.connect("subscriber")
    here = subscriber.node.index
    topic = next(f"r/{i}" for i in range(100) if owner(b"r/%d" % i, 3) != here)
    asked = owner(topic.encode(), 3)
    publisher = host.connect(client_at(3 - here - asked, 3))
    subscriber.subscribe((topic, 1))
    host.held.add((here, asked))
    subscriber.send(wire.subscribe(4, 8, (topic, 1)))
    publisher.publish(topic, b"live", 1, retain=True)
    assert [(packet.payload, packet.retain) for packet in subscriber.receive()] == [(b"live", False)]
    subscriber.send(wire.subscribe(4, 9, (topic, 1)))
    host.held.clear()
    assert [(packet.payload, packet.retain) for packet in subscriber.receive()] == [(b"live", True)]
    assert not subscriber.session.is_watching
    host.check_books()


def test_topics_are_remembered_only_while_retained_messages_are_under_way() -> None:
    """What watches for live messages must end, or it grows with every topic."""
    host = Host(limits={"inflight_max": 1})
    subscriber, publisher = host.connect("subscriber", 5, expiry=10), host.connect("publisher")
    subscriber.subscribe(("block", 1), ("$share/g/s", 1), ("#", 0))
    publisher.publish("r", b"retained", 1, retain=True)
    subscriber.receive()
    publish_many(publisher, "block", [b"1", b"2"])
    subscriber.send(wire.subscribe(5, 9, ("r", 1)))
    publish_many(publisher, "s", [b"shared"])
    subscriber.receive()
    assert subscriber.session.queued == 0
    assert not subscriber.session.is_watching


@pytest.mark.parametrize("workers_", [1, 2])
def test_retained_messages_are_queued_no_faster_than_they_are_taken(workers_: int) -> None:
    host = Host(workers_, limits={"outbox_bytes_max": 4096})
    publisher, subscriber = host.connect("publisher"), host.connect("subscriber", 4, clean=False)
    for i in range(4000):
        publisher.publish(f"r/{i}", b"x" * (1000 if i % 100 == 0 else 1), 0, retain=True)
        if i % 500 == 0:
            host.settle()
    host.settle()
    subscriber.send(wire.subscribe(4, 1, ("r/#", 1)))
    subscriber.stalled = True
    host.pass_time(1.0)
    assert subscriber.session.queued <= 2500
    subscriber.stalled = False
    subscriber.take()
    got: list[str] = []
    for _ in range(100):
        got += [packet.topic for packet in subscriber.receive()]
        if len(got) == 4000:
            break
        host.pass_time(0.1)
        subscriber.take()
    assert sorted(got) == sorted(f"r/{i}" for i in range(4000))
    host.check_books()
