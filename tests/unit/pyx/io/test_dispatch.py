"""Bytes -> packets without sockets: whole, byte by byte, at every split; budgets, adoption of the inbox, errors."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import wire
from tests.kept_host import commit, kept, sent
from tests.sansio import CLOSING, Host, Peer


def conversation(version: int, qos: int) -> list[bytes]:
    """Return one of each packet that a client may send: the answers do not depend on how the stream is split."""
    packets = [
        wire.connect(version, "client", keep_alive=60),
        wire.subscribe(version, 1, ("a/+", qos), ("big", 0)),
        wire.PINGREQ,
        wire.publish(version, "a/b", b"", qos=qos, packet_id=2),
        wire.publish(version, "a/b", b"x" * 130, qos=qos, packet_id=3),
        wire.publish(version, "big", b"y" * 3000),
        wire.publish(version, "nobody", b"z", qos=1, packet_id=4),
    ]
    if version == 5:
        packets += [
            wire.publish(5, "a/c", b"set", properties={"topic_alias": 1, "message_expiry_interval": 9}),
            wire.publish(5, "", b"by alias", properties={"topic_alias": 1, "user_property": [("k", "v")]}),
        ]
    if qos == 2:
        packets += [wire.ack(version, "PUBREL", 2), wire.ack(version, "PUBREL", 3)]
    return [*packets, wire.unsubscribe(version, 5, "a/+"), wire.PINGREQ]


def heard(version: int, pieces: list[bytes]) -> list[wire.Packet]:
    host = Host()
    peer = host.open(version)
    for piece in pieces:
        peer.send(piece)
        if len(pieces) < 10:
            host.settle()
    host.settle()
    assert not peer.closed
    assert peer.conn.unread() == b""
    host.check_books()
    return list(peer.packets)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_whole_byte_by_byte_and_at_every_split(version: int, qos: int) -> None:
    data = b"".join(conversation(version, qos))
    whole = heard(version, [data])
    assert [p.kind for p in whole].count("PINGRESP") == 2
    assert whole[0].kind == "CONNACK"
    assert heard(version, [data[i : i + 1] for i in range(len(data))]) == whole
    places = {*range(1, 400), *range(len(data) - 120, len(data)), *random.Random(1).sample(range(1, len(data)), 60)}
    for at in sorted(places):
        # the answers of two ticks may be in a different order, not different
        assert sorted(map(repr, heard(version, [data[:at], data[at:]]))) == sorted(map(repr, whole))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4000), max_size=12), st.sampled_from([3, 4, 5]))
def test_any_pieces(cuts: list[int], version: int) -> None:
    data = b"".join(conversation(version, 2))
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(data[at : at + cut])
        at += cut
    assert sorted(map(repr, heard(version, [*pieces, data[at:]]))) == sorted(map(repr, heard(version, [data])))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([0, 3, 4, 5]))
def test_any_bytes_are_a_packet_an_error_or_a_wait(data: bytes, version: int) -> None:
    host = Host()
    peer = host.connect("client", version) if version else host.open()
    try:
        peer.send(data)
        for node in host.nodes:
            node.router.finish_tick()
    finally:
        assert host.counters()["internal_errors"] == 0
    if not peer.closed:
        assert len(peer.conn.unread()) <= len(data)
    row = host.counters()
    assert row["matched"] == row["delivered_qos0"] + host.waiting()


def test_packets_beyond_the_budget_wait_for_the_next_tick() -> None:
    host = Host(limits={"tick_connection_packets_max": 10})
    peer = host.connect("client")
    peer.send(wire.PINGREQ * 35, wire.PINGREQ[:1])
    assert host.counters()["packets_received"] == 1 + 10
    assert len(peer.conn.unread()) == 51
    peer.send(wire.PINGREQ[1:])
    host.settle()
    assert [p.kind for p in peer.packets] == ["PINGRESP"] * 36
    assert peer.conn.unread() == b""


def test_subscriptions_beyond_the_budget_of_a_tick_wait_while_others_publish() -> None:
    """All connections share the budget, and each has its turn; clients that do not subscribe are not affected."""
    host = Host(limits={"tick_filters_max": 10})
    crowd, publisher = [host.connect(f"client{n}") for n in range(4)], host.connect("publisher")
    for peer in crowd:
        peer.send(*(wire.subscribe(4, 1 + n, (f"t/{n}", 0)) for n in range(30)))
    assert host.counters()["subscriptions"] == 10
    publisher.publish("other", b"", 1)
    host.turn()
    assert publisher.next("PUBACK")
    shares = []
    for _ in range(11):
        host.turn()
        assert host.counters()["subscriptions"] % 10 == 0
        shares.append([peer.session.subscriptions for peer in crowd])
    assert shares[-1] == [30] * 4
    assert min(shares[6]) > 0
    assert [len(peer.packets) for peer in crowd] == [30] * 4


def test_nothing_is_handled_behind_a_disconnect_or_an_error() -> None:
    for end in (wire.disconnect(4), b"\xf0\x00", wire.connect(4, "again")):
        host = Host()
        peer, witness = host.connect("client"), host.connect("witness")
        witness.subscribe(("t", 0))
        peer.send(wire.publish(4, "t", b"1"), end, wire.publish(4, "t", b"2"))
        assert [p.payload for p in witness.receive()] == [b"1"]
        assert peer.closed
        assert peer.conn.unread() == b""
        peer.send(wire.publish(4, "t", b"3"))
        witness.silent()


def test_a_connect_whose_length_takes_too_many_bytes() -> None:
    """[MQTT-1.5.5-1]: the encoded value MUST use the minimum number of bytes."""
    for version, refused in ((4, False), (5, True)):
        host = Host()
        peer = host.open(version)
        whole = wire.connect(version, "client")
        peer.send(whole[:1] + bytes([whole[1] | 0x80, 0]) + whole[2:])
        host.settle()
        assert peer.closed == refused


def test_sys_topics_are_refused_and_others_that_begin_so_are_not() -> None:
    host = Host()
    peer = host.connect("client", 5)
    peer.subscribe(("$SYS/#", 0), ("$SYSTEM/#", 0), ("$SYS", 0))
    for topic, reason in (("$SYS/a", 0x87), ("$SYS", 0x87), ("$SYSTEM/a", 0)):
        peer.publish(topic, b"x", 1)
        if not reason:
            assert peer.next("PUBLISH").topic == topic
        assert peer.next("PUBACK").reason == reason


# ---------------------------------------------------------------------------------------------------- large packets


def in_chunks(peer: Peer, data: bytes, size: int = 40_000) -> None:
    for at in range(0, len(data), size):
        peer.send(data[at : at + size])


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_takes_over_the_buffer_it_was_received_into(version: int) -> None:
    host = Host()
    sleeper = host.connect("sleeper", 4, clean=False)
    sleeper.subscribe(("t", 1))
    host.lose(sleeper)
    peer = host.connect("client", version)
    bodies = [bytes([65 + i]) * 100_000 for i in range(5)]
    for i, body in enumerate(bodies):
        properties = {"content_type": "x", "message_expiry_interval": 100} if version == 5 else {}
        in_chunks(peer, wire.publish(version, "t", body, qos=1, packet_id=i + 1, properties=properties))
        host.settle()
    sleeper = host.connect("sleeper", 4, clean=False)
    assert [p.payload for p in sleeper.receive()] == bodies


@pytest.mark.parametrize("alias_first", [True, False])
def test_a_kept_message_does_not_borrow_the_alias_or_the_properties_of_its_packet(alias_first: bool) -> None:
    """With a Topic Alias the topic is the connection's and the properties are the codec's scratch, not the packet's."""
    host = Host()
    sleeper = host.connect("sleeper", 5, expiry=100)
    sleeper.subscribe(("#", 1))
    host.lose(sleeper)
    peer = host.connect("client", 5)
    peer.publish("a-topic-of-some-length", properties={"topic_alias": 1})
    properties = {"content_type": "first", "topic_alias": 1, "correlation_data": b"c" * 50}
    if alias_first:
        properties = {"topic_alias": 1, "content_type": "first", "correlation_data": b"c" * 50}
    in_chunks(peer, wire.publish(5, "", b"x" * 100_000, qos=1, packet_id=1, properties=properties))
    peer.publish("b-topic-of-some-length", properties={"topic_alias": 1, "content_type": "other"})
    for i in range(200):
        peer.publish(f"{i}-topic-of-some-length", properties={"topic_alias": 1, "content_type": "other" * 5})
    host.settle()
    sleeper = host.connect("sleeper", 5, clean=False, expiry=100)
    (packet,) = [p for p in sleeper.receive() if p.payload]
    assert packet.topic == "a-topic-of-some-length"
    assert packet.properties["content_type"] == "first"
    assert packet.properties["correlation_data"] == b"c" * 50


