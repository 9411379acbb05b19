"""A client that subscribes ends with the newest value of a topic: no retained message follows a newer one, wherever
either of them waited (MQTT 5, 4.6: messages of one topic and QoS are delivered in order).
"""

from __future__ import annotations

import pytest

from tests import wire
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.broker.clients.test_retained_under_way import OWNER, WORKERS, client, got, topic_of, watches
from tests.unit.broker.clients.test_retaining import subscribe_and_hold


def lasting(host: Host, worker: int = 0, **properties: int) -> Peer:
    """Return a client whose session outlives its connection."""
    return client(host, "late", worker, clean=False, expiry=1000, properties=properties)


def stores(count: int, kept: bool) -> list[KeptStore] | None:
    return [KeptStore() for _ in range(count)] if kept else None


def filled(host: Host, publisher: Peer, late: Peer) -> int:
    """Fill the window of a client with Receive Maximum 1; return the Packet Identifier in it."""
    late.subscribe(("fill", 1))
    publisher.publish("fill", b"0", 1)
    host.settle()
    return late.next("PUBLISH").packet_id


def all_of(late: Peer, acknowledged: int | None = None) -> list[tuple[bytes, bool]]:
    """Return what it gets in the next seconds, acknowledging each PUBLISH."""
    if acknowledged is not None:
        late.ack("PUBACK", acknowledged)
    found = got(late)
    late.host.pass_time(1)
    return found + got(late)


def subscribed_while_the_disk_waits(older: int) -> tuple[Host, KeptStore, Peer, Peer]:
    """Return a publisher, and a subscriber that has its SUBACK: its retained message of this QoS is on its way, and the
    disk writes nothing from now on.
    """
    store = KeptStore()
    host = Host(1, stores=[store])
    publisher = client(host, "publisher")
    publisher.publish("t", b"old", older, retain=True)
    host.settle()
    publisher.receive()
    late = lasting(host)
    late.send(wire.subscribe(5, 1, ("t", 2)))
    while not any(packet.kind == "SUBACK" for packet in late.packets):
        host.turn_of(host.node)
    store.manual = True
    host.settle()
    return host, store, publisher, late


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("receive_maximum", [2, 100])
def test_the_backlog_comes_before_it(kept: bool, receive_maximum: int) -> None:
    """The queue was full (`drop_newest`): only the retained message has the newest value."""
    host = Host(1, limits={"queue_messages_max": 5}, stores=stores(1, kept))
    publisher, late = client(host, "publisher"), lasting(host)
    late.subscribe(("t", 1))
    host.lose(late)
    for value in range(10):
        publisher.publish("t", b"%d" % value, 1, retain=True)
        host.settle()
        host.pass_time(1.1)
    late = lasting(host, receive_maximum=receive_maximum)
    late.send(wire.subscribe(5, 99, ("t", 1)))
    host.settle()
    assert all_of(late) == [(b"%d" % value, False) for value in range(5)] + [(b"9", True)]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("filters", [1, 80])
def test_what_was_published_while_it_was_subscribed_at_qos_0(kept: bool, filters: int) -> None:
    """Also for a session that reads the log by its directory, because it has many filters."""
    host = Host(1, stores=stores(1, kept))
    publisher, late = client(host, "publisher"), lasting(host, receive_maximum=1)
    for number in range(1, filters):
        late.subscribe((f"x/{number}", 1))
    late.subscribe(("a", 1))
    first = filled(host, publisher, late)
    for value in (b"1", b"2"):
        publisher.publish("a", value, 1, retain=True)
        host.settle()
    late.subscribe(("a", 0))
    publisher.publish("a", b"3", 1, retain=True)
    host.settle()
    assert late.next("PUBLISH").payload == b"3"
    late.send(wire.subscribe(5, 99, ("a", 1)))
    host.settle()
    host.pass_time(0.2)
    assert all_of(late, first) == [(b"1", False), (b"2", False), (b"3", True)]
    assert not watches(late.session)


@pytest.mark.parametrize("is_behind", [False, True])
def test_unsubscribed_and_subscribed_while_messages_are_on_their_way(is_behind: bool) -> None:
    host = Host(2)
    topic = topic_of(0, 2)
    publisher, late = client(host, "publisher"), lasting(host, 1, receive_maximum=1)
    late.subscribe((topic, 1))
    first = filled(host, publisher, late)
    if not is_behind:
        late.ack("PUBACK", first)
    host.held = {(0, 1)}
    for value in (b"6", b"7"):
        publisher.publish(topic, value, 1, retain=True)
        host.settle()
    late.send(wire.unsubscribe(5, 8, topic))
    host.settle()
    publisher.publish(topic, b"8", 1, retain=True)
    host.settle()
    late.send(wire.subscribe(5, 9, (topic, 1)))
    host.settle()
    host.held = set()
    host.settle()
    host.pass_time(0.2)
    assert [payload for payload, _ in all_of(late, first if is_behind else None)][-1] == b"8"


