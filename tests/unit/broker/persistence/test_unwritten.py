"""A store with store_unwritten_bytes_max to write: which clients are not read until half is written, and which are."""

from __future__ import annotations

import pytest

from broker.config.limits import BYTES_MAX, Limits
from leveldb_store.format import schema
from pyx.core.peer import sibling
from tests import wire
from tests.kept_archive import KeptArchive
from tests.kept_host import VERSIONS, lasting
from tests.kept_store import KeptStore
from tests.sansio import Host, Peer
from tests.unit.broker.persistence.test_disk import elsewhere

MOST = 4096
PAYLOAD = bytes(1000)
WAIT = 3.0
MANY = (1, 2)


def host_of(many: int = 1, most: int = MOST) -> tuple[Host, list[KeptStore]]:
    """Return hosts whose disks take nothing until the test lets them."""
    stores = [KeptStore() for _ in range(many)]
    host = Host(many, stores=stores, limits={"store_unwritten_bytes_max": most, "store_error_seconds_max": WAIT})
    return host, stores


def stall(host: Host, stores: list[KeptStore], manual: bool = True) -> None:
    """Make the disks take nothing from now on, or everything."""
    for store in stores:
        store.manual = manual
    if not manual:
        for store in stores:
            store.sync()
    host.settle()
    host.pass_time(0.2)


def retain(host: Host, publisher: Peer, count: int, qos: int = 0) -> None:
    """Publish this many retained messages, each on a topic of its own."""
    for number in range(count):
        publisher.publish(f"r/{number}", PAYLOAD, qos, retain=True)
        host.settle()


@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("version", VERSIONS)
def test_retained_messages_of_qos_0_wait_for_a_slow_disk(version: int, many: int) -> None:
    """No ack waits for them: without a bound they would fill the memory at the rate they arrive."""
    host, stores = host_of(many)
    publisher = host.connect("p", version)
    stall(host, stores)
    retain(host, publisher, 50)
    waiting = [store.unwritten_bytes for store in stores]
    assert max(waiting) >= MOST
    assert max(waiting) < MOST + 2 * len(PAYLOAD)
    assert host.counters()["retained_messages"] < 50
    assert host.counters()["store_unwritten_held"] == 1
    host.pass_time(1.0)
    assert [store.unwritten_bytes for store in stores] == waiting, "it is asked again, and not taken"
    assert host.counters()["store_unwritten_bytes"] == sum(waiting)
    stall(host, stores, manual=False)
    assert host.counters()["retained_messages"] == 50, "nothing is lost"
    assert not publisher.closed
    assert all(node.router.back_pressure.guarded == 0 for node in host.nodes)


@pytest.mark.parametrize("many", MANY)
def test_what_is_not_written_goes_on(many: int) -> None:
    host, stores = host_of(many)
    subscriber, publisher = host.connect("s", 5), host.connect("p", 5)
    subscriber.subscribe(("t", 1))
    flooder = host.connect("f", 5)
    stall(host, stores)
    retain(host, flooder, 50)
    publisher.publish("t", b"at QoS 0")
    publisher.publish("nobody/wants/it", b"", 1)
    host.settle()
    assert publisher.next("PUBACK").reason == 0x10
    assert [packet.payload for packet in subscriber.receive()] == [b"at QoS 0"]
    assert subscriber.subscribe(("u", 1)) == [1], "its session is not stored"


@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_for_a_stored_session_wait(qos: int, many: int) -> None:
    host, stores = host_of(many)
    subscriber = lasting(host, "s", 5)
    subscriber.subscribe(("t", 2))
    flooder, publisher = elsewhere(host, subscriber.node, 5), elsewhere(host, subscriber.node, 4)
    stall(host, [store for store in stores if store is subscriber.node.store])
    retain(host, flooder, 50)
    behind = [node.router.back_pressure.guarded for node in host.nodes]
    assert all(behind), "siblings are told"
    publisher.publish("t", b"later", qos)
    host.settle()
    assert host.counters()["publish_received_qos1"] + host.counters()["publish_received_qos2"] == 0
    publisher.silent()
    stall(host, stores, manual=False)
    publisher.next("PUBACK" if qos == 1 else "PUBREC")
    assert [packet.payload for packet in subscriber.receive()] == [b"later"]


