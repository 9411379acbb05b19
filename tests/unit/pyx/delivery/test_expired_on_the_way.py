"""A message whose Message Expiry Interval passes between two workers is not sent [MQTT-3.3.2-5]."""

from __future__ import annotations

from typing import Any

import pytest

from pyx.core.placement import owner
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.pyx.delivery.test_router import client_at

pytestmark = pytest.mark.mqtt("5:3.3.2-5")
EXPIRES = {"message_expiry_interval": 1}


def apart(keeps: bool) -> Host:
    """Return two workers, each with a client."""
    return Host(2, stores=[KeptStore(), KeptStore()] if keeps else None)


def pair(host: Host, **options: Any) -> tuple[Peer, Peer]:
    return host.connect(client_at(0, 2), 5), host.connect(client_at(1, 2), 5, expiry=1000, **options)


def late(host: Host, seconds: float) -> None:
    """Delay the messages between the workers by this time."""
    host.pass_time(seconds)
    host.held.clear()
    host.settle()


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("text", ["t", "$share/g/t"])
def test_a_message_that_expires_between_two_workers_is_not_sent(keeps: bool, qos: int, text: str) -> None:
    host = apart(keeps)
    publisher, subscriber = pair(host)
    subscriber.subscribe((text, 2))
    host.held |= {(0, 1)}
    publisher.publish("t", b"expires", qos, properties=EXPIRES)
    publisher.publish("t", b"lasts", qos, properties={"message_expiry_interval": 60})
    late(host, 1.2)  # a sibling that is silent for longer counts as away
    got = subscriber.receive()
    assert [packet.payload for packet in got] == [b"lasts"]
    assert 58 <= got[0].properties["message_expiry_interval"] <= 59
    assert host.counters()["dropped_expired"] == 1
    host.check_books()


@pytest.mark.parametrize("keeps", [False, True])
def test_overlapping_filters_and_several_sessions_are_each_one_copy(keeps: bool) -> None:
    host = apart(keeps)
    publisher, subscriber = pair(host)
    away = host.connect(client_at(1, 2, "away"), 5, expiry=1000)
    for peer in (subscriber, away):
        peer.subscribe(("t/#", 1), ("t/+", 2), ("$share/g/t/1", 1))
    host.lose(away)
    host.held |= {(0, 1)}
    publisher.publish("t/1", b"expires", 2, properties=EXPIRES)
    late(host, 1.2)
    assert subscriber.receive() == []
    back = host.connect(away.client_id, 5, clean=False, expiry=1000)
    assert back.receive() == []
    assert host.counters()["dropped_expired"] == 3
    host.check_books()


def test_an_expired_message_takes_the_place_of_the_retained_one() -> None:
    """The expired message is the newer one, and from then on no message is retained."""
    host = apart(False)
    publisher, subscriber = pair(host)
    topic = next(f"r/{i}" for i in range(100) if owner(b"r/%d" % i, 2) == 1)
    publisher.publish(topic, b"old", 1, retain=True)
    host.settle()
    host.held |= {(0, 1)}
    publisher.publish(topic, b"expires", 1, retain=True, properties=EXPIRES)
    late(host, 1.2)
    subscriber.subscribe((topic, 1))
    assert subscriber.receive() == []
    assert host.counters()["retained_messages"] == 0
    host.check_books()


def test_a_share_that_has_expired_is_given_to_no_other_member() -> None:
    """The worker it was sent to dies without having taken it."""
    host = apart(False)
    publisher, subscriber = pair(host)
    left = host.connect(client_at(0, 2, "left"), 5)
    for peer in (left, subscriber):
        peer.subscribe(("$share/g/t", 1))
    host.held |= {(0, 1), (1, 0)}
    for _ in range(2):  # one for each member
        publisher.publish("t", b"expires", 1, properties=EXPIRES)
    assert len(left.receive()) == 1
    host.pass_time(1.2)
    host.kill(1)
    assert left.receive() == []
    assert host.counters(0)["dropped_expired"] == 1
    host.check_books()


@pytest.mark.parametrize("text", ["t", "$share/g/t"])
def test_an_interval_of_0_does_not_end_on_the_way(text: str) -> None:
    """Messages that need not wait are sent, on the publisher's worker and on another one."""
    host = apart(False)
    publisher, subscriber = pair(host)
    subscriber.subscribe((text, 1))
    for seconds, count in ((0.0, 1), (0.5, 1), (1.2, 0)):
        host.held |= {(0, 1)}
        publisher.publish("t", b"now", 1, properties={"message_expiry_interval": 0})
        late(host, seconds)
        got = subscriber.receive()
        assert [packet.properties["message_expiry_interval"] for packet in got] == [0] * count
