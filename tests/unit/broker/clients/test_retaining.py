"""Retained messages on their way to a new subscription: overlap with live messages, and how many wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.clients import retaining
from leveldb_store.format import schema
from leveldb_store.format.subscription_schema import decode_owed
from pyx.core import work
from pyx.core.placement import owner
from pyx.protocol.message import Message
from shards.placement import home
from tests import wire
from tests.kept_host import on_disk
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.broker.repartition.test_repartition import go_on, paths
from tests.unit.pyx.delivery.test_router import client_at, publish_many


def waits_for_what_is_retained(host: Host, qos: int = 1) -> tuple[Peer, Peer]:
    """(subscriber, publisher): the retained message of `r` waits behind another message: Receive Maximum 1."""
    subscriber = host.connect("subscriber", 5, properties={"receive_maximum": 1})
    publisher = host.connect("publisher")
    subscriber.subscribe(("block", 1))
    publisher.publish("r", b"old", 1, retain=True)
    publish_many(publisher, "block", [b"1", b"2"])
    subscriber.send(wire.subscribe(5, 9, ("r", qos)))
    host.settle()
    return subscriber, publisher


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1])
def test_a_passing_message_that_is_not_retained_takes_no_retained_ones_place(granted: int, published: int) -> None:
    """[MQTT-3.3.1-9]"""
    host = Host()
    subscriber, publisher = waits_for_what_is_retained(host, granted)
    publisher.publish("r", b"passing", published)
    got = [packet for packet in subscriber.receive() if packet.topic == "r"]
    assert sorted((packet.payload, packet.retain) for packet in got) == [(b"old", True), (b"passing", False)]
    assert host.counters()["dropped_overtaken"] == 0
    assert not subscriber.session.is_watching
    host.check_books()


@pytest.mark.parametrize("count", [1, 2])
def test_a_message_that_has_overtaken_another_one_comes_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """QoS 0 overtakes messages that wait at QoS 1: the newest of both is the one that was sent live [MQTT-3.3.1-12]."""
    monkeypatch.setattr(retaining, "_PAGE", 2)
    monkeypatch.setattr(retaining, "_QUEUED_MAX", 2)
    topics = [f"r/{number}" for number in range(8)]
    host = Host(count)
    publisher = host.connect("publisher")
    for topic in topics:
        publisher.publish(topic, b"old", 1, retain=True)
        host.settle()
    subscriber = host.connect("subscriber", 5, properties={"receive_maximum": 1})
    subscriber.send(wire.subscribe(5, 9, ("r/+", 1)))
    host.settle()
    for topic in topics:
        publisher.publish(topic, b"waits", 1, retain=True)
        publisher.publish(topic, b"passes", 0, retain=True)
        host.settle()
    got = subscriber.receive()
    for _ in range(20):
        host.pass_time(0.1)
        got += subscriber.receive()
    for topic in topics:
        of_topic = [(packet.payload, packet.retain) for packet in got if packet.topic == topic]
        assert [each for each in of_topic if each[0] != b"old"] == [(b"passes", False), (b"waits", False)]
    host.check_books()


@pytest.mark.parametrize("payload", [b"new", b""])
def test_a_newer_retained_message_takes_the_place_of_an_older_one(payload: bytes) -> None:
    """The newer one is sent live; the older one is not sent after it, and is counted."""
    host = Host()
    subscriber, publisher = waits_for_what_is_retained(host)
    publisher.publish("r", payload, 0, retain=True)
    got = subscriber.receive()
    assert [(p.payload, p.retain) for p in got if p.topic == "r"] == [(payload, False)]
    assert host.counters()["dropped_overtaken"] == 1
    assert not subscriber.session.is_watching
    host.check_books()


def test_one_that_is_too_large_for_the_client_takes_no_place() -> None:
    host = Host(limits={"inflight_max": 1})
    subscriber = host.connect("subscriber", 5, properties={"maximum_packet_size": 100})
    publisher = host.connect("publisher")
    subscriber.subscribe(("block", 1))
    publisher.publish("r", b"old", 1, retain=True)
    publish_many(publisher, "block", [b"1", b"2"])
    subscriber.send(wire.subscribe(5, 9, ("r", 1)))
    host.settle()
    publisher.publish("r", b"x" * 200, 0, retain=True)
    assert [(p.payload, p.retain) for p in subscriber.receive() if p.topic == "r"] == [(b"old", True)]
    host.check_books()


def test_a_newer_one_read_from_the_log_takes_the_place_of_an_older_answer() -> None:
    """The session is behind: messages published meanwhile are logged, and sent before a sibling has answered."""
    host = Host(2)
    subscriber = host.connect("subscriber", 5, properties={"receive_maximum": 1})
    here = subscriber.node.index
    topic = next(f"r/{i}" for i in range(100) if owner(b"r/%d" % i, 2) != here)
    publisher = host.connect(client_at(here, 2))
    publisher.publish(topic, b"old", 1, retain=True)
    subscriber.subscribe(("block", 1), (topic, 1))
    subscriber.receive()
    publish_many(publisher, "block", [b"1", b"2"])
    host.held.add((1 - here, here))
    subscriber.send(wire.subscribe(5, 9, (topic, 1)))
    host.settle()
    publisher.publish(topic, b"new", 1, retain=True)
    assert [(p.payload, p.retain) for p in subscriber.receive()][2:] == [(b"new", False)]
    host.held.clear()
    assert subscriber.receive() == []
    assert host.counters()["dropped_overtaken"] == 1
    assert not subscriber.session.is_watching
    host.check_books()


def test_the_topics_remembered_are_bounded() -> None:
    """Long topics take no more memory than short ones."""
    host = Host(limits={"outbox_bytes_max": 1 << 30})
    subscriber, publisher = waits_for_what_is_retained(host)
    subscriber.send(wire.subscribe(5, 10, ("many/#", 0)))
    for i in range(66_000):
        publisher.publish(f"many/{i}", b"x", 0, retain=True)
        if i % 1000 == 0:
            host.turn()
    host.turn()
    assert subscriber.session.watched_topics == 65_536
    assert host.counters()["retained_unwatched"] == 66_000 - 65_536
    host.lose(subscriber)


def test_the_late_answer_to_an_earlier_subscribe_is_not_sent_a_second_time() -> None:
    """The message was sent live after the first SUBSCRIBE asked, but not after the second."""
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


def subscribe_and_hold(subscriber: Peer, subscription: tuple[str, int], *links: tuple[int, int]) -> None:
    """Subscribe; from the SUBACK on, nothing arrives over these links: the question for retained messages is first."""
    host = subscriber.host
    subscriber.send(wire.subscribe(5, 1, subscription))
    while not subscriber.packets:
        for node in host.nodes:
            host.turn_of(node)
            if subscriber.packets:
                host.held |= set(links)
                break
    assert subscriber.next("SUBACK").codes == (subscription[1],)


class Overtaken:
    """Three workers: the subscriber's, the publisher's, and the topic's owner. The owner reports a message published
    after the SUBACK before the copy from the publisher's worker arrives.
    """

    def __init__(self, qos: int, published: int) -> None:
        self.host = Host(3)
        self.subscriber = self.host.connect("subscriber", 5, expiry=60)
        self.here = here = self.subscriber.node.index
        self.topic = next(f"r/{i}" for i in range(100) if owner(b"r/%d" % i, 3) != here)
        asked = owner(self.topic.encode(), 3)
        self.there = 3 - here - asked
        self.publisher = self.host.connect(client_at(self.there, 3))
        self.publisher.publish(self.topic, b"before", 1, retain=True)
        subscribe_and_hold(self.subscriber, (self.topic, qos), (here, asked))
        self.host.settle()
        self.host.held.add((self.there, here))
        self.publisher.publish(self.topic, b"after", published, retain=True)
        self.host.settle()
        self.host.held.remove((here, asked))

    def received(self) -> list[tuple[bytes, bool]]:
        return [(packet.payload, packet.retain) for packet in self.subscriber.receive()]

    def check(self) -> None:
        """Check that nothing waits any more."""
        assert len(self.host.nodes[self.here].retaining._questions) == 0
        assert not self.subscriber.node.works_for(self.subscriber.session)
        assert not self.subscriber.session.is_watching
        self.host.check_books()


@pytest.mark.parametrize("published", [0, 1])
@pytest.mark.parametrize("granted", [0, 1])
def test_the_owners_answer_does_not_overtake_what_was_published_after_the_suback(granted: int, published: int) -> None:
    """[MQTT-3.3.1-12]"""
    case = Overtaken(granted, published)
    assert case.received() == []
    case.host.held.clear()
    assert case.received() == [(b"after", False)]
    case.check()


def test_the_owners_answer_does_not_wait_for_a_worker_that_is_dead() -> None:
    case = Overtaken(1, 0)
    assert case.received() == []
    case.host.kill(case.there)
    assert case.received() == [(b"after", True)]
    case.check()


def test_the_client_goes_and_comes_while_the_owners_answer_waits() -> None:
    case = Overtaken(1, 1)
    assert case.received() == []
    case.host.lose(case.subscriber)
    case.host.held.clear()
    case.host.settle()
    case.subscriber = case.host.connect("subscriber", 5, clean=False, expiry=60)
    assert case.received() == [(b"after", False)]
    case.check()


def test_the_subscription_ends_while_the_owners_answer_waits() -> None:
    case = Overtaken(1, 0)
    assert case.received() == []
    case.subscriber.unsubscribe(case.topic)
    case.host.held.clear()
    assert case.received() == []
    case.check()


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_sibling_was_asked_before_it_was_away_is_answered_once(keeps: bool) -> None:
    """The answer has several pages, and is requested again when the sibling is back: each message is sent once."""
    host = Host(2, stores=[KeptStore(), KeptStore()] if keeps else None)
    subscriber, publisher = host.connect(client_at(0, 2), 5), host.connect(client_at(1, 2))
    topics = [topic for topic in (f"r/{i}" for i in range(2400)) if owner(topic.encode(), 2) == 1]
    for topic in topics:
        publisher.publish(topic, b"x", 1, retain=True)
    subscriber.subscribe(("r/#", 1))
    assert sorted(packet.topic for packet in subscriber.receive()) == sorted(topics)
    subscribe_and_hold(subscriber, ("r/#", 1), (0, 1), (1, 0))
    host.pass_time(3)
    assert host.logs[0].named("peer_away")
    host.held.clear()
    host.pass_time(3)
    assert sorted(packet.topic for packet in subscriber.receive()) == sorted(topics)
    assert len(host.node.retaining._questions) == 0
    host.check_books()


def test_topics_are_remembered_only_while_retained_messages_are_under_way() -> None:
    """Tracking of live messages must end, or it grows with every topic."""
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
    assert subscriber.session.queued_bytes <= 3 << 20
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


def fill(host: Host, topics: int) -> None:
    """Publish this many retained messages, spread over all workers."""
    for i in range(topics):
        topic = b"r/%d/x" % i
        message = Message.create(topic, b"x", qos=1, retain=True, number=i + 1)
        host.nodes[owner(topic, len(host.nodes))].retained.set(topic, i + 1, message)


def all_of(peer: Peer, enough: int) -> list[str]:
    """Return the topics of all PUBLISHes that arrive, however long it takes."""
    got: list[str] = []
    for _ in range(400):
        got += [packet.topic for packet in peer.receive()]
        if len(got) >= enough:
            break
        peer.host.pass_time(0.1)
    return got


def test_a_page_is_bounded_with_the_properties_of_its_messages() -> None:
    """Payloads are the smaller part of these messages."""
    host = Host()
    publisher, subscriber = host.connect("publisher", 5), host.connect("subscriber", 5)
    for number in range(200):
        publisher.publish(f"r/{number}", b"x", retain=True, properties={"content_type": "t" * 60_000})
    host.settle()
    subscriber.stalled = True
    subscriber.send(wire.subscribe(5, 1, ("r/#", 1)))
    for _ in range(50):
        host.turn()
    assert 0 < subscriber.session.queued + subscriber.session.unacknowledged < 60
    subscriber.stalled = False
    subscriber.take()
    assert len(all_of(subscriber, 200)) == 200
    host.check_books()


@pytest.mark.parametrize("count", [1, 2])
def test_many_filters_over_many_retained_messages_are_looked_up_in_pieces(count: int) -> None:
    """However many filters a SUBSCRIBE has and however few match: no callback takes long, others get their turn."""
    host = Host(count, limits={"filters_per_packet_max": 10_000})
    fill(host, 20_000)
    subscriber, other = host.connect("subscriber", 5), host.connect("other", 5)
    other.subscribe(("other", 1))
    work.forget()
    subscriber.send(wire.subscribe(5, 9, *((f"+/+/{i}", 1) for i in range(200)), ("r/777/x", 1)))
    for i in range(40):
        other.publish("other", b"%d" % i, 1)
        host.turn()
    assert len(subscriber.session.details.walks_waiting) > 100  # not finished yet
    assert len(other.receive()) == 40
    assert work.over() == {}
    assert all_of(subscriber, 1) == ["r/777/x"]
    host.check_books()


def test_what_waits_is_bounded_by_the_subscriptions() -> None:
    """SUBSCRIBE and UNSUBSCRIBE of ever new filters, nothing taken: only messages of current subscriptions wait."""
    host = Host()
    fill(host, 3000)
    subscriber = host.connect("subscriber", 5, properties={"receive_maximum": 1})
    subscriber.send(wire.subscribe(5, 1, *((f"r/+/{'x' * (i % 2)}", 1) for i in range(60))))
    for i in range(30):
        long = [f"{i}/{k}/" + "x" * 1000 for k in range(10)]
        subscriber.send(wire.subscribe(5, 2, *((text, 1) for text in long)))
        subscriber.send(wire.subscribe(5, 2, *((f"again/{k}/#", 1) for k in range(40))))
        subscriber.send(wire.unsubscribe(5, 3, *long))
        host.turn()
        assert set(subscriber.session.details.walks_waiting) <= set(subscriber.session.filters())
        assert len(subscriber.session.details.walks) <= 32
    subscriber.send(wire.unsubscribe(5, 4, "r/+/x", "r/+/", *(f"again/{k}/#" for k in range(40))))
    for _ in range(100):  # a connection may use so many filters in a tick
        host.pass_time(0.1)
        if subscriber.session.subscriptions == 0:
            break
    details = subscriber.session.details
    assert (details.walks, details.walks_waiting) == ({}, {})
    subscriber.receive()
    assert not subscriber.session.is_watching


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_lasting_session_gets_the_rest_when_it_is_back(count: int) -> None:
    """The connection ends in the middle of the answer: the remaining messages are queued once it is resumed."""
    host = Host(count)
    fill(host, 3000)
    subscriber = host.connect("subscriber", 5, expiry=100)
    subscriber.send(wire.subscribe(5, 1, ("r/#", 1), ("r/5/+", 1), ("+/7/x", 1)))
    got: list[str] = []
    while len(got) < 1200:
        host.pass_time(0.1)
        subscriber.take()
        while subscriber.packets:
            packet = subscriber.packets.popleft()
            if packet.kind == "PUBLISH":
                got.append(packet.topic)
                subscriber.ack("PUBACK", packet.packet_id)
    host.lose(subscriber)
    host.pass_time(1)
    again = host.connect("subscriber", 5, clean=False, expiry=100)
    got += all_of(again, 3002 - len(got))
    assert sorted(set(got)) == sorted(f"r/{i}/x" for i in range(3000))
    assert not again.session.is_watching
    assert again.session.details.walks == {}
    host.check_books()


def test_a_session_that_ends_takes_its_walks_along() -> None:
    host = Host(2)
    fill(host, 3000)
    subscriber = host.connect("subscriber", 5)
    subscriber.send(wire.subscribe(5, 1, ("r/#", 1)))
    host.turn()
    host.turn()
    host.held.update({(0, 1), (1, 0)})
    host.lose(subscriber)
    assert sum(len(node.retaining._questions) for node in host.nodes) == 0
    host.held.clear()
    host.settle()
    host.check_books()


def some_of(peer: Peer, enough: int) -> list[str]:
    """Return the topics of the first QoS 1 PUBLISHes; all are acknowledged."""
    got: list[str] = []
    while len(got) < enough:
        peer.host.pass_time(0.1)
        peer.take()
        while peer.packets:
            packet = peer.packets.popleft()
            if packet.kind == "PUBLISH":
                got.append(packet.topic)
                peer.ack("PUBACK", packet.packet_id)
    return got


def owed(host: Host) -> list[tuple[int, bytes]]:
    """Return the retained messages still owed to subscriptions, by the stores."""
    values = [value for store in host.stores for _, value in store.scan(schema.SUBSCRIPTION)]
    return [each for value in values for each in decode_owed(value)]


def fill_stored(host: Host, topics: int) -> None:
    publisher = host.connect("publisher", 5)
    for i in range(topics):
        publisher.publish(f"r/{i}/x", b"x", 1, retain=True)
        if i % 200 == 0:
            publisher.receive()
    publisher.receive()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("enough", [0, 1200])
def test_a_lasting_session_gets_the_rest_after_a_crash(count: int, enough: int) -> None:
    """The SUBSCRIBE was answered, and the workers were killed in the middle of sending the retained messages."""
    host = Host(count, stores=[KeptStore() for _ in range(count)])
    fill_stored(host, 3500)
    subscriber = host.connect("subscriber", 5, clean=False, expiry=100)
    subscriber.send(wire.subscribe(5, 1, ("r/#", 1)))
    if enough:
        got = some_of(subscriber, enough)
    else:
        while not subscriber.packets:
            host.turn()
            subscriber.take()
        assert subscriber.next("SUBACK")
        got = []
    assert owed(host)
    host = host.crash()
    again = host.connect("subscriber", 5, clean=False, expiry=100)
    assert again.session_present
    got += all_of(again, 3500 - len(got))
    assert sorted(set(got)) == sorted(f"r/{i}/x" for i in range(3500))
    assert len(got) <= 3500 + 100  # messages not known to be acknowledged are sent again
    host.pass_time(1)
    assert owed(host) == []
    assert not again.session.is_watching
    again = host.crash().connect("subscriber", 5, clean=False, expiry=100)
    assert set(all_of(again, 1)) <= set(got[-100:])


def test_what_is_owed_goes_with_the_subscription() -> None:
    host = Host(stores=[KeptStore()])
    fill_stored(host, 2500)
    subscriber = host.connect("subscriber", 5, clean=False, expiry=100)
    subscriber.send(wire.subscribe(5, 1, ("r/#", 1)))
    some_of(subscriber, 500)
    subscriber.send(wire.unsubscribe(5, 2, "r/#"))
    host.settle()
    host = host.crash()
    assert owed(host) == []
    again = host.connect("subscriber", 5, clean=False, expiry=100)
    assert again.session.details.walks_waiting == {}


def test_what_is_owed_by_another_number_of_workers(tmp_path: Path) -> None:
    host = on_disk(paths(tmp_path, 2))
    fill_stored(host, 2500)
    subscriber = host.connect("subscriber", 5, clean=False, expiry=100)
    subscriber.send(wire.subscribe(5, 1, ("r/#", 1)))
    got = some_of(subscriber, 1100)
    host.lose(subscriber)
    host = go_on(tmp_path, host, 3)
    again = host.connect("subscriber", 5, clean=False, expiry=100)
    for _ in range(300):
        got += all_of(again, 1)
        if len(set(got)) == 2500:
            break
    assert sorted(set(got)) == sorted(f"r/{i}/x" for i in range(2500))


def test_a_page_that_waits_for_room_is_asked_for_once_although_the_client_goes_and_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client returns with a large window, and takes everything before the former connection's timer fires."""
    monkeypatch.setattr(retaining, "_PAGE", 2)
    monkeypatch.setattr(retaining, "_QUEUED_MAX", 2)
    topics = [f"r/{number}" for number in range(6)]
    host = Host(2)
    publisher = host.connect("publisher")
    for topic in topics:
        publisher.publish(topic, b"x", 1, retain=True)
        host.settle()
    subscriber = host.connect("subscriber", 5, clean=False, expiry=600, properties={"receive_maximum": 1})
    subscriber.send(wire.subscribe(5, 9, ("r/+", 1)))
    host.settle()
    host.lose(subscriber)
    here = home("subscriber", 2)
    host.held.add((1 - here, here))  # the sibling's part is unfinished when the timer fires
    again = host.connect("subscriber", 5, clean=False, expiry=600)
    got = again.receive()
    host.pass_time(0.2)
    host.held.clear()
    for _ in range(20):
        host.pass_time(0.1)
        got += again.receive()
    assert not again.closed
    assert sorted(packet.topic for packet in got) == sorted(topics)
    host.check_books()


