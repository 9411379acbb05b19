"""No Local holds for a client's own retained messages [MQTT-3.8.3-3], wherever they are kept and whoever kept them
since.

The owner of a topic gets the publisher with each message to retain, stores it with the message, and includes it in
answers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyx.core.placement import owner
from tests import wire
from tests.kept_host import on_disk
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.broker.repartition.test_repartition import go_on, paths
from tests.unit.pyx.delivery.test_router import client_at

NO_LOCAL = 4


def topics(workers: int) -> list[str]:
    """Return one topic of each owner."""
    return [next(f"t/{i}" for i in range(100) if owner(b"t/%d" % i, workers) == worker) for worker in range(workers)]


def retained(peer: Peer, text: str = "t/#", options: int = NO_LOCAL | 1) -> list[str]:
    """Return the topics of the retained messages that a SUBSCRIBE gets."""
    peer.send(wire.subscribe(5, peer.packet_id(), (text, options)))
    got = peer.receive()
    assert all(packet.retain for packet in got)
    return sorted(packet.topic for packet in got)


@pytest.mark.parametrize("size", [1, 9000])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_they_come_to_others_and_to_subscriptions_without_it(count: int, qos: int, size: int) -> None:
    host = Host(count)
    own, other = host.connect(client_at(0, count), 5), host.connect(client_at(0, count, "other"), 5)
    for topic in topics(count):
        own.publish(topic, b"x" * size, qos, retain=True)
    own.receive()
    assert retained(own) == []
    assert retained(other) == sorted(topics(count))
    assert retained(own, options=1) == sorted(topics(count))
    host.check_books()


@pytest.mark.parametrize("count", [1, 3])
def test_whoever_published_last_counts(count: int) -> None:
    host = Host(count)
    own, other = host.connect(client_at(0, count), 5), host.connect(client_at(count - 1, count, "other"), 5)
    mine, theirs = topics(count)[0], topics(count)[-1] + "/b"
    for first, last, topic in ((other, own, mine), (own, other, theirs)):
        for each in (first, last):
            each.publish(topic, b"kept", 1, retain=True)
            host.settle()
    own.receive()
    other.receive()
    assert retained(own) == [theirs]
    assert retained(other) == [mine]


@pytest.mark.parametrize("count", [1, 3])
def test_after_a_restart(count: int) -> None:
    host = Host(count, stores=[KeptStore() for _ in range(count)])
    own = host.connect(client_at(0, count), 5)
    for topic in topics(count):
        own.publish(topic, b"kept", 1, retain=True)
    host.settle()
    again = host.crash()
    assert retained(again.connect(client_at(0, count), 5)) == []
    assert retained(again.connect(client_at(0, count, "other"), 5)) == sorted(topics(count))


def test_what_waited_in_a_hand_off_log() -> None:
    """The owner was dead at the time of the publish."""
    host = Host(3, stores=[KeptStore() for _ in range(3)])
    own = host.connect(client_at(0, 3), 5)
    host.kill(2)
    own.publish(topics(3)[2], b"kept", 1, retain=True)
    host.settle()
    again = host.crash()
    assert retained(again.connect(client_at(0, 3), 5)) == []
    assert retained(again.connect(client_at(0, 3, "other"), 5)) == [topics(3)[2]]


def test_what_waited_in_a_hand_off_log_and_moves_to_another_worker(tmp_path: Path) -> None:
    host = on_disk(paths(tmp_path, 2))
    own = host.connect(client_at(0, 2), 5)
    host.kill(1)
    for topic in topics(2):
        own.publish(topic, b"kept", 1, retain=True)
    host.settle()
    host = go_on(tmp_path, host, 3)
    assert retained(host.connect(client_at(0, 2), 5)) == []
    assert retained(host.connect("other", 5)) == sorted(topics(2))


def test_a_will() -> None:
    host = Host(2)
    topic = topics(2)[1]
    own = host.connect(client_at(0, 2), 5, will=wire.Will(topic, b"gone", qos=1, retain=True))
    host.lose(own)
    assert retained(host.connect(client_at(0, 2), 5)) == []
    assert retained(host.connect("other", 5)) == [topic]
