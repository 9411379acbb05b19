"""A session comes with its client to another host: with all that it has, nothing of it twice, in order."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from tests.cluster.hosts import ClusteredHost, Hosts, hosts_of
from tests.waiting import let_pass, wait_until
from tests.wire import NO_LOCAL, Client, Closed, ack, connect, publish

SECONDS = 20.0
_TAKEN_OVER = 0x8E


@pytest.fixture(scope="module", params=[((1, 1), "memory"), ((2, 3), "memory"), ((2, 2), "leveldb")], ids=str)
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    counts, store = request.param
    with hosts_of(counts, store) as running:
        yield running


def lasting(host: ClusteredHost, client_id: str, version: int = 5) -> Client:
    """Return a connected client with a session that lasts."""
    properties = {"session_expiry_interval": 600} if version == 5 else {}
    return host.client(client_id, version, clean=False, properties=properties)


def sessions(hosts: Hosts) -> list[int]:
    """Return how many sessions each host has."""
    return [host.counter("sessions") for host in hosts]


def test_subscriptions_and_queue_come_along(hosts: Hosts) -> None:
    """[MQTT-3.1.2-5] The session is present on the other host, with its queue, in order, and its subscriptions. There
    it goes on, and back; the former host has it no more.
    """
    before = sum(sessions(hosts))
    client = lasting(hosts[0], "moves")
    client.subscribe(("plain/#", 1), ("exactly/+", 2))
    client.subscribe(("named", 1), properties={"subscription_identifier": 77})
    client.subscribe(("own", 1 | NO_LOCAL))
    publishers = [host.client(f"publisher-{at}") for at, host in enumerate(hosts)]
    for turn in range(1, 5):
        client.disconnect()
        sent: list[list[bytes]] = [[], []]
        for number, (at, publisher) in itertools.product(range(5), enumerate(publishers)):
            payload = b"%d-%d-%d" % (turn, at, number)
            sent[at].append(payload)
            publisher.publish("plain/x", payload, qos=1)
        publishers[turn % 2].publish("exactly/1", b"twice never", qos=2)
        publishers[0].publish("named", b"named", qos=1)
        client = lasting(hosts[turn % 2], "moves")
        assert client.connack.session_present
        got: list[list[bytes]] = [[], []]
        others = []
        for _ in range(12):
            packet = client.expect("PUBLISH")
            client.ack("PUBREC" if packet.qos == 2 else "PUBACK", packet.packet_id)
            if packet.qos == 2:
                client.await_packet("PUBREL", packet.packet_id)
                client.ack("PUBCOMP", packet.packet_id)
            if packet.topic == "plain/x":
                got[int(packet.payload.split(b"-")[1])].append(packet.payload)
            else:
                others.append((packet.topic, packet.qos, packet.properties))
        assert got == sent
        assert sorted(others) == [("exactly/1", 2, {}), ("named", 1, {"subscription_identifier": [77]})]
        client.publish("own", b"not to me", qos=1)
        publishers[(turn + 1) % 2].publish("plain/live", b"live", qos=1)
        client.receive("plain/live", b"live", qos=1, dup=False)
        client.expect_silence()
        assert client.subscribe(("own", 1)) == (1,)
        client.publish("own", b"to me", qos=1)
        client.receive("own", b"to me")
        client.subscribe(("own", 1 | NO_LOCAL))
    wait_until(lambda: sum(sessions(hosts)) == before + 3, SECONDS, "only one host has the session")
    for each in (client, *publishers):
        each.disconnect()


def test_what_is_in_flight_comes_along(hosts: Hosts) -> None:
    """[MQTT-4.4.0-1, MQTT-2.2.1-3] PUBLISH and PUBREL without their answers are sent again, with their Packet
    Identifiers, and a QoS 2 PUBLISH of the client whose PUBREL it has not sent is delivered once.
    """
    client = lasting(hosts[1], "in-flight")
    client.subscribe(("f/#", 2))
    publisher = hosts[0].client("in-flight-publisher")
    watcher = hosts[0].client("in-flight-watcher")
    watcher.subscribe(("from/it", 2))
    publisher.publish("f/1", b"one", qos=1)
    one = client.expect("PUBLISH", payload=b"one")
    publisher.publish("f/2", b"two", qos=2)
    two = client.expect("PUBLISH", payload=b"two")
    publisher.publish("f/3", b"three", qos=2)
    three = client.expect("PUBLISH", payload=b"three")
    client.ack("PUBREC", three.packet_id)
    client.await_packet("PUBREL", three.packet_id)
    client.send(publish(5, "from/it", b"once", qos=2, packet_id=9))
    client.await_packet("PUBREC", 9)
    watcher.receive("from/it", b"once")
    client.close()

    client = lasting(hosts[0], "in-flight")
    assert client.connack.session_present
    client.expect("PUBREL", packet_id=three.packet_id)
    client.expect("PUBLISH", payload=b"one", dup=True, qos=1, packet_id=one.packet_id)
    client.expect("PUBLISH", payload=b"two", dup=True, qos=2, packet_id=two.packet_id)
    client.send(publish(5, "from/it", b"once", qos=2, packet_id=9, dup=True))
    client.await_packet("PUBREC", 9)
    client.send(ack(5, "PUBREL", 9))
    client.await_packet("PUBCOMP", 9)
    client.ack("PUBCOMP", three.packet_id)
    client.ack("PUBACK", one.packet_id)
    client.ack("PUBREC", two.packet_id)
    client.await_packet("PUBREL", two.packet_id)
    client.ack("PUBCOMP", two.packet_id)
    watcher.expect_silence()
    client.disconnect()
    client = lasting(hosts[1], "in-flight")
    client.expect_silence()
    for each in (client, publisher, watcher):
        each.disconnect()


@pytest.mark.parametrize("qos", [1, 2])
def test_moves_under_load(hosts: Hosts, qos: int) -> None:
    """While messages are published on both hosts, a client moves from one to the other again and again: it gets each
    once, those of a publisher in order.
    """
    topic, name = f"load{qos}", f"load-{qos}"
    client = lasting(hosts[0], name)
    client.subscribe((topic, qos))
    ends = threading.Event()
    sent = [0, 0]

    def go_on(at: int) -> None:
        publisher = hosts[at].client(f"{name}-publisher-{at}")
        while not ends.is_set():
            assert publisher.publish(topic, b"%d %d" % (at, sent[at]), qos=qos) == 0
            sent[at] += 1
        publisher.disconnect()

    threads = [threading.Thread(target=go_on, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    got: list[list[int]] = [[], []]
    released: set[int] = set()

    def take(most: int) -> None:
        for _ in range(most):
            packet = client.read()
            if packet.kind == "PUBLISH":
                # a second time only as the same packet, to whose first sending there was no answer in time
                if not packet.dup or packet.packet_id not in released:
                    at, number = map(int, packet.payload.split())
                    got[at].append(number)
                if qos == 2:
                    released.add(packet.packet_id)
                client.ack("PUBREC" if qos == 2 else "PUBACK", packet.packet_id)
            elif packet.kind == "PUBREL":
                released.discard(packet.packet_id)
                client.ack("PUBCOMP", packet.packet_id)

    try:
        for turn in range(1, 11):
            take(40)
            if turn % 2:
                client.disconnect()  # what it has sent is read before its end, so each answer counts
            else:
                client.close()  # its last answers may be lost
            client = lasting(hosts[turn % 2], name)
            assert client.connack.session_present
    finally:
        ends.set()
        for thread in threads:
            thread.join()

    while missing := [sorted(set(range(sent[at])) - set(got[at])) for at in range(2)]:
        if missing == [[], []]:
            break
        try:
            take(1)
        except TimeoutError:
            raise AssertionError(f"missing of {sent}: {missing}") from None
    for at in range(2):
        first_times = list(dict.fromkeys(got[at]))
        assert first_times == list(range(sent[at])), "in order"
        if qos == 2:
            assert got[at] == first_times, "each once"
    client.disconnect()


def test_the_owner_was_dead() -> None:
    """The client is served elsewhere at once, by a new session. What its former host had for it, and what others kept
    for that host, comes when that is back, once, in order.
    """
    with hosts_of((2, 2), "leveldb") as hosts:
        client = lasting(hosts[0], "survivor")
        client.subscribe(("jobs/#", 1))
        client.disconnect()
        publisher = hosts[1].client("survivor-publisher")
        for number in range(5):
            publisher.publish("jobs/a", b"%d" % number, qos=1)
        hosts[0].kill()
        for number in range(5, 8):
            publisher.publish("jobs/a", b"%d" % number, qos=1)
        client = lasting(hosts[1], "survivor")
        assert not client.connack.session_present
        client.subscribe(("jobs/#", 1))
        let_pass(2)  # longer than a new session has for its SUBSCRIBE
        for number in range(8, 10):
            publisher.publish("jobs/a", b"%d" % number, qos=1)
            client.receive("jobs/a", b"%d" % number)
        hosts[0].start()
        for number in range(8):
            client.receive("jobs/a", b"%d" % number)
        client.expect_silence()
        wait_until(lambda: hosts[0].counter("sessions") == 0, SECONDS, "it has no session for it any more")
        publisher.publish("jobs/a", b"10", qos=1)
        client.receive("jobs/a", b"10")
        client.expect_silence()


def test_what_others_keep_for_a_dead_owner_is_much() -> None:
    """It takes a while until all of it has come: the session waits for it."""
    with hosts_of((1, 1), "leveldb") as hosts:
        client = lasting(hosts[0], "waits")
        client.subscribe(("jobs/#", 1))
        client.disconnect()
        other = lasting(hosts[0], "other")
        other.subscribe(("bulk", 1))
        other.disconnect()
        hosts[0].kill()
        publisher = hosts[1].client("waits-publisher")
        for _ in range(4000):
            publisher.publish("bulk", bytes(16384), qos=1)
        for number in range(5):
            publisher.publish("jobs/a", b"%d" % number, qos=1)
        client = lasting(hosts[1], "waits")
        client.subscribe(("jobs/#", 1))
        hosts[0].start()
        for number in range(5):
            client.receive("jobs/a", b"%d" % number)
        client.expect_silence()


def test_a_client_returns_to_its_dead_host() -> None:
    """It has been elsewhere meanwhile: all that both hosts have comes to it, however early it is back."""
    with hosts_of((1, 1), "leveldb") as hosts:
        client = lasting(hosts[0], "returns")
        client.subscribe(("jobs/#", 1))
        client.disconnect()
        publisher = hosts[1].client("returns-publisher")
        for number in range(5):
            publisher.publish("jobs/a", b"%d" % number, qos=1)
        hosts[0].kill()
        client = lasting(hosts[1], "returns")
        client.subscribe(("jobs/#", 1))
        let_pass(2)
        client.disconnect()
        for number in range(5, 8):
            publisher.publish("jobs/a", b"%d" % number, qos=1)
        hosts[0].start()
        got: list[bytes] = []

        def is_served() -> bool:
            client = Client(hosts[0].address, 5)
            client.send(connect(5, "returns", clean=False, properties={"session_expiry_interval": 600}))
            served = client.expect("CONNACK").reason == 0
            while served and len(got) < 8:
                packet = client.expect("PUBLISH")
                client.ack("PUBACK", packet.packet_id)
                got.append(packet.payload)
            if served:
                client.expect_silence()
            client.close()
            return served

        wait_until(is_served, 60, "its host serves it again")
        assert sorted(got) == [b"%d" % number for number in range(8)]


def _has_all(host: ClusteredHost, connect_packet: bytes, got: set[bytes]) -> bool:
    """Connect and collect ten messages. False: the client has to connect again, because an earlier connection came
    later; another worker accepted it, and the home of a client serves its connections in the order in which they come.
    """
    client = Client(host.address, 5)
    client.send(connect_packet)
    try:
        assert client.expect("CONNACK", reason=0).session_present
        while len(got) < 10:
            packet = client.read()
            if packet.kind == "DISCONNECT":
                assert packet.reason == _TAKEN_OVER
                return False
            client.ack("PUBACK", packet.packet_id)
            got.add(packet.payload)
        client.disconnect()
    except Closed:
        return False
    finally:
        client.close()
    return True


def test_connections_that_change_in_the_middle_of_a_move(hosts: Hosts) -> None:
    """A client connects to another host, and again before it is answered: its session is there, with everything."""
    chance = random.Random(19)
    publisher = hosts[0].client("restless-publisher")
    names = [f"restless-{at}" for at in range(40)]
    for name in names:
        client = lasting(hosts[0], name)
        client.subscribe((f"restless/{name}", 1))
        client.disconnect()
        for number in range(10):
            publisher.publish(f"restless/{name}", b"%d" % number, qos=1)
    packet = {name: connect(5, name, clean=False, properties={"session_expiry_interval": 600}) for name in names}
    for name in names:
        first = Client(hosts[1].address, 5)
        first.send(packet[name])
        let_pass(chance.uniform(0, 0.01))
        first.close()
        got: set[bytes] = set()
        wait_until(partial(_has_all, hosts[1], packet[name], got), 60, f"{name} has all of its messages")
    publisher.disconnect()