def test_a_large_packet_followed_by_others_in_the_same_piece() -> None:
    host = Host()
    sleeper = host.connect("sleeper", 4, clean=False)
    sleeper.subscribe(("t", 1))
    host.lose(sleeper)
    peer = host.connect("client")
    data = wire.publish(4, "t", b"x" * 100_000, qos=1, packet_id=1) + wire.publish(4, "t", b"y", qos=1, packet_id=2)
    in_chunks(peer, data + wire.PINGREQ[:1])
    peer.send(wire.PINGREQ[1:])
    host.settle()
    assert [p.kind for p in peer.packets] == ["PUBACK", "PUBACK", "PINGRESP"]
    sleeper = host.connect("sleeper", 4, clean=False)
    assert [len(p.payload) for p in sleeper.receive()] == [100_000, 1]


def test_too_large_a_packet_is_refused_by_its_length_alone() -> None:
    host = Host(limits={"packet_bytes_max": 1000})
    peer = host.connect("client", 5)
    peer.send(b"\x30" + wire.varint(2000))
    assert peer.conn.state == CLOSING
    assert peer.next("DISCONNECT").reason == 0x95


@pytest.mark.parametrize("alias", [0, 11, 65535])
def test_aliases_out_of_range(alias: int) -> None:
    host = Host()
    peer = host.connect("client", 5)
    peer.publish("t", b"x", properties={"topic_alias": alias})
    assert peer.next("DISCONNECT").reason == 0x94