def test_until_half_of_it_is_written() -> None:
    host, (store,) = host_of()
    publisher = host.connect("p", 5)
    stall(host, [store])
    retain(host, publisher, 50)
    there = host.counters()["retained_messages"]
    while True:
        store.sync(1)
        waiting = store.unwritten_bytes
        host.settle()
        host.pass_time(0.2)
        if waiting <= MOST // 2:
            break
        assert host.counters()["retained_messages"] == there
    assert host.counters()["retained_messages"] > there


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_who_waits_for_too_long_is_refused(qos: int, version: int) -> None:
    host, (store,) = host_of()
    flooder, publisher = host.connect("f", 5), host.connect("p", version)
    stall(host, [store])
    retain(host, flooder, 50)
    publisher.publish("r", PAYLOAD, qos, retain=True)
    host.settle()
    host.pass_time(WAIT - 0.5)
    publisher.silent()
    assert not publisher.closed
    refused = host.counters()["store_refused"]
    host.pass_time(1.0)
    assert host.counters()["store_refused"] > refused
    if qos and version == 5:
        assert publisher.next("PUBACK" if qos == 1 else "PUBREC").reason == 0x97
    assert publisher.closed == (qos > 0 and version < 5)
    assert store.unwritten_bytes < MOST + 2 * len(PAYLOAD)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_who_has_waited_once_waits_anew(qos: int, version: int) -> None:
    """A slow disk refuses nobody as long as it makes progress: each wait counts by itself."""
    host, (store,) = host_of()
    flooder, publisher = host.connect("f", 5), host.connect("p", version)
    for number in range(5):
        stall(host, [store])
        retain(host, flooder, 10)
        publisher.publish(f"p/{number}", PAYLOAD, qos, retain=True)
        host.settle()
        host.pass_time(WAIT / 2)
        assert host.counters()["store_unwritten_held"] == 2 * (number + 1)
        stall(host, [store], manual=False)
        publisher.receive(lambda _: False)
        host.pass_time(1.0)
    assert host.counters()["store_refused"] == 0
    assert host.counters()["publish_refused"] == 0
    assert not publisher.closed
    assert host.counters()["retained_messages"] == 10 + 5


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wait_at_qos_0_does_not_count_for_a_later_one(version: int) -> None:
    """While something else is guarded, publishes at QoS 0 are taken without a look at their former wait."""
    host = Host(1, limits={"store_error_seconds_max": WAIT}, queue_qos0=True)
    pressure = host.node.router.back_pressure
    subscriber, publisher = host.connect("subscriber"), host.connect("publisher", version)
    subscriber.subscribe(("t", 1))
    pressure.set_memory_full(5, True)  # of a sibling
    host.pass_time(1)
    pressure.set_store_unwritten(0, True)
    publisher.publish("t", b"waits", 0)
    host.settle()
    host.pass_time(0.5)
    assert pressure.connections_held == 1
    pressure.set_store_unwritten(0, False)
    host.pass_time(0.5)
    for _ in range(10):
        publisher.publish("t", b"more", 0)
        host.pass_time(1)
    assert len(subscriber.receive()) == 11
    pressure.set_store_unwritten(0, True)
    publisher.publish("t", b"waits, too", 1)
    host.pass_time(WAIT / 2)
    assert not publisher.closed
    assert not publisher.packets
    assert host.counters()["store_refused"] == 0
    pressure.set_store_unwritten(0, False)
    host.pass_time(0.5)
    assert publisher.next("PUBACK").reason == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_connects_that_need_records_are_refused(version: int) -> None:
    """A client that connects with a large will and does not wait for CONNACK would fill the memory; clients with a
    stored session may connect.
    """
    host, (store,) = host_of()
    lasting(host, "known", version)
    host.lose(host.peers[-1])
    flooder = host.connect("f", 5)
    stall(host, [store])
    retain(host, flooder, 50)
    waiting = store.unwritten_bytes
    will = wire.Will("will", PAYLOAD)
    expires = {"session_expiry_interval": 100} if version == 5 else {}
    for number in range(50):
        refused = host.open(version)
        refused.send(wire.connect(version, f"w{number}", clean=number % 2 == 0, will=will, properties=expires))
        host.settle()
        assert refused.next("CONNACK").reason == (0x88 if version == 5 else 3)
        assert refused.closed
    assert store.unwritten_bytes == waiting
    host.connect("clean", version, clean=True)
    assert lasting(host, "known", version).session_present == (version > 3)
    stall(host, [store], manual=False)
    host.pass_time(1.0)
    host.connect("w0", version, will=will)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