def test_what_was_queued_is_still_there_after_a_crash_with_the_clock_put_back() -> None:
    """Records are named by numbers from the clock: a number given later equals none of a waiting record."""
    host = Host(stores=[KeptStore()])
    publisher = host.connect("publisher")
    for i in range(8):
        publisher.publish(f"r/{i}", f"{i}".encode(), 1, retain=True)
    for filters in (0, 1, 2, 3), (4, 5), (6, 7):
        subscriber = host.connect("subscriber", 5, clean=False, expiry=100, properties={"receive_maximum": 1})
        subscriber.send(wire.subscribe(5, 9, *((f"r/{i}", 1) for i in filters)))
        host.settle()
        host = host.crash()
    again = host.connect("subscriber", 5, clean=False, expiry=100)
    assert sorted(all_of(again, 8)) == [f"r/{i}" for i in range(8)]


def test_what_came_before_a_subscribe_is_no_answer_to_it_after_a_crash() -> None:
    """[MQTT-3.3.1-9]: the log has a message from before the SUBSCRIBE, and its retained copy is still sent."""
    host = Host(stores=[KeptStore()])
    fill_stored(host, 1100)
    publisher = host.connect("publisher")
    subscriber = host.connect("subscriber", 5, clean=False, expiry=100, properties={"receive_maximum": 1})
    subscriber.subscribe(("z", 1), ("first", 1))
    publisher.publish("first", b"takes its only slot", 1)
    publisher.publish("z", b"waits in the log", 1, retain=True)
    subscriber.send(wire.subscribe(5, 9, ("+/#", 1)))
    host.settle()
    assert owed(host)
    host = host.crash()
    again = host.connect("subscriber", 5, clean=False, expiry=100)
    came: list[tuple[str, bool]] = []
    for _ in range(200):
        came += [(packet.topic, packet.retain) for packet in again.receive()]
        if len(came) >= 1103:
            break
        host.pass_time(0.1)
    assert came.count(("z", False)) == 1
    assert came.count(("z", True)) == 1