def test_an_alias_that_was_never_set() -> None:
    host = Host()
    peer = host.connect("client", 5)
    peer.publish("", b"x", properties={"topic_alias": 3})
    assert peer.next("DISCONNECT").reason == 0x82


# ---------------------------------------------------------------------------------------------------- Receive Maximum


def test_more_than_receive_maximum_unanswered() -> None:
    host = Host(limits={"receive_maximum": 3})
    peer = host.connect("client", 5)
    for i in range(1, 4):
        peer.send(wire.publish(5, "t", b"x", qos=2, packet_id=i))
    peer.send(wire.publish(5, "t", b"x", qos=2, packet_id=2, dup=True))
    assert [peer.next("PUBREC").packet_id for _ in range(4)] == [1, 2, 3, 2]
    peer.ack("PUBREL", 1)
    peer.next("PUBCOMP")
    peer.send(wire.publish(5, "t", b"x", qos=2, packet_id=4))
    peer.next("PUBREC")
    peer.send(wire.publish(5, "t", b"x", qos=1, packet_id=5))
    assert peer.next("DISCONNECT").reason == 0x93
    assert host.counters()["receive_maximum_held"] == 0


def kept_subscription() -> Host:
    """Return a host whose acks wait for a disk, with an offline session that subscribes to `t`."""
    host, _ = kept(manual=True, limits={"receive_maximum": 3})
    peer = sent(host, "subscriber", 4, clean=False)
    commit(host)
    peer.next("CONNACK")
    peer.send(wire.subscribe(4, 1, ("t", 2)))
    host.settle()
    commit(host)
    host.lose(peer)
    return host


