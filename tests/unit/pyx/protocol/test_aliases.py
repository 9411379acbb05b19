"""Topic Aliases towards clients: a client that follows them always sees what one without them sees."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sansio import Host, Peer
from tests.wire import Packet


class Follower:
    """The duties of a client that uses aliases; a new one for each connection."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.known: dict[int, str] = {}

    def topic(self, packet: Packet) -> str:
        alias = packet.properties.get("topic_alias")
        if alias is None:
            assert packet.topic
            return packet.topic
        assert 1 <= alias <= self.most
        if packet.topic:
            self.known[alias] = packet.topic
        return self.known[alias]


def seen(peer: Peer, follower: Follower) -> list[tuple[str, bytes]]:
    """Return every PUBLISH in the order of arrival; each handshake is completed."""
    return [(follower.topic(packet), packet.payload) for packet in peer.receive()]


TOPICS = ["hot/a", "hot/b", "warm/some/where/longer", "x", "cold/" + "y" * 200] + [f"n/{i}/t" for i in range(30)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([0, 1, 2, 3, 9]), st.sampled_from([1, 3]))
def test_a_follower_sees_what_others_see(seed: int, most: int, workers: int) -> None:
    """Topics, sizes, QoS, stalled and lost connections at random: aliases change how topics travel, nothing else."""
    pick = random.Random(seed)
    limits = {"outbox_bytes_max": 4096, "share_large_bytes": 256, "topic_alias_out_max": 4}
    host = Host(workers, limits)
    small = {"maximum_packet_size": 400}

    def join(name: str, aliases: int) -> Peer:
        return host.connect(name, 5, clean=False, expiry=100, properties={**small, "topic_alias_maximum": aliases})

    plain, aliased, sender = join("plain", 0), join("aliased", most), host.connect("sender", 5)
    follower = Follower(min(most, 4))
    for peer in (plain, aliased):
        peer.subscribe(("#", 1), identifier=7)
    got: dict[str, list[tuple[str, bytes]]] = {"plain": [], "aliased": []}
    for number in range(120):
        topic = pick.choice(TOPICS[:5] if pick.random() < 0.7 else TOPICS)
        sender.publish(topic, b"%d " % number + b"z" * pick.choice([0, 0, 300, 350, 500]), qos=1)
        event = pick.random()
        if event < 0.1:
            got["plain"] += seen(plain, Follower(0))
            got["aliased"] += seen(aliased, follower)
        elif event < 0.14:
            got["plain"] += seen(plain, Follower(0))
            got["aliased"] += seen(aliased, follower)
            host.lose(plain)
            host.lose(aliased)
            sender.publish(topic, b"while away %d" % number, qos=1)
            host.settle()
            plain, aliased, follower = join("plain", 0), join("aliased", most), Follower(min(most, 4))
    got["plain"] += seen(plain, Follower(0))
    got["aliased"] += seen(aliased, follower)
    assert got["aliased"] == got["plain"]
    assert len(got["plain"]) > 50
    host.check_books()
    assert (host.counters()["publish_sent_by_alias"] > 0) == (most > 0)


def test_messages_that_a_full_outbox_drops_set_no_alias() -> None:
    """QoS 0 messages dropped before they reach the outbox leave the client's aliases as it knows them."""
    host = Host(limits={"outbox_bytes_max": 4096})
    aliased = host.connect("aliased", 5, properties={"topic_alias_maximum": 2})
    sender = host.connect("sender")
    aliased.subscribe(("#", 0))
    follower = Follower(2)
    numbers: list[int] = []
    for round_ in range(5):
        aliased.stalled = True
        for number in range(200):
            sender.publish(f"topic/{number % 7}", b"%d %d " % (number % 7, number) + b"x" * 100)
            host.turn()
        aliased.stalled = False
        aliased.take()
        for packet in aliased.receive():
            number = int(packet.payload.split()[0])
            assert follower.topic(packet) == f"topic/{number}"
            numbers.append(round_)
    assert host.counters()["dropped_outbox_full"] > 100
    assert set(numbers) == set(range(5))
    host.check_books()


def test_the_aliases_of_a_connection_that_gets_nothing_take_no_memory() -> None:
    """Allowed aliases take no memory before they are used: 65,535 of them are only a number."""
    host = Host()
    peer = host.connect("client", 5, properties={"topic_alias_maximum": 65535})
    assert peer.conn.topic_alias_out_max == 10


@pytest.mark.parametrize("identifiers", [65, 100, 300])
def test_every_identifier_of_many_overlapping_filters(identifiers: int) -> None:
    """[MQTT-3.3.4-4]: a copy carries all of them, live and from the queue, however many filters match."""
    host = Host()
    topic = "/".join("abcdefghij")
    levels = topic.split("/")
    pick = random.Random(identifiers)
    filters = {topic}
    while len(filters) < identifiers:
        filters.add("/".join("+" if pick.random() < 0.5 else level for level in levels))
    reader = host.connect("reader", 5, clean=False, expiry=100)
    for number, text in enumerate(sorted(filters), 1):
        reader.subscribe((text, 1), identifier=number)
    sender = host.connect("sender")

    def expect_all() -> None:
        (packet,) = reader.receive()
        assert sorted(packet.properties["subscription_identifier"]) == list(range(1, identifiers + 1))

    sender.publish(topic, b"live", 1)
    expect_all()
    host.lose(reader)
    sender.publish(topic, b"queued", 1)
    reader = host.connect("reader", 5, clean=False, expiry=100)
    expect_all()


def test_an_expired_retained_message_is_forgotten() -> None:
    """[MQTT 5, 3.3.1.3]: it is discarded, whether or not a client asks for it; its slot and its bytes are free."""
    host = Host(2)
    sender = host.connect("sender", 5)
    for number in range(20):
        short = {"message_expiry_interval": 2 if number % 2 else 100}
        sender.publish(f"r/{number}", b"x" * 50, retain=True, properties=short)
    sender.publish("$own/r", b"x", retain=True, properties={"message_expiry_interval": 2})
    host.pass_time(0.5)
    assert host.counters()["retained_messages"] == 21
    host.pass_time(4)
    assert host.counters()["retained_messages"] == 11
    reader = host.connect("reader", 5)
    reader.subscribe(("$own/#", 0))
    reader.silent()
    assert host.counters()["retained_messages"] == 10
    reader.subscribe(("r/#", 0))
    got = reader.receive()
    assert len(got) == 10
    assert all(packet.properties["message_expiry_interval"] < 100 for packet in got)
    for number in range(20):
        sender.publish(f"r/{number}", b"", retain=True)
    host.pass_time(0.5)
    row = host.counters()
    assert (row["retained_messages"], row["retained_bytes"]) == (0, 0)


def test_nothing_follows_a_disconnect() -> None:
    """[MQTT-3.14.4-1]: an answer that waited for another worker is not sent behind it."""
    host = Host(2)
    peer = host.connect("publisher", 5)
    away = next(name for name in map(str, range(50)) if host.connect(name, 5).node is not peer.node)
    other = next(each for each in host.peers if each.client_id == away)
    other.subscribe(("t/x", 1))
    host.held.add((peer.node.index, other.node.index))
    peer.publish("t/x", b"x", 1)
    host.turn()
    peer.send(b"\xf0\x00")
    host.held.clear()
    host.settle()
    assert peer.packets.pop().kind == "DISCONNECT"
    assert not [packet for packet in peer.packets if packet.kind == "DISCONNECT"]