def test_after_a_restart_the_log_and_the_queue_are_sent_by_age() -> None:
    """Of the log, what is older than the queued retained message comes before it, and what is newer after it."""
    host = Host(1, stores=[KeptStore()])
    publisher, late = client(host, "publisher"), lasting(host, receive_maximum=1)
    late.subscribe(("a", 1))
    filled(host, publisher, late)
    publisher.publish("a", b"1", 1, retain=True)
    publisher.publish("other", b"retained", 1, retain=True)
    host.settle()
    late.subscribe(("other", 1))
    host.pass_time(0.2)
    publisher.publish("a", b"2", 1, retain=True)
    host.settle()
    host = host.crash()
    late = lasting(host, receive_maximum=1)
    host.settle()
    assert all_of(late) == [(b"0", False), (b"1", False), (b"retained", True), (b"2", False)]
    assert not watches(late.session)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("older", [1, 2])
def test_one_that_waits_for_the_record_of_its_window_is_overtaken(older: int, qos: int) -> None:
    """At QoS 2 it leaves its queue before it is sent."""
    host, store, publisher, late = subscribed_while_the_disk_waits(older)
    publisher.publish("t", b"new", qos, retain=True)
    host.settle()
    store.manual = False
    store.sync()
    host.settle()
    host.pass_time(0.5)
    expected = [(b"old", True)] if older == 1 else []
    assert got(late) == [*expected, (b"new", False)]
    assert host.counters()["dropped_overtaken"] == (older == 2)
    assert not watches(late.session)
    host.check_books()


def test_the_connection_ends_while_one_waits_for_the_record_of_its_window() -> None:
    host, store, _, late = subscribed_while_the_disk_waits(2)
    assert watches(late.session)
    host.lose(late)
    assert not watches(late.session)
    store.manual = False
    store.sync()
    host.settle()
    late = lasting(host)
    assert got(late) == [(b"old", True)]
    host.check_books()


@pytest.mark.parametrize("others", [0, 1, 62, 63, 64, 65, 200])
def test_many_subscribes_while_a_retained_message_waits(others: int) -> None:
    """More than the session tells apart in the log (64)."""
    host = Host(WORKERS)
    topic = topic_of(OWNER)
    publisher = client(host, "publisher")
    publisher.publish(topic, b"old", 1, retain=True)
    publisher.publish("kept", b"k", 1, retain=True)
    late = lasting(host, 1, receive_maximum=1)
    first = filled(host, publisher, late)
    late.subscribe(("kept", 1))
    host.pass_time(1)
    assert watches(late.session)
    for number in range(others):
        publisher.publish("fill", b"1", 1)  # another position of the log
        late.subscribe((f"other/{number}", 1))
    subscribe_and_hold(late, (topic, 1), (OWNER, 1))
    host.settle()
    publisher.publish(topic, b"new", 1, retain=True)
    host.settle()
    late.ack("PUBACK", first)
    assert [each for each in got(late) if each[0] not in b"01"] == [(b"k", True), (b"new", False)]
    host.held = set()
    host.settle()
    assert all_of(late) == []
    assert host.counters(1)["dropped_overtaken"] == 1
    assert not watches(late.session)


@pytest.mark.parametrize("restarts", [False, True])
def test_one_that_was_queued_before_a_restart_is_overtaken(restarts: bool) -> None:
    host = Host(1, stores=[KeptStore()])
    publisher = client(host, "publisher")
    publisher.publish("t", b"old", 1, retain=True)
    late = lasting(host, receive_maximum=1)
    first = filled(host, publisher, late)
    late.subscribe(("t", 1))
    host.pass_time(1)
    if restarts:
        host = host.crash()
        publisher, late = client(host, "publisher"), lasting(host, receive_maximum=1)
        host.settle()
        first = late.next("PUBLISH").packet_id
    assert watches(late.session)
    publisher.publish("t", b"new", 0, retain=True)
    host.settle()
    assert all_of(late, first) == [(b"new", False)]
    assert host.counters()["dropped_overtaken"] == 1
    assert not watches(late.session)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("handling", [0, 1])