def test_one_that_counts_nothing_is_not_read_while_it_is_us_who_are_late() -> None:
    host = kept_subscription()
    peer = host.connect("client", 5)
    peer.send(b"".join(wire.publish(5, "t", b"x", qos=1, packet_id=i) for i in range(1, 9)))
    peer.silent()
    assert host.counters()["receive_maximum_held"] == 1
    assert host.counters()["publish_received_qos1"] == 3
    for first, last in ((1, 3), (4, 6), (7, 8)):
        commit(host)
        assert [peer.next("PUBACK").packet_id for _ in range(first, last + 1)] == list(range(first, last + 1))
        peer.silent()
    assert host.counters()["receive_maximum_exceeded"] == 0


def test_qos_2_beyond_receive_maximum_is_an_error_when_nothing_is_due_any_more() -> None:
    host = kept_subscription()
    peer = host.connect("client", 5)
    for packet_id in range(1, 5):
        peer.send(wire.publish(5, "t", b"x", qos=2, packet_id=packet_id))
    peer.silent()
    commit(host)
    assert [peer.next("PUBREC").packet_id for _ in range(3)] == [1, 2, 3]
    assert peer.next("DISCONNECT").reason == 0x93


def test_identifiers_that_have_arrived_are_kept_apart() -> None:
    """Identifiers are inserted and removed in any order: the table has no tombstones."""
    host = Host(limits={"receive_maximum": 1000})
    peer, witness = host.connect("client"), host.connect("witness")
    witness.subscribe(("t", 0))
    numbers = random.Random(7)
    there: set[int] = set()
    expected = 0
    for _ in range(3000):
        packet_id = numbers.choice([numbers.randrange(1, 65536), numbers.randrange(1, 40), *list(there)[:3]])
        if numbers.random() < 0.5 or len(there) > 300:
            peer.ack("PUBREL", packet_id)
            there.discard(packet_id)
        else:
            peer.send(wire.publish(4, "t", b"", qos=2, packet_id=packet_id))
            expected += packet_id not in there
            there.add(packet_id)
    assert len(witness.receive()) == expected


@pytest.mark.mqtt("5:4.13.1-1", "311:4.8.0-2")
@pytest.mark.parametrize("version", [4, 5])
def test_an_error_of_ours_ends_the_connection(version: int) -> None:
    """No memory for a SUBSCRIBE, or a defect: that connection is closed, v5 gets 0x83, logged; others continue."""
    host = Host()
    peer, other = host.connect("peer", version), host.connect("other", version)

    def no_memory(*_: object) -> None:
        raise MemoryError("none left")

    host.node.subscribe = no_memory  # type: ignore[assignment]
    peer.send(wire.subscribe(version, 1, ("a", 0)))
    host.settle()
    assert peer.closed
    if version == 5:
        assert peer.next("DISCONNECT").reason == 0x83
    [line] = host.logs[0].named("internal_error")
    assert line["client"] == "peer"
    assert "none left" in line["traceback"]
    other.send(wire.PINGREQ)
    other.next("PINGRESP")


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_connect_that_came_too_late_is_answered_in_its_version(version: int) -> None:
    """The home was away for too long: only the version is read of the CONNECT."""
    host = Host()
    peer = host.open(version)
    host.node.dispatch.learn_version(peer.conn, wire.connect(version, "client", properties={}))
    assert peer.conn.version == version
    host.node.closing.unavailable(peer.conn, "its worker did not take it in time")
    host.settle()
    assert peer.next("CONNACK").reason == (0x88 if version == 5 else 3)


@pytest.mark.parametrize("unread", [b"", b"\x10", b"\x10\x80", b"\x10\x02\x00\x04", b"\xff" * 9])
def test_of_what_is_no_connect_no_version_is_learnt(unread: bytes) -> None:
    host = Host()
    peer = host.open(4)
    host.node.dispatch.learn_version(peer.conn, unread)
    assert peer.conn.version == 0
