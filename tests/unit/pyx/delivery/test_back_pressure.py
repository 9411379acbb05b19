"""Publishers that must wait: for a full queue (hold), for their own rate, for a worker without memory."""

from __future__ import annotations

from typing import Any

import pytest

from broker.config.settings import QueueRule
from tests import wire
from tests.sansio import Host, Peer

LIMIT = 20
LIMITS = {"queue_messages_max": LIMIT, "inflight_max": 1, "hold_seconds_max": 5.0}


def holding(workers: int = 1, **options: Any) -> tuple[Host, Peer, Peer]:
    """A host with hold, a stalled subscriber of `t/#` at QoS 1, and a publisher (workers > 1: on another worker)."""
    host = Host(workers, limits=LIMITS, **{"queue_full": "hold", **options})
    subscriber = host.connect("s", 5, expiry=1000)
    subscriber.subscribe(("t/#", 1))
    names = (f"p{number}" for number in range(100))
    other = next(peer for name in names if (peer := host.connect(name, 5)).node is not subscriber.node or workers == 1)
    return host, subscriber, other


def fill(host: Host, publisher: Peer, count: int, topic: str = "t/a") -> int:
    """Publish one after the other, as long as each is answered; return their number."""
    for done in range(count):
        publisher.publish(topic, b"%d" % done, 1)
        host.settle()
        if not publisher.packets:  # the acks of a link arrive with its next message
            host.pass_time(0.4)
        if not publisher.packets:
            return done
        assert publisher.next("PUBACK").reason in (0, 0x10)
    return count


@pytest.mark.parametrize("many", [1, 2])
def test_a_full_queue_holds_its_publishers_and_loses_nothing(many: int) -> None:
    host, subscriber, publisher = holding(many)
    taken = fill(host, publisher, 100)
    assert LIMIT <= taken <= LIMIT + 3
    assert host.counters()["queues_held"] == 1
    assert host.counters()["queue_full_held"] == 1
    host.pass_time(1)
    publisher.silent()
    got = [int(packet.payload) for packet in subscriber.receive()]
    host.pass_time(0.2)
    assert publisher.next("PUBACK").reason == 0
    got += [int(packet.payload) for packet in subscriber.receive()]
    assert got == list(range(taken + 1))
    assert host.counters()["dropped_queue_full"] == host.counters()["holds_given_up"] == 0
    assert all(node.router.back_pressure.guarded == 0 for node in host.nodes)
    host.check_books()


@pytest.mark.parametrize("many", [1, 2])
def test_after_hold_seconds_max_what_comes_is_dropped(many: int) -> None:
    host, subscriber, publisher = holding(many)
    taken = fill(host, publisher, 100)
    host.pass_time(3.5)
    publisher.silent()
    host.pass_time(2)
    assert publisher.next("PUBACK").reason == 0
    assert host.counters()["holds_given_up"] == 1
    assert fill(host, publisher, 50) == 50
    # messages acknowledged before it gave up are in the queue
    got = [int(packet.payload) for packet in subscriber.receive()]
    assert got[:taken] == list(range(taken))
    dropped = host.counters()["dropped_queue_full"]
    assert dropped == taken + 51 - len(got) > 45
    # the queue has shrunk: it can hold again
    assert LIMIT <= fill(host, publisher, 100) <= LIMIT + 3
    assert host.counters()["queues_held"] == 2
    host.check_books()


@pytest.mark.parametrize("many", [1, 2])
def test_a_hold_ends_with_its_session(many: int) -> None:
    host, subscriber, publisher = holding(many)
    fill(host, publisher, 100)
    host.lose(subscriber)
    again = host.connect("s", 5, clean=True)
    host.pass_time(0.2)
    assert publisher.next("PUBACK").reason in (0, 0x10)
    assert all(node.router.back_pressure.guarded == 0 for node in host.nodes)
    again.silent()
    host.check_books()


def test_an_offline_session_holds_for_a_bounded_time_and_once() -> None:
    host, subscriber, publisher = holding()
    host.lose(subscriber)
    fill(host, publisher, 100)
    host.pass_time(5.5)
    assert publisher.next("PUBACK").reason == 0
    assert fill(host, publisher, 200) == 200
    assert host.counters()["queues_held"] == 1