def test_archived_messages_wait_without_a_subscriber(qos: int, version: int) -> None:
    store = KeptStore(archive=KeptArchive([b"a/#"]))
    host = Host(stores=[store], limits={"store_unwritten_bytes_max": MOST, "store_error_seconds_max": WAIT})
    flooder, publisher = host.connect("f", 5), host.connect("p", version)
    stall(host, [store])
    retain(host, flooder, 50)
    waiting = store.unwritten_bytes
    for topic in ("a/b", "b"):
        publisher.publish(topic, PAYLOAD, qos)
    host.settle()
    assert host.counters()["store_unwritten_held"] == 2
    assert store.unwritten_bytes == waiting
    assert publisher.conn.messages_in == 0, "the second waits behind the first"
    stall(host, [store], manual=False)
    kinds = [packet.kind for packet in publisher.packets]
    assert kinds == ["PUBACK" if qos == 1 else "PUBREC"] * 2


def test_subscriptions_of_stored_sessions_wait_too() -> None:
    """Subscriptions need records, and a client that does not wait for the SUBACKs makes as many as it likes."""
    host, (store,) = host_of()
    client, other = lasting(host, "s", 5), host.connect("f", 5)
    stall(host, [store])
    retain(host, other, 50)
    before = host.counters()["subscriptions"]
    for number in range(50):
        client.send(wire.subscribe(5, client.packet_id(), (f"{number}/" + "x" * 1000, 1)))
    host.settle()
    host.pass_time(WAIT * 2)
    assert host.counters()["subscriptions"] == before
    assert store.unwritten_bytes < MOST + 2 * len(PAYLOAD)
    stall(host, [store], manual=False)
    host.pass_time(1.0)
    assert host.counters()["subscriptions"] == before + 50


@pytest.mark.parametrize("most", [0, 1, MOST, BYTES_MAX])
def test_the_bound_itself(most: int) -> None:
    host, (store,) = host_of(most=most)
    publisher = host.connect("p", 5)
    stall(host, [store])
    retain(host, publisher, 50)
    taken = host.counters()["retained_messages"]
    assert taken == {0: 50, 1: 1, MOST: 4, BYTES_MAX: 50}[most]
    stall(host, [store], manual=False)
    assert host.counters()["retained_messages"] == 50


@pytest.mark.parametrize("beyond", [-1, BYTES_MAX + 1])
def test_no_other_bound_is_taken(beyond: int) -> None:
    with pytest.raises(ValueError, match="store_unwritten_bytes_max"):
        Limits(store_unwritten_bytes_max=beyond)


def test_a_reload_that_takes_the_bound_away_lets_them_go() -> None:
    host, (store,) = host_of()
    publisher = host.connect("p", 5)
    stall(host, [store])
    retain(host, publisher, 50)
    settings = host.node.settings
    limits = settings.limits.model_copy(update={"store_unwritten_bytes_max": 0})
    host.node.reload(settings.model_copy(update={"limits": limits}))
    host.pass_time(2.0)
    assert host.counters()["retained_messages"] == 50


def test_to_clear_what_is_not_there_needs_no_record() -> None:
    host, (store,) = host_of()
    publisher = host.connect("p", 5)
    publisher.publish("there", PAYLOAD, 1, retain=True)
    host.settle()
    batches = len(store.batches)
    for number in range(10):
        publisher.publish(f"not/there/{number}", b"", number % 2, retain=True)
        host.settle()
    assert len(store.batches) == batches
    publisher.publish("there", b"", 1, retain=True)
    host.settle()
    assert not [key for key in store.records if key.startswith(schema.RETAINED)]
    assert len(store.batches) > batches


def test_siblings_forget_it_with_the_worker_and_hear_it_again() -> None:
    host, stores = host_of(2)
    here, there = host.nodes
    flooder = host.connect("f", 5)
    stall(host, [store for store in stores if store is flooder.node.store])
    retain(host, flooder, 50)
    behind, other = (here, there) if flooder.node is here else (there, here)

    def is_told() -> bool:
        return other.router.back_pressure.guarded != 0

    assert is_told()
    other.router.back_pressure.forget_holds(behind.index)
    assert not is_told()
    behind.greet(sibling(other.index))
    host.settle()
    assert is_told()
    stall(host, stores, manual=False)
    assert all(node.router.back_pressure.guarded == 0 for node in host.nodes)