def test_the_connection_ends_before_the_suback(restarts: bool, handling: int) -> None:
    """The subscription is there; so its retained messages come, also where the next SUBSCRIBE asks for none."""
    store = KeptStore()
    host = Host(1, stores=[store])
    publisher = client(host, "publisher")
    publisher.publish("t", b"x", 1, retain=True)
    host.settle()
    late = lasting(host)
    store.manual = True
    late.send(wire.subscribe(5, 1, ("t", 1 | handling << 4)))
    host.settle()
    assert not late.packets
    host.lose(late)
    store.manual = False
    store.sync()
    host.settle()
    if restarts:
        host = host.crash()
    late = lasting(host)
    assert late.session_present
    assert all_of(late) == [(b"x", True)]
    late.subscribe(("t", 1 | handling << 4))
    assert all_of(late) == [(b"x", True)] * (handling == 0)
    host.lose(late)
    late = lasting(host)
    assert all_of(late) == [], "once"


def test_connections_end_while_many_filters_are_asked_for_again() -> None:
    """1,200 Topic Filters are asked for in pieces: none is left out, wherever the connection ends."""
    store = KeptStore()
    host = Host(1, stores=[store])
    publisher = client(host, "publisher")
    topics = [f"t/{number}" for number in range(1200)]
    for topic in topics:
        publisher.publish(topic, b"x", 1, retain=True)
        host.settle()
    late = lasting(host)
    store.manual = True
    late.send(wire.subscribe(5, 1, *((topic, 1) for topic in topics)))
    host.settle()
    session = late.session
    assert session.subscriptions == len(topics)
    host.lose(late)
    for turns in range(6):
        late = host.open(5)
        late.send(wire.connect(5, "late0", clean=False, properties={"session_expiry_interval": 1000}))
        for _ in range(turns):
            host.turn_of(host.node)
        host.lose(late)
    store.manual = False
    store.sync()
    late = lasting(host)
    assert late.session is session
    found: set[str] = set()
    while len(found) < len(topics):
        more = {packet.topic for packet in late.receive()}
        assert more, f"{len(topics) - len(found)} are missing"
        found |= more
        host.pass_time(1)
    assert session.details.unanswered is None
    assert not watches(session)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_live_message_of_qos_0_is_lost_with_the_connection(is_late: bool, is_lost: bool) -> None:
    """`is_late`: the owner of the topic is asked after it has that message: then it comes as the retained one. An older
    one does not come: the broker does not know what has left of the outbox.
    """
    host = Host(WORKERS)
    topic = topic_of(OWNER)
    publisher = client(host, "publisher")
    publisher.publish(topic, b"old", 1, retain=True)
    host.settle()
    late = lasting(host, 1)
    late.subscribe(("other", 0))
    subscribe_and_hold(late, (topic, 1), (1, OWNER) if is_late else (OWNER, 1))
    host.settle()
    late.stalled = is_lost  # the kernel takes nothing more
    publisher.publish(topic, b"new", 0, retain=True)
    host.settle()
    assert [payload for payload, _ in got(late)] == [b"new"] * (not is_lost)
    late.stalled = True
    publisher.publish("other", b"-", 0)
    host.settle()
    host.lose(late)
    late = lasting(host, 1)
    host.held = set()
    host.settle()
    came = all_of(late)
    assert (b"old", True) not in came
    assert came == [(b"new", True)] or not (is_late and is_lost)


@pytest.mark.parametrize("qos", [0, 1])
def test_the_connection_ends_when_one_that_waits_for_its_record_was_overtaken(qos: int) -> None:
    host, store, publisher, late = subscribed_while_the_disk_waits(2)
    publisher.publish("t", b"new", qos, retain=True)
    host.settle()
    assert got(late) == [(b"new", False)]
    host.lose(late)
    store.manual = False
    store.sync()
    host.settle()
    late = lasting(host)
    assert (b"old", True) not in all_of(late)
    assert host.counters()["dropped_overtaken"] == 1
    host.check_books()


def test_a_client_that_goes_before_each_suback_is_not_remembered_for_ever() -> None:
    """What is asked for again has each Topic Filter once, and none that was unsubscribed."""
    host = Host(2, limits={"takeovers_per_minute_max": 0})
    late = lasting(host)
    session = late.session
    host.lose(late)
    for number in range(20):
        host.held = {(1, 0)}
        late = host.open(5)
        late.send(wire.connect(5, session.client_id, clean=False, properties={"session_expiry_interval": 1000}))
        names = [f"{number}/{each}" for each in range(10)]
        late.send(wire.subscribe(5, 1, ("kept", 0), *((name, 0) for name in names)), wire.unsubscribe(5, 2, *names))
        for _ in range(5):
            host.turn_of(host.nodes[0])
        assert session.connection is late.conn
        host.lose(late)
        host.held = set()
        host.settle()
        assert list(session.details.unanswered or ()) == [b"kept"]
    assert session.subscriptions == 1
    lasting(host)
    host.pass_time(0.5)
    assert session.details.unanswered is None
    assert not watches(session)
