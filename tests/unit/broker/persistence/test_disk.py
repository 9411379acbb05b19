"""A disk that is full or fails: who gets which answer; nothing is promised and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from pyx.core import work
from pyx.core.peer import sibling
from tests import wire
from tests.kept_host import VERSIONS, WILL, commit, kept, lasting, sent, store_of
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer

FULL = "the disk has 1 MB free, but 36 MB are needed"
REFUSES = "no space left on device, since 1"
WAIT = 3.0
LIMITS = {"store_error_seconds_max": WAIT}


def full_host(many: int = 1) -> tuple[Host, Peer]:
    """Return hosts with persistent stores and a connected, stored session on `t/#` at QoS 2."""
    host = Host(many, stores=[KeptStore() for _ in range(many)], limits=LIMITS)
    subscriber = lasting(host, "s", 5)
    subscriber.subscribe(("t/#", 2))
    return host, subscriber


def set_full(subscriber: Peer, host: Host, why: str | None = FULL) -> None:
    store = subscriber.node.store
    assert isinstance(store, KeptStore)
    store.little_room = why
    host.settle()
    host.pass_time(0.2)


def elsewhere(host: Host, node: Any, version: int) -> Peer:
    """Return a client of another worker, if there is one."""
    found = (host.connect(f"p{version}{number}", version) for number in range(64))
    return next(peer for peer in found if peer.node is not node or len(host.nodes) == 1)


@pytest.mark.parametrize("many", [1, 2])
def test_a_full_disk_refuses_messages_and_nothing_else(many: int) -> None:
    host, subscriber = full_host(many)
    publisher = elsewhere(host, subscriber.node, 5)
    publisher.publish("t/a", b"before", 2)
    host.pass_time(0.5)
    set_full(subscriber, host)
    assert publisher.next("PUBREC").reason == 0
    for qos, ack in ((1, "PUBACK"), (2, "PUBREC")):
        publisher.publish("t/a", b"refused", qos)
        host.settle()
        assert publisher.next(ack).reason == 0x97
    publisher.publish("t/a", b"goes on", 0)
    publisher.publish("nobody/wants/it", b"", 1)
    host.settle()
    assert publisher.next("PUBACK").reason == 0x10
    assert [packet.payload for packet in subscriber.receive()] == [b"before", b"goes on"]
    assert [each.named("store_full") != [] for each in host.logs].count(True) == 1
    set_full(subscriber, host, None)
    publisher.publish("t/a", b"after", 2)
    host.pass_time(0.5)
    assert publisher.next("PUBREC").reason == 0
    assert [packet.payload for packet in subscriber.receive()] == [b"after"]
    assert host.counters()["store_refused"] == 2
    assert host.counters()["store_full"] == 0
    assert all(node.router.back_pressure.guarded == 0 for node in host.nodes)


@pytest.mark.parametrize("version", [3, 4])
def test_before_mqtt_5_it_is_waited_for_a_while(version: int) -> None:
    host, subscriber = full_host()
    patient, other = host.connect("patient", version), host.connect("other", version)
    set_full(subscriber, host)
    other.publish("t/a", b"other", 1)
    host.pass_time(WAIT - 1)
    patient.publish("t/a", b"patient", 1)
    patient.publish("t/a", b"behind it", 0)
    host.pass_time(1.5)
    assert other.closed
    assert not patient.closed
    patient.silent()
    set_full(subscriber, host, None)
    patient.next("PUBACK")
    assert [packet.payload for packet in subscriber.receive()] == [b"patient", b"behind it"]
    assert host.counters()["store_held"] == 2


def test_deliveries_and_handshakes_go_on_while_there_is_little_room() -> None:
    host, subscriber = full_host()
    host.lose(subscriber)
    publisher = lasting(host, "p", 5)
    publisher.publish("t/a", b"1", 2)
    publisher.publish("t/a", b"2", 1)
    host.settle()
    packet_id = publisher.next("PUBREC").packet_id
    assert publisher.next("PUBACK").reason == 0
    set_full(subscriber, host)
    publisher.ack("PUBREL", packet_id)
    host.settle()
    publisher.next("PUBCOMP")
    subscriber = lasting(host, "s", 5)
    assert subscriber.session_present
    assert sorted(packet.payload for packet in subscriber.receive()) == [b"1", b"2"]
    assert sent(host, "new", 5, properties={"session_expiry_interval": 9}).next("CONNACK").reason == 0x88
    assert subscriber.subscribe(("u", 1)) == [0x97]
    # requests that free space are accepted
    assert sent(host, "s", 5, clean=True, will=WILL).next("CONNACK").reason == 0x88
    assert sent(host, "s", 5, clean=True).next("CONNACK").reason == 0
    assert not [key for key in store_of(host).records if b"s" in key[1:] and key[:1] in (b"S", b"T", b"V")]


def taken(version: int, qos: int, payload: bytes = b"taken") -> tuple[Host, Peer, Peer, KeptStore]:
    """A publish was routed, then the disk refuses: (host, subscriber, publisher, store)."""
    host, store = kept(manual=True, limits=LIMITS)
    store.manual = False
    subscriber, publisher = lasting(host, "s", 5), lasting(host, "p", version)
    subscriber.subscribe(("t", 2))
    host.lose(subscriber)
    store.manual = True
    publisher.publish("t", payload, qos)
    host.settle()
    publisher.silent()
    store.failed = REFUSES
    host.settle()
    return host, subscriber, publisher, store


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_taken_is_acknowledged_when_the_disk_is_well_in_time(version: int, qos: int) -> None:
    host, _, publisher, store = taken(version, qos)
    host.pass_time(WAIT - 1)
    publisher.silent()
    store.failed = None
    store.manual = False
    commit(host)
    publisher.next("PUBACK" if qos == 1 else "PUBREC")
    assert [packet.payload for packet in lasting(host, "s", 5).receive()] == [b"taken"]
    assert [[line["reason"] for line in host.logs[0].named("store_failed")]] == [[REFUSES]]
    assert len(host.logs[0].named("store_recovered")) == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_taken_is_given_up_after_a_while_and_never_comes_twice(qos: int) -> None:
    host, _, publisher, store = taken(5, qos)
    publisher.publish("t", b"new", qos)  # its refusal must not overtake the first one
    host.settle()
    publisher.silent()
    host.pass_time(WAIT + 1.5)
    ack = "PUBACK" if qos == 1 else "PUBREC"
    assert [publisher.next(ack).reason for _ in range(2)] == [0x97, 0x97]
    publisher.publish("t", b"newer", qos)
    host.settle()
    assert publisher.next(ack).reason == 0x97
    store.failed = None
    commit(host)
    store.manual = False
    host.settle()
    assert [packet.payload for packet in lasting(host, "s", 5).receive()] == [b"taken"]
    publisher.publish("t", b"again", qos)
    host.settle()
    assert publisher.next(ack).reason == 0
    assert host.counters()["store_refused"] == 3


@pytest.mark.parametrize("version", [3, 4])
def test_before_mqtt_5_the_connection_of_what_was_taken_is_closed(version: int) -> None:
    host, _, publisher, store = taken(version, 2)
    host.pass_time(WAIT + 1.5)
    assert publisher.closed
    store.failed = None
    commit(host)
    store.manual = False
    host.settle()
    publisher = lasting(host, "p", version)
    assert publisher.session_present or version == 3
    publisher.send(wire.publish(version, "t", b"taken", qos=2, packet_id=1, dup=True))  # no answer was received
    host.settle()
    publisher.next("PUBREC")
    assert [packet.payload for packet in lasting(host, "s", 5).receive()] == [b"taken"]


# -------------------------------------------------------------------- packets other than PUBLISH that wait for a record


def failing(store: KeptStore, host: Host) -> None:
    """Make the disk refuse: everything that waits from now on waits for it."""
    store.failed = REFUSES
    host.settle()


def well(store: KeptStore, host: Host) -> None:
    store.failed = None
    store.manual = False
    host.pass_time(1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_connect_that_waits_is_refused_after_a_while_and_leaves_nothing(version: int) -> None:
    host, store = kept(manual=True, limits=LIMITS)
    properties = {"session_expiry_interval": 600} if version == 5 else {}
    client = sent(host, "c", version, clean=False, properties=properties, will=WILL)
    failing(store, host)
    host.pass_time(WAIT - 1)
    client.silent()
    host.pass_time(2.5)
    assert client.next("CONNACK").reason == (0x88 if version == 5 else 3)
    assert client.closed
    assert not len(host.node.sessions)
    well(store, host)
    assert not [key for key in store.records if key[:1] in (b"S", b"W", b"T", b"V")]
    assert not lasting(host, "c", version).session_present
    assert host.counters()["connections_refused"] == 1


def test_a_connect_that_is_refused_leaves_the_session_it_found_as_it_was() -> None:
    """The expiry is unchanged, and so is a will that waits for its delay."""
    host, store = kept(limits=LIMITS)
    watcher = lasting(host, "watcher", 5)
    watcher.subscribe(("will", 1))
    client = lasting(host, "c", 5, expiry=60, will=wire.Will("will", b"old", 1, False, {"will_delay_interval": 30}))
    client.subscribe(("t", 1))
    host.lose(client)
    host.pass_time(1)
    store.manual = True
    new = wire.Will("will", b"never said to be there", qos=1)
    client = sent(host, "c", 5, clean=False, properties={"session_expiry_interval": 5}, will=new)
    failing(store, host)
    host.pass_time(WAIT + 1.5)
    assert client.next("CONNACK").reason == 0x88
    well(store, host)
    crashed = host.crash()
    for found, who in ((host, watcher), (crashed, lasting(crashed, "watcher", 5))):
        found.pass_time(20)  # together 26.5 s of 30
        who.silent()
        found.pass_time(10)
        assert [packet.payload for packet in who.receive()] == [b"old"]
        assert found.node.sessions.get("c") is not None
        found.pass_time(40)
        assert found.node.sessions.get("c") is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_subscribe_that_waits_is_refused_after_a_while_and_taken_back(version: int) -> None:
    host, store = kept(limits=LIMITS)
    publisher = host.connect("p", 5)
    publisher.publish("t", b"retained", 1, retain=True)
    client = lasting(host, "c", version)
    client.subscribe(("before", 1))
    store.manual = True
    filters = [("t", 1), ("$share/group/t", 1), ("/" * 200, 1), ("u/#", 0)]
    client.send(wire.subscribe(version, 7, *filters))
    failing(store, host)
    host.pass_time(WAIT - 1)
    client.silent()
    host.pass_time(2.5)
    suback = client.next("SUBACK")
    assert suback.packet_id == 7
    assert list(suback.codes) == ([0x97, 0x97, 0x8F, 0x97] if version == 5 else [0x80] * 4)
    assert not client.closed
    for topic in ("t", "u/1"):
        publisher.publish(topic, b"not subscribed", 0)
    client.silent()
    well(store, host)
    for found in (host.crash(), host):
        subscribed = [session.subscribed() for session in found.node.sessions if session.client_id == "c"]
        assert subscribed == [[b"before"]]
    assert client.subscribe(("t", 1)) == [1]
    assert [packet.payload for packet in client.receive()] == [b"retained"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_subscription_that_was_replaced_cannot_be_taken_back(version: int) -> None:
    """No answer is sent: the connection is closed, and the session keeps its former subscription."""
    host, store = kept(limits=LIMITS)
    client = lasting(host, "c", version)
    client.subscribe(("t", 1))
    store.manual = True
    client.send(wire.subscribe(version, 7, ("t", 2)))
    failing(store, host)
    host.pass_time(WAIT + 1.5)
    if version == 5:
        assert client.next("DISCONNECT").reason == 0x97
    client.silent()
    assert client.closed
    well(store, host)
    for found in (host.crash(), host):
        publisher = found.connect("p", 5)
        publisher.publish("t", b"x", 2)
        publisher.receive()
        assert [packet.payload for packet in lasting(found, "c", version).receive()] == [b"x"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unsubscribe_that_waits_is_not_said_to_be_done(version: int) -> None:
    host, store = kept(limits=LIMITS)
    client = lasting(host, "c", version)
    client.subscribe(("t", 1))
    store.manual = True
    client.send(wire.unsubscribe(version, 7, "t", "never/there"))
    failing(store, host)
    host.pass_time(WAIT - 1)
    client.silent()
    host.pass_time(2.5)
    if version == 5:
        assert list(client.next("UNSUBACK").codes) == [0x80, 0x11]
    assert client.closed is (version != 5)
    client.silent()
    well(store, host)
    assert not [key for key in store.records if key.startswith(b"T")]


def test_answers_that_wait_leave_in_their_order() -> None:
    host, store = kept(limits=LIMITS)
    subscriber, client = lasting(host, "s", 5), lasting(host, "c", 5)
    subscriber.subscribe(("t", 1))
    store.manual = True
    client.publish("t", b"1", 1)
    client.send(wire.subscribe(5, 100, ("a", 1)), wire.unsubscribe(5, 101, "a"))
    client.publish("t", b"2", 2)
    failing(store, host)
    host.pass_time(WAIT + 1.5)
    found = [client.next(kind) for kind in ("PUBACK", "SUBACK", "UNSUBACK", "PUBREC")]
    assert [list(packet.codes) or [packet.reason] for packet in found] == [[0x97], [0x97], [0x80], [0x97]]
    assert host.counters()["store_refused"] == 4
    well(store, host)
    assert client.subscribe(("a", 1)) == [1]


def test_a_subscribe_waits_for_no_disk_but_its_own() -> None:
    host, subscriber = full_host(2)
    store = subscriber.node.store
    assert isinstance(store, KeptStore)
    other = elsewhere(host, subscriber.node, 5)
    store.manual = True
    failing(store, host)
    assert other.subscribe(("t/#", 1)) == [1]
    host.pass_time(WAIT + 1.5)
    assert not other.closed
    assert other.subscribe(("t/#", 2)) == [2]


def test_a_sibling_whose_disk_fails_for_long_is_not_waited_for() -> None:
    host, subscriber = full_host(2)
    publisher = elsewhere(host, subscriber.node, 5)
    old = elsewhere(host, subscriber.node, 4)
    store = subscriber.node.store
    assert isinstance(store, KeptStore)
    host.lose(subscriber)
    store.manual = True
    for peer in (publisher, old):
        peer.publish("t/a", b"taken", 1)
    host.pass_time(0.5)
    publisher.silent()
    store.failed = REFUSES
    host.pass_time(WAIT + 1.5)
    assert publisher.next("PUBACK").reason == 0x97
    assert old.closed


def test_the_end_of_it_is_told_to_siblings_that_were_away() -> None:
    host, subscriber = full_host(2)
    set_full(subscriber, host)
    other = next(node for node in host.nodes if node is not subscriber.node)
    other.router.back_pressure.forget_holds(subscriber.node.index)
    assert other.router.back_pressure.guarded == 0
    subscriber.node.greet(sibling(other.index))
    host.pass_time(0.2)
    assert other.router.back_pressure.guarded
    set_full(subscriber, host, None)
    assert other.router.back_pressure.guarded == 0


@pytest.mark.parametrize("well_again", [False, True])
def test_thousands_that_wait_are_answered_in_pieces(well_again: bool) -> None:
    """Publishers whose turn has not come when the disk recovers are not refused messages that are stored."""
    host = Host(stores=[store := KeptStore()], limits={**LIMITS, "filters_per_second_max": 0})
    lasting(host, "s", 5).subscribe(("t/#", 1))
    publishers = [host.connect(f"p{number}", 4 if number == 1999 else 5) for number in range(2000)]
    store.manual = True
    for publisher in publishers:
        publisher.publish("t/a", b"x", 1)
    host.settle()
    store.failed = REFUSES
    host.pass_time(WAIT - 0.2)
    assert not any(publisher.packets or publisher.closed for publisher in publishers)
    work.forget()
    while not publishers[0].packets:
        host.now_ms += 100
        host.node.router.state.set_time(host.now_ms)
        host.node.timers.advance(host.now_ms)
        host.turn()
    assert not publishers[-2].packets
    if well_again:
        store.failed = None
        store.manual = False
    host.settle()
    assert publishers[0].next("PUBACK").reason == 0x97
    assert publishers[-2].next("PUBACK").reason == (0 if well_again else 0x97)
    assert publishers[-1].closed != well_again
    assert work.over() == {}
    assert max(work.highest().values()) < work.BOUND // 2