def test_two_clients_that_publish_to_each_other_never_wait_for_each_other() -> None:
    """Both clients are full and publish to each other: the one that is not read gives up at once."""
    host = Host(limits=LIMITS, queue_full="hold")
    one, two = host.connect("one", 5, expiry=100), host.connect("two", 5, expiry=100)
    one.subscribe(("one", 1))
    two.subscribe(("two", 1))
    for number in range(60):
        one.publish("two", b"%d" % number, 1)
        two.publish("one", b"%d" % number, 1)
        host.settle()
    # a held publisher may wait for the queue of the other one, which is read and can answer
    for peer in (one, two, one, two):
        peer.receive()
        host.pass_time(0.2)
    host.pass_time(0.2)
    assert host.node.router.back_pressure.connections_held == 0
    assert host.counters()["holds_given_up"] >= 1


def test_qos_0_and_other_topics_are_not_held() -> None:
    host, _, publisher = holding()
    other = host.connect("other")
    fill(host, publisher, 100)
    other.publish("u", b"x", 1)
    host.settle()
    assert other.next("PUBACK")
    other.publish("t/a", b"0", 0)
    other.publish("u", b"x", 1)
    host.settle()
    assert other.next("PUBACK")


def test_keep_alive_stands_still_and_order_is_kept() -> None:
    host, subscriber, _ = holding()
    publisher = host.connect("k", 4, keep_alive=1)
    for number in range(200):
        publisher.publish("t/a", b"%d" % number, 1)
    host.pass_time(3)
    assert not publisher.closed
    got: list[int] = []
    for _ in range(20):
        got += [int(packet.payload) for packet in subscriber.receive()]
        host.pass_time(0.2)
    assert got == list(range(200))


RULES = [
    QueueRule(filter="alarm/#", full="hold", messages_max=5),
    QueueRule(filter="telemetry/#", full="drop_oldest", messages_max=10),
    QueueRule(filter="control/+", full="disconnect", messages_max=5, bytes_max=1024),
]


def test_the_first_rule_that_covers_a_subscription_decides() -> None:
    host = Host(limits=LIMITS, queue=RULES)
    publisher = host.connect("p", 5)
    sessions = {}
    for topic in ("alarm", "telemetry", "control", "other"):
        sessions[topic] = host.connect(topic, 5, expiry=100)
        sessions[topic].subscribe((f"{topic}/x", 1))
    assert fill(host, publisher, 60, "telemetry/x") == 60
    host.node.router.sweeping.sweep()
    assert [int(packet.payload) for packet in sessions["telemetry"].receive()] == [0, *range(50, 60)]
    assert fill(host, publisher, 60, "control/x") == 60
    assert sessions["control"].closed
    assert fill(host, publisher, 60, "other/x") == 60
    host.node.router.sweeping.sweep()
    kept = [int(packet.payload) for packet in sessions["other"].receive()]
    assert kept[:LIMIT] == list(range(LIMIT))
    assert len(kept) <= LIMIT + 2
    assert fill(host, publisher, 60, "alarm/x") <= 7


def test_a_rule_leaves_with_the_last_subscription_under_it() -> None:
    host = Host(limits=LIMITS, queue=RULES)
    subscriber = host.connect("s", 5, expiry=100)
    subscriber.subscribe(("telemetry/a", 1), ("alarm/a", 1), ("alarm/b", 1), ("x", 1))
    assert subscriber.session.queue_rule == 1
    subscriber.unsubscribe("alarm/a")
    assert subscriber.session.queue_rule == 1
    subscriber.unsubscribe("alarm/b")
    assert subscriber.session.queue_rule == 2
    host.node.reload(host.settings.model_copy(update={"queue": RULES[1:]}))
    assert subscriber.session.queue_rule == 1
    host.node.reload(host.settings.model_copy(update={"queue": []}))
    assert subscriber.session.queue_rule == 0


MANY = 20_000
"""Filters of a session: work on each of them is done in pieces."""


def many_filters(host: Host, named: str = "t/{}", client_id: str = "many") -> Peer:
    peer = host.connect(client_id, 5, clean=False, expiry=1000)
    for first in range(0, MANY, 10_000):
        peer.send(wire.subscribe(5, peer.packet_id(), *((named.format(n), 1) for n in range(first, first + 10_000))))
        host.settle()
        peer.next("SUBACK")
    return peer


def becomes_full(host: Host, publisher: Peer) -> None:
    """Publish until the first of its filters are flagged, the others not yet."""
    while not host.node.router.back_pressure.held_filters():
        publisher.publish("t/0", b"x", 1)
        host.turn()
    assert len(host.node.router.back_pressure.held_filters()) < MANY


OF_MANY = {"filters_per_second_max": 0, "queue_messages_max": LIMIT, "inflight_max": 1, "hold_seconds_max": 5.0}


