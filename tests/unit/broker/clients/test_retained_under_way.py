"""Retained messages on their way to the owner of their topic: a subscription made meanwhile at a sibling gets them.
Clients of the publisher's worker have them already, and may have told the subscriber.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from broker.worker.core import Node
from pyx.core.placement import owner as owner_of
from pyx.delivery.session import Session
from tests import wire
from tests.kept_host import let_go
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.broker.clients.test_retaining import subscribe_and_hold
from tests.unit.broker.worker.test_batches_in_pieces import MANY, OPEN, TOPIC
from tests.unit.pyx.delivery.test_router import client_at
from zmq_mesh.contract import LinkLimits

WORKERS = 3
OWNER = WORKERS - 1
SILENCE = LinkLimits().link_silence_seconds_max


def topic_of(owner: int, workers: int = WORKERS) -> str:
    """Return a topic whose retained message that worker has."""
    return next(name for number in itertools.count() if owner_of((name := f"t/{number}").encode(), workers) == owner)


def host_with_stores(workers: int = WORKERS, **options: Any) -> tuple[Host, list[KeptStore]]:
    stores = [KeptStore() for _ in range(workers)]
    return Host(workers, stores=stores, **options), stores


def client(host: Host, name: str, worker: int = 0, **options: Any) -> Peer:
    """Return a client of that worker."""
    return host.connect(client_at(worker, len(host.nodes), name), 5, **options)


def subscribing(host: Host, topic: str, worker: int) -> Peer:
    """Return a client of that worker that has sent its SUBSCRIBE."""
    late = client(host, f"late{worker}", worker)
    late.send(wire.subscribe(5, 1, (topic, 1)))
    host.settle()
    return late


def got(peer: Peer) -> list[tuple[bytes, bool]]:
    return [(packet.payload, packet.retain) for packet in peer.receive()]


def sync(host: Host, store: KeptStore) -> None:
    store.manual = False
    store.sync()
    host.settle()
    host.pass_time(0.2)


@pytest.mark.parametrize("what", ["will", "QoS 2"])
@pytest.mark.parametrize("worker", range(WORKERS))
@pytest.mark.parametrize("owner", range(WORKERS))
def test_while_it_waits_for_the_disk(what: str, owner: int, worker: int) -> None:
    host, stores = host_with_stores()
    topic = topic_of(owner)
    watching = client(host, "watching")
    watching.subscribe((topic, 1))
    if what == "will":
        gone = client(host, "gone", will=wire.Will(topic, b"x", qos=1, retain=True))
        stores[0].manual = True
        host.lose(gone)
    else:
        publisher = client(host, "stays", clean=False, expiry=1000)
        stores[0].manual = True
        publisher.publish(topic, b"x", 2, retain=True)
        host.settle()
    assert got(watching) == [(b"x", False)]
    late = subscribing(host, topic, worker)
    sync(host, stores[0])
    assert got(late) == [(b"x", True)]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("what", ["will", "publish"])
def test_while_the_owner_hears_nothing_of_the_publishers_worker(what: str, qos: int) -> None:
    """There is no order between two links: the question must not come before the message."""
    host, _ = host_with_stores()
    topic = topic_of(OWNER)
    watching = client(host, "watching")
    watching.subscribe((topic, 1))
    gone = client(host, "gone", will=wire.Will(topic, b"x", qos=qos, retain=True))
    host.held = {(0, OWNER)}
    if what == "will":
        host.lose(gone)
    else:
        gone.publish(topic, b"x", qos, retain=True)
        host.settle()
    assert got(watching) == [(b"x", False)]
    late = subscribing(host, topic, 1)
    assert not late.packets
    host.held = set()
    host.settle()
    assert late.next("SUBACK").codes == (1,)
    assert got(late) == [(b"x", True)]


@pytest.mark.parametrize("text", [None, "t/#"])
def test_where_another_subscription_of_the_worker_gets_it_already(text: str | None) -> None:
    """The siblings know the interest: the SUBACK waits all the same for what is on its way to the owner."""
    host, _ = host_with_stores()
    topic = topic_of(OWNER)
    watching = client(host, "watching", 1)
    watching.subscribe((text or topic, 1))
    publisher = client(host, "publisher")
    host.held = {(0, OWNER)}
    publisher.publish(topic, b"x", 1, retain=True)
    host.settle()
    assert got(watching) == [(b"x", False)]
    late = client(host, "late", 1)
    late.send(wire.subscribe(5, 1, (text or topic, 1)))
    host.settle()
    assert not late.packets
    host.held = set()
    host.settle()
    assert late.next("SUBACK").codes == (1,)
    assert got(late) == [(b"x", True)]


@pytest.mark.parametrize("handling", [1, 2])
def test_a_subscription_that_asks_for_nothing_retained_does_not_wait(handling: int) -> None:
    host, _ = host_with_stores()
    topic = topic_of(OWNER)
    late = client(host, "late", 1)
    late.subscribe((topic, 1))
    host.held = {(0, OWNER)}
    client(host, "publisher").publish(topic, b"x", 1, retain=True)
    host.settle()
    assert got(late) == [(b"x", False)]
    late.send(wire.subscribe(5, 1, (topic, 1 | handling << 4)))
    host.settle()
    assert late.next("SUBACK").codes == (1,)


def test_a_sibling_is_not_waited_for_longer_than_one_that_is_silent() -> None:
    host, _ = host_with_stores()
    topic = topic_of(OWNER)
    publisher = client(host, "publisher")
    host.held = {(0, OWNER)}
    publisher.publish(topic, b"x", 1, retain=True)
    host.settle()
    late = subscribing(host, topic, 1)
    host.pass_time(SILENCE - 0.3)
    assert not late.packets
    host.pass_time(0.6)
    assert late.next("SUBACK").codes == (1,)
    assert not host.barriers[0].waiting


def test_a_store_that_has_failed_is_not_waited_for() -> None:
    host, stores = host_with_stores()
    topic = topic_of(OWNER)
    gone = client(host, "gone", will=wire.Will(topic, b"x", qos=1, retain=True))
    stores[0].manual = True
    host.lose(gone)
    stores[0].failed = "no disk"
    host.settle()
    assert subscribing(host, topic, 1).next("SUBACK").codes == (1,)


def half_a_turn(host: Host, node: Node) -> None:
    """Let the other workers take a turn, and this one hear them, without the end of a tick of its own."""
    for other in host.nodes:
        if other is not node:
            host.turn_of(other)
    host.hear(node)
    for link in node.links.values():
        link.tick(host.now)


def test_while_a_large_block_is_appended_to_the_log() -> None:
    """Nothing of the tick is submitted to the links until its end, but they are ticked all the same."""
    host, _ = host_with_stores(limits={"wildcard_arrangements_max": 100_000})
    node = host.nodes[0]
    topic = topic_of(OWNER)
    watching = client(host, "watching")
    watching.subscribe((topic, 1))
    large = client(host, "large", clean=False, expiry=1000)
    levels = 14
    filters = ["/".join("+" if number >> at & 1 else "a" for at in range(levels)) for number in range(8_000)]
    for first in range(0, len(filters), 500):
        large.send(wire.subscribe(5, large.packet_id(), *((text, 1) for text in filters[first : first + 500])))
        host.settle()
        host.pass_time(0.2)
    large.disconnect()
    gone = client(host, "gone", will=wire.Will(topic, b"x", qos=1, retain=True))
    late = client(host, "late", 1)
    client(host, "publisher").publish("/".join("a" * levels), b"x", 1)
    node.router.finish_tick()
    node.router.state.close(gone.conn, 0, "lost")
    host.close_asked(node)
    late.send(wire.subscribe(5, 1, (topic, 1)))
    for _ in range(8):
        half_a_turn(host, node)
    assert node.router.is_appending
    assert not late.packets
    host.settle()
    assert late.next("SUBACK").codes == (1,)
    assert [payload for payload, _ in got(late)] == [b"x"]


def test_behind_what_is_read_back_from_the_hand_off_log() -> None:
    host, _ = host_with_stores(2, limits={"inflight_max": 1000})
    topic = topic_of(1, 2)
    sink, late = client(host, "sink", 1), client(host, "late", 1)
    sink.subscribe(("fill", 1))
    publishers = [client(host, f"publisher{number}") for number in range(8)]
    link = host.nodes[0].links[host.nodes[1].context.own]
    taken, link.out.send = link.out.send, lambda _: False
    for number in range(200):
        publishers[number % 8].publish("fill", bytes(60_000), 1)
        host.turn()
    publishers[0].publish(topic, b"x", 1, retain=True)
    host.settle()
    host.held = {(0, 1)}
    link.out.send = taken
    host.settle()
    link.flush(host.now)
    assert link.stream.unsent > 100
    late.send(wire.subscribe(5, 1, (topic, 1)))
    host.settle()
    host.held = set()
    host.settle()
    sink.receive()
    host.pass_time(0.5)
    assert late.next("SUBACK").codes == (1,)
    assert got(late) == [(b"x", True)]


@pytest.mark.parametrize("worker", [1, OWNER])
@pytest.mark.parametrize("kept", [False, True])
def test_received_is_not_taken(kept: bool, worker: int) -> None:
    """The owner takes batches in pieces, and has received more than it has taken. What it says to the publisher's
    worker meanwhile must not let the question of another worker, or its own look-up, overtake the message.
    """
    host = Host(WORKERS, limits=OPEN, stores=[KeptStore() for _ in range(WORKERS)] if kept else None)
    topic = topic_of(OWNER)
    watching = client(host, "watching")
    watching.subscribe((topic, 1), ("chat", 0))
    much = client(host, "much", OWNER)
    for first in range(0, len(MANY), 4096):
        much.subscribe(*((text, 0) for text in MANY[first : first + 4096]))
    talker, late = client(host, "talker", OWNER), client(host, "late", worker)
    publishers = [client(host, f"publisher{number}") for number in range(4)]
    host.pass_time(SILENCE + 1)
    for peer in publishers[:3]:
        peer.send(*(wire.publish(5, TOPIC, b"%d" % number, qos=1, packet_id=peer.packet_id()) for number in range(100)))
    owner = host.nodes[OWNER].peering
    while not owner._waiting:
        host.turn()
    publishers[3].send(wire.publish(5, topic, b"x", qos=1, packet_id=publishers[3].packet_id(), retain=True))
    while not any(packet.kind == "PUBLISH" for packet in watching.packets):
        host.turn()
    late.send(wire.subscribe(5, 1, (topic, 1)))
    while not late.packets:
        talker.send(wire.publish(5, "chat", b"c"))
        host.turn()
    assert owner._waiting, "this is where the question may be too early"
    host.settle()
    host.pass_time(1)
    assert late.next("SUBACK").codes == (1,)
    assert got(late) == [(b"x", True)]
    much.packets.clear()
    let_go(host)


def watches(session: Session) -> bool:
    return bool(session.is_watching)


def waiting_for_its_suback(host: Host, topic: str) -> tuple[Peer, Peer, Peer]:
    """Return a publisher, a lasting subscriber whose SUBACK waits, and a client that has its SUBACK."""
    publisher = client(host, "publisher")
    late = client(host, "late", 1, clean=False, expiry=1000)
    host.held = {(0, OWNER)}
    publisher.publish(topic, b"old", 1, retain=True)
    host.settle()
    late.send(wire.subscribe(5, 1, (topic, 1)))
    host.settle()
    assert not late.packets
    return publisher, late, client(host, "other", 1)


@pytest.mark.parametrize("kept", [False, True])
def test_what_is_sent_live_before_the_suback_is_newer_than_what_is_retained(kept: bool) -> None:
    host = Host(WORKERS, stores=[KeptStore() for _ in range(WORKERS)] if kept else None)
    topic = topic_of(OWNER)
    publisher, late, _ = waiting_for_its_suback(host, topic)
    publisher.publish(topic, b"new", 1, retain=True)
    host.settle()
    line, link = host._under_way[0, OWNER], host.nodes[OWNER].links[host.nodes[0].context.own]
    while not any(packet.kind == "SUBACK" for packet in late.packets):
        if line:
            link.receive(line.popleft(), host.now)
        host.settle()
        host.pass_time(0.1)
    assert [packet.payload for packet in late.packets if packet.kind == "PUBLISH"] == [b"new"]
    assert not watches(late.session) or line, "nothing is watched for when the answer has come"
    host.held = set()
    host.settle()
    host.pass_time(1)
    assert [packet.payload for packet in late.packets if packet.kind == "PUBLISH"] == [b"new"], "and not the older one"
    host.settle()
    assert not len(host.nodes[1].unanswered._counts)


@pytest.mark.parametrize("how", ["lost", "taken over", "ended"])
def test_a_client_leaves_before_its_suback(how: str) -> None:
    """Its session does not watch for ever what is sent live. If it lasts it has the subscription, and gets the retained
    message when it is back, but not before that has arrived at its owner.
    """
    host, _ = host_with_stores()
    topic = topic_of(OWNER)
    _, late, _ = waiting_for_its_suback(host, topic)
    unanswered, session = host.nodes[1].unanswered, late.session
    assert len(unanswered._counts) == 1
    assert watches(session)
    if how == "lost":
        host.lose(late)
        assert not watches(session), "while it is away nothing is sent live"
        assert not len(unanswered._counts)
    again = client(host, "late", 1, clean=how == "ended", expiry=1000)
    host.pass_time(0.2)
    assert not got(again)
    assert len(unanswered._counts) == (how != "ended")
    host.held = set()
    host.settle()
    host.pass_time(0.2)
    assert got(again) == [(b"old", True)] * (how != "ended")
    again.subscribe((topic, 1))
    host.pass_time(0.2)
    assert got(again) == [(b"old", True)]
    assert not len(unanswered._counts)
    assert not watches(again.session)


def test_several_subscribes_whose_subacks_wait() -> None:
    host, _ = host_with_stores()
    topic = topic_of(OWNER)
    _, late, _ = waiting_for_its_suback(host, topic)
    unanswered, session = host.nodes[1].unanswered, late.session
    late.send(wire.subscribe(5, 2, (topic, 1), ("t/+", 0)), wire.subscribe(5, 3, ("t/+", 2)))
    host.settle()
    assert unanswered._counts == {session: 3}
    host.held = set()
    host.settle()
    host.pass_time(0.5)
    assert [packet.kind for packet in late.packets if packet.kind == "SUBACK"] == ["SUBACK"] * 3
    assert [packet.payload for packet in late.receive(lambda packet: packet.kind == "PUBLISH")].count(b"old") >= 2
    assert not len(unanswered._counts)
    assert not watches(session)


def test_a_subscription_that_cannot_be_stored_is_not_watched_for() -> None:
    host, stores = host_with_stores(limits={"store_error_seconds_max": 1})
    late = client(host, "late", 1, clean=False, expiry=1000)
    stores[1].manual = True
    late.send(wire.subscribe(5, 1, ("t/1", 1)))
    host.settle()
    assert len(host.nodes[1].unanswered._counts) == 1
    stores[1].failed = "no disk"
    host.pass_time(5)
    assert late.next("SUBACK").codes == (0x97,)
    assert not len(host.nodes[1].unanswered._counts)
    assert not watches(late.session)


@pytest.mark.parametrize("others", [0, 1, 100])
@pytest.mark.parametrize("kept", [False, True])
def test_what_the_log_had_for_an_earlier_subscribe_is_newer_than_what_that_finds(kept: bool, others: int) -> None:
    """It is newer than the answer to the SUBSCRIBE before it, whatever SUBSCRIBE follows."""
    host = Host(WORKERS, stores=[KeptStore() for _ in range(WORKERS)] if kept else None)
    topic = topic_of(OWNER)
    publisher = client(host, "publisher")
    publisher.publish(topic, b"old", 1, retain=True)
    late = client(host, "late", 1, clean=False, expiry=1000, properties={"receive_maximum": 1})
    late.subscribe(("fill", 1))
    for number in range(3):
        publisher.publish("fill", b"%d" % number, 1)
        host.settle()
    first = late.next("PUBLISH")
    subscribe_and_hold(late, (topic, 1), (OWNER, 1))
    host.settle()  # the owner has answered, and the answer waits
    publisher.publish(topic, b"new", 1, retain=True)
    host.settle()
    for number in range(others):
        late.send(wire.subscribe(5, 100 + number, (f"other/{number}", 1)))
        host.settle()
    late.ack("PUBACK", first.packet_id)
    received = [packet.payload for packet in late.receive()]
    assert received == [b"1", b"2", b"new"]
    host.held = set()
    host.settle()
    host.pass_time(1)
    assert [late.next("SUBACK").codes for _ in range(others)] == [(1,)] * others
    assert late.receive() == []
    assert host.counters(1)["dropped_overtaken"] == 1


def test_a_filter_of_a_later_piece_is_asked_for_when_it_is_subscribed() -> None:
    """What an earlier subscription is sent while the SUBSCRIBE is carried out is not its retained message."""
    host = Host()
    publisher, late = client(host, "publisher"), client(host, "late")
    late.subscribe(("+", 0))
    late.send(wire.subscribe(5, 9, *((f"n/{number}", 1) for number in range(999)), ("z", 1)))
    publisher.send(wire.publish(5, "z", b"x", qos=1, packet_id=1, retain=True))
    host.settle()
    host.pass_time(1)
    received = [(packet.kind, packet.qos, packet.retain) for packet in late.packets]
    assert received == [("PUBLISH", 0, False), ("SUBACK", 0, False), ("PUBLISH", 1, True)]
