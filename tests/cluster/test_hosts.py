"""Messages between hosts, on the wire: real brokers, a real etcd, links over TCP with CURVE."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import Hosts, hosts_of, ids_on
from tests.waiting import wait_until
from tests.wire import Client, expect_nothing_more

SECONDS = 20.0


@pytest.fixture(scope="module", params=["memory", "leveldb"])
def pair(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Two hosts of two workers."""
    with hosts_of([2, 2], request.param) as hosts:
        yield hosts


@pytest.fixture(scope="module", params=[(1, 1), (2, 3)], ids=["1-1", "2-3"])
def uneven(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Hosts of other numbers of workers."""
    with hosts_of(request.param) as hosts:
        yield hosts


def everywhere(hosts: Hosts, prefix: str) -> list[Client]:
    """Return a client on every worker of every host."""
    return [host.client_on(worker, f"{prefix}{host.node}-") for host in hosts for worker in range(host.workers)]


def close(*clients: Client) -> None:
    """Disconnect clients."""
    for client in clients:
        client.disconnect()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_worker_reaches_every_other(pair: Hosts, qos: int) -> None:
    """[MQTT-3.3.5-1] A subscriber on any worker of any host gets each message once, whoever publishes it."""
    clients = everywhere(pair, f"all{qos}-")
    topic = f"all/{qos}"
    for client in clients:
        assert client.subscribe(topic, qos=2) == (2,)
    for number, publisher in enumerate(clients):
        publisher.publish(topic, b"%d" % number, qos=qos)
        for client in clients:
            client.receive(topic, b"%d" % number, qos=qos)
    for client in clients:
        client.expect_silence()
    close(*clients)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_other_numbers_of_workers(uneven: Hosts, qos: int) -> None:
    """The same where worker i has no namesake on the other host, or several workers share one."""
    clients = everywhere(uneven, f"uneven{qos}-")
    topic = f"uneven/{qos}"
    for client in clients:
        client.subscribe(topic, qos=2)
    for number, publisher in enumerate(clients):
        publisher.publish(topic, b"%d" % number, qos=qos)
        for client in clients:
            client.receive(topic, b"%d" % number, qos=qos)
    close(*clients)


def test_a_publish_crosses_once(pair: Hosts) -> None:
    """However many subscribers a host has; and a topic that nobody wants there does not cross."""
    here, there = pair
    publisher = here.client_on(0, "once")
    subscribers = [there.client_on(at % 2, f"many{at}-") for at in range(10)]
    for subscriber in subscribers:
        subscriber.subscribe("once/#", qos=1)
    before = here.counter("mesh_entries_sent")
    for _ in range(5):
        publisher.publish("once/wanted", b"x", qos=1)
        publisher.publish("nobody/wants/it", b"x", qos=1)
    for subscriber in subscribers:
        for _ in range(5):
            subscriber.receive("once/wanted", b"x")
    assert here.counter("mesh_entries_sent") - before == 5
    close(publisher, *subscribers)


def test_a_subscribe_is_answered_when_other_hosts_know_it(pair: Hosts) -> None:
    """What is published anywhere after the SUBACK arrives, for subscribers and publishers on all workers."""
    clients = everywhere(pair, "known-")
    for turn in range(30):
        subscriber, publisher = clients[turn % 4], clients[(turn * 3 + turn // 4 + 1) % 4]
        topic = f"known/{turn}"
        subscriber.subscribe(topic, qos=1)
        publisher.publish(topic, b"after", qos=1)
        subscriber.receive(topic, b"after")
    close(*clients)


def test_an_unsubscribe_ends_what_crosses(pair: Hosts) -> None:
    """When the last subscriber of a host has left, nothing crosses any more."""
    here, there = pair
    publisher = here.client_on(1, "end")
    two = [there.client_on(worker, "end") for worker in range(2)]
    for client in two:
        client.subscribe("end/x")
    two[0].unsubscribe("end/x")
    publisher.publish("end/x", b"1", qos=1)
    two[1].receive("end/x", b"1")
    two[1].disconnect()
    before = here.counter("mesh_entries_sent")

    def nothing_crosses() -> bool:
        sent = here.counter("mesh_entries_sent")
        publisher.publish("end/x", b"2", qos=1)
        return here.counter("mesh_entries_sent") == sent

    wait_until(nothing_crosses, SECONDS, "the other host wants it no more")
    assert here.counter("mesh_entries_sent") >= before
    close(publisher, two[0])


def test_a_session_that_ends_takes_nothing_from_those_of_other_workers(pair: Hosts) -> None:
    """It was the last one of its worker that wanted something; another worker of its host has one that still does."""
    here, there = pair
    publishers = [here.client_on(worker, "left") for worker in range(2)]
    for ends in range(2):
        two = [there.client_on(worker, f"left{ends}-") for worker in range(2)]
        for client in two:
            client.subscribe(f"left/{ends}")
        two[ends].disconnect()
        number = 0
        while there.counter("subscriptions") > 1 or number < 20:  # a gauge that is set each second
            for publisher in publishers:
                number += 1
                assert publisher.publish(f"left/{ends}", b"%d" % number, qos=1) == 0
                two[1 - ends].receive(f"left/{ends}", b"%d" % number)
        two[1 - ends].disconnect()
    close(*publishers)


def test_order_and_large_bodies(pair: Hosts) -> None:
    """[MQTT-4.6.0-5] Messages of a publisher arrive in order, those with bodies in frames of their own among them."""
    here, there = pair
    publisher = here.client_on(1, "order")
    subscriber = there.client_on(0, "order")
    subscriber.subscribe("order", qos=1)
    bodies = [b"%05d" % number + b"x" * (20_000 if number % 7 == 0 else 10) for number in range(70)]
    for body in bodies:
        publisher.publish("order", body, qos=1)
    for body in bodies:
        subscriber.receive("order", body)
    close(publisher, subscriber)


# ------------------------------------------------------------------------------------------------- retained messages


def retained_on(client: Client, topic_filter: str) -> dict[str, bytes]:
    """Return the retained messages that a SUBSCRIBE brings, by topic; the marker is another client's."""
    client.subscribe(topic_filter, qos=1)
    found = {}
    while True:
        try:
            got = client.read(1.0)
        except TimeoutError:
            break
        found[got.topic] = got.payload
        client.ack("PUBACK", got.packet_id)
    client.unsubscribe(topic_filter)
    return found


def test_every_host_has_the_retained_messages(pair: Hosts) -> None:
    """[MQTT-3.3.1-6] They are set and cleared on all hosts, wherever they are published."""
    clients = everywhere(pair, "kept-")
    for number, client in enumerate(clients):
        for at in range(4):
            client.publish(f"kept/{number}/{at}", b"%d" % number, qos=1, retain=True)
    want = {f"kept/{number}/{at}": b"%d" % number for number in range(4) for at in range(4)}
    for client in clients:
        assert retained_on(client, "kept/#") == want
    for number, client in enumerate(clients):
        client.publish(f"kept/{(number + 2) % 4}/0", b"", qos=1, retain=True)
        del want[f"kept/{(number + 2) % 4}/0"]
    for client in clients:
        assert retained_on(client, "kept/#") == want
    close(*clients)


def test_the_later_retained_message_counts_on_all_hosts(pair: Hosts) -> None:
    """Of two, published on different hosts one after the other's acknowledgement, the second stays, on both."""
    one, two = (host.client_on(0, "later") for host in pair)
    for number in range(20):
        first, second = (one, two) if number % 2 else (two, one)
        first.publish(f"later/{number}", b"first", qos=1, retain=True)
        second.publish(f"later/{number}", b"second", qos=1, retain=True)
    for client in one, two:
        assert set(retained_on(client, "later/#").values()) == {b"second"}
    close(one, two)


# ------------------------------------------------------------------------------------------------- share groups


def test_a_share_group_over_hosts_gets_each_message_once(pair: Hosts) -> None:
    """[MQTT-4.8.2] Each message goes to one member; members of the publisher's host are preferred."""
    here, there = pair
    members = [host.client_on(worker, "member-") for host in pair for worker in range(2)]
    for member in members:
        member.subscribe("$share/g/shared/#", qos=1)
    publisher = here.client_on(0, "shares")
    for number in range(20):
        publisher.publish(f"shared/{number}", b"", qos=1)
    got = [taken(member) for member in members]
    assert sum(got) == 20
    assert got[2] == got[3] == 0
    close(*members[:2])  # then the other host has the only ones
    for number in range(20):
        publisher.publish(f"shared/{number}", b"", qos=1)
    assert sum(taken(member) for member in members[2:]) == 20
    assert there.counter("dropped_no_member") == here.counter("dropped_no_member") == 0
    close(publisher, *members[2:])


def test_an_even_share_group_is_spread_over_all_members(tmp_path: Path) -> None:
    """Whichever host a message is published on, and however many workers and members each has."""
    file = tmp_path / "mqttd.toml"
    file.write_text('[[shared]]\ngroup = "even"\nstrategy = "round_robin"\nhosts = "even"\n')
    with hosts_of([2, 1, 2], environment={"MQTTD_CONFIG": str(file)}) as hosts:
        members = [hosts[at].client(f"member-{number}") for number, at in enumerate([0, 1, 2, 2, 2])]
        for member in members:
            member.subscribe("$share/even/shared/#", qos=1)
        publishers = everywhere(hosts, "publisher-")
        for number in range(100):
            for publisher in publishers:
                publisher.publish(f"shared/{number}", b"", qos=1)
        got = [taken(member) for member in members]
        assert sum(got) == 500
        assert max(got) - min(got) <= 25
        close(*members[1:])
        for publisher in publishers:
            publisher.publish("shared/x", b"", qos=1)
        assert taken(members[0]) == 5, "the only one that is left"
        close(members[0], *publishers)


def taken(member: Client) -> int:
    """Return how many messages it gets, and acknowledge them."""
    count = 0
    while True:
        try:
            got = member.read(0.5)
        except TimeoutError:
            return count
        member.ack("PUBACK", got.packet_id)
        count += 1


def test_a_share_group_of_another_host_alone(pair: Hosts) -> None:
    """Its members get each message once, on whichever of their workers, also beside a plain subscription there."""
    here, there = pair
    members = [there.client_on(worker, "far-") for worker in range(2)]
    plain = there.client_on(0, "far-plain-")
    plain.subscribe("far/#", qos=1)
    for member in members:
        member.subscribe("$share/far/far/#", qos=1)
    publisher = here.client_on(1, "far")
    for number in range(10):
        publisher.publish(f"far/{number}", b"", qos=1)
    assert taken(plain) == 10
    assert sum(taken(member) for member in members) == 10
    close(publisher, plain, *members)


# ------------------------------------------------------------------------------------------------- expiry, offline


def test_an_offline_session_on_another_host_gets_its_messages(pair: Hosts) -> None:
    """A lasting session whose client is away is queued for, with what crosses."""
    here, there = pair
    name = next(ids_on(1, 2, "offline"))
    subscriber = there.client(name, clean=False, properties={"session_expiry_interval": 300})
    subscriber.subscribe("offline/#", qos=1)
    subscriber.disconnect()
    publisher = here.client_on(0, "offline")
    for number in range(10):
        publisher.publish(f"offline/{number}", b"", qos=1)
    subscriber = there.client(name, clean=False, properties={"session_expiry_interval": 0})
    assert subscriber.connack.session_present
    for number in range(10):
        subscriber.receive(f"offline/{number}", b"")
    expect_nothing_more(subscriber, publisher, "offline-marker")
    close(publisher, subscriber)


@pytest.mark.soak
def test_a_publish_for_10_000_subscribers_crosses_once() -> None:
    """They are all on the other host, on both of its workers."""
    subscribers = 10_000
    needed = subscribers + 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= needed, "this machine allows too few open files"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        with hosts_of([2, 2]) as (here, there):
            clients = [there.client(f"many-{at}") for at in range(subscribers)]
            for client in clients:
                client.subscribe("once/#", qos=1)
            publisher = here.client("publisher")
            before = here.counter("mesh_entries_sent")
            publisher.publish("once/wanted", b"x", qos=1)
            for client in clients:
                client.receive("once/wanted", b"x", qos=1)
            assert here.counter("mesh_entries_sent") - before == 1
            close(publisher, *clients)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