@pytest.mark.parametrize("end", ["room", "UNSUBSCRIBE", "end", "taken over", "gives up"])
def test_a_hold_that_ends_while_its_filters_are_flagged(end: str) -> None:
    host = Host(limits=OF_MANY, queue_full="hold")
    peer, publisher = many_filters(host), host.connect("p", 5)
    becomes_full(host, publisher)
    if end == "room":
        peer.receive()
    elif end == "UNSUBSCRIBE":
        peer.send(wire.unsubscribe(5, peer.packet_id(), *(f"t/{n}" for n in range(5000, 15_000))))
        peer.receive()
    elif end == "end":
        peer.send(wire.disconnect(5, properties={"session_expiry_interval": 0}))
    elif end == "taken over":
        peer = host.connect("many", 5, clean=False, expiry=1000)
        peer.receive()
    host.settle()
    host.pass_time(6)
    assert host.node.router.back_pressure.held_filters() == []
    assert host.node.router.back_pressure.guarded == 0
    assert host.counters()["dropped_queue_full"] == 0
    assert len([packet for packet in publisher.packets if packet.kind == "PUBACK"]) == publisher.packet_id() - 1
    host.check_books()


def test_a_hold_that_begins_again_while_its_filters_are_unflagged() -> None:
    host = Host(limits=OF_MANY, queue_full="hold")
    peer, publisher = many_filters(host), host.connect("p", 5)
    becomes_full(host, publisher)
    while len(host.node.router.back_pressure.held_filters()) < MANY:
        host.turn()
    for _ in range(LIMIT):  # room, and full again, in as many ticks
        peer.take()
        packet = next((each for each in peer.packets if each.kind == "PUBLISH"), None)
        peer.packets.clear()
        if packet is not None:
            peer.ack("PUBACK", packet.packet_id)
        host.turn()
    for _ in range(2 * LIMIT):
        publisher.publish("t/1", b"x", 1)
        host.turn()
    host.settle()
    assert len(host.node.router.back_pressure.held_filters()) == MANY
    host.pass_time(6)
    assert host.node.router.back_pressure.held_filters() == []
    peer.receive()
    host.pass_time(1)
    assert host.node.router.back_pressure.guarded == 0
    host.check_books()


def reload(host: Host, *rules: QueueRule) -> None:
    host.node.reload(host.settings.model_copy(update={"queue": list(rules)}))


@pytest.mark.parametrize("meanwhile", ["SUBSCRIBE", "UNSUBSCRIBE", "end", "reload", "new session"])
def test_rules_that_are_looked_through_while_something_changes(meanwhile: str) -> None:
    host = Host(limits=OF_MANY)
    peer = many_filters(host)
    one, other = QueueRule(filter="t/7", full="hold"), QueueRule(filter="u/#", full="drop_oldest")
    reload(host, other, one)
    router, expected = host.node.router, 2
    assert router.state.divided
    assert peer.session.queue_rule == 0
    if meanwhile == "SUBSCRIBE":
        peer.send(wire.subscribe(5, peer.packet_id(), ("u/1", 1)))
        expected = 1
    elif meanwhile == "UNSUBSCRIBE":
        peer.send(wire.unsubscribe(5, peer.packet_id(), "t/7", "t/8"))
        expected = 0
    elif meanwhile == "end":
        peer.send(wire.disconnect(5, properties={"session_expiry_interval": 0}))
    elif meanwhile == "reload":
        host.turn()
        reload(host, one)
        expected = 1
    else:
        peer = host.connect("new", 5)
        peer.subscribe(("u/1", 1))
        expected = 1
    host.settle()
    assert not host.node.router.state.divided
    if meanwhile == "end":
        peer = many_filters(host)
        expected = 2
    assert peer.session.queue_rule == expected
    reload(host)
    host.settle()
    assert all(session.queue_rule == 0 for session in host.node.sessions)


def test_a_session_has_its_former_rule_until_the_new_ones_are_looked_through() -> None:
    """The second of two tables covers it; the second of the new ones differs, and the first one covers it."""
    large = QueueRule(filter="t/#", full="drop_newest", messages_max=200)
    rules = QueueRule(filter="x/#", full="hold", messages_max=1), large
    host = Host(limits=OF_MANY, queue=list(rules))
    peer, publisher = many_filters(host), host.connect("p", 5)
    host.lose(peer)
    assert fill(host, publisher, 100, "t/0") == 100
    reload(host, large, QueueRule(filter="x/#", full="hold", messages_max=1))
    assert host.node.router.state.divided
    host.node.router.sweeping.sweep()
    host.settle()
    host.node.router.sweeping.sweep()
    host.settle()
    assert host.node.router.bounding.backlog(peer.session)[0] == 100


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publisher_that_is_too_fast_is_read_more_slowly(qos: int) -> None:
    host = Host(limits={"publish_per_second_max": 10})
    subscriber, publisher = host.connect("s"), host.connect("p")
    subscriber.subscribe(("t", qos))
    for number in range(40):
        packet_id = publisher.publish("t", b"%d" % number, qos)
        if qos == 2:
            publisher.ack("PUBREL", packet_id)
    assert len(subscriber.receive()) == 10
    host.pass_time(1)
    assert 9 <= len(subscriber.receive()) <= 11
    host.pass_time(3)
    subscriber.receive()
    assert host.counters()["publish_received"] == 40
    assert host.counters()["publish_rate_held"] >= 1
    assert not publisher.closed


def test_a_client_that_subscribes_too_fast_is_read_more_slowly_and_others_are_not() -> None:
    host = Host(limits={"filters_per_second_max": 10})
    client, other = host.connect("s"), host.connect("o")
    client.send(*(wire.subscribe(4, n + 1, (f"a/{n}", 0), (f"b/{n}", 0)) for n in range(15)))
    client.send(wire.unsubscribe(4, 100, *(f"a/{n}" for n in range(15))))
    host.settle()
    assert client.session.subscriptions == 10
    other.subscribe(("t", 0))
    host.pass_time(1)
    assert 18 <= client.session.subscriptions <= 22
    host.pass_time(1)
    assert client.session.subscriptions == 30
    host.pass_time(1)
    assert client.session.subscriptions == 15  # one packet may have more filters than are allowed per second
    host.pass_time(2)
    client.send(wire.subscribe(4, 101, ("c", 0)))
    host.settle()
    assert client.session.subscriptions == 16
    assert host.counters()["filters_rate_held"] >= 1
    assert not client.closed


def test_a_packet_of_very_many_filters_is_paid_for_in_full() -> None:
    host = Host(limits={"filters_per_second_max": 1000, "filters_per_packet_max": 10_000, "tick_filters_max": 10_000})
    client = host.connect("s")
    client.send(wire.subscribe(4, 1, *((f"a/{n}", 0) for n in range(5000))), wire.subscribe(4, 2, ("b", 0)))
    host.settle()
    assert client.session.subscriptions == 5000
    host.pass_time(3.5)
    assert client.session.subscriptions == 5000
    host.pass_time(1)
    assert client.session.subscriptions == 5001


def test_bytes_per_second_let_a_large_packet_through() -> None:
    host = Host(limits={"publish_bytes_per_second_max": 1000})
    subscriber, publisher = host.connect("s"), host.connect("p")
    subscriber.subscribe(("t", 0))
    for _ in range(3):
        publisher.publish("t", b"x" * 3000)
    assert len(subscriber.receive()) == 1
    host.pass_time(2.5)
    assert len(subscriber.receive()) == 1
    host.pass_time(3.5)
    assert len(subscriber.receive()) == 1


@pytest.mark.parametrize("many", [1, 2])
def test_without_memory_nobody_is_given_custody(many: int) -> None:
    host, subscriber, publisher = holding(many, queue_full="drop_newest")
    old = host.connect("old", 4)
    subscriber.node.set_memory_full(True)
    host.settle()
    publisher.publish("t/a", b"1", 1)
    old.publish("t/a", b"1", 1)
    host.pass_time(1)
    publisher.silent()
    assert not old.closed
    host.pass_time(5)
    assert publisher.next("PUBACK").reason == 0x97
    assert old.closed == (old.node is subscriber.node or many == 2)
    publisher.publish("t/a", b"2", 0)
    publisher.publish("t/a", b"3", 1)
    host.settle()
    subscriber.node.set_memory_full(False)
    host.pass_time(0.2)
    assert publisher.next("PUBACK").reason == 0
    assert [packet.payload for packet in subscriber.receive()] == [b"2", b"3"]
    host.check_books()


def test_each_wait_for_memory_counts_by_itself() -> None:
    host, _, publisher = holding(queue_full="drop_newest")
    for _ in range(3):
        host.node.set_memory_full(True)
        publisher.publish("t/a", b"1", 1)
        host.pass_time(4)
        publisher.silent()
        host.node.set_memory_full(False)
        host.pass_time(0.2)
        assert publisher.next("PUBACK").reason == 0
        host.pass_time(600)
    assert host.counters()["memory_refused"] == 0
    assert host.counters()["memory_held"] == 3
